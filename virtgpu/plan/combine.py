"""Several plans as one: what a guest with several requests gets."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from virtgpu.model.plan import Plan
from virtgpu.plan.facts import merged


def combine(plans: Sequence[Plan]) -> Plan:
    """One plan that does all of them in order, rests on all their facts, and has one id.

    Each plan was made with the promises of those before it in mind, and its facts without them.
    """
    if len(plans) == 1:
        return plans[0]
    return msgspec.structs.replace(
        plans[0],
        summary="; ".join(plan.summary for plan in plans),
        why=tuple(sentence for plan in plans for sentence in plan.why),
        facts=merged(fact for plan in plans for fact in plan.facts),
        steps=tuple(step for plan in plans for step in plan.steps),
    )
