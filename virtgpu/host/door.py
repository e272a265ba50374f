"""The door to the outside: all reading, writing, commands, NVML, libvirt and time go through it.

Paths are texts relative to the host's root, made by `virtgpu.host.paths`
(`sys/bus/pci/devices/0000:51:00.0/vendor`); a door never resolves one to a place outside
its root. Two doors exist: `virtgpu.host.local.LocalDoor` and `virtgpu.sim.door.SimDoor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Completed(NamedTuple):
    """What a command answered; *rc* is negative for the signal that ended it."""

    rc: int
    stdout: str
    stderr: str


class Child(NamedTuple):
    """A child that does a write which can block; *started* is field 22 of /proc/PID/stat."""

    pid: int
    started: int


class Stuck(Exception):
    """A write or command did not come back within its deadline; *child* still lives."""

    def __init__(self, what: str, child: Child) -> None:
        super().__init__(f"{what} has not come back (pid {child.pid})")
        self.what = what
        self.child = child


OnChild = Callable[[Child], None]


class Door(Protocol):
    """One host. Reads and writes raise OSError with the kernel's errno."""

    label: str
    is_simulated: bool

    # -- files: what sysfs, procfs and /dev say
    def read(self, path: str) -> str:
        """The whole text of a file (undecodable bytes replaced), as one read of sysfs."""
        ...

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, unsorted."""
        ...

    def readlink(self, path: str) -> str:
        """The text of a symbolic link."""
        ...

    def links(self, path: str) -> dict[str, str]:
        """The symbolic links in a directory, name and text; those that go away meanwhile are
        left out. Much cheaper than one `readlink` each: processes have many open files."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the path is there."""
        ...

    # -- the one write seam
    def write(
        self,
        path: str,
        text: str,
        *,
        deadline_s: float | None = None,
        on_child: OnChild | None = None,
    ) -> None:
        """Write *text* by one write(2) to an existing file.

        With *deadline_s* the write is made by a child process that holds none of our locks;
        *on_child* is called before it starts writing; raises `Stuck` after the deadline.
        """
        ...

    # -- programs
    def which(self, name: str, places: Sequence[str] = ()) -> str | None:
        """The full path of a program in PATH or in *places*."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        on_child: OnChild | None = None,
    ) -> Completed:
        """Run a program with a clean environment (C locale); raises `Stuck` after *timeout_s*,
        FileNotFoundError when it is not there."""
        ...

    # -- the outside services
    def nvml(self) -> AbstractContextManager[Any | None]:
        """NVML initialised: an object with pynvml's functions and constants; None when absent."""
        ...

    def libvirt(self, uri: str) -> AbstractContextManager[Any]:
        """An open connection; raises `HostError` (no answer) or `Unsupported` (no module)."""
        ...

    # -- processes
    def process_started(self, pid: int) -> int | None:
        """Start time of a living process (field 22 of its stat), None when there is none."""
        ...

    def sees_all_processes(self) -> bool:
        """Whether /proc shows every process of the host with its open files to us."""
        ...

    # -- time and chance
    def now(self) -> datetime:
        """The time in UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def new_uuid(self) -> str:
        """A fresh random UUID."""
        ...

    # -- our own state
    @property
    def state_dir(self) -> Path:
        """Where reservations, journals and locks of *this* host live (for a simulated host a
        folder of its own below the given state directory)."""
        ...

    def environment(self) -> Mapping[str, str]:
        """The VIRTGPU_* variables that reached us."""
        ...
