"""GPU instances: an existing one with room, else where a new one leaves most for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from virtgpu.errors import Conflict, Unsupported
from virtgpu.inventory.mig import count_free, starts_that_fit
from virtgpu.model.gpu import GiProfile, Gpu, GpuInstance, SliceType
from virtgpu.policy.options import Refusal
from virtgpu.policy.taken import Taken, why_not_empty


class Target(NamedTuple):
    """The GPU instance of a vGPU: one that exists (*start* None), or a new one at *start*.

    *turn_on*: MIG mode has to go on first.
    """

    profile: GiProfile
    start: int | None = None
    turn_on: bool = False


def why_pending(gpu: Gpu) -> Refusal | None:
    """A MIG mode that is only pending comes with the card's next reset, whoever is on it then."""
    if gpu.mig is None or gpu.mig.is_settled:
        return None
    words, at = {True: "on", False: "off"}, gpu.address
    now, then = words[gpu.mig.current], words[gpu.mig.pending]
    return Refusal(
        f"MIG mode of {at} is {now}, and {then} after its next reset",
        Conflict,
        f"with nobody on it: nvidia-smi --gpu-reset -i {at}; or take it back: nvidia-smi -i {at}"
        f" -mig {int(gpu.mig.current)}",
    )


def target(gpu: Gpu, kind: SliceType, taken: Taken) -> Target | Refusal:
    """Where the type's GPU instance is or would be on this GPU."""
    profile = profile_of(gpu, kind.gi_profile, taken)
    if isinstance(profile, Refusal):
        return profile
    if gpu.mig is not None and gpu.mig.current:
        if any(one.profile_id == profile.id for one in gpu.mig.instances):
            return Target(profile)
        return new_instance(gpu, kind, taken)
    return _with_mode_on(gpu, profile, taken)


def profile_of(gpu: Gpu, name: str | None, taken: Taken) -> GiProfile | Refusal:
    """The profile of that name in the card's own table, or a sibling's while MIG is off here."""
    if gpu.mig is None:
        return Refusal(f"{gpu.address} has no MIG mode that can be seen", Unsupported)
    for one in profiles_of(gpu, taken):
        if one.name == name:
            return one
    return Refusal(f"{gpu.address} has no GPU instance profile {name or '(unknown)'}", Unsupported)


def profiles_of(gpu: Gpu, taken: Taken) -> tuple[GiProfile, ...]:
    """The profiles of the card; NVML shows them only while MIG is on, so a card of the same
    model that has it on may speak for it."""
    if gpu.mig is not None and gpu.mig.profiles:
        return gpu.mig.profiles
    for other in taken.host.gpus:
        is_same = (other.vendor_id, other.device_id) == (gpu.vendor_id, gpu.device_id)
        if is_same and other.mig is not None and other.mig.profiles:
            return other.mig.profiles
    return ()


def new_instance(gpu: Gpu, kind: SliceType, taken: Taken) -> Target | Refusal:
    """A new GPU instance on a card with MIG on."""
    profile = profile_of(gpu, kind.gi_profile, taken)
    if isinstance(profile, Refusal):
        return profile
    start = _best_start(gpu, profile, taken)
    if start is None:
        return _no_room(gpu, profile, taken)
    return Target(profile, start)


def _no_room(gpu: Gpu, profile: GiProfile, taken: Taken) -> Refusal:
    made = len(gpu.mig.instances) if gpu.mig is not None else 0
    why = "; ".join(filter(None, (f"{made} are there" if made else "", taken.spoken_for(gpu))))
    text = f"{gpu.address} has no room for a GPU instance {profile.name}"
    return Refusal(f"{text} ({why})" if why else text)


def instances(gpu: Gpu, taken: Taken) -> tuple[GpuInstance, ...]:
    """The GPU instances that are there, and those that promised slices will bring."""
    found = gpu.mig.instances if gpu.mig is not None else ()
    promised = tuple(
        GpuInstance(id=-1, profile_id=one.gi_profile_id, start=one.gi_start, size=one.gi_size or 1)
        for one in taken.unseen(gpu)
        if one.gi_start is not None
        and one.gi_profile_id is not None
        and not any((i.profile_id, i.start) == (one.gi_profile_id, one.gi_start) for i in found)
    )
    return (*found, *promised)


def _best_start(gpu: Gpu, profile: GiProfile, taken: Taken) -> int | None:
    profiles, there = profiles_of(gpu, taken), instances(gpu, taken)
    starts = starts_that_fit(profile, profiles, there)
    if not starts:
        return None

    def left(start: int) -> tuple[int, ...]:
        made = GpuInstance(id=-1, profile_id=profile.id, start=start, size=profile.size)
        return _what_fits(profiles, (*there, made))

    return max(starts, key=lambda start: (left(start), -start))


def _what_fits(profiles: Sequence[GiProfile], there: Sequence[GpuInstance]) -> tuple[int, ...]:
    """How many of each profile still fit, the largest profile first: what a start leaves open."""
    order = sorted(profiles, key=lambda one: (-one.size, -one.slices, one.id))
    return tuple(count_free(one, profiles, list(there)) for one in order)


def _with_mode_on(gpu: Gpu, profile: GiProfile, taken: Taken) -> Target | Refusal:
    """The card's MIG mode is off: it can go on while nobody is on the card."""
    busy = why_not_empty(gpu, taken)
    if busy is not None:
        return Refusal(f"MIG is off on {gpu.address} and cannot go on: {busy}", Conflict)
    if gpu.vfs:
        return Refusal(
            f"MIG is off on {gpu.address}, and its VFs are on: MIG goes on before them",
            Conflict,
            f"sriov-manage -d {gpu.address}, then ask again",
        )
    start = _best_start(gpu, profile, taken)
    if start is None:
        return _no_room(gpu, profile, taken)
    return Target(profile, start, turn_on=True)
