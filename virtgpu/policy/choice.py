"""Choosing: which GPU serves a request. By a name if one is given; else the least disruption,
then best fit by frame buffer, then free capacity, then the lowest address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from virtgpu.errors import Capacity, Conflict, NotFound, Unsupported, Usage, VirtgpuError
from virtgpu.inventory.names import parse_type
from virtgpu.model.gpu import Gpu, Host, Mechanism, SliceType
from virtgpu.model.pci import PciAddress
from virtgpu.model.request import (
    MigRequest,
    Request,
    SizeRequest,
    TypeRequest,
    VfRequest,
    WholeRequest,
)
from virtgpu.model.slice import Slice
from virtgpu.policy import names
from virtgpu.policy.ledger import types_of
from virtgpu.policy.options import Offered, Option, Refusal
from virtgpu.policy.taken import Taken, listed
from virtgpu.policy.vf import plain_vf
from virtgpu.policy.vgpu import changes, room_left, vgpu
from virtgpu.policy.whole import whole_card, why_group_is_not_viable

_MANY = 256  # more of one type than any card takes: PCI numbers no more VFs on a bus
Ask = Callable[[Gpu, Taken], Offered]

_SERIES_HINT = "Q workstation, C compute, B desktop, A apps; they differ in licence and in CUDA"


def choose(
    host: Host,
    request: Request,
    slices: Sequence[Slice],
    *,
    guest: str | None = None,
    stuck: Iterable[str] = (),
) -> tuple[Option, ...]:
    """One option for each unit of the request.

    Raises `NotFound` (no such type, GPU or model, with the close names), `Capacity`, `Conflict`,
    `Unsupported` or `Usage`, with one sentence that says why.
    """
    taken = Taken(host=host, slices=tuple(slices), guest=guest, stuck=frozenset(stuck))
    gpus = _candidates(host, request)
    ask = _asker(host, request, gpus)
    best: tuple[Option, ...] | None = None
    problem: VirtgpuError | None = None
    for pool in _pools(request, gpus):
        try:
            picks = _pick(request, pool, ask, taken)
        except (Capacity, Conflict, Unsupported) as error:
            problem = problem or error
            continue
        if best is None or _ranks(picks) < _ranks(best):
            best = picks
    if best is None:
        raise problem or Capacity(f"no GPUs of this host are together as {request} asks")
    return best


def _ranks(picks: Sequence[Option]) -> tuple[tuple[int, ...], ...]:
    return tuple(one.rank for one in picks)


class Left(msgspec.Struct, frozen=True):
    """How many more of a type a GPU takes, None when unknown; *note* says why none, or what
    changes first."""

    gpu: Gpu
    type: SliceType
    available: int | None
    note: str | None


def left(host: Host, slices: Sequence[Slice], stuck: Iterable[str] = ()) -> Iterator[Left]:
    """What is really left of each type on each GPU, promises counted."""
    taken = Taken(host=host, slices=tuple(slices), stuck=frozenset(stuck))
    for gpu in host.gpus:
        offers = {offer.type.id: offer for offer in gpu.offers}
        for kind in kinds_of(host, gpu):
            offer = offers.get(kind.id)
            now = room_left(gpu, offer, taken) if offer is not None else (0, None)
            then = _after_changes(gpu, kind, taken) if now[0] == 0 else None
            if offer is not None or then is not None:
                available, note = then or now
                yield Left(gpu, kind, available, note)


def _after_changes(gpu: Gpu, kind: SliceType, taken: Taken) -> tuple[int, str] | None:
    """How many a plan could make once it has changed the card, and what it changes."""
    note = None
    for count in range(_MANY):
        is_plain = kind.mechanism is Mechanism.VF
        ways = plain_vf(gpu, None, taken) if is_plain else vgpu(gpu, kind, None, taken)
        if isinstance(ways, Refusal) or not ways[0].prepare.disruption:
            return (count, note) if note is not None else None
        note = note or "first " + "; ".join(changes(ways[0].prepare))
        taken = taken.with_pick(ways[0].place)
    return (_MANY, note) if note is not None else None


# -- who is asked


def _candidates(host: Host, request: Request) -> tuple[Gpu, ...]:
    if not host.gpus:
        reason = next((f": {one.name}: {one.reason}" for one in host.platform_gpus), "")
        raise NotFound(
            f"this host has no GPU that a guest could have{reason}", hint="virtgpu host show"
        )
    if request.on is None:
        return host.gpus
    found = tuple(gpu for gpu in host.gpus if _has(gpu, request.on))
    if not found:
        raise NotFound(
            f"there is no GPU and no VF of one at {request.on}", hint="see: virtgpu gpu list"
        )
    return found


def _has(gpu: Gpu, on: PciAddress) -> bool:
    if on == gpu.address or any(vf.address == on for vf in gpu.vfs):
        return True
    sriov = gpu.sriov
    if gpu.vfs or sriov is None or sriov.offset is None or sriov.stride is None:
        return False
    return any(
        gpu.address.vf(sriov.offset, sriov.stride, index) == on for index in range(sriov.total_vfs)
    )


def _pools(request: Request, gpus: tuple[Gpu, ...]) -> Iterator[tuple[Gpu, ...]]:
    """The sets of GPUs out of which one request may be served."""
    if request.scope is None or request.count == 1:
        yield gpus
    elif request.scope == "numa":
        for node in sorted({gpu.numa_node for gpu in gpus if gpu.numa_node is not None}):
            yield tuple(gpu for gpu in gpus if gpu.numa_node == node)
    elif request.scope == "pcie":
        for bridge in sorted({one for gpu in gpus for one in gpu.bridges[:-1]}):
            yield tuple(gpu for gpu in gpus if bridge in gpu.bridges[:-1])
    else:
        raise Unsupported(
            "which GPUs share NVLink is not looked at yet",
            hint="ask for @pcie or @numa, or name the GPUs one by one with 'on ADDRESS'",
        )


# -- what is asked


def _asker(host: Host, request: Request, gpus: Sequence[Gpu]) -> Ask:
    match request.what:
        case WholeRequest(model):
            _require_model(gpus, model)
            return lambda gpu, taken: (
                whole_card(host, gpu, request.on, taken)
                if model is None or names.is_model(gpu, model)
                else _other_model(gpu, model)
            )
        case VfRequest(model):
            _require_model(gpus, model)
            return lambda gpu, taken: (
                plain_vf(gpu, request.on, taken)
                if model is None or names.is_model(gpu, model)
                else _other_model(gpu, model)
            )
        case TypeRequest(name):
            return _by_name(host, gpus, name, request.on)
        case SizeRequest(gib, series):
            return _by_size(host, gpus, gib, series, request.on)
        case MigRequest(profile, name):
            return _by_profile(host, gpus, profile, name, request.on)


def _other_model(gpu: Gpu, model: str) -> Refusal:
    return Refusal(f"{gpu.address} is a {names.model_of(gpu)} and no {model}", NotFound)


def _require_model(gpus: Sequence[Gpu], model: str | None) -> None:
    if model is not None and not any(names.is_model(gpu, model) for gpu in gpus):
        have = sorted({names.model_of(gpu) for gpu in gpus})
        raise NotFound(f"no GPU here is a {model!r}", hint=f"there are: {listed(have)}")


def kinds_of(host: Host, gpu: Gpu) -> tuple[SliceType, ...]:
    """The types of a GPU; where its VFs or MIG are off, also those of a card of its model."""
    own = types_of(gpu)
    known = {names.bare(names.label(kind)) for kind in own}
    lent = [
        kind
        for other in host.gpus
        if other is not gpu and (other.vendor_id, other.device_id) == (gpu.vendor_id, gpu.device_id)
        for kind in types_of(other)
        if kind.mechanism is not Mechanism.VF
    ]
    found = list(own)
    for kind in lent:
        if names.bare(names.label(kind)) not in known:
            known.add(names.bare(names.label(kind)))
            found.append(kind)
    return tuple(found)


def _by_name(host: Host, gpus: Sequence[Gpu], name: str, on: PciAddress | None) -> Ask:
    called = _full_name(host, name)
    kinds = {
        gpu.address: [k for k in kinds_of(host, gpu) if names.is_called(k, called)] for gpu in gpus
    }
    if not any(kinds.values()):
        hidden = [one for gpu in gpus if (one := _hidden(gpu, name)) is not None]
        if hidden:
            raise Capacity("; ".join(hidden), hint="see what fits: virtgpu type list")
        every = [
            names.label(k) for gpu in gpus for k in kinds_of(host, gpu) if k.name or k.id != "vf"
        ]
        close = names.close(name, every)
        where = f"GPU {on}" if on else "any GPU of this host"
        lacking = next((gpu for gpu in gpus if gpu.missing is not None), None)
        if lacking is not None and lacking.missing is not None:
            raise NotFound(
                f"type {name!r} is not offered by {where}; of {lacking.address}:"
                f" {lacking.missing.reason}",
                hint=lacking.missing.command,
            )
        raise NotFound(
            f"type {name!r} is not offered by {where}",
            hint=f"close names: {', '.join(close)}" if close else "see them: virtgpu type list",
        )
    return lambda gpu, taken: _best(gpu, kinds[gpu.address], on, taken, name)


def _full_name(host: Host, name: str) -> str:
    """The type's name where its end was given: whichever GPU is asked, the host knows it by that.

    Raises `Usage` with the candidates where several end so.
    """
    labels = [names.label(kind) for gpu in host.gpus for kind in types_of(gpu)]
    found = names.meant(name, labels)
    if len(found) > 1:
        raise Usage(
            f"{len(found)} types of this host end with {name!r}; say which",
            hint=f"they are: {listed(found, 12)}",
        )
    return found[0] if found else name


def _hidden(gpu: Gpu, name: str) -> str | None:
    """Why a type of this card's family may be unknown now: the lists of a card that runs vGPUs of
    one size leave the other sizes out (https://github.com/bigstack-oss/cubecos/issues/1316)."""
    wanted = parse_type(name)
    running = next((vf.vgpu_type for vf in gpu.vfs if vf.vgpu_type not in (None, "0")), None)
    if wanted is None or running is None or gpu.mixed_size:
        return None
    if gpu.nvml is not None and gpu.nvml.types:
        return None
    size = next((k.framebuffer_mib for k in types_of(gpu) if k.id == running), None)
    families = {names.family(names.label(k)) for k in types_of(gpu)}
    if names.family(name) not in families or size in (None, wanted.framebuffer_mib):
        return None
    mode = "; mixed-size mode is off" if gpu.mixed_size is False else ""
    return (
        f"{gpu.address} does not list {name} now: it runs {(size or 0) / 1024:g} GB vGPUs in"
        f" equal-size mode{mode}, and that changes only while the card is empty"
    )


def _best(
    gpu: Gpu, kinds: Sequence[SliceType], on: PciAddress | None, taken: Taken, what: str
) -> Offered:
    refusal: Refusal | None = None
    found: list[Option] = []
    for kind in kinds:
        offered = vgpu(gpu, kind, on, taken)
        if isinstance(offered, Refusal):
            refusal = refusal or offered
        else:
            found += offered
    if found:
        return tuple(found)
    return refusal or Refusal(f"{gpu.address} does not offer {what}", NotFound)


def _by_size(
    host: Host, gpus: Sequence[Gpu], gib: int, series: str | None, on: PciAddress | None
) -> Ask:
    fitting = {gpu.address: _fitting(host, gpu, gib) for gpu in gpus}
    have = sorted({names.series(k.name) or "" for kinds in fitting.values() for k in kinds})
    wanted = series or (have[0] if len(have) == 1 else None)
    if wanted is None and have:
        raise Usage(
            f"{gib}G: series {', '.join(have)} all have a slice of that size; say which: {gib}G:Q",
            hint=_SERIES_HINT,
        )
    if wanted not in have:
        text = f"{gib}G:{series}" if series else f"{gib}G"
        raise NotFound(f"no type here has {gib} GB or more in {text}", hint="virtgpu type list")

    def ask(gpu: Gpu, taken: Taken) -> Offered:
        kinds = [k for k in fitting[gpu.address] if names.series(k.name) == wanted]
        refusal: Refusal | None = None
        for kind in sorted(kinds, key=lambda k: (k.framebuffer_mib or 0, k.id)):
            offered = vgpu(gpu, kind, on, taken)
            if not isinstance(offered, Refusal):
                return tuple(_sized(one) for one in offered)
            refusal = refusal or offered
        return refusal or Refusal(f"{gpu.address} has no type of that size", NotFound)

    return ask


def _fitting(host: Host, gpu: Gpu, gib: int) -> list[SliceType]:
    return [
        kind
        for kind in kinds_of(host, gpu)
        if (kind.framebuffer_mib or 0) >= gib * 1024 and names.series(kind.name)
    ]


def _sized(option: Option) -> Option:
    """Smallest first, whatever the card."""
    first, *rest = option.rank
    size = option.place.framebuffer_mib or 0
    return msgspec.structs.replace(option, rank=(first, size, *rest))


def _by_profile(
    host: Host, gpus: Sequence[Gpu], profile: str, name: str | None, on: PciAddress | None
) -> Ask:
    called = None if name is None else _full_name(host, name)
    kinds = {
        gpu.address: [
            k
            for k in kinds_of(host, gpu)
            if (k.gi_profile or "").lower() == profile
            and (called is None or names.is_called(k, called))
        ]
        for gpu in gpus
    }
    have = sorted({names.label(k) for found in kinds.values() for k in found})
    if not have:
        raise _no_profile(host, gpus, profile, name)
    if len(have) > 1:
        raise Usage(
            f"mig:{profile} can carry {len(have)} types; say which: mig:{profile}/TYPE",
            hint=f"they are: {listed(have, 12)}",
        )
    return lambda gpu, taken: _best(gpu, kinds[gpu.address], on, taken, f"mig:{profile}")


def _no_profile(host: Host, gpus: Sequence[Gpu], profile: str, name: str | None) -> VirtgpuError:
    found = {k.gi_profile for gpu in gpus for k in kinds_of(host, gpu) if k.gi_profile}
    if not found:
        return Unsupported(
            f"no GPU here offers MIG-backed vGPUs, so mig:{profile} cannot be served",
            hint="they need MIG mode and NVIDIA's vGPU Manager: virtgpu gpu show ADDRESS",
        )
    what = f"mig:{profile}" + (f"/{name}" if name else "")
    near = listed(names.near_profiles(profile, found), 12)
    return NotFound(f"no GPU here offers {what}", hint=f"profiles are, the nearest first: {near}")


# -- picking


def _pick(request: Request, gpus: Sequence[Gpu], ask: Ask, taken: Taken) -> tuple[Option, ...]:
    picks: list[Option] = []
    for number in range(request.count):
        refusals: list[Refusal] = []
        options: list[Option] = []
        for gpu in gpus:
            offered = ask(gpu, taken)
            if isinstance(offered, Refusal):
                refusals.append(offered)
            else:
                options += offered
        if not options:
            raise _refused(request, number, refusals)
        best = min(options, key=lambda one: (one.rank, one.place.gpu, one.place.vf or ""))
        picks.append(best)
        taken = taken.with_pick(best.place)
    problem = why_group_is_not_viable(taken.host, [one.place for one in picks], taken)
    if problem is not None:
        raise Conflict(problem, hint="take all cards of the group, or one with a group of its own")
    return tuple(picks)


def _refused(request: Request, made: int, refusals: Sequence[Refusal]) -> VirtgpuError:
    """The one refusal as it is; of several the kind that says most, and each GPU's sentence."""
    telling = [one for one in refusals if one.kind is not NotFound] or list(refusals)
    prefix = f"{made} of {request.count} can be had: " if request.count > 1 else ""
    fewer = (
        f"so many can be had: '{msgspec.structs.replace(request, count=made)}'" if made else None
    )
    if len(telling) == 1:
        one = telling[0]
        kind = one.kind if not made else Capacity
        return kind(f"{prefix}{one.sentence}", hint=fewer or one.hint)
    kinds = {one.kind for one in telling}
    # Everything being somebody's is no room; a conflict is about one thing that was named.
    kind = kinds.pop() if len(kinds) == 1 and kinds != {Conflict} else Capacity
    hint = fewer or next((one.hint for one in telling if one.hint), "see: virtgpu type list")
    said = listed([one.sentence for one in telling], 4)
    return (Capacity if made else kind)(f"{prefix}no room for {request}: {said}", hint=hint)
