"""NVIDIA's vGPU capable cards: their types, and how many of each still fit.

Rules from NVIDIA's virtual GPU user guide: one pool of frame buffer a card; equal-size mode: the
first vGPU fixes the size, any series; mixed-size mode: places from a table; MIG: only types with
a GPU instance, as many of one size as fit into the instances of their profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from virtgpu.sim.device import Device
from virtgpu.sim.profiles import Json, Profile
from virtgpu.sim.state import Instance, Mdev, State, Vgpu

_NOT_SET = 1 << 20
_FIRST_INVENTED = 9001


class Kind(msgspec.Struct, frozen=True):
    """A vGPU type. *id* is the number; mediated devices call it `nvidia-NUMBER`."""

    id: str
    name: str | None
    fb_mib: int
    max_instances: int
    max_mixed: int | None
    gi_profile: str | None
    max_per_gi: int
    description: str | None
    device_api: str

    @property
    def gib(self) -> int:
        """Nominal frame buffer in the unit of places."""
        return max(1, self.fb_mib // 1024)


class Card(msgspec.Struct, eq=False):
    """One card with its vGPU types; *on* is `pf` or `vf`, *framework* `mdev` or `vendor-vfio`."""

    pf: Device
    framework: str | None
    on: str
    kinds: dict[str, Kind]
    state: State
    places_of: dict[str, list[int]] = msgspec.field(default_factory=dict)
    vendor_vfio: Json = msgspec.field(default_factory=dict)
    mig: Json = msgspec.field(default_factory=dict)

    # -- what is there

    @property
    def is_mig(self) -> bool:
        """Whether MIG is on now."""
        mode = self.state.mig.get(self.pf.address)
        return mode is not None and mode.current

    @property
    def is_mixed(self) -> bool:
        """Whether vGPUs of several sizes may share the card."""
        return self.state.mixed.get(self.pf.address, False)

    @property
    def total_mib(self) -> int:
        """The nominal frame buffer: the largest time-sliced type, or as many as there may be."""
        sizes = [one.fb_mib for one in self.kinds.values() if one.gi_profile is None]
        return max(sizes, default=0)

    def instances(self) -> list[Instance]:
        """The GPU instances."""
        return self.state.instances.get(self.pf.address, [])

    def mdevs(self) -> Iterator[Mdev]:
        """The mediated devices on the PF and its VFs."""
        mine = {self.pf.address, *(vf.address for vf in self.pf.vfs)}
        return (one for one in self.state.mdevs if one.parent in mine)

    def vgpus(self) -> list[Vgpu]:
        """Every vGPU on the card."""
        mine = [
            self.state.vgpus[vf.address] for vf in self.pf.vfs if vf.address in self.state.vgpus
        ]
        found = mine + [one.vgpu for one in self.mdevs()]
        # A type that the profile does not have takes no room that could be counted.
        return [one for one in found if one.type_id in self.kinds]

    def vgpu_on(self, device: Device) -> Vgpu | None:
        """The vGPU of one VF."""
        if device.address in self.state.vgpus:
            return self.state.vgpus[device.address]
        return next((one.vgpu for one in self.state.mdevs if one.parent == device.address), None)

    # -- what fits

    def room(self, kind: Kind) -> int:
        """How many more of a type the card takes."""
        if self.is_mig != (kind.gi_profile is not None):
            return 0
        vgpus = self.vgpus()
        if kind.gi_profile is not None:
            return sum(self._room_in(kind, one) for one in self._instances_of(kind))
        if self.is_mixed:
            return self._room_mixed(kind, vgpus)
        sizes = {self.kinds[one.type_id].fb_mib for one in vgpus if one.type_id in self.kinds}
        if sizes - {kind.fb_mib}:
            return 0
        return max(0, kind.max_instances - len(vgpus))

    def _room_mixed(self, kind: Kind, vgpus: list[Vgpu]) -> int:
        used = sum(self.kinds[one.type_id].fb_mib for one in vgpus)
        if kind.fb_mib > self.total_mib - used:
            return 0
        limit = _NOT_SET if kind.max_mixed is None else kind.max_mixed
        same = sum(one.type_id == kind.id for one in vgpus)
        return max(0, min(len(self.starts(kind)), limit - same))

    def starts(self, kind: Kind) -> list[int]:
        """The places where one more of the type could begin now, in mixed-size mode."""
        taken: set[int] = set()
        for one in self.vgpus():
            size = self.kinds[one.type_id].gib
            taken.update(range(one.placement or 0, (one.placement or 0) + size))
        return [
            one for one in self.all_starts(kind) if taken.isdisjoint(range(one, one + kind.gib))
        ]

    def all_starts(self, kind: Kind) -> list[int]:
        """The places of a type on an empty card."""
        table = self.places_of.get(str(kind.gib))
        total = self.total_mib // 1024
        return table if table is not None else list(range(0, total - kind.gib + 1, kind.gib))

    def _instances_of(self, kind: Kind) -> list[Instance]:
        ids = {one["profile_id"] for one in self.profiles() if one["name"] == kind.gi_profile}
        return [one for one in self.instances() if one.profile_id in ids]

    def _room_in(self, kind: Kind, instance: Instance) -> int:
        inside = [one for one in self.vgpus() if one.gi_id == instance.gi_id]
        if any(self.kinds[one.type_id].fb_mib != kind.fb_mib for one in inside):
            return 0
        return max(0, kind.max_per_gi - len(inside))

    def instance_for(self, kind: Kind) -> Instance | None:
        """The GPU instance that a new vGPU goes to: the lowest one with room."""
        fitting = [one for one in self._instances_of(kind) if self._room_in(kind, one)]
        return min(fitting, key=lambda one: one.start, default=None)

    def profiles(self) -> list[Json]:
        """The GPU instance profiles, names without "MIG "."""
        return [
            one | {"name": str(one["name"]).removeprefix("MIG ")}
            for one in self.mig.get("profiles") or []
        ]

    def make(self, kind: Kind) -> Vgpu:
        """A new vGPU of the type where the driver would put it; there must be room."""
        if kind.gi_profile is not None:
            instance = self.instance_for(kind)
            inside = [v for v in self.vgpus() if instance and v.gi_id == instance.gi_id]
            gi_id = instance.gi_id if instance else None
            return Vgpu(kind.id, len(inside) * kind.gib, gi_id)
        if self.is_mixed:
            return Vgpu(kind.id, self.starts(kind)[0])
        taken = {one.placement for one in self.vgpus()}
        free = (n * kind.gib for n in range(kind.max_instances + 1))
        return Vgpu(kind.id, next((one for one in free if one not in taken), None))


def read_kinds(profile: Profile, spec: Json) -> dict[str, Kind]:
    """The vGPU types of a card by number; none where it has none."""
    reference = spec.get("mdev") or spec.get("vendor_vfio")
    tables = profile.raw.get("mdev_types") if spec.get("mdev") else profile.raw.get("vgpu_types")
    if reference is None or not tables:
        return {}
    rows = tables[reference["types_ref"]]
    # Where nobody has published a number, the model invents a stable one.
    return {
        kind.id: kind
        for index, row in enumerate(rows)
        if (kind := _kind(row, str(_FIRST_INVENTED + index)))
    }


def _kind(row: Json, invented: str) -> Kind:
    name, text = row.get("name"), row.get("description")
    said = re.search(r"max_instance=(\d+)", text or "")
    count = row.get("max_instances") or row.get("available_instances") or (said and said[1]) or 1
    return Kind(
        id=invented if row.get("id") is None else str(row["id"]),
        name=name,
        fb_mib=int(row.get("fb_mib") or 0),
        max_instances=int(count),
        max_mixed=row.get("max_instances_mixed"),
        gi_profile=row.get("gi_profile"),
        max_per_gi=int(row.get("max_per_gi") or 1),
        description=text,
        device_api=str(row.get("device_api") or "vfio-pci"),
    )
