"""After a crash: what was being made is undone, what was being taken away is finished.

Only journals whose lock is free are touched: the others belong to an apply that lives. Doing it
twice is the same as once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

import msgspec

from virtgpu.apply import journal as journals
from virtgpu.apply import reservations, stuck
from virtgpu.apply.journal import Journal
from virtgpu.apply.locking import HostLock
from virtgpu.apply.undo import Settling, settle, step_name, undo_all
from virtgpu.apply.world import World
from virtgpu.errors import NotFound, VirtgpuError
from virtgpu.host import state
from virtgpu.host.door import Door, Stuck
from virtgpu.inventory.vendor import Vendor
from virtgpu.model.plan import Plan


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one journal. *outcome* is `finished` or `undone` (*reason* then names what
    has gone, or was left as it is), or `left` with *reason* and *hint*; where recovery only
    looked, `to finish` or `to undo`."""

    plan: str
    summary: str
    outcome: str
    reason: str | None = None
    hint: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery did; *running* counts applies that are at work now, *damaged* are sentences
    about reservations that cannot be read."""

    journals: tuple[Recovered, ...] = ()
    running: int = 0
    damaged: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left."""
        return not self.damaged and all(one.outcome != "left" for one in self.journals)

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each journal."""
        return tuple(
            f"{one.summary}: {one.outcome}" + (f", {one.reason}" if one.reason else "")
            for one in self.journals
        )


def recover(door: Door, vendors: Sequence[Vendor], *, as_is: Collection[str] = ()) -> Report:
    """Finish or undo every apply that was cut off, and say which.

    What cannot be done now is left as it is and said so; nothing foreign is touched. Plans in
    *as_is* end even where a device is in a state that none of our writes leaves: it stays so.
    Raises `Conflict` when the host lock is not free in time, `NotFound` for a plan of which there
    is no journal.
    """
    unknown = set(as_is) - {path.stem for path in journals.files(door.state_dir)}
    if unknown:
        raise NotFound(
            f"there is no unfinished plan {min(unknown)!r}", hint="see: virtgpu recover --dry-run"
        )
    world = World(door, vendors)
    done: list[Recovered] = []
    running = 0
    for path in journals.files(door.state_dir):
        try:
            journal = Journal.take(path)
        except VirtgpuError as error:
            done.append(_left(path.name, "a journal that cannot be read", error))
            continue
        if journal is None:
            running += path.exists()
            continue
        done.append(_one(world, journal, journal.plan.id in as_is))
    base = door.state_dir
    for folder in (base, journals.folder(base), reservations.folder(base)):
        state.sweep(folder)
    return Report(journals=tuple(done), running=running, damaged=_damaged(door))


def look(door: Door) -> Report:
    """What recovery would do; nothing is touched."""
    found: list[Recovered] = []
    running = 0
    for path in journals.files(door.state_dir):
        if journals.is_held(path):
            running += 1
            continue
        try:
            lines = journals.peek(path)
        except VirtgpuError as error:
            found.append(_left(path.name, "a journal that cannot be read", error))
            continue
        plan = lines[0].plan if lines else None
        if plan is not None:
            outcome = "to finish" if _is_to_finish(plan, lines) else "to undo"
            found.append(Recovered(plan=plan.id, summary=plan.summary, outcome=outcome))
    return Report(journals=tuple(found), running=running, damaged=_damaged(door))


def _damaged(door: Door) -> tuple[str, ...]:
    return tuple(error.message for error in reservations.scan(door.state_dir)[1])


def _one(world: World, journal: Journal, as_is: bool) -> Recovered:
    plan = journal.plan
    waiting = stuck.of_lines(world.door, journal.lines)
    if waiting is not None:
        journal.close()
        name, pid = step_name(waiting.step), waiting.child.pid
        reason = f"{name} has not come back yet (pid {pid}); its device is left alone"
        return Recovered(plan=plan.id, summary=plan.summary, outcome="left", reason=reason)
    try:
        with HostLock(world.door.state_dir) as lock:
            outcome, remarks = _settle(world, journal, lock, as_is)
        journal.finish()
    except Stuck as error:
        return Recovered(plan=plan.id, summary=plan.summary, outcome="left", reason=str(error))
    except VirtgpuError as error:
        return _left(plan.id, plan.summary, error)
    finally:
        journal.close()
    return Recovered(
        plan=plan.id, summary=plan.summary, outcome=outcome, reason="; ".join(remarks) or None
    )


def _left(name: str, summary: str, error: VirtgpuError) -> Recovered:
    return Recovered(
        plan=name, summary=summary, outcome="left", reason=error.message, hint=error.hint
    )


def _settle(
    world: World, journal: Journal, lock: HostLock, as_is: bool
) -> tuple[str, tuple[str, ...]]:
    """What became of it, and what there is to say of devices that are not as it should be."""
    if not _is_to_finish(journal.plan, journal.lines):
        return "undone", undo_all(world, journal, lock, as_is=as_is)
    return "finished", tuple(_finish(world, journal, lock, as_is))


def _is_to_finish(plan: Plan, lines: list[journals.Line]) -> bool:
    """What was taken away, or all done, is finished; what is being undone is undone."""
    is_undoing = any(line.event in ("undo", "undone") for line in lines)
    is_whole = journals.ended(lines) == set(range(len(plan.steps)))
    return not is_undoing and (is_whole or plan.goal == "take")


def _finish(world: World, journal: Journal, lock: HostLock, as_is: bool) -> Iterator[str]:
    """Go on with a plan that takes away: what is gone already is gone."""
    done = journals.ended(journal.lines)
    for number, step in enumerate(journal.plan.steps):
        if number in done:
            continue
        lock.suit(step, f"recovery of step {number + 1}, {step_name(step)}")
        one = Settling(number, step, step_name(step), as_is)
        yield from settle(world, journal, one, partial(journal.begin, number))
        journal.end(number)
