"""GPU instances: where one more of a profile would still fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from virtgpu.inventory.names import parse_gi_profile
from virtgpu.model.gpu import GiProfile, GpuInstance


def starts_that_fit(
    profile: GiProfile, profiles: Iterable[GiProfile], instances: Sequence[GpuInstance]
) -> tuple[int, ...]:
    """The memory slots where an instance of *profile* could begin now.

    It fits if its slots are free, the compute slices of all instances stay within the card's,
    and the profile's own limit is not reached (+me: one per card).
    """
    by_id = {one.id: one for one in profiles}
    slices = max((one.slices for one in by_id.values()), default=profile.slices)
    used = sum(by_id[one.profile_id].slices for one in instances if one.profile_id in by_id)
    made = sum(one.profile_id == profile.id for one in instances)
    if used + profile.slices > slices:
        return ()
    if profile.max_instances is not None and made >= profile.max_instances:
        return ()
    taken = {slot for one in instances for slot in range(one.start, one.start + one.size)}
    return tuple(
        start
        for start in sorted(profile.starts)
        if taken.isdisjoint(range(start, start + profile.size))
    )


def count_free(
    profile: GiProfile, profiles: Sequence[GiProfile], instances: Sequence[GpuInstance]
) -> int:
    """How many more instances of *profile* alone could be made now."""
    made = list(instances)
    while starts := starts_that_fit(profile, profiles, made):
        made.append(GpuInstance(id=-1, profile_id=profile.id, start=starts[0], size=profile.size))
    return len(made) - len(instances)


def nominal_mib(profile: str) -> int | None:
    """The frame buffer that vGPUs in an instance share: the gigabytes of the profile's name.

    The driver counts nominal MiB (24576 for 1g.24gb+gfx), not the usable memory that it prints.
    """
    parts = parse_gi_profile(profile)
    return parts.gb * 1024 if parts is not None else None
