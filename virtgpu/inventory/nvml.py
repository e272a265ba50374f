"""What NVML says, by PCI address. Every refusal is an unknown, never an error."""

from __future__ import annotations

from typing import Any

import msgspec

from virtgpu.errors import VirtgpuError
from virtgpu.inventory import mig
from virtgpu.inventory.names import parse_type
from virtgpu.inventory.vendor import Facts, Places
from virtgpu.model.gpu import (
    GiProfile,
    GpuInstance,
    Mechanism,
    Mig,
    NvmlFacts,
    SliceType,
)
from virtgpu.model.pci import PciAddress

# The words of nvidia-smi, which answers the same questions where NVML is absent.
VIRTUALIZATION_MODES = {0: "None", 1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
HOST_VGPU_MODES = {0: "Non SR-IOV", 1: "SR-IOV"}
_NO_GI_PROFILE = 0xFFFFFFFF  # 0 is a real profile: the whole card
_MOST = 64


class _Nvml:
    """NVML's functions with None for every answer that it refuses."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._refusals: tuple[type[Exception], ...] = (library.NVMLError,)

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer; None when NVML refuses or this version has no such function."""
        call = getattr(self._library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._refusals:
            return None

    def count(self, name: str, otherwise: int) -> int:
        """One of NVML's numbers by name."""
        return int(getattr(self._library, name, otherwise))

    def handles(self, function: str, kind: str, *arguments: Any) -> list[Any]:
        """What a function fills into a buffer of *kind* and counts."""
        import ctypes  # late: NVML is asked for handles only where MIG is on

        element = getattr(self._library, kind, ctypes.c_void_p)
        buffer = (element * _MOST)()
        count = ctypes.c_uint(0)
        if self.ask(function, *arguments, buffer, ctypes.byref(count)) is None:
            return []
        return [buffer[i] for i in range(min(count.value, _MOST))]


def read(library: Any) -> dict[PciAddress, Facts]:
    """The facts of every GPU that NVML shows and that is a PCI device."""
    nvml = _Nvml(library)
    found = {}
    for index in range(nvml.ask("nvmlDeviceGetCount") or 0):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        address = _address(nvml, handle) if handle is not None else None
        if address is not None:
            found[address] = _facts(nvml, handle, index)
    return found


def driver_version(library: Any) -> str | None:
    """The host driver's version."""
    return _text(_Nvml(library).ask("nvmlSystemGetDriverVersion"))


def serial(library: Any, index: int, address: PciAddress) -> str | None:
    """The board's serial number; None where it has none (GeForce) or another GPU answers now."""
    nvml = _Nvml(library)
    handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None or _address(nvml, handle) != address:
        return None
    return _text(nvml.ask("nvmlDeviceGetSerial", handle))


def _address(nvml: _Nvml, handle: Any) -> PciAddress | None:
    info = nvml.ask("nvmlDeviceGetPciInfo", handle)
    try:
        return PciAddress.parse(_text(getattr(info, "busId", None)) or "")
    except VirtgpuError:
        return None  # a Jetson's GPU has no bus id


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value or None if isinstance(value, str) else None


def _facts(nvml: _Nvml, handle: Any, index: int) -> Facts:
    mode = _mig(nvml, handle)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    types = _types(nvml, handle, mode)
    heterogeneous = nvml.ask("nvmlDeviceGetVgpuHeterogeneousMode", handle)
    mixed = None if heterogeneous is None else bool(heterogeneous)
    name = _text(nvml.ask("nvmlDeviceGetName", handle))
    minor = nvml.ask("nvmlDeviceGetMinorNumber", handle)
    facts = NvmlFacts(
        index=index,
        name=name,
        uuid=_text(nvml.ask("nvmlDeviceGetUUID", handle)),
        minor=minor,
        memory_total_mib=_mib(memory, "total"),
        memory_used_mib=_mib(memory, "used"),
        virtualization_mode=VIRTUALIZATION_MODES.get(
            nvml.ask("nvmlDeviceGetVirtualizationMode", handle)
        ),
        host_vgpu_mode=HOST_VGPU_MODES.get(nvml.ask("nvmlDeviceGetHostVgpuMode", handle)),
        mixed_size=mixed,
        mig=mode,
        types=types,
    )
    places = _places(nvml, handle, types) if mixed else {}
    return Facts(name=name, minor=minor, nvml=facts, mixed_size=mixed, places=places)


def _mib(memory: Any, field: str) -> int | None:
    value = getattr(memory, field, None)
    return int(value) >> 20 if value is not None else None


def _mig(nvml: _Nvml, handle: Any) -> Mig | None:
    modes = nvml.ask("nvmlDeviceGetMigMode", handle)
    if modes is None:
        return None
    current, pending = (bool(mode) for mode in modes)
    if not current:  # pending is not on: no instance exists before the reset
        return Mig(current=False, pending=pending)
    read_profiles = tuple(
        profile
        for number in range(nvml.count("NVML_GPU_INSTANCE_PROFILE_COUNT", 18))
        if (profile := _profile(nvml, handle, number)) is not None
    )
    instances = tuple(
        instance for profile in read_profiles for instance in _instances(nvml, handle, profile)
    )
    return Mig(
        current=True,
        pending=pending,
        profiles=tuple(
            _with_free(nvml, handle, one, read_profiles, instances) for one in read_profiles
        ),
        instances=tuple(sorted(instances, key=lambda one: (one.start, one.id))),
    )


def _profile(nvml: _Nvml, handle: Any, number: int) -> GiProfile | None:
    info = nvml.ask("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
    name = _text(getattr(info, "name", None))
    if info is None or name is None:
        return None
    places = nvml.handles(
        "nvmlDeviceGetGpuInstancePossiblePlacements",
        "c_nvmlGpuInstancePlacement_t",
        handle,
        info.id,
    )
    return GiProfile(
        id=int(info.id),
        name=name.removeprefix("MIG ").strip(),
        slices=int(info.sliceCount),
        size=int(places[0].size) if places else 0,
        starts=tuple(sorted(int(place.start) for place in places)),
        max_instances=int(info.instanceCount),
        memory_mib=int(info.memorySizeMB),
    )


def _with_free(
    nvml: _Nvml,
    handle: Any,
    profile: GiProfile,
    profiles: tuple[GiProfile, ...],
    instances: tuple[GpuInstance, ...],
) -> GiProfile:
    free = nvml.ask("nvmlDeviceGetGpuInstanceRemainingCapacity", handle, profile.id)
    if free is None:
        free = mig.count_free(profile, profiles, instances)
    return msgspec.structs.replace(profile, free=int(free))


def _instances(nvml: _Nvml, handle: Any, profile: GiProfile) -> list[GpuInstance]:
    found = []
    for instance in nvml.handles(
        "nvmlDeviceGetGpuInstances", "c_nvmlGpuInstance_t", handle, profile.id
    ):
        info = nvml.ask("nvmlGpuInstanceGetInfo", instance)
        if info is not None:
            found.append(
                GpuInstance(
                    id=int(info.id),
                    profile_id=int(info.profileId),
                    start=int(info.placement.start),
                    size=int(info.placement.size),
                    compute_instances=_compute_instances(nvml, instance),
                )
            )
    return found


def _compute_instances(nvml: _Nvml, instance: Any) -> tuple[int, ...]:
    ids: set[int] = set()
    for number in range(nvml.count("NVML_COMPUTE_INSTANCE_PROFILE_COUNT", 9)):
        profile = nvml.ask("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, number, 0)
        if profile is None:
            continue
        for compute in nvml.handles(
            "nvmlGpuInstanceGetComputeInstances", "c_nvmlComputeInstance_t", instance, profile.id
        ):
            info = nvml.ask("nvmlComputeInstanceGetInfo", compute)
            if info is not None:
                ids.add(int(info.id))
    return tuple(sorted(ids))


def _types(nvml: _Nvml, handle: Any, mode: Mig | None) -> tuple[SliceType, ...]:
    profiles = {one.id: one.name for one in mode.profiles} if mode is not None else {}
    return tuple(
        _type(nvml, handle, type_id, profiles)
        for type_id in nvml.ask("nvmlDeviceGetSupportedVgpus", handle) or ()
    )


def _type(nvml: _Nvml, handle: Any, type_id: int, profiles: dict[int, str]) -> SliceType:
    name = _text(nvml.ask("nvmlVgpuTypeGetName", type_id))
    profile = nvml.ask("nvmlVgpuTypeGetGpuInstanceProfileId", type_id)
    documented = parse_type(name) if name else None
    is_mig = (
        profile not in (None, _NO_GI_PROFILE)
        if documented is None
        else documented.gi_slices is not None
    )
    size = nvml.ask("nvmlVgpuTypeGetFramebufferSize", type_id)
    return SliceType(
        id=str(int(type_id)),
        name=name,
        mechanism=Mechanism.MIG if is_mig else Mechanism.VENDOR_VFIO,
        framebuffer_mib=nominal(
            int(size) >> 20 if size is not None else None,
            documented.framebuffer_mib if documented is not None else None,
        ),
        max_instances=nvml.ask("nvmlVgpuTypeGetMaxInstances", handle, type_id),
        gi_profile=profiles.get(profile) if is_mig else None,
        device_api="vfio-pci",
    )


def nominal(said_mib: int | None, documented_mib: int | None) -> int | None:
    """The size that placement counts in: what is said, unless it is the documented size less a
    reservation (96246 MiB is said of the 94 GB types, and two 47 GB types fit there)."""
    if said_mib is None or documented_mib is None:
        return said_mib if documented_mib is None else documented_mib
    return documented_mib if abs(said_mib - documented_mib) * 20 <= documented_mib else said_mib


def _places(nvml: _Nvml, handle: Any, types: tuple[SliceType, ...]) -> dict[str, Places]:
    found = {}
    for one in types:
        answer = nvml.ask("nvmlDeviceGetVgpuTypeCreatablePlacements", handle, int(one.id))
        if answer is None or not answer.placementSize:
            continue
        starts = tuple(sorted(int(answer.placementIds[i]) for i in range(answer.count)))
        found[one.id] = Places(int(answer.placementSize), starts)
    return found
