"""Trials: something done on a simulated machine while writes fail or its process dies; what is left
is compared from outside, by the kernel's own state."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support import hosts
from tests.support.scenarios import Scenario
from virtgpu.api import HostHandle
from virtgpu.apply import journal, reservations
from virtgpu.errors import RecoveryNeeded, RolledBack, VirtgpuError
from virtgpu.sim.door import SimDoor, changes
from virtgpu.sim.faults import HALF

REFUSALS = ("EIO", "EBUSY", "ENODEV")
DEATHS = ("before", "after")
Faults = dict[int, str]
Act = Callable[[HostHandle], Any]


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours runs after it."""


class Faulty(SimDoor):
    """A simulated host whose nth write (or run of a tool that changes something) fails, or is the
    last that its process does: by number, an errno's name, `before`, `after`, or `half` for a tool
    that does half of its work and fails."""

    def __init__(self, profile: str, folder: Path, given: Faults) -> None:
        super().__init__(profile, state_dir=folder, environment={})
        self.given = given
        self.count = 0
        self.tools: set[int] = set()

    def sleep(self, seconds: float) -> None:
        """Time passes at once."""

    def _meet(self, act: Callable[[], Any], what: str) -> Any:
        self.count += 1
        fault = self.given.get(self.count)
        if fault == "before":
            raise Killed
        if fault in REFUSALS or (fault == HALF and self.count not in self.tools):
            fault = "EIO" if fault == HALF else fault
            raise OSError(getattr(errno, fault), fault, what)
        done = act()
        if fault == "after":
            raise Killed
        return done

    def write(self, path: str, text: str, **options: Any) -> None:
        self._meet(lambda: super(Faulty, self).write(path, text, **options), path)

    def run(self, argv: Any, **options: Any) -> Any:
        if not argv[0].endswith("sriov-manage") and not changes(argv[1:]):
            return super().run(argv, **options)
        self.tools.add(self.count + 1)
        if self.given.get(self.count + 1) == HALF:
            self._faults = {self._writes + 1: HALF}
        return self._meet(lambda: super(Faulty, self).run(argv, **options), argv[0])


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


class Trials:
    """All trials of one way to change one machine.

    *prepared* is the state to begin with. What is right afterwards: the state before, or, after a
    plan that takes away was cut off, the state that it ends in.
    """

    def __init__(self, scenario: Scenario, prepared: Path, folder: Path, act: Act) -> None:
        self.scenario = scenario
        self.act = act
        self.count = 0
        self._prepared = prepared
        self._folder = folder
        self.before = look(self._host(self._fresh(), {}))
        done = self._fresh()
        door = Faulty(scenario.profile, done, {})
        act(HostHandle(door, vendors=hosts.VENDORS))
        self.writes, self._tools = door.count, door.tools
        self.done = look(self._host(done, {}))

    def _fresh(self) -> Path:
        place = self._folder / "trial"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self._prepared, place)
        return place

    def _host(self, place: Path, given: Faults) -> HostHandle:
        return HostHandle(Faulty(self.scenario.profile, place, given), vendors=hosts.VENDORS)

    def all(self) -> None:
        """Every write with every fault; after each death or refusal once more with each write of
        what comes after it, in the same run or in the recovery."""
        for number in range(1, self.writes + 1):
            for fault in (*REFUSALS, *DEATHS, *((HALF,) if number in self._tools else ())):
                used = self.one({number: fault})
                for second in range(number + 1, used + 1):
                    for other in ("EIO", HALF, *DEATHS):
                        self.one({number: fault, second: other})
                        if (fault, other) == ("EIO", "EIO"):
                            self._recovery_too({number: fault, second: other})
                if fault not in REFUSALS:
                    self._recovery_too({number: fault})

    def _recovery_too(self, given: Faults) -> None:
        for number in range(1, self.recovery_writes + 1):
            for fault in ("EIO", *DEATHS):
                self.one(given, {number: fault})

    def one(self, given: Faults, in_recovery: Faults | None = None) -> int:
        """One trial; returns how many writes it took before recovery."""
        self.count += 1
        place, name = self._fresh(), f"{self.scenario} {given} {in_recovery}"
        host = self._host(place, given)
        try:
            self.act(host)
            assert look(host) == self.done, name
        except RolledBack:
            assert look(host) == self.before, name
            assert journal.files(host.door.state_dir) == [], name
        except (RecoveryNeeded, Killed) as error:
            self._recover(place, name, in_recovery, is_undone=isinstance(error, RecoveryNeeded))
        except VirtgpuError:
            assert look(host) == self.before, name
        used: int = host.door.count  # type: ignore[attr-defined]
        return used

    def _recover(self, place: Path, name: str, given: Faults | None, *, is_undone: bool) -> None:
        if given is not None:
            with contextlib.suppress(Killed):
                self._host(place, given).recover()
        host = self._host(place, {})
        outcomes = [one.outcome for one in host.recover().journals]
        self.recovery_writes: int = host.door.count  # type: ignore[attr-defined]
        found = look(host)
        if outcomes == ["undone"]:
            assert found == self.before, name
        elif outcomes == ["finished"]:
            assert not is_undone, name
            assert found == self.done, name
        else:  # the first recovery had ended it
            assert outcomes == [], name
            assert given is not None, name
            assert found in (self.before, self.done), name
        assert journal.files(host.door.state_dir) == [], name
        assert host.recover().journals == (), name
        assert look(host) == found, name
        assert list(_unnamed(place)) == [], name


def _unnamed(place: Path) -> Iterator[Path]:
    return (one for one in place.rglob(".new-*"))
