"""What is taken on a host: by slices, and by the picks of the request being answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from virtgpu.model.gpu import Gpu, Holder, Host, Mechanism
from virtgpu.model.pci import PciAddress
from virtgpu.model.slice import Place, Slice, SliceState
from virtgpu.policy.ledger import groups_of, is_there, vf_of

VGPU = frozenset({Mechanism.MDEV_PF, Mechanism.MDEV_VF, Mechanism.VENDOR_VFIO, Mechanism.MIG})


_DISPLAY = "systemctl stop display-manager"
_PIPEWIRE = "systemctl --user stop pipewire.socket pipewire wireplumber"
# By `comm`, which the kernel cuts off after 15 characters.
_SERVICES = {
    "nvidia-persiste": "systemctl stop nvidia-persistenced",
    "nv-hostengine": "systemctl stop nvidia-dcgm",
    "Xorg": _DISPLAY,
    "Xwayland": _DISPLAY,
    "gnome-shell": _DISPLAY,
    "kwin_wayland": _DISPLAY,
    "sddm": _DISPLAY,
    "pipewire": _PIPEWIRE,
    "wireplumber": _PIPEWIRE,
    "pulseaudio": "systemctl --user stop pulseaudio.socket pulseaudio",
}


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Slices that exist or are promised, and *picks* made so far for this *guest*.

    A promise without hardware counts as much as hardware does: what was reserved and not yet
    made, or went with a reboot, is still somebody's.
    """

    host: Host
    slices: tuple[Slice, ...] = ()
    picks: tuple[Place, ...] = ()
    guest: str | None = None
    stuck: frozenset[str] = frozenset()

    def with_pick(self, place: Place) -> Taken:
        """The same with one more place taken."""
        return msgspec.structs.replace(self, picks=(*self.picks, place))

    def on(self, gpu: Gpu) -> tuple[Slice, ...]:
        """The slices of one GPU."""
        return tuple(one for one in self.slices if one.place.gpu == gpu.address)

    def picked_on(self, gpu: Gpu) -> tuple[Place, ...]:
        """The picks on one GPU."""
        return tuple(place for place in self.picks if place.gpu == gpu.address)

    def unseen(self, gpu: Gpu) -> tuple[Place, ...]:
        """Places on the GPU that its present state does not show: absent slices and picks."""
        promised = (one.place for one in self.on(gpu) if not is_there(self.host, one.place))
        return (*promised, *self.picked_on(gpu))

    def spoken_for(self, gpu: Gpu) -> str:
        """In words, how what the GPU does not show yet is taken: promised, chosen, or both."""
        chosen, promised = len(self.picked_on(gpu)), len(self.unseen(gpu))
        promised -= chosen
        words = []
        if promised:
            words.append(f"promised ({promised} slice{'s' * (promised != 1)} not there yet)")
        if chosen:
            words.append("already chosen in this request")
        return " or ".join(words)

    def is_picked(self, device: PciAddress) -> bool:
        """Whether this request has chosen the GPU or VF already."""
        return any(device == (place.vf or place.gpu) for place in self.picks)

    def places(self, gpu: Gpu) -> tuple[Place, ...]:
        """Every place taken on the GPU."""
        return (*(one.place for one in self.on(gpu)), *self.picked_on(gpu))

    def vfs(self, gpu: Gpu) -> frozenset[PciAddress]:
        """The VFs of the GPU that are taken, whether they exist or not."""
        return frozenset(place.vf for place in self.places(gpu) if place.vf is not None)

    def by_vf(self, gpu: Gpu, vf: PciAddress) -> Slice | None:
        """The slice that has this VF."""
        return next((one for one in self.on(gpu) if one.place.vf == vf), None)

    def whole(self, gpu: Gpu) -> bool:
        """Whether the GPU is given away as a whole."""
        return any(place.mechanism is Mechanism.WHOLE for place in self.places(gpu))

    def is_stuck(self, *devices: str | None) -> bool:
        """Whether a write to one of the devices has not come back."""
        return any(device is not None and str(device) in self.stuck for device in devices)

    def group_user(self, groups: frozenset[int]) -> tuple[int, Slice] | None:
        """A slice of another guest in one of these IOMMU groups, with the group.

        A slice that says no guest is another's: two guests in one group could reach each other.
        """
        for one in self.slices:
            shared = groups & groups_of(self.host, one.place)
            if shared and (self.guest is None or one.guest != self.guest):
                return min(shared), one
        return None


def owner(one: Slice) -> str:
    """Whose slice it is, for a sentence."""
    if one.guest is not None:
        return f"guest {one.guest}"
    return f"foreign {one.id}" if one.state is SliceState.FOREIGN else f"slice {one.id}"


def listed(items: Sequence[object], limit: int = 4) -> str:
    """The first few items in words."""
    shown = ", ".join(str(item) for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def holders_text(holders: Sequence[Holder]) -> str:
    """Who holds a device, for a sentence: pid and command, once each."""
    return listed(tuple(dict.fromkeys(_holder_texts(holders))))


def stop_command(holders: Sequence[Holder]) -> str | None:
    """How to stop the services among the holders, None where none is a known one."""
    found = (_SERVICES.get(one.command or "") for one in holders if one.pid is not None)
    return " && ".join(dict.fromkeys(one for one in found if one is not None)) or None


def _holder_texts(holders: Sequence[Holder]) -> Iterator[str]:
    for holder in holders:
        if holder.pid is None:
            yield holder.command or holder.file
        else:
            yield f"pid {holder.pid} ({holder.command or holder.file})"


def why_not_empty(gpu: Gpu, taken: Taken) -> str | None:
    """Why the card's modes cannot be changed now, None when the card is empty.

    Turning VFs on rebinds the driver and wipes GPU instances and the mixed-size mode; MIG and
    mixed-size mode change only on an idle card.
    """
    present = tuple(one for one in taken.on(gpu) if one.state is not SliceState.ABSENT)
    if present:
        return f"it has slices ({listed([owner(one) for one in present])})"
    if gpu.mig is not None and gpu.mig.instances:
        return f"it has {len(gpu.mig.instances)} GPU instances"
    if gpu.holders is None:
        return "who holds it is unknown (run as root to see all processes)"
    if gpu.holders:
        return f"it is held by {holders_text(gpu.holders)}"
    return None


def is_free_vf(gpu: Gpu, vf: PciAddress, taken: Taken) -> bool:
    """Whether nobody has the VF and no write to it is pending."""
    found = vf_of(gpu, vf)
    busy = found is not None and (found.mdev is not None or found.vgpu_type not in (None, "0"))
    return not (busy or vf in taken.vfs(gpu) or taken.is_stuck(vf))
