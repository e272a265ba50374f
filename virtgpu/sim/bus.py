"""The PCI bus: functions, IOMMU groups, drivers and VFIO, with the kernel's answers to writes.

Errnos are those of drivers/pci and drivers/base of Linux: bind ENODEV (no match) and EBUSY (has a
driver), unbind ENODEV (not this driver's), new_id EINVAL and EEXIST, drivers_probe ENODEV.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Sequence

from virtgpu.sim.device import Device
from virtgpu.sim.profiles import Json
from virtgpu.sim.state import State
from virtgpu.sim.tree import InUse, Node, Tree, refuse

VFIO_PCI = "vfio-pci"
# Lines of `resource`: start, end and flags (IORESOURCE_MEM and SIZEALIGN; with MEM_64, PREFETCH).
_NO_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
_LINES, _MEMORY, _PREFETCHABLE = 13, 0x40200, 0x14220C

Hook = Callable[[Device], None]


class Bus:
    """All functions by address. *on_bind* and *on_unbind* make and remove a driver's own files."""

    def __init__(self, tree: Tree, state: State) -> None:
        self.tree = tree
        self.state = state
        self.devices: dict[str, Device] = {}
        self.events: list[list[str]] = []
        self.on_bind: list[Hook] = []
        self.on_unbind: list[Hook] = []
        self.before_unbind: list[Hook] = []
        self.has_cdev = False
        self._sequence = 1000
        self._drivers: dict[str, Node] = {}
        self._cdevs: dict[str, int] = {}
        self._group_users: dict[int, set[str]] = {}
        self._build()

    def _build(self) -> None:
        pci = self.tree.dir("sys/bus/pci")
        for name in ("devices", "drivers", "slots"):
            self.tree.dir(name, pci)
        self.tree.file(pci, "drivers_probe", write=self._drivers_probe)
        self.tree.file(pci, "drivers_autoprobe", "1", lambda _: None)
        self.tree.file(pci, "rescan", write=lambda _: None)
        self.tree.dir("sys/kernel/iommu_groups")
        self.tree.dir("dev/vfio")
        self._vfio_node("vfio")
        for name in (VFIO_PCI, "pcieport"):
            self.driver_node(name)

    # -- functions

    def add(self, device: Device, parent: Node) -> None:
        """A function appears below *parent*; it is not probed."""
        t, node = self.tree, self.tree.dir(device.address, parent)
        device.place = node
        self.devices[device.address] = device
        self._add_facts(device)
        t.file(node, "uevent", lambda: device.uevent, lambda text: self._uevent(device, text))
        t.file(
            node,
            "driver_override",
            lambda: f"{device.override or '(null)'}\n",
            lambda text: self._override(device, text),
        )
        config = t.file(node, "config", lambda: bytes(device.config), lambda _: None)
        config.size = len(device.config)
        config.write_at = lambda data, offset: _write_config(device, data, offset)
        t.link(node, "subsystem", t.dir("sys/bus/pci"))
        t.link(t.dir("sys/bus/pci/devices"), device.address, node)
        if device.group is not None:
            self._join_group(device, device.group)
        self.event("add", node, device.uevent, "pci")

    def _add_facts(self, device: Device) -> None:
        spec, node = device.spec, device.node
        vendor, subsystem = device.subsystem
        numa = spec.get("numa_node")
        facts = {
            "vendor": f"0x{spec['vendor']}",
            "device": f"0x{spec['device']}",
            "subsystem_vendor": f"0x{vendor}",
            "subsystem_device": f"0x{subsystem}",
            "class": f"0x{device.class_code}",
            "revision": f"0x{device.revision}",
            "numa_node": str(-1 if numa is None else numa),
            "modalias": device.modalias,
            "irq": "0",
            "enable": "1",
            "local_cpulist": spec.get("local_cpulist"),
            "boot_vga": spec.get("boot_vga"),
            "reset_method": spec.get("reset_method"),
        }
        for name, value in facts.items():
            if value is not None:
                self.tree.file(node, name, str(value))
        self.tree.file(node, "resource", lambda: _resource(spec.get("bars") or ()))
        self._add_link(device)
        self.tree.file(node, "reset", write=lambda text: _reset(text))

    def _add_link(self, device: Device) -> None:
        link = device.spec.get("link")
        if not link:
            return
        for name, value in (("speed", link.get("max_speed")), ("width", link.get("max_width"))):
            self.tree.file(device.node, f"max_link_{name}", str(value))
            # A VF has no link of its own: pcie_get_speed_cap reads nothing there.
            current = ("Unknown" if name == "speed" else "0") if device.pf else str(value)
            self.tree.file(device.node, f"current_link_{name}", current)

    def remove(self, device: Device) -> None:
        """A function goes away; its driver is unbound first."""
        if device.driver:
            self._unbind(device)
        t = self.tree
        t.remove(t.dir("sys/bus/pci/devices").entries[device.address])
        if device.group is not None:
            group = t.dir(f"sys/kernel/iommu_groups/{device.group}")
            members = t.dir("devices", group).entries
            t.remove(members[device.address])
            if not members:
                t.remove(group)
        self.event("remove", device.node, device.uevent, "pci")
        t.remove(device.node)
        del self.devices[device.address]
        self.state.drivers.pop(device.address, None)
        self.state.overrides.pop(device.address, None)

    # -- groups and VFIO

    def _join_group(self, device: Device, number: int) -> None:
        group = self.group(number)
        self.tree.link(self.tree.dir("devices", group), device.address, device.node)
        self.tree.link(device.node, "iommu_group", group)

    def group(self, number: int, kind: str = "DMA-FQ") -> Node:
        """The directory of an IOMMU group, made where it is not there."""
        group = self.tree.dir(f"sys/kernel/iommu_groups/{number}")
        if "type" not in group.entries:
            self.tree.file(group, "type", kind)
            self.tree.dir("devices", group)
        return group

    def open_group(self, number: int, user: str) -> None:
        """/dev/vfio/NUMBER is there while one of the group's devices is VFIO's."""
        users = self._group_users.setdefault(number, set())
        if not users:
            self._vfio_node(str(number))
        users.add(user)

    def close_group(self, number: int, user: str) -> None:
        """The device of *user* is VFIO's no more."""
        users = self._group_users.get(number, set())
        if user in users:
            users.remove(user)
            if not users:
                self.tree.remove(self.tree.dir("dev/vfio").entries[str(number)])

    def _vfio_node(self, name: str) -> None:
        node = self.tree.file(self.tree.dir("dev/vfio"), name, "", _no_write)
        node.size, node.mode = 0, stat.S_IFREG | 0o600
        node.is_exclusive = name != "vfio"  # vfio_group_fops_open: one user at a time

    def is_held(self, *groups: int | None) -> bool:
        """Whether a process has the VFIO file of one of the groups open for writing.

        libvirt looks whether a group is free by opening it for reading.
        """
        nodes = self.tree.dir("dev/vfio").entries
        for group in groups:
            node = nodes.get(str(group))
            if node is not None and node.opened not in (None, 0):
                return True
            name = f"/dev/vfio/{group}"
            if any(name in one.files for one in self.state.holders):
                return True
        return False

    def wait_unused(self, *groups: int | None) -> None:
        """Linux waits here, unkillably, until the guest lets the device go."""
        if self.is_held(*groups):
            raise InUse

    # -- drivers

    def driver_node(self, name: str) -> Node:
        """The directory of a driver, made where it is not there."""
        if name not in self._drivers:
            t, node = self.tree, self.tree.dir(f"sys/bus/pci/drivers/{name}")
            self._drivers[name] = node
            t.file(node, "bind", write=lambda text: self._bind_write(name, text))
            t.file(node, "unbind", write=lambda text: self._unbind_write(name, text))
            t.file(node, "new_id", write=lambda text: self._new_id(name, text))
            t.file(node, "remove_id", write=lambda text: self._remove_id(name, text))
            t.file(node, "uevent", write=lambda _: None)
            t.link(node, "module", t.dir("sys/module/" + name.replace("-", "_")))
        return self._drivers[name]

    def matches(self, driver: str, device: Device) -> bool:
        """driver_override wins alone; else the driver's own ids, and those added to it."""
        if device.override:
            return device.override == driver
        added = self.state.new_ids.get(driver, ())
        return driver == device.home or device.ids in added

    def probe(self, device: Device) -> None:
        """What the bus does for a function without a driver."""
        if device.driver:
            return
        for driver in list(self._drivers):
            if self.matches(driver, device) and not self._is_refused(driver, device):
                self.bind(device, driver)
                return

    def bind(self, device: Device, driver: str) -> None:
        """The driver takes the function."""
        t, node = self.tree, self.driver_node(driver)
        device.driver = driver
        self.state.drivers[device.address] = driver
        t.link(device.node, "driver", node)
        t.link(node, device.address, device.node)
        if driver == VFIO_PCI:
            self.open_vfio(device)
        for hook in self.on_bind:
            hook(device)
        self.event("bind", device.node, device.uevent, "pci")

    def open_vfio(self, device: Device) -> None:
        """The function's group can be opened, and its own device where the kernel has those."""
        if device.group is not None:
            self.open_group(device.group, device.address)
        if self.has_cdev:
            number = self._cdevs.setdefault(device.address, len(self._cdevs))
            self.tree.dir(f"vfio-dev/vfio{number}", device.node)

    def unbind(self, device: Device) -> None:
        """The driver lets the function go, once nobody uses it any more."""
        for hook in self.before_unbind:
            hook(device)
        self._unbind(device)

    def _unbind(self, device: Device) -> None:
        for hook in self.on_unbind:
            hook(device)
        entries = device.node.entries
        for name in ("vfio-dev", "driver"):
            if name in entries:
                self.tree.remove(entries[name])
        self.tree.remove(self.driver_node(device.driver or "").entries[device.address])
        if device.group is not None:
            self.close_group(device.group, device.address)
        device.driver = None
        self.state.drivers[device.address] = None
        self.event("unbind", device.node, device.uevent, "pci")

    # -- what is written

    def _find(self, text: str) -> Device:
        device = self.devices.get(text)
        if device is None:
            raise refuse(errno.ENODEV)
        return device

    def _is_refused(self, driver: str, device: Device) -> bool:
        # NVIDIA's VFs with vGPU files are no vfio-pci devices: its probe says EINVAL (formats 3).
        return driver == VFIO_PCI and device.pf is not None and device.home == "nvidia"

    def _bind_write(self, driver: str, text: str) -> None:
        device = self._find(text)
        if not self.matches(driver, device):
            raise refuse(errno.ENODEV)
        if device.driver:
            raise refuse(errno.EBUSY)
        if self._is_refused(driver, device):
            raise refuse(errno.EINVAL)
        self.bind(device, driver)

    def _unbind_write(self, driver: str, text: str) -> None:
        device = self._find(text)
        if device.driver != driver:
            raise refuse(errno.ENODEV)
        self.unbind(device)

    def _drivers_probe(self, text: str) -> None:
        self.probe(self._find(text))

    def _override(self, device: Device, text: str) -> None:
        device.override = text or None
        if text:
            self.state.overrides[device.address] = text
        else:
            self.state.overrides.pop(device.address, None)

    def _new_id(self, driver: str, text: str) -> None:
        entry = _id_pair(text)
        known = self.state.new_ids.setdefault(driver, [])
        if entry in known:
            raise refuse(errno.EEXIST)
        known.append(entry)
        for device in list(self.devices.values()):
            if not device.driver and self.matches(driver, device):
                self.bind(device, driver)

    def _remove_id(self, driver: str, text: str) -> None:
        entry = _id_pair(text)
        if entry not in self.state.new_ids.get(driver, ()):
            raise refuse(errno.ENODEV)
        self.state.new_ids[driver].remove(entry)

    # -- events, as udevd passes them on

    def event(self, action: str, node: Node, text: str, subsystem: str) -> None:
        """Say that something happened to a device."""
        self._sequence += 1
        fields = [
            f"ACTION={action}",
            f"DEVPATH={node.path.removeprefix('/sys')}",
            f"SUBSYSTEM={subsystem}",
            f"SEQNUM={self._sequence}",
            "USEC_INITIALIZED=1",
        ]
        self.events.append([*fields, *text.split()])

    def _uevent(self, device: Device, text: str) -> None:
        action = text.split(" ")[0]
        if action not in ("add", "remove", "change", "bind", "unbind"):
            raise refuse(errno.EINVAL)
        self.event(action, device.node, device.uevent, "pci")


def number(text: str, limit: int) -> int:
    """The kernel's kstrtou*: decimal, 0x hexadecimal or 0 octal, else EINVAL or ERANGE."""
    try:
        value = int(text, 8) if text[:1] == "0" and text.isdecimal() else int(text, 0)
    except ValueError:
        raise refuse(errno.EINVAL) from None
    if value < 0:
        raise refuse(errno.EINVAL)
    if value >= limit:
        raise refuse(errno.ERANGE)
    return value


def _id_pair(text: str) -> str:
    fields = text.split()
    if len(fields) < 2:
        raise refuse(errno.EINVAL)
    return ":".join(one.lower().removeprefix("0x").rjust(4, "0") for one in fields[:2])


def _no_write(_text: str) -> None:
    raise refuse(errno.EINVAL)


def _reset(text: str) -> None:
    if number(text, 2) != 1:
        raise refuse(errno.EINVAL)


def _write_config(device: Device, data: bytes, offset: int) -> None:
    end = min(offset + len(data), len(device.config))
    device.config[offset:end] = data[: end - offset]


def _resource(bars: Sequence[Json]) -> str:
    """BARs one after the other, each at a multiple of its size."""
    lines, at = [_NO_BAR] * _LINES, 1 << 40
    for bar in bars:
        size = int(bar["size"])
        at = -(-at // size) * size
        flags = _PREFETCHABLE if bar.get("prefetch") else _MEMORY
        lines[int(bar["index"])] = f"0x{at:016x} 0x{at + size - 1:016x} 0x{flags:016x}"
        at += size
    return "\n".join(lines)
