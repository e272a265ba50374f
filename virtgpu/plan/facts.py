"""What a plan rests on, and whether it still holds.

Only attributes that a plan names count: never counters, temperatures or other cards. A change on
another card leaves a plan valid, and so does one more vGPU on this card with room left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from virtgpu.model.gpu import Gpu, Host, Mechanism, Vf
from virtgpu.model.plan import Fact, Plan
from virtgpu.model.slice import Place, Reservation
from virtgpu.policy.ledger import join, vf_of
from virtgpu.policy.options import Prepare
from virtgpu.policy.taken import Taken
from virtgpu.policy.vgpu import room_left

Value = str | int | bool | None


def _framework(gpu: Gpu) -> Value:
    found = [one.value for one in gpu.mechanisms if one is not Mechanism.WHOLE]
    return found[0] if found else None


def _layout(gpu: Gpu) -> Value:
    """The GPU instances: profile and start of each."""
    if gpu.mig is None:
        return None
    made = sorted(f"{one.profile_id}@{one.start}" for one in gpu.mig.instances)
    return ("on " if gpu.mig.current else "off ") + ",".join(made)


_OF_GPU: dict[str, Callable[[Gpu], Value]] = {
    "ids": lambda gpu: f"{gpu.vendor_id}:{gpu.device_id}",
    "driver": lambda gpu: gpu.driver,
    "framework": _framework,
    "vfs": lambda gpu: len(gpu.vfs),
    "mixed size": lambda gpu: gpu.mixed_size,
    "MIG layout": _layout,
    "frame buffer left": lambda gpu: gpu.framebuffer_left_mib,
    "functions": lambda gpu: ",".join(f"{one.address}={one.driver}" for one in gpu.functions),
}
_OF_VF: dict[str, Callable[[Vf], Value]] = {
    "vf driver": lambda vf: vf.driver,
    "vf type": lambda vf: vf.mdev.uuid if vf.mdev is not None else vf.vgpu_type,
}
_RESERVED = "reserved"
_OFFERED = "type left"
ATTRIBUTES = (*_OF_GPU, *_OF_VF, _RESERVED, _OFFERED)


def facts_for(host: Host, place: Place, prepare: Prepare, slice_id: str) -> Iterator[Fact]:
    """The facts that making this slice rests on."""
    gpu = host.gpu(place.gpu)
    assert gpu is not None
    for name in _names(place, prepare):
        yield Fact(subject=place.gpu, attribute=name, value=_OF_GPU[name](gpu))
    if place.framebuffer_mib is not None and gpu.framebuffer_left_mib is not None:
        is_vgpu = place.gi_profile_id is None
        if is_vgpu:
            yield Fact(
                subject=place.gpu,
                attribute="frame buffer left",
                value=place.framebuffer_mib,
                compare="at least",
            )
    vf = vf_of(gpu, place.vf)
    if vf is not None:
        for name, ask in _OF_VF.items():
            yield Fact(subject=vf.address, attribute=name, value=ask(vf))
    if (
        place.type_id is not None
        and any(one.type.id == place.type_id for one in gpu.offers)
        and (not prepare.disruption)
    ):
        yield Fact(
            subject=f"{place.gpu} {place.type_id}", attribute=_OFFERED, value=1, compare="at least"
        )
    yield Fact(subject=slice_id, attribute=_RESERVED, value=False)


def _names(place: Place, prepare: Prepare) -> tuple[str, ...]:
    names = ["ids", "driver"]
    if place.mechanism is Mechanism.WHOLE:
        return (*names, "functions", "vfs")
    names.append("framework")
    if place.vf is not None:
        names.append("vfs")
    if place.type_id is not None:
        names.append("mixed size")
    if place.gi_profile_id is not None or prepare.mig:
        names.append("MIG layout")
    return tuple(names)


def observe(host: Host, reservations: Sequence[Reservation], fact: Fact) -> Value:
    """What the fact's attribute is now; None when its subject is gone."""
    if fact.attribute == _RESERVED:
        return any(one.id == fact.subject for one in reservations)
    if fact.attribute == _OFFERED:
        return _left(host, reservations, fact.subject)
    for gpu in host.gpus:
        if gpu.address == fact.subject and fact.attribute in _OF_GPU:
            return _OF_GPU[fact.attribute](gpu)
        for vf in gpu.vfs:
            if vf.address == fact.subject and fact.attribute in _OF_VF:
                return _OF_VF[fact.attribute](vf)
    return None


def _left(host: Host, reservations: Sequence[Reservation], subject: str) -> Value:
    """How many of the type are left; a number that is unknown counts as one: the driver says."""
    address, _, type_id = subject.partition(" ")
    taken = Taken(host=host, slices=join(host, reservations))
    for gpu in host.gpus:
        for offer in gpu.offers:
            if gpu.address == address and offer.type.id == type_id:
                left = room_left(gpu, offer, taken)[0]
                return 1 if left is None else left
    return 0


def stale(plan: Plan, host: Host, reservations: Sequence[Reservation]) -> tuple[str, ...]:
    """A sentence for each fact that does not hold any more; none for a plan that is still good."""
    found = []
    for fact in plan.facts:
        now = observe(host, reservations, fact)
        if not _holds(fact, now):
            wanted = f"at least {fact.value}" if fact.compare == "at least" else _said(fact.value)
            found.append(f"{fact.attribute} of {fact.subject} was {wanted} and is {_said(now)}")
    return tuple(found)


def _said(value: Value) -> Value:
    return "nothing" if value is None else value


def _holds(fact: Fact, now: Value) -> bool:
    if fact.compare == "is":
        return now == fact.value
    return isinstance(now, int) and isinstance(fact.value, int) and now >= fact.value
