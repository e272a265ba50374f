"""What the commands that change something have in common: plans, progress, results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from virtgpu.cli.output import as_yaml, show
from virtgpu.cli.streams import put, say
from virtgpu.cli.world import World
from virtgpu.model.plan import Plan
from virtgpu.model.steps import Step


def show_plan(world: World, plan: Plan) -> None:
    """Print a plan: for people, or as the JSON that `virtgpu apply` takes, or that as YAML."""
    from virtgpu.model import codec

    if world.format == "table":
        put(plan.describe())
    elif world.format == "json":
        put(codec.encode_pretty(plan), nl=False)
    else:
        put(as_yaml(plan), nl=False)


def step_progress(world: World) -> Any:
    """Tells each step on a terminal; silent in a pipe."""
    if not sys.stderr.isatty() or world.format != "table":
        return None
    from virtgpu.plan.describe import describe_step

    def tell(number: int, step: Step) -> None:
        say(f"  {number + 1}. {describe_step(step)}")

    return tell


def finished(world: World, result: Any, word: str) -> None:
    """Print what was done."""
    tell_recovered(result.recovered)
    slices = [describe_slice(one) for one in result.slices or _released(result.plan)]
    slices += [] if result.slices else _adopted(result.plan)
    lines = [f"{one['id']}  {word}  {one['name']}" for one in slices]
    body = {"slices": slices, "plan": result.plan.id}
    show(world, body, "\n".join(lines) or result.plan.summary)


def _released(plan: Plan) -> Sequence[Any]:
    from virtgpu.model.steps import Release

    return [step.reservation for step in plan.steps if isinstance(step, Release)]


def _adopted(plan: Plan) -> list[dict[str, Any]]:
    """Slices that a plan took away and that nobody was promised: others had made them."""
    from virtgpu.model.steps import ClearVgpuType, RemoveMdev

    ours = {one.place.mdev or one.place.vf for one in _released(plan)}
    found = []
    for step in plan.steps:
        if isinstance(step, RemoveMdev | ClearVgpuType):
            where = step.uuid if isinstance(step, RemoveMdev) else step.vf
            if where not in ours:
                name = step.type_name or step.type_id
                found.append({"id": where, "name": name, "guest": None, "domain_uuid": None})
    return found


def describe_slice(one: Any) -> dict[str, Any]:
    """A reservation as an item of a list."""
    return {
        "id": one.id,
        "name": one.place.type_name or one.place.mechanism.value,
        "guest": one.guest,
        "domain_uuid": one.domain_uuid,
        "place": one.place,
    }


def tell_recovered(sentences: Sequence[str]) -> None:
    """Say what became of earlier applies."""
    for sentence in sentences:
        say(f"recovery: {sentence}")
