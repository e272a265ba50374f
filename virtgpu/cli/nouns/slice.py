"""`virtgpu slice`."""

from __future__ import annotations

import click

from virtgpu.cli.changes import finished, show_plan, step_progress
from virtgpu.cli.output import Table, cell, show
from virtgpu.cli.streams import say
from virtgpu.cli.world import World, verb
from virtgpu.model.slice import Slice

_HEADINGS = ("ID", "WHAT", "STATE", "GPU", "WHERE", "GUEST", "IN USE BY", "CREATED")


@click.group(name="slice")
def command() -> None:
    """Slices: list, create, destroy."""


@verb(command, name="list", example="virtgpu slice list -o json")
def slice_list(world: World) -> None:
    """List every slice: ours, and foreign ones that others have made."""
    host = world.handle()
    slices, damaged = host.slices(), host.damaged()
    show(world, {"slices": slices}, Table(_HEADINGS, [_row(one) for one in slices], "no slices"))
    for sentence in damaged:
        say(f"warning: a reservation is damaged, nothing is given away: {sentence}")


def _row(one: Slice) -> tuple[object, ...]:
    holders = (
        "unknown"
        if one.holders is None
        else cell(tuple(f"{h.command} ({h.pid})" for h in one.holders))
    )
    where = one.place.vf or (one.place.functions and one.place.functions[0]) or one.place.mdev
    return (
        one.id,
        one.name,
        one.state.value,
        one.place.gpu,
        where,
        one.guest,
        holders,
        one.created,
    )


@verb(
    command,
    name="create",
    example="virtgpu slice create A40-12Q --for render01 --dry-run",
)
@click.argument("request")
@click.option("--for", "guest", metavar="GUEST", help="The guest that it is reserved for.")
@click.option("--dry-run", is_flag=True, help="Show the plan and touch nothing; -o json saves it.")
def slice_create(world: World, request: str, guest: str | None, dry_run: bool) -> None:
    """Reserve and make a slice.

    \b
    A40-12Q                    a vGPU type by its name
    8G:Q                       at least 8 GB, series Q, C, B or A
    vf, vf:flex170             a plain virtual function
    mig:1g.10gb                a MIG-backed vGPU
    gpu, gpu:A100, 4xgpu       whole cards
    'A40-12Q on 0000:51:00.0'  there and nowhere else
    """
    host = world.handle()
    if dry_run:
        show_plan(world, host.plan(request, guest=guest))
        return
    result = host.create(request, guest=guest, progress=step_progress(world))
    finished(world, result, f"made for {guest}" if guest else "made")


@verb(command, name="destroy", example="virtgpu slice destroy 4b20")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--adopt", is_flag=True, help="Also a slice that virtgpu did not make.")
@click.option("--dry-run", is_flag=True, help="Show the plan and touch nothing.")
def slice_destroy(world: World, ids: tuple[str, ...], adopt: bool, dry_run: bool) -> None:
    """Destroy slices that nobody uses, and give up their reservations."""
    host = world.handle()
    if dry_run:
        show_plan(world, host.plan_destroy(ids, adopt=adopt))
        return
    result = host.destroy(ids, adopt=adopt, progress=step_progress(world))
    finished(world, result, "destroyed")
