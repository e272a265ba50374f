"""What a profile must look like, as far as the kernel model relies on it; other keys are free."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from virtgpu.errors import Config

_Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]+\Z", max_length=6)]
_Address = Annotated[
    str, Meta(pattern=r"\A[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\Z", max_length=16)
]
_Count = Annotated[int, Meta(ge=0, le=4096)]


_Class = Annotated[str, Meta(pattern=r"\A[0-9a-f]{6}\Z")]
_Revision = Annotated[str, Meta(pattern=r"\A[0-9a-f]{2}\Z")]
_Id = Annotated[str, Meta(pattern=r"\A[0-9a-f]{4}\Z")]
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]+\Z", max_length=64)]


class _Sriov(msgspec.Struct, frozen=True):
    totalvfs: _Count
    numvfs: _Count = 0
    offset: Annotated[int, Meta(ge=0, le=65535)] = 1
    stride: Annotated[int, Meta(ge=0, le=65535)] = 1
    vf_device: _Hex | None = None


class _Vf(msgspec.Struct, frozen=True):
    driver: _Name | None = None
    drivers: dict[str, _Name | None] | None = None
    vendor: _Id | None = None
    device: _Id | None = None
    subsystem_vendor: _Id | None = None
    subsystem_device: _Id | None = None
    class_code: _Class | None = msgspec.field(name="class", default=None)
    revision: _Revision | None = None
    iommu_group_first: _Count | None = None


class _Reference(msgspec.Struct, frozen=True):
    types_ref: str
    on: str = "vf"


class _Pci(msgspec.Struct, frozen=True):
    address: _Address
    vendor: _Id
    device: _Id
    subsystem_vendor: _Id | None = None
    subsystem_device: _Id | None = None
    class_code: _Class | None = msgspec.field(name="class", default=None)
    revision: _Revision | None = None
    numa_node: Annotated[int, Meta(ge=-1, le=1023)] | None = None
    iommu_group: _Count | None = None
    driver: _Name | None = None
    sriov: _Sriov | None = None
    vf: _Vf | None = None
    mdev: _Reference | None = None
    vendor_vfio: _Reference | None = None


class _Host(msgspec.Struct, frozen=True):
    kernel: str | None = None
    modules: dict[str, str | None] | None = None
    numa: list[dict[str, Any]] | None = None


class _Type(msgspec.Struct, frozen=True):
    id: int | str | None
    name: str | None = None
    fb_mib: Annotated[int, Meta(ge=0, le=1 << 24)] | None = None


class _Profile(msgspec.Struct, frozen=True):
    schema: int
    host: _Host | None = None
    pci: list[_Pci] | None = None
    mdev_types: dict[str, list[_Type]] | None = None
    vgpu_types: dict[str, list[_Type]] | None = None
    mdev_devices: list[dict[str, Any]] | None = None


def check(raw: dict[str, Any], source: str) -> None:
    """Raises `Config` that names *source* and the place of the first mistake."""
    try:
        profile = msgspec.convert(raw, _Profile)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Config(f"{source}: {error}") from error
    addresses = [one.address for one in profile.pci or []]
    if len(set(addresses)) != len(addresses):
        raise Config(f"{source}: a PCI address is there twice")
    for one in profile.pci or []:
        for found, tables in (
            (one.mdev, profile.mdev_types),
            (one.vendor_vfio, profile.vgpu_types),
        ):
            if found is not None and found.types_ref not in (tables or {}):
                raise Config(f"{source}: {one.address} names types {found.types_ref!r}, not there")
