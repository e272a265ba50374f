"""A profile of a real machine: what its operator's bug report needs, and nothing that names it.

No serial, no UUID of a GPU, no host name, no MAC address goes in. What runs there now (guests'
vGPUs) goes in as mdevs and types, with new UUIDs in order.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from virtgpu.host import paths
from virtgpu.host.door import Door
from virtgpu.model.pci import PciAddress

Json = dict[str, Any]

_CLASSES = ("03", "12", "02", "0403", "0c03", "0c80", "0604", "0680")
_MODULES = (
    "nvidia",
    "nvidia_vgpu_vfio",
    "mdev",
    "vfio_pci",
    "vfio_pci_core",
    "i915",
    "xe",
    "gim",
    "amdgpu",
    "nvidia_drm",
    "mlx5_core",
    "kvmgt",
)
_NAMESPACE = uuid.UUID(int=0)


class _Look:
    """Reading that takes nothing for an answer."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def text(self, path: str) -> str | None:
        """A file's text without its newline."""
        with suppress(OSError):
            return self.door.read(path).strip()
        return None

    def names(self, path: str) -> list[str]:
        """A folder's names, sorted."""
        with suppress(OSError):
            return sorted(self.door.listdir(path))
        return []

    def last(self, path: str) -> str | None:
        """The last part of a link."""
        with suppress(OSError):
            return self.door.readlink(path).rpartition("/")[2]
        return None

    def number(self, path: str) -> int | None:
        """A file's number."""
        text = self.text(path)
        return int(text) if text is not None and text.lstrip("-").isdecimal() else None

    def hexadecimal(self, path: str) -> str | None:
        """A file's number without 0x."""
        text = self.text(path)
        return None if text is None else text.removeprefix("0x")


def record(door: Door) -> Json:
    """The profile (schema 1) of the machine behind a door; the same machine gives the same text."""
    look = _Look(door)
    types: dict[str, Json] = {"mdev_types": {}, "vgpu_types": {}}
    pci = [
        found
        for name in look.names(paths.PCI_DEVICES)
        if (found := _function(look, PciAddress(name), types)) is not None
    ]
    profile: Json = {
        "schema": 1,
        "name": "recorded",
        "about": "Recorded by virtgpu sim record.",
        "host": _host(look),
        "pci": pci,
        **types,
        "mdev_devices": _mdevs(look),
        "unverified": ["recorded from a running machine: what is in use now is part of it"],
    }
    nvml = _nvml(door, look, pci, types["vgpu_types"])
    if nvml:
        profile["nvml"] = nvml
    _add_running(look, pci, types["vgpu_types"])
    return profile


# -- the host


def _host(look: _Look) -> Json:
    modules = {
        name: look.text(f"sys/module/{name}/version")
        for name in _MODULES
        if look.door.exists(f"sys/module/{name}")
    }
    found: Json = {
        "kernel": look.text(paths.KERNEL_RELEASE),
        "arch": look.text(paths.KERNEL_ARCH) or "x86_64",
        "iommu": "yes" if look.names(paths.IOMMU_GROUPS) else None,
        "modules": modules,
        "numa": [
            _node(look, int(name[4:]))
            for name in look.names(paths.NUMA_NODES)
            if name.startswith("node") and name[4:].isdecimal()
        ],
    }
    return found


def _node(look: _Look, node: int) -> Json:
    memory = look.text(paths.numa_node(node, "meminfo")) or ""
    total = next(
        (int(line.split()[-2]) // 1024 for line in memory.splitlines() if "MemTotal" in line), None
    )
    distances = (look.text(paths.numa_node(node, "distance")) or "").split()
    return {
        "id": node,
        "cpulist": look.text(paths.numa_node(node, "cpulist")),
        "memory_mib": total,
        "distances": [int(one) for one in distances if one.isdecimal()],
    }


# -- PCI functions


def _function(look: _Look, address: PciAddress, types: dict[str, Json]) -> Json | None:
    code = look.hexadecimal(paths.pci(address, "class")) or ""
    if not code.startswith(_CLASSES) or look.door.exists(paths.pci(address, "physfn")):
        return None
    found = _facts(look, address, code)
    sriov = _sriov(look, address)
    if sriov is not None:
        found["sriov"] = sriov
        first = look.last(paths.pci(address, "virtfn0"))
        if first is not None:
            found["vf"] = _vf(look, address, PciAddress(first), sriov["numvfs"])
    _add_framework(look, address, found, types)
    return {key: value for key, value in found.items() if value is not None}


def _facts(look: _Look, address: PciAddress, code: str) -> Json:
    def hexadecimal(name: str) -> str | None:
        return look.hexadecimal(paths.pci(address, name))

    override = look.text(paths.pci(address, "driver_override"))
    group = look.last(paths.pci(address, "iommu_group"))
    kind = {"0604": "bridge", "0680": "nvswitch"}.get(code[:4], "nic" if code[:2] == "02" else None)
    return {
        "address": str(address),
        "vendor": hexadecimal("vendor"),
        "device": hexadecimal("device"),
        "subsystem_vendor": hexadecimal("subsystem_vendor"),
        "subsystem_device": hexadecimal("subsystem_device"),
        "class": code,
        "revision": hexadecimal("revision"),
        "kind": kind,
        "numa_node": look.number(paths.pci(address, "numa_node")),
        "local_cpulist": look.text(paths.pci(address, "local_cpulist")),
        "iommu_group": int(group) if group is not None and group.isdecimal() else None,
        "driver": look.last(paths.pci(address, "driver")),
        "driver_override": None if override in (None, "", "(null)") else override,
        "boot_vga": look.number(paths.pci(address, "boot_vga")),
        "reset_method": look.text(paths.pci(address, "reset_method")),
        "parent": _parent(look, address),
        "drm": next(
            (one for one in look.names(paths.pci(address, "drm")) if one.startswith("card")), None
        ),
    }


def _parent(look: _Look, address: PciAddress) -> str | None:
    """The bridge right above; none on the root bus."""
    with suppress(OSError):
        above = look.door.readlink(paths.pci(address)).split("/")[-2:-1]
        return above[0] if above and not above[0].startswith("pci") else None
    return None


def _sriov(look: _Look, address: PciAddress) -> Json | None:
    total = look.number(paths.pci(address, "sriov_totalvfs"))
    if total is None:
        return None
    driver = look.last(paths.pci(address, "driver"))
    device = look.text(paths.pci(address, "sriov_vf_device"))
    return {
        "totalvfs": total,
        "numvfs": look.number(paths.pci(address, "sriov_numvfs")) or 0,
        "offset": look.number(paths.pci(address, "sriov_offset")) or 1,
        "stride": look.number(paths.pci(address, "sriov_stride")) or 1,
        "vf_device": device,
        "usable": total > 0 and device not in (None, "0000", "0"),
        # Known of these two drivers; everybody else takes the write.
        "writable_numvfs": driver not in ("nvidia", "gim"),
        "autoprobe": look.number(paths.pci(address, "sriov_drivers_autoprobe")),
    }


def _vf(look: _Look, pf: PciAddress, first: PciAddress, count: int) -> Json:
    drivers: dict[str, str | None] = {}
    for index in range(count):
        vf = look.last(paths.pci(pf, f"virtfn{index}"))
        drivers[str(index)] = None if vf is None else look.last(paths.pci(PciAddress(vf), "driver"))
    common = max(set(drivers.values()), key=list(drivers.values()).count, default=None)
    group = look.last(paths.pci(first, "iommu_group"))
    return {
        "vendor": look.hexadecimal(paths.pci(pf, "vendor")),
        "device": look.text(paths.pci(pf, "sriov_vf_device")),
        "subsystem_vendor": look.hexadecimal(paths.pci(first, "subsystem_vendor")),
        "subsystem_device": look.hexadecimal(paths.pci(first, "subsystem_device")),
        "class": look.hexadecimal(paths.pci(first, "class")),
        "driver": common,
        "drivers": {index: driver for index, driver in drivers.items() if driver != common},
        "iommu_group_first": int(group) if group is not None and group.isdecimal() else None,
    }


# -- vGPU frameworks


def _add_framework(look: _Look, address: PciAddress, found: Json, types: dict[str, Json]) -> None:
    first = look.last(paths.pci(address, "virtfn0"))
    for on, parent in (("pf", address), ("vf", PciAddress(first) if first else None)):
        if parent is None:
            continue
        kinds = look.names(paths.pci(parent, "mdev_supported_types"))
        if kinds:
            types["mdev_types"][str(address)] = [_mdev_type(look, parent, one) for one in kinds]
            found["mdev"] = {"on": on, "types_ref": str(address)}
    if first and look.door.exists(paths.pci(PciAddress(first), "nvidia", "creatable_vgpu_types")):
        found["vendor_vfio"] = {
            "on": "vf",
            "types_ref": str(address),
            "header": True,
            "files": look.names(paths.pci(PciAddress(first), "nvidia")),
            "homogeneous": True,
        }
        types["vgpu_types"][str(address)] = _listed_types(look, address)


def _mdev_type(look: _Look, parent: PciAddress, type_id: str) -> Json:
    def text(name: str) -> str | None:
        return look.text(paths.mdev_type(parent, type_id, name))

    description = text("description")
    size, most = _described(description, "framebuffer="), _described(description, "max_instance=")
    return {
        "id": type_id,
        "name": text("name"),
        "available_instances": look.number(paths.mdev_type(parent, type_id, "available_instances")),
        "device_api": text("device_api"),
        "description": description,
        "fb_mib": size,
        "max_instances": most,
    }


def _described(text: str | None, key: str) -> int | None:
    _, found, rest = (text or "").partition(key)
    digits = rest.partition(",")[0].strip().removesuffix("M")
    return int(digits) if found and digits.isdecimal() else None


def _listed_types(look: _Look, address: PciAddress) -> list[Json]:
    """Every type that any VF of the card lists now; with a vGPU on it, larger ones are missing."""
    rows: dict[int, Json] = {}
    for name in look.names(paths.pci(address)):
        vf = look.last(paths.pci(address, name)) if name.startswith("virtfn") else None
        if vf is None:
            continue
        text = look.text(paths.pci(PciAddress(vf), "nvidia", "creatable_vgpu_types")) or ""
        for line in text.splitlines():
            head, colon, label = line.partition(":")
            if colon and head.strip().isdecimal():
                rows.setdefault(int(head), {"id": int(head), "name": label.strip()})
    return [_sized(row) for _, row in sorted(rows.items())]


def _sized(row: Json) -> Json:
    """The nominal size that NVIDIA's names carry: A40-12Q is 12 GB."""
    tail = str(row["name"]).rpartition("-")[2]
    digits = "".join(one for one in tail if one.isdecimal())
    size = int(digits or 0) * 1024 or 512
    return row | {"fb_mib": size, "max_instances": 1}


def _mdevs(look: _Look) -> list[Json]:
    found = []
    for number, name in enumerate(look.names(paths.MDEV_DEVICES)):
        with suppress(OSError):
            parent = look.door.readlink(paths.mdev(name)).split("/")[-2]
            found.append(
                {
                    "uuid": str(uuid.uuid5(_NAMESPACE, str(number))),
                    "parent": parent,
                    "type": look.last(paths.mdev(name, "mdev_type")),
                }
            )
    return found


# -- NVML


def _nvml(door: Door, look: _Look, pci: list[Json], tables: dict[str, list[Json]]) -> Json | None:
    """What NVML says; where it lists a card's types, they are all of them."""
    with door.nvml() as library:
        if library is None:
            return None

        def ask(name: str, *arguments: Any) -> Any:
            with suppress(library.NVMLError, AttributeError):
                return getattr(library, name)(*arguments)
            return None

        count = ask("nvmlDeviceGetCount") or 0
        devices = []
        for index in range(count):
            handle = ask("nvmlDeviceGetHandleByIndex", index)
            devices.append(_nvml_device(ask, handle, index))
            kinds = _supported(ask, handle)
            address = _sysfs_address(devices[-1]["pci_bus_id"])
            if kinds and address in tables:
                tables[address] = kinds
        version = ask("nvmlSystemGetDriverVersion")
    vgpus = [one for function in pci for one in _vgpus(look, PciAddress(function["address"]))]
    return {"driver_version": version, "devices": devices, "vgpus": vgpus}


def _sysfs_address(bus_id: str | None) -> str | None:
    domain, _, rest = (bus_id or "").lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else None


def _supported(ask: Callable[..., Any], handle: Any) -> list[Json]:
    found = []
    for type_id in ask("nvmlDeviceGetSupportedVgpus", handle) or ():
        name = _plain(ask("nvmlVgpuTypeGetName", type_id))
        size = ask("nvmlVgpuTypeGetFramebufferSize", type_id)
        row = _sized({"id": int(type_id), "name": name}) if name else {"id": int(type_id)}
        most = ask("nvmlVgpuTypeGetMaxInstances", handle, type_id)
        if size is not None and "fb_mib" not in row:
            row["fb_mib"] = int(size) >> 20
        found.append(row | {"max_instances": most or 1})
    return found


def _add_running(look: _Look, pci: list[Json], tables: dict[str, list[Json]]) -> None:
    """A type that runs now and that no list shows: only its number is known."""
    for function in pci:
        rows = tables.get(function["address"])
        for one in _vgpus(look, PciAddress(function["address"])) if rows is not None else ():
            if rows is not None and all(row["id"] != one["type_id"] for row in rows):
                rows.append({"id": one["type_id"], "name": None, "fb_mib": 0, "max_instances": 1})


def _nvml_device(ask: Callable[..., Any], handle: Any, index: int) -> Json:
    info, memory = ask("nvmlDeviceGetPciInfo", handle), ask("nvmlDeviceGetMemoryInfo", handle)
    mode, mixed = (
        ask("nvmlDeviceGetMigMode", handle),
        ask("nvmlDeviceGetVgpuHeterogeneousMode", handle),
    )
    words = ("Disabled", "Enabled")
    virtualization = ask("nvmlDeviceGetVirtualizationMode", handle)
    host_mode = ask("nvmlDeviceGetHostVgpuMode", handle)
    names = ("None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA")
    bus_id = getattr(info, "busId", None)
    return {
        "index": index,
        "name": _plain(ask("nvmlDeviceGetName", handle)),
        "uuid": f"GPU-{uuid.uuid5(_NAMESPACE, f'gpu {index}')}",
        "pci_bus_id": _plain(bus_id),
        "minor": ask("nvmlDeviceGetMinorNumber", handle),
        "memory_total_mib": None if memory is None else int(memory.total) >> 20,
        "memory_used_mib": None if memory is None else int(memory.used) >> 20,
        "mig": {
            "current": None if mode is None else words[mode[0]],
            "pending": None if mode is None else words[mode[1]],
        },
        "virtualization_mode": None if virtualization is None else names[virtualization],
        "host_vgpu_mode": None if host_mode is None else ("Non SR-IOV", "SR-IOV")[host_mode],
        "vgpu_heterogeneous_mode": None if mixed is None else words[bool(mixed)],
    }


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _vgpus(look: _Look, pf: PciAddress) -> list[Json]:
    found = []
    for name in look.names(paths.pci(pf)):
        vf = look.last(paths.pci(pf, name)) if name.startswith("virtfn") else None
        if vf is None:
            continue
        current = look.number(paths.pci(PciAddress(vf), "nvidia", "current_vgpu_type"))
        if current:
            found.append(
                {
                    "pf": str(pf),
                    "vf": vf,
                    "type_id": current,
                    "placement_id": look.number(
                        paths.pci(PciAddress(vf), "nvidia", "placement_id")
                    ),
                    "gpu_instance_id": look.number(
                        paths.pci(PciAddress(vf), "nvidia", "gpu_instance_id")
                    ),
                }
            )
    return found
