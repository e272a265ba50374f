"""What a card can give now: frame buffer, offers, mechanisms, and what stands against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from virtgpu.inventory import capacity
from virtgpu.inventory.capacity import Room
from virtgpu.inventory.card import ReadCard
from virtgpu.inventory.vendor import Slicing
from virtgpu.model.gpu import Gpu, Mechanism, NvmlFacts, Offer, SliceType


def known_types(read: Sequence[ReadCard]) -> dict[str, SliceType]:
    """Every type that any card of the host names, by id: a driver's ids are the same for all."""
    known: dict[str, SliceType] = {}
    for one in read:
        for kind in one.slicing.types:
            known.setdefault(kind.id, kind)
    return known


def totals(read: Sequence[ReadCard]) -> dict[tuple[str, str], int]:
    """The frame buffer of each model, from a card of it whose types are all known."""
    found: dict[tuple[str, str], int] = {}
    for one in read:
        total = capacity.total_from_types(one.slicing)
        if total is not None:
            found[one.ids] = max(total, found.get(one.ids, 0))
    return found


def finish(one: ReadCard, known: Mapping[str, SliceType], of_model: int | None) -> Gpu:
    """The card with its frame buffer, its offers, its mechanisms and what stands against it."""
    gpu, slicing = one.gpu, one.slicing
    vgpus = capacity.vgpus(slicing, gpu.mdevs, known)
    # What NVML says is less than nominal by ECC and firmware: it does not count vGPUs.
    total = of_model if slicing.types or of_model is not None else _nominal(gpu.nvml)
    used = capacity.used_mib(vgpus)
    left = max(0, total - used) if total is not None and used is not None else None
    room = Room(
        address=gpu.address,
        slicing=slicing,
        vgpus=vgpus,
        total_mib=total,
        left_mib=left,
        mixed=gpu.mixed_size,
        mig=gpu.mig,
        places=one.facts.places,
        total_vfs=gpu.sriov.total_vfs if gpu.sriov is not None else 0,
    )
    mechanisms = _mechanisms(gpu, slicing, vgpus)
    return msgspec.structs.replace(
        gpu,
        framebuffer_mib=total,
        framebuffer_left_mib=left,
        offers=_offers(room),
        missing=slicing.missing,
        mechanisms=mechanisms,
        blocked=_blocked(gpu, mechanisms),
        whole_only=_whole_only(gpu, slicing),
        warnings=(*one.warnings, *_warnings(gpu, slicing, left)),
    )


def _offers(room: Room) -> tuple[Offer, ...]:
    missing = room.slicing.missing
    if missing is None:
        return capacity.offers(room)
    said = f"{room.address}: {missing.reason}"
    return tuple(Offer(type=one, available=0, reason=said) for one in room.slicing.types)


def _nominal(facts: NvmlFacts | None) -> int | None:
    """The card's memory in whole gigabytes: NVML leaves out what firmware keeps."""
    if facts is None or facts.memory_total_mib is None:
        return None
    return -(-facts.memory_total_mib // 1024) * 1024


def _mechanisms(
    gpu: Gpu, slicing: Slicing, vgpus: tuple[capacity.Vgpu, ...]
) -> tuple[Mechanism, ...]:
    """What the host offers as it is now. All but mediated devices on a PF need an IOMMU."""
    found = []
    instances = gpu.mig is not None and bool(gpu.mig.instances)
    has_iommu = gpu.iommu_group is not None
    if has_iommu and not (slicing.vfs or vgpus or instances):
        found.append(Mechanism.WHOLE)
    if slicing.framework is Mechanism.MDEV_PF:
        found.append(Mechanism.MDEV_PF)
    elif slicing.framework is not None and has_iommu:
        is_mig = gpu.mig is not None and gpu.mig.current
        found.append(Mechanism.MIG if is_mig else slicing.framework)
    elif slicing.plain_vfs and slicing.vfs and has_iommu:
        found.append(Mechanism.VF)
    return tuple(found)


def _blocked(gpu: Gpu, mechanisms: tuple[Mechanism, ...]) -> str | None:
    """Why nothing of the card can be given away, or not the whole that it could be."""
    if gpu.iommu_group is None and not mechanisms:
        return (
            "it has no IOMMU group: the IOMMU is off in the firmware or on the kernel's command"
            " line"
        )
    return None


def _whole_only(gpu: Gpu, slicing: Slicing) -> str | None:
    """Why no slice of the card can be had on this host, now or after a step."""
    if slicing.vfs or slicing.framework is not None or slicing.enable_vfs is not None:
        return None
    if gpu.sriov is None:
        return "it has no SR-IOV capability, and its driver offers no vGPU types"
    if not gpu.sriov.usable:
        return "its SR-IOV capability serves nothing, and its driver offers no vGPU types"
    return f"its driver ({gpu.driver or 'none'}) makes no VFs on this host"


def _warnings(gpu: Gpu, slicing: Slicing, left: int | None) -> list[str]:
    found = []
    if slicing.expects_types and not slicing.vfs and not slicing.types:
        found.append(
            f"{gpu.address}: vGPU types are not known yet; {capacity.vfs_off(gpu.address)}"
        )
    if slicing.framework is Mechanism.VENDOR_VFIO and left is None:
        found.append(
            f"{gpu.address}: how much frame buffer is left is unknown, so that the numbers of"
            " vGPUs are upper limits"
        )
    return found
