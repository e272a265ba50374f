"""Mediated devices: the types of a parent, `create` and `remove`.

Kernel Documentation/driver-api/vfio-mediated-device.rst and drivers/vfio/mdev: a bad UUID EINVAL,
a known one EEXIST, no room as the profile says; `remove` waits for the device's holder for ever.
"""

from __future__ import annotations

import errno
import re
from functools import partial

from virtgpu.sim.bus import Bus, number
from virtgpu.sim.cards import Card, Kind
from virtgpu.sim.device import Device
from virtgpu.sim.profiles import Profile
from virtgpu.sim.state import Mdev, State
from virtgpu.sim.tree import Node, refuse

_TYPES = "mdev_supported_types"
_BUS = "sys/bus/mdev"
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Mdevs:
    """The mdev bus. *first_group* is where the IOMMU groups of new devices begin."""

    def __init__(self, profile: Profile, bus: Bus, state: State, cards: dict[str, Card]) -> None:
        self._bus = bus
        self._tree = bus.tree
        self._state = state
        self._cards = cards
        self._first_group = 0
        self._full = getattr(errno, str(profile.choices.get("mdev_full") or "ENOSPC"))
        if "mdev" in profile.modules or any(one.framework == "mdev" for one in cards.values()):
            for path in (f"{_BUS}/devices", f"{_BUS}/drivers/vfio_mdev", "sys/class/mdev_bus"):
                self._tree.dir(path)
        bus.on_bind.append(self._bound)
        bus.on_unbind.append(self._unbound)
        bus.before_unbind.append(self._wait)

    def begin_groups(self, first: int) -> None:
        """Groups of mediated devices are numbered from here."""
        self._first_group = first

    def groups_on(self, device: Device) -> list[int]:
        """The IOMMU groups of the mediated devices on one function."""
        return [one.group for one in self._state.mdevs if one.parent == device.address]

    # -- types come and go with the driver

    def _bound(self, device: Device) -> None:
        card = self._cards.get(device.card.address)
        if card is None or card.framework != "mdev" or device.driver != card.pf.home:
            return
        if (card.on == "vf") != (device.pf is not None):
            return
        t = self._tree
        kinds = {kind.id: kind for kind in card.kinds.values()}
        t.announce(
            t.dir(_TYPES, device.node),
            kinds,
            lambda node, name: self._add_type(card, device, kinds[name], node),
        )
        t.link(t.dir("sys/class/mdev_bus"), device.address, device.node)
        for one in self._state.mdevs:
            if one.parent == device.address:
                self._show(one, device)

    def _add_type(self, card: Card, device: Device, kind: Kind, node: Node) -> None:
        t = self._tree
        t.dir("devices", node)
        if kind.name is not None:
            t.file(node, "name", kind.name)
        if kind.description is not None:
            t.file(node, "description", kind.description)
        t.file(node, "device_api", kind.device_api)
        t.file(node, "available_instances", lambda: f"{_available(card, device, kind)}\n")
        t.file(node, "create", write=partial(self._create, card, device, kind))

    def _unbound(self, device: Device) -> None:
        for one in [one for one in self._state.mdevs if one.parent == device.address]:
            self._remove(one)
        if _TYPES in device.node.entries:
            self._tree.remove(self._tree.dir("sys/class/mdev_bus").entries[device.address])
            self._tree.remove(device.node.entries[_TYPES])

    def _wait(self, device: Device) -> None:
        self._bus.wait_unused(device.group, *self.groups_on(device))

    # -- devices

    def _create(self, card: Card, device: Device, kind: Kind, text: str) -> None:
        name = text.lower()
        if re.fullmatch(_UUID, name) is None:
            raise refuse(errno.EINVAL)
        if any(one.uuid == name for one in self._state.mdevs):
            raise refuse(errno.EEXIST)
        if not _available(card, device, kind):
            raise refuse(self._full)
        one = Mdev(name, device.address, card.make(kind), self._free_group())
        self._state.mdevs.append(one)
        self._show(one, device)

    def _free_group(self) -> int:
        taken = {one.group for one in self._state.mdevs}
        group = self._first_group
        while group in taken:
            group += 1
        return group

    def adopt(self, name: str, device: Device, kind_id: str) -> Mdev:
        """A device that the profile says exists already."""
        card = self._cards[device.card.address]
        one = Mdev(name, device.address, card.make(card.kinds[kind_id]), self._free_group())
        self._state.mdevs.append(one)
        self._show(one, device)
        return one

    def _show(self, one: Mdev, device: Device) -> None:
        t = self._tree
        node = t.dir(one.uuid, device.node)
        kind = t.dir(f"{_TYPES}/{one.vgpu.type_id}", device.node)
        group = self._bus.group(one.group, "unknown")
        driver = t.dir(f"{_BUS}/drivers/vfio_mdev")
        for folder in (
            t.dir("devices", kind),
            t.dir(f"{_BUS}/devices"),
            driver,
            t.dir("devices", group),
        ):
            t.link(folder, one.uuid, node)
        t.link(node, "iommu_group", group)
        t.link(node, "mdev_type", kind)
        t.link(node, "subsystem", t.dir(_BUS))
        t.link(node, "driver", driver)
        text = "DRIVER=vfio_mdev"
        t.file(node, "uevent", text, lambda action: self._bus.event(action, node, text, "mdev"))
        t.file(node, "remove", write=partial(self._remove_write, one))
        self._bus.open_group(one.group, one.uuid)
        self._bus.event("add", node, text, "mdev")
        self._bus.event("bind", node, text, "mdev")

    def _remove_write(self, one: Mdev, text: str) -> None:
        if not number(text, 1 << 64):
            raise refuse(errno.EINVAL)
        self._bus.wait_unused(one.group)
        self._remove(one)

    def _remove(self, one: Mdev) -> None:
        t = self._tree
        self._state.mdevs.remove(one)
        node = t.dir(f"{_BUS}/devices").entries[one.uuid].target
        assert isinstance(node, Node)
        self._bus.event("remove", node, "DRIVER=vfio_mdev", "mdev")
        group = self._bus.group(one.group)
        parent = node.parent
        assert parent is not None
        kind = t.dir(f"{_TYPES}/{one.vgpu.type_id}/devices", parent)
        for folder in (kind, t.dir(f"{_BUS}/devices"), t.dir(f"{_BUS}/drivers/vfio_mdev")):
            t.remove(folder.entries[one.uuid])
        t.remove(group)
        t.remove(node)
        self._bus.close_group(one.group, one.uuid)


def _available(card: Card, device: Device, kind: Kind) -> int:
    if device.pf is not None and card.vgpu_on(device) is not None:
        return 0  # a VF carries one
    left = card.room(kind)
    return min(left, 1) if device.pf is not None else left
