"""What a vendor module answers. The inventory asks for capabilities; nothing decides by model.

A vendor is a module or an object of the entry point group `virtgpu.vendors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from virtgpu.inventory.pci import Node
from virtgpu.inventory.reader import Reader
from virtgpu.model.gpu import (
    Function,
    MdevDevice,
    Mechanism,
    Missing,
    NvmlFacts,
    SliceType,
    Sriov,
    Vf,
)
from virtgpu.model.pci import PciAddress


class Places(NamedTuple):
    """Where a type may be placed now in mixed-size mode, in the driver's own unit."""

    size: int
    starts: tuple[int, ...]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the vendor's own library or tool says about one GPU.

    *places* has an entry for each type whose creatable places are known.
    """

    name: str | None = None
    minor: int | None = None
    nvml: NvmlFacts | None = None
    mixed_size: bool | None = None
    places: Mapping[str, Places] = msgspec.field(default_factory=dict)


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as the bus shows it. *entries* are the names in each VF's directory."""

    node: Node
    gpu: Function
    sriov: Sriov | None
    vfs: tuple[Vf, ...]
    entries: Mapping[PciAddress, frozenset[str]]
    mdevs: Mapping[PciAddress, tuple[MdevDevice, ...]]


class Slicing(msgspec.Struct, frozen=True, kw_only=True):
    """How this card is sliced now.

    *framework* is what offers vGPU types, None where nothing does. *instances* is what a PF
    with mediated devices says by type id. *plain_vfs*: its VFs as they are go to guests.
    *complete*: *types* names every type of the card, not only those that fit now.
    *expects_types*: vGPU types would appear once VFs are on. *missing*: what VFs that are on lack.
    """

    framework: Mechanism | None = None
    types: tuple[SliceType, ...] = ()
    vfs: tuple[Vf, ...] = ()
    instances: Mapping[str, int | None] = msgspec.field(default_factory=dict)
    enable_vfs: str | None = None
    plain_vfs: bool = False
    complete: bool = False
    expects_types: bool = False
    missing: Missing | None = None


class Vendor(Protocol):
    """One maker of GPUs."""

    name: str

    def claims(self, function: Function) -> bool:
        """Whether this PCI function is a GPU of this maker; by ids and class alone."""
        ...

    def probe(self, reader: Reader, gpus: Sequence[Function]) -> Mapping[PciAddress, Facts]:
        """Ask the maker's library once for all its GPUs; a GPU that it does not know is missing."""
        ...

    def types(self, reader: Reader, card: Card, facts: Facts) -> Slicing:
        """How the card is sliced, with its VFs completed."""
        ...
