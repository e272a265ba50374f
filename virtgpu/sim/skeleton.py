"""What is on a simulated machine beside its PCI functions: modules, firmware, memory, processes."""

from __future__ import annotations

import zlib
from functools import partial

from virtgpu.sim.device import Device
from virtgpu.sim.profiles import Json, Profile
from virtgpu.sim.state import State
from virtgpu.sim.tree import Node, Tree

_EMPTY = (
    "sys/block",
    "sys/class/iommu",
    "sys/class/net",
    "sys/dev/block",
    "sys/dev/char",
    "sys/devices/system",
    "sys/devices/virtual/net",
    "sys/firmware",
    "sys/fs/cgroup",
    "sys/fs/fuse/connections",
    "sys/kernel/mm",
    "sys/kernel/security",
    "sys/module",
    "sys/power",
    "proc",
)


def build(tree: Tree, profile: Profile) -> None:
    """Everything that does not change."""
    for path in _EMPTY:
        tree.dir(path)
    tree.file(tree.dir("sys/module/virtgpu_sim"), "version", "1")
    for name, version in profile.modules.items():
        node = tree.dir(f"sys/module/{name}")
        if version is not None:
            tree.file(node, "version", str(version))
    for name, values in (profile.host.get("module_parameters") or {}).items():
        node = tree.dir(f"sys/module/{name}/parameters")
        for key, value in values.items():
            tree.file(node, key, str(value))
    if profile.host.get("iommu"):
        _add_iommu(tree)
    _add_firmware(tree, profile)
    for node_facts in profile.host.get("numa") or []:
        _add_memory_node(tree, node_facts)
    _add_proc(tree, profile)


def _add_iommu(tree: Tree) -> None:
    iommu = tree.dir("sys/devices/virtual/iommu/dmar0")
    tree.file(iommu, "uevent", "")
    tree.link(iommu, "subsystem", tree.dir("sys/class/iommu"))
    tree.link(tree.dir("sys/class/iommu"), "dmar0", iommu)


def _add_firmware(tree: Tree, profile: Profile) -> None:
    dmi = tree.dir("sys/devices/virtual/dmi/id")
    facts = {
        "product_uuid": _uuid_of(profile.name),
        "product_name": str(profile.host.get("product") or "simulated host"),
        "sys_vendor": "virtgpu",
        "modalias": "dmi:virtgpu",
    }
    for name, text in facts.items():
        tree.file(dmi, name, text)
    tree.file(dmi, "uevent", "MODALIAS=dmi:virtgpu")
    tree.link(dmi, "subsystem", tree.dir("sys/class/dmi"))
    tree.link(tree.dir("sys/class/dmi"), "id", dmi)
    found = profile.host.get("devicetree")
    if found:
        base = tree.dir("sys/firmware/devicetree/base")
        model, compatible = str(found.get("model") or ""), found.get("compatible") or []
        tree.file(base, "model", lambda: f"{model}\0")
        tree.file(base, "compatible", lambda: "".join(f"{one}\0" for one in compatible))


def _uuid_of(name: str) -> str:
    """A UUID that is always the same for one name."""
    digits = f"{zlib.crc32(name.encode()):08x}"
    return f"{digits}-0000-5000-8000-{digits}0000"


def _add_memory_node(tree: Tree, facts: Json) -> None:
    number = int(facts.get("id") or 0)
    node = tree.dir(f"sys/devices/system/node/node{number}")
    if facts.get("cpulist") is not None:
        tree.file(node, "cpulist", str(facts["cpulist"]))
    if facts.get("memory_mib") is not None:
        total = int(facts["memory_mib"]) * 1024
        # libnuma wants all three; what is in use nobody simulates.
        lines = (("MemTotal", total), ("MemFree", total), ("MemUsed", 0))
        text = "\n".join(f"Node {number} {name}: {value:>14} kB" for name, value in lines)
        tree.file(node, "meminfo", text)
    if facts.get("distances"):
        tree.file(node, "distance", " ".join(str(one) for one in facts["distances"]))


def _add_proc(tree: Tree, profile: Profile) -> None:
    kernel = tree.dir("proc/sys/kernel")
    for name, key in (("osrelease", "kernel"), ("arch", "arch")):
        if profile.host.get(key):
            tree.file(kernel, name, str(profile.host[key]))
    tree.dir("proc/driver")


def add_nvidia_proc(tree: Tree, profile: Profile, devices: dict[str, Device]) -> None:
    """What NVIDIA's driver shows in procfs of the cards that it has."""
    for address, device in devices.items():
        facts = profile.nvml_device(address)
        if facts is None or device.driver != "nvidia" or device.pf is not None:
            continue
        node = tree.dir(f"proc/driver/nvidia/gpus/{address}")
        minor, name = facts.get("minor"), facts.get("name")
        text = f"Model: \t\t {name}\nBus Location: \t {address}\nDevice Minor: \t {minor}"
        tree.file(node, "information", text)
        _add_unbind_lock(tree, node)


def _add_unbind_lock(tree: Tree, node: Node) -> None:
    lock = ["0"]
    tree.file(node, "unbindLock", partial(_text_of, lock), partial(lock.__setitem__, 0))


def add_drm(tree: Tree, device: Device) -> None:
    """The DRM and InfiniBand names of a function."""
    spec = device.spec
    if spec.get("drm"):
        node = tree.dir(f"drm/{spec['drm']}", device.node)
        tree.link(node, "device", device.node)
        tree.link(tree.dir("sys/class/drm"), str(spec["drm"]), node)
        _add_numbers(tree, node, (spec.get("intel_iov") or {}), "iov")
    if spec.get("ib_device"):
        node = tree.dir(f"infiniband/{spec['ib_device']}", device.node)
        tree.link(node, "device", device.node)
        tree.link(tree.dir("sys/class/infiniband"), str(spec["ib_device"]), node)


def _add_numbers(tree: Tree, at: Node, found: Json, name: str) -> None:
    """i915's tree of settings per function: `iov/pf/gt/…`, `iov/vfN/gt/…`."""
    if not found:
        return
    _add_values(tree, tree.dir(f"{name}/pf", at), found.get("pf") or {})
    for vf in found.get("vf_dirs") or []:
        _add_values(tree, tree.dir(f"{name}/{vf}", at), found.get("vf_template") or {})


def _add_values(tree: Tree, at: Node, values: Json) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _add_values(tree, tree.dir(name, at), value)
        elif value is not None:
            box = [str(value)]
            tree.file(at, name, partial(_text_of, box), partial(box.__setitem__, 0))


def _text_of(box: list[str]) -> str:
    return f"{box[0]}\n"


def add_xe(tree: Tree, device: Device) -> None:
    """xe's tree of settings below the driver (sysfs-driver-intel-xe-sriov)."""
    found = device.spec.get("xe_sriov_admin")
    if not found or device.driver != "xe":
        return
    # The path goes through the driver's link to the device, where the folder really is.
    base = tree.dir("sriov_admin", device.node)
    profile = found.get("profile") or {}
    for name in ("pf", *(found.get("vf_dirs") or [])):
        _add_values(tree, tree.dir(f"{name}/profile", base), profile)


def show_processes(tree: Tree, state: State) -> None:
    """/proc of the processes that have device files open."""
    for one in state.holders:
        node = tree.dir(f"proc/{one.pid}")
        tree.file(node, "comm", one.command[:15])
        tree.file(node, "stat", f"{one.pid} ({one.command[:15]}) S 1" + " 0" * 17 + " 4242 0 0")
        folder = tree.dir("fd", node)
        for number, name in enumerate(one.files, 3):
            tree.link(folder, str(number), name)


def forget_processes(tree: Tree) -> None:
    """Take all of them out of /proc."""
    proc = tree.dir("proc")
    for name in [name for name in proc.entries if name.isdecimal()]:
        tree.remove(proc.entries[name])
