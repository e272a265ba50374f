"""What a plan rests on, and whether it still holds.

Only attributes that a plan names count: never counters, temperatures or other cards. A change on
another card leaves a plan valid, and so does one more vGPU on this card with room left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from virtgpu.model.gpu import Gpu, Holder, Host, Mechanism, Vf
from virtgpu.model.pci import PciAddress
from virtgpu.model.plan import Fact, Plan
from virtgpu.model.slice import Place, Reservation, Slice
from virtgpu.policy.ledger import groups_of, join, vf_of
from virtgpu.policy.options import Prepare
from virtgpu.policy.taken import Taken, holders_text
from virtgpu.policy.vgpu import room_left
from virtgpu.policy.whole import place_of

Value = str | int | bool | None


def _framework(gpu: Gpu) -> Value:
    found = [one.value for one in gpu.mechanisms if one is not Mechanism.WHOLE]
    return found[0] if found else None


def _layout(gpu: Gpu) -> Value:
    """MIG mode, and the GPU instances: profile and start of each."""
    if gpu.mig is None:
        return None
    made = sorted(f"{one.profile_id}@{one.start}" for one in gpu.mig.instances)
    mode = "on" if gpu.mig.current else "off"
    if not gpu.mig.is_settled:
        mode += f", {'on' if gpu.mig.pending else 'off'} after a reset"
    return f"{mode} {','.join(made)}"


def _held(holders: tuple[Holder, ...] | None) -> Value:
    """Who has the device open: None for nobody."""
    if holders is None:
        return "unknown"
    return holders_text(holders) or None


def _ids(slices: Iterable[Slice]) -> Value:
    return ",".join(sorted(one.id for one in slices)) or None


class _Now(msgspec.Struct, frozen=True):
    """The host with what is promised on it."""

    host: Host
    slices: tuple[Slice, ...]

    def sharing(self, place: Place) -> Value:
        """The slices in the IOMMU groups of a device that is to be given away."""
        groups = groups_of(self.host, place)
        return _ids(one for one in self.slices if groups & groups_of(self.host, one.place))


_OF_GPU: dict[str, Callable[[Gpu], Value]] = {
    "ids": lambda gpu: f"{gpu.vendor_id}:{gpu.device_id}",
    "driver": lambda gpu: gpu.driver,
    "framework": _framework,
    "vfs": lambda gpu: len(gpu.vfs),
    "mixed size": lambda gpu: gpu.mixed_size,
    "MIG layout": _layout,
    "frame buffer left": lambda gpu: gpu.framebuffer_left_mib,
    "functions": lambda gpu: ",".join(f"{one.address}={one.driver}" for one in gpu.functions),
    "holders": lambda gpu: _held(gpu.holders),
}
_OF_VF: dict[str, Callable[[Vf], Value]] = {
    "vf driver": lambda vf: vf.driver,
    "vf type": lambda vf: vf.mdev.uuid if vf.mdev is not None else vf.vgpu_type,
    "vf holders": lambda vf: _held(vf.holders),
}
# What was promised: only the ledger says so of a device that looks free.
_PROMISED_GPU: dict[str, Callable[[Gpu, _Now], Value]] = {
    "slices": lambda gpu, now: _ids(one for one in now.slices if one.place.gpu == gpu.address),
    "whole card": lambda gpu, now: _ids(
        one
        for one in now.slices
        if one.place.gpu == gpu.address and one.place.mechanism is Mechanism.WHOLE
    ),
    "IOMMU group": lambda gpu, now: now.sharing(place_of(gpu)),
}
_PROMISED_VF: dict[str, Callable[[Gpu, Vf, _Now], Value]] = {
    "vf slice": lambda _gpu, vf, now: _ids(one for one in now.slices if one.place.vf == vf.address),
    "vf IOMMU group": lambda gpu, vf, now: now.sharing(
        Place(mechanism=Mechanism.VF, gpu=gpu.address, vf=vf.address)
    ),
}
_RESERVED = "reserved"
_DOMAIN = "domain"
_OFFERED = "type left"
# What steps change, by intent or beside it: after undoing them it is as it was.
CHANGED = ("driver", "framework", "functions", "vfs", "mixed size", "MIG layout", "vf type")
ATTRIBUTES = (*_OF_GPU, *_OF_VF, *_PROMISED_GPU, *_PROMISED_VF, _RESERVED, _OFFERED, _DOMAIN)


def facts_for(
    host: Host,
    place: Place,
    prepare: Prepare,
    slice_id: str,
    promised: Sequence[Reservation],
) -> Iterator[Fact]:
    """The facts that making this slice rests on; *promised* is what others have."""
    gpu = host.gpu(place.gpu)
    assert gpu is not None
    now = _Now(host, join(host, promised))
    for name in _names(gpu, place, prepare):
        ask = _OF_GPU.get(name)
        value = ask(gpu) if ask is not None else _PROMISED_GPU[name](gpu, now)
        yield Fact(subject=place.gpu, attribute=name, value=value)
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
        for name in (*_OF_VF, *_PROMISED_VF):
            yield Fact(subject=vf.address, attribute=name, value=_of_vf(name, gpu, vf, now))
    if (
        place.type_id is not None
        and any(one.type.id == place.type_id for one in gpu.offers)
        and (not prepare.disruption)
    ):
        yield Fact(
            subject=f"{place.gpu} {place.type_id}", attribute=_OFFERED, value=1, compare="at least"
        )
    yield Fact(subject=slice_id, attribute=_RESERVED, value=False)


def merged(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Each attribute once: the first value of what must be so, the sum of what must be left."""
    found: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        key = (fact.subject, fact.attribute)
        known = found.setdefault(key, fact)
        if known is not fact and isinstance(fact.value, int) and fact.compare == "at least":
            assert isinstance(known.value, int)
            found[key] = msgspec.structs.replace(known, value=known.value + fact.value)
    return tuple(found.values())


def promise_of(one: Reservation) -> tuple[Fact, Fact]:
    """It is still promised, and to the same domain or to none."""
    return (
        Fact(subject=one.id, attribute=_RESERVED, value=True),
        Fact(subject=one.id, attribute=_DOMAIN, value=one.domain_uuid),
    )


def _of_vf(name: str, gpu: Gpu, vf: Vf, now: _Now) -> Value:
    ask = _OF_VF.get(name)
    return ask(vf) if ask is not None else _PROMISED_VF[name](gpu, vf, now)


def _names(gpu: Gpu, place: Place, prepare: Prepare) -> tuple[str, ...]:
    names = ["ids", "driver"]
    # Also for what is no part of MIG: a mode that is only pending comes with the next reset.
    if gpu.mig is not None:
        names.append("MIG layout")
    if place.mechanism is Mechanism.WHOLE:
        return (*names, "functions", "vfs", "mixed size", "holders", "slices", "IOMMU group")
    names += ["framework", "whole card"]
    if place.vf is not None:
        names.append("vfs")
    if place.type_id is not None or prepare.vfs:
        names.append("mixed size")
    return tuple(names)


def observe(host: Host, reservations: Sequence[Reservation], fact: Fact) -> Value:
    """What the fact's attribute is now; None when its subject is gone."""
    if fact.attribute == _RESERVED:
        return any(one.id == fact.subject for one in reservations)
    if fact.attribute == _DOMAIN:
        return next((one.domain_uuid for one in reservations if one.id == fact.subject), None)
    if fact.attribute == _OFFERED:
        return _left(host, reservations, fact.subject)
    for gpu in host.gpus:
        if gpu.address == fact.subject:
            if fact.attribute in _OF_GPU:
                return _OF_GPU[fact.attribute](gpu)
            if fact.attribute in _PROMISED_GPU:
                return _PROMISED_GPU[fact.attribute](gpu, _Now(host, join(host, reservations)))
        vf = vf_of(gpu, PciAddress(fact.subject))
        if vf is not None and fact.attribute in (*_OF_VF, *_PROMISED_VF):
            return _of_vf(fact.attribute, gpu, vf, _Now(host, join(host, reservations)))
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
