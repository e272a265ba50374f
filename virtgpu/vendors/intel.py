"""Intel: SR-IOV VFs of i915 and xe, and GVT-g mediated devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from virtgpu.inventory import slicing
from virtgpu.inventory.reader import Reader
from virtgpu.inventory.vendor import Card, Facts, Slicing
from virtgpu.model.gpu import Function
from virtgpu.model.pci import PciAddress

name = "intel"

# Not 1200: Intel's accelerators of that class are NPUs.
_CLASSES = ("0300", "0302", "0380")

# What people call these cards, for output and `vf:MODEL`; nothing is decided by it (pci.ids).
_NAMES = {
    "56c0": "Data Center GPU Flex 170",
    "56c1": "Data Center GPU Flex 140",
    "0bd5": "Data Center GPU Max 1550",
    "0bda": "Data Center GPU Max 1100",
    "e211": "Arc Pro B60",
    "e212": "Arc Pro B50",
}


def claims(function: Function) -> bool:
    """A display of Intel."""
    return function.vendor_id == "8086" and function.class_code.startswith(_CLASSES)


def probe(reader: Reader, gpus: Sequence[Function]) -> Mapping[PciAddress, Facts]:
    """No library is asked."""
    return {
        gpu.address: Facts(name=_NAMES[gpu.device_id]) for gpu in gpus if gpu.device_id in _NAMES
    }


def types(reader: Reader, card: Card, facts: Facts) -> Slicing:
    """GVT-g types where the driver has them, else VFs by `sriov_numvfs`."""
    mediated = slicing.by_mdev(reader, card)
    if mediated is not None:
        return mediated
    return slicing.plain(card, slicing.numvfs_switch(card))
