"""Mediated devices: the types that a parent supports and the devices that exist.

Kernel Documentation/ABI/testing/sysfs-bus-vfio-mdev: `name` and `description` are optional, and
`description` is free text (NVIDIA: key=value, commas between; i915 GVT-g: several lines).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from virtgpu.host import paths
from virtgpu.inventory.holders import Holders
from virtgpu.inventory.names import parse_type
from virtgpu.inventory.reader import Reader, address, number
from virtgpu.model.gpu import MdevDevice, Mechanism, SliceType
from virtgpu.model.pci import PciAddress

TYPES = "mdev_supported_types"
_UUID = r"[0-9a-f]{8}[_-][0-9a-f]{4}[_-][0-9a-f]{4}[_-][0-9a-f]{4}[_-][0-9a-f]{12}"
_NODEDEV = (
    rf"mdev_(?P<uuid>{_UUID})(?:_(?P<parent>[0-9a-f]{{4,8}}_[0-9a-f]{{2}}_[0-9a-f]{{2}}_[0-7]))?"
)
_PLAIN_UUID = _UUID.replace("[_-]", "-")
_FLAGS = re.ASCII | re.IGNORECASE


class Description(msgspec.Struct, frozen=True):
    """What a type's description says; None where it does not."""

    framebuffer_mib: int | None = None
    max_instances: int | None = None


class NodedevName(msgspec.Struct, frozen=True):
    """The parts of libvirt's name of a mediated device; *parent* since libvirt 7.7."""

    uuid: str
    parent: PciAddress | None = None


def parse_description(text: str | None) -> Description:
    """`num_heads=4, framebuffer=1024M, max_instance=16`, or lines of `key: value`."""
    found: dict[str, str] = {}
    for part in (text or "").replace("\n", ",").split(","):
        key, equals, value = part.partition("=")
        if equals:
            found[key.strip()] = value.strip()
    size = found.get("framebuffer", "")
    return Description(
        framebuffer_mib=number(size[:-1]) if size.endswith("M") else None,
        max_instances=number(found.get("max_instance")),
    )


def parse_nodedev_name(name: str) -> NodedevName | None:
    """`mdev_UUID` (before libvirt 7.7) or `mdev_UUID_PARENT`; None when it is neither."""
    match = re.fullmatch(_NODEDEV, name, _FLAGS)
    if match is None:
        return None
    parent = None
    if match["parent"]:
        domain, bus, slot, function = match["parent"].lower().split("_")
        parent = address(f"{domain}:{bus}:{slot}.{function}")
        if parent is None:
            return None
    return NodedevName(match["uuid"].lower().replace("_", "-"), parent)


def read_devices(reader: Reader, holders: Holders) -> dict[PciAddress, tuple[MdevDevice, ...]]:
    """Every mediated device whose parent is a PCI function, by parent, sorted by UUID."""
    found: dict[PciAddress, list[MdevDevice]] = {}
    for name in sorted(reader.names(paths.MDEV_DEVICES)):
        above = (reader.link(paths.mdev(name)) or "").split("/")[-2:-1]
        parent = address(above[0]) if above else None
        if parent is None or re.fullmatch(_PLAIN_UUID, name, _FLAGS) is None:
            continue
        group = number(reader.last(paths.mdev(name, "iommu_group")))
        device = MdevDevice(
            uuid=name,
            parent=parent,
            type_id=reader.last(paths.mdev(name, "mdev_type")) or "",
            iommu_group=group,
            holders=holders.of_vfio(group, None),
        )
        found.setdefault(parent, []).append(device)
    return {parent: tuple(devices) for parent, devices in found.items()}


def read_type_ids(reader: Reader, parent: PciAddress) -> tuple[str, ...]:
    """The ids of the types that a parent supports, by number."""
    return tuple(sorted(reader.names(paths.pci(parent, TYPES)), key=_by_number))


def read_available(reader: Reader, parent: PciAddress, type_id: str) -> int | None:
    """How many more of a type the parent says that it takes."""
    return reader.number(paths.mdev_type(parent, type_id, "available_instances"))


def read_instances(reader: Reader, parent: PciAddress) -> dict[str, int | None]:
    """`available_instances` of every type of a parent, by type id."""
    return {
        type_id: read_available(reader, parent, type_id)
        for type_id in read_type_ids(reader, parent)
    }


class VfRoom:
    """What the free VFs of one card take.

    What is left is the card's, so that its free VFs all say the same: the first is read whole, and
    the others are asked for one type, the likeliest to have room. One that answers otherwise is
    read whole. *source* is the VF that names the *type_ids*; *likely* are types in use.
    """

    def __init__(
        self, reader: Reader, parents: Sequence[PciAddress], likely: Sequence[str]
    ) -> None:
        self._reader = reader
        self._likely = likely
        self._creatable: tuple[str, ...] | None = None
        self._asked = ""
        self.source = parents[0]
        self.type_ids: tuple[str, ...] = ()
        for one in parents:
            self._learn(one, read_type_ids(reader, one))
            if self.type_ids:
                break

    def creatable(self, vf: PciAddress) -> tuple[str, ...]:
        """The types that a VF without a device takes now."""
        if self._creatable is None:
            self._creatable = self._read(vf)
            some = (*self._creatable, *self._likely, *self.type_ids)
            self._asked = next((one for one in some if one in self.type_ids), "")
            return self._creatable
        answer = read_available(self._reader, vf, self._asked) if self._asked else None
        if answer is not None and bool(answer) == (self._asked in self._creatable):
            return self._creatable
        return self._read(vf)

    def _read(self, vf: PciAddress) -> tuple[str, ...]:
        found = read_instances(self._reader, vf)
        self._learn(vf, tuple(found))
        return tuple(type_id for type_id, free in found.items() if free)

    def _learn(self, vf: PciAddress, type_ids: tuple[str, ...]) -> None:
        if len(type_ids) > len(self.type_ids):
            self.source, self.type_ids = vf, type_ids


def _by_number(type_id: str) -> tuple[str, int, str]:
    stem = type_id.rstrip("0123456789")
    return stem, int(type_id[len(stem) :][:18] or 0), type_id


def read_types(
    reader: Reader, parent: PciAddress, ids: Iterable[str], mechanism: Mechanism
) -> tuple[SliceType, ...]:
    """Name, size and greatest number of each type, from one parent: its siblings say the same."""
    return tuple(_type(reader, parent, type_id, mechanism) for type_id in ids)


def _type(reader: Reader, parent: PciAddress, type_id: str, mechanism: Mechanism) -> SliceType:
    name = reader.text(paths.mdev_type(parent, type_id, "name")) or None
    said = parse_description(reader.raw(paths.mdev_type(parent, type_id, "description")))
    documented = parse_type(name) if name else None
    is_mig = documented is not None and documented.gi_slices is not None
    size = said.framebuffer_mib
    if size is None and documented is not None:
        size = documented.framebuffer_mib
    return SliceType(
        id=type_id,
        name=name,
        mechanism=Mechanism.MIG if is_mig else mechanism,
        framebuffer_mib=size,
        max_instances=said.max_instances,
        device_api=reader.text(paths.mdev_type(parent, type_id, "device_api")),
    )
