"""The name of a vGPU type says its series and the documented size of its frame buffer.

    NVIDIA A40-12Q                       12 GiB, workstation
    GRID M10-0B, GRID T4-2B4             512 MiB; 2 GiB
    GRID A100X-1-5CME                    MIG-backed: 1 slice, 5 GiB, media extensions
    NVIDIA RTX Pro 6000 Blackwell DC-3Q  names hold blanks

NVIDIA virtual GPU user guide, "Virtual GPU Types for Supported GPUs":
https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/
"""

from __future__ import annotations

import re
from typing import NamedTuple

# product - [slices -] gigabytes, series letter, and what follows it (B4, CME)
_NAME = re.compile(
    r"(?P<product>\S(?:.*?\S)??)-(?:(?P<slices>\d)-)?(?P<gib>\d{1,3})(?P<series>[QCBA])"
    r"(?P<suffix>[A-Z0-9]{0,5})",
    re.ASCII,
)
# Compiled when it is first used: most commands never do.
_GI_PROFILE = r"(?a)(?P<slices>\d)g\.(?P<gb>\d{1,3})gb(?P<suffix>[+-][a-z.+-]+)?"
_PREFIXES = ("nvidia ", "grid ")


class TypeName(NamedTuple):
    """The parts of a vGPU type's name. *product* has no NVIDIA or GRID prefix."""

    product: str
    gi_slices: int | None
    framebuffer_mib: int
    series: str
    suffix: str


class GiProfileName(NamedTuple):
    """The parts of a GPU instance profile's name, `1g.24gb+gfx`; *gb* is nominal."""

    slices: int
    gb: int
    suffix: str


def parse_type(name: str) -> TypeName | None:
    """Read a type's name; None when it does not follow the grammar (GVT-g, other vendors)."""
    match = _NAME.fullmatch(without_prefix(name))
    if match is None:
        return None
    gib = int(match["gib"])
    return TypeName(
        product=match["product"],
        gi_slices=int(match["slices"]) if match["slices"] else None,
        framebuffer_mib=gib * 1024 if gib else 512,
        series=match["series"],
        suffix=match["suffix"],
    )


def parse_gi_profile(name: str) -> GiProfileName | None:
    """Read a GPU instance profile's name with or without "MIG "; None when it is none."""
    match = re.fullmatch(_GI_PROFILE, name.strip().removeprefix("MIG ").strip())
    if match is None:
        return None
    return GiProfileName(int(match["slices"]), int(match["gb"]), match["suffix"] or "")


def without_prefix(name: str) -> str:
    """The name without the NVIDIA or GRID in front: the only tolerance that there is."""
    stripped = name.strip()
    for prefix in _PREFIXES:
        if stripped[: len(prefix)].lower() == prefix:
            return stripped[len(prefix) :].lstrip()
    return stripped


def series(name: str | None) -> str | None:
    """The series letter Q, C, B or A of a type's name, or None."""
    parts = parse_type(name) if name else None
    return parts.series if parts else None
