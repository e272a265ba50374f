"""Whether a step's effect is there: asked before it (must not be), after it (must be), and by
recovery. The one place that reads back."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from virtgpu.apply import reservations
from virtgpu.apply.world import World
from virtgpu.host import paths
from virtgpu.host.libvirt_domains import lookup, lookup_xml
from virtgpu.inventory.pci import driver_override
from virtgpu.inventory.reader import Reader, number
from virtgpu.model import binding, steps
from virtgpu.model.binding import Binding
from virtgpu.model.pci import PciAddress
from virtgpu.model.steps import Step


class Effect(Enum):
    """Where a step stands. *PARTIAL* is a state that its own writes can leave; *OTHER* is one
    that they cannot: somebody else's work, or a state that we do not know. *GONE*: what it is
    about is not there any more, and nothing of the step's with it."""

    ABSENT = "absent"
    PARTIAL = "partial"
    PRESENT = "present"
    OTHER = "other"
    GONE = "gone"


class Seen(NamedTuple):
    """The answer, and in words what was found."""

    effect: Effect
    found: str


_ABSENT = Seen(Effect.ABSENT, "it is not there")


def _opposite(seen: Seen) -> Seen:
    swapped = {Effect.ABSENT: Effect.PRESENT, Effect.PRESENT: Effect.ABSENT}
    return Seen(swapped.get(seen.effect, seen.effect), seen.found)


def _reservation(world: World, step: steps.Reserve | steps.Release) -> Seen:
    wanted = step.reservation
    found = reservations.get(world.door.state_dir, wanted.id)
    if found is None:
        return Seen(Effect.ABSENT, f"slice {wanted.id} is not promised")
    if found != wanted:
        return Seen(
            Effect.OTHER, f"slice {wanted.id} is promised to {found.guest} otherwise by now"
        )
    return Seen(Effect.PRESENT, f"slice {wanted.id} is promised")


def binding_of(reader: Reader, address: PciAddress) -> Binding:
    """What the function is bound to now."""
    driver = reader.last(paths.pci(address, "driver"))
    return Binding(driver, driver_override(reader, address))


def _driver(world: World, step: steps.BindDriver) -> Seen:
    now = binding_of(Reader(world.door), step.address)
    found = (
        f"{step.address} has driver {now.driver or 'none'}, driver_override"
        f" {now.override or 'none'}"
    )
    if now == binding.after(step):
        return Seen(Effect.PRESENT, found)
    if now == binding.before(step):
        return Seen(Effect.ABSENT, found)
    return Seen(Effect.PARTIAL if binding.is_known(step, now) else Effect.OTHER, found)


def vfs_of(world: World, pf: PciAddress) -> list[PciAddress]:
    """The VFs that the PF links to and that have appeared, in order."""
    reader = Reader(world.door)
    found = []
    for name in reader.names(paths.pci(pf)):
        index = number(name[6:]) if name.startswith("virtfn") else None
        target = reader.last(paths.pci(pf, name)) if index is not None else None
        if target is not None and world.door.exists(paths.pci(PciAddress(target), "physfn")):
            found.append((index or 0, PciAddress(target)))
    return [vf for _, vf in sorted(found)]


def _vfs(world: World, step: steps.SetVfs) -> Seen:
    reader, there = Reader(world.door), len(vfs_of(world, step.address))
    said = reader.number(paths.pci(step.address, "sriov_numvfs"))
    driver = reader.last(paths.pci(step.address, "driver"))
    found = f"{step.address} has {there} VFs (sriov_numvfs {said}) and driver {driver or 'none'}"
    takes_driver = step.tool == "sriov-manage"
    if takes_driver and driver not in (None, step.driver):
        return Seen(Effect.OTHER, found)
    has_driver = driver == step.driver or not takes_driver
    if has_driver and there == step.count and said in (step.count, None):
        return Seen(Effect.PRESENT, found)
    if has_driver and there == step.previous and said in (step.previous, None):
        return Seen(Effect.ABSENT, found)
    return Seen(Effect.PARTIAL, found)


def _mig_mode(world: World, step: steps.SetMigMode) -> Seen:
    mode = world.gpu(step.address).mig
    if mode is None:
        return Seen(Effect.OTHER, f"{step.address} says nothing of MIG mode")
    words = {True: "on", False: "off"}
    found = f"MIG mode of {step.address} is {words[mode.current]}, pending {words[mode.pending]}"
    if not mode.is_settled:
        return Seen(Effect.PARTIAL, found)
    return Seen(Effect.PRESENT if mode.current == step.enabled else Effect.ABSENT, found)


def _mixed(world: World, step: steps.SetMixedSize) -> Seen:
    mode = world.gpu(step.address).mixed_size
    if mode is None:
        return Seen(Effect.OTHER, f"{step.address} says nothing of mixed-size mode")
    found = f"mixed-size mode of {step.address} is {'on' if mode else 'off'}"
    return Seen(Effect.PRESENT if mode == step.enabled else Effect.ABSENT, found)


def _instance(world: World, step: steps.CreateGpuInstance | steps.DestroyGpuInstance) -> Seen:
    mode = world.gpu(step.address).mig
    if mode is None:
        return Seen(Effect.OTHER, f"{step.address} says nothing of its GPU instances")
    slots = set(range(step.start, step.start + step.size))
    for one in mode.instances:
        if slots.isdisjoint(range(one.start, one.start + one.size)):
            continue
        found = f"GPU instance {one.id} (profile {one.profile_id}) begins at slot {one.start}"
        if (one.profile_id, one.start) != (step.profile_id, step.start):
            return Seen(Effect.OTHER, found)
        is_whole = bool(one.compute_instances) or not step.compute_instance
        return Seen(Effect.PRESENT if is_whole else Effect.PARTIAL, found)
    return _ABSENT


def _mdev(world: World, step: steps.CreateMdev | steps.RemoveMdev) -> Seen:
    reader = Reader(world.door)
    target = reader.link(paths.mdev(step.uuid))
    if target is None:
        return _ABSENT
    parent, kind = target.split("/")[-2], reader.last(paths.mdev(step.uuid, "mdev_type"))
    found = f"mdev {step.uuid} is a {kind} of {parent}"
    is_it = (parent, kind) == (step.parent, step.type_id)
    return Seen(Effect.PRESENT if is_it else Effect.OTHER, found)


def _vgpu(world: World, step: steps.SetVgpuType | steps.ClearVgpuType) -> Seen:
    current = current_type(world, step.vf)
    if current is None:
        return Seen(
            Effect.ABSENT if not world.door.exists(paths.pci(step.vf)) else Effect.OTHER,
            f"VF {step.vf} has no readable vGPU type",
        )
    found = f"VF {step.vf} has vGPU type {current}"
    if current == "0":
        return Seen(Effect.ABSENT, found)
    is_it = step.type_id in (None, current)
    return Seen(Effect.PRESENT if is_it else Effect.OTHER, found)


def current_type(world: World, vf: PciAddress) -> str | None:
    """What `current_vgpu_type` of a VF says, None when it cannot be read."""
    value = Reader(world.door).number(paths.pci(vf, "nvidia", "current_vgpu_type"))
    return None if value is None else str(value)


def _defined(world: World, step: steps.DefineDomain) -> Seen:
    with world.door.libvirt(step.uri) as connection:
        domain = lookup(connection, step.name)
        if domain is None:
            return Seen(Effect.ABSENT, f"there is no guest {step.name!r}")
        uuid = domain.UUIDString()
        found = f"guest {step.name!r} has UUID {uuid}"
        if uuid != step.uuid:
            return Seen(Effect.OTHER, found)
        if step.previous_xml is not None and (
            lookup_xml(connection, step.name) == step.previous_xml
        ):
            return Seen(Effect.ABSENT, found)
        return Seen(Effect.PRESENT, found)


def _undefined(world: World, step: steps.UndefineDomain) -> Seen:
    with world.door.libvirt(step.uri) as connection:
        domain = lookup(connection, step.name)
        if domain is None:
            return Seen(Effect.PRESENT, f"there is no guest {step.name!r}")
        uuid = domain.UUIDString()
        if uuid != step.uuid:
            return Seen(Effect.OTHER, f"guest {step.name!r} has UUID {uuid}")
        if step.exact and lookup_xml(connection, step.name) != step.xml:
            return Seen(Effect.OTHER, f"guest {step.name!r} was edited")
        return Seen(Effect.ABSENT, f"guest {step.name!r} is defined")


_LOOK: dict[type[Any], Callable[[World, Any], Seen]] = {
    steps.Reserve: _reservation,
    steps.Release: lambda world, step: _opposite(_reservation(world, step)),
    steps.BindDriver: _driver,
    steps.SetVfs: _vfs,
    steps.SetMigMode: _mig_mode,
    steps.SetMixedSize: _mixed,
    steps.CreateGpuInstance: _instance,
    steps.DestroyGpuInstance: lambda world, step: _opposite(_instance(world, step)),
    steps.CreateMdev: _mdev,
    steps.RemoveMdev: lambda world, step: _opposite(_mdev(world, step)),
    steps.SetVgpuType: _vgpu,
    steps.ClearVgpuType: lambda world, step: _opposite(_vgpu(world, step)),
    steps.DefineDomain: _defined,
    steps.UndefineDomain: _undefined,
}


# What these are about is a PCI function, and goes with it.
_OF_A_FUNCTION = (
    steps.BindDriver,
    steps.SetVfs,
    steps.SetMigMode,
    steps.SetMixedSize,
    steps.CreateGpuInstance,
    steps.DestroyGpuInstance,
)


def observe(world: World, step: Step) -> Seen:
    """Where the step stands on the host now."""
    if isinstance(step, _OF_A_FUNCTION) and not world.door.exists(paths.pci(step.address)):
        return Seen(Effect.GONE, f"{step.address} is gone")
    return _LOOK[type(step)](world, step)
