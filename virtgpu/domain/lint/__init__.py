"""What is wrong with a domain: libvirt's own schema, and what libvirt takes and QEMU then refuses.

A rule is a function with a code for good, registered in the module of its hundred: VG1xx
addresses, VG2xx host devices, VG3xx screens, VG4xx firmware, VG5xx memory, VG6xx CPUs, VG7xx
versions, VG8xx what libvirt drops, VG9xx migration.
"""

from __future__ import annotations

# Imported for their rules.
from virtgpu.domain.lint import (  # noqa: F401
    addresses,
    cpu,
    devices,
    dropped,
    firmware,
    memory,
    migration,
    schema,
    screen,
    versions,
)
from virtgpu.domain.lint.engine import AUTO, fix, lint, lint_all, lint_root
from virtgpu.domain.lint.model import RULES, Context, Finding, Report, Rule

__all__ = [
    "AUTO",
    "RULES",
    "Context",
    "Finding",
    "Report",
    "Rule",
    "fix",
    "lint",
    "lint_all",
    "lint_root",
]
