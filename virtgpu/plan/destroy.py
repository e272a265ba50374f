"""Taking slices away: the reverse, and the reservation last.

What others share (VFs, MIG mode, mixed size) stays on. Nothing that somebody holds is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from virtgpu.errors import AccessDenied, Conflict, Usage
from virtgpu.model import steps
from virtgpu.model.gpu import Gpu, Host, Mechanism
from virtgpu.model.plan import Fact, Plan
from virtgpu.model.slice import Place, Reservation, Slice, SliceState
from virtgpu.model.steps import Step
from virtgpu.plan.facts import observe
from virtgpu.policy.ledger import VFIO_PCI, vf_of
from virtgpu.policy.taken import holders_text


def plan_destroy(
    host: Host,
    slices: Sequence[Slice],
    reservations: Sequence[Reservation],
    *,
    ids: Callable[[], str],
    created: str,
    adopt: bool = False,
) -> Plan:
    """The plan that destroys these slices and releases their reservations.

    Raises `AccessDenied` for a foreign one without *adopt*, `Conflict` for one that is held, or of
    which it is unknown who holds it, or whose write has not come back.
    """
    if not slices:
        raise Usage("no slice was named", hint="see them with: virtgpu slice list")
    if len({one.id for one in slices}) != len(slices):
        raise Usage("a slice is named twice")
    promised = {one.id: one for one in reservations}
    done: list[Step] = []
    facts: list[Fact] = []
    for one in slices:
        _refuse(one, adopt=adopt)
        reservation = promised.get(one.id)
        if one.state is not SliceState.ABSENT:
            done += _taking(host, one.place)
            facts += _facts(host, reservations, one.place)
        if reservation is not None:
            done.append(steps.Release(reservation=reservation))
            facts.append(Fact(subject=one.id, attribute="reserved", value=True))
    return Plan(
        id=ids(),
        host=host.label,
        created=created,
        goal="take",
        summary="destroy " + ", ".join(_called(one) for one in slices),
        why=tuple(_why(one) for one in slices),
        facts=tuple(facts),
        steps=tuple(done),
    )


def _called(one: Slice) -> str:
    guest = f" of {one.guest}" if one.guest else ""
    return f"{one.name or 'slice'} {one.id}{guest}"


def _why(one: Slice) -> str:
    if one.state is SliceState.ABSENT:
        return f"{one.id} has no hardware any more: only its reservation goes"
    if one.state is SliceState.FOREIGN:
        return f"{one.id} was not made by virtgpu, and was named with --adopt"
    return f"{one.id} is on {one.place.vf or one.place.gpu}, and nobody holds it"


def _refuse(one: Slice, *, adopt: bool) -> None:
    if one.state is SliceState.FOREIGN and not adopt:
        raise AccessDenied(
            f"{_called(one)} was not made by virtgpu",
            hint="if it is to go all the same: virtgpu slice destroy --adopt",
        )
    if one.state is SliceState.STUCK:
        raise Conflict(
            f"a write to {_called(one)} has not come back",
            hint="virtgpu recover says which process does it",
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
    if place.gi_start is not None and place.gi_profile_id is not None:
        found += _destroy_instance(gpu, place)
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
        steps.BindDriver(
            address=function.address,
            driver=before.get(function.address),
            override=None,
            previous_driver=function.driver,
            previous_override=function.driver_override,
        )
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
    return [
        steps.BindDriver(
            address=vf.address,
            driver=before,
            override=None,
            previous_driver=vf.driver,
            previous_override=vf.driver_override,
        )
    ]


def _destroy_instance(gpu: Gpu, place: Place) -> list[Step]:
    names = {one.id: one.name for one in gpu.mig.profiles} if gpu.mig is not None else {}
    there = [
        one
        for one in (gpu.mig.instances if gpu.mig is not None else ())
        if (one.profile_id, one.start) == (place.gi_profile_id, place.gi_start)
    ]
    return [
        steps.DestroyGpuInstance(
            address=gpu.address,
            profile_id=one.profile_id,
            profile=names.get(one.profile_id, str(one.profile_id)),
            start=one.start,
            size=one.size,
            compute_instance=bool(one.compute_instances),
        )
        for one in there
    ]
