"""On the mounted machine: python -m tests.real.faults_inside MAKE TAKE REQUEST > counts as JSON.

Every write of MAKE (create or define) and of TAKE (destroy or undefine) is refused by the kernel,
or is the last thing before or after which the process dies by SIGKILL; recovery is cut off too.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from tests.real.dying import NAME
from tests.real.inside import snapshot
from tests.real.kill_inside import make, undo
from tests.support.trials import DEATHS, Act, Attempt, Faults, Trials, ended, is_change
from virtgpu.api import HostHandle
from virtgpu.apply import reservations
from virtgpu.errors import HostError
from virtgpu.host import libvirt_domains
from virtgpu.host.local import LocalDoor
from virtgpu.host.state import default_state_dir

URI = "qemu:///system"
FAULTS = Path("/sys/kernel/virtgpu_sim/faults")
PCI = Path("/sys/bus/pci/devices")
_SHARED = struct.Struct("II")


class Mortal(LocalDoor):
    """The machine's door in a process that dies at a write, or whose write the kernel refuses.

    *shared* is memory that outlives it: how many writes there were, and which was a tool's last.
    """

    def __init__(self, folder: Path, faults: Faults, shared: mmap.mmap) -> None:
        super().__init__(state_dir=folder)
        self._given, self._shared = faults, shared

    def sleep(self, seconds: float) -> None:
        """What is tried again is tried at once."""

    def meet(self, act: Callable[[], Any], *, is_tool: bool = False, is_ours: bool = True) -> Any:
        count, tools = _SHARED.unpack(self._shared[: _SHARED.size])
        count += 1
        tools |= is_tool << count
        self._shared[: _SHARED.size] = _SHARED.pack(count, tools)
        fault = self._given.get(count)
        if fault == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault is not None and fault not in DEATHS:
            if not is_ours:
                raise HostError(f"libvirt refused: {fault}")
            FAULTS.write_text(f"1:{fault}")  # the next write that the kernel gets
        done = act()
        if fault == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def write(self, path: str, text: str, **options: Any) -> None:
        self.meet(lambda: super(Mortal, self).write(path, text, **options))

    def run(self, argv: Any, **options: Any) -> Any:
        if not is_change(argv):
            return super().run(argv, **options)
        return self.meet(lambda: super(Mortal, self).run(argv, **options), is_tool=True)


@contextlib.contextmanager
def libvirts_own(door: Mortal) -> Iterator[None]:
    """What libvirt is asked to change counts as a write as well."""
    define, undefine = libvirt_domains.define, libvirt_domains.undefine
    libvirt_domains.define = lambda *words: door.meet(lambda: define(*words), is_ours=False)
    libvirt_domains.undefine = lambda *words: door.meet(lambda: undefine(*words), is_ours=False)
    yield


class Mounted:
    """A `Ground`: each attempt is a process of its own; *prepare* brings what is there to begin."""

    def __init__(self, prepare: Act, has_guests: bool) -> None:
        self._prepare, self._has_guests = prepare, has_guests
        self._shared = mmap.mmap(-1, _SHARED.size)
        self._ready: dict[str, Any] | None = None

    def begin(self) -> None:
        if self._ready is None or self.look() != self._ready:
            self._prepare(self.host)
            self._ready = self.look()

    @property
    def host(self) -> HostHandle:
        return HostHandle(LocalDoor(state_dir=self.state_dir), connect_uri=URI)

    def look(self) -> dict[str, Any]:
        found = snapshot()
        drivers = {one.name: (driver(one), override(one)) for one in PCI.iterdir()}
        promised = [(one.guest, one.place.gpu) for one in reservations.load(self.state_dir)]
        guests = [one.name for one in self.host.guests()] if self._has_guests else []
        return {
            "functions": drivers,
            "vfs": found.get("numvfs"),
            "modes": (found.get("mig"), found.get("mixed")),
            "instances": found.get("instances"),
            "mdevs": sorted(one["parent"] for one in found.get("mdevs", [])),
            "vgpus": found.get("vgpus"),
            "promised": sorted(promised),
            "guests": guests,
        }

    def attempt(self, act: Act, faults: Faults) -> Attempt:
        self._shared[: _SHARED.size] = _SHARED.pack(0, 0)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                door = Mortal(self.state_dir, faults, self._shared)
                host = HostHandle(door, connect_uri=URI)
                with libvirts_own(door):
                    code = WORDS.index(ended(lambda: act(host)))
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        FAULTS.write_text("")
        assert status == -signal.SIGKILL or status < len(WORDS), status
        count, tools = _SHARED.unpack(self._shared[: _SHARED.size])
        numbers = frozenset(number for number in range(1, count + 1) if tools >> number & 1)
        return Attempt("killed" if status < 0 else WORDS[status], count, numbers)

    def unnamed(self) -> Collection[Path]:
        return list(self.state_dir.rglob(".new-*"))

    @property
    def state_dir(self) -> Path:
        return default_state_dir()


WORDS = ("done", "12", "13", "refused")


def driver(function: Path) -> str | None:
    link = function / "driver"
    return link.readlink().name if link.is_symlink() else None


def override(function: Path) -> str:
    return (function / "driver_override").read_text().strip()


def main(make_verb: str, take_verb: str, request: str) -> None:
    has_guests, first = make_verb == "define", snapshot()
    found = {}

    def made(host: HostHandle) -> None:
        make(host, make_verb, request)

    for verb, prepare, act in (
        (make_verb, lambda host: taken(host, make_verb, first), made),
        (take_verb, made, lambda host: undo(host, make_verb)),
    ):
        trials = Trials(Mounted(prepare, has_guests), act)
        trials.once(in_recovery=DEATHS)
        found[verb] = [trials.writes, trials.count, trials.cut_recoveries]
    print(json.dumps(found))


def taken(host: HostHandle, make_verb: str, first: dict[str, Any]) -> None:
    """Nothing is there, and the card's VFs and modes, which stay, are as before."""
    if any(one.guest == NAME for one in host.slices()):
        undo(host, make_verb)
    for address, count in snapshot().get("numvfs", {}).items():
        if count and not first["numvfs"][address]:
            if host.gpu(address).enable_vfs == "sriov-manage":
                subprocess.run(["sriov-manage", "-d", address], check=True, capture_output=True)
            else:
                (PCI / address / "sriov_numvfs").write_text("0")
    for address, mode in snapshot().get("mig", {}).items():
        if mode != first["mig"][address]:
            words = ["nvidia-smi", "-i", address, "-mig", "0"]
            subprocess.run(words, check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
