"""What a question to one GPU comes back with: ways to serve it, or one sentence why not."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from virtgpu.errors import Capacity, VirtgpuError
from virtgpu.model.gpu import GiProfile
from virtgpu.model.slice import Place


class Refusal(NamedTuple):
    """Why one GPU cannot serve; *kind* is the error if that GPU was asked for by address."""

    sentence: str
    kind: type[VirtgpuError] = Capacity
    hint: str | None = None

    def error(self) -> VirtgpuError:
        """The refusal as the error that a caller gets."""
        return self.kind(self.sentence, hint=self.hint)


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    """What must change on the card before the slice can be made, in this order.

    *vfs* is the number of VFs to turn on, 0 for none; *gi* the GPU instance profile to make at
    the place's `gi_start`.
    """

    mig: bool = False
    vfs: int = 0
    gi: GiProfile | None = None

    @property
    def disruption(self) -> int:
        """How much it changes for the card's other users; 0 is nothing."""
        return 4 * self.mig + 2 * bool(self.vfs) + (self.gi is not None)


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One way to serve one unit of a request. *rank* orders options, least first.

    *place* has no mdev UUID and no driver memory yet: those come with the plan.
    """

    place: Place
    rank: tuple[int, ...]
    why: str
    prepare: Prepare = Prepare()


Offered = tuple[Option, ...] | Refusal
