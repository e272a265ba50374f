"""VG9xx: what keeps a guest from migrating. Notes: it may never be meant to."""

from __future__ import annotations

from collections.abc import Iterator

from virtgpu.domain.lint.model import Hit, Subject, rule
from virtgpu.domain.read import HostDevice


@rule(
    "VG901",
    "pci-device-stays",
    "note",
    why="A whole PCI device cannot be moved to another host while the guest runs.",
    remedy="shut the guest down to move it, or detach the device first: virtgpu vm detach",
    source="libvirt 9.0 qemu_migration.c: 'cannot migrate a domain with <hostdev ...>'",
    versions="every libvirt; a VFIO variant driver that can migrate: libvirt 8.10 and newer",
)
def pci_device_stays(s: Subject) -> Iterator[Hit]:
    for node, device in s.hostdevs:
        is_teamed = node.find("teaming") is not None
        if device.pci is not None and not is_teamed and not _is_variant(s, device):
            yield Hit(node, f"{device.key} keeps the guest on this host")


def _is_variant(s: Subject, device: HostDevice) -> bool:
    """Whether the host has the device on a VFIO driver of its vendor."""
    known = s.host_function(device)
    return known is not None and known.is_on_vfio and known.driver != "vfio-pci"


@rule(
    "VG902",
    "vgpu-moves-to-its-kind",
    "note",
    why="A vGPU migrates only where the vendor's driver supports it, to the same type on the same"
    " kind of GPU, with drivers that allow it.",
    remedy="check that the other host has the type free: virtgpu slice types",
    source="NVIDIA vGPU software guide, Migrating a VM configured with vGPU",
)
def vgpu_moves_to_its_kind(s: Subject) -> Iterator[Hit]:
    for node, device in s.hostdevs:
        is_vgpu = device.mdev is not None and node.get("model") in (None, "vfio-pci")
        if is_vgpu or _is_variant(s, device):
            yield Hit(node, f"{device.key} migrates to the same vGPU type only, if at all")


@rule(
    "VG903",
    "host-cpu-stays",
    "note",
    why="host-passthrough gives the guest this host's CPU; the other host must have the same, with"
    " the same microcode and kernel.",
    remedy="write <cpu mode='host-model'/> or a named model",
    source="formatdomain, cpu mode host-passthrough",
)
def host_cpu_stays(s: Subject) -> Iterator[Hit]:
    node = s.root.find("cpu[@mode='host-passthrough']")
    if node is not None:
        yield Hit(node, "the CPU is this host's (host-passthrough)")


@rule(
    "VG904",
    "invariant-tsc-stays",
    "note",
    why="QEMU refuses to migrate a guest that was promised an invariant TSC.",
    remedy="leave invtsc out, or give the timer tsc a frequency",
    source="libvirt 9.0 qemu_migration.c: 'domain has 'invtsc' CPU feature but ...'",
)
def invariant_tsc_stays(s: Subject) -> Iterator[Hit]:
    node = s.root.find("cpu/feature[@name='invtsc']")
    has_frequency = s.root.find("clock/timer[@name='tsc'][@frequency]") is not None
    if node is not None and node.get("policy") in (None, "require", "force") and not has_frequency:
        yield Hit(node, "invtsc without a fixed frequency")


@rule(
    "VG905",
    "confidential-stays",
    "note",
    why="The memory of a confidential guest cannot be read, so it cannot be sent.",
    remedy="shut the guest down to move it",
    source="QEMU docs/system/i386/amd-memory-encryption.rst, Live Migration; TDX: not supported",
)
def confidential_stays(s: Subject) -> Iterator[Hit]:
    node = s.root.find("launchSecurity")
    if node is not None:
        yield Hit(node, f"a confidential guest ({node.get('type')}) does not migrate")


@rule(
    "VG906",
    "shared-folder-stays",
    "note",
    why="A 9p folder of the host blocks migration while it is mounted.",
    remedy="unmount it in the guest first, or use a network file system",
    source="QEMU hw/9pfs/9p.c: 'Migration is disabled when VirtFS export path ... is mounted'",
)
def shared_folder_stays(s: Subject) -> Iterator[Hit]:
    for node in s.of("filesystem"):
        driver = node.find("driver")
        is_9p = driver is None or driver.get("type") in (None, "path", "handle")
        if s.is_qemu and is_9p and node.get("type") in (None, "mount"):
            yield Hit(node, "a shared folder (9p) of this host")
