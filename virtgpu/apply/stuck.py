"""What is not settled: devices whose write has not come back (nothing else is done to them while
its child lives), and slices of an apply that has not ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from virtgpu.apply import journal
from virtgpu.errors import VirtgpuError
from virtgpu.host.door import Child, Door
from virtgpu.model import steps
from virtgpu.model.plan import Plan
from virtgpu.model.slice import Reservation
from virtgpu.model.steps import Step


class StuckWrite(NamedTuple):
    """A living child, and the step that it does."""

    plan: Plan
    step: Step
    child: Child


def load(door: Door) -> tuple[str, ...]:
    """The PCI addresses and mdev UUIDs that are stuck now, and the ids of slices whose making or
    taking has not ended. A journal that cannot be read names none: recovery says so."""
    found: set[str] = set()
    for path in journal.files(door.state_dir):
        try:
            lines = journal.peek(path)
        except VirtgpuError:
            continue
        one = of_lines(door, lines)
        if one is not None:
            found.update(devices(one.step))
        plan = lines[0].plan if lines else None
        found.update(one.id for one in reservations_of(plan))
    return tuple(sorted(found))


def reservations_of(plan: Plan | None) -> Iterator[Reservation]:
    """The promises that a plan makes or gives up."""
    for step in plan.steps if plan is not None else ():
        if isinstance(step, steps.Reserve | steps.Release):
            yield step.reservation


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
