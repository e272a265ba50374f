"""`virtgpu recover`."""

from __future__ import annotations

import click

from virtgpu.cli.output import show
from virtgpu.cli.world import Verb, World
from virtgpu.errors import RecoveryNeeded


@click.command(cls=Verb, name="recover", example="virtgpu recover")
@click.option("--dry-run", is_flag=True, help="Say what there is to do, and touch nothing.")
@click.option(
    "--as-is",
    multiple=True,
    metavar="PLAN",
    help="End this plan though a device is in a state that virtgpu does not leave; it stays so.",
)
def command(world: World, dry_run: bool, as_is: tuple[str, ...]) -> None:
    """Finish or undo what was cut off, and say which; ends with 13 when something is left."""
    report = world.handle().recover(only_look=dry_run, as_is=as_is)
    lines = list(report.sentences) or ["nothing to recover"]
    if report.running:
        lines.append(f"{report.running} apply at work now, left alone")
    body = {"journals": report.journals, "running": report.running, "damaged": report.damaged}
    show(world, body, "\n".join(lines))
    if report.damaged:
        raise RecoveryNeeded(
            f"a reservation is damaged: {report.damaged[0]}",
            hint="look at the file and at virtgpu slice list; without it the slice is foreign",
        )
    left = [one for one in report.journals if one.outcome == "left"]
    if left:
        raise RecoveryNeeded(
            f"{left[0].summary}: {left[0].reason}",
            hint=left[0].hint or "virtgpu recover, once that is over",
        )
