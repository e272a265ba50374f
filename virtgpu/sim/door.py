"""The in-process front of the simulated kernel: the same door as the real machine's.

The kernel's state is kept in the state directory as a machine keeps its own, so that several
processes see one machine, and one that is killed leaves what it had written. Each access sees
what other processes have written before it; each write holds the file's lock.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from virtgpu.errors import Conflict
from virtgpu.host import processes, state
from virtgpu.host.chance import TimeAndChance
from virtgpu.host.door import Child, Completed, OnChild, Stuck
from virtgpu.sim import faults, profiles
from virtgpu.sim.kernel import Kernel, build
from virtgpu.sim.tree import InUse, Node, refuse

T = TypeVar("T")

STATE_FILE = "kernel.json"
_TOOLS = {"nvidia-smi": "/usr/bin/nvidia-smi", "sriov-manage": "/usr/lib/nvidia/sriov-manage"}
_LOCK_DEADLINE_S = 30.0
_FAULTS = "VIRTGPU_SIM_FAULTS"


class SimDoor(TimeAndChance):
    """The simulated machine of a shipped profile (by name) or of a profile's file (by path).

    *state_dir* is the state directory of virtgpu; this machine's own is `sim/NAME` below it.
    Raises `NotFound` and `Config` for the profile, `Conflict` while the machine is mounted by
    `virtgpu sim run`.
    """

    is_simulated = True

    def __init__(
        self, name_or_path: str, *, state_dir: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._profile = profiles.load(name_or_path)
        self.label = f"sim:{name_or_path}"
        self._folder = folder_of(self._profile.key, state_dir)
        self._file = self._folder / STATE_FILE
        self._environment = dict(os.environ if environment is None else environment)
        self._faults = faults.parse(self._environment.get(_FAULTS, ""))
        self._writes = 0
        self._stamp: tuple[int, int] | None = None
        self._loaded: Kernel | None = None
        refuse_mounted(self._folder)

    # -- the kernel, as of now

    @property
    def kernel(self) -> Kernel:
        """The kernel as the last writer left it."""
        stamp = self._current_stamp()
        if self._loaded is None or stamp != self._stamp:
            raw = state.read(self._file)
            snapshot = None if raw is None else parse_state(raw, self._file)
            self._loaded, self._stamp = build(self._profile, snapshot), stamp
        self._loaded.tick()
        return self._loaded

    def _current_stamp(self) -> tuple[int, int] | None:
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise state.refused(error, self._file, "look at") from error
        return found.st_ino, found.st_mtime_ns

    @contextmanager
    def changing(self) -> Iterator[Kernel]:
        """The kernel alone to us; what was changed is kept when the block ends, however it ends."""
        with _locked(self._folder / "kernel.lock"):
            kernel = self.kernel
            try:
                yield kernel
            finally:
                content = msgspec.json.encode(kernel.snapshot())
                if content != state.read(self._file):
                    state.write_durably(self._file, content)
                self._stamp = self._current_stamp()

    # -- files

    def read(self, path: str) -> str:
        """The whole text of a file; see `Door.read`."""
        node = self._find(path)
        if node.is_directory:
            raise refuse(errno.EISDIR, path)
        if node.read is None:
            raise refuse(errno.EACCES, path)
        found = _named(path, node.read)
        return found if isinstance(found, str) else found.decode("utf-8", "replace")

    def listdir(self, path: str) -> list[str]:
        """The names in a directory."""
        return list(self._find(path).entries)

    def readlink(self, path: str) -> str:
        """The text of a symbolic link."""
        return self._find(path, follow=False).readlink()

    def links(self, path: str) -> dict[str, str]:
        """The symbolic links in a directory: name and text."""
        return {
            name: node.readlink() for name, node in self._find(path).entries.items() if node.is_link
        }

    def exists(self, path: str) -> bool:
        """Whether the path is there."""
        try:
            self._find(path)
        except OSError:
            return False
        return True

    def _find(self, path: str, *, follow: bool = True) -> Node:
        if "\0" in path or ".." in path.split("/"):
            raise refuse(errno.EACCES, path)
        return _find(self.kernel, path, follow=follow)

    # -- the one write seam

    def write(
        self,
        path: str,
        text: str,
        *,
        deadline_s: float | None = None,
        on_child: OnChild | None = None,
    ) -> None:
        """One write(2) to an existing file; see `Door.write`."""

        def attempt(kernel: Kernel, breaking: bool) -> None:
            if breaking:
                raise refuse(errno.EIO, path)
            write_to(kernel, path, text)

        self._act(attempt, path, deadline_s, on_child, ["write", path, text])

    def _act(
        self,
        attempt: Callable[[Kernel, bool], T],
        what: str,
        deadline_s: float | None,
        on_child: OnChild | None,
        argv: list[str],
    ) -> T:
        """Do something that changes the machine, with the faults that were asked for.

        What must wait is left to a child that outlives us, as on a real machine.
        """
        self._writes += 1
        fault = self._faults.get(self._writes)
        if on_child is not None and deadline_s is not None:
            # We do it ourselves; no start time, so that nobody ever waits for this process.
            on_child(Child(os.getpid(), 0))
        if fault == "kill-before":
            _die()
        if fault is not None and fault.startswith("E"):
            raise refuse(getattr(errno, fault), what)
        try:
            if fault == "stall":
                raise InUse
            with self.changing() as kernel:
                done = attempt(kernel, fault == faults.HALF)
        except InUse:
            if deadline_s is None:
                raise refuse(errno.EBUSY, what) from None
            raise Stuck(what, self._leave(argv, on_child, stall=fault == "stall")) from None
        if fault == "kill-after":
            _die()
        return done

    def _leave(self, argv: list[str], on_child: OnChild | None, *, stall: bool) -> Child:
        from virtgpu.sim import waiting

        state.make_private(self._folder)  # the child ends with it
        child = waiting.leave(self._profile_argument, self._folder, argv, stall=stall)
        if on_child is not None:
            on_child(child)
        return child

    @property
    def _profile_argument(self) -> str:
        return self.label.removeprefix("sim:")

    # -- programs

    def which(self, name: str, places: Sequence[str] = ()) -> str | None:  # noqa: ARG002
        """The vendor's tools where the machine has them."""
        kernel = self.kernel
        has = {"nvidia-smi": kernel.has_nvidia, "sriov-manage": kernel.has_sriov_manage}
        return _TOOLS[name] if has.get(name) else None

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,  # noqa: ARG002 - no tool here reads it
        on_child: OnChild | None = None,
    ) -> Completed:
        """Run one of the vendor's tools; see `Door.run`."""
        name = argv[0].rpartition("/")[2]
        if self.which(name) is None:
            raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
        if name == "nvidia-smi" and not changes(argv[1:]):
            return run_tool(self.kernel, list(argv))

        def attempt(kernel: Kernel, breaking: bool) -> Completed:
            return run_tool(kernel, list(argv), breaking=breaking)

        return self._act(attempt, " ".join(argv), timeout_s, on_child, ["run", *argv])

    # -- the outside services

    @contextmanager
    def nvml(self) -> Iterator[Any | None]:
        """The simulated NVML; None where the machine has no NVIDIA driver."""
        kernel = self.kernel
        if not kernel.has_nvidia:
            yield None
            return
        from virtgpu.sim.nvml import Nvml

        yield Nvml(kernel.nvml_state())

    def libvirt(self, uri: str) -> AbstractContextManager[Any]:
        """A real connection: its user says which hypervisor belongs to the simulated host."""
        from virtgpu.host import libvirt

        return libvirt.connected(uri)

    # -- processes

    def process_started(self, pid: int) -> int | None:
        """Start time of a living process of this machine; the profile's own ones live too."""
        if any(one.pid == pid for one in self.kernel.holders):
            return 4242
        return processes.started(pid)

    def sees_all_processes(self) -> bool:
        """A simulated /proc is whole."""
        return True

    # -- our own state

    @property
    def state_dir(self) -> Path:
        """The folder of this machine."""
        return self._folder

    def environment(self) -> Mapping[str, str]:
        """The VIRTGPU_* variables that reached us."""
        return {k: v for k, v in self._environment.items() if k.startswith("VIRTGPU_")}


def _die() -> None:
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def folder_of(name: str, state_dir: Path) -> Path:
    """Where the state of a simulated machine is; a name is made fit for a file."""
    return state_dir / "sim" / (re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_")


def reset(
    name_or_path: str, state_dir: Path, *, only_look: bool = False
) -> tuple[str, Path | None]:
    """Forget a machine's state, and what was reserved on it; returns its name, and the folder
    where that was (None when nothing was). With *only_look* it stays.

    Raises `NotFound` for the profile, `Conflict` while the machine is mounted.
    """
    profile = profiles.load(name_or_path)
    folder = folder_of(profile.key, state_dir)
    refuse_mounted(folder)
    found = folder if state.exists(folder) else None
    if not only_look:
        state.remove_folder(folder)
    return profile.name, found


def refuse_mounted(folder: Path) -> None:
    """Raises `Conflict` while the machine is mounted: then its kernel is elsewhere."""
    if not state.exists(folder / "machine.lock"):
        return
    lock = state.try_lock(folder / "machine.lock")
    if lock is None:
        raise Conflict(
            f"the simulated host {folder.name} is in use by `virtgpu sim run`",
            hint="run the command inside it, or wait until it has ended",
            transient=True,
        )
    lock.close()


def write_to(kernel: Kernel, path: str, text: str) -> None:
    """What a write(2) of *text* to *path* does; raises OSError and `InUse`."""
    node = _find(kernel, path)
    if node.is_directory:
        raise refuse(errno.EISDIR, path)
    if node.write is None:
        raise refuse(errno.EACCES, path)
    write = node.write
    _named(path, lambda: write(text.strip()))


def run_tool(kernel: Kernel, argv: list[str], *, breaking: bool = False) -> Completed:
    """What a vendor's tool answers; may raise `InUse`. *breaking*: it fails half-way."""
    kernel.modes.is_breaking = breaking
    try:
        if argv[0].endswith("sriov-manage"):
            return kernel.sriov_manage(argv[1:])
        from virtgpu.sim import smi

        return smi.nvidia_smi(kernel, argv[1:])
    finally:
        kernel.modes.is_breaking = False


def changes(argv: Sequence[str]) -> bool:
    """Whether these arguments of nvidia-smi change something."""
    changing = ("-mig", "-cgi", "-cci", "-dgi", "-dci", "-shm")
    return any(one in changing for one in argv)


def _find(kernel: Kernel, path: str, *, follow: bool = True) -> Node:
    try:
        return kernel.tree.find(path, follow=follow)
    except OSError as error:
        error.filename = path
        raise


def _named(path: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except OSError as error:
        error.filename = path
        raise


def parse_state(raw: bytes, path: Path) -> Any:
    """The stored state as plain values; raises `Config`."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        from virtgpu.errors import Config

        raise Config(
            f"{path}: {error}", hint="forget it with: virtgpu sim reset PROFILE"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_DEADLINE_S
    while (lock := state.try_lock(path, create=True)) is None:
        if time.monotonic() >= deadline:
            raise Conflict(f"{path} is locked", hint="try again", transient=True)
        time.sleep(0.002)
    with lock:
        yield
