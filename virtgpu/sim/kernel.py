"""One simulated kernel: built from a host profile and a state, it answers writes as Linux does.

Two fronts show it: `virtgpu.sim.door` in process, `virtgpu.sim.machine` mounted as /sys.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from virtgpu.errors import Config
from virtgpu.host.door import Completed
from virtgpu.sim import nvml_facts, skeleton, state
from virtgpu.sim.bus import Bus
from virtgpu.sim.cards import Card, read_kinds
from virtgpu.sim.device import Device, config_space
from virtgpu.sim.mdev import Mdevs
from virtgpu.sim.modes import Modes, NvidiaRefused
from virtgpu.sim.profiles import Json, Profile
from virtgpu.sim.sriov import Sriov
from virtgpu.sim.state import Process
from virtgpu.sim.topology import Topology
from virtgpu.sim.tree import Tree
from virtgpu.sim.vendor_vfio import VendorVfio

__all__ = ["Kernel", "NvidiaRefused"]


# What an impossible profile or state makes Python say while the machine is built from it.
_IMPOSSIBLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    AssertionError,
    OverflowError,
    StopIteration,
    RecursionError,
    OSError,
    struct.error,
)


def build(profile: Profile, snapshot: Json | None = None) -> Kernel:
    """The machine of a profile and a stored state; raises `Config` for an impossible one."""
    try:
        return Kernel(profile, snapshot)
    except _IMPOSSIBLE as error:
        raise Config(
            f"no machine can be built of profile {profile.name}: {type(error).__name__}: {error}",
            hint=f"look at the profile; its state goes with: virtgpu sim reset {profile.name}",
        ) from error


class Kernel:
    """The machine. *tree* has `sys`, `proc` and `dev` below its root."""

    def __init__(self, profile: Profile, snapshot: Json | None = None) -> None:
        self.profile = profile
        self.tree = Tree()
        is_new = snapshot is None
        source = f"state of {profile.name}"
        self.state = state.initial(profile) if snapshot is None else state.restore(snapshot, source)
        skeleton.build(self.tree, profile)
        self.bus = Bus(self.tree, self.state)
        release = str(profile.host.get("kernel") or "")
        self.bus.has_cdev = release.partition(".")[0] >= "6"
        self.cards: dict[str, Card] = {}
        self._vendor_vfio = VendorVfio(profile, self.bus, self.state, self.cards)
        self._mdevs = Mdevs(profile, self.bus, self.state, self.cards)
        self._sriov = Sriov(profile, self.bus, self.state, self._first_free_group())
        self._sriov.groups_on = self._mdevs.groups_on
        self._topology = Topology(self.tree, self.bus, profile.pci)
        self._topology.add = self._add
        self._build()
        self.modes = Modes(profile, self.bus, self.state, self.cards, self._sriov)
        if is_new:
            self._adopt()
        skeleton.add_nvidia_proc(self.tree, profile, self.bus.devices)
        skeleton.show_processes(self.tree, self.state)
        self.bus.events.clear()  # cold plug: nobody listens yet
        self.tree.take_stale()

    # -- building

    def _build(self) -> None:
        for spec in self.profile.pci:
            if spec["address"] not in self.bus.devices:
                self._add(spec)
        # All VFs that may ever be have their groups by now.
        pfs = [device for device in list(self.bus.devices.values()) if device.spec.get("sriov")]
        for pf in pfs:
            self._sriov.add(pf)
        self._mdevs.begin_groups(self._sriov.free_group)
        for device in list(self.bus.devices.values()):
            if device.pf is None and device.address in self._pf_drivers:
                self.bus.bind(device, self._pf_drivers[device.address])
                skeleton.add_xe(self.tree, device)

    def _add(self, spec: Json) -> Device:
        address = spec["address"]
        driver = spec.get("driver")
        device = Device(
            address=address,
            spec=spec,
            group=spec.get("iommu_group"),
            home=None if driver == "vfio-pci" else driver,
        )
        slot = address.rpartition(".")[0]
        is_multi = any(
            one["address"] != address and one["address"].rpartition(".")[0] == slot
            for one in self.profile.pci
        )
        bridge = None
        if device.class_code.startswith("0604"):
            below = [one for one in self.profile.pci if one.get("parent") == address]
            number = int(below[0]["address"].split(":")[1], 16) if below else 1
            bridge = (number, number)
        device.config = config_space(device, is_multi=is_multi, bridge=bridge)
        device.override = self.state.overrides.get(address)
        self.bus.add(device, self._topology.parent(spec))
        skeleton.add_drm(self.tree, device)
        self._add_card(device)
        bound = self.state.drivers.get(address)
        self.bus.driver_node(driver) if driver else None
        if bound:
            self._pf_drivers[address] = bound
        return device

    @property
    def _pf_drivers(self) -> dict[str, str]:
        return self.__dict__.setdefault("_pending_drivers", {})  # type: ignore[no-any-return]

    def _add_card(self, device: Device) -> None:
        spec = device.spec
        if spec["vendor"] != "10de" and not spec.get("mdev"):
            return
        if not device.class_code.startswith(("03", "12")):
            return
        reference = spec.get("vendor_vfio") or {}
        placement = self.profile.raw.get("placement") or {}
        mig = (self.profile.raw.get("mig") or {}).get(device.ids) or {}
        self.cards[device.address] = Card(
            pf=device,
            framework="mdev" if spec.get("mdev") else "vendor-vfio" if reference else None,
            on=str((spec.get("mdev") or reference or {}).get("on") or "vf"),
            kinds=read_kinds(self.profile, spec),
            state=self.state,
            places_of={
                size: list(starts) for size, starts in (placement.get("mixed") or {}).items()
            },
            vendor_vfio=reference,
            mig=mig,
        )

    def _first_free_group(self) -> int:
        groups = [0]
        for spec in self.profile.pci:
            groups.append(int(spec.get("iommu_group") or 0))
            first = (spec.get("vf") or {}).get("iommu_group_first")
            if first is not None:
                groups.append(int(first) + int((spec.get("sriov") or {}).get("totalvfs") or 0))
        return max(groups) + 1

    def _adopt(self) -> None:
        """Devices and holders that the profile says are there already."""
        raw = self.profile.raw
        for found in raw.get("mdev_devices") or []:
            parent = self.bus.devices[found["parent"]]
            one = self._mdevs.adopt(str(found["uuid"]), parent, str(found["type"]))
            if str(found.get("owner") or "").startswith("qemu"):
                self._hold(str(found["owner"]), one.group, one.uuid)
        for found in (raw.get("nvml") or {}).get("vgpus") or []:
            vf = self.bus.devices.get(str(found.get("vf")))
            if found.get("in_use") and found.get("mdev_uuid") is None and vf and vf.group:
                self._hold("qemu-system-x86", vf.group, vf.address)

    def _hold(self, command: str, group: int, owner: str) -> None:
        files = ["/dev/vfio/vfio", f"/dev/vfio/{group}"]
        self.state.holders.append(Process(state.next_pid(self.state), command, files, owner))

    # -- what fronts ask

    def tick(self) -> None:
        """Let happen what is due by now; fronts call it before each access."""
        if self.state.due:
            self._sriov.tick()

    def snapshot(self) -> dict[str, Any]:
        """All that writes can change, as plain values."""
        return msgspec.to_builtins(self.state)  # type: ignore[no-any-return]

    def take_events(self) -> list[list[str]]:
        """The device events since the last call, as udevd would pass them on."""
        events, self.bus.events = self.bus.events, []
        return events

    @property
    def holders(self) -> list[Process]:
        """The processes that have devices open."""
        return self.state.holders

    def hold(self, command: str, group: int, owner: str) -> Process:
        """A process opens /dev/vfio/GROUP, as QEMU does for a guest."""
        self._hold(command, group, owner)
        self._show_holders()
        return self.state.holders[-1]

    def let_go(self, owner: str) -> None:
        """The processes that run on this mdev or VF end."""
        self.state.holders[:] = [one for one in self.state.holders if one.owner != owner]
        self._show_holders()

    def _show_holders(self) -> None:
        skeleton.forget_processes(self.tree)
        skeleton.show_processes(self.tree, self.state)

    # -- what NVIDIA's tools ask

    @property
    def has_nvidia(self) -> bool:
        """Whether NVIDIA's driver and its tools are there."""
        return "nvidia" in self.profile.modules and bool(self.profile.raw.get("nvml"))

    @property
    def has_sriov_manage(self) -> bool:
        """Whether the vGPU Manager's script is there."""
        return self.profile.is_vgpu_host

    def nvml_state(self) -> dict[str, Any]:
        """What NVML would say, as plain values."""
        return nvml_facts.collect(self.profile, self.cards)

    def set_mig_mode(self, address: str, on: bool) -> None:
        """See `Modes.set_mig_mode`."""
        self.modes.set_mig_mode(address, on)

    def create_gi(self, address: str, profile_id: int, start: int | None, ci: bool) -> int:
        """See `Modes.create_gi`."""
        return self.modes.create_gi(address, profile_id, start, ci)

    def create_ci(self, address: str, gi_id: int) -> int:
        """See `Modes.create_ci`."""
        return self.modes.create_ci(address, gi_id)

    def destroy_ci(self, address: str, gi_id: int | None) -> list[int]:
        """See `Modes.destroy_ci`."""
        return self.modes.destroy_ci(address, gi_id)

    def destroy_gi(self, address: str, gi_id: int | None) -> list[int]:
        """See `Modes.destroy_gi`."""
        return self.modes.destroy_gi(address, gi_id)

    def set_mixed(self, address: str, on: bool) -> None:
        """See `Modes.set_mixed`."""
        self.modes.set_mixed(address, on)

    def sriov_manage(self, argv: list[str]) -> Completed:
        """See `Modes.sriov_manage`."""
        return self.modes.sriov_manage(argv)
