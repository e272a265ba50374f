"""How many more of each type really fit on one GPU, and in words why none does.

The least of: free VFs that list the type, frame buffer left, the type's own limit, the places
left in mixed-size mode, the room in GPU instances. `available_instances` of VFs are never added
up: that gives the number of VFs, not the capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from virtgpu.inventory import mig
from virtgpu.inventory.vendor import Places, Slicing
from virtgpu.model.gpu import MdevDevice, Mechanism, Mig, Offer, SliceType, Vf
from virtgpu.model.pci import PciAddress

_ON_VFS = (Mechanism.VENDOR_VFIO, Mechanism.MDEV_VF)


class Vgpu(NamedTuple):
    """A vGPU that exists: *size_mib* is None where its type's size is unknown."""

    type_id: str
    name: str
    where: str
    size_mib: int | None
    gpu_instance: int | None


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU with what is on it and what is left."""

    address: PciAddress
    slicing: Slicing
    vgpus: tuple[Vgpu, ...]
    total_mib: int | None
    left_mib: int | None
    mixed: bool | None
    mig: Mig | None
    places: Mapping[str, Places]
    total_vfs: int = 0

    @property
    def is_mig(self) -> bool:
        """Whether MIG is on now; pending is not on."""
        return self.mig is not None and self.mig.current

    def free_vfs(self) -> tuple[Vf, ...]:
        """The VFs that carry nothing, as far as their files can be read."""
        return tuple(vf for vf in self.slicing.vfs if vf.creatable is not None and is_empty(vf))

    def listing(self, type_id: str) -> tuple[PciAddress, ...]:
        """The free VFs that list the type now."""
        return tuple(vf.address for vf in self.free_vfs() if type_id in (vf.creatable or ()))


def is_empty(vf: Vf) -> bool:
    """Whether the VF carries no vGPU."""
    return vf.mdev is None and vf.vgpu_type in (None, "0")


def vgpus(
    slicing: Slicing, on_pf: tuple[MdevDevice, ...], types: Mapping[str, SliceType]
) -> tuple[Vgpu, ...]:
    """Every vGPU on the card."""
    found = [_vgpu(one.type_id, f"mdev {one.uuid}", None, types) for one in on_pf]
    for vf in slicing.vfs:
        if vf.mdev is not None:
            found.append(_vgpu(vf.mdev.type_id, f"VF {vf.address}", vf.gpu_instance_id, types))
        elif vf.vgpu_type not in (None, "0"):
            found.append(_vgpu(vf.vgpu_type, f"VF {vf.address}", vf.gpu_instance_id, types))
    return tuple(found)


def _vgpu(
    type_id: str | None, where: str, instance: int | None, types: Mapping[str, SliceType]
) -> Vgpu:
    kind = types.get(type_id or "")
    name = (kind.name if kind is not None else None) or f"type {type_id}"
    size = kind.framebuffer_mib if kind is not None else None
    return Vgpu(type_id or "", name, where, size, instance)


def used_mib(vgpus: tuple[Vgpu, ...]) -> int | None:
    """The frame buffer that is given away; None when one vGPU's size is unknown."""
    total = 0
    for one in vgpus:
        if one.size_mib is None:
            return None
        total += one.size_mib
    return total


def total_from_types(slicing: Slicing) -> int | None:
    """What the card must have at least: its greatest type, or as many as there may be of one.

    Only a complete list says so: the list of a card with a vGPU leaves out the larger types.
    """
    if not slicing.complete:
        return None
    sizes = (
        one.framebuffer_mib * (one.max_instances or 1)
        for one in slicing.types
        if one.framebuffer_mib is not None
    )
    return max(sizes, default=None)


def offers(room: Room) -> tuple[Offer, ...]:
    """An offer for each type of the card, in the driver's order."""
    made = [_offer(room, kind) for kind in room.slicing.types]
    if room.slicing.plain_vfs and (room.slicing.vfs or room.slicing.enable_vfs):
        made.append(_plain_vfs(room))
    return tuple(made)


def _offer(room: Room, kind: SliceType) -> Offer:
    vfs = room.listing(kind.id) if room.slicing.framework in _ON_VFS else ()
    reason = _why_none(room, kind, vfs)
    if reason is not None:
        return Offer(type=kind, available=0, reason=reason)
    known = [bound for bound in _bounds(room, kind, vfs) if bound is not None]
    available = max(0, min(known)) if known else None
    if available == 0:
        return Offer(type=kind, available=0, reason=_why_full(room, kind))
    return Offer(type=kind, available=available, vfs=vfs)


def _bounds(room: Room, kind: SliceType, vfs: tuple[PciAddress, ...]) -> Iterator[int | None]:
    if room.slicing.framework is Mechanism.MDEV_PF:
        yield room.slicing.instances.get(kind.id)
    else:
        yield len(vfs)
    size = kind.framebuffer_mib
    if size and room.left_mib is not None:
        yield room.left_mib // size
    if kind.max_instances is not None:
        # In equal-size mode every vGPU takes one of the type's places, else only its own kind.
        own = bool(room.mixed) or kind.mechanism is Mechanism.MIG
        counted = [one for one in room.vgpus if one.type_id == kind.id or not own]
        yield kind.max_instances - len(counted)
    if room.mixed:
        yield _places_left(room, kind)
    if kind.mechanism is Mechanism.MIG:
        yield _room_in_instances(room, kind)


def _places_left(room: Room, kind: SliceType) -> int | None:
    places = room.places.get(kind.id.rpartition("-")[2])
    if places is None:
        return None
    count, end = 0, 0
    for start in sorted(places.starts):  # places overlap: earliest end first fills best
        if start >= end:
            count, end = count + 1, start + places.size
    return count


def _room_in_instances(room: Room, kind: SliceType) -> int | None:
    """How many fit into the GPU instances of the type's profile that exist.

    One instance takes vGPUs of one size; how many follows from the nominal size of its name.
    """
    if room.mig is None or kind.gi_profile is None or not kind.framebuffer_mib:
        return None
    if any(one.gpu_instance is None for one in room.vgpus):
        return None
    profiles = {one.id for one in room.mig.profiles if one.name == kind.gi_profile}
    nominal = mig.nominal_mib(kind.gi_profile)
    if nominal is None:
        return None
    total = 0
    for instance in room.mig.instances:
        if instance.profile_id not in profiles:
            continue
        inside = [one for one in room.vgpus if one.gpu_instance == instance.id]
        if all(one.size_mib == kind.framebuffer_mib for one in inside):
            total += max(0, nominal // kind.framebuffer_mib - len(inside))
    return total


def _plain_vfs(room: Room) -> Offer:
    """Plain VFs as one more type: how many can be given away now."""
    kind = SliceType(id="vf", name=None, mechanism=Mechanism.VF)
    vfs = room.slicing.vfs
    if not vfs:
        how = "the driver makes them when it is loaded"
        if room.slicing.enable_vfs == "sriov_numvfs":
            how = f"sriov_numvfs can turn on up to {room.total_vfs}, and ends its use as whole card"
        return Offer(type=kind, available=0, reason=f"VFs of {room.address} are off: {how}")
    drivers = {vf.address: vf.driver for vf in vfs}
    free = tuple(
        vf for vf in vfs if not vf.holders and is_empty(vf) and not is_set_aside(vf, drivers)
    )
    if any(vf.holders is None for vf in free):
        reason = f"who has the VFs of {room.address} open is unknown: /proc cannot be read in full"
        return Offer(type=kind, available=None, reason=reason)
    if not free:
        return Offer(type=kind, available=0, reason=f"all {len(vfs)} VFs are in use")
    return Offer(type=kind, available=len(free), vfs=tuple(vf.address for vf in free))


def is_set_aside(vf: Vf, drivers: Mapping[PciAddress, str | None]) -> bool:
    """Whether somebody has taken the VF for a guest of his: bound to vfio-pci alone among its
    siblings, of which *drivers* has what each is bound to. Where all are, the administrator has
    set them aside for guests."""
    alone = any(driver != "vfio-pci" for driver in drivers.values())
    return drivers[vf.address] == "vfio-pci" and alone


def _why_none(room: Room, kind: SliceType, vfs: tuple[PciAddress, ...]) -> str | None:
    """Why the card as it is set up makes none of this type, None when it may."""
    if room.slicing.framework is None:
        return vfs_off(room.address)
    if kind.mechanism is Mechanism.MIG and room.mig is not None and not room.is_mig:
        return f"MIG is off on {room.address}, and this type needs a GPU instance"
    if kind.mechanism is not Mechanism.MIG and room.is_mig:
        return f"MIG is on on {room.address}: only types with a GPU instance can be made"
    if vfs or (room.slicing.framework is Mechanism.MDEV_PF and room.slicing.instances.get(kind.id)):
        return None
    if room.slicing.framework in _ON_VFS and not room.free_vfs():
        return _no_free_vf(room)
    return _other_size(room, kind) or _no_instance(room, kind)


def vfs_off(address: PciAddress) -> str:
    """The sentence for a card whose types show once its VFs are on."""
    return f"VFs are off: `sriov-manage -e {address}` turns them on"


def _no_free_vf(room: Room) -> str:
    unknown = sum(vf.creatable is None for vf in room.slicing.vfs)
    said = f"none of the {len(room.slicing.vfs)} VFs of {room.address} is free"
    return f"{said} (of {unknown} nothing is known)" if unknown else said


def _other_size(room: Room, kind: SliceType) -> str | None:
    """The first vGPU fixes the size (https://github.com/mdevctl/mdevctl/issues/59)."""
    if room.mixed or room.is_mig or not room.vgpus or kind.framebuffer_mib is None:
        return None
    first = room.vgpus[0]
    if first.size_mib is None or first.size_mib == kind.framebuffer_mib:
        return None
    text = (
        f"the GPU runs {gib(first.size_mib)} GB vGPUs in equal-size mode"
        f" ({first.name}, {first.where})"
    )
    if room.mixed is False:
        text += "; mixed-size mode is off and can be turned on only while the card is empty"
    return text


def _no_instance(room: Room, kind: SliceType) -> str | None:
    if kind.mechanism is not Mechanism.MIG or room.mig is None or kind.gi_profile is None:
        return None
    profiles = {one.id for one in room.mig.profiles if one.name == kind.gi_profile}
    if any(one.profile_id in profiles for one in room.mig.instances):
        return None
    return f"{room.address} has no GPU instance of profile {kind.gi_profile}"


def _why_full(room: Room, kind: SliceType) -> str:
    size, left = kind.framebuffer_mib, room.left_mib
    if size and left is not None and left < size:
        return f"{gib(left)} of {gib(room.total_mib)} GB of frame buffer are left"
    if room.mixed and _places_left(room, kind) == 0:
        return f"no place for {gib(size)} GB is left between the vGPUs of {room.address}"
    if kind.mechanism is Mechanism.MIG and _room_in_instances(room, kind) == 0:
        return f"the GPU instances of profile {kind.gi_profile} are full"
    if kind.max_instances is not None and len(room.vgpus) >= kind.max_instances:
        return f"{room.address} takes {kind.max_instances} of this type at most"
    return f"the driver makes no more of this type on {room.address} now"


def gib(mib: int | None) -> str:
    """Mebibytes as the gigabytes of a type's name."""
    return "?" if mib is None else f"{mib / 1024:g}"
