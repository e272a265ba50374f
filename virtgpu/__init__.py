"""GPUs for virtual machines: see what is here, plan a slice, make it, give it to a guest.

>>> import virtgpu
>>> str(virtgpu.Request.parse("2 x A40-12Q"))
'2xA40-12Q'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from virtgpu.api import connect
    from virtgpu.errors import VirtgpuError
    from virtgpu.model.pci import PciAddress
    from virtgpu.model.plan import Plan
    from virtgpu.model.request import Request

# Where each public name lives: importing virtgpu itself must cost nothing.
_HOMES = {
    "PciAddress": "virtgpu.model.pci",
    "Plan": "virtgpu.model.plan",
    "Request": "virtgpu.model.request",
    "VirtgpuError": "virtgpu.errors",
    "connect": "virtgpu.api",
}

__all__ = ["PciAddress", "Plan", "Request", "VirtgpuError", "connect"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'virtgpu' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
