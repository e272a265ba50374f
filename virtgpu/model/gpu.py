"""What the inventory found: frozen values, `None` where the host does not say.

Sizes are MiB of *nominal* frame buffer (the `framebuffer=` of an mdev
description, the gigabytes in a vGPU type's name times 1024), because placement
and capacity count in that unit.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from virtgpu.model.pci import PciAddress


class Mechanism(StrEnum):
    """A way to give (a piece of) a GPU to a guest."""

    WHOLE = "whole-card"
    VF = "plain-vf"
    MDEV_PF = "mdev-pf"
    MDEV_VF = "mdev-vf"
    VENDOR_VFIO = "vendor-vfio"
    MIG = "mig-vgpu"


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all inventory values."""


class Holder(_Value, frozen=True, kw_only=True):
    """Who has a device in use now: a process with a file, or a user without one.

    *pid* is None for a holder without a descriptor (console, frame buffer). *function* is the
    one of the card that is in use, None for the GPU itself.
    """

    file: str
    pid: int | None = None
    command: str | None = None
    function: PciAddress | None = None


class Function(_Value, frozen=True, kw_only=True):
    """One PCI function of a card: the GPU itself, its audio, USB, UCSI function."""

    address: PciAddress
    vendor_id: str
    device_id: str
    class_code: str
    driver: str | None = None
    driver_override: str | None = None
    iommu_group: int | None = None


class SliceType(_Value, frozen=True, kw_only=True):
    """A vGPU type as the driver offers it.

    *id* is what is written to the driver (`nvidia-563` for mdev, `563` for the
    vendor VFIO framework); *name* is the driver's own text, None where it gives
    none (GVT-g); *gi_profile* names the GPU instance profile of a MIG-backed type.
    """

    id: str
    name: str | None
    mechanism: Mechanism
    framebuffer_mib: int | None = None
    max_instances: int | None = None
    gi_profile: str | None = None
    device_api: str | None = None


class Offer(_Value, frozen=True, kw_only=True):
    """A type on one GPU: how many more can be made now, and why not when none.

    *available* is what is really left: the least of free VFs that list the type,
    frame buffer left and placements; None when it cannot be known. *vfs* are the
    free VFs that list the type now (empty for mdev on the PF).
    """

    type: SliceType
    available: int | None
    reason: str | None = None
    vfs: tuple[PciAddress, ...] = ()


class MdevDevice(_Value, frozen=True, kw_only=True):
    """A mediated device that exists."""

    uuid: str
    parent: PciAddress
    type_id: str
    iommu_group: int | None = None
    holders: tuple[Holder, ...] | None = None


class Vf(_Value, frozen=True, kw_only=True):
    """A virtual function. *index* counts from 0 as in `virtfn0`.

    *vgpu_type* is the id in `nvidia/current_vgpu_type`: "0" is none, None means that
    the file is not there or cannot be read. *creatable* are the ids that the VF lists
    now, None when there is no list or it cannot be read; an empty list is a fact.
    """

    address: PciAddress
    index: int
    vendor_id: str | None = None
    device_id: str | None = None
    driver: str | None = None
    driver_override: str | None = None
    iommu_group: int | None = None
    vgpu_type: str | None = None
    creatable: tuple[str, ...] | None = None
    gpu_instance_id: int | None = None
    placement_id: int | None = None
    mdev: MdevDevice | None = None
    holders: tuple[Holder, ...] | None = None


class Sriov(_Value, frozen=True, kw_only=True):
    """The SR-IOV capability. *usable* is false where it serves nothing (T4: VF device id 0000)."""

    total_vfs: int
    num_vfs: int
    vf_device_id: str | None
    offset: int | None
    stride: int | None
    usable: bool


class GiProfile(_Value, frozen=True, kw_only=True):
    """A GPU instance profile: *id* as `nvidia-smi mig -lgip` prints it, *name* without "MIG "."""

    id: int
    name: str
    slices: int
    size: int
    starts: tuple[int, ...]
    max_instances: int | None = None
    memory_mib: int | None = None
    free: int | None = None


class GpuInstance(_Value, frozen=True, kw_only=True):
    """A GPU instance that exists; *start* and *size* in memory slots."""

    id: int
    profile_id: int
    start: int
    size: int
    compute_instances: tuple[int, ...] = ()


class Mig(_Value, frozen=True, kw_only=True):
    """MIG mode now and after the next reset, with profiles and instances while it is on."""

    current: bool
    pending: bool
    profiles: tuple[GiProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether the next reset leaves the mode as it is."""
        return self.current == self.pending


class NvmlFacts(_Value, frozen=True, kw_only=True):
    """What NVML (or nvidia-smi) says about a GPU; joined by PCI bus id."""

    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    minor: int | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    virtualization_mode: str | None = None
    host_vgpu_mode: str | None = None
    mixed_size: bool | None = None
    mig: Mig | None = None
    types: tuple[SliceType, ...] = ()


class Missing(_Value, frozen=True, kw_only=True):
    """What a card lacks to offer what it could, and the command that mends it."""

    reason: str
    command: str


class Gpu(_Value, frozen=True, kw_only=True):
    """One physical GPU: its PF, the other functions of the card, its slices.

    *vendor* is `nvidia`, `amd`, `intel` or `other`. *functions* starts with the GPU
    itself; VFs are never among them. *group_others* are endpoints of the same IOMMU
    group that are no part of the card, and *strangers* the same with class and driver.
    *mixed_size* is None where the mode does not exist or is unknown. *mechanisms* are those that
    the host offers as it is now;
    *blocked* says why a whole card or any slice cannot be given away.
    *whole_only* says why the card cannot be sliced on this host, None where it can.
    *missing* says what its VFs lack to offer anything. *can_reset* is False where the kernel
    knows no way to reset this function alone.
    *enable_vfs* says how VFs are turned on: `sriov-manage`, `sriov_numvfs`, `module`, None.
    """

    address: PciAddress
    vendor: str
    vendor_id: str
    device_id: str
    subsystem_id: str | None = None
    class_code: str
    name: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    functions: tuple[Function, ...] = ()
    group_others: tuple[PciAddress, ...] = ()
    strangers: tuple[Function, ...] = ()
    bridges: tuple[PciAddress, ...] = ()
    sriov: Sriov | None = None
    enable_vfs: str | None = None
    vfs: tuple[Vf, ...] = ()
    mdevs: tuple[MdevDevice, ...] = ()
    mechanisms: tuple[Mechanism, ...] = ()
    blocked: str | None = None
    whole_only: str | None = None
    missing: Missing | None = None
    can_reset: bool | None = None
    offers: tuple[Offer, ...] = ()
    mixed_size: bool | None = None
    framebuffer_mib: int | None = None
    framebuffer_left_mib: int | None = None
    mig: Mig | None = None
    nvml: NvmlFacts | None = None
    boot_console: bool | None = None
    holders: tuple[Holder, ...] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def all_mdevs(self) -> tuple[MdevDevice, ...]:
        """The mediated devices on the PF and on its VFs."""
        return self.mdevs + tuple(vf.mdev for vf in self.vfs if vf.mdev is not None)


class Nic(_Value, frozen=True, kw_only=True):
    """A network function with an IOMMU group, for `--nic vf`; *pf* is None on a PF."""

    address: PciAddress
    pf: PciAddress | None = None
    driver: str | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    bridges: tuple[PciAddress, ...] = ()
    holders: tuple[Holder, ...] | None = None


class PlatformGpu(_Value, frozen=True, kw_only=True):
    """A GPU that is no PCI device (Jetson), with the reason why no guest can have it."""

    name: str
    reason: str


class NumaNode(_Value, frozen=True, kw_only=True):
    """A memory node of the host."""

    id: int
    cpulist: str | None = None
    memory_mib: int | None = None
    distances: tuple[int, ...] = ()


class Host(_Value, frozen=True, kw_only=True):
    """One reading of a host. *label* is `local` or `sim:NAME`."""

    label: str
    kernel: str | None = None
    arch: str | None = None
    iommu: bool | None = None
    system_uuid: str | None = None
    nvidia_driver: str | None = None
    numa: tuple[NumaNode, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    platform_gpus: tuple[PlatformGpu, ...] = ()
    warnings: tuple[str, ...] = ()

    def gpu(self, address: PciAddress) -> Gpu | None:
        """The GPU whose PF has this address, or None."""
        return next((gpu for gpu in self.gpus if gpu.address == address), None)
