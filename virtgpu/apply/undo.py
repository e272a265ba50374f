"""Taking back what one apply has begun, in reverse. What others use by now stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from virtgpu.apply import journal as journals
from virtgpu.apply import reservations, stuck
from virtgpu.apply.journal import Journal
from virtgpu.apply.locking import HostLock
from virtgpu.apply.observe import Effect, Seen, observe
from virtgpu.apply.perform import Doing, perform
from virtgpu.apply.world import World
from virtgpu.errors import Conflict, HostError
from virtgpu.model import steps
from virtgpu.model.gpu import Gpu
from virtgpu.model.plan import Plan
from virtgpu.model.steps import Step, inverse

_SHARED = (steps.SetVfs, steps.SetMigMode, steps.SetMixedSize)


def undo_all(
    world: World, journal: Journal, lock: HostLock, *, as_is: bool = False
) -> tuple[str, ...]:
    """Undo every step that was begun and not undone, the last one first; a sentence for each
    device that has gone, with what was done to it.

    Raises the `VirtgpuError` (or `Stuck`) of the first one that cannot be undone, `Conflict` for
    a state that none of our writes leaves; the rest then stays, and the journal remembers it. With
    *as_is* such a state stays, and is among the sentences. Raises `Conflict` before anything is
    undone when one of its slices is another's by now, or a guest is undefined already: that only
    recovery can finish.
    """
    for number in journals.begun(journal.lines):
        _refuse_past(world, journal.plan.steps[number])
    remarks: list[str] = []
    for number in reversed(journals.begun(journal.lines)):
        step = journal.plan.steps[number]
        lock.suit(step, f"undo of step {number + 1}, {step_name(step)}")
        remarks += _undo_one(world, journal, number, step, as_is)
    return tuple(remarks)


def _undo_one(
    world: World, journal: Journal, number: int, step: Step, as_is: bool
) -> Iterator[str]:
    def begin() -> None:
        _refuse_used(world, journal, step)
        journal.undo(number)

    back = Settling(number, inverse(step), f"undoing {step_name(step)}", as_is)
    yield from settle(world, journal, back, begin)
    journal.undone(number)


class Settling(NamedTuple):
    """A step that is to be done or undone after all: its number in the plan, and in words *what*
    that is. *as_is*: a state that none of our writes leaves may stay."""

    number: int
    step: Step
    what: str
    as_is: bool


def settle(
    world: World, journal: Journal, one: Settling, begin: Callable[[], None]
) -> Iterator[str]:
    """Do what is left of the step, from whatever state it was cut off in, and read it back.

    *begin* is called right before its first write. Yields a sentence where it is not done all the
    same: its device has gone, or stays as it is. Raises `Conflict` for a state that none of our
    writes leaves, and what doing it raises.
    """
    seen = observe(world, one.step)
    if _is_to_do(journal.plan, one, seen):
        begin()
        perform(Doing(world, lambda child: journal.child(one.number, child)), one.step)
        seen = observe(world, one.step)
        if seen.effect is not Effect.PRESENT:
            raise HostError(f"{one.what} had no effect: {seen.found}")
    if seen.effect is not Effect.PRESENT:
        yield seen.found


def _is_to_do(plan: Plan, one: Settling, seen: Seen) -> bool:
    """Whether the step is still to be done; it is not when it is done, or its device has gone.

    What was done to a device in a state that we do not know is unknown as well, so nothing is done
    to it, and it is not said to be settled.
    """
    if seen.effect is Effect.OTHER and not one.as_is:
        raise Conflict(
            f"{step_name(one.step)} is not done: {seen.found}, which virtgpu does not leave",
            hint="set it right, then: virtgpu recover; or leave it as it is: virtgpu recover"
            f" --as-is {plan.id}",
        )
    return seen.effect in (Effect.ABSENT, Effect.PARTIAL)


def _refuse_past(world: World, step: Step) -> None:
    """Raise `Conflict` for what must not be undone any more."""
    match step:
        case steps.UndefineDomain() if observe(world, step).effect is Effect.PRESENT:
            raise Conflict(
                f"guest {step.name!r} is undefined and cannot be brought back as it was",
                hint="virtgpu recover finishes it",
            )
        case steps.Reserve():
            seen = observe(world, step)
            if seen.effect is Effect.OTHER:
                raise Conflict(seen.found, hint="see it with: virtgpu slice list")


def step_name(step: Step) -> str:
    """The kind of a step as the plan's JSON calls it."""
    return str(step.__struct_config__.tag)


def _refuse_used(world: World, journal: Journal, step: Step) -> None:
    """Raise `Conflict` when somebody else uses what the step changed for all of the card."""
    if not isinstance(step, _SHARED):
        return
    user = other_user(world, journal, step)
    if user is not None:
        raise Conflict(
            f"{step_name(step)} of {step.address} stays: {user}",
            hint="virtgpu recover, once that is over",
        )


def other_user(world: World, journal: Journal, step: Step) -> str | None:
    """Who beside this plan uses the card, in words; None when nobody does."""
    assert isinstance(step, _SHARED)
    mine = {one.id for one in stuck.reservations_of(journal.plan)}
    for one in reservations.load(world.door.state_dir):
        if one.place.gpu == step.address and one.id not in mine:
            return f"slice {one.id} of {one.guest or 'nobody'} is on the card"
    gpu = world.read().gpu(step.address)
    return None if gpu is None else _found_on(gpu)


def _found_on(gpu: Gpu) -> str | None:
    """A vGPU or a holder on the card: ours are gone by now, for their steps came later."""
    for vf in gpu.vfs:
        if vf.holders:
            one = vf.holders[0]
            return f"VF {vf.address} is held by pid {one.pid} ({one.command})"
        if vf.mdev is not None or vf.vgpu_type not in (None, "0"):
            return f"VF {vf.address} has a vGPU"
        if vf.holders is None:
            return f"who holds VF {vf.address} is unknown"
    for mdev in gpu.mdevs:
        return f"mdev {mdev.uuid} is on the card"
    return None
