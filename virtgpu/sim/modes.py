"""What NVIDIA's own tools change: MIG mode, GPU instances, mixed-size mode, VFs on and off.

Messages and exit codes are those of the real tools (hardware notes 4 to 6).
"""

from __future__ import annotations

from collections.abc import Callable

from virtgpu.host.door import Completed
from virtgpu.sim.bus import Bus
from virtgpu.sim.cards import Card
from virtgpu.sim.device import Device
from virtgpu.sim.profiles import Json, Profile
from virtgpu.sim.sriov import Sriov
from virtgpu.sim.state import Instance, Mode, State

_BUSY = "In use by another client"
_GENERIC = 255
_IN_USE = 19
_NOT_FOUND = 6


class NvidiaRefused(Exception):
    """The driver says no; *rc* is what its tool ends with."""

    def __init__(self, message: str, rc: int = _GENERIC) -> None:
        super().__init__(message)
        self.message = message
        self.rc = rc


class Modes:
    """The cards of NVIDIA's driver."""

    def __init__(
        self, profile: Profile, bus: Bus, state: State, cards: dict[str, Card], sriov: Sriov
    ) -> None:
        self._needs_reset = bool(profile.choices.get("mig_pending"))
        # A tool that is cut off half-way: what it does is left in between, and it fails.
        self.is_breaking = False
        self._bus = bus
        self._state = state
        self._cards = cards
        self._sriov = sriov
        for address, card in cards.items():
            sizes = {one["profile_id"]: int(one["size"]) for one in card.profiles()}
            for one in state.instances.get(address, []):
                one.size = sizes.get(one.profile_id, one.size or 1)
        bus.on_unbind.append(self._unbound)

    def _card(self, address: str) -> Card:
        card = self._cards.get(address)
        if card is None or card.pf.driver != "nvidia":
            raise NvidiaRefused("No devices were found", _NOT_FOUND)
        return card

    # -- MIG

    def set_mig_mode(self, address: str, on: bool) -> None:
        """Change MIG mode; raises `NvidiaRefused` where it stays or only becomes pending."""
        card = self._card(address)
        mode = self._state.mig.get(address)
        if mode is None:
            raise NvidiaRefused("Not Supported", 3)
        if mode.current == on:
            self._state.mig[address] = Mode(on, on)
            return
        if not on and (card.pf.vfs or card.instances()):
            raise NvidiaRefused(_BUSY, _IN_USE)
        if self._needs_reset or self.is_breaking or card.vgpus() or self._has_clients(card):
            self._state.mig[address] = Mode(mode.current, on)
            word = "enable" if on else "disable"
            raise NvidiaRefused(f"Warning: MIG mode is in pending {word} state", 0)
        self._state.mig[address] = Mode(on, on)
        self._state.mixed.pop(address, None) if on else self._state.mixed.setdefault(address, False)

    def _has_clients(self, card: Card) -> bool:
        return self._bus.is_held(card.pf.group) or any(
            name.startswith("/dev/nvidia") for one in self._state.holders for name in one.files
        )

    def create_gi(self, address: str, profile_id: int, start: int | None, ci: bool) -> int:
        """Make a GPU instance at *start* (None: the driver's choice); returns its id."""
        card = self._card(address)
        if not card.is_mig:
            raise NvidiaRefused("Not Supported", 3)
        profile = next((p for p in card.profiles() if p["profile_id"] == profile_id), None)
        if profile is None:
            raise NvidiaRefused("Not Found", _NOT_FOUND)
        free = starts_left(card, profile)
        if not free or (start is not None and start not in free):
            raise NvidiaRefused("Insufficient Resources", _IN_USE)
        chosen = free[-1] if start is None else start  # the driver fills from the far end
        taken = {one.gi_id for one in card.instances()}
        gi_id = next(n for n in range(0 if profile["slices"] >= 7 else 1, 64) if n not in taken)
        made = Instance(gi_id, profile_id, chosen, int(profile["size"]))
        self._state.instances.setdefault(address, []).append(made)
        if ci:
            self._break()
            made.ci.append(0)
        return gi_id

    def _break(self) -> None:
        if self.is_breaking:
            raise NvidiaRefused("Unknown Error", 255)

    def create_ci(self, address: str, gi_id: int) -> int:
        """Make the compute instance of the whole GPU instance; returns its id."""
        instance = self._instance(address, gi_id)
        if instance.ci:
            raise NvidiaRefused("Insufficient Resources", _IN_USE)
        self._break()
        instance.ci.append(0)
        return 0

    def destroy_ci(self, address: str, gi_id: int | None) -> list[int]:
        """Destroy the compute instances of one GPU instance, or of all; returns their ids."""
        self._break()
        found = self._instances(address, gi_id)
        for one in found:
            if self._is_used(address, one):
                raise NvidiaRefused(_BUSY, _IN_USE)
            one.ci.clear()
        return [one.gi_id for one in found]

    def destroy_gi(self, address: str, gi_id: int | None) -> list[int]:
        """Destroy one GPU instance, or all; returns their ids."""
        self._break()
        found = self._instances(address, gi_id)
        for one in found:
            if one.ci or self._is_used(address, one):
                raise NvidiaRefused(_BUSY, _IN_USE)
            self._state.instances[address].remove(one)
        if not self._state.instances.get(address):
            self._state.instances.pop(address, None)
        return [one.gi_id for one in found]

    def _instances(self, address: str, gi_id: int | None) -> list[Instance]:
        if gi_id is not None:
            return [self._instance(address, gi_id)]
        found = list(self._card(address).instances())
        if not found:
            raise NvidiaRefused("Not Found", _NOT_FOUND)
        return found

    def _instance(self, address: str, gi_id: int) -> Instance:
        for one in self._card(address).instances():
            if one.gi_id == gi_id:
                return one
        raise NvidiaRefused("Not Found", _NOT_FOUND)

    def _is_used(self, address: str, instance: Instance) -> bool:
        return any(one.gi_id == instance.gi_id for one in self._cards[address].vgpus())

    # -- mixed size

    def set_mixed(self, address: str, on: bool) -> None:
        """Change mixed-size mode; only an empty card, without MIG, takes it."""
        card = self._card(address)
        if address not in self._state.mixed or card.is_mig:
            raise NvidiaRefused("Not Supported", 3)
        if self._state.mixed[address] != on and card.vgpus():
            raise NvidiaRefused(_BUSY, _IN_USE)
        self._break()
        self._state.mixed[address] = on

    # -- VFs

    def sriov_manage(self, argv: list[str]) -> Completed:
        """`sriov-manage -e|-d ADDRESS|ALL`; may raise `InUse`."""
        if len(argv) != 2 or argv[0] not in ("-e", "-d"):
            return Completed(1, "", "Usage: sriov-manage <-e|-d> <GPU|ALL>\n")
        names = list(self._cards) if argv[1].upper() == "ALL" else [argv[1].lower()]
        out = ""
        for name in names:
            card = self._cards.get(name)
            if card is None or "sriov" not in card.pf.spec:
                return Completed(1, out, f"{name}: no such GPU\n")
            if self._has_clients(card):
                return Completed(1, out, f"Cannot obtain unbindLock for {name}\n")
            turn: Callable[[Card], str] = self._enable if argv[0] == "-e" else self._disable
            out += turn(card)
            if self.is_breaking:
                return Completed(1, out, f"Cannot bind {name} to nvidia\n")
        return Completed(0, out, "")

    def _enable(self, card: Card) -> str:
        if not card.pf.vfs and card.pf.spec["sriov"].get("usable", True):
            count = int(card.pf.spec["sriov"]["totalvfs"])
            self._without_driver(card, lambda: self._sriov.enable(card.pf, count))
        return f"Enabling VFs on {card.pf.address}\n"

    def _disable(self, card: Card) -> str:
        if card.pf.vfs:
            self._without_driver(card, lambda: self._sriov.disable(card.pf))
        return f"Disabling VFs on {card.pf.address}\n"

    def _without_driver(self, card: Card, act: Callable[[], None]) -> None:
        """The tool takes the PF from the driver, turns the VFs, and gives it back."""
        driver = card.pf.driver
        if driver is not None:
            self._bus.unbind(card.pf)
        act()
        if driver is not None and not self.is_breaking:
            self._bus.bind(card.pf, driver)

    def _unbound(self, device: Device) -> None:
        """GPU instances and mixed-size mode go with the driver, MIG mode stays."""
        if device.address not in self._cards:
            return
        self._state.instances.pop(device.address, None)
        if device.address in self._state.mixed:
            self._state.mixed[device.address] = False


def starts_left(card: Card, profile: Json) -> list[int]:
    """The memory slots where one more instance of a profile could begin now."""
    instances = card.instances()
    if profile["slices"] > slices_left(card):
        return []
    if (
        sum(one.profile_id == profile["profile_id"] for one in instances)
        >= profile["max_instances"]
    ):
        return []
    taken = {slot for one in instances for slot in range(one.start, one.start + one.size)}
    size = int(profile["size"])
    return [one for one in sorted(profile["starts"]) if taken.isdisjoint(range(one, one + size))]


def slices_left(card: Card) -> int:
    """The compute slices that no GPU instance has."""
    by_id = {one["profile_id"]: one for one in card.profiles()}
    used = sum(int(by_id[one.profile_id]["slices"]) for one in card.instances())
    return int(card.mig["compute_slices"]) - used
