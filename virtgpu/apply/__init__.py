"""The only writer: plans become changes, and survive being killed at any moment."""

from __future__ import annotations

from virtgpu.apply.executor import Progress, Result, apply_saved, execute, load_plan
from virtgpu.apply.recovery import Recovered, Report, recover

__all__ = [
    "Progress",
    "Recovered",
    "Report",
    "Result",
    "apply_saved",
    "execute",
    "load_plan",
    "recover",
]
