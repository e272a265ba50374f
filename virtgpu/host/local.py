"""The door to the machine that we run on, or to a tree of files that looks like one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from virtgpu.host import processes
from virtgpu.host.chance import TimeAndChance
from virtgpu.host.door import Completed, OnChild
from virtgpu.host.files import Files

_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class LocalDoor(TimeAndChance):
    """The host whose /, or a copy of it, is *root*.

    A door to another root than / neither writes to this machine's /sys nor runs its programs
    nor asks its NVML. Raises `HostError` when the root or the kernel is not fit for it.
    """

    is_simulated = False

    def __init__(self, root: Path = Path("/"), *, state_dir: Path, label: str = "local") -> None:
        self.label = label
        self._state_dir = state_dir
        self._files = Files(root)
        # The files speak for themselves.
        self.read = self._files.read
        self.listdir = self._files.listdir
        self.readlink = self._files.readlink
        self.links = self._files.links
        self.exists = self._files.exists

    def close(self) -> None:
        """Let the root go; the door is of no use afterwards."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the one write seam

    def write(
        self,
        path: str,
        text: str,
        *,
        deadline_s: float | None = None,
        on_child: OnChild | None = None,
    ) -> None:
        """Write *text* by one write(2) to an existing file below sys/; see `Door.write`."""
        fd = self._files.open_to_write(path)
        try:
            if deadline_s is None:
                _write(fd, text.encode(), path)
                return
            from virtgpu.host import children

            children.write(fd, text.encode(), path, deadline_s=deadline_s, on_child=on_child)
        finally:
            os.close(fd)

    # -- programs

    def which(self, name: str, places: Sequence[str] = ()) -> str | None:
        """The full path of a program in PATH or in *places*, as seen from the host's root."""
        for place in (*self._path(), *places):
            if self._files.program(f"{place}/{name}".removeprefix("/")) is not None:
                return f"{place}/{name}"
        return None

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        on_child: OnChild | None = None,
    ) -> Completed:
        """Run a program of the host; see `Door.run`."""
        named = argv[0] if "/" in argv[0] else self.which(argv[0])
        program = self._files.program(named.removeprefix("/")) if named else None
        if program is None:
            raise FileNotFoundError(2, "no such program", argv[0])
        from virtgpu.host import children

        return children.run(
            [program, *argv[1:]],
            timeout_s=timeout_s,
            stdin=stdin,
            on_child=on_child,
            environment={"LC_ALL": "C", "PATH": ":".join(self._path())},
        )

    def _path(self) -> tuple[str, ...]:
        inherited = os.environ.get("PATH", "").split(":")
        return tuple(dict.fromkeys((*(p for p in inherited if p.startswith("/")), *_PLACES)))

    # -- the outside services

    def nvml(self) -> AbstractContextManager[Any | None]:
        """NVML of this machine; None when it is absent or does not start."""
        if not self._files.is_machine:
            return _nothing()
        from virtgpu.host import nvml

        return nvml.session()

    def libvirt(self, uri: str) -> AbstractContextManager[Any]:
        """An open connection; see `virtgpu.host.libvirt.connected`."""
        from virtgpu.host import libvirt

        return libvirt.connected(uri)

    # -- processes

    def process_started(self, pid: int) -> int | None:
        """Start time of a living process of this machine, None when there is none."""
        return processes.started(pid)

    def sees_all_processes(self) -> bool:
        """Whether /proc shows every process of the host with its open files to us."""
        return processes.sees_all(self._files)

    # -- our own state

    @property
    def state_dir(self) -> Path:
        """Where reservations, journals and locks of this host live."""
        return self._state_dir

    def environment(self) -> Mapping[str, str]:
        """The VIRTGPU_* variables that reached us."""
        return {key: value for key, value in os.environ.items() if key.startswith("VIRTGPU_")}


def _write(fd: int, payload: bytes, path: str) -> None:
    try:
        written = os.write(fd, payload)
    except OSError as error:
        error.filename = path
        raise
    if written != len(payload):
        raise OSError(5, f"only {written} of {len(payload)} bytes were taken", path)


@contextmanager
def _nothing() -> Iterator[None]:
    yield None
