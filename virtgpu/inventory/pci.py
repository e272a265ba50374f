"""PCI functions: which are display controllers or network cards, and what stands beside them.

One pass over the bus. A virtual function is known by its `physfn` link and by nothing else;
those that their PF's `virtfnN` links name are not even opened here.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from virtgpu.host import paths
from virtgpu.inventory.reader import Reader, address, hex_id, number
from virtgpu.model.gpu import Function
from virtgpu.model.pci import PciAddress
from virtgpu.model.pci_class import BRIDGES

# VGA, 3D, other display controller, processing accelerator. The vendor decides the rest: not
# every accelerator is a GPU (https://github.com/apache/cloudstack/issues/11701).
DISPLAY_CLASSES = ("0300", "0302", "0380", "1200")
_NETWORK = "02"
# Drivers under which the host has no use of a function: the kernel counts it as VFIO's or nobody's.
NOT_THE_HOSTS = (None, "vfio-pci", "pci-stub")


class Node(msgspec.Struct, frozen=True):
    """One function with what its directory lists and the VFs that it links to, by number."""

    address: PciAddress
    class_code: str
    names: frozenset[str]
    virtfns: tuple[tuple[int, PciAddress], ...] = ()


class Bus(msgspec.Struct, frozen=True):
    """Every function's class, and the functions worth a second look, in order of address."""

    classes: dict[PciAddress, str]
    displays: tuple[Node, ...]
    networks: tuple[Node, ...]
    slots: dict[str, tuple[PciAddress, ...]]

    def is_endpoint(self, address: PciAddress) -> bool:
        """Whether this is anything but a bridge (a VF counts, and so does an unknown one)."""
        return not self.classes.get(address, "").startswith(BRIDGES)


def scan(reader: Reader) -> Bus:
    """Read the class of every function, and list the directories of displays and NICs."""
    found = (address(name) for name in reader.names(paths.PCI_DEVICES))
    addresses = sorted((one for one in found if one is not None), key=lambda one: one.parts)
    classes: dict[PciAddress, str] = {}
    displays: list[Node] = []
    networks: list[Node] = []
    slots: dict[str, list[PciAddress]] = {}
    # A VF's number is its PF's plus an offset above zero, so that PFs come first in this order.
    virtual: set[PciAddress] = set()
    for one in addresses:
        if one in virtual:
            continue
        code = hex_id(reader.text(paths.pci(one, "class"))) or ""
        classes[one] = code
        slots.setdefault(one.card, []).append(one)
        is_display = code.startswith(DISPLAY_CLASSES)
        if not is_display and not code.startswith(_NETWORK):
            continue
        node = _node(reader, one, code)
        virtual.update(vf for _, vf in node.virtfns)
        if "physfn" not in node.names:
            (displays if is_display else networks).append(node)
    kept = {slot: tuple(members) for slot, members in slots.items()}
    return Bus(classes, tuple(displays), tuple(networks), kept)


def _node(reader: Reader, one: PciAddress, code: str) -> Node:
    names = reader.names(paths.pci(one))
    virtfns = []
    for name in names:
        index = number(name[6:]) if name.startswith("virtfn") else None
        if index is None:
            continue
        vf = address(reader.last(paths.pci(one, name)) or "")
        if vf is not None:
            virtfns.append((index, vf))
    # "virtfn10" sorts before "virtfn2" as text.
    return Node(one, code, frozenset(names), tuple(sorted(virtfns)))


def function(reader: Reader, one: PciAddress, class_code: str) -> Function:
    """One function with its ids, driver and group."""
    return Function(
        address=one,
        vendor_id=hex_id(reader.text(paths.pci(one, "vendor"))) or "",
        device_id=hex_id(reader.text(paths.pci(one, "device"))) or "",
        class_code=class_code,
        driver=reader.last(paths.pci(one, "driver")),
        driver_override=driver_override(reader, one),
        iommu_group=number(reader.last(paths.pci(one, "iommu_group"))),
    )


def driver_override(reader: Reader, one: PciAddress) -> str | None:
    """The driver that the function is reserved for; the kernel prints `(null)` for none."""
    text = reader.text(paths.pci(one, "driver_override"))
    return text if text and text != "(null)" else None


def companions(reader: Reader, bus: Bus, node: Node) -> tuple[Function, ...]:
    """The other functions of the slot: audio, USB, UCSI. VFs in the same slot are no part of it
    (https://github.com/strongtz/i915-sriov-dkms/issues/342)."""
    own = {vf for _, vf in node.virtfns}
    return tuple(
        function(reader, one, bus.classes[one])
        for one in bus.slots[node.address.card]
        if one != node.address
        and one not in own
        and not reader.door.exists(paths.pci(one, "physfn"))
    )


def subsystem(reader: Reader, one: PciAddress) -> str | None:
    """`10de:145a`, or None."""
    vendor = hex_id(reader.text(paths.pci(one, "subsystem_vendor")))
    device = hex_id(reader.text(paths.pci(one, "subsystem_device")))
    return f"{vendor}:{device}" if vendor and device else None


def numa_node(reader: Reader, one: PciAddress) -> int | None:
    """The memory node; -1 is "no node" and not node 0 nor 4294967295
    (https://github.com/NVIDIA/kubevirt-gpu-device-plugin/pull/86)."""
    node = reader.number(paths.pci(one, "numa_node"))
    return node if node is not None and node < 1 << 16 else None


def bridges(reader: Reader, one: PciAddress) -> tuple[PciAddress, ...]:
    """The bridges above a function, from the root down, from the place its link points to."""
    target = reader.link(paths.pci(one)) or ""
    above = (address(part) for part in target.split("/")[:-1])
    return tuple(found for found in above if found is not None)


def drm_names(reader: Reader, node: Node) -> tuple[str, ...]:
    """`card0`, `renderD128` of a display, from its own directory."""
    if "drm" not in node.names:
        return ()
    names = reader.names(paths.pci(node.address, "drm"))
    return tuple(sorted(name for name in names if name.startswith(("card", "render"))))


class Groups:
    """Who shares an IOMMU group: by the group's own list, else by the functions that we read."""

    def __init__(self, reader: Reader, functions: Iterable[Function]) -> None:
        self._reader = reader
        self._read: dict[int, list[PciAddress]] = {}
        for one in functions:
            if one.iommu_group is not None:
                self._read.setdefault(one.iommu_group, []).append(one.address)
        self._listed: dict[int, tuple[PciAddress, ...]] = {}

    def members(self, group: int) -> tuple[PciAddress, ...]:
        """All functions of a group, sorted."""
        if group not in self._listed:
            names = self._reader.names(paths.iommu_group_devices(group))
            listed = {one for one in map(address, names) if one is not None}
            self._listed[group] = tuple(sorted(listed | set(self._read.get(group, ()))))
        return self._listed[group]

    def has_any(self) -> bool:
        """Whether this host has IOMMU groups at all."""
        return bool(self._read) or bool(self._reader.names(paths.IOMMU_GROUPS))
