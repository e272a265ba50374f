"""One card: its surroundings, its slices, what it offers, and why it may not be given away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from virtgpu.host import paths
from virtgpu.host.door import Door
from virtgpu.inventory import pci, sriov
from virtgpu.inventory.function_holders import of_function, of_i2c
from virtgpu.inventory.holders import Holders
from virtgpu.inventory.pci import Bus, Groups, Node
from virtgpu.inventory.reader import Reader
from virtgpu.inventory.vendor import Card, Facts, Slicing, Vendor
from virtgpu.model.gpu import (
    Function,
    Gpu,
    Holder,
    MdevDevice,
    Mechanism,
    NvmlFacts,
)
from virtgpu.model.pci import PciAddress

VFIO_PCI = "vfio-pci"


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass over the host found beside the cards themselves."""

    bus: Bus
    groups: Groups
    holders: Holders
    mdevs: Mapping[PciAddress, tuple[MdevDevice, ...]]
    companions: Mapping[PciAddress, tuple[Function, ...]]


class ReadCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card as read, before its offers are counted."""

    gpu: Gpu
    facts: Facts
    slicing: Slicing
    warnings: tuple[str, ...]

    @property
    def ids(self) -> tuple[str, str]:
        """Vendor and device id."""
        return self.gpu.vendor_id, self.gpu.device_id


def read(
    door: Door, around: Surroundings, node: Node, pf: Function, vendor: Vendor, facts: Facts
) -> ReadCard:
    """Read one card and what is sliced from it."""
    reader = Reader(door)
    capability = sriov.read(reader, node)
    entries = sriov.vf_entries(reader, node)
    base = Card(
        node=node,
        gpu=pf,
        sriov=capability,
        vfs=sriov.read_vfs(reader, node, pf, capability, entries, around.holders),
        entries=entries,
        mdevs=around.mdevs,
    )
    slicing = vendor.types(reader, base, facts)
    functions = (pf, *around.companions[pf.address])
    others = _group_others(around, functions, frozenset(entries))
    classes = around.bus.classes
    gpu = Gpu(
        address=pf.address,
        vendor=vendor.name,
        vendor_id=pf.vendor_id,
        device_id=pf.device_id,
        subsystem_id=pci.subsystem(reader, pf.address),
        class_code=pf.class_code,
        name=facts.name,
        driver=pf.driver,
        numa_node=pci.numa_node(reader, pf.address),
        iommu_group=pf.iommu_group,
        functions=functions,
        group_others=others,
        strangers=tuple(pci.function(reader, one, classes.get(one, "")) for one in others),
        bridges=pci.bridges(reader, pf.address),
        sriov=capability,
        enable_vfs=slicing.enable_vfs,
        vfs=slicing.vfs,
        mdevs=around.mdevs.get(pf.address, ()),
        mixed_size=facts.mixed_size,
        mig=facts.nvml.mig if facts.nvml is not None else None,
        nvml=_in_ids_of(slicing, facts.nvml),
        # ABI/testing/sysfs-bus-pci: both files are there for a function that can be reset alone.
        can_reset=bool({"reset", "reset_method"} & node.names) if node.names else None,
        boot_console=_boot_console(reader, node, pf),
        holders=_holders(reader, around.holders, node, functions, facts),
    )
    return ReadCard(gpu=gpu, facts=facts, slicing=slicing, warnings=tuple(reader.warnings))


def _group_others(
    around: Surroundings, functions: Sequence[Function], own_vfs: frozenset[PciAddress]
) -> tuple[PciAddress, ...]:
    own = own_vfs | {one.address for one in functions}
    members = {
        member
        for group in {one.iommu_group for one in functions}
        if group is not None
        for member in around.groups.members(group)
    }
    return tuple(sorted(one for one in members - own if around.bus.is_endpoint(one)))


def _in_ids_of(slicing: Slicing, facts: NvmlFacts | None) -> NvmlFacts | None:
    """NVML numbers its types; mediated devices call the same type `nvidia-NUMBER`."""
    if facts is None or slicing.framework not in (Mechanism.MDEV_PF, Mechanism.MDEV_VF):
        return facts
    types = tuple(
        msgspec.structs.replace(
            one,
            id=f"nvidia-{one.id}",
            mechanism=one.mechanism if one.mechanism is Mechanism.MIG else slicing.framework,
        )
        for one in facts.types
    )
    return msgspec.structs.replace(facts, types=types)


def _boot_console(reader: Reader, node: Node, pf: Function) -> bool | None:
    if "boot_vga" not in node.names:
        return None
    flag = reader.text(paths.pci(node.address, "boot_vga"))
    # The firmware's display; a card that vfio-pci has does not carry the console any more.
    return flag == "1" and pf.driver not in (None, VFIO_PCI)


def _holders(
    reader: Reader, held: Holders, node: Node, functions: Sequence[Function], facts: Facts
) -> tuple[Holder, ...] | None:
    """Who has the card itself open: by VFIO, by NVIDIA's files, by DRM; and its other functions by
    what their drivers make of them."""
    answers = [
        of_i2c(node.names, held),
        *(
            of_function(reader, held, one.address, one.class_code, one.driver)
            for one in functions[1:]
        ),
    ]
    if functions[0].driver == "nvidia":
        answers.append(held.of_nvidia(facts.minor))
    drm = pci.drm_names(reader, node)
    if drm:
        answers.append(held.of_dri(drm))
    for one in functions:
        if one.driver == VFIO_PCI or one is functions[0]:
            names = node.names if one is functions[0] else frozenset(("vfio-dev",))
            cdev = sriov.vfio_cdev(reader, one.address, names)
            answers.append(held.of_vfio(one.iommu_group, cdev))
    found: dict[Holder, None] = {}
    for answer in answers:
        if answer is None:
            return None
        found.update(dict.fromkeys(answer))
    return tuple(found)
