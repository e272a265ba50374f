"""AMD: whole cards, and the VFs that the GIM driver makes when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from virtgpu.inventory import slicing
from virtgpu.inventory.pci import DISPLAY_CLASSES
from virtgpu.inventory.reader import Reader
from virtgpu.inventory.vendor import Card, Facts, Slicing
from virtgpu.model.gpu import Function
from virtgpu.model.pci import PciAddress

name = "amd"

# What people call these cards, for output and `vf:MODEL`; nothing is decided by it (pci.ids).
_NAMES = {
    "738c": "Instinct MI100",
    "740f": "Instinct MI210",
    "740c": "Instinct MI250X",
    "74a1": "Instinct MI300X",
    "74a5": "Instinct MI325X",
    "7460": "Radeon PRO V710",
    "73ff": "Radeon RX 6600",
}


def claims(function: Function) -> bool:
    """A display or an accelerator (the Instinct cards are class 1200) of AMD/ATI."""
    return function.vendor_id == "1002" and function.class_code.startswith(DISPLAY_CLASSES)


def probe(reader: Reader, gpus: Sequence[Function]) -> Mapping[PciAddress, Facts]:
    """No library is asked."""
    return {
        gpu.address: Facts(name=_NAMES[gpu.device_id]) for gpu in gpus if gpu.device_id in _NAMES
    }


def types(reader: Reader, card: Card, facts: Facts) -> Slicing:
    """Plain VFs. GIM makes them when it is loaded and refuses `sriov_numvfs`; amdgpu makes none
    (github.com/amd/MxGPU-Virtualization)."""
    return slicing.plain(card, "module" if card.gpu.driver == "gim" else None)
