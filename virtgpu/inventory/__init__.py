"""Reading a host, once, into one frozen value."""

from __future__ import annotations

from virtgpu.inventory.reading import read_host

__all__ = ["read_host"]
