"""The only writer: checks a plan against the host as it is now, does it step by step, reads each
step back, and undoes everything when one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from virtgpu.apply import journal as journals
from virtgpu.apply import reservations, stuck
from virtgpu.apply.journal import Journal
from virtgpu.apply.locking import HostLock, is_libvirts
from virtgpu.apply.observe import Effect, observe
from virtgpu.apply.perform import Doing, perform
from virtgpu.apply.recovery import recover
from virtgpu.apply.undo import step_name, undo_all
from virtgpu.apply.world import World
from virtgpu.errors import Config, Conflict, HostError, RecoveryNeeded, RolledBack, VirtgpuError
from virtgpu.host import state
from virtgpu.host.door import Door, Stuck
from virtgpu.inventory.vendor import Vendor
from virtgpu.model import codec
from virtgpu.model.gpu import Host
from virtgpu.model.plan import Plan
from virtgpu.model.slice import Reservation
from virtgpu.model.steps import Step
from virtgpu.plan.facts import CHANGED, stale

# What a planner is given: the host, what is promised, and what is stuck.
MakePlan = Callable[[Host, tuple[Reservation, ...], tuple[str, ...]], Plan]
Progress = Callable[[int, Step], None]

_RECOVER = "virtgpu recover"
_MAX_PLAN_BYTES = 16 << 20


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. *slices* are the reservations that the plan made; *recovered* are sentences
    about earlier applies that had been cut off."""

    plan: Plan
    slices: tuple[Reservation, ...] = ()
    recovered: tuple[str, ...] = ()


def execute(
    door: Door,
    vendors: Sequence[Vendor],
    make_plan: MakePlan,
    *,
    progress: Progress | None = None,
) -> Result:
    """Choose, reserve, write and read back in one critical section.

    Raises what *make_plan* raises (nothing has changed), `Conflict` (the host differs from what
    a step expects; nothing has changed), `RolledBack` (a step failed, all was undone) or
    `RecoveryNeeded` (something of it remains).
    """
    recovered = recover(door, vendors).sentences
    world = World(door, vendors)
    with HostLock(door.state_dir) as lock:
        lock.take("choosing")
        plan = make_plan(world.read(), reservations.load(door.state_dir), stuck.load(door))
        if plan.steps:
            _run(world, plan, lock, progress)
    made = tuple(step.reservation for step in plan.steps if step_name(step) == "reserve")  # type: ignore[union-attr]
    return Result(plan=plan, slices=made, recovered=recovered)


def load_plan(path: Path) -> Plan:
    """A saved plan. Raises `AccessDenied` when others can write to the file or its folder,
    `NotFound`, and `Config` when it is damaged or was edited."""
    state.check_private(path)
    raw = state.read(path) or b""
    if len(raw) > _MAX_PLAN_BYTES:
        raise Config(f"{path} has {len(raw)} bytes, too many for a plan")
    try:
        plan = codec.decode(raw, Plan, str(path))
    except Config as error:
        raise Config(error.message, hint="save a plan with: --dry-run -o json > FILE") from error
    if not plan.is_intact():
        raise Config(f"{path}: the plan does not fit its own digest", hint="plan again: --dry-run")
    return plan


def apply_saved(
    door: Door, vendors: Sequence[Vendor], plan: Plan, *, progress: Progress | None = None
) -> Result:
    """Do a plan that was made earlier; raises `Conflict` when what it rests on has changed."""
    return execute(door, vendors, check_saved(door, vendors, plan), progress=progress)


def check_saved(door: Door, vendors: Sequence[Vendor], plan: Plan) -> MakePlan:
    """A planner that gives this very plan, or raises `Conflict` when it does not hold any more."""
    if plan.host != door.label:
        raise Conflict(
            f"the plan is for host {plan.host}, and this is {door.label}",
            hint=f"virtgpu --host {plan.host} apply PLAN",
        )

    world = World(door, vendors)

    def checked(host: Host, promised: tuple[Reservation, ...], stuck_now: tuple[str, ...]) -> Plan:
        reasons = list(stale(plan, host, promised))
        touched = {device for step in plan.steps for device in stuck.devices(step)}
        reasons += [
            f"what was begun with {one} has not ended" for one in stuck_now if one in touched
        ]
        reasons += [
            seen.found
            for step in plan.steps
            if is_libvirts(step) and (seen := observe(world, step)).effect is not Effect.ABSENT
        ]
        if reasons:
            raise Conflict(
                f"plan {plan.id} is stale: {reasons[0]}", hint="plan again with --dry-run"
            )
        return plan

    return checked


# -- doing


def _run(world: World, plan: Plan, lock: HostLock, progress: Progress | None) -> None:
    journal = Journal.create(world.door.state_dir, plan)
    try:
        for number, step in enumerate(plan.steps):
            if progress is not None:
                progress(number, step)
            lock.suit(step, f"step {number + 1} of {len(plan.steps)}, {step_name(step)}")
            _do_one(world, journal, number, step)
    except Stuck as error:
        raise _not_back(plan, error) from error
    except VirtgpuError as error:
        _roll_back(world, journal, lock, error)
    else:
        journal.finish()
    finally:
        # Unfinished, interrupted, or a defect of ours: what is there stays for recovery.
        journal.close()


def _do_one(world: World, journal: Journal, number: int, step: Step) -> None:
    seen = observe(world, step)
    if seen.effect is not Effect.ABSENT:
        raise Conflict(
            f"step {number + 1}, {step_name(step)}: the host is not as planned: {seen.found}",
            hint="plan again",
        )
    journal.begin(number)
    perform(Doing(world, lambda child: journal.child(number, child)), step)
    seen = observe(world, step)
    if seen.effect is not Effect.PRESENT:
        raise HostError(
            f"step {number + 1}, {step_name(step)}, was done and does not read back: {seen.found}"
        )
    journal.end(number)


def _roll_back(world: World, journal: Journal, lock: HostLock, cause: VirtgpuError) -> None:
    """Undo everything, then raise: the cause itself when nothing had begun."""
    begun = journals.begun(journal.lines)
    try:
        remarks = undo_all(world, journal, lock)
        remarks += tuple(_not_as_before(world, journal.plan, begun)) if not remarks else ()
    except Stuck as error:
        raise _not_back(journal.plan, error) from error
    except VirtgpuError as error:
        raise RecoveryNeeded(
            f"{cause.message}; and undoing stopped: {error.message}",
            hint=error.hint or _RECOVER,
        ) from cause
    journal.finish()
    if not begun:
        raise cause
    if remarks:
        raise RecoveryNeeded(
            f"{cause.message}; what was done was undone, but {'; '.join(remarks)}",
            hint="look at it before you go on: virtgpu gpu list",
        ) from cause
    raise RolledBack(
        f"{cause.message}; everything was undone", hint=cause.hint, transient=cause.transient
    ) from cause


def _not_as_before(world: World, plan: Plan, begun: Sequence[int]) -> Iterator[str]:
    """A sentence for what is not as it was before the plan, from a fresh look at all of it."""
    for number in begun:
        seen = observe(world, plan.steps[number])
        # A VF that the plan itself had turned on has gone with the others.
        if seen.effect not in (Effect.ABSENT, Effect.GONE):
            yield seen.found
    kept = tuple(fact for fact in plan.facts if fact.attribute in CHANGED)
    promised = reservations.load(world.door.state_dir)
    yield from stale(msgspec.structs.replace(plan, facts=kept), world.read(), promised)


def _not_back(plan: Plan, error: Stuck) -> RecoveryNeeded:
    return RecoveryNeeded(
        f"{plan.summary}: {error.what} has not come back (pid {error.child.pid}); its device is"
        " left alone until it does",
        hint=f"find out who holds the device; afterwards: {_RECOVER}",
    )
