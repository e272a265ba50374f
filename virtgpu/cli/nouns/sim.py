"""`virtgpu sim`."""

from __future__ import annotations

from pathlib import Path

import click

from virtgpu.cli.output import Table, show
from virtgpu.cli.streams import put, say
from virtgpu.cli.world import World, verb


@click.group(name="sim")
def command() -> None:
    """Simulated hosts, for those without a GPU."""


@verb(command, name="list", example="virtgpu sim list")
def sim_list(world: World) -> None:
    """List the shipped host profiles."""
    from virtgpu.api import simulated

    found = simulated()
    profiles = [{"id": name, "name": name, "about": about} for name, about in found]
    show(world, {"profiles": profiles}, Table(("NAME", "WHAT IT IS"), found))


@verb(command, name="show", example="virtgpu sim show a40x2-mdev-vf")
@click.argument("profile")
def sim_show(world: World, profile: str) -> None:
    """Show a simulated host as it is now, and what is unproven about it."""
    from virtgpu.sim import profiles

    found = profiles.load(profile)
    host = World(f"sim:{profile}", None, world.state_dir).handle().read()
    lines = [f"{found.name}: {found.about}", f"kernel {host.kernel}, {len(host.gpus)} GPUs"]
    lines += [f"  {gpu.address}  {gpu.name}" for gpu in host.gpus]
    lines += [f"unproven: {text}" for text in found.raw.get("unverified") or []]
    show(world, {"profile": found.raw, "host": host}, "\n".join(lines))


@verb(command, name="reset", example="virtgpu sim reset a40x2-mdev-vf")
@click.argument("profile")
@click.option("--dry-run", is_flag=True, help="Say what would be forgotten, and touch nothing.")
def sim_reset(world: World, profile: str, dry_run: bool) -> None:
    """Forget what was changed on a simulated host: slices, reservations, journals."""
    from virtgpu.sim.door import reset

    name, folder = reset(profile, world.folder.absolute(), only_look=dry_run)
    said = f"{name} is as its profile says"
    if dry_run:
        said = "nothing is there to be forgotten" if folder is None else f"{folder} would go"
    show(world, {"profile": {"id": name, "name": name, "folder": folder and str(folder)}}, said)


@verb(
    command,
    name="run",
    example="virtgpu sim run a40x2-mdev-vf -- virsh nodedev-list --cap pci",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("profile")
@click.argument("words", nargs=-1, metavar="[-- COMMAND...]", type=click.UNPROCESSED)
@click.option("--no-libvirtd", is_flag=True, help="Only /sys; no libvirtd.")
@click.option("--cache", metavar="FOLDER", help="Keep libvirt's knowledge of QEMU there.")
@click.option("--log", metavar="FILE", help="Keep libvirtd's log there.")
@click.option(
    "--faults",
    metavar="SPEC",
    help="Faults of writes, such as 3:EIO,5:stall. libvirtd's own writes count.",
)
def sim_run(
    world: World,
    profile: str,
    words: tuple[str, ...],
    no_libvirtd: bool,
    cache: str | None,
    log: str | None,
    faults: str | None,
) -> int:
    """Run a command, or a shell, on a simulated host with the real libvirtd.

    The machine's own /sys, /dev and libvirt are not touched: all is in private namespaces, and
    gone when the command ends. The exit code is the command's.
    """
    from virtgpu.api import run_simulated

    command_line = words or ("/bin/bash",)
    return run_simulated(
        profile,
        command_line,
        state_dir=world.folder.absolute(),
        libvirtd=not no_libvirtd,
        cache=Path(cache).absolute() if cache else None,
        log=Path(log).absolute() if log else None,
        faults=faults,
    )


@verb(command, name="record", example="virtgpu sim record my-host.json")
@click.argument("file", type=click.Path(dir_okay=False))
def sim_record(world: World, file: str) -> None:
    """Write a profile of this host, without serials or host names, for a bug report."""
    import json

    profile = world.handle().record()
    text = json.dumps(profile, indent=1) + "\n"
    if file == "-":
        put(text, nl=False)
        return
    from virtgpu.host.state import write_given

    write_given(file, text.encode(), "profile")
    say(f"{file} is written; look through it before you give it away")
    say(f"try it: virtgpu --host sim:{Path(file).absolute()} gpu list")
