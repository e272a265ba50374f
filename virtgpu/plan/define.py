"""Guests in plans: defined when their slices are there, undefined before those go."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from virtgpu.model import steps
from virtgpu.model.plan import Fact, Plan
from virtgpu.model.slice import Reservation
from virtgpu.model.steps import Step


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
    binding = [step for one in bound for step in _rebind(one, uuid)]
    define = steps.DefineDomain(uri=uri, name=name, uuid=uuid, xml=xml)
    return msgspec.structs.replace(
        base,
        summary=f"define guest {name}" + (f": {plan.summary}" if plan is not None else ""),
        facts=(*base.facts, *(_reserved(one) for one in bound)),
        steps=(*base.steps, *binding, define),
    )


def plan_undefine(
    plan: Plan | None,
    *,
    uri: str,
    name: str,
    uuid: str,
    xml: str,
    kept: Sequence[Reservation] = (),
    plan_id: str,
    host: str,
    created: str,
) -> Plan:
    """The guest goes, then its slices by *plan* (None: they stay, or there are none). Those
    *kept* stay promised to its name, for the next guest of that name."""
    base = plan or _empty(plan_id, host, created, "take")
    undefine = steps.UndefineDomain(uri=uri, name=name, uuid=uuid, xml=xml)
    return msgspec.structs.replace(
        base,
        summary=f"undefine guest {name}" + (f": {plan.summary}" if plan is not None else ""),
        facts=(*base.facts, *(_reserved(one) for one in kept)),
        steps=(undefine, *base.steps, *(step for one in kept for step in _rebind(one, None))),
    )


def _rebind(one: Reservation, uuid: str | None) -> tuple[Step, Step]:
    """The same promise for another domain, or for none."""
    new = msgspec.structs.replace(one, domain_uuid=uuid)
    return steps.Release(reservation=one), steps.Reserve(reservation=new)


def _empty(plan_id: str, host: str, created: str, goal: str) -> Plan:
    return Plan(id=plan_id, host=host, created=created, goal=goal, summary="")  # type: ignore[arg-type]


def _reserved(one: Reservation) -> Fact:
    return Fact(subject=one.id, attribute="reserved", value=True)
