"""Trials: something done on a machine while writes fail or its process dies; what is left is
compared from outside, by the kernel's own state."""

from __future__ import annotations

import contextlib
import errno
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.support import hosts
from virtgpu.api import HostHandle
from virtgpu.apply import journal, reservations
from virtgpu.errors import RecoveryNeeded, RolledBack, VirtgpuError
from virtgpu.host import processes
from virtgpu.host.door import Child, OnChild
from virtgpu.sim.door import SimDoor, changes
from virtgpu.sim.faults import HALF

REFUSALS = ("EIO", "EBUSY", "ENODEV")
DEATHS = ("before", "after")
# By the number of a write (or run of a tool that changes something): an errno's name, a moment of
# death, or `half` for a tool that does half of its work and fails.
Faults = dict[int, str]
Act = Callable[[HostHandle], Any]


class Attempt(NamedTuple):
    """How it ended (`done`, `12`, `13`, `refused` before anything began, or `killed`), after how
    many writes (unknown of a dead process), and which of them were runs of tools."""

    ended: str
    writes: int
    tools: frozenset[int] = frozenset()


class Ground(Protocol):
    """A machine that can be set back to where each trial begins."""

    def begin(self) -> None: ...

    def look(self) -> dict[str, Any]: ...

    def attempt(self, act: Act, faults: Faults) -> Attempt: ...

    def unnamed(self) -> Collection[Path]: ...

    @property
    def state_dir(self) -> Path: ...


def ended(act: Callable[[], Any]) -> str:
    """How an act ended, in a word."""
    try:
        act()
    except RolledBack:
        return "12"
    except RecoveryNeeded:
        return "13"
    except VirtgpuError:
        return "refused"
    return "done"


class Trials:
    """All trials of one way to change one machine.

    What is right afterwards: the state before, or, after a plan that takes away was cut off, the
    state that it ends in.
    """

    def __init__(self, ground: Ground, act: Act) -> None:
        self.ground, self.act = ground, act
        self.count = self.cut_recoveries = 0
        ground.begin()
        self.before = ground.look()
        tried = ground.attempt(act, {})
        assert tried.ended == "done", tried
        self.writes, self._tools = tried.writes, tried.tools
        self.done = ground.look()

    def once(self, in_recovery: Sequence[str] = ("EIO", *DEATHS)) -> None:
        """Every write with every fault, and after each death recovery cut off as well."""
        for number in range(1, self.writes + 1):
            for fault in self._faults_of(number):
                self.one({number: fault})
                if fault in DEATHS:
                    self._recovery_too({number: fault}, in_recovery)

    def twice(self) -> None:
        """Besides, after each fault one more at each write of what comes after it."""
        self.once()
        for number in range(1, self.writes + 1):
            for fault in self._faults_of(number):
                if fault in DEATHS:
                    continue
                for second in range(number + 1, self.one({number: fault}) + 1):
                    for other in ("EIO", HALF, *DEATHS):
                        self.one({number: fault, second: other})
                        if (fault, other) == ("EIO", "EIO"):
                            self._recovery_too({number: fault, second: other})

    def _faults_of(self, number: int) -> tuple[str, ...]:
        return (*REFUSALS, *DEATHS, *((HALF,) if number in self._tools else ()))

    def _recovery_too(self, faults: Faults, in_recovery: Sequence[str] = DEATHS) -> None:
        for number in range(1, self._recovery_writes + 1):
            for fault in in_recovery:
                self.one(faults, {number: fault})
                self.cut_recoveries += 1

    def one(self, faults: Faults, in_recovery: Faults | None = None) -> int:
        """One trial; returns how many writes it took before recovery."""
        self.count += 1
        self.ground.begin()
        assert self.ground.look() == self.before
        name = f"{faults} {in_recovery}"
        tried = self.ground.attempt(self.act, faults)
        self._recovery_writes = 0
        if tried.ended in ("13", "killed"):
            self._recover(name, in_recovery, was_undoing=tried.ended == "13")
        else:
            right = self.done if tried.ended == "done" else self.before
            assert self.ground.look() == right, (name, tried)
            self._nothing_is_open(name)
        return tried.writes

    def _recover(self, name: str, faults: Faults | None, *, was_undoing: bool) -> None:
        outcomes: list[str] = []

        def recover(host: HostHandle) -> None:
            outcomes[:] = [one.outcome for one in host.recover().journals]

        if faults is not None:
            self.ground.attempt(recover, faults)
        # What it says is asked for where it is in our own process.
        self._recovery_writes = self.ground.attempt(recover, {}).writes
        found = self.ground.look()
        if was_undoing or outcomes == ["undone"]:
            assert found == self.before, name
        elif outcomes == ["finished"]:
            assert found == self.done, name
        else:
            assert found in (self.before, self.done), name
        self._nothing_is_open(name)
        self.ground.attempt(recover, {})
        assert self.ground.look() == found, name

    def _nothing_is_open(self, name: str) -> None:
        assert journal.files(self.ground.state_dir) == [], name
        assert list(self.ground.unnamed()) == [], name


# -- in process


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours runs after it."""


class NoChild(BaseException):
    """This write is made by no child."""


def is_change(argv: Sequence[str]) -> bool:
    """Whether a tool that is run so changes something."""
    return argv[0].endswith("sriov-manage") or changes(argv[1:])


class Faulty(SimDoor):
    """A simulated host in process whose writes meet the faults; besides those, `in`: we die while a
    child does the write, and leave it to `end_child`."""

    def __init__(self, profile: str, folder: Path, given: Faults) -> None:
        super().__init__(profile, state_dir=folder, environment={})
        self.given = given
        self.count = 0
        self.tools: set[int] = set()
        self._late: Callable[[], Any] = lambda: None
        self._child: subprocess.Popen[bytes] | None = None

    def sleep(self, seconds: float) -> None:
        """Time passes at once."""

    def end_child(self, *, done: bool) -> None:
        """The child that outlived us does its write, or dies without it."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()
        self.given = {}
        if done:
            with contextlib.suppress(OSError):
                self._late()

    def _leave(self, act: Callable[[OnChild | None], Any], on_child: OnChild | None) -> None:
        if on_child is None:
            raise NoChild  # a write that cannot block is made by ourselves
        self._late = lambda: act(None)
        self._child = subprocess.Popen(["sleep", "60"])
        on_child(Child(self._child.pid, processes.started(self._child.pid) or 0))
        raise Killed

    def _meet(
        self, act: Callable[[OnChild | None], Any], what: str, on_child: OnChild | None
    ) -> Any:
        self.count += 1
        fault = self.given.get(self.count)
        if fault == "before":
            raise Killed
        if fault == "in":
            self._leave(act, on_child)
        if fault == HALF and self.count not in self.tools:
            fault = "EIO"
        if fault in REFUSALS:
            raise OSError(getattr(errno, fault), fault, what)
        done = act(on_child)
        if fault == "after":
            raise Killed
        return done

    def write(
        self, path: str, text: str, *, on_child: OnChild | None = None, **options: Any
    ) -> None:
        def act(child: OnChild | None) -> None:
            super(Faulty, self).write(path, text, on_child=child, **options)

        self._meet(act, path, on_child)

    def run(self, argv: Any, *, on_child: OnChild | None = None, **options: Any) -> Any:
        def act(child: OnChild | None) -> Any:
            return super(Faulty, self).run(argv, on_child=child, **options)

        if not is_change(argv):
            return act(on_child)
        self.tools.add(self.count + 1)
        if self.given.get(self.count + 1) == HALF:
            self._faults = {self._writes + 1: HALF}
        return self._meet(act, argv[0], on_child)


def look(host: HostHandle) -> dict[str, Any]:
    """The whole machine as its kernel knows it, and what is promised on it."""
    kernel = host.door.kernel  # type: ignore[attr-defined]
    found: dict[str, Any] = kernel.snapshot()
    kept = ("numvfs", "vgpus", "mig", "instances", "mixed")
    mdevs = sorted((one["uuid"], one["parent"]) for one in found["mdevs"])
    promised = [one.id for one in reservations.load(host.door.state_dir)]
    devices = {one.address: (one.driver, one.override) for one in kernel.bus.devices.values()}
    return {key: found[key] for key in kept} | {
        "mdevs": mdevs,
        "functions": devices,
        "promised": promised,
    }


class InProcess:
    """A `Ground`: the simulated host in this process, from a copy of a prepared state."""

    def __init__(self, profile: str, prepared: Path, place: Path) -> None:
        self._profile, self._prepared, self._place = profile, prepared, place

    def begin(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.copytree(self._prepared, self._place)

    def look(self) -> dict[str, Any]:
        return look(self._host({}))

    def attempt(self, act: Act, faults: Faults) -> Attempt:
        host = self._host(faults)
        how = "killed"
        with contextlib.suppress(Killed):
            how = ended(lambda: act(host))
        door: Any = host.door
        return Attempt(how, door.count, frozenset(door.tools))

    def unnamed(self) -> Collection[Path]:
        return list(self._place.rglob(".new-*"))

    @property
    def state_dir(self) -> Path:
        return self._host({}).door.state_dir

    def _host(self, given: Faults) -> HostHandle:
        return HostHandle(Faulty(self._profile, self._place, given), vendors=hosts.VENDORS)
