"""Guests in plans: defined when their slices are there, undefined when those are gone.

Undefining comes after the hardware, for it cannot be undone (the NVRAM goes with the definition),
and before the promises, so that nobody is given a slice that a definition still names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from virtgpu.model import steps
from virtgpu.model.plan import Plan
from virtgpu.model.slice import Reservation
from virtgpu.model.steps import Step
from virtgpu.plan.facts import merged, promise_of


def plan_define(
    plan: Plan | None,
    *,
    uri: str,
    name: str,
    uuid: str,
    xml: str,
    bound: Sequence[Reservation] = (),
    plan_id: str,
    host: str,
    created: str,
) -> Plan:
    """*plan* (None: nothing has to be made) and then the guest's definition.

    *bound* are slices that were made for this guest before: they get its UUID.
    """
    base = plan or _empty(plan_id, host, created, "make")
    binding = [step for one in bound for step in _rebind(one, uuid, uri)]
    define = steps.DefineDomain(uri=uri, name=name, uuid=uuid, xml=xml)
    return msgspec.structs.replace(
        base,
        summary=f"define guest {name}" + (f": {plan.summary}" if plan is not None else ""),
        facts=merged((*base.facts, *(fact for one in bound for fact in promise_of(one)))),
        steps=(*base.steps, *binding, define),
    )


def plan_undefine(
    plan: Plan | None,
    *,
    uri: str,
    name: str,
    uuid: str,
    xml: str,
    has_nvram: bool,
    kept: Sequence[Reservation] = (),
    plan_id: str,
    host: str,
    created: str,
) -> Plan:
    """The guest goes, then its slices by *plan* (None: they stay, or there are none). Those
    *kept* stay promised to its name, for the next guest of that name."""
    base = plan or _empty(plan_id, host, created, "take")
    undefine = steps.UndefineDomain(uri=uri, name=name, uuid=uuid, xml=xml, exact=True)
    before = tuple(takewhile(lambda step: not isinstance(step, steps.Release), base.steps))
    rebinding = (step for one in kept for step in _rebind(one, None, None))
    nvram = (f"the NVRAM of {name} goes with its definition",) if has_nvram else ()
    return msgspec.structs.replace(
        base,
        summary=f"undefine guest {name}" + (f": {plan.summary}" if plan is not None else ""),
        why=(*base.why, *nvram),
        facts=merged((*base.facts, *(fact for one in kept for fact in promise_of(one)))),
        steps=(*before, undefine, *base.steps[len(before) :], *rebinding),
    )


def _rebind(one: Reservation, uuid: str | None, uri: str | None) -> tuple[Step, Step]:
    """The same promise for another domain, or for none."""
    new = msgspec.structs.replace(one, domain_uuid=uuid, domain_uri=uri)
    return steps.Release(reservation=one), steps.Reserve(reservation=new)


def _empty(plan_id: str, host: str, created: str, goal: str) -> Plan:
    return Plan(id=plan_id, host=host, created=created, goal=goal, summary="")  # type: ignore[arg-type]
