"""Taking slices away: the reverse, and the reservation last.

What others share (VFs, MIG mode, mixed size) stays on; a GPU instance goes with the last slice in
it. Nothing that somebody holds or that a defined guest has is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from virtgpu.errors import AccessDenied, Conflict, Usage
from virtgpu.model import steps
from virtgpu.model.binding import bind
from virtgpu.model.gpu import Gpu, GpuInstance, Host, Mechanism
from virtgpu.model.plan import Fact, Plan
from virtgpu.model.slice import Place, Reservation, Slice, SliceState
from virtgpu.model.steps import Step
from virtgpu.plan.facts import merged, observe, promise_of
from virtgpu.policy.ledger import VFIO_PCI, join, vf_of
from virtgpu.policy.taken import holders_text


def plan_destroy(
    host: Host,
    slices: Sequence[Slice],
    reservations: Sequence[Reservation],
    *,
    ids: Callable[[], str],
    created: str,
    adopt: bool = False,
    undefined: Collection[str] = (),
    undefining: str | None = None,
) -> Plan:
    """The plan that destroys these slices and releases their reservations.

    *undefined* are the UUIDs of domains that are gone, *undefining* that of the one that goes by
    the same plan: a slice of any other domain stays. Raises `AccessDenied` for a foreign one
    without *adopt*, `Conflict` for one that is held, or of which it is unknown who holds it, or
    that a defined guest has, or whose write has not come back.
    """
    if not slices:
        raise Usage("no slice was named", hint="see them with: virtgpu slice list")
    if len({one.id for one in slices}) != len(slices):
        raise Usage("a slice is named twice")
    promised = {one.id: one for one in reservations}
    going = frozenset(one.id for one in slices)
    rest = tuple(one for one in join(host, reservations) if one.id not in going)
    taking: list[Step] = []
    instances: list[Step] = []
    releases: list[Step] = []
    facts: list[Fact] = []
    why: list[str] = []
    for one in slices:
        _refuse(one, adopt=adopt, undefined=(*undefined, undefining))
        why.append(_why(one, undefined))
        reservation = promised.get(one.id)
        if one.state is not SliceState.ABSENT:
            taking += _taking(host, one.place)
            facts += _facts(host, reservations, one.place)
            for instance in _instances(host, one.place):
                heirs = _users(host, one.place, instance, rest)
                if not heirs:
                    instances.append(_destroy_instance(host, one.place, instance))
                    continue
                why.append(f"its GPU instance {instance.id} stays: slice {heirs[0].id} is in it")
                heir = next((promised[h.id] for h in heirs if h.id in promised), None)
                if heir is not None:
                    facts += promise_of(heir)
                    releases += _bequeath(heir, instance)
        if reservation is not None:
            releases.append(steps.Release(reservation=reservation))
            facts += promise_of(reservation)
    return Plan(
        id=ids(),
        host=host.label,
        created=created,
        goal="take",
        summary="destroy " + ", ".join(_called(one) for one in slices),
        why=tuple(why),
        facts=merged(facts),
        steps=(*taking, *instances, *releases),
    )


def _called(one: Slice) -> str:
    guest = f" of {one.guest}" if one.guest else ""
    return f"{one.name or 'slice'} {one.id}{guest}"


def _why(one: Slice, undefined: Collection[str]) -> str:
    if one.state is SliceState.ABSENT:
        return f"{one.id} has no hardware any more: only its reservation goes"
    if one.state is SliceState.FOREIGN:
        return f"{one.id} was not made by virtgpu, and was named with --adopt"
    orphan = one.domain_uuid in undefined
    last = f", and guest {one.guest} is not defined any more" if orphan else ", and nobody holds it"
    return f"{one.id} is on {one.place.vf or one.place.gpu}{last}"


def _refuse(one: Slice, *, adopt: bool, undefined: Collection[str | None]) -> None:
    if one.state is SliceState.FOREIGN and not adopt:
        raise AccessDenied(
            f"{_called(one)} was not made by virtgpu",
            hint="if it is to go all the same: virtgpu slice destroy --adopt",
        )
    if one.domain_uuid is not None and one.domain_uuid not in undefined:
        raise Conflict(
            f"{_called(one)} is in the definition of that guest",
            hint=f"virtgpu vm undefine {one.guest} gives its slices back",
        )
    if one.state is SliceState.STUCK:
        raise Conflict(
            f"what was begun with {_called(one)} has not ended, or a write of it has not come back",
            hint="virtgpu recover ends it, or says what it waits for",
        )
    if one.state is SliceState.ABSENT:
        return
    if one.holders is None:
        raise Conflict(
            f"who holds {_called(one)} is unknown: not every process can be looked into",
            hint="run as root, outside of containers",
        )
    if one.holders:
        raise Conflict(
            f"{_called(one)} is held by {holders_text(one.holders)}",
            hint="stop the guest first; the kernel would wait for it for ever",
        )


def _facts(host: Host, reservations: Sequence[Reservation], place: Place) -> list[Fact]:
    """It is still that very slice."""
    names = [(str(place.gpu), "ids")]
    if place.vf is not None:
        names.append((str(place.vf), "vf type"))
    asked = [Fact(subject=subject, attribute=name, value=None) for subject, name in names]
    return [
        Fact(
            subject=fact.subject,
            attribute=fact.attribute,
            value=observe(host, reservations, fact),
        )
        for fact in asked
    ]


def _taking(host: Host, place: Place) -> list[Step]:
    gpu = host.gpu(place.gpu)
    assert gpu is not None  # else the slice would be absent
    found: list[Step] = []
    if place.mdev is not None:
        found.append(_remove_mdev(gpu, place))
    elif place.mechanism is Mechanism.WHOLE:
        found += _give_back(gpu, place)
    elif place.mechanism is Mechanism.VF:
        found += _give_back_vf(gpu, place)
    elif place.vf is not None:
        name = place.type_name or place.type_id or ""
        found.append(steps.ClearVgpuType(vf=place.vf, type_id=place.type_id, type_name=name))
    return found


def _remove_mdev(gpu: Gpu, place: Place) -> Step:
    mdev = next(one for one in gpu.all_mdevs if one.uuid == place.mdev)
    return steps.RemoveMdev(
        uuid=mdev.uuid, parent=mdev.parent, type_id=mdev.type_id, type_name=place.type_name
    )


def _give_back(gpu: Gpu, place: Place) -> list[Step]:
    """Each function to the driver that it had; those of a foreign card are left unbound."""
    before = dict(zip(place.functions, place.previous_drivers, strict=False))
    return [
        bind(function, before.get(function.address), None)
        for function in reversed(gpu.functions)
        if function.address in place.functions
        and (function.driver, function.driver_override) != (before.get(function.address), None)
    ]


def _give_back_vf(gpu: Gpu, place: Place) -> list[Step]:
    """The VF to the driver that it had before; one that was VFIO's already stays so."""
    vf = vf_of(gpu, place.vf)
    before = place.previous_drivers[0] if place.previous_drivers else None
    if vf is None or before == VFIO_PCI or (vf.driver, vf.driver_override) == (before, None):
        return []
    return [bind(vf, before, None)]


# -- GPU instances


def _instances(host: Host, place: Place) -> Iterator[GpuInstance]:
    """The GPU instance that was made for the slice, where it is still there."""
    gpu = host.gpu(place.gpu)
    if place.gi_start is None or gpu is None or gpu.mig is None:
        return
    for one in gpu.mig.instances:
        if (one.profile_id, one.start) == (place.gi_profile_id, place.gi_start):
            yield one


def _users(
    host: Host, place: Place, instance: GpuInstance, rest: Sequence[Slice]
) -> tuple[Slice, ...]:
    """The other slices in the instance; one that does not say where it is counts where its
    profile fits."""
    gpu = host.gpu(place.gpu)
    assert gpu is not None

    def is_in(one: Slice) -> bool:
        vf = vf_of(gpu, one.place.vf)
        if one.place.gpu != gpu.address or vf is None or one.state is SliceState.ABSENT:
            return False
        if vf.gpu_instance_id is not None:
            return vf.gpu_instance_id == instance.id
        return one.place.gi_profile_id == instance.profile_id and one.place.gi_start is None

    return tuple(one for one in rest if is_in(one))


def _bequeath(heir: Reservation, instance: GpuInstance) -> tuple[Step, Step]:
    """From now on the instance goes with this slice."""
    place = msgspec.structs.replace(heir.place, gi_start=instance.start, gi_size=instance.size)
    new = msgspec.structs.replace(heir, place=place)
    return steps.Release(reservation=heir), steps.Reserve(reservation=new)


def _destroy_instance(host: Host, place: Place, instance: GpuInstance) -> Step:
    gpu = host.gpu(place.gpu)
    profiles = gpu.mig.profiles if gpu is not None and gpu.mig is not None else ()
    names = {one.id: one.name for one in profiles}
    return steps.DestroyGpuInstance(
        address=place.gpu,
        profile_id=instance.profile_id,
        profile=names.get(instance.profile_id, str(instance.profile_id)),
        start=instance.start,
        size=instance.size,
        compute_instance=bool(instance.compute_instances),
    )
