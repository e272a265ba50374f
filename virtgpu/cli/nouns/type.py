"""`virtgpu type`."""

from __future__ import annotations

import click

from virtgpu.cli.output import Table, gib, show
from virtgpu.cli.world import World, verb

_HEADINGS = ("GPU", "TYPE", "ID", "WAY", "MEMORY", "MOST", "LEFT", "NOTE")


@click.group(name="type")
def command() -> None:
    """vGPU types, and how many more of each fit now."""


@verb(command, name="list", example="virtgpu type list --free")
@click.option("--free", is_flag=True, help="Only those of which one more can be made, or may be.")
@click.option("--gpu", "address", metavar="ADDRESS", help="Only those of one GPU.")
def type_list(world: World, free: bool, address: str | None) -> None:
    """List every type of every GPU with what is really left of it."""
    host = world.handle()
    wanted = None if address is None else host.gpu(address).address
    types = [
        one
        for one in host.types()
        if (not free or one.available != 0) and wanted in (None, one.gpu)
    ]
    rows = [
        (
            one.gpu,
            one.name or one.id,
            one.id,
            one.mechanism,
            gib(one.framebuffer_mib),
            one.max_instances,
            one.available,
            one.reason or "",
        )
        for one in types
    ]
    show(world, {"types": types}, Table(_HEADINGS, rows, "no types"))
