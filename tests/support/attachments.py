"""Slices as host devices, one of every mechanism."""

from __future__ import annotations

from virtgpu.model.attachment import Attachment
from virtgpu.model.gpu import Mechanism
from virtgpu.model.pci import PciAddress

UUID = "c7a5fdbd-cdaf-9455-926a-d65c16db1809"
MDEV = "4b200000-0000-4000-8000-000000005c01"


def pci(text: str) -> PciAddress:
    return PciAddress.parse(text)


def whole(card: str, functions: int = 1, *, slice_id: str = "card") -> Attachment:
    slot = card[:-1]
    return Attachment(
        slice_id=slice_id,
        mechanism=Mechanism.WHOLE,
        request=f"gpu on {card}",
        gpu=pci(card),
        functions=tuple(pci(f"{slot}{number}") for number in range(functions)),
        framebuffer_mib=24576,
        numa_node=0,
        why="the card was named",
    )


def plain_vf(vf: str = "0000:4d:00.1") -> Attachment:
    return Attachment(
        slice_id="vf1",
        mechanism=Mechanism.VF,
        request="vf",
        gpu=pci(vf[:-1] + "0"),
        functions=(pci(vf),),
    )


def mdev(uuid: str = MDEV, *, slice_id: str = "4b200000") -> Attachment:
    return Attachment(
        slice_id=slice_id,
        mechanism=Mechanism.MDEV_VF,
        request="A40-12Q",
        gpu=pci("0000:51:00.0"),
        mdev=uuid,
        type_name="NVIDIA A40-12Q",
        framebuffer_mib=12288,
        numa_node=1,
        why="best fit: 36 of 48 GB left",
    )


def vendor_vfio(vf: str = "0000:82:00.4", *, slice_id: str = "l40s") -> Attachment:
    return Attachment(
        slice_id=slice_id,
        mechanism=Mechanism.VENDOR_VFIO,
        request="L40S-1Q",
        gpu=pci("0000:82:00.0"),
        functions=(pci(vf),),
        managed=False,
        type_name="NVIDIA L40S-1Q",
        framebuffer_mib=1024,
    )


def mig() -> Attachment:
    return Attachment(
        slice_id="mig0",
        mechanism=Mechanism.MIG,
        request="mig:1g.10gb",
        gpu=pci("0000:1b:00.0"),
        functions=(pci("0000:1b:00.4"),),
        managed=False,
        type_name="NVIDIA H100XM-1-10C",
        framebuffer_mib=10240,
    )


# What a guest may be given: a name for golden files, the slices, whether it shows a screen.
GUESTS: dict[str, tuple[tuple[Attachment, ...], bool]] = {
    "whole-single": ((whole("0000:3b:00.0"),), False),
    "whole-multifunction": ((whole("0000:09:00.0", 4),), False),
    "several-cards": (
        tuple(whole(f"0000:{bus}:00.0", 2, slice_id=f"c{bus}") for bus in ("17", "31", "b1")),
        False,
    ),
    "plain-vf": ((plain_vf(),), False),
    "mdev": ((mdev(),), False),
    "mdev-display": ((mdev(), mdev(MDEV[:-1] + "2", slice_id="4b200001")), True),
    "vendor-vfio": ((vendor_vfio(),), False),
    "mig": ((mig(),), False),
    "domain-10000": ((whole("10000:01:00.0"),), False),
    "mixed": ((whole("0001:d6:00.0", 2), mdev(), vendor_vfio(), plain_vf()), False),
}
