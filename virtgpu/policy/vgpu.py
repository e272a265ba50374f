"""vGPUs: on which VF or PF one of a type can be made now, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from virtgpu.errors import Conflict, NotFound, Unsupported
from virtgpu.model.gpu import Gpu, Mechanism, Offer, SliceType, Vf
from virtgpu.model.pci import PciAddress
from virtgpu.model.slice import Place
from virtgpu.policy import mig, names
from virtgpu.policy.options import Offered, Option, Prepare, Refusal
from virtgpu.policy.taken import VGPU, Taken, holders_text, is_free_vf
from virtgpu.policy.vf import next_vf, set_aside, why_vfs_stay_off

_UNKNOWN_MIB = 1 << 30


def vgpu(gpu: Gpu, kind: SliceType, on: PciAddress | None, taken: Taken) -> Offered:
    """The best way to make one vGPU of the type on this GPU."""
    refusal = why_closed(gpu, taken)
    if refusal is not None:
        return refusal
    if kind.mechanism is Mechanism.MIG:
        return _mig_backed(gpu, kind, on, taken)
    if gpu.mig is not None and gpu.mig.current:
        return Refusal(f"MIG is on on {gpu.address}: only types with a GPU instance can be made")
    if not gpu.vfs and Mechanism.MDEV_PF not in gpu.mechanisms:
        return _after_vfs(gpu, kind, on, taken)
    offer = offer_of(gpu, kind)
    if offer is None:
        return Refusal(f"{gpu.address} does not list {names.label(kind)} now", hint=_hint(gpu))
    return _listed(gpu, kind, on, taken, offer)


def _listed(
    gpu: Gpu, kind: SliceType, on: PciAddress | None, taken: Taken, offer: Offer
) -> Offered:
    """The way to make what the driver lists now, on the card as it is."""
    left, why = room_left(gpu, offer, taken)
    if left == 0:
        return Refusal(f"{gpu.address}: {why or 'no room'}", hint=_hint(gpu))
    return _place(gpu, kind, on, taken, offer.vfs, left, Prepare())


def why_closed(gpu: Gpu, taken: Taken) -> Refusal | None:
    """Why no vGPU can be made on the card at all."""
    if taken.is_stuck(gpu.address):
        return Refusal(f"a write to {gpu.address} has not come back", Conflict)
    if taken.whole(gpu):
        return Refusal(f"{gpu.address} is given away as a whole card", Conflict)
    if gpu.missing is not None:
        said = f"{gpu.address}: {gpu.missing.reason}"
        return Refusal(said, Unsupported, hint=gpu.missing.command)
    return mig.why_pending(gpu)


def offer_of(gpu: Gpu, kind: SliceType) -> Offer | None:
    """What the GPU offers of the type."""
    return next((one for one in gpu.offers if one.type.id == kind.id), None)


def room_left(gpu: Gpu, offer: Offer, taken: Taken) -> tuple[int | None, str | None]:
    """How many more can really be made, promises without hardware counted, and why none.

    None: unknown, the driver will say.
    """
    if offer.type.mechanism is Mechanism.VF:
        return _plain_left(gpu, offer, taken)
    closed = why_closed(gpu, taken)
    if closed is not None:
        return 0, closed.sentence
    if offer.available == 0:
        return 0, offer.reason
    promised = [one for one in taken.unseen(gpu) if one.mechanism in VGPU]
    other = _other_size(gpu, offer.type, promised)
    if other is not None:
        return 0, other
    free = None
    if Mechanism.MDEV_PF not in gpu.mechanisms:
        free = len([vf for vf in offer.vfs if is_free_vf(gpu, vf, taken)])
    known = [one for one in (_less(gpu, offer, promised), free) if one is not None]
    left = max(0, min(known)) if known else None
    if left == 0:
        return 0, f"what is left of it is {taken.spoken_for(gpu)}"
    return left, None


def _plain_left(gpu: Gpu, offer: Offer, taken: Taken) -> tuple[int | None, str | None]:
    if not offer.vfs:
        return offer.available, offer.reason
    free = [
        vf
        for vf in gpu.vfs
        if vf.address in offer.vfs
        and is_free_vf(gpu, vf.address, taken)
        and not set_aside(gpu, vf, taken)
    ]
    return len(free), None if free else "all VFs are taken or promised"


def _other_size(gpu: Gpu, kind: SliceType, promised: Sequence[Place]) -> str | None:
    if gpu.mixed_size or kind.mechanism is Mechanism.MIG:
        return None
    for one in promised:
        if one.framebuffer_mib not in (None, kind.framebuffer_mib):
            return (
                f"the GPU is in equal-size mode, and a {one.type_name or one.type_id} is promised"
                " on it"
            )
    return None


def _less(gpu: Gpu, offer: Offer, promised: Sequence[Place]) -> int | None:
    """The available number less what the promised ones will take, each rounded up."""
    if offer.available is None:
        return None
    size, left = offer.type.framebuffer_mib, offer.available
    for one in promised:
        if offer.type.mechanism is Mechanism.MIG and one.gi_start is not None:
            continue  # it brings its own GPU instance
        wide = one.framebuffer_mib or size
        left -= -(-wide // size) if size and wide else 1
    if size and gpu.framebuffer_left_mib is not None and offer.type.mechanism is not Mechanism.MIG:
        used = sum(one.framebuffer_mib or size for one in promised)
        left = min(left, (gpu.framebuffer_left_mib - used) // size)
    return left


def _hint(gpu: Gpu) -> str:
    return f"see what fits: virtgpu type list --gpu {gpu.address}"


# -- where


def _place(
    gpu: Gpu,
    kind: SliceType,
    on: PciAddress | None,
    taken: Taken,
    listed: Sequence[PciAddress],
    left: int | None,
    prepare: Prepare,
) -> Offered:
    if Mechanism.MDEV_PF in gpu.mechanisms:
        if on not in (None, gpu.address):
            return Refusal(f"{gpu.address} makes its vGPUs on the PF, not on {on}", NotFound)
        return (_option(gpu, kind, None, left, prepare),)
    vf = _free_vf(gpu, on, taken, listed)
    if isinstance(vf, Refusal):
        return vf
    return (_option(gpu, kind, vf, left, prepare),)


def _free_vf(
    gpu: Gpu, on: PciAddress | None, taken: Taken, listed: Sequence[PciAddress]
) -> PciAddress | Refusal:
    """The first VF that is listed, empty, promised to nobody and held by nobody."""
    reasons = []
    for vf in gpu.vfs:
        if on not in (None, gpu.address, vf.address):
            continue
        refusal = _why_not(gpu, vf, taken, listed)
        if refusal is None:
            return vf.address
        reasons.append(refusal)
    if not reasons:
        return Refusal(f"{gpu.address} has no VF {on}", NotFound)
    if on is not None and on != gpu.address:
        return reasons[0]
    conflict = next((one for one in reasons if one.kind is Conflict), reasons[0])
    sentence = f"none of the {len(gpu.vfs)} VFs of {gpu.address} can take it: {conflict.sentence}"
    return Refusal(sentence, hint=conflict.hint)


def _why_not(gpu: Gpu, vf: Vf, taken: Taken, listed: Sequence[PciAddress]) -> Refusal | None:
    if taken.is_picked(vf.address):
        return Refusal(f"VF {vf.address} is already chosen in this request", Conflict)
    if not is_free_vf(gpu, vf.address, taken):
        return Refusal(f"VF {vf.address} is taken", Conflict)
    if vf.address not in listed:
        return Refusal(f"VF {vf.address} does not list the type")
    if vf.holders is None:
        hint = "run as root, so that all processes can be seen"
        return Refusal(f"who holds VF {vf.address} is unknown", Conflict, hint)
    if vf.holders:
        return Refusal(f"VF {vf.address} is held by {holders_text(vf.holders)}", Conflict)
    shared = taken.group_user(frozenset(() if vf.iommu_group is None else (vf.iommu_group,)))
    if shared is not None:
        return Refusal(
            f"VF {vf.address} shares IOMMU group {shared[0]} with another guest's", Conflict
        )
    return None


def _option(
    gpu: Gpu,
    kind: SliceType,
    vf: PciAddress | None,
    left: int | None,
    prepare: Prepare,
    *,
    gi: mig.Target | None = None,
) -> Option:
    size = kind.framebuffer_mib
    rest = _UNKNOWN_MIB
    if gpu.framebuffer_left_mib is not None and size is not None:
        rest = gpu.framebuffer_left_mib - size
    place = Place(
        mechanism=kind.mechanism,
        gpu=gpu.address,
        vf=vf,
        type_id=kind.id,
        type_name=names.label(kind),
        framebuffer_mib=size,
        gi_profile_id=None if gi is None else gi.profile.id,
        gi_start=None if gi is None else gi.start,
        gi_size=None if gi is None or gi.start is None else gi.profile.size,
    )
    rank = (prepare.disruption, rest, left if left is not None else 0)
    return Option(place=place, rank=rank, why=_why(gpu, kind, left, prepare), prepare=prepare)


def _why(gpu: Gpu, kind: SliceType, left: int | None, prepare: Prepare) -> str:
    what = names.label(kind)
    if prepare.disruption:
        return f"{gpu.address} can take a {what} after changes: {', '.join(changes(prepare))}"
    if gpu.framebuffer_left_mib is not None:
        room = f"{gpu.framebuffer_left_mib / 1024:g} GB of its frame buffer are left"
    else:
        room = "how much frame buffer is left is unknown"
    many = "" if left is None else f", and {left} of the type fit"
    return f"{gpu.address} has room for a {what}: {room}{many}"


def changes(prepare: Prepare) -> list[str]:
    """What is changed on the card, in words."""
    return [
        text
        for is_so, text in (
            (prepare.mig, "MIG mode goes on"),
            (bool(prepare.vfs), "VFs go on, which ends its use as whole card"),
            (prepare.gi is not None, f"a GPU instance {prepare.gi and prepare.gi.name} is made"),
        )
        if is_so
    ]


# -- VFs off, MIG


def _after_vfs(gpu: Gpu, kind: SliceType, on: PciAddress | None, taken: Taken) -> Offered:
    refusal = why_vfs_stay_off(gpu, taken)
    if refusal is not None:
        return refusal
    promised = [one for one in taken.unseen(gpu) if one.mechanism in VGPU]
    other = _other_size(gpu, kind, promised)
    if other is not None:
        return Refusal(f"{gpu.address}: {other}")
    if kind.max_instances is not None and len(promised) >= kind.max_instances:
        return Refusal(f"{gpu.address} takes {kind.max_instances} of this type at most")
    vf = next_vf(gpu, taken)
    if isinstance(vf, Refusal):
        return vf
    if on not in (None, gpu.address, vf):
        return Refusal(f"{gpu.address} has no VF {on} yet", NotFound)
    total = gpu.sriov.total_vfs if gpu.sriov else 0
    left = None if kind.max_instances is None else kind.max_instances - len(promised)
    return (_option(gpu, kind, vf, left, Prepare(vfs=total)),)


def _mig_backed(gpu: Gpu, kind: SliceType, on: PciAddress | None, taken: Taken) -> Offered:
    offer = offer_of(gpu, kind)
    if gpu.mig is None and offer is not None and offer.vfs:
        # Without NVML the instances cannot be seen, but the driver lists what it makes now.
        return _listed(gpu, kind, on, taken, offer)
    found = mig.target(gpu, kind, taken)
    if isinstance(found, Refusal):
        return found
    if found.start is None and offer is not None:
        left, why = room_left(gpu, offer, taken)
        if left != 0:
            return _with_gi(gpu, kind, on, taken, offer.vfs, left, found)
        found = mig.new_instance(gpu, kind, taken)
        if isinstance(found, Refusal):
            return Refusal(f"{gpu.address}: {why or found.sentence}", hint=_hint(gpu))
    every = tuple(vf.address for vf in gpu.vfs)
    return _with_gi(gpu, kind, on, taken, every, None, found)


def _with_gi(
    gpu: Gpu,
    kind: SliceType,
    on: PciAddress | None,
    taken: Taken,
    listed: Sequence[PciAddress],
    left: int | None,
    gi: mig.Target,
) -> Offered:
    prepare = Prepare(mig=gi.turn_on, gi=gi.profile if gi.start is not None else None)
    vf: PciAddress | Refusal
    if gpu.vfs:
        vf = _free_vf(gpu, on, taken, listed)
    else:
        refusal = why_vfs_stay_off(gpu, taken)
        if refusal is not None:
            return refusal
        total = gpu.sriov.total_vfs if gpu.sriov else 0
        prepare = Prepare(mig=gi.turn_on, vfs=total, gi=prepare.gi)
        vf = next_vf(gpu, taken)
    if isinstance(vf, Refusal):
        return vf
    return (_option(gpu, kind, vf, left, prepare, gi=gi),)
