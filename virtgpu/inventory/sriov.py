"""The SR-IOV capability of a PF, and its virtual functions."""

from __future__ import annotations

from virtgpu.host import paths
from virtgpu.inventory.holders import Holders
from virtgpu.inventory.pci import Node, driver_override
from virtgpu.inventory.reader import Reader, hex_id, number
from virtgpu.model.gpu import Function, Sriov, Vf
from virtgpu.model.pci import PciAddress


def read(reader: Reader, node: Node) -> Sriov | None:
    """The capability; None where there is none.

    A total above zero proves nothing: a T4 has the capability with VF device id 0000 and no use.
    """
    if "sriov_totalvfs" not in node.names:
        return None
    total = reader.number(paths.pci(node.address, "sriov_totalvfs")) or 0
    device = _optional(reader, node, "sriov_vf_device")
    return Sriov(
        total_vfs=total,
        num_vfs=_num_vfs(reader, node),
        vf_device_id=hex_id(device),
        offset=number(_optional(reader, node, "sriov_offset")),
        stride=number(_optional(reader, node, "sriov_stride")),
        usable=total > 0 and (device is None or hex_id(device) not in (None, "0000")),
    )


def _num_vfs(reader: Reader, node: Node) -> int:
    # While a write of 0 waits for the holder of a VF, reading sriov_numvfs hangs in D state too;
    # the links of the VFs say as much and never hang.
    if node.virtfns:
        return len(node.virtfns)
    return number(_optional(reader, node, "sriov_numvfs")) or 0


def _optional(reader: Reader, node: Node, name: str) -> str | None:
    return reader.text(paths.pci(node.address, name)) if name in node.names else None


def vf_entries(reader: Reader, node: Node) -> dict[PciAddress, frozenset[str]]:
    """What each VF's directory lists; a VF that its link names and that has no `physfn`
    (gone meanwhile) lists nothing."""
    entries = {}
    for _, vf in node.virtfns:
        names = frozenset(reader.names(paths.pci(vf)))
        entries[vf] = names if "physfn" in names else frozenset()
    return entries


def read_vfs(
    reader: Reader,
    node: Node,
    pf: Function,
    sriov: Sriov | None,
    entries: dict[PciAddress, frozenset[str]],
    holders: Holders,
) -> tuple[Vf, ...]:
    """The VFs by number, with ids, driver, group and who holds them."""
    device = sriov.vf_device_id if sriov is not None else None
    return tuple(
        _vf(reader, index, vf, entries[vf], (pf.vendor_id, device), holders)
        for index, vf in node.virtfns
    )


def _vf(
    reader: Reader,
    index: int,
    vf: PciAddress,
    names: frozenset[str],
    ids: tuple[str, str | None],
    holders: Holders,
) -> Vf:
    if not names:
        return Vf(address=vf, index=index)
    # The kernel copies a VF's ids from its PF (drivers/pci/iov.c, pci_iov_scan_device): no need
    # to read them once per VF.
    vendor, device = ids
    if device is None:
        device = hex_id(reader.text(paths.pci(vf, "device")))
    group = number(reader.last(paths.pci(vf, "iommu_group")))
    return Vf(
        address=vf,
        index=index,
        vendor_id=vendor,
        device_id=device,
        driver=reader.last(paths.pci(vf, "driver")) if "driver" in names else None,
        driver_override=driver_override(reader, vf) if "driver_override" in names else None,
        iommu_group=group,
        holders=holders.of_vfio(group, vfio_cdev(reader, vf, names)),
    )


def vfio_cdev(reader: Reader, one: PciAddress, names: frozenset[str]) -> str | None:
    """`vfio3` of /dev/vfio/devices/vfio3, where the function has such a device."""
    if "vfio-dev" not in names:
        return None
    found = reader.names(paths.pci(one, "vfio-dev"))
    return min(found) if found else None
