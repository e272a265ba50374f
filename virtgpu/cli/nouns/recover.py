"""`virtgpu recover`."""

from __future__ import annotations

import click

from virtgpu.cli.output import show
from virtgpu.cli.world import Verb, World
from virtgpu.errors import RecoveryNeeded


@click.command(cls=Verb, name="recover", example="virtgpu recover")
def command(world: World) -> None:
    """Finish or undo what was cut off, and say which; ends with 13 when something is left."""
    report = world.handle().recover()
    lines = list(report.sentences) or ["nothing to recover"]
    if report.running:
        lines.append(f"{report.running} apply at work now, left alone")
    show(world, {"journals": report.journals, "running": report.running}, "\n".join(lines))
    left = [one for one in report.journals if one.outcome == "left"]
    if left:
        raise RecoveryNeeded(
            f"{left[0].summary}: {left[0].reason}", hint="virtgpu recover, once that is over"
        )
