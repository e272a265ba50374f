"""A plan: what will be done, in which order, resting on which facts, and why."""

from __future__ import annotations

from typing import Literal

import msgspec

from virtgpu.model import codec
from virtgpu.model.names import Uuid
from virtgpu.model.steps import Step


class Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attribute that a plan rests on: still the same ("is") or still as much ("at least").

    *subject* is a PCI address, an mdev UUID, a slice id or `domain NAME`; *attribute* is one of
    `virtgpu.plan.facts.ATTRIBUTES`.
    """

    subject: str
    attribute: str
    value: str | int | bool | None
    compare: Literal["is", "at least"] = "is"


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps in order. *goal* says what recovery does with it half done: a `make` plan is undone,
    a `take` plan (destroy, undefine) is finished. *why* are sentences for people: the choice
    of the GPU. *host* is the label of the host that it was made for.
    """

    version: int = 1
    kind: Literal["plan"] = "plan"
    id: Uuid
    host: str
    created: str
    goal: Literal["make", "take"]
    summary: str
    why: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    steps: tuple[Step, ...] = ()
    digest: str = ""

    def sealed(self) -> Plan:
        """The same plan with the digest of all else."""
        return msgspec.structs.replace(self, digest=self._digest())

    def describe(self) -> str:
        """The plan for people; see `virtgpu.plan.describe`."""
        from importlib import import_module

        # By name: values know nothing of the layers above them, but a person holding one asks it.
        text: str = import_module("virtgpu.plan.describe").describe(self)
        return text

    def is_intact(self) -> bool:
        """Whether the digest fits the content: the file was not edited or damaged."""
        return self.digest == self._digest()

    def _digest(self) -> str:
        import hashlib  # late: only a plan that leaves us is sealed

        body = codec.encode(msgspec.structs.replace(self, digest=""))
        return hashlib.sha256(body).hexdigest()
