"""What a guest gets, in libvirt's terms but before any XML."""

from __future__ import annotations

import msgspec

from virtgpu.model.gpu import Mechanism
from virtgpu.model.pci import PciAddress


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """One slice as host devices of a domain.

    PCI mechanisms fill *functions* (several for a whole multi-function card, which then share one
    guest slot) and *managed*; mediated devices fill *mdev*. *slice_id* goes into the alias
    `ua-virtgpu-<slice_id>`, *request* and *why* into the metadata element. *numa_node* is where
    the GPU is, None when the host does not say.
    """

    slice_id: str
    mechanism: Mechanism
    request: str
    gpu: PciAddress
    functions: tuple[PciAddress, ...] = ()
    managed: bool = True
    mdev: str | None = None
    type_name: str | None = None
    framebuffer_mib: int | None = None
    numa_node: int | None = None
    why: str | None = None
