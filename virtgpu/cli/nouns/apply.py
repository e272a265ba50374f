"""`virtgpu apply`."""

from __future__ import annotations

import click

from virtgpu.cli.changes import finished, step_progress
from virtgpu.cli.world import Verb, World


@click.command(cls=Verb, name="apply", example="virtgpu apply plan.json")
@click.argument("plan", metavar="PLAN")
def command(world: World, plan: str) -> None:
    """Do a plan that `--dry-run -o json` has saved, unless what it rests on has changed."""
    from pathlib import Path

    from virtgpu.apply.executor import load_plan

    saved = load_plan(Path(plan).absolute())
    result = world.handle().apply(saved, progress=step_progress(world))
    finished(world, result, "made" if saved.goal == "make" else "given back")
