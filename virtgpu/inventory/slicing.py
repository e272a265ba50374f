"""The parts of slicing that no vendor has for itself: mediated devices and plain VFs."""

from __future__ import annotations

import msgspec

from virtgpu.inventory import mdev
from virtgpu.inventory.reader import Reader
from virtgpu.inventory.vendor import Card, Slicing
from virtgpu.model.gpu import MdevDevice, Mechanism, Vf
from virtgpu.model.pci import PciAddress


def by_mdev(reader: Reader, card: Card) -> Slicing | None:
    """Mediated devices on the VFs or on the PF; None where there are none."""
    parents = [vf.address for vf in card.vfs if mdev.TYPES in card.entries[vf.address]]
    if parents:
        return _on_vfs(reader, card, parents)
    if mdev.TYPES not in card.node.names:
        return None
    instances = mdev.read_instances(reader, card.gpu.address)
    return Slicing(
        framework=Mechanism.MDEV_PF,
        types=mdev.read_types(reader, card.gpu.address, instances, Mechanism.MDEV_PF),
        vfs=card.vfs,
        instances=instances,
        complete=True,
    )


def _on_vfs(reader: Reader, card: Card, parents: list[PciAddress]) -> Slicing:
    devices = {one: next(iter(card.mdevs.get(one, ())), None) for one in parents}
    on_card = [one.type_id for one in devices.values() if one is not None]
    room = mdev.VfRoom(reader, parents, likely=on_card)
    vfs = tuple(
        _with_mdev(vf, room, devices[vf.address]) if vf.address in devices else vf
        for vf in card.vfs
    )
    return Slicing(
        framework=Mechanism.MDEV_VF,
        types=mdev.read_types(reader, room.source, room.type_ids, Mechanism.MDEV_VF),
        vfs=vfs,
        complete=True,
    )


def _with_mdev(vf: Vf, room: mdev.VfRoom, device: MdevDevice | None) -> Vf:
    # A VF takes one mediated device: a taken one has no room for anything.
    creatable = () if device is not None else room.creatable(vf.address)
    return msgspec.structs.replace(vf, creatable=creatable, mdev=device)


def plain(card: Card, enable_vfs: str | None) -> Slicing:
    """VFs that go to guests as they are, if there are any."""
    return Slicing(vfs=card.vfs, enable_vfs=enable_vfs, plain_vfs=True)


def numvfs_switch(card: Card) -> str | None:
    """`sriov_numvfs` where the driver in charge of the PF takes a count."""
    if card.sriov is None or not card.sriov.usable or card.gpu.driver in (None, "vfio-pci"):
        return None
    return "sriov_numvfs"
