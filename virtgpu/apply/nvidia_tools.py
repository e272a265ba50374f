"""NVIDIA's own tools, where the kernel has no file for it: VFs, MIG, mixed-size mode.

Their exit status is not believed alone: `-mig 1` ends with 0 and leaves the mode pending
(https://github.com/NVIDIA/mig-parted/issues/9). Reading back is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from virtgpu.apply.world import World, refuse_held
from virtgpu.errors import Conflict, HostError, Unsupported
from virtgpu.host.door import Completed, Door, OnChild
from virtgpu.inventory import holders
from virtgpu.model import steps
from virtgpu.model.gpu import Gpu, GpuInstance
from virtgpu.model.pci import PciAddress

_PLACES = ("/usr/lib/nvidia", "/usr/lib64/nvidia")
_LOCK_TRIES = 5
_TOOL_S = 60.0
_CLIENTS = "stop what has the GPU open (DCGM, an exporter, a monitor) and try again"


def sriov_manage(door: Door, on_child: OnChild | None, address: PciAddress, *, on: bool) -> None:
    """Turn all VFs of a card on or off; another client's short use of the card is waited for."""
    tool = door.which("sriov-manage", _PLACES)
    if tool is None:
        raise Unsupported(
            f"VFs of {address} are made by sriov-manage, which is not on this host",
            hint="install NVIDIA's vGPU Manager for this kernel",
        )
    argv = (tool, "-e" if on else "-d", str(address))
    for again in reversed(range(_LOCK_TRIES)):
        done = _run(door, on_child, argv)
        if done.rc == 0:
            return
        if "unbindLock" not in done.stderr + done.stdout:
            raise HostError(f"{' '.join(argv)} ended with {done.rc}: {_line(done)}")
        if again:
            door.sleep(1.0)
    raise Conflict(f"{address} is in use by {_clients(door)}: {_line(done)}", hint=_CLIENTS)


def _clients(door: Door) -> str:
    found = holders.scan(door).of_nvidia(None)
    if not found:
        return "another client of NVIDIA's driver"
    return ", ".join(dict.fromkeys(f"pid {one.pid} ({one.command})" for one in found))


def set_mig_mode(door: Door, on_child: OnChild | None, address: PciAddress, *, on: bool) -> None:
    """Write MIG mode; whether it is on *now* only reading back says."""
    done = _smi(door, on_child, "-i", str(address), "-mig", "1" if on else "0")
    if "pending" in done.stdout + done.stderr:
        raise HostError(
            f"MIG mode of {address} is only pending: a reset of the GPU or a reboot changes it",
            hint=f"stop what uses the GPU, then: nvidia-smi -i {address} -mig {'1' if on else '0'}"
            f" && nvidia-smi --gpu-reset -i {address}",
        )
    _check(done, f"MIG mode of {address}")


def set_mixed(door: Door, on_child: OnChild | None, gpu: Gpu, *, on: bool) -> None:
    """Write mixed-size mode; the driver takes it on an empty card only."""
    done = _smi(door, on_child, "vgpu", "-i", str(gpu.address), "-shm", "1" if on else "0")
    _check(done, f"mixed-size mode of {gpu.address}")


def create_instance(world: World, on_child: OnChild | None, step: steps.CreateGpuInstance) -> None:
    """Make the GPU instance at its slot, with its compute instance where that is asked; of one
    that is there without it, just that."""
    for one in _instances_at(world.gpu(step.address), step):
        argv = ["mig", "-i", str(step.address), "-gi", str(one.id), "-cci"]
        _check(_smi(world.door, on_child, *argv), f"compute instance of GPU instance {one.id}")
        return
    argv = ["mig", "-i", str(step.address), "-cgi", f"{step.profile_id}:{step.start}"]
    done = _smi(world.door, on_child, *argv, *(["-C"] if step.compute_instance else []))
    _check(done, f"GPU instance {step.profile} of {step.address}")


def _instances_at(
    gpu: Gpu, step: steps.CreateGpuInstance | steps.DestroyGpuInstance
) -> Iterator[GpuInstance]:
    for one in gpu.mig.instances if gpu.mig is not None else ():
        if (one.profile_id, one.start) == (step.profile_id, step.start):
            yield one


def destroy_instance(
    world: World, on_child: OnChild | None, step: steps.DestroyGpuInstance
) -> None:
    """Destroy the compute instances of the GPU instance at the step's slot, then itself."""
    door, gpu = world.door, world.gpu(step.address)
    for one in _instances_at(gpu, step):
        users = [vf for vf in gpu.vfs if vf.gpu_instance_id == one.id]
        for vf in users:
            refuse_held(vf.holders, f"VF {vf.address}", "stop its guest")
        if users:
            raise Conflict(
                f"GPU instance {one.id} of {step.address} has the vGPU of VF {users[0].address}",
                hint="see whose it is with: virtgpu slice list",
            )
        where = ("mig", "-i", str(step.address), "-gi", str(one.id))
        if one.compute_instances:
            _check(_smi(door, on_child, *where, "-dci"), f"compute instances of {step.address}")
        _check(_smi(door, on_child, *where, "-dgi"), f"GPU instance {one.id} of {step.address}")


def _smi(door: Door, on_child: OnChild | None, *arguments: str) -> Completed:
    tool = door.which("nvidia-smi")
    if tool is None:
        raise Unsupported(
            "nvidia-smi is not on this host", hint="install NVIDIA's vGPU Manager for this kernel"
        )
    return _run(door, on_child, (tool, *arguments))


def _run(door: Door, on_child: OnChild | None, argv: Sequence[str]) -> Completed:
    try:
        return door.run(argv, timeout_s=_TOOL_S, on_child=on_child)
    except OSError as error:
        raise HostError(f"{argv[0]} cannot be run: {error.strerror}") from error


def _check(done: Completed, what: str) -> None:
    if done.rc == 0:
        return
    sentence = f"{what}: nvidia-smi refused ({done.rc}): {_line(done)}"
    if "in use" in (done.stdout + done.stderr).lower():
        raise Conflict(sentence, hint=_CLIENTS)
    raise HostError(sentence)


def _line(done: Completed) -> str:
    """What the tool said, in one line: the first, or the last where it broke down itself."""
    lines = [one.strip() for one in (done.stderr + "\n" + done.stdout).splitlines() if one.strip()]
    if not lines:
        return "it said nothing"
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
