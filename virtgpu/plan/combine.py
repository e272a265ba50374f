"""Several plans as one: what a guest with several requests gets."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from virtgpu.model.plan import Fact, Plan


def combine(plans: Sequence[Plan]) -> Plan:
    """One plan that does all of them in order, rests on all their facts, and has one id.

    Facts that an earlier one of the plans changes itself are left out of the later ones.
    """
    if len(plans) == 1:
        return plans[0]
    facts: dict[tuple[str, str], Fact] = {}
    for plan in plans:
        for fact in plan.facts:
            facts.setdefault((fact.subject, fact.attribute), fact)
    return msgspec.structs.replace(
        plans[0],
        summary="; ".join(plan.summary for plan in plans),
        why=tuple(sentence for plan in plans for sentence in plan.why),
        facts=tuple(facts.values()),
        steps=tuple(step for plan in plans for step in plan.steps),
    )
