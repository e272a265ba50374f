"""Any other maker's GPU on PCI: whole, or by VFs where it has some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from virtgpu.inventory import slicing
from virtgpu.inventory.reader import Reader
from virtgpu.inventory.vendor import Card, Facts, Slicing
from virtgpu.model.gpu import Function
from virtgpu.model.pci import PciAddress

name = "other"

# An accelerator (1200) of a maker that we do not know is not a GPU by its class alone.
_CLASSES = ("0300", "0302", "0380")

# Displays of a server's management controller and of hypervisors: no GPU for a guest.
_NO_GPU = frozenset(
    (
        "1a03",  # ASPEED
        "102b",  # Matrox G200
        "18ca",  # XGI
        "126f",  # Silicon Motion
        "19e5",  # Huawei iBMC
        "1013",  # Cirrus Logic
        "1234",  # QEMU standard VGA
        "1af4",  # virtio
        "1b36",  # QXL
        "15ad",  # VMware
        "1414",  # Hyper-V
        "80ee",  # VirtualBox
        "5853",  # Xen
    )
)
_TAKEN = frozenset(("10de", "1002", "8086"))


def claims(function: Function) -> bool:
    """A display of a maker without a module of its own, and no management console."""
    is_display = function.class_code.startswith(_CLASSES) and function.vendor_id != ""
    return is_display and function.vendor_id not in _NO_GPU | _TAKEN


def probe(reader: Reader, gpus: Sequence[Function]) -> Mapping[PciAddress, Facts]:
    """No library is asked."""
    return {}


def types(reader: Reader, card: Card, facts: Facts) -> Slicing:
    """Mediated devices or VFs, as the card's driver offers them."""
    mediated = slicing.by_mdev(reader, card)
    if mediated is not None:
        return mediated
    return slicing.plain(card, slicing.numvfs_switch(card))
