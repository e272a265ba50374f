"""What NVML would say about the simulated cards, as plain values."""

from __future__ import annotations

from typing import Any

from virtgpu.sim.cards import Card, Kind
from virtgpu.sim.modes import slices_left, starts_left
from virtgpu.sim.profiles import Json, Profile


def collect(profile: Profile, cards: dict[str, Card]) -> dict[str, Any]:
    """The driver's version and one entry for each card that its driver has, in NVML's order."""
    raw = profile.raw.get("nvml") or {}
    devices = []
    for facts in raw.get("devices") or []:
        card = _card_of(profile, cards, facts)
        if facts.get("pci_bus_id") is None:
            devices.append(dict(facts) | _no_card())
        elif card is not None and card.pf.driver == "nvidia":
            devices.append(dict(facts) | _of_card(card))
    return {
        "driver_version": raw.get("driver_version"),
        "cuda_version": raw.get("cuda_version"),
        "topology": raw.get("topology"),
        "devices": [one | {"index": index} for index, one in enumerate(devices)],
    }


def _card_of(profile: Profile, cards: dict[str, Card], facts: Json) -> Card | None:
    for address, card in cards.items():
        found = profile.nvml_device(address)
        if found is not None and found.get("index") == facts.get("index"):
            return card
    return None


def _no_card() -> Json:
    empty: Json = {"mig": None, "mixed": None, "profiles": [], "gi": [], "vgpus": [], "types": []}
    return empty | {"creatable": [], "places": {}}


def _of_card(card: Card) -> Json:
    address = card.pf.address
    mode = card.state.mig.get(address)
    kinds = list(card.kinds.values())
    shown = [one for one in kinds if (one.gi_profile is not None) == card.is_mig]
    return {
        "mig": None if mode is None else {"current": mode.current, "pending": mode.pending},
        "mixed": card.state.mixed.get(address),
        "vgpu_heterogeneous_mode": _enabled(card.state.mixed.get(address)),
        "profiles": [_profile(card, one) for one in card.profiles()] if card.is_mig else [],
        "gi": [
            {
                "gi_id": one.gi_id,
                "profile_id": one.profile_id,
                "start": one.start,
                "size": one.size,
                "ci": list(one.ci),
            }
            for one in card.instances()
        ],
        "vgpus": _vgpus(card),
        "types": [_type(one) for one in shown],
        "creatable": [_number(one.id) for one in shown if card.room(one)],
        "places": {_number(one.id): _places(card, one) for one in shown} if card.is_mixed else {},
    }


def _enabled(mode: bool | None) -> str | None:
    return None if mode is None else "Enabled" if mode else "Disabled"


def _profile(card: Card, one: Json) -> Json:
    return {
        "id": one["profile_id"],
        "name": one["name"],
        "slices": one["slices"],
        "size": one["size"],
        "starts": list(one["starts"]),
        "max": one["max_instances"],
        "memory_mib": round(float(one.get("memory_gib") or 0) * 1024),
        "sm": one.get("sm"),
        "nvml_profile": one.get("nvml_profile"),
        "free": _free(card, one),
    }


def _free(card: Card, profile: Json) -> int:
    """How many more of the profile fit one beside the other."""
    made = sum(one.profile_id == profile["profile_id"] for one in card.instances())
    most = min(profile["max_instances"] - made, slices_left(card) // profile["slices"])
    count, end = 0, -1
    for start in starts_left(card, profile):
        if start > end and count < most:
            count, end = count + 1, start + profile["size"] - 1
    return count


def _vgpus(card: Card) -> list[Json]:
    on_vfs = [
        (vf.address, None, card.state.vgpus[vf.address])
        for vf in card.pf.vfs
        if vf.address in card.state.vgpus
    ]
    mediated = [(one.parent, one.uuid, one.vgpu) for one in card.mdevs()]
    return [
        {
            "vf": parent,
            "type_id": _number(vgpu.type_id),
            "mdev_uuid": uuid,
            "placement_id": vgpu.placement,
            "gi_id": vgpu.gi_id,
        }
        for parent, uuid, vgpu in on_vfs + mediated
    ]


def _type(kind: Kind) -> Json:
    return {
        "id": _number(kind.id),
        "name": kind.name,
        "fb_mib": kind.fb_mib,
        "max_instances": kind.max_instances,
        "gi_profile": kind.gi_profile,
        "max_per_gi": kind.max_per_gi,
    }


def _number(type_id: str) -> int:
    digits = type_id.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _places(card: Card, kind: Kind) -> Json:
    return {"size": kind.gib, "starts": card.starts(kind), "supported": card.all_starts(kind)}
