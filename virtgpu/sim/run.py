"""Running a command on the mounted simulated machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from virtgpu.errors import Conflict, HostError, VirtgpuError
from virtgpu.host import state
from virtgpu.sim import faults as fault_specs
from virtgpu.sim import libvirtd as daemon
from virtgpu.sim import namespaces, profiles
from virtgpu.sim.door import STATE_FILE, folder_of, parse_state
from virtgpu.sim.kernel import build
from virtgpu.sim.machine import Machine, mount_machine, start_holder

_NOT_FOUND = 127


def run(
    profile: str,
    command: Sequence[str],
    *,
    libvirtd: bool = True,
    start_guests: bool = True,
    state_dir: Path,
    cache: Path | None = None,
    log: Path | None = None,
    faults: str | None = None,
) -> int:
    """Run *command* on the machine of that profile and return its exit status.

    Its /sys is the simulated kernel's, with the real libvirtd over it (unless *libvirtd* is
    false); with *start_guests* guests with host devices start, QEMU getting a test device in the
    place of each. The machine's state is that of `--host sim:NAME`, and is kept after each write.
    Nothing of it outlives the command, or us.

    Raises `HostError` (no /dev/fuse, no namespaces, no libvirtd), `NotFound`, `Config`, `Usage`,
    and `Conflict` while the same machine is in use already.
    """
    found = profiles.load(profile)
    fault_specs.parse(faults or "")
    _require_fuse()
    if libvirtd:
        daemon.require()
    if cache is not None:
        state.make_private(cache)
    kept_log = None if log is None else _open_log(log)
    folder = folder_of(found.key, state_dir)
    lock = state.try_lock(folder / "machine.lock", create=True)
    if lock is None:
        raise Conflict(
            f"the simulated host {found.name} is in use already",
            hint="wait until it ends, or give it another --state-dir",
            transient=True,
        )
    with lock:
        raw = state.read(folder / STATE_FILE)
        kernel = build(found, None if raw is None else parse_state(raw, folder / STATE_FILE))
        machine = Machine(kernel, folder / STATE_FILE, faults)
        return _apart(
            lambda: _inside(
                machine,
                list(command),
                folder=folder,
                libvirtd=libvirtd,
                start_guests=start_guests,
                cache=cache,
                kept_log=kept_log,
            )
        )


def _open_log(path: Path) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise HostError(f"log {str(path)!r} cannot be written: {error.strerror}") from error


def _require_fuse() -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        raise HostError(
            f"/dev/fuse cannot be opened: {error.strerror}",
            hint="on a host: modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        ) from error


def _apart(inside: Callable[[], int]) -> int:
    """Do it in a process of its own, so that ours keeps its namespaces."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return namespaces.wait_for(child)
    code = 70
    try:
        namespaces.die_with_parent()
        ended = namespaces.enter()
        code = inside() if ended is None else ended
    except VirtgpuError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)  # noqa: T201
        code = error.exit_code
    except BaseException as error:
        print(f"error: the simulated host: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _inside(
    machine: Machine,
    command: list[str],
    *,
    folder: Path,
    libvirtd: bool,
    start_guests: bool,
    cache: Path | None,
    kept_log: int | None,
) -> int:
    """Process 1 of the machine."""
    namespaces.settle()
    if libvirtd:
        daemon.prepare(cache)
    daemon.install_tools(
        nvidia=machine.kernel.has_nvidia, sriov_manage=machine.kernel.has_sriov_manage
    )
    mount_machine(machine)
    for one in machine.holders:
        start_holder(one)
    environment = _environment(folder)
    os.environ.clear()
    os.environ.update(environment)
    process = daemon.start(start_guests=start_guests) if libvirtd else None
    try:
        return _command(command, environment)
    finally:
        if kept_log is not None:
            os.write(kept_log, daemon.read_log().encode())
        del process  # kept so long: its destructor would have reaped it


def _environment(folder: Path) -> dict[str, str]:
    found = {k: v for k, v in os.environ.items() if k not in ("VIRTGPU_HOST", "VIRTGPU_SIM_FAULTS")}
    own = Path(sys.executable).parent  # where the command virtgpu is, too
    path = f"{daemon.BIN}:{found.get('PATH', '')}:{own}:/usr/sbin:/usr/bin:/sbin:/bin"
    python = ":".join(filter(None, (str(daemon.PYTHON), found.get("PYTHONPATH"))))
    return found | {
        "PATH": path,
        "PYTHONPATH": python,
        "LIBVIRT_DEFAULT_URI": "qemu:///system",
        # libudev refuses a /sys that is not of type sysfs, unless told otherwise.
        "SYSTEMD_DEVICE_VERIFY_SYSFS": "0",
        "VIRTGPU_STATE_DIR": str(folder),
    }


def _command(command: list[str], environment: dict[str, str]) -> int:
    """Run it; as process 1 also collect orphans, or libvirt waits 40 s for each QEMU."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"error: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)  # noqa: T201
        return _NOT_FOUND
    while True:
        ended, status = os.wait()
        if ended == process.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
