"""What only a look at one card asks for: nothing is decided by it."""

from __future__ import annotations

import msgspec


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A region of a function's memory that the host maps: BAR *index*, of a size."""

    index: int
    size_bytes: int
    prefetchable: bool = False


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """Of one GPU: its BARs, its link as it is and as it could be, and how it can be reset.

    *reset_methods* are in the kernel's order, empty where it knows none, None where it does not
    name them. *serial* is NVML's.
    """

    bars: tuple[Bar, ...] | None = None
    link_speed: str | None = None
    link_width: int | None = None
    max_link_speed: str | None = None
    max_link_width: int | None = None
    reset_methods: tuple[str, ...] | None = None
    serial: str | None = None
