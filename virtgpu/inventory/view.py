"""The host as a guest's XML sees it: one flat reading of the PCI bus, mdevs and memory."""

from __future__ import annotations

from virtgpu.host import paths
from virtgpu.host.door import Door
from virtgpu.inventory import pci, topology
from virtgpu.inventory.reader import Reader, address, hex_id, number
from virtgpu.model.pci import PciAddress
from virtgpu.model.view import HostFunction, HostView


def read_view(door: Door) -> HostView:
    """Read it; nothing is written and no device is woken (only configuration attributes)."""
    reader = Reader(door)
    found = (address(name) for name in reader.names(paths.PCI_DEVICES))
    functions = {one: _function(reader, one) for one in found if one is not None}
    return HostView(
        label=door.label,
        functions=functions,
        mdevs={name.lower(): _parent(reader, name) for name in reader.names(paths.MDEV_DEVICES)},
        numa=topology.read(reader),
        cpus=reader.text(paths.CPUS_ONLINE) or None,
        page_kib=_page_sizes(reader),
        phys_bits=_phys_bits(reader),
    )


def _function(reader: Reader, one: PciAddress) -> HostFunction:
    return HostFunction(
        address=one,
        class_code=hex_id(reader.text(paths.pci(one, "class"))) or "",
        vendor_id=hex_id(reader.text(paths.pci(one, "vendor"))) or "",
        driver=reader.last(paths.pci(one, "driver")),
        iommu_group=number(reader.last(paths.pci(one, "iommu_group"))),
        numa_node=pci.numa_node(reader, one),
        pf=address(reader.last(paths.pci(one, "physfn")) or ""),
        vgpu_type=reader.text(paths.pci(one, "nvidia", "current_vgpu_type")),
    )


def _parent(reader: Reader, name: str) -> PciAddress | None:
    """An mdev's parent is the directory above its own."""
    above = (reader.link(paths.mdev(name)) or "").split("/")[:-1]
    return address(above[-1]) if above else None


def _page_sizes(reader: Reader) -> tuple[int, ...] | None:
    names = reader.names(paths.HUGE_PAGES)
    sizes = (number(name.removeprefix("hugepages-").removesuffix("kB")) for name in names)
    return tuple(sorted(size for size in sizes if size is not None)) or None


def _phys_bits(reader: Reader) -> int | None:
    """`address sizes : 46 bits physical, 48 bits virtual` of /proc/cpuinfo (x86 only)."""
    for line in (reader.text(paths.CPU_INFO) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "address sizes":
            return number(value.split()[0] if value.split() else None)
    return None
