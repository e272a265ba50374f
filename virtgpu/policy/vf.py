"""Virtual functions: plain ones to give away, and where new ones would be."""

from __future__ import annotations

from virtgpu.errors import Capacity, Conflict, NotFound, Unsupported
from virtgpu.inventory.capacity import is_set_aside
from virtgpu.model.gpu import Gpu, Mechanism, Vf
from virtgpu.model.pci import PciAddress
from virtgpu.model.slice import Place
from virtgpu.policy.ledger import VFIO_PCI
from virtgpu.policy.options import Offered, Option, Prepare, Refusal
from virtgpu.policy.taken import Taken, holders_text, is_free_vf, listed, owner, why_not_empty

_VGPU_FRAMEWORKS = (Mechanism.VENDOR_VFIO, Mechanism.MDEV_VF, Mechanism.MIG)


def plain_vf(gpu: Gpu, on: PciAddress | None, taken: Taken) -> Offered:
    """The ways to give a plain VF of this GPU."""
    refusal = _not_plain(gpu, taken)
    if refusal is not None:
        return refusal
    if gpu.vfs:
        return _existing(gpu, on, taken)
    return _after_turning_on(gpu, taken)


def next_vf(gpu: Gpu, taken: Taken) -> PciAddress | Refusal:
    """The address that the next untaken VF will have once VFs are on."""
    sriov = gpu.sriov
    if sriov is None or sriov.offset is None or sriov.stride is None:
        return Refusal(f"{gpu.address} does not say where its VFs would be", Unsupported)
    used = taken.vfs(gpu)
    for index in range(sriov.total_vfs):
        address = gpu.address.vf(sriov.offset, sriov.stride, index)
        if address not in used and not taken.is_stuck(address):
            return address
    return Refusal(
        f"{gpu.address} offers at most {sriov.total_vfs} VF"
        f"{'s' if sriov.total_vfs != 1 else ''} here, all {taken.spoken_for(gpu)}"
    )


def why_vfs_stay_off(gpu: Gpu, taken: Taken) -> Refusal | None:
    """Why VFs of the card cannot be turned on by a plan now."""
    limit = gpu.sriov.total_vfs if gpu.sriov else 0
    if gpu.sriov is None or not gpu.sriov.usable or limit == 0:
        return Refusal(f"{gpu.address} has no usable SR-IOV capability", Unsupported)
    if gpu.enable_vfs == "module":
        return Refusal(
            f"VFs of {gpu.address} are off, and its driver {gpu.driver} makes them (at most {limit}"
            " here) only when it is loaded",
            Unsupported,
            "with no guest on its cards, load the driver again: modprobe gim vf_num=N",
        )
    if gpu.enable_vfs is None:
        return Refusal(
            f"VFs of {gpu.address} are off and nothing on this host can turn them on", Unsupported
        )
    if gpu.driver in (None, VFIO_PCI):
        return Refusal(
            f"VFs of {gpu.address} are off, and {gpu.driver or 'no driver'} cannot turn them on",
            Unsupported,
        )
    # A plain write leaves the PF bound; sriov-manage rebinds it, so nobody may be on the card.
    busy = why_not_empty(gpu, taken) if gpu.enable_vfs == "sriov-manage" else None
    if busy is not None:
        return Refusal(
            f"VFs of {gpu.address} are off and cannot be turned on while {busy}", Conflict
        )
    return None


def _not_plain(gpu: Gpu, taken: Taken) -> Refusal | None:
    if taken.is_stuck(gpu.address):
        return Refusal(f"a write to {gpu.address} has not come back", Conflict)
    if taken.whole(gpu):
        return Refusal(f"{gpu.address} is given away as a whole card", Conflict)
    carries_vgpus = any(framework in gpu.mechanisms for framework in _VGPU_FRAMEWORKS)
    if carries_vgpus or gpu.enable_vfs == "sriov-manage":
        return Refusal(
            f"the VFs of {gpu.address} carry vGPUs and cannot be given as plain ones",
            Unsupported,
            "ask for a vGPU type instead; `virtgpu type list` shows them",
        )
    if gpu.vfs and Mechanism.VF not in gpu.mechanisms:
        return Refusal(f"the VFs of {gpu.address} are no plain VFs", Unsupported)
    if gpu.sriov is None:
        return Refusal(f"{gpu.address} has no SR-IOV capability", Unsupported)
    return None


def _existing(gpu: Gpu, on: PciAddress | None, taken: Taken) -> Offered:
    wanted = tuple(vf for vf in gpu.vfs if on is None or on in (vf.address, gpu.address))
    if not wanted:
        return Refusal(f"{gpu.address} has no VF {on}", NotFound)
    refusals = tuple(_why_not(gpu, vf, taken) or _why_aside(gpu, vf, on, taken) for vf in wanted)
    free = tuple(vf for vf, why in zip(wanted, refusals, strict=True) if why is None)
    if free:
        return (_option(gpu, free[0].address, len(free)),)
    reasons = tuple(why for why in refusals if why is not None)
    if len(reasons) == 1 and on != gpu.address and on is not None:
        return reasons[0]
    more = gpu.sriov.total_vfs - len(gpu.vfs) if gpu.sriov else 0
    limit = (
        f"; {gpu.address} offers at most {len(gpu.vfs)} VF{'s' if len(gpu.vfs) != 1 else ''} here"
        if more <= 0
        else f"; {more} more could be had only by turning all VFs off first"
    )
    said = listed([why.sentence for why in reasons], 3)
    return Refusal(f"none of the {len(gpu.vfs)} VFs of {gpu.address} is free: {said}{limit}")


def set_aside(gpu: Gpu, vf: Vf, taken: Taken) -> bool:
    """Whether somebody has bound the VF for a guest of his. What our own slices have bound counts
    by the driver that it had before: it says nothing of its siblings."""
    drivers = {one.address: one.driver for one in gpu.vfs}
    for one in taken.on(gpu):
        if one.place.vf in drivers and one.place.previous_drivers:
            drivers[one.place.vf] = one.place.previous_drivers[0]
    return is_set_aside(vf, drivers)


def _why_aside(gpu: Gpu, vf: Vf, on: PciAddress | None, taken: Taken) -> Refusal | None:
    if on == vf.address or not set_aside(gpu, vf, taken):
        return None
    return Refusal(
        f"VF {vf.address} is set aside: it alone is bound to {VFIO_PCI}",
        Conflict,
        f"if it is free all the same: 'vf on {vf.address}'",
    )


def _why_not(gpu: Gpu, vf: Vf, taken: Taken) -> Refusal | None:
    user = taken.by_vf(gpu, vf.address)
    if user is not None:
        return Refusal(f"VF {vf.address} is taken by {owner(user)}", Conflict)
    if taken.is_picked(vf.address):
        return Refusal(f"VF {vf.address} is already chosen in this request", Conflict)
    if not is_free_vf(gpu, vf.address, taken):
        return Refusal(f"VF {vf.address} is taken", Conflict)
    if vf.holders is None:
        hint = "run as root, so that all processes can be seen"
        return Refusal(f"who holds VF {vf.address} is unknown", Conflict, hint)
    if vf.holders:
        return Refusal(f"VF {vf.address} is held by {holders_text(vf.holders)}", Conflict)
    groups = frozenset(() if vf.iommu_group is None else (vf.iommu_group,))
    shared = taken.group_user(groups)
    if shared is not None:
        group, one = shared
        return Refusal(
            f"VF {vf.address} is in IOMMU group {group} with a device of {owner(one)}", Conflict
        )
    return None


def _option(gpu: Gpu, vf: PciAddress, free: int, turn_on: int = 0) -> Option:
    place = Place(mechanism=Mechanism.VF, gpu=gpu.address, vf=vf)
    if turn_on:
        why = (
            f"VF {vf} of {gpu.address}, whose VFs are off and will be turned on, which uses it"
            " up as a whole card"
        )
    else:
        why = f"VF {vf} of {gpu.address}, the first of {free} free ones"
    prepare = Prepare(vfs=turn_on)
    return Option(place=place, rank=(prepare.disruption, free), why=why, prepare=prepare)


def _after_turning_on(gpu: Gpu, taken: Taken) -> Offered:
    """VFs that a plan would turn on: as many as are asked for, so that each is large."""
    refusal = why_vfs_stay_off(gpu, taken)
    if refusal is not None:
        return refusal
    address = next_vf(gpu, taken)
    if isinstance(address, Refusal):
        return Refusal(address.sentence, address.kind if address.kind is not Capacity else Capacity)
    total = gpu.sriov.total_vfs if gpu.sriov else 0
    count = 1 + len(taken.vfs(gpu))
    return (_option(gpu, address, total - count + 1, turn_on=count),)
