"""All that writing can change on a simulated machine; it outlives the process as JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from virtgpu.errors import Config
from virtgpu.sim.profiles import Json, Profile

_FIRST_PID = 40001


class Instance(msgspec.Struct, forbid_unknown_fields=True):
    """A GPU instance with its compute instances."""

    gi_id: int
    profile_id: int
    start: int
    size: int
    ci: list[int] = []


class Vgpu(msgspec.Struct, forbid_unknown_fields=True):
    """A vGPU on a VF, or a mediated device. *placement* in GB of nominal frame buffer."""

    type_id: str
    placement: int | None = None
    gi_id: int | None = None


class Mdev(msgspec.Struct, forbid_unknown_fields=True):
    """A mediated device."""

    uuid: str
    parent: str
    vgpu: Vgpu
    group: int


class Mode(msgspec.Struct, forbid_unknown_fields=True):
    """MIG mode now, and after the next reset."""

    current: bool
    pending: bool


class Process(msgspec.Struct, forbid_unknown_fields=True):
    """A process that has device files open. *owner* is the mdev UUID or VF that it runs on."""

    pid: int
    command: str
    files: list[str]
    owner: str | None = None


class State(msgspec.Struct, forbid_unknown_fields=True):
    """What there is beside the profile. Keys are PCI addresses, but for *new_ids*."""

    numvfs: dict[str, int] = {}
    drivers: dict[str, str | None] = {}
    overrides: dict[str, str] = {}
    new_ids: dict[str, list[str]] = {}
    autoprobe: dict[str, bool] = {}
    vgpus: dict[str, Vgpu] = {}
    mdevs: list[Mdev] = []
    mig: dict[str, Mode] = {}
    instances: dict[str, list[Instance]] = {}
    mixed: dict[str, bool] = {}
    holders: list[Process] = []
    due: dict[str, float] = {}
    clear_refusals: Annotated[int, Meta(ge=0)] = 0


def restore(raw: Json, source: str) -> State:
    """The state of a stored snapshot; raises `Config`."""
    try:
        return msgspec.convert(raw, State)
    except msgspec.ValidationError as error:
        raise Config(f"{source}: {error}", hint="forget it with: virtgpu sim reset NAME") from error


def initial(profile: Profile) -> State:
    """The state that the profile describes; mediated devices and holders come with the kernel."""
    state = State(clear_refusals=int(profile.choices.get("clear_refusals") or 0))
    for spec in profile.pci:
        address = spec["address"]
        state.drivers[address] = spec.get("driver")
        if spec.get("driver_override"):
            state.overrides[address] = spec["driver_override"]
        sriov = spec.get("sriov") or {}
        if sriov:
            state.numvfs[address] = int(sriov.get("numvfs") or 0)
            state.autoprobe[address] = bool(sriov.get("autoprobe", 1))
        _add_nvml(profile, address, state)
    for found in (profile.raw.get("nvml") or {}).get("vgpus") or []:
        if found.get("mdev_uuid") is None and found.get("vf"):
            state.vgpus[found["vf"]] = Vgpu(
                str(found["type_id"]), found.get("placement_id"), found.get("gpu_instance_id")
            )
    return state


def _add_nvml(profile: Profile, address: str, state: State) -> None:
    device = profile.nvml_device(address)
    if device is None:
        return
    mig = device.get("mig") or {}
    if mig.get("current") is not None:
        state.mig[address] = Mode(mig["current"] == "Enabled", mig.get("pending") == "Enabled")
    mode = device.get("vgpu_heterogeneous_mode")
    if mode is not None:
        state.mixed[address] = mode == "Enabled"
    for entry in (profile.raw.get("nvml") or {}).get("gpu_instances") or []:
        if entry.get("gpu") == device.get("index") and entry["instances"]:
            state.instances[address] = [
                Instance(
                    one["gi_id"], one["profile_id"], one["start"], 0, list(one.get("ci") or [])
                )
                for one in entry["instances"]
            ]


def next_pid(state: State) -> int:
    """A process number that nobody has."""
    return max((one.pid for one in state.holders), default=_FIRST_PID - 1) + 1
