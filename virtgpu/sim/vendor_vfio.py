"""NVIDIA's vendor-specific VFIO framework: the folder `nvidia/` on each VF.

Sources in the hardware notes: an impossible id fails and leaves the file at 0; a VF with a vGPU
refuses another (EPERM reported), 0 on an empty one too; `placement_id` and `gpu_instance_id` are
ENXIO without a vGPU; without a GPU instance EIO. ENXIO of `vgpu_params`, EPERM while a guest runs:
guess.
"""

from __future__ import annotations

import errno
from functools import partial

from virtgpu.sim.bus import Bus, number
from virtgpu.sim.cards import Card
from virtgpu.sim.device import Device
from virtgpu.sim.profiles import Profile
from virtgpu.sim.state import State
from virtgpu.sim.tree import refuse

_DIRECTORY = "nvidia"
_HEADER = "ID    : vGPU Name"


class VendorVfio:
    """The vGPUs on VFs."""

    def __init__(self, profile: Profile, bus: Bus, state: State, cards: dict[str, Card]) -> None:
        self._bus = bus
        self._state = state
        self._cards = cards
        refusal = str(profile.choices.get("vgpu_refusal") or "EINVAL")
        self._refusal: int | None = None if refusal == "silent" else getattr(errno, refusal)
        bus.on_bind.append(self._bound)
        bus.on_unbind.append(self._unbound)
        bus.before_unbind.append(lambda device: bus.wait_unused(device.group))

    def _bound(self, vf: Device) -> None:
        card = self._cards.get(vf.card.address)
        if card is None or card.framework != "vendor-vfio" or vf.pf is None:
            return
        if vf.driver != card.pf.home:
            return
        t, node = self._bus.tree, self._bus.tree.dir(_DIRECTORY, vf.node)
        files = card.vendor_vfio.get("files") or ("creatable_vgpu_types", "current_vgpu_type")
        t.file(node, "creatable_vgpu_types", lambda: self._creatable(card, vf))
        t.file(
            node, "current_vgpu_type", lambda: self._current(vf), partial(self._set_type, card, vf)
        )
        if "gpu_instance_id" in files:
            t.file(node, "gpu_instance_id", lambda: self._field(vf, "gi_id"))
        if "placement_id" in files:
            t.file(node, "placement_id", lambda: self._field(vf, "placement"), self._no_place)
        if "vgpu_params" in files:
            t.file(node, "vgpu_params", lambda: self._params(vf), lambda _: self._set_params(vf))
        self._bus.open_vfio(vf)

    def _unbound(self, vf: Device) -> None:
        self._state.vgpus.pop(vf.address, None)
        if _DIRECTORY in vf.node.entries:
            self._bus.tree.remove(vf.node.entries[_DIRECTORY])

    # -- what reads say

    def _creatable(self, card: Card, vf: Device) -> str:
        style = card.vendor_vfio
        header = f"{style.get('header_line') or _HEADER}\n" if style.get("header") else ""
        if card.vgpu_on(vf) is not None:
            return header
        row = style.get("row") or "%-5d : %s"
        kinds = [kind for kind in card.kinds.values() if card.room(kind)]
        return header + "".join(f"{row % (int(kind.id), kind.name)}\n" for kind in kinds)

    def _current(self, vf: Device) -> str:
        vgpu = self._state.vgpus.get(vf.address)
        return f"{vgpu.type_id if vgpu else 0}\n"

    def _field(self, vf: Device, name: str) -> str:
        vgpu = self._state.vgpus.get(vf.address)
        value = getattr(vgpu, name) if vgpu else None
        if value is None:
            raise refuse(errno.ENXIO)
        return f"{value}\n"

    def _params(self, vf: Device) -> str:
        if vf.address not in self._state.vgpus:
            raise refuse(errno.ENXIO)
        return "\n"

    def _set_params(self, vf: Device) -> None:
        self._params(vf)

    def _no_place(self, _text: str) -> None:
        raise refuse(errno.ENXIO)

    # -- what writes do

    def _set_type(self, card: Card, vf: Device, text: str) -> None:
        wanted = str(number(text, 1 << 32))
        if wanted == "0":
            self._clear(vf)
            return
        if card.vgpu_on(vf) is not None:
            raise refuse(errno.EPERM)
        kind = card.kinds.get(wanted)
        if card.is_mig and (kind is None or kind.gi_profile is None or not card.room(kind)):
            raise refuse(errno.EIO)
        if kind is None or not card.room(kind):
            if self._refusal is not None:
                raise refuse(self._refusal)
            return  # the write succeeds, and the file still reads 0
        self._state.vgpus[vf.address] = card.make(kind)

    def _clear(self, vf: Device) -> None:
        if vf.address not in self._state.vgpus or self._bus.is_held(vf.group):
            raise refuse(errno.EPERM)
        if self._state.clear_refusals:
            # Right after the guest has stopped the driver needs a moment (formats 3).
            self._state.clear_refusals -= 1
            raise refuse(errno.EPERM)
        del self._state.vgpus[vf.address]
