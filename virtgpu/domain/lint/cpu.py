"""VG6xx: the guest's CPUs and NUMA nodes against the host's, and the guest's IOMMU."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from virtgpu.domain.lint.model import Hit, Subject, on, rule
from virtgpu.domain.topology import number
from virtgpu.domain.values import list_of, numbers_of

_WITHOUT_EIM = 255


def _gpu_nodes(s: Subject) -> frozenset[int] | None:
    """The host nodes of the display devices given, None when one is not known."""
    if s.view is None:
        return None
    nodes: set[int] = set()
    for _, device in s.hostdevs:
        pci = device.pci if device.pci is not None else s.view.mdevs.get(device.mdev or "")
        known = None if pci is None else s.view.functions.get(pci)
        if known is None or not known.class_code.startswith("03"):
            continue
        if known.numa_node is None:
            return None
        nodes.add(known.numa_node)
    return frozenset(nodes) or None


@rule(
    "VG601",
    "pins-off-node",
    "warning",
    why="The guest's CPUs are pinned to another NUMA node than that of its GPU: each transfer"
    " crosses between sockets.",
    remedy="pin to the CPUs of the GPU's node: virtgpu gpu show ADDRESS",
    source="kernel Documentation/ABI/testing/sysfs-bus-pci, numa_node; NVIDIA vGPU deployment"
    " guides, NUMA",
)
def pins_off_node(s: Subject) -> Iterator[Hit]:
    nodes = _gpu_nodes(s)
    if nodes is None or s.view is None:
        return
    near: set[int] = set()
    for one in s.view.numa:
        if one.id in nodes:
            near |= numbers_of(one.cpulist) or set()
    for node in s.root.findall("cputune/vcpupin"):
        cpus = numbers_of(node.get("cpuset"))
        if near and cpus and not cpus & near:
            yield Hit(
                node,
                f"vCPU {node.get('vcpu')} is pinned to CPU {list_of(cpus)}; the GPU is on node"
                f" {list_of(nodes)} (CPUs {list_of(frozenset(near))})",
            )
            return


@rule(
    "VG602",
    "memory-off-node",
    "warning",
    why="The guest's memory is bound to another NUMA node than that of its GPU.",
    remedy="write the GPU's node into <numatune>",
    source="kernel Documentation/ABI/testing/sysfs-bus-pci, numa_node",
)
def memory_off_node(s: Subject) -> Iterator[Hit]:
    nodes = _gpu_nodes(s)
    node = s.root.find("numatune/memory")
    chosen = None if node is None else numbers_of(node.get("nodeset"))
    if node is not None and nodes and chosen and not chosen & nodes:
        yield Hit(node, f"memory of node {list_of(chosen)}; the GPU is on node {list_of(nodes)}")


@rule(
    "VG603",
    "cpu-absent",
    "error",
    why="A vCPU is pinned to CPUs that the host does not have, or that are offline.",
    remedy="choose from the CPUs of the host: lscpu --online --extended",
    source="sched_setaffinity(2): EINVAL when no CPU of the mask is there",
)
def cpu_absent(s: Subject) -> Iterator[Hit]:
    there = None if s.view is None else numbers_of(s.view.cpus)
    if not there:
        return
    for node in (*s.root.findall("cputune/vcpupin"), *s.root.findall("cputune/emulatorpin")):
        cpus = numbers_of(node.get("cpuset"))
        if cpus and not cpus & there:
            yield Hit(node, f"pinned to CPU {list_of(cpus)}; the host has {list_of(there)}")


@rule(
    "VG604",
    "too-many-address-bits",
    "error",
    why="The guest is told more physical address bits than the host's CPU has. KVM may let it"
    " start; the guest's firmware then puts large BARs where nothing answers.",
    remedy="write <maxphysaddr mode='passthrough'/>",
    source="formatdomain, maxphysaddr; QEMU target/i386 host_cpu_max_phys_bits",
    versions="libvirt 8.7 and newer",
)
def too_many_address_bits(s: Subject) -> Iterator[Hit]:
    node = s.root.find("cpu/maxphysaddr[@mode='emulate']")
    bits = None if node is None else number(node.get("bits"))
    there = None if s.view is None else s.view.phys_bits
    if node is not None and bits is not None and there is not None and bits > there:
        yield Hit(node, f"{bits} address bits for the guest, {there} of the host")


@rule(
    "VG605",
    "topology-mismatch",
    "error",
    why="Sockets, dies, cores and threads do not multiply to the number of vCPUs.",
    remedy="correct <vcpu> or <topology>",
    source="libvirt 9.0 qemu_validate.c: 'CPU topology doesn't match maximum vcpu count'",
)
def topology_mismatch(s: Subject) -> Iterator[Hit]:
    node, vcpus = s.root.find("cpu/topology"), s.vcpus()
    if node is None or vcpus is None or not s.is_qemu:
        return
    names = ("sockets", "dies", "clusters", "cores", "threads")
    parts = [number(node.get(name, "1")) for name in names]
    if None not in parts and prod(one for one in parts if one is not None) != vcpus:
        said = prod(one for one in parts if one is not None)
        yield Hit(node, f"the topology has {said} CPUs, and <vcpu> is {vcpus}")


@rule(
    "VG606",
    "maxphysaddr-bits",
    "error",
    why="mode='emulate' must say the bits, mode='passthrough' takes the host's.",
    remedy="write bits= with mode='emulate' only",
    source="libvirt 9.0 qemu_validate.c: 'if using CPU maximum physical address mode='%s', bits="
    " must be specified too'",
    versions="libvirt 8.7 and newer",
)
def maxphysaddr_bits(s: Subject) -> Iterator[Hit]:
    node = s.root.find("cpu/maxphysaddr")
    if node is not None and (node.get("mode") == "emulate") != (node.get("bits") is not None):
        yield Hit(node, f"maxphysaddr of mode {node.get('mode')!r} and bits {node.get('bits')!r}")


@rule(
    "VG607",
    "many-vcpus",
    "error",
    why="More than 255 vCPUs need interrupts in x2APIC form, which on q35 the emulated IOMMU's"
    " extended interrupt mode brings.",
    remedy="write <iommu model='intel'><driver intremap='on' eim='on'/></iommu> and"
    " <ioapic driver='qemu'/>",
    source="libvirt 9.0 qemu_validate.c: 'more than %d vCPUs require extended interrupt mode'",
)
def many_vcpus(s: Subject) -> Iterator[Hit]:
    vcpus = s.vcpus()
    node = s.root.find("vcpu")
    if node is None or vcpus is None or vcpus <= _WITHOUT_EIM or not s.is_qemu:
        return
    has_eim = any(on(iommu.find("driver"), "eim") for iommu in s.of("iommu"))
    if s.is_pc or (s.is_q35 and not has_eim):
        yield Hit(node, f"{vcpus} vCPUs without extended interrupt mode")


@rule(
    "VG608",
    "interrupt-remapping",
    "error",
    why="Interrupt remapping needs the I/O APIC in QEMU, not in KVM, and extended interrupt mode"
    " needs remapping.",
    remedy="write <ioapic driver='qemu'/> into <features>, and intremap='on' beside eim='on'",
    source="libvirt 9.0 domain_validate.c: 'IOMMU interrupt remapping requires split I/O APIC'",
)
def interrupt_remapping(s: Subject) -> Iterator[Hit]:
    split = s.root.find("features/ioapic[@driver='qemu']") is not None
    for iommu in s.of("iommu"):
        driver = iommu.find("driver")
        if on(driver, "intremap") and not split:
            yield Hit(iommu, "interrupt remapping without <ioapic driver='qemu'/>")
        if on(driver, "eim") and not on(driver, "intremap"):
            yield Hit(iommu, "extended interrupt mode (eim) without intremap='on'")


@rule(
    "VG609",
    "iommu-machine",
    "error",
    why="QEMU's Intel and AMD IOMMUs sit on q35's root complex; the i440fx machine has none.",
    remedy="write machine='q35'",
    source="libvirt 9.0 qemu_validate.c: 'IOMMU device: '%s' is only supported with Q35 machines'",
)
def iommu_machine(s: Subject) -> Iterator[Hit]:
    for iommu in s.of("iommu"):
        if s.is_pc and iommu.get("model") in ("intel", "amd"):
            yield Hit(iommu, f"an IOMMU of model {iommu.get('model')!r} on machine {s.machine!r}")


@rule(
    "VG610",
    "caching-mode",
    "error",
    why="The emulated Intel IOMMU tells VFIO of new mappings in caching mode only; QEMU refuses a"
    " passed through device behind it otherwise.",
    remedy="write caching_mode='on' at the IOMMU's driver",
    source="QEMU hw/i386/intel_iommu.c: 'We need to set caching-mode=on for intel-iommu to enable"
    " device assignment'",
)
def caching_mode(s: Subject) -> Iterator[Hit]:
    for iommu in s.of("iommu"):
        if (
            iommu.get("model") == "intel"
            and s.passed
            and not on(iommu.find("driver"), "caching_mode")
        ):
            yield Hit(iommu, "passed through devices behind an Intel IOMMU without caching mode")


@rule(
    "VG611",
    "expander-node",
    "error",
    why="An expander bus is put on a NUMA node of the guest, and the guest has no such node.",
    remedy="describe the node in <cpu><numa>",
    source="libvirt 9.0 domain_postparse.c: a controller's node must be in <cpu><numa>",
)
def expander_node(s: Subject) -> Iterator[Hit]:
    count = len(s.cells())
    for node in s.of("controller"):
        wanted = number(node.findtext("target/node"))
        if wanted is not None and wanted >= count:
            yield Hit(node, f"controller {node.get('index')} is on guest node {wanted}, of {count}")


@rule(
    "VG612",
    "host-cpu-without-kvm",
    "error",
    why="The host's CPU can be passed through only to a guest that KVM runs.",
    remedy="write type='kvm' at <domain>, or leave <cpu> out",
    source="libvirt 9.0 qemu_process.c: 'CPU mode '%s' for %s %s domain on %s host is not"
    " supported by hypervisor'",
)
def host_cpu_without_kvm(s: Subject) -> Iterator[Hit]:
    node = s.root.find("cpu[@mode='host-passthrough']")
    if node is not None and s.root.get("type") == "qemu":
        yield Hit(node, "host-passthrough in a domain of type qemu")


@rule(
    "VG613",
    "guest-iommu",
    "note",
    why="With a guest IOMMU each passed through device has an address space of its own, so the"
    " locked memory is counted once a device. It is meant for nested guests and user space"
    " drivers; others pay for nothing.",
    remedy="remove <iommu> unless the guest itself passes devices on",
    source="https://github.com/kubevirt/kubevirt/pull/17805",
)
def guest_iommu(s: Subject) -> Iterator[Hit]:
    for iommu in s.of("iommu"):
        if len(s.passed) > 1:
            yield Hit(iommu, f"a guest IOMMU: {len(s.passed)} devices lock the memory once each")
