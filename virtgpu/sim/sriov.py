"""SR-IOV: VFs come and go with `sriov_numvfs` or the vendor's tool.

drivers/pci/iov.c: a number above sriov_totalvfs ERANGE; the same number again does nothing; n over
m EBUSY (0 first); a driver without sriov_configure ENOENT.
"""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable

from virtgpu.sim.bus import Bus, number
from virtgpu.sim.device import Device, config_space, vf_address
from virtgpu.sim.profiles import Json, Profile
from virtgpu.sim.state import State
from virtgpu.sim.tree import refuse


class Sriov:
    """The VFs of all PFs."""

    def __init__(self, profile: Profile, bus: Bus, state: State, first_group: int) -> None:
        self._bus = bus
        self._state = state
        self._late_s = float(profile.choices.get("late_vfs_s") or 0)
        self._groups: dict[str, int] = {}
        self._next_group = first_group
        # What holds a VF beside its own group: a mediated device on it.
        self.groups_on: Callable[[Device], list[int]] = lambda _: []

    @property
    def free_group(self) -> int:
        """The first IOMMU group that no VF will ever have."""
        return self._next_group

    def add(self, pf: Device) -> None:
        """The capability's files, and the VFs that are on already."""
        t, node, sriov = self._bus.tree, pf.node, pf.spec["sriov"]
        self._place_groups(pf)
        t.file(node, "sriov_totalvfs", str(sriov["totalvfs"]))
        t.file(
            node,
            "sriov_numvfs",
            lambda: f"{self._state.numvfs.get(pf.address, 0)}\n",
            lambda text: self._numvfs(pf, text),
        )
        t.file(node, "sriov_offset", str(sriov.get("offset", 1)))
        t.file(node, "sriov_stride", str(sriov.get("stride", 1)))
        t.file(node, "sriov_vf_device", str(sriov.get("vf_device") or pf.spec["device"]))
        t.file(
            node,
            "sriov_drivers_autoprobe",
            lambda: f"{int(self._state.autoprobe.get(pf.address, True))}\n",
            lambda text: self._autoprobe(pf, text),
        )
        count = self._state.numvfs.get(pf.address, 0)
        if count and pf.address not in self._state.due:
            self._make(pf, count, initial=True)

    def _place_groups(self, pf: Device) -> None:
        first = (pf.spec.get("vf") or {}).get("iommu_group_first")
        if first is None and pf.group is not None:
            first = self._next_group
            self._next_group += int(pf.spec["sriov"]["totalvfs"])
        if first is not None:
            self._groups[pf.address] = int(first)

    def tick(self) -> None:
        """Let VFs appear whose time has come."""
        for address, due in list(self._state.due.items()):
            if time.time() >= due:
                del self._state.due[address]
                pf = self._bus.devices[address]
                self._make(pf, self._state.numvfs[address], initial=False)

    # -- what is written

    def _autoprobe(self, pf: Device, text: str) -> None:
        self._state.autoprobe[pf.address] = bool(number(text, 2))

    def _numvfs(self, pf: Device, text: str) -> None:
        sriov = pf.spec["sriov"]
        count = number(text, 1 << 16)
        if count > sriov["totalvfs"]:
            raise refuse(errno.ERANGE)
        if count == self._state.numvfs.get(pf.address, 0):
            return
        if pf.driver is None or pf.driver == "vfio-pci" or not sriov.get("writable_numvfs", True):
            raise refuse(errno.ENOENT)
        if count == 0:
            self.disable(pf)
        elif self._state.numvfs.get(pf.address, 0):
            raise refuse(errno.EBUSY)
        else:
            self.enable(pf, count)

    def enable(self, pf: Device, count: int) -> None:
        """Turn VFs on; where the profile says so they appear a moment later."""
        self._state.numvfs[pf.address] = count
        if self._late_s:
            self._state.due[pf.address] = time.time() + self._late_s
        else:
            self._make(pf, count, initial=False)

    def disable(self, pf: Device) -> None:
        """Turn all VFs off; waits while one is held."""
        for vf in pf.vfs:
            self._bus.wait_unused(vf.group, *self.groups_on(vf))
        for vf in reversed(pf.vfs):
            self._bus.tree.remove(pf.node.entries[f"virtfn{vf.index}"])
            self._bus.remove(vf)
        pf.vfs.clear()
        self._state.numvfs[pf.address] = 0
        self._state.due.pop(pf.address, None)
        _set_count(pf, 0)

    def _make(self, pf: Device, count: int, *, initial: bool) -> None:
        group = self._groups.get(pf.address)
        for index in range(count):
            spec = _vf_spec(pf, index)
            vf = Device(
                address=spec["address"],
                spec=spec,
                group=None if group is None else group + index,
                home=_home(pf),
                pf=pf,
                index=index,
            )
            vf.config = config_space(vf, is_multi=False, bridge=None)
            vf.override = self._state.overrides.get(vf.address)
            assert pf.node.parent is not None
            self._bus.add(vf, pf.node.parent)
            self._bus.tree.link(vf.node, "physfn", pf.node)
            self._bus.tree.link(pf.node, f"virtfn{index}", vf.node)
            pf.vfs.append(vf)
        _set_count(pf, count)
        for vf in pf.vfs:
            self._drive(vf, initial=initial)

    def _drive(self, vf: Device, *, initial: bool) -> None:
        if initial and vf.address in self._state.drivers:
            driver = self._state.drivers[vf.address]
        elif initial:
            driver = _initial_driver(vf)
        elif self._state.autoprobe.get(vf.card.address, True):
            self._bus.probe(vf)
            return
        else:
            driver = None
        self._state.drivers[vf.address] = None
        if driver:
            self._bus.bind(vf, driver)


def _vf_spec(pf: Device, index: int) -> Json:
    found = pf.spec.get("vf") or {}
    spec = {
        "vendor": pf.spec["vendor"],
        "device": pf.spec["sriov"].get("vf_device") or pf.spec["device"],
        "subsystem_vendor": pf.subsystem[0],
        "subsystem_device": pf.subsystem[1],
        "class": pf.class_code,
        "revision": pf.revision,
        "link": pf.spec.get("link"),
    } | {key: value for key, value in found.items() if value is not None}
    return spec | {
        "address": vf_address(pf, index),
        "numa_node": pf.spec.get("numa_node"),
        "sriov": None,
    }


def _home(pf: Device) -> str | None:
    """The host driver that takes a VF by itself: NVIDIA's; the others leave theirs to guests."""
    named = (pf.spec.get("vf") or {}).get("driver")
    if named and named != "vfio-pci":
        return str(named)
    return pf.home if pf.home in ("nvidia", "mlx5_core") else None


def _initial_driver(vf: Device) -> str | None:
    found = vf.card.spec.get("vf") or {}
    driver = (found.get("drivers") or {}).get(str(vf.index), found.get("driver"))
    return str(driver) if driver else None


def _set_count(pf: Device, count: int) -> None:
    struct.pack_into("<H", pf.config, 0x110, count)
