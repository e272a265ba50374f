"""Network functions that a guest can have beside its GPU (`--nic vf`).

No interface name is asked for: a VF that is bound elsewhere has none, and that is normal
(https://github.com/canonical/lxd/pull/8517).
"""

from __future__ import annotations

from virtgpu.host import paths
from virtgpu.inventory import pci, sriov
from virtgpu.inventory.holders import Holders
from virtgpu.inventory.pci import Bus, Node
from virtgpu.inventory.reader import Reader, number
from virtgpu.model.gpu import Nic
from virtgpu.model.pci import PciAddress


def read(reader: Reader, bus: Bus, holders: Holders) -> tuple[Nic, ...]:
    """Every NIC that has an IOMMU group, each PF followed by its VFs."""
    found = []
    for node in bus.networks:
        bridges = pci.bridges(reader, node.address)
        for one, pf in ((node.address, None), *((vf, node.address) for _, vf in node.virtfns)):
            nic = _nic(reader, node, one, pf, bridges, holders)
            if nic.iommu_group is not None:
                found.append(nic)
    return tuple(found)


def _nic(
    reader: Reader,
    node: Node,
    one: PciAddress,
    pf: PciAddress | None,
    bridges: tuple[PciAddress, ...],
    holders: Holders,
) -> Nic:
    group = number(reader.last(paths.pci(one, "iommu_group")))
    names = node.names if pf is None else frozenset(reader.names(paths.pci(one)))
    return Nic(
        address=one,
        pf=pf,
        driver=reader.last(paths.pci(one, "driver")),
        numa_node=pci.numa_node(reader, one),
        iommu_group=group,
        bridges=bridges,
        holders=holders.of_vfio(group, sriov.vfio_cdev(reader, one, names)),
    )
