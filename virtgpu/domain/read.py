"""Read a guest's XML, anybody's: our slices in it, and every host device that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from lxml import etree

from virtgpu.domain import elements, metadata
from virtgpu.domain.topology import numbers
from virtgpu.errors import Conflict, Usage
from virtgpu.model.attachment import Attachment
from virtgpu.model.pci import PciAddress

_TAKES_HOST_DEVICE = {
    ("hostdev", "pci"),
    ("hostdev", "mdev"),
    ("interface", "hostdev"),
    ("disk", "nvme"),
}
# Compiled when it is first used: most commands never do.
_MDEV = r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}"


class HostDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of the host in a guest: a PCI function or a mediated device.

    *slice_id* and *function* come from our alias, None for a device that somebody else gave.
    *display* and *ramfb* as written, None where they are not.
    """

    pci: PciAddress | None = None
    mdev: str | None = None
    managed: bool = False
    slice_id: str | None = None
    function: int = 0
    display: bool | None = None
    ramfb: bool | None = None
    line: int | None = None

    @property
    def key(self) -> str:
        """The same text for the same device, however it was spelled."""
        return str(self.pci or self.mdev)


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """What a domain's XML says. *attachments* are our slices with their devices, *devices* all
    host devices, *warnings* what of ours cannot be read or does not fit together; *has_nvram*
    when its firmware's variables are in a file of its own."""

    name: str | None
    uuid: str | None
    attachments: tuple[Attachment, ...] = ()
    devices: tuple[HostDevice, ...] = ()
    warnings: tuple[str, ...] = ()
    has_nvram: bool = False


def guest(xml: bytes | str, source: str = "domain XML") -> Guest:
    """Read a domain; raises `Config` when it is no domain XML, never for what is inside."""
    return guest_of(elements.parse(xml, source))


def guest_of(root: etree._Element) -> Guest:
    """What a parsed domain says."""
    devices = tuple(host_devices(root))
    attachments, warnings = _attachments(root, devices)
    return Guest(
        name=root.findtext("name"),
        uuid=root.findtext("uuid"),
        attachments=attachments,
        devices=devices,
        warnings=warnings,
        has_nvram=root.find("os/nvram") is not None,
    )


def host_devices(root: etree._Element) -> Iterator[HostDevice]:
    """Every host device: hostdevs, network VFs, NVMe disks. Unreadable ones are left out."""
    return (device for _, device in host_devices_of(root))


def host_devices_of(root: etree._Element) -> Iterator[tuple[etree._Element, HostDevice]]:
    """The same, each with its element."""
    devices = root.find("devices")
    for node in [] if devices is None else devices:
        if (node.tag, node.get("type")) in _TAKES_HOST_DEVICE:
            device = _device(node)
            if device is not None:
                yield node, device


def _device(node: etree._Element) -> HostDevice | None:
    address = node.find("source/address")
    if address is None:
        return None
    uuid = address.get("uuid")
    mdev = _uuid(uuid) if uuid is not None else None
    pci = pci_address(address) if uuid is None else None
    if mdev is None and pci is None:
        return None
    name = node.find("alias")
    ours = None if name is None else metadata.parse_alias(name.get("name"))
    return HostDevice(
        pci=pci,
        mdev=mdev,
        managed=node.get("managed") == "yes",
        slice_id=None if ours is None else ours[0],
        function=0 if ours is None else ours[1],
        display=_on(node.get("display")),
        ramfb=_on(node.get("ramfb")),
        line=node.sourceline,
    )


def pci_address(address: etree._Element) -> PciAddress | None:
    """A host's PCI address in any of libvirt's spellings; what is left out is 0."""
    parts = numbers(address)
    if parts is None:
        return None
    try:
        return PciAddress.parse(PciAddress.of(parts))  # again, for the limits
    except Usage:
        return None


def _uuid(text: str) -> str | None:
    if re.fullmatch(_MDEV, text) is None:
        return None
    digits = text.replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _on(text: str | None) -> bool | None:
    return None if text is None else text == "on"


def _attachments(
    root: etree._Element, devices: tuple[HostDevice, ...]
) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    found: dict[str, Attachment] = {}
    warnings = []
    for item in metadata.read(root):
        if isinstance(item, metadata.Broken):
            warnings.append(f"metadata of virtgpu, line {item.line}: {item.why}")
        elif item.slice_id in found:
            warnings.append(f"metadata of virtgpu names slice {item.slice_id} twice")
        else:
            found[item.slice_id] = item
    for slice_id in found:
        mine = sorted((d for d in devices if d.slice_id == slice_id), key=lambda d: d.function)
        if not mine:
            warnings.append(f"slice {slice_id} has no host device in the domain")
        found[slice_id] = _with_devices(found[slice_id], mine)
    orphans = {d.slice_id for d in devices if d.slice_id is not None} - found.keys()
    warnings += [
        f"a device of slice {o}, which the metadata does not name" for o in sorted(orphans)
    ]
    return tuple(found.values()), tuple(warnings)


def _with_devices(attachment: Attachment, devices: Sequence[HostDevice]) -> Attachment:
    functions = tuple(d.pci for d in devices if d.pci is not None)
    return msgspec.structs.replace(
        attachment,
        functions=functions,
        mdev=next((d.mdev for d in devices if d.mdev is not None), None),
        managed=all(d.managed for d in devices if d.pci is not None),
    )


def require_free(
    devices: Iterable[HostDevice], guests: Iterable[Guest], *, uuid: str | None = None
) -> None:
    """Raise `Conflict` when another guest's definition has one of these devices, or one is given
    twice.

    *uuid* is the guest that they are for; its own definition is no obstacle.
    """
    owners = {
        device.key: other
        for other in guests
        if uuid is None or other.uuid != uuid
        for device in other.devices
    }
    seen: set[str] = set()
    for device in devices:
        owner = owners.get(device.key)
        if owner is not None:
            raise Conflict(
                f"{device.key} belongs to guest {owner.name!r} already",
                hint=f"see it with: virtgpu vm show {owner.name}",
            )
        if device.key in seen:
            raise Conflict(f"{device.key} is given to the guest twice", hint="look at its template")
        seen.add(device.key)
