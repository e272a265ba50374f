"""What each GPU vendor's cards can do, by capability."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from virtgpu.inventory.vendor import Vendor

GROUP = "virtgpu.vendors"
# Ours, in the order in which they are asked; `other` is asked last of all.
_OURS = ("amd", "intel", "nvidia")
_LAST = "other"
_PARTS = ("claims", "probe", "types")


def load() -> tuple[Vendor, ...]:
    """Our vendors and those of the entry point group, by name; `other`, which asks last, last.

    A third party's vendor that cannot be imported, or is none, is left out with a warning. One
    with the name of ours takes its place.
    """
    found: dict[str, Vendor] = {
        name: import_module(f"virtgpu.vendors.{name}") for name in (*_OURS, _LAST)
    }
    for point in _third_parties():
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
        found[vendor.name] = vendor
    return tuple(sorted(found.values(), key=lambda one: (one.name == _LAST, one.name)))


def _third_parties() -> Iterator[Any]:
    """The entry points of others. importlib.metadata costs a tenth of a whole command, so it is
    imported only where some distribution names the group at all."""
    if any(_names_group(folder) for folder in sys.path):
        from importlib.metadata import entry_points

        for point in entry_points(group=GROUP):
            if not point.value.startswith("virtgpu.vendors."):
                yield point


def _names_group(folder: str) -> bool:
    with suppress(OSError):
        for name in os.listdir(folder or "."):  # noqa: PTH208 - thousands of names, no objects
            if not name.endswith((".dist-info", ".egg-info")) or name.startswith("virtgpu-"):
                continue
            with suppress(OSError), open(f"{folder}/{name}/entry_points.txt", "rb") as file:  # noqa: PTH123
                if GROUP.encode() in file.read():
                    return True
    return False
