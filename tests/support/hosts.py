"""Doors and handles for tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support import trees
from virtgpu import vendors
from virtgpu.api import HostHandle
from virtgpu.host.local import LocalDoor
from virtgpu.sim.door import SimDoor

VENDORS = vendors.load()


def handle(profile: str, folder: Path) -> HostHandle:
    """A handle on a simulated host with a state of its own."""
    return HostHandle(SimDoor(profile, state_dir=folder, environment={}), vendors=VENDORS)


def case(name: str, folder: Path) -> HostHandle:
    """A handle on the tree of a case."""
    root = trees.build(folder / "root", trees.case(name))
    return HostHandle(LocalDoor(root, state_dir=folder / "state"), vendors=VENDORS)


class Spy(SimDoor):
    """A simulated host that remembers what was written to it, and may lack NVML."""

    def __init__(self, name: str, folder: Path, *, has_nvml: bool = True) -> None:
        super().__init__(name, state_dir=folder, environment={})
        self.written: list[tuple[str, str]] = []
        self.ran: list[Sequence[str]] = []
        self._has_nvml = has_nvml

    def write(self, path: str, text: str, **options: Any) -> None:
        self.written.append((path, text))
        super().write(path, text, **options)

    def run(self, argv: Sequence[str], **options: Any) -> Any:
        self.ran.append(tuple(argv))
        return super().run(argv, **options)

    @contextlib.contextmanager
    def nvml(self) -> Iterator[Any | None]:
        if not self._has_nvml:
            yield None
            return
        with super().nvml() as library:
            yield library


def profile_with(folder: Path, base: str, **changes: Any) -> str:
    """A file with a shipped profile, changed at the top; returns its path."""
    from virtgpu.sim import profiles

    raw = json.loads(json.dumps(profiles.load(base).raw)) | changes
    path = folder / f"{base}-changed.json"
    path.write_text(json.dumps(raw))
    return str(path)


def simulated_case(name: str, folder: Path) -> HostHandle:
    """A simulated host recorded from the tree of a case: there things can be made."""
    from virtgpu.sim.record import record

    root = trees.build(folder / "recorded", trees.case(name))
    raw = record(LocalDoor(root, state_dir=folder / "unused"))
    path = folder / f"{name}.json"
    path.write_text(json.dumps(raw))
    return handle(str(path), folder / "state")
