"""From a template and attachments to the guest's XML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from typing import NamedTuple

from lxml import etree

from virtgpu.domain import elements, hostdev, metadata, template, topology
from virtgpu.domain.read import HostDevice
from virtgpu.domain.target import Target
from virtgpu.errors import Config, Conflict, Usage
from virtgpu.model.attachment import Attachment
from virtgpu.model.names import UUID

_MAX_NAME_BYTES = 200  # libvirt writes NAME.xml and NAME_VARS.fd; a file name has 255 bytes
_SCREENS = ("vnc", "spice", "egl-headless", "dbus")


def render(
    text: bytes | None,
    *,
    name: str,
    uuid: str | None,
    attachments: Sequence[Attachment],
    target: Target = Target(),  # noqa: B008 - a frozen value
    memory_mib: int | None = None,
    vcpus: int | None = None,
    display: bool = False,
    spare_ports: int = topology.SPARE_PORTS,
) -> bytes:
    """The domain XML of guest *name* with its slices, from a template (None: the shipped one).

    Everything of the template that is not ours stays: elements, comments, order. Without
    *uuid* libvirt gives the guest one. *display* makes the first vGPU the boot display.
    *spare_ports* root ports stay free for devices plugged in later.

    Raises `Usage` (name, UUID, figures), `Config` (the template), `Conflict` (the template gives
    one of these devices already), `Unsupported` (no room, or *target* cannot).
    """
    check_name(name)
    slices = tuple(attachments)
    base = template.load(text)
    _check_unused(base.devices, slices)
    screen = hostdev.boot_display(slices, target) if display else None
    ready = _prepared(
        text, tuple(len(a.functions) or 1 for a in slices), spare_ports, target.domain_type, display
    )
    root = deepcopy(ready.root.getroottree()).getroot()
    _identify(root, name, uuid)
    _size(root, base, memory_mib, vcpus)
    if slices:
        _add_metadata(root, slices)
    _add_devices(root, slices, ready.places, screen)
    return elements.text_of(root)


class _Prepared(NamedTuple):
    """A template with all that does not depend on which guest and which devices it is for."""

    root: etree._Element
    places: tuple[hostdev.Place, ...]


@lru_cache(maxsize=16)
def _prepared(
    text: bytes | None, functions: tuple[int, ...], spare: int, domain_type: str, display: bool
) -> _Prepared:
    """The template for devices of so many *functions* each, with the ports that they need."""
    base = template.load(text)
    root = deepcopy(base.root.getroottree()).getroot()
    if base.is_shipped:
        _suit_host(root, domain_type, display=display)
    devices = root.find("devices")
    if devices is None:
        devices = etree.Element("devices")
        elements.append(root, devices)
    if display:
        _check_screen(devices)
    placement = topology.place(base.layout, functions, spare=spare)
    elements.append(devices, *(hostdev.root_port(index) for index in placement.new_ports))
    return _Prepared(root, placement.places)


def check_name(name: str) -> None:
    """Raise `Usage` for a name that libvirt would refuse or that makes no file name."""
    if not name.strip() or name != name.strip():
        raise Usage(f"guest name {name!r}: blank, or blanks at an end")
    if "/" in name or not name.isprintable() or not elements.is_clean(name):
        raise Usage(f"guest name {name!r}: libvirt takes no / and no control character")
    if name in (".", "..") or len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES:
        raise Usage(f"guest name {name[:40]!r}: no file can be named so")


def _identify(root: etree._Element, name: str, uuid: str | None) -> None:
    _set_text(root, "name", name)
    if uuid is not None:
        if re.fullmatch(UUID, uuid.lower()) is None:
            raise Usage(f"guest {name!r}: {uuid!r} is not a UUID")
        _set_text(root, "uuid", uuid.lower())
    elif (old := root.find("uuid")) is not None:
        elements.remove(old)
    # A running guest's number has no place in a definition.
    root.attrib.pop("id", None)


def _set_text(root: etree._Element, tag: str, text: str) -> etree._Element:
    node = root.find(tag)
    if node is None:
        node = etree.Element(tag)
        anchor = root.find("name")
        if anchor is None:
            root.insert(0, node)
            node.tail = root.text
        else:
            elements.insert_after(anchor, node)
    node.text = text
    return node


def _suit_host(root: etree._Element, domain_type: str, *, display: bool) -> None:
    """What a shipped template leaves to the host: KVM or not, and whose screen it is."""
    if domain_type != "kvm":
        root.set("type", domain_type)
        cpu = root.find("cpu[@mode='host-passthrough']")
        if cpu is not None:  # libvirt refuses it without KVM
            elements.remove(cpu)
    model = root.find("devices/video/model") if display else None
    if model is not None:
        model.set("type", "none")


def _size(
    root: etree._Element, base: template.Template, memory_mib: int | None, vcpus: int | None
) -> None:
    if memory_mib is not None:
        _check_figure("memory", memory_mib, "MiB", 1 << 30)
        _refuse_fixed("memory", base.memory_layout)
        _set_text(root, "memory", str(memory_mib)).set("unit", "MiB")
        current = root.find("currentMemory")
        if current is not None:
            current.text = str(memory_mib)
            current.set("unit", "MiB")
    if vcpus is not None:
        _check_figure("number of vCPUs", vcpus, "", 8192)
        _refuse_fixed("number of vCPUs", base.vcpu_layout)
        _set_text(root, "vcpu", str(vcpus)).attrib.pop("current", None)


def _check_figure(what: str, value: int, unit: str, limit: int) -> None:
    if not 1 <= value <= limit:
        raise Usage(f"{what} {value} {unit}".rstrip() + f" is not within 1 to {limit}")


def _refuse_fixed(what: str, layout: etree._Element | None) -> None:
    """A template that deals out memory or CPUs node by node is changed by its author only."""
    if layout is not None:
        raise Config(
            f"template line {layout.sourceline}: <{layout.tag!s}> fixes the {what}",
            hint=f"change it there, or leave the {what} out of the command",
        )


def _add_metadata(root: etree._Element, slices: tuple[Attachment, ...]) -> None:
    ours = metadata.element(slices)
    holder = root.find("metadata")
    if holder is not None:
        elements.append(holder, ours)
        return
    holder = etree.Element("metadata")
    holder.append(ours)
    anchor = root.find("uuid")
    elements.insert_after(root.find("name") if anchor is None else anchor, holder)  # type: ignore[arg-type]


def _check_unused(given: Sequence[HostDevice], slices: tuple[Attachment, ...]) -> None:
    ids: set[str] = set()
    keys = {device.key: f"the template (line {device.line})" for device in given}
    for attachment in slices:
        if attachment.slice_id in ids:
            raise Conflict(f"slice {attachment.slice_id} is given twice to one guest")
        ids.add(attachment.slice_id)
        mine = [attachment.mdev.lower()] if attachment.mdev is not None else attachment.functions
        for key in mine:
            if key in keys:
                raise Conflict(
                    f"{key} is given to the guest by {keys[key]} already",
                    hint="remove it there, or choose another GPU",
                )
            keys[key] = f"slice {attachment.slice_id}"


def _add_devices(
    root: etree._Element,
    slices: tuple[Attachment, ...],
    places: tuple[hostdev.Place, ...],
    screen: Attachment | None,
) -> None:
    nodes = [
        node
        for attachment, place in zip(slices, places, strict=True)
        for node in hostdev.hostdevs(attachment, place, display=attachment is screen)
    ]
    devices = root.find("devices")
    if devices is not None:  # it was made with the ports
        elements.append(devices, *nodes)


def _check_screen(devices: etree._Element) -> None:
    if not any(node.get("type") in _SCREENS for node in devices.iterchildren("graphics")):
        raise Config(
            "a display was asked for, and the template has no <graphics> to show it",
            hint="add <graphics type='vnc' listen='127.0.0.1'/> to its devices",
        )
