"""What a check of a guest's XML asks about the host: every PCI function, not only the GPUs."""

from __future__ import annotations

import msgspec

from virtgpu.model.gpu import NumaNode
from virtgpu.model.pci import PciAddress
from virtgpu.model.pci_class import BRIDGES


class HostFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One PCI function. *class_code* is the six hex digits of its class, *vgpu_type* the text of
    `nvidia/current_vgpu_type` ("0" is none, None: the file is not there), *pf* the physical
    function of a virtual one."""

    address: PciAddress
    class_code: str = ""
    vendor_id: str = ""
    driver: str | None = None
    iommu_group: int | None = None
    numa_node: int | None = None
    pf: PciAddress | None = None
    vgpu_type: str | None = None

    @property
    def is_bridge(self) -> bool:
        """A host, ISA or PCI bridge, which no guest can have."""
        return self.class_code.startswith(BRIDGES)

    @property
    def is_on_vfio(self) -> bool:
        """Whether its driver serves VFIO: vfio-pci, a variant of it, or a vendor's own with a
        vGPU type set."""
        if self.vgpu_type is not None:
            return self.vgpu_type != "0"
        return self.driver is not None and "vfio" in self.driver


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """The host around the guest. *mdevs* maps a mediated device's UUID to its parent; *page_kib*
    are the sizes of huge pages that this kernel has, *phys_bits* the CPU's physical address bits,
    *cpus* the host's online CPUs as a list like `0-63`; None where the host does not say."""

    label: str
    functions: dict[PciAddress, HostFunction]
    mdevs: dict[str, PciAddress | None] = {}
    numa: tuple[NumaNode, ...] = ()
    cpus: str | None = None
    page_kib: tuple[int, ...] | None = None
    phys_bits: int | None = None

    def card(self, address: PciAddress) -> tuple[HostFunction, ...]:
        """All physical functions of a slot, sorted."""
        found = (one for one in self.functions.values() if one.address.card == address.card)
        return tuple(sorted((one for one in found if one.pf is None), key=lambda one: one.address))

    def group(self, number: int) -> tuple[HostFunction, ...]:
        """All functions of an IOMMU group, sorted."""
        found = (one for one in self.functions.values() if one.iommu_group == number)
        return tuple(sorted(found, key=lambda one: one.address))
