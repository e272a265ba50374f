"""One pass over a host: what is on the bus, who holds it, what each vendor says of its cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from virtgpu.host import paths
from virtgpu.host.door import Door
from virtgpu.inventory import (
    card,
    giving,
    holders,
    mdev,
    model_names,
    nic,
    pci,
    platform,
    topology,
)
from virtgpu.inventory.pci import Bus, Groups, Node
from virtgpu.inventory.reader import Reader
from virtgpu.inventory.vendor import Facts, Vendor
from virtgpu.model.gpu import Function, Gpu, Host
from virtgpu.model.pci import PciAddress

_Claimed = tuple[Node, Function, Vendor]


def read_host(door: Door, vendors: Sequence[Vendor]) -> Host:
    """Read the host once and return it as one frozen value; nothing is written.

    Holders are looked up first: some attributes hang while somebody waits for a holder.
    """
    reader = Reader(door)
    held = holders.scan(door)
    bus = pci.scan(reader)
    claimed = _claim(reader, bus, vendors)
    facts = _probe(reader, claimed)
    mdevs = mdev.read_devices(reader, held)
    companions = {node.address: pci.companions(reader, bus, node) for node, _, _ in claimed}
    groups = Groups(
        reader,
        [gpu for _, gpu, _ in claimed] + [one for group in companions.values() for one in group],
    )
    surroundings = card.Surroundings(
        bus=bus, groups=groups, holders=held, mdevs=mdevs, companions=companions
    )
    read = tuple(
        card.read(door, surroundings, node, gpu, vendor, facts.get(gpu.address, Facts()))
        for node, gpu, vendor in claimed
    )
    return Host(
        label=door.label,
        kernel=reader.text(paths.KERNEL_RELEASE),
        arch=reader.text(paths.KERNEL_ARCH),
        iommu=groups.has_any(),
        system_uuid=_system_uuid(door),
        nvidia_driver=reader.text(paths.NVIDIA_VERSION),
        numa=topology.read(reader),
        gpus=_finish(reader, read),
        nics=nic.read(reader, bus, held),
        platform_gpus=platform.read(reader),
        warnings=tuple(dict.fromkeys(reader.warnings)),
    )


def _claim(reader: Reader, bus: Bus, vendors: Sequence[Vendor]) -> list[_Claimed]:
    """The GPUs among the displays: each with the first vendor that claims it.

    A second display function of a slot belongs to the card of the first.
    """
    found: list[_Claimed] = []
    slots: set[str] = set()
    for node in bus.displays:
        if node.address.card in slots:
            continue
        function = pci.function(reader, node.address, node.class_code)
        vendor = next((one for one in vendors if one.claims(function)), None)
        if vendor is not None:
            slots.add(node.address.card)
            found.append((node, function, vendor))
    return found


def _probe(reader: Reader, claimed: Sequence[_Claimed]) -> dict[PciAddress, Facts]:
    found: dict[PciAddress, Facts] = {}
    for vendor in dict.fromkeys(vendor for _, _, vendor in claimed):
        found.update(vendor.probe(reader, [gpu for _, gpu, one in claimed if one is vendor]))
    return found


def _system_uuid(door: Door) -> str | None:
    # Readable by root only; for others it is unknown and no warning.
    return Reader(door).text(paths.PRODUCT_UUID)


def _finish(reader: Reader, read: Sequence[card.ReadCard]) -> tuple[Gpu, ...]:
    """Offers need what other cards of the same model say: a type's name, the full size."""
    known = giving.known_types(read)
    totals = giving.totals(read)
    nameless = {one.ids for one in read if one.facts.name is None}
    names: Mapping[tuple[str, str], str] = model_names.look_up(reader, nameless)
    return tuple(
        msgspec.structs.replace(gpu, name=gpu.name or names.get(one.ids))
        for one in read
        for gpu in (giving.finish(one, known, totals.get(one.ids)),)
    )
