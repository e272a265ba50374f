"""Doing one step. Each looks for holders first where the kernel would wait for one, and what can
block is done by a child with a deadline. Reading back is the caller's.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from virtgpu.apply import nvidia_tools, reservations
from virtgpu.apply.observe import binding_of, current_type, vfs_of
from virtgpu.apply.world import World, function_holders, mdev_holders, refuse_held, vfio_holders
from virtgpu.errors import Capacity, Config, HostError, NotFound
from virtgpu.host import libvirt_domains, paths
from virtgpu.host.door import OnChild
from virtgpu.inventory.reader import Reader
from virtgpu.inventory.vendor_vfio import parse_creatable
from virtgpu.model import binding, steps
from virtgpu.model.gpu import Holder
from virtgpu.model.pci import PciAddress
from virtgpu.model.steps import Step
from virtgpu.policy import names

# How long a write may take. Turning 48 VFs on with sriov-manage takes some seconds.
WRITE_S = 10.0
VFS_S = 60.0
_VFS_APPEAR_S = 20.0
_POLL_S = 0.05
_CLEAR_TRIES = 10
_LOG = "the kernel's log may say more: dmesg | tail"
# Two answers that read like missing rights to the file; drivers give them for reasons of their own.
_LIKE_RIGHTS = (errno.EACCES, errno.EPERM)
_STOP = "stop the guest that uses it, or see it with: virtgpu slice list"


class Doing(NamedTuple):
    """The host, and who is told of the child that does a write."""

    world: World
    on_child: OnChild | None = None


def write(doing: Doing, path: str, text: str, *, can_block: bool = False) -> None:
    """Write to one file; a refusal becomes a `HostError` with file, value and errno."""
    try:
        if can_block:
            doing.world.door.write(path, text, deadline_s=WRITE_S, on_child=doing.on_child)
        else:
            doing.world.door.write(path, text)
    except OSError as error:
        raise _refused(doing, path, text, error) from error


def _refused(doing: Doing, path: str, text: str, error: OSError) -> HostError:
    code = errno.errorcode.get(error.errno or 0, str(error.errno))
    said = f"refused {text!r} written to /{path}: {error.strerror} ({code})"
    driver = _driver_behind(doing, path) if error.errno in _LIKE_RIGHTS else None
    if driver is None:
        return HostError(f"the kernel {said}", hint=_LOG)
    return HostError(f"driver {driver} {said}; no right to a file would change that", hint=_LOG)


def _driver_behind(doing: Doing, path: str) -> str | None:
    """The driver that answers for a file: named in its path, or that of its device."""
    name = path.removeprefix(f"{paths.PCI_DRIVERS}/")
    if name != path:
        return name.partition("/")[0]
    name = path.removeprefix(f"{paths.PCI_DEVICES}/")
    if name == path:
        return None
    address = PciAddress(name.partition("/")[0])
    return Reader(doing.world.door).last(paths.pci(address, "driver"))


# -- drivers


def _bind(doing: Doing, step: steps.BindDriver) -> None:
    """From whatever state the step can be in: the writes that are left."""
    door, reader = doing.world.door, Reader(doing.world.door)
    now, wanted = binding_of(reader, step.address), binding.after(step)
    if now.driver not in (None, wanted.driver):
        refuse_held(_users(doing.world, step.address), str(step.address), _STOP)
    for one in binding.writes(now, wanted):
        _write_binding(doing, step.address, one, now.driver)
    found = reader.last(paths.pci(step.address, "driver"))
    if step.driver is not None and found is None and not door.exists(paths.driver(step.driver)):
        raise HostError(
            f"{step.address} cannot be bound to {step.driver}: the driver is not loaded",
            hint=f"modprobe {step.driver}",
        )


def _write_binding(
    doing: Doing, address: PciAddress, one: binding.BindingWrite, bound_to: str | None
) -> None:
    match one.file:
        case "driver_override":
            # A blank clears it: the kernel takes an empty write for no write.
            write(doing, paths.pci(address, one.file), f"{one.leaves.override or ''}\n")
        case "unbind":
            write(doing, paths.driver(bound_to or "", one.file), address, can_block=True)
        case "drivers_probe":
            write(doing, paths.PCI_PROBE, address, can_block=True)


def _users(world: World, address: PciAddress) -> tuple[Holder, ...] | None:
    """Who has the function in use: of a GPU by any way that the inventory knows."""
    gpu = world.read().gpu(address)
    if gpu is None:
        return function_holders(world.door, address)
    # A function that went back to its host driver before may be in use there again.
    return gpu.holders and tuple(one for one in gpu.holders if one.function is None)


# -- VFs and modes


def _set_vfs(doing: Doing, step: steps.SetVfs) -> None:
    """All VFs on or off; the write returns before the last of them can be used."""
    there = vfs_of(doing.world, step.address)
    for vf in there:
        refuse_held(vfio_holders(doing.world.door, vf), f"VF {vf}", _STOP)
    if step.tool == "sriov-manage":
        _manage_vfs(doing, step)
    else:
        for count in (0, step.count) if len(there) not in (0, step.count) else (step.count,):
            # The kernel takes a number for no VFs only (sriov_numvfs_store: EBUSY).
            path = paths.pci(step.address, "sriov_numvfs")
            write(doing, path, str(count), can_block=True)
    _await_vfs(doing.world, step)


def _manage_vfs(doing: Doing, step: steps.SetVfs) -> None:
    """sriov-manage takes the PF from its driver; one that was cut off has not given it back."""
    door = doing.world.door
    if step.driver is not None and not door.exists(paths.pci(step.address, "driver")):
        write(doing, paths.PCI_PROBE, step.address, can_block=True)
    if len(vfs_of(doing.world, step.address)) != step.count:
        nvidia_tools.sriov_manage(door, doing.on_child, step.address, on=step.count > 0)


def _await_vfs(world: World, step: steps.SetVfs) -> None:
    deadline = world.door.monotonic() + _VFS_APPEAR_S
    while len(vfs_of(world, step.address)) != step.count:
        if world.door.monotonic() >= deadline:
            return  # reading back says what is there
        world.door.sleep(_POLL_S)


def _set_mode(doing: Doing, step: steps.SetMigMode | steps.SetMixedSize) -> None:
    gpu = doing.world.gpu(step.address)
    if isinstance(step, steps.SetMigMode):
        refuse_held(gpu.holders, f"GPU {step.address}", "stop what uses it, DCGM for one")
        nvidia_tools.set_mig_mode(doing.world.door, doing.on_child, step.address, on=step.enabled)
    else:
        nvidia_tools.set_mixed(doing.world.door, doing.on_child, gpu, on=step.enabled)


# -- vGPUs


def _create_mdev(doing: Doing, step: steps.CreateMdev) -> None:
    path = paths.mdev_type(step.parent, step.type_id, "create")
    try:
        doing.world.door.write(path, step.uuid, deadline_s=WRITE_S, on_child=doing.on_child)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EUSERS):
            raise Capacity(
                f"{step.parent} has no room for {step.type_name or step.type_id} any more",
                hint="see what is left with: virtgpu type list",
            ) from error
        raise _refused(doing, path, step.uuid, error) from error


def _remove_mdev(doing: Doing, step: steps.RemoveMdev) -> None:
    refuse_held(mdev_holders(doing.world.door, step.uuid), f"mdev {step.uuid}", _STOP)
    write(doing, paths.mdev(step.uuid, "remove"), "1", can_block=True)


def _set_vgpu(doing: Doing, step: steps.SetVgpuType) -> None:
    type_id = step.type_id or _look_up(doing.world, step)
    path = paths.pci(step.vf, "nvidia", "current_vgpu_type")
    write(doing, path, type_id, can_block=True)
    found = current_type(doing.world, step.vf)
    if found != type_id:
        raise Capacity(
            f"the driver did not make {step.type_name} on VF {step.vf}: the file reads {found}",
            hint="see what is left with: virtgpu type list",
        )


def _look_up(world: World, step: steps.SetVgpuType) -> str:
    """The id of the type of that very name, from the VF's own list."""
    path = paths.pci(step.vf, "nvidia", "creatable_vgpu_types")
    text = Reader(world.door).raw(path)
    found: dict[str, str] = {}
    with suppress(ValueError):
        found = parse_creatable(text or "")
    for type_id, name in found.items():
        if names.bare(name) == names.bare(step.type_name):
            return type_id
    raise NotFound(f"VF {step.vf} does not list {step.type_name}", hint="see: virtgpu type list")


def _clear_vgpu(doing: Doing, step: steps.ClearVgpuType) -> None:
    refuse_held(vfio_holders(doing.world.door, step.vf), f"VF {step.vf}", _STOP)
    path = paths.pci(step.vf, "nvidia", "current_vgpu_type")
    for again in reversed(range(_CLEAR_TRIES)):
        try:
            doing.world.door.write(path, "0", deadline_s=WRITE_S, on_child=doing.on_child)
        except OSError as error:
            # Right after its guest has stopped the driver refuses for a moment.
            if error.errno not in (errno.EPERM, errno.EBUSY) or not again:
                raise _refused(doing, path, "0", error) from error
            doing.world.door.sleep(1.0)
        else:
            return


# -- guests


def _define(doing: Doing, step: steps.DefineDomain) -> None:
    from virtgpu.domain import read

    with doing.world.door.libvirt(step.uri) as connection:
        others = []
        for text in libvirt_domains.definitions(connection):
            with suppress(Config):  # one that we cannot read hides its devices, not the others
                others.append(read.guest(text))
        read.require_free(read.guest(step.xml).devices, others, uuid=step.uuid)
        uuid = libvirt_domains.define(connection, step.xml)
    if uuid != step.uuid:
        raise HostError(f"libvirt gave guest {step.name!r} UUID {uuid}, not {step.uuid}")


def _undefine(doing: Doing, step: steps.UndefineDomain) -> None:
    with doing.world.door.libvirt(step.uri) as connection:
        libvirt_domains.undefine(connection, step.name)


# -- reservations


def _reserve(doing: Doing, step: steps.Reserve) -> None:
    reservations.write(doing.world.door.state_dir, step.reservation)


def _release(doing: Doing, step: steps.Release) -> None:
    reservations.remove(doing.world.door.state_dir, step.reservation.id)


_DO: dict[type[Any], Callable[[Doing, Any], None]] = {
    steps.Reserve: _reserve,
    steps.Release: _release,
    steps.BindDriver: _bind,
    steps.SetVfs: _set_vfs,
    steps.SetMigMode: _set_mode,
    steps.SetMixedSize: _set_mode,
    steps.CreateGpuInstance: lambda doing, step: nvidia_tools.create_instance(
        doing.world, doing.on_child, step
    ),
    steps.DestroyGpuInstance: lambda doing, step: nvidia_tools.destroy_instance(
        doing.world, doing.on_child, step
    ),
    steps.CreateMdev: _create_mdev,
    steps.RemoveMdev: _remove_mdev,
    steps.SetVgpuType: _set_vgpu,
    steps.ClearVgpuType: _clear_vgpu,
    steps.DefineDomain: _define,
    steps.UndefineDomain: _undefine,
}


def perform(doing: Doing, step: Step) -> None:
    """Do the step; raises a `VirtgpuError`, or `Stuck` when its write does not come back."""
    _DO[type(step)](doing, step)
