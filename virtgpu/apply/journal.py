"""The journal: what one apply was about to do and has done, on the disk before and after each step.

One file of JSON lines per apply. Its flock says that the apply lives; without it whoever takes it
may finish or undo the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import msgspec

from virtgpu.errors import Config, VirtgpuError
from virtgpu.host import state
from virtgpu.host.door import Child
from virtgpu.host.state import LockedFile
from virtgpu.model import codec
from virtgpu.model.plan import Plan

_SUFFIX = ".journal"


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line. *begin* and *end* are of a step's doing, *undo* and *undone* of its undoing."""

    event: Literal["plan", "begin", "child", "end", "undo", "undone"]
    step: int | None = None
    plan: Plan | None = None
    pid: int | None = None
    started: int | None = None


class Journal:
    """An open journal that we hold."""

    def __init__(self, file: LockedFile, plan: Plan, lines: list[Line]) -> None:
        self.plan = plan
        self.lines = lines
        self._file = file

    @classmethod
    def create(cls, state_dir: Path, plan: Plan) -> Self:
        """Begin one; raises `Config` when the plan is being applied, or was cut off."""
        path, first = _path(state_dir, plan.id), Line(event="plan", plan=plan)
        file = state.create_locked(path, codec.encode(first) + b"\n")
        if file is None:
            raise Config(
                f"plan {plan.id} is being applied, or was cut off: {path} is there",
                hint="virtgpu recover",
            )
        return cls(file, plan, [first])

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """Open one that nobody holds; None when somebody does, or it is empty.

        Raises `Config` when it cannot be read.
        """
        file = state.try_lock(path)
        if file is None:
            return None
        lines, length = _parse(file.read(), path)
        if not lines or lines[0].plan is None:
            # A file system that lost its content in a crash: its first write came before any step.
            state.remove(path)
            file.close()
            return None
        file.cut(length)
        return cls(file, lines[0].plan, lines)

    # -- writing

    def begin(self, step: int) -> None:
        """The step is about to be done."""
        self._add(Line(event="begin", step=step))

    def end(self, step: int) -> None:
        """The step was done and read back."""
        self._add(Line(event="end", step=step))

    def undo(self, step: int) -> None:
        """The step is about to be undone."""
        self._add(Line(event="undo", step=step))

    def undone(self, step: int) -> None:
        """The step was undone and read back."""
        self._add(Line(event="undone", step=step))

    def child(self, step: int, child: Child) -> None:
        """This process does the step's write, and may outlive us."""
        self._add(Line(event="child", step=step, pid=child.pid, started=child.started))

    def _add(self, line: Line) -> None:
        self.lines.append(line)
        self._file.append(codec.encode(line) + b"\n")

    def finish(self) -> None:
        """All is done or undone: the journal goes, then its lock."""
        state.remove(self._file.path)
        self._file.close()

    def close(self) -> None:
        """Let the lock go and keep the file."""
        self._file.close()


def _parse(raw: bytes, path: Path) -> tuple[list[Line], int]:
    """The whole lines and their length in bytes; a last half line is what a crash leaves."""
    whole = raw[: raw.rfind(b"\n") + 1]
    lines = [codec.decode(text, Line, str(path)) for text in whole.splitlines()]
    if lines and lines[0].event != "plan":
        raise Config(f"{path}: no journal", hint="move the file away once you know what it was")
    return lines, len(whole)


def peek(path: Path) -> list[Line]:
    """The lines of a journal, whoever holds it; none when it has gone. Raises `Config`."""
    raw = state.read(path)
    return [] if raw is None else _parse(raw, path)[0]


def folder(state_dir: Path) -> Path:
    """Where they are."""
    return state_dir / "journal"


def files(state_dir: Path) -> list[Path]:
    """All journals, by name."""
    return [folder(state_dir) / name for name in state.names(folder(state_dir), _SUFFIX)]


def is_held(path: Path) -> bool:
    """Whether the apply of the journal lives (or it has just ended)."""
    try:
        file = state.try_lock(path)
    except VirtgpuError:
        return False
    if file is not None:
        file.close()
    return file is None


def _path(state_dir: Path, plan_id: str) -> Path:
    return folder(state_dir) / f"{plan_id}{_SUFFIX}"


# -- what a journal says


def begun(lines: list[Line]) -> list[int]:
    """The steps that were begun and not undone, in the order in which they were begun."""
    found: list[int] = []
    for line in lines:
        if line.step is None:
            continue
        if line.event == "begin" and line.step not in found:
            found.append(line.step)
        if line.event == "undone" and line.step in found:
            found.remove(line.step)
    return found


def ended(lines: list[Line]) -> set[int]:
    """The steps that were done and read back."""
    return {line.step for line in lines if line.event == "end" and line.step is not None}


def last_child(lines: list[Line]) -> tuple[int, Child] | None:
    """The child of the step that was begun (or is being undone) last and has not ended."""
    for line in reversed(lines):
        if line.event in ("end", "undone", "plan"):
            return None
        if line.event == "child" and line.step is not None and line.pid is not None:
            return line.step, Child(line.pid, line.started or 0)
    return None
