"""Devices whose write has not come back: nothing else is done to them while its child lives."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from virtgpu.apply import journal
from virtgpu.errors import Config
from virtgpu.host.door import Child, Door
from virtgpu.model import steps
from virtgpu.model.plan import Plan
from virtgpu.model.steps import Step


class StuckWrite(NamedTuple):
    """A living child, and the step that it does."""

    plan: Plan
    step: Step
    child: Child


def load(door: Door) -> tuple[str, ...]:
    """The PCI addresses and mdev UUIDs that are stuck now."""
    found: set[str] = set()
    for path in journal.files(door.state_dir):
        one = of_journal(door, path)
        if one is not None:
            found.update(devices(one.step))
    return tuple(sorted(found))


def of_journal(door: Door, path: Path) -> StuckWrite | None:
    """The living child of one journal; None when it has none (one that cannot be read has none:
    recovery says so)."""
    try:
        lines = journal.peek(path)
    except Config:
        return None
    return of_lines(door, lines)


def of_lines(door: Door, lines: list[journal.Line]) -> StuckWrite | None:
    """The living child that the lines end with."""
    found = journal.last_child(lines)
    if found is None or lines[0].plan is None:
        return None
    number, child = found
    if not is_alive(door, child):
        return None
    return StuckWrite(lines[0].plan, lines[0].plan.steps[number], child)


def is_alive(door: Door, child: Child) -> bool:
    """Whether that very process lives; a new one may have got its number."""
    return child.started != 0 and door.process_started(child.pid) == child.started


def devices(step: Step) -> tuple[str, ...]:
    """What a step writes to."""
    match step:
        case steps.CreateMdev() | steps.RemoveMdev():
            return step.uuid, str(step.parent)
        case steps.SetVgpuType() | steps.ClearVgpuType():
            return (str(step.vf),)
        case steps.Reserve() | steps.Release():
            return (step.reservation.id,)
        case steps.DefineDomain() | steps.UndefineDomain():
            return ()
    return (str(step.address),)
