"""A simulated NVML: the functions of the module pynvml that an inventory asks, answered from the
kernel's own state. A value that the profile lacks is refused as the library does."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from virtgpu.sim.profiles import Json

_NOT_SUPPORTED, _NOT_FOUND, _INVALID_ARGUMENT = 3, 6, 2
_NAMES = {_NOT_SUPPORTED: "Not Supported", _NOT_FOUND: "Not Found", _INVALID_ARGUMENT: "Invalid"}
_MODES = {"None": 0, "Pass-Through": 1, "VGPU": 2, "Host VGPU": 3, "Host VSGA": 4}
_HOST_MODES = {"Non SR-IOV": 0, "SR-IOV": 1}
_NO_PROFILE = 0xFFFFFFFF


class NVMLError(Exception):
    """What the library raises; *value* is its error code."""

    def __init__(self, value: int) -> None:
        super().__init__(_NAMES.get(value, f"error {value}"))
        self.value = value


@cache
def _placement() -> Any:
    """nvmlGpuInstancePlacement_t; ctypes is imported when somebody asks for MIG."""
    import ctypes

    fields = (("start", ctypes.c_uint), ("size", ctypes.c_uint))
    return type("c_nvmlGpuInstancePlacement_t", (ctypes.Structure,), {"_fields_": fields})


class Nvml:
    """The module's functions and constants, for one state of the machine."""

    NVMLError = NVMLError
    NVML_GPU_INSTANCE_PROFILE_COUNT = 18
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT = 9

    def __init__(self, state: Json) -> None:
        self._state = state
        self._devices: list[Json] = list(state.get("devices") or [])

    def __getattr__(self, name: str) -> Any:
        """Functions are called as the module spells them: `nvmlDeviceGetName`. Handles of
        instances are pointers, as where no class of the module is named."""
        if name == "c_nvmlGpuInstancePlacement_t":
            return _placement()
        if name.startswith("nvml"):
            own = getattr(type(self), f"_{_snake(name)}", None)
            if own is not None:
                return own.__get__(self)
        raise AttributeError(name)

    # -- the library

    def _init(self) -> None:
        pass

    def _shutdown(self) -> None:
        pass

    def _system_get_driver_version(self) -> str:
        return str(_said(self._state.get("driver_version")))

    def _device_get_count(self) -> int:
        return len(self._devices)

    def _device_get_handle_by_index(self, index: int) -> Json:
        if not 0 <= index < len(self._devices):
            raise NVMLError(_INVALID_ARGUMENT)
        return self._devices[index]

    def _device_get_handle_by_pci_bus_id(self, bus_id: str) -> Json:
        for one in self._devices:
            if str(one.get("pci_bus_id")).lower() == bus_id.lower():
                return one
        raise NVMLError(_NOT_FOUND)

    # -- one device

    def _device_get_pci_info(self, device: Json) -> SimpleNamespace:
        return SimpleNamespace(busId=_said(device.get("pci_bus_id")))

    def _device_get_name(self, device: Json) -> str:
        return str(_said(device.get("name")))

    def _device_get_uuid(self, device: Json) -> str:
        return str(_said(device.get("uuid")))

    def _device_get_serial(self, device: Json) -> str:
        return str(_said(device.get("serial")))

    def _device_get_minor_number(self, device: Json) -> int:
        return int(_said(device.get("minor")))

    def _device_get_memory_info(self, device: Json) -> SimpleNamespace:
        total, used = _said(device.get("memory_total_mib")), device.get("memory_used_mib") or 0
        return SimpleNamespace(total=total << 20, used=used << 20, free=(total - used) << 20)

    def _device_get_virtualization_mode(self, device: Json) -> int:
        return _MODES[str(_said(device.get("virtualization_mode")))]

    def _device_get_host_vgpu_mode(self, device: Json) -> int:
        return _HOST_MODES[str(_said(device.get("host_vgpu_mode")))]

    def _device_get_vgpu_heterogeneous_mode(self, device: Json) -> int:
        return int(bool(_said(device.get("mixed"))))

    def _device_get_mig_mode(self, device: Json) -> list[int]:
        mode = _said(device.get("mig"))
        return [int(mode["current"]), int(mode["pending"])]

    # -- GPU instances; a handle is a number, as the library's is a pointer

    def _device_get_gpu_instance_profile_info(self, device: Json, number: int) -> SimpleNamespace:
        for one in device["profiles"]:
            if one.get("nvml_profile") == number:
                return SimpleNamespace(
                    id=one["id"],
                    name=f"MIG {one['name']}",
                    sliceCount=one["slices"],
                    instanceCount=one["max"],
                    memorySizeMB=one["memory_mib"],
                )
        raise NVMLError(_NOT_SUPPORTED)

    def _device_get_gpu_instance_possible_placements(
        self, device: Json, profile: int, buffer: Any, count: Any
    ) -> int:
        found = self._profile(device, profile)
        for number, start in enumerate(found["starts"]):
            buffer[number] = _placement()(start, found["size"])
        count._obj.value = len(found["starts"])  # noqa: SLF001 - how ctypes passes by reference
        return 0

    def _device_get_gpu_instance_remaining_capacity(self, device: Json, profile: int) -> int:
        return int(self._profile(device, profile)["free"])

    def _device_get_gpu_instances(self, device: Json, profile: int, buffer: Any, count: Any) -> int:
        found = [one for one in device["gi"] if one["profile_id"] == profile]
        for number, one in enumerate(found):
            buffer[number] = (device["index"] + 1) << 16 | (one["gi_id"] + 1)
        count._obj.value = len(found)  # noqa: SLF001
        return 0

    def _gpu_instance_get_info(self, handle: int) -> SimpleNamespace:
        one = self._instance(handle)
        return SimpleNamespace(
            id=one["gi_id"],
            profileId=one["profile_id"],
            placement=SimpleNamespace(start=one["start"], size=one["size"]),
        )

    def _gpu_instance_get_compute_instance_profile_info(
        self, handle: int, number: int, _engine: int
    ) -> SimpleNamespace:
        self._instance(handle)
        if number:  # one profile: the whole instance
            raise NVMLError(_NOT_SUPPORTED)
        return SimpleNamespace(id=0)

    def _gpu_instance_get_compute_instances(
        self, handle: int, _profile: int, buffer: Any, count: Any
    ) -> int:
        ids = self._instance(handle)["ci"]
        for number, ci in enumerate(ids):
            buffer[number] = ci + 1
        count._obj.value = len(ids)  # noqa: SLF001
        return 0

    def _compute_instance_get_info(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(id=handle - 1)

    def _profile(self, device: Json, profile: int) -> Json:
        for one in device["profiles"]:
            if one["id"] == profile:
                return dict(one)
        raise NVMLError(_INVALID_ARGUMENT)

    def _instance(self, handle: int) -> Json:
        device, gi_id = self._devices[(handle >> 16) - 1], (handle & 0xFFFF) - 1
        return dict(next(one for one in device["gi"] if one["gi_id"] == gi_id))

    # -- vGPU types

    def _device_get_supported_vgpus(self, device: Json) -> list[int]:
        return [int(one["id"]) for one in device["types"]]

    def _device_get_creatable_vgpus(self, device: Json) -> list[int]:
        return [int(one) for one in device["creatable"]]

    def _vgpu_type_get_name(self, type_id: int) -> str:
        return str(_said(self._type(type_id)["name"]))

    def _vgpu_type_get_gpu_instance_profile_id(self, type_id: int) -> int:
        name = self._type(type_id)["gi_profile"]
        for device in self._devices:
            for one in device["profiles"]:
                if name is not None and one["name"] == name:
                    return int(one["id"])
        return _NO_PROFILE

    def _vgpu_type_get_framebuffer_size(self, type_id: int) -> int:
        return int(self._type(type_id)["fb_mib"]) << 20

    def _vgpu_type_get_max_instances(self, device: Json, type_id: int) -> int:  # noqa: ARG002
        return int(self._type(type_id)["max_instances"])

    def _device_get_vgpu_type_creatable_placements(
        self, device: Json, type_id: int
    ) -> SimpleNamespace:
        return _placements(device, type_id, "starts")

    def _device_get_vgpu_type_supported_placements(
        self, device: Json, type_id: int
    ) -> SimpleNamespace:
        return _placements(device, type_id, "supported")

    def _type(self, type_id: int) -> Json:
        for device in self._devices:
            for one in device["types"]:
                if one["id"] == type_id:
                    return dict(one)
        raise NVMLError(_INVALID_ARGUMENT)


def _said(value: Any) -> Any:
    """The value; refused where the profile has none."""
    if value is None:
        raise NVMLError(_NOT_SUPPORTED)
    return value


def _placements(device: Json, type_id: int, key: str) -> SimpleNamespace:
    places = device["places"].get(type_id) or device["places"].get(str(type_id))
    if places is None:
        raise NVMLError(_NOT_SUPPORTED)
    starts = places[key]
    return SimpleNamespace(placementSize=places["size"], count=len(starts), placementIds=starts)


def _snake(name: str) -> str:
    """`nvmlDeviceGetMigMode` as `device_get_mig_mode`."""
    text = name.removeprefix("nvml")
    for word in ("PCI", "UUID", "MIG"):
        text = text.replace(word, word.title())
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in text).lstrip("_")
