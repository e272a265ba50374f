"""What a profile must look like, as far as the kernel model relies on it; other keys are free.

Annotations are values here, not texts: msgspec would have to compile each of them.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from virtgpu.errors import Config

_HEX = r"\A[0-9a-f]+\Z"  # one text, so that it is compiled once
_Hex = Annotated[str, Meta(pattern=_HEX, max_length=6)]
_Address = Annotated[
    str, Meta(pattern=r"\A[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\Z", max_length=16)
]
_Count = Annotated[int, Meta(ge=0, le=4096)]
_Mib = Annotated[int, Meta(ge=0, le=1 << 24)]


_Class = Annotated[str, Meta(pattern=_HEX, min_length=6, max_length=6)]
_Revision = Annotated[str, Meta(pattern=_HEX, min_length=2, max_length=2)]
_Id = Annotated[str, Meta(pattern=_HEX, min_length=4, max_length=4)]
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
    row: Annotated[str, Meta(pattern=r"\A[^%]*%-?\d*d[^%]*%s[^%]*\Z", max_length=64)] | None = None


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


class _Devicetree(msgspec.Struct, frozen=True):
    model: str | None = None
    compatible: list[str] | None = None


class _Host(msgspec.Struct, frozen=True):
    kernel: str | None = None
    devicetree: _Devicetree | None = None
    modules: dict[str, str | None] | None = None
    numa: list[dict[str, Any]] | None = None


class _MdevType(msgspec.Struct, frozen=True):
    id: str | int | None
    name: str | None = None
    fb_mib: _Mib | None = None
    max_instances_mixed: _Count | None = None


class _VgpuType(msgspec.Struct, frozen=True):
    id: Annotated[int, Meta(ge=1, lt=1 << 32)] | None
    name: str | None = None
    fb_mib: _Mib | None = None
    max_instances_mixed: _Count | None = None


class _GiProfile(msgspec.Struct, frozen=True):
    name: str
    profile_id: _Count
    slices: Annotated[int, Meta(ge=1, le=64)]
    size: Annotated[int, Meta(ge=1, le=64)]
    starts: list[_Count]
    max_instances: _Count
    memory_gib: Annotated[float, Meta(ge=0, le=1 << 20)] | None = None


class _Mig(msgspec.Struct, frozen=True):
    compute_slices: Annotated[int, Meta(ge=1, le=64)]
    profiles: list[_GiProfile] | None = None


class _NvmlDevice(msgspec.Struct, frozen=True):
    memory_total_mib: _Mib | None = None
    memory_used_mib: _Mib | None = None
    minor: _Count | None = None
    virtualization_mode: (
        Literal["None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA"] | None
    ) = None
    host_vgpu_mode: Literal["Non SR-IOV", "SR-IOV"] | None = None


class _Vgpu(msgspec.Struct, frozen=True):
    placement_id: _Count | None = None


class _Instance(msgspec.Struct, frozen=True):
    profile_id: _Count
    start: _Count
    gi_id: _Count | None = None
    ci: list[_Count] | None = None


class _Instances(msgspec.Struct, frozen=True):
    instances: list[_Instance] | None = None


class _Nvml(msgspec.Struct, frozen=True):
    devices: list[_NvmlDevice] | None = None
    vgpus: list[_Vgpu] | None = None
    gpu_instances: list[_Instances] | None = None


class _Placement(msgspec.Struct, frozen=True):
    mixed: dict[str, list[_Count]] | None = None


class _Profile(msgspec.Struct, frozen=True):
    schema: int
    host: _Host | None = None
    pci: list[_Pci] | None = None
    mdev_types: dict[str, list[_MdevType]] | None = None
    vgpu_types: dict[str, list[_VgpuType]] | None = None
    mdev_devices: list[dict[str, Any]] | None = None
    mig: dict[str, _Mig] | None = None
    nvml: _Nvml | None = None
    placement: _Placement | None = None


def check(raw: dict[str, Any], source: str) -> None:
    """Raises `Config` that names *source* and the place of the first mistake."""
    try:
        profile = msgspec.convert(raw, _Profile)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Config(f"{source}: {error}") from error
    addresses = [one.address for one in profile.pci or []]
    if len(set(addresses)) != len(addresses):
        raise Config(f"{source}: a PCI address is there twice")
    known = {
        one.profile_id for table in (profile.mig or {}).values() for one in table.profiles or []
    }
    for made in profile.nvml.gpu_instances or [] if profile.nvml is not None else []:
        for instance in made.instances or []:
            if instance.profile_id not in known:
                raise Config(
                    f"{source}: a GPU instance has profile {instance.profile_id}, not there"
                )
    for one in profile.pci or []:
        for found, tables in (
            (one.mdev, profile.mdev_types),
            (one.vendor_vfio, profile.vgpu_types),
        ):
            if found is not None and found.types_ref not in (tables or {}):
                raise Config(f"{source}: {one.address} names types {found.types_ref!r}, not there")
