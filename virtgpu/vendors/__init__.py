"""What each GPU vendor's cards can do, by capability."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points

from virtgpu.inventory.vendor import Vendor

GROUP = "virtgpu.vendors"
_PARTS = ("claims", "probe", "types")


def load() -> tuple[Vendor, ...]:
    """Every vendor of the entry point group, by name; `other`, which asks last, at the end.

    A third party's vendor that cannot be imported, or is none, is left out with a warning.
    """
    found: dict[str, Vendor] = {}
    for point in entry_points(group=GROUP):
        try:
            vendor = point.load()
        except Exception as error:  # a broken plugin must not take the host's inventory with it
            warnings.warn(f"vendor {point.name!r} ({point.value}): {error}", stacklevel=2)
            continue
        if not isinstance(getattr(vendor, "name", None), str) or not all(
            callable(getattr(vendor, part, None)) for part in _PARTS
        ):
            warnings.warn(
                f"vendor {point.name!r} ({point.value}) has no name, claims, probe and types",
                stacklevel=2,
            )
            continue
        found.setdefault(vendor.name, vendor)
    return tuple(sorted(found.values(), key=lambda vendor: (vendor.name == "other", vendor.name)))
