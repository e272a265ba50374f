"""Whole cards: which can be given away with all their functions, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence

from virtgpu.errors import Conflict, Unsupported, Usage
from virtgpu.inventory.pci import NOT_THE_HOSTS
from virtgpu.model import pci_class
from virtgpu.model.gpu import Function, Gpu, Host, Mechanism
from virtgpu.model.pci import PciAddress
from virtgpu.model.slice import Place
from virtgpu.policy import mig
from virtgpu.policy.ledger import groups_of
from virtgpu.policy.options import Offered, Option, Refusal
from virtgpu.policy.taken import Taken, holders_text, listed, owner, stop_command


def whole_card(host: Host, gpu: Gpu, on: PciAddress | None, taken: Taken) -> Offered:
    """The one way to give this GPU as a whole card, or why not."""
    for check in (_is_asked_right, _is_offered, _is_settled, _is_unused, _is_isolated, _is_unheld):
        refusal = check(host, gpu, on, taken)
        if refusal is not None:
            return refusal
    place = place_of(gpu)
    siblings = _siblings(host, gpu)
    free = sum(1 for other in siblings if not taken.whole(other))
    already = any(taken.whole(other) and taken.picked_on(other) for other in siblings)
    why = f"{gpu.address} is free as a whole card ({len(place.functions)} function"
    why += f"{'s' if len(place.functions) != 1 else ''})"
    if already:
        why += f" and shares IOMMU group {gpu.iommu_group} with another card of this request"
    why += _reset_note(gpu)
    # A card beside one already picked first; then the card that strands fewest others.
    return (Option(place=place, rank=(0 if already else 1, free), why=why),)


def _reset_note(gpu: Gpu) -> str:
    """What to mind about a card that keeps its state when its guest ends.

    A card of several functions is reset by its bus when VFIO gives them all to one guest
    (VFIO_DEVICE_PCI_HOT_RESET), for which the kernel lists no method.
    """
    by_bus = len(gpu.functions) > 1 and bool(gpu.bridges)
    if gpu.can_reset is not False or by_bus:
        return ""
    return (
        "; the kernel knows no way to reset it, so that its guest may not start a second time"
        " before the host is rebooted"
    )


def place_of(gpu: Gpu) -> Place:
    """The whole card as a place, with the drivers that its functions have now."""
    return Place(
        mechanism=Mechanism.WHOLE,
        gpu=gpu.address,
        functions=tuple(function.address for function in gpu.functions) or (gpu.address,),
        previous_drivers=tuple(function.driver for function in gpu.functions) or (gpu.driver,),
    )


def why_group_is_not_viable(host: Host, picks: Sequence[Place], taken: Taken) -> str | None:
    """Why the kernel would refuse the picked cards: a sibling on a host driver in their group."""
    picked = {place.gpu for place in picks if place.mechanism is Mechanism.WHOLE}
    for address in sorted(picked):
        gpu = host.gpu(address)
        for other in _siblings(host, gpu) if gpu else ():
            drivers = {function.driver for function in other.functions} | {other.driver}
            used = sorted(driver for driver in drivers if driver not in NOT_THE_HOSTS)
            if used and other.address not in picked and not taken.whole(other):
                return (
                    f"{address} shares IOMMU group {other.iommu_group} with {other.address}, which"
                    f" is bound to {used[0]}"
                )
    return None


def _is_asked_right(_h: Host, gpu: Gpu, on: PciAddress | None, _t: Taken) -> Refusal | None:
    if on is None or on == gpu.address:
        return None
    hint = f"ask for 'gpu on {gpu.address}', or for 'vf on {on}'"
    return Refusal(f"{on} is a VF of {gpu.address} and no whole card", Usage, hint)


def _is_offered(host: Host, gpu: Gpu, on: PciAddress | None, taken: Taken) -> Refusal | None:
    if taken.is_stuck(gpu.address, *(function.address for function in gpu.functions)):
        return Refusal(f"a write to {gpu.address} has not come back", Conflict)
    if gpu.blocked is not None:
        return Refusal(f"{gpu.address} cannot be given away: {gpu.blocked}", Unsupported)
    if host.iommu is False or gpu.iommu_group is None:
        hint = "turn on the IOMMU in the firmware and on the kernel's command line"
        return Refusal(f"{gpu.address} has no IOMMU group", Unsupported, hint)
    if gpu.boot_console and on is None:
        hint = f"ask for it by address if that is meant: 'gpu on {gpu.address}'"
        return Refusal(f"{gpu.address} shows the host's console", Conflict, hint)
    return None


def _is_settled(_h: Host, gpu: Gpu, _on: PciAddress | None, _t: Taken) -> Refusal | None:
    return mig.why_pending(gpu)


def _is_unused(_h: Host, gpu: Gpu, _on: PciAddress | None, taken: Taken) -> Refusal | None:
    if gpu.vfs:
        vfs = listed([vf.address for vf in gpu.vfs], 3)
        hint = "turn its VFs off when none is in use, or ask for vf"
        return Refusal(
            f"{gpu.address} has {len(gpu.vfs)} VFs on ({vfs}) and is no whole card while it has",
            Conflict,
            hint,
        )
    slices = taken.on(gpu)
    if slices:
        users = listed([owner(one) for one in slices])
        return Refusal(f"{gpu.address} is taken by {users}", Conflict)
    if taken.picked_on(gpu):
        return Refusal(f"{gpu.address} is already chosen in this request", Conflict)
    if gpu.mig is not None and gpu.mig.instances:
        count = len(gpu.mig.instances)
        return Refusal(f"{gpu.address} has {count} GPU instances", Conflict)
    return None


def _is_isolated(host: Host, gpu: Gpu, _on: PciAddress | None, taken: Taken) -> Refusal | None:
    shared = taken.group_user(groups_of(host, place_of(gpu)))
    if shared is not None:
        group, one = shared
        return Refusal(
            f"{gpu.address} is in IOMMU group {group} with {one.place.gpu}, which {owner(one)} has;"
            " the cards of one group go to one guest",
            Conflict,
        )
    siblings = {function for other in _siblings(host, gpu) for function in _functions(other)}
    strangers = [one for one in gpu.strangers if one.address not in siblings]
    if strangers:
        who = listed([f"{one.address} ({_what(one)})" for one in strangers])
        return Refusal(
            f"{gpu.address} shares IOMMU group {gpu.iommu_group} with {who}, which would have to"
            " leave the host with it",
            Conflict,
            "move the card to a slot with a group of its own",
        )
    return None


def _what(stranger: Function) -> str:
    driver = f"driver {stranger.driver}" if stranger.driver else "no driver"
    return f"{pci_class.words(stranger.class_code)}, {driver}"


def _is_unheld(_h: Host, gpu: Gpu, _on: PciAddress | None, _t: Taken) -> Refusal | None:
    if gpu.holders is None:
        hint = "run as root, so that all processes can be seen"
        return Refusal(f"who holds {gpu.address} is unknown", Conflict, hint)
    if gpu.holders:
        how = stop_command(gpu.holders) or "stop what holds it"
        return Refusal(
            f"{gpu.address} is held by {holders_text(gpu.holders)}",
            Conflict,
            f"{how}; unbinding a held card would wait for ever",
        )
    return None


def _siblings(host: Host, gpu: Gpu) -> tuple[Gpu, ...]:
    """The other GPUs that share an IOMMU group with one of the card's functions."""
    groups = groups_of(host, place_of(gpu))
    return tuple(
        other
        for other in host.gpus
        if other.address != gpu.address and groups & groups_of(host, place_of(other))
    )


def _functions(gpu: Gpu) -> tuple[PciAddress, ...]:
    return tuple(function.address for function in gpu.functions) or (gpu.address,)
