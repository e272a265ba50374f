"""`virtgpu vm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from virtgpu.cli.output import Table, show
from virtgpu.cli.world import World, verb

if TYPE_CHECKING:
    from virtgpu.api import GuestShape
    from virtgpu.domain.read import Guest
    from virtgpu.platforms.libvirt import KnownGuest

Function = TypeVar("Function", bound=Callable[..., Any])


@click.group(name="vm")
def command() -> None:
    """Guests: render, define, undefine, list, show, lint."""


def _shape_options(function: Function) -> Function:
    for option in (
        click.option("--display", is_flag=True, help="The first vGPU is the boot display."),
        click.option("--vcpus", type=click.IntRange(1, 8192), metavar="NUMBER"),
        click.option(
            "--memory", type=click.IntRange(1, 1 << 30), metavar="MIB", help="Memory in MiB."
        ),
        click.option(
            "--template",
            metavar="NAME|FILE",
            help="A shipped template (default, headless, uefi) or a domain XML file of yours.",
        ),
        click.option(
            "--gpu",
            "requests",
            multiple=True,
            metavar="REQUEST",
            help="What the guest gets; may be given several times.",
        ),
    ):
        function = option(function)
    return function


def _shape(
    template: str | None, memory: int | None, vcpus: int | None, display: bool
) -> GuestShape:
    from virtgpu.api import GuestShape

    text = None if template is None else _template(template)
    return GuestShape(template=text, memory_mib=memory, vcpus=vcpus, display=display)


def _template(name: str) -> bytes:
    from virtgpu.domain import template

    if name in template.names():
        return template.shipped(name)
    from virtgpu.host.state import read_given

    return read_given(name, "template", hint=f"shipped are: {', '.join(template.names())}")


@verb(command, name="render", example="virtgpu vm render render01 --gpu A40-12Q")
@click.argument("name")
@_shape_options
@click.option("--uuid", metavar="UUID", help="The guest's UUID; libvirt gives one otherwise.")
def vm_render(
    world: World, name: str, requests: tuple[str, ...], uuid: str | None, **shape: Any
) -> None:
    """Print the XML of a guest with these slices; nothing is touched."""
    xml = world.handle().render(name, requests, _shape(**shape), uuid=uuid)
    show(world, {"name": name, "xml": xml.decode()}, xml.decode().removesuffix("\n"))


@verb(command, name="define", example="virtgpu vm define render01 --gpu A40-12Q --memory 16384")
@click.argument("name")
@_shape_options
@click.option("--no-slice", is_flag=True, help="Only define: reserve and make nothing.")
@click.option("--dry-run", is_flag=True, help="Show the plan and touch nothing.")
def vm_define(
    world: World,
    name: str,
    requests: tuple[str, ...],
    no_slice: bool,
    dry_run: bool,
    **shape: Any,
) -> None:
    """Make the slices and define the guest in libvirt."""
    from virtgpu.cli.changes import describe_slice, show_plan, step_progress, tell_recovered

    host = world.handle()
    made = _shape(**shape)
    if dry_run:
        show_plan(world, host.plan_define(name, requests, made, make_slices=not no_slice))
        return
    progress = step_progress(world)
    done = host.define(name, requests, made, make_slices=not no_slice, progress=progress)
    tell_recovered(done.recovered)
    slices = [describe_slice(one) for one in done.slices]
    lines = [f"{name}  defined  {done.uuid}"]
    lines += [f"{one['id']}  {one['name']}" for one in slices]
    body = {"id": done.uuid, "name": name, "slices": slices}
    show(world, {"guest": body}, "\n".join(lines))


@verb(command, name="undefine", example="virtgpu vm undefine render01")
@click.argument("name")
@click.option("--keep-slice", is_flag=True, help="Keep its slices reserved and made.")
@click.option("--dry-run", is_flag=True, help="Show the plan and touch nothing.")
def vm_undefine(world: World, name: str, keep_slice: bool, dry_run: bool) -> None:
    """Undefine a guest that is shut off, and give back the slices that were made for it."""
    from virtgpu.cli.changes import finished, show_plan, step_progress

    host = world.handle()
    if dry_run:
        show_plan(world, host.plan_undefine(name, keep_slices=keep_slice))
        return
    result = host.undefine(name, keep_slices=keep_slice, progress=step_progress(world))
    finished(world, result, "kept" if keep_slice else "given back")


@verb(command, name="list", example="virtgpu vm list")
def vm_list(world: World) -> None:
    """List the guests, and the GPUs that they have."""
    known = world.handle().guests()
    rows = [
        (one.name, "running" if one.is_active else "shut off", _devices(one.definition), one.uuid)
        for one in known
    ]
    guests = [_item(one) for one in known]
    show(world, {"guests": guests}, Table(("NAME", "STATE", "DEVICES", "UUID"), rows, "no guests"))


@verb(command, name="show", example="virtgpu vm show render01 --xml")
@click.argument("name")
@click.option("--xml", "as_xml", is_flag=True, help="Its XML as libvirt has it.")
def vm_show(world: World, name: str, as_xml: bool) -> None:
    """Show one guest: what was asked for it, and why it got that."""
    host = world.handle()
    if as_xml:
        text = host.guest_xml(name)
        show(world, {"name": name, "xml": text}, text.removesuffix("\n"))
        return
    one = host.guest(name)
    lines = [
        f"name     {one.name}",
        f"uuid     {one.uuid}",
        f"state    {'running' if one.is_active else 'shut off'}",
        f"devices  {_devices(one.definition)}",
    ]
    for slice_ in one.definition.attachments:
        what = slice_.type_name or slice_.mechanism.value
        lines.append(f"slice    {slice_.slice_id}: {what} of {slice_.gpu} for {slice_.request!r}")
        if slice_.why:
            lines.append(f"         {slice_.why}")
    lines += [f"warning  {text}" for text in one.definition.warnings]
    show(world, {"guest": _item(one)}, "\n".join(lines))


@verb(command, name="lint", example="virtgpu vm lint render01.xml --level note")
@click.argument("words", nargs=-1, metavar="[FILE|NAME]...")
@click.option("--all", "is_all", is_flag=True, help="Every guest of the host.")
@click.option(
    "--level",
    type=click.Choice(("error", "warning", "note")),
    default="warning",
    help="The least that is shown; warning is the default.",
)
@click.option("--ignore", multiple=True, metavar="CODE", help="Do not look for this rule.")
@click.option("--explain", metavar="CODE", help="Say all about one rule, and nothing else.")
@click.option(
    "--schema", metavar="PATH|none", help="A domain.rng; libvirt's own on this machine otherwise."
)
@click.option("--libvirt", metavar="VERSION", help="The libvirt that a file is meant for.")
@click.option("--qemu", metavar="VERSION", help="The QEMU that a file is meant for.")
@click.option("--fix", is_flag=True, help="Mend what is safe to mend in files, and show how.")
@click.option("--dry-run", is_flag=True, help="With --fix: show it and write nothing.")
@click.option("--sarif", is_flag=True, help="Print SARIF 2.1.0, for code hosts and editors.")
@click.pass_context
def vm_lint(
    context: click.Context,
    world: World,
    words: tuple[str, ...],
    is_all: bool,
    level: str,
    ignore: tuple[str, ...],
    explain: str | None,
    schema: str | None,
    libvirt: str | None,
    qemu: str | None,
    fix: bool,
    dry_run: bool,
    sarif: bool,
) -> None:
    """Say what is wrong with domain XML, by libvirt's schema and beyond it.

    Ends with 1 when something is an error. A word with / or ending in .xml is a file, any other
    a guest of libvirt. Files are held against each other, and against a host only when --host
    names one. A comment <!-- virtgpu: ignore CODE why --> keeps a rule quiet for the element after
    it.
    """
    from virtgpu.cli import lint
    from virtgpu.errors import Usage

    if explain is not None:
        lint.explain(world, explain)
        return
    quiet = lint.codes(ignore)
    if dry_run and not fix:
        raise Usage("--dry-run belongs to --fix", hint="checking changes nothing")
    if fix and (is_all or sarif):
        raise Usage("--fix mends files and shows a diff", hint="leave --all and --sarif out")
    if fix:
        lint.mend(world, words, ignore=quiet, dry_run=dry_run)
        return
    path = None if schema == "none" else schema or "auto"
    found = lint.results(
        world,
        words,
        is_all=is_all,
        ignore=quiet,
        schema=path,
        libvirt=lint.version(libvirt, "libvirt"),
        qemu=lint.version(qemu, "QEMU"),
    )
    context.exit(lint.print_results(world, found, level=level, as_sarif=sarif, schema=path))


def _item(one: KnownGuest) -> dict[str, Any]:
    return {
        "id": one.uuid,
        "name": one.name,
        "is_active": one.is_active,
        "is_persistent": one.is_persistent,
        "slices": one.definition.attachments,
        "devices": one.definition.devices,
        "warnings": one.definition.warnings,
    }


def _devices(guest: Guest) -> str:
    return ", ".join(one.key for one in guest.devices) or "-"
