"""Whole domain XML files to start from: the shipped ones, and the operator's own."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache

import msgspec
from lxml import etree

from virtgpu.domain import elements, metadata, topology
from virtgpu.domain.read import HostDevice, host_devices
from virtgpu.errors import NotFound
from virtgpu.model import shipped as ours

_PACKAGE = "virtgpu.xml_templates"
DEFAULT = "default"


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed file, never changed, what it leaves free, and the host devices that it gives.

    *memory_layout* and *vcpu_layout* are what deals out memory or CPUs one by one, None where
    nothing does. *is_shipped* says that it is one of ours as it was shipped: only then may the
    host decide about its type and its screen.
    """

    root: etree._Element
    layout: topology.Layout
    devices: tuple[HostDevice, ...]
    memory_layout: etree._Element | None
    vcpu_layout: etree._Element | None
    is_shipped: bool


def names() -> tuple[str, ...]:
    """The shipped templates."""
    return tuple(sorted(_shipped()))


def shipped(name: str) -> bytes:
    """The text of a shipped template; raises `NotFound` with the names that there are."""
    try:
        return _shipped()[name]
    except KeyError:
        raise NotFound(
            f"there is no template {name!r}", hint=f"shipped are: {', '.join(names())}"
        ) from None


@lru_cache(maxsize=1)
def _shipped() -> dict[str, bytes]:
    return {name: ours.read(_PACKAGE, f"{name}.xml") for name in ours.names(_PACKAGE, ".xml")}


@lru_cache(maxsize=16)
def load(text: bytes | None) -> Template:
    """The template of that text (None: the default one); raises `Config`.

    A file that virtgpu rendered before is taken without the slices in it: they are
    another guest's, or this guest's earlier ones.
    """
    raw = shipped(DEFAULT) if text is None else text
    root = elements.parse(raw, "template")
    devices = root.find("devices")
    for node in [] if devices is None else devices.findall("hostdev"):
        name = node.find("alias")
        if name is not None and metadata.parse_alias(name.get("name")) is not None:
            elements.remove(node)
    old = metadata.find(root)
    if old is not None:
        elements.remove(old)
    is_shipped = text is None or raw in _shipped().values()
    if is_shipped:
        root = deepcopy(root)  # without the comment above it, which speaks to who copies the file
    return Template(
        root=root,
        layout=topology.layout_of(root),
        devices=tuple(host_devices(root)),
        memory_layout=_first(root, "cpu/numa", "maxMemory"),
        vcpu_layout=_first(root, "cpu/numa", "cpu/topology", "vcpus"),
        is_shipped=is_shipped,
    )


def _first(root: etree._Element, *places: str) -> etree._Element | None:
    return next((node for place in places if (node := root.find(place)) is not None), None)
