"""`virtgpu apply`."""

from __future__ import annotations

import click

from virtgpu.cli.changes import finished, show_plan, step_progress
from virtgpu.cli.world import Verb, World


@click.command(cls=Verb, name="apply", example="virtgpu apply plan.json")
@click.argument("plan", metavar="PLAN")
@click.option("--dry-run", is_flag=True, help="Say whether it still holds, and touch nothing.")
def command(world: World, plan: str, dry_run: bool) -> None:
    """Do a plan that `--dry-run -o json` has saved, unless what it rests on has changed."""
    from pathlib import Path

    from virtgpu.apply.executor import load_plan

    saved = load_plan(Path(plan).absolute())
    if dry_run:
        world.handle().check(saved)
        show_plan(world, saved)
        return
    result = world.handle().apply(saved, progress=step_progress(world))
    finished(world, result, "made" if saved.goal == "make" else "given back")
