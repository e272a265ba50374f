"""libvirt domain XML: built and edited with lxml.

`render` makes a guest's XML, `virtgpu.domain.read` reads anybody's, `virtgpu.domain.lint` says
what is wrong with one, `startable` whether a target can start it.
"""

from __future__ import annotations

from virtgpu.domain.build import render
from virtgpu.domain.target import Target, startable

__all__ = ["Target", "render", "startable"]
