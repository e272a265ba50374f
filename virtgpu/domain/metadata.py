"""What our devices are and why, inside the guest's own XML: the metadata element and the aliases.

They are pointers for people and for `recover`, never authority: whoever may define a domain
can write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec
from lxml import etree

from virtgpu.domain.elements import clean
from virtgpu.errors import Usage, VirtgpuError
from virtgpu.model.attachment import Attachment
from virtgpu.model.gpu import Mechanism
from virtgpu.model.pci import PciAddress

# A name, not a place on the net; libvirt keeps one element per namespace.
NAMESPACE = "urn:virtgpu:guest:1"
VERSION = "1"
GUEST = f"{{{NAMESPACE}}}guest"
_SLICE = f"{{{NAMESPACE}}}slice"
_NSMAP = {"virtgpu": NAMESPACE}

ALIAS_PREFIX = "ua-virtgpu-"
_SLICE_ID = re.compile(r"[A-Za-z0-9.-]{1,64}", re.ASCII)
# Compiled when it is first used: most commands never do.
_ALIAS = r"ua-virtgpu-([A-Za-z0-9.-]{1,64})(?:_f([1-7]))?"


def alias(slice_id: str, function: int = 0) -> str:
    """The alias of a slice's device; further functions of a card get a suffix.

    >>> alias("4b200000", 1)
    'ua-virtgpu-4b200000_f1'
    """
    if _SLICE_ID.fullmatch(slice_id) is None:
        raise Usage(f"slice id {slice_id!r} cannot be part of a libvirt alias")
    return f"{ALIAS_PREFIX}{slice_id}" + (f"_f{function}" if function else "")


def parse_alias(text: str | None) -> tuple[str, int] | None:
    """(slice id, function) of one of our aliases, None for anybody else's."""
    match = re.fullmatch(_ALIAS, text or "")
    return None if match is None else (match[1], int(match[2] or 0))


def element(attachments: Iterable[Attachment]) -> etree._Element:
    """The metadata element that says what was asked, by which mechanism, and why."""
    guest = etree.Element(GUEST, {"version": VERSION}, nsmap=_NSMAP)
    for a in attachments:
        fields = {
            "id": a.slice_id,
            "request": clean(a.request),
            "mechanism": a.mechanism.value,
            "gpu": str(a.gpu),
        }
        if a.type_name is not None:
            fields["type"] = clean(a.type_name)
        if a.framebuffer_mib is not None:
            fields["framebuffer_mib"] = str(a.framebuffer_mib)
        if a.numa_node is not None:
            fields["numa_node"] = str(a.numa_node)
        node = etree.SubElement(guest, _SLICE, fields)
        if a.why:
            node.text = clean(a.why)
    return guest


def find(root: etree._Element) -> etree._Element | None:
    """Our element in a domain."""
    return root.find(f"metadata/{GUEST}")


class Broken(msgspec.Struct, frozen=True):
    """A slice element that cannot be read: its line and why."""

    line: int | None
    why: str


def read(root: etree._Element) -> Iterator[Attachment | Broken]:
    """The slices that the metadata names, without their devices; what is broken is said so."""
    guest = find(root)
    if guest is None:
        return
    if guest.get("version") != VERSION:
        yield Broken(guest.sourceline, f"version {guest.get('version')!r} is not {VERSION!r}")
        return
    for node in guest.iterchildren(_SLICE):
        try:
            yield _read_slice(node)
        except (VirtgpuError, ValueError) as error:
            yield Broken(node.sourceline, str(error))


def _read_slice(node: etree._Element) -> Attachment:
    if _SLICE_ID.fullmatch(node.get("id", "")) is None:
        raise ValueError(f"{node.get('id')!r} is not a slice id")
    return Attachment(
        slice_id=node.get("id", ""),
        mechanism=Mechanism(node.get("mechanism", "")),
        request=node.get("request", ""),
        gpu=PciAddress.parse(node.get("gpu", "")),
        type_name=node.get("type"),
        framebuffer_mib=_count(node, "framebuffer_mib"),
        numa_node=_count(node, "numa_node"),
        why=node.text,
    )


def _count(node: etree._Element, name: str) -> int | None:
    text = node.get(name)
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) is None:
        raise ValueError(f"{name} {text!r} is not a number")
    return int(text)
