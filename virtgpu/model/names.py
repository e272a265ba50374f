"""Texts that become parts of paths: checked whenever they are read from a file."""

from __future__ import annotations

from typing import Annotated

import msgspec

UUID = r"\A[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}\Z"
# A slice's id is also its mediated device's UUID and the name of its file.
Uuid = Annotated[str, msgspec.Meta(pattern=UUID)]
# The kernel's names of drivers and of mdev types, as in `vfio-pci`, `nvidia-563`, `i915-GVTg_V5_4`.
KernelName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}\Z")]
