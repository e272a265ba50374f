"""VG5xx: the guest's memory, which a passed through device pins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lxml import etree

from virtgpu.domain.lint.model import Hit, Subject, on, rule
from virtgpu.domain.topology import number
from virtgpu.domain.values import list_of, numbers_of, scaled, size, size_text

_GIB = 1 << 30
_COUNTS_DEVICES = 8_007_000  # libvirt 8.7.0: the limit grows with the devices


def pinned_bytes(s: Subject) -> int | None:
    """What the devices pin, in bytes: the guest's memory, once for each of them when the guest
    has an IOMMU of its own (its address spaces are then counted each).

    libvirt lets QEMU lock that and 1 GiB for I/O. None when the memory is not said or nothing is
    passed through. Source: libvirt 9.0 qemu_domain.c, qemuDomainGetMemLockLimitBytes, for x86.
    """
    memory = _memory(s)
    devices = len(s.passed)
    if memory is None or not devices:
        return None
    is_old = s.target.libvirt is not None and s.target.libvirt < _COUNTS_DEVICES
    times = devices if s.has("iommu") and not is_old else 1
    return times * memory


def _memory(s: Subject) -> int | None:
    """What the guest starts with: <memory>, or its NUMA nodes and DIMMs where it has nodes
    (virDomainDefPostParseMemory). <maxMemory> is room for later: the limit grows then."""
    parts = [size_of_cell(cell) for cell in s.cells()]
    if not parts:
        return size(s.root.find("memory"))
    parts += [size(node.find("target/size")) for node in s.of("memory")]
    return None if None in parts else sum(one for one in parts if one is not None)


def size_of_cell(cell: etree._Element) -> int | None:
    """The memory of a guest NUMA node."""
    return scaled(cell.get("memory"), cell.get("unit", "KiB"))


@rule(
    "VG501",
    "locked-memory",
    "error",
    why="A device that reads and writes memory by itself needs all of it in place, and QEMU must"
    " be allowed to lock it. hard_limit caps what it may lock; the guest does not start.",
    remedy="remove <hard_limit>: libvirt sets the limit that is needed",
    source="https://github.com/kubevirt/kubevirt/pull/17805; libvirt 9.0 qemu_domain.c",
    versions="every libvirt; from 8.7 on it counts the devices when the guest has an IOMMU",
)
def locked_memory(s: Subject) -> Iterator[Hit]:
    node = s.root.find("memtune/hard_limit")
    limit, pinned = size(node), pinned_bytes(s)
    if node is None or limit is None or pinned is None:
        return
    needed = pinned + _GIB
    if limit < needed:
        yield Hit(
            node,
            f"hard_limit is {size_text(limit)} ({limit} bytes); {len(s.passed)} passed through"
            f" devices need {size_text(needed)} ({needed} bytes) of locked memory",
            # The last GiB is libvirt's own margin: a guest may do with less of it.
            severity=None if limit <= pinned else "warning",
        )


@rule(
    "VG502",
    "balloon-with-vfio",
    "warning",
    why="Memory that a device may reach is pinned: QEMU holds the balloon still as long as one is"
    " there. The guest pays for a device that does nothing.",
    remedy="write <memballoon model='none'/>",
    source="https://github.com/qemu/qemu/commit/c65ee433153b5925e183a00ebf568e160077c694",
    versions="QEMU 3.1 and newer; before, an inflated balloon lost the guest's memory",
)
def balloon_with_vfio(s: Subject) -> Iterator[Hit]:
    if not s.still or not s.is_qemu:
        return
    balloons = list(s.of("memballoon"))
    for node in balloons:
        if node.get("model") != "none":
            yield Hit(node, "a memory balloon beside a passed through device", fix=_none(node))
    if not balloons:
        holder = s.still[0].getparent()
        assert holder is not None
        yield Hit(holder, "libvirt adds a memory balloon, which cannot move here", severity="note")


def _none(node: etree._Element) -> Callable[[], None]:
    def mend() -> None:
        for name in list(node.attrib):
            del node.attrib[name]
        node.set("model", "none")
        for child in list(node):
            node.remove(child)
        node.text = None

    return mend


@rule(
    "VG503",
    "ballooned-start",
    "warning",
    why="currentMemory below memory is reached by inflating the balloon, which cannot be done"
    " beside a passed through device: the host gives all of it, and counts with less.",
    remedy="write the same amount into both",
    source="formatdomain, currentMemory; QEMU commit c65ee433",
)
def ballooned_start(s: Subject) -> Iterator[Hit]:
    node = s.root.find("currentMemory")
    now, most = size(node), size(s.root.find("memory"))
    if node is None or not s.still or not s.is_qemu or now is None or most is None:
        return
    if 0 < now < most:
        yield Hit(node, f"currentMemory is {size_text(now)} of {size_text(most)}, all of it pinned")


@rule(
    "VG504",
    "free-page-reporting",
    "note",
    why="Pages that the guest reports free stay pinned for the device: nothing comes back.",
    remedy="remove freePageReporting",
    source="QEMU commit c65ee433: VFIO holds ballooning still, free page reporting with it",
)
def free_page_reporting(s: Subject) -> Iterator[Hit]:
    for node in s.of("memballoon"):
        if s.still and on(node, "freePageReporting"):
            yield Hit(node, "freePageReporting='on' beside a passed through device")


def _pages(s: Subject) -> list[etree._Element]:
    return s.root.findall("memoryBacking/hugepages/page")


@rule(
    "VG505",
    "hugepages-on-demand",
    "error",
    why="Huge pages are taken when the guest starts; libvirt refuses to have them taken on demand.",
    remedy="write <allocation mode='immediate'/>, or remove <hugepages>",
    source="libvirt 9.0 qemu_validate.c: 'hugepages are not allowed with memory allocation"
    " ondemand'",
)
def hugepages_on_demand(s: Subject) -> Iterator[Hit]:
    node = s.root.find("memoryBacking/allocation[@mode='ondemand']")
    if node is not None and s.root.find("memoryBacking/hugepages") is not None:
        yield Hit(node, "huge pages with allocation on demand")


@rule(
    "VG506",
    "hugepages-anonymous",
    "error",
    why="Huge pages come from a file system (hugetlbfs) or a memfd, not from anonymous memory.",
    remedy="remove <source type='anonymous'/>",
    source="libvirt 9.0 qemu_validate.c: 'hugepages are not allowed with anonymous memory source'",
)
def hugepages_anonymous(s: Subject) -> Iterator[Hit]:
    node = s.root.find("memoryBacking/source[@type='anonymous']")
    if node is not None and s.root.find("memoryBacking/hugepages") is not None:
        yield Hit(node, "huge pages from an anonymous source")


@rule(
    "VG507",
    "hugepage-size",
    "error",
    why="The host's kernel has no huge pages of that size.",
    remedy="choose a size of /sys/kernel/mm/hugepages (1 GiB pages: default_hugepagesz= at boot)",
    source="libvirt 9.0 qemu_conf.c: 'Unable to find any usable hugetlbfs mount for %llu KiB'",
)
def hugepage_size(s: Subject) -> Iterator[Hit]:
    if s.view is None or s.view.page_kib is None:
        return
    for node in _pages(s):
        wanted = scaled(node.get("size"), node.get("unit", "KiB"))
        if wanted is None or wanted // 1024 in s.view.page_kib:
            continue
        sizes = ", ".join(size_text(kib * 1024) for kib in s.view.page_kib)
        yield Hit(node, f"huge pages of {size_text(wanted)}; the host has {sizes}")


@rule(
    "VG508",
    "hugepage-nodes",
    "error",
    why="Pages of two sizes are given for one guest node, or for all of them twice.",
    remedy="give each node one size",
    source="libvirt 9.0 qemu_validate.c and numa_conf.c: nodesets of pages may not intersect",
)
def hugepage_nodes(s: Subject) -> Iterator[Hit]:
    taken: set[int] = set()
    masters = 0
    for node in _pages(s):
        nodes = numbers_of(node.get("nodeset")) if node.get("nodeset") else None
        masters += node.get("nodeset") is None
        if masters > 1 or (nodes and nodes & taken):
            yield Hit(node, "a guest node gets huge pages twice")
            return
        taken |= nodes or set()


@rule(
    "VG509",
    "hugepage-node-absent",
    "error",
    why="The nodeset of huge pages counts the guest's own NUMA nodes, and it has no such node.",
    remedy="remove nodeset, or describe the nodes in <cpu><numa>",
    source="libvirt 9.0 qemu_command.c: 'hugepages: node %zd not found'",
)
def hugepage_node_absent(s: Subject) -> Iterator[Hit]:
    count = max(1, len(s.cells()))
    for node in _pages(s):
        nodes = numbers_of(node.get("nodeset")) if node.get("nodeset") else None
        if nodes and max(nodes) >= count:
            yield Hit(node, f"huge pages for guest node {max(nodes)}, of {count}")


@rule(
    "VG510",
    "node-absent",
    "error",
    why="The guest's memory is to come from a NUMA node that the host does not have.",
    remedy="choose nodes of the host: numactl --hardware",
    source="libvirt 9.0 virnuma.c: 'NUMA node %d is unavailable'",
)
def node_absent(s: Subject) -> Iterator[Hit]:
    if s.view is None or not s.view.numa:
        return
    there = frozenset(one.id for one in s.view.numa)
    for node in (*s.root.findall("numatune/memory"), *s.root.findall("numatune/memnode")):
        missing = (numbers_of(node.get("nodeset")) or frozenset()) - there
        if missing:
            yield Hit(node, f"memory of node {list_of(missing)}; the host has {list_of(there)}")


@rule(
    "VG511",
    "guest-node-absent",
    "error",
    why="A memnode places one of the guest's own NUMA nodes, and the guest has no such node.",
    remedy="describe the node in <cpu><numa>, or use <memory> of <numatune>",
    source="libvirt 9.0 numa_conf.c: 'Element 'memnode' is invalid without any guest NUMA node'",
)
def guest_node_absent(s: Subject) -> Iterator[Hit]:
    count = len(s.cells())
    for node in s.root.findall("numatune/memnode"):
        cell = number(node.get("cellid"))
        if cell is not None and cell >= count:
            yield Hit(node, f"memnode for guest node {cell}, of {count}")


@rule(
    "VG512",
    "locked-without-limit",
    "warning",
    why="<locked/> lets QEMU lock memory without any limit: a guest that makes it allocate can take"
    " the host's memory. VFIO does not need it.",
    remedy="remove <locked/>, or give <memtune><hard_limit>",
    source="formatdomain, locked: must be used with hard_limit",
)
def locked_without_limit(s: Subject) -> Iterator[Hit]:
    node = s.root.find("memoryBacking/locked")
    if node is not None and s.is_qemu and s.root.find("memtune/hard_limit") is None:
        yield Hit(node, "<locked/> without a <hard_limit>")


@rule(
    "VG513",
    "virtiofs-memory",
    "error",
    why="virtiofs is another process that reads the guest's memory: it must be shared.",
    remedy="write <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>",
    source="libvirt 9.0 qemu_validate.c: ''virtiofs' requires shared memory'",
)
def virtiofs_memory(s: Subject) -> Iterator[Hit]:
    is_shared = s.root.find("memoryBacking/access[@mode='shared']") is not None
    cells = s.cells()
    if is_shared or (cells and all(cell.get("memAccess") == "shared" for cell in cells)):
        return
    for node in s.of("filesystem"):
        driver = node.find("driver")
        if driver is not None and driver.get("type") == "virtiofs":
            yield Hit(node, "virtiofs without shared memory")


@rule(
    "VG514",
    "limit-below-memory",
    "warning",
    why="hard_limit counts all of QEMU, not only the guest's memory. Below it the kernel ends the"
    " guest when it uses what it was promised.",
    remedy="remove <hard_limit>",
    source="formatdomain, hard_limit: users are strongly advised not to set a limit",
)
def limit_below_memory(s: Subject) -> Iterator[Hit]:
    node = s.root.find("memtune/hard_limit")
    limit, memory = size(node), size(s.root.find("memory"))
    if node is None or limit is None or memory is None or not s.is_qemu or s.passed:
        return  # beside passed through devices VG501 says more
    if limit <= memory:
        yield Hit(node, f"hard_limit {size_text(limit)} is not above the guest's memory")
