"""The ledger: what was promised (reservations) joined with what is there (the host).

A reservation stays a slice whether its hardware is there (*present*) or not (*absent*, as after
a reboot). Hardware that no reservation names is *foreign*: shown, counted, never touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from virtgpu.model.gpu import Gpu, Holder, Host, MdevDevice, Mechanism, SliceType, Vf
from virtgpu.model.pci import PciAddress
from virtgpu.model.slice import Place, Reservation, Slice, SliceState
from virtgpu.policy import names

VFIO_PCI = "vfio-pci"


def join(
    host: Host, reservations: Sequence[Reservation], stuck: Sequence[str] = ()
) -> tuple[Slice, ...]:
    """Every slice of the host, ours first as they were made, then foreign ones by address.

    *stuck* are the addresses, mdev UUIDs or slice ids whose write has not come back.
    """
    ours = tuple(_ours(host, reservation, frozenset(stuck)) for reservation in reservations)
    claimed = {_key(one.place) for one in ours if one.state is not SliceState.ABSENT}
    claimed |= {_key(one.place) for one in ours if _is_shared_key(one.place)}
    foreign = (one for gpu in host.gpus for one in _found(gpu) if _key(one.place) not in claimed)
    return ours + tuple(_mark_stuck(one, frozenset(stuck)) for one in foreign)


def claimed(
    host: Host, known: Sequence[Slice], devices: Mapping[PciAddress, str]
) -> tuple[Slice, ...]:
    """Slices that no reservation names, but that a definition of a guest gives it: *devices* are
    PCI functions, each with that guest's name. Those of *known* slices are left out."""
    taken = {address for one in known for address in (one.place.vf, *one.place.functions)}
    found = []
    for gpu in host.gpus:
        functions = {gpu.address, *(function.address for function in gpu.functions)}
        for address, guest in sorted(devices.items()):
            if address in taken:
                continue
            place = None
            if vf_of(gpu, address) is not None:
                place = Place(mechanism=Mechanism.VF, gpu=gpu.address, vf=address)
            elif address in functions:
                mine = (address,)
                place = Place(mechanism=Mechanism.WHOLE, gpu=gpu.address, functions=mine)
            if place is not None:
                found.append(
                    Slice(
                        id=str(address),
                        name=str(place.mechanism),
                        state=SliceState.FOREIGN,
                        place=place,
                        guest=guest,
                        holders=holders_of(host, place),
                    )
                )
    return tuple(found)


def is_there(host: Host, place: Place) -> bool:
    """Whether the hardware shows the slice that *place* describes."""
    gpu = host.gpu(place.gpu)
    if gpu is None:
        return False
    if place.mdev is not None:
        return any(mdev.uuid == place.mdev for mdev in gpu.all_mdevs)
    if place.mechanism is Mechanism.WHOLE:
        # managed='yes' hands the card back to its host driver whenever the guest stops, so the
        # binding of the moment says nothing: the card itself does.
        return {function.address for function in gpu.functions} >= set(place.functions)
    vf = vf_of(gpu, place.vf)
    if vf is None or place.mechanism is Mechanism.VF:
        return vf is not None
    return _carries(gpu, vf, place)


def vf_of(gpu: Gpu, address: PciAddress | None) -> Vf | None:
    """The VF of that address, None when it does not exist."""
    return next((vf for vf in gpu.vfs if vf.address == address), None)


def types_of(gpu: Gpu) -> tuple[SliceType, ...]:
    """Every type that the GPU is known to have: what it offers now, then what NVML lists."""
    offered = tuple(offer.type for offer in gpu.offers)
    known = {names.bare(names.label(kind)) for kind in offered}
    listed = gpu.nvml.types if gpu.nvml else ()
    return offered + tuple(kind for kind in listed if names.bare(names.label(kind)) not in known)


def holders_of(host: Host, place: Place) -> tuple[Holder, ...] | None:
    """Who holds the slice's device now; None when it is unknown, () for what is not there."""
    gpu = host.gpu(place.gpu)
    if gpu is None or not is_there(host, place):
        return ()
    if place.mdev is not None:
        return next(mdev.holders for mdev in gpu.all_mdevs if mdev.uuid == place.mdev)
    if place.mechanism is Mechanism.WHOLE:
        return gpu.holders if gpu.driver == VFIO_PCI else ()
    vf = vf_of(gpu, place.vf)
    return vf.holders if vf is not None else ()


def groups_of(host: Host, place: Place) -> frozenset[int]:
    """The IOMMU groups that the slice's PCI functions are in (a mediated device has its own)."""
    gpu = host.gpu(place.gpu)
    if gpu is None or place.mdev is not None:
        return frozenset()
    if place.mechanism is Mechanism.WHOLE:
        groups = {gpu.iommu_group, *(function.iommu_group for function in gpu.functions)}
    else:
        vf = vf_of(gpu, place.vf)
        groups = {vf.iommu_group if vf else None}
    return frozenset(group for group in groups if group is not None)


def _ours(host: Host, reservation: Reservation, stuck: frozenset[str]) -> Slice:
    place = reservation.place
    state = SliceState.PRESENT if is_there(host, place) else SliceState.ABSENT
    if is_stuck(place, stuck) or reservation.id in stuck:
        state = SliceState.STUCK
    return Slice(
        id=reservation.id,
        name=place.type_name or str(place.mechanism),
        state=state,
        place=place,
        guest=reservation.guest,
        domain_uuid=reservation.domain_uuid,
        request=reservation.request,
        created=reservation.created,
        holders=holders_of(host, place),
    )


def is_stuck(place: Place, stuck: frozenset[str]) -> bool:
    """Whether a write to any device of the place has not come back."""
    devices = {place.gpu, place.vf, place.mdev, *place.functions}
    return not stuck.isdisjoint({str(device) for device in devices if device is not None})


def _mark_stuck(one: Slice, stuck: frozenset[str]) -> Slice:
    if not is_stuck(one.place, stuck):
        return one
    return Slice(
        id=one.id, name=one.name, state=SliceState.STUCK, place=one.place, holders=one.holders
    )


def _carries(gpu: Gpu, vf: Vf, place: Place) -> bool:
    """Whether the VF carries the vGPU of *place*: by id, else by the name behind its id."""
    if vf.vgpu_type in (None, "0"):
        return False
    if place.type_id is not None:
        return vf.vgpu_type == place.type_id
    kind = _type(gpu, str(vf.vgpu_type))
    return kind is not None and names.is_called(kind, place.type_name or "")


def _is_shared_key(place: Place) -> bool:
    """A whole card or plain VF of ours is ours whoever holds it now."""
    return place.mechanism in (Mechanism.WHOLE, Mechanism.VF)


def _key(place: Place) -> str:
    if place.mdev is not None:
        return place.mdev
    return str(place.vf or place.gpu)


def _found(gpu: Gpu) -> Iterator[Slice]:
    """The slices that the hardware shows, as if all were foreign."""
    if gpu.driver == VFIO_PCI and gpu.holders:
        functions = tuple(function.address for function in gpu.functions) or (gpu.address,)
        place = Place(mechanism=Mechanism.WHOLE, gpu=gpu.address, functions=functions)
        yield _foreign(str(gpu.address), str(Mechanism.WHOLE), place, gpu.holders)
    for mdev in gpu.mdevs:
        yield _foreign_mdev(gpu, mdev, None)
    for vf in gpu.vfs:
        yield from _found_on_vf(gpu, vf)


def _found_on_vf(gpu: Gpu, vf: Vf) -> Iterator[Slice]:
    if vf.mdev is not None:
        yield _foreign_mdev(gpu, vf.mdev, vf.address)
    elif vf.vgpu_type not in (None, "0"):
        kind = _type(gpu, str(vf.vgpu_type))
        place = _vgpu_place(gpu, kind, Mechanism.VENDOR_VFIO, vf=vf.address, id=vf.vgpu_type)
        yield _foreign(str(vf.address), kind.name if kind else None, place, vf.holders)
    elif vf.holders:
        place = Place(mechanism=Mechanism.VF, gpu=gpu.address, vf=vf.address)
        yield _foreign(str(vf.address), str(Mechanism.VF), place, vf.holders)


def _foreign_mdev(gpu: Gpu, mdev: MdevDevice, vf: PciAddress | None) -> Slice:
    kind = _type(gpu, mdev.type_id)
    framework = Mechanism.MDEV_PF if vf is None else Mechanism.MDEV_VF
    place = _vgpu_place(gpu, kind, framework, vf=vf, id=mdev.type_id, mdev=mdev.uuid)
    return _foreign(mdev.uuid, kind.name if kind else None, place, mdev.holders)


def _vgpu_place(
    gpu: Gpu,
    kind: SliceType | None,
    framework: Mechanism,
    *,
    vf: PciAddress | None,
    id: str | None,  # noqa: A002 (the field's own name)
    mdev: str | None = None,
) -> Place:
    is_mig = kind is not None and kind.gi_profile is not None
    return Place(
        mechanism=Mechanism.MIG if is_mig else framework,
        gpu=gpu.address,
        vf=vf,
        mdev=mdev,
        type_id=id,
        type_name=kind.name if kind else None,
        framebuffer_mib=kind.framebuffer_mib if kind else None,
        gi_profile_id=_profile_id(gpu, kind),
    )


def _profile_id(gpu: Gpu, kind: SliceType | None) -> int | None:
    if kind is None or kind.gi_profile is None or gpu.mig is None:
        return None
    wanted = kind.gi_profile
    return next((one.id for one in gpu.mig.profiles if one.name == wanted), None)


def _foreign(
    slice_id: str,
    name: str | None,
    place: Place,
    holders: tuple[Holder, ...] | None,
) -> Slice:
    return Slice(id=slice_id, name=name, state=SliceState.FOREIGN, place=place, holders=holders)


def _type(gpu: Gpu, type_id: str) -> SliceType | None:
    """The type behind an id; mdev writes `nvidia-563` where the vendor framework writes `563`."""
    number = type_id.removeprefix("nvidia-")
    return next((kind for kind in types_of(gpu) if kind.id.removeprefix("nvidia-") == number), None)
