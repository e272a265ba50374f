"""Reservations: one small file each, written before the hardware is touched."""

from __future__ import annotations

from pathlib import Path

from virtgpu.errors import Config, VirtgpuError
from virtgpu.host import state
from virtgpu.model import codec
from virtgpu.model.slice import Reservation

_SUFFIX = ".json"


def folder(state_dir: Path) -> Path:
    """Where they are."""
    return state_dir / "reservations"


def load(state_dir: Path) -> tuple[Reservation, ...]:
    """All of them, oldest first.

    Raises `Config` for a damaged one: what it promised is unknown, so nothing may be given away.
    """
    found, damaged = scan(state_dir)
    for error in damaged:
        raise error
    return found


def scan(state_dir: Path) -> tuple[tuple[Reservation, ...], tuple[VirtgpuError, ...]]:
    """Those that can be read, oldest first, and what is wrong with each of the others."""
    found: list[Reservation] = []
    damaged: list[VirtgpuError] = []
    for name in state.names(folder(state_dir), _SUFFIX):
        try:
            one = get(state_dir, name.removesuffix(_SUFFIX))
        except VirtgpuError as error:
            damaged.append(error)
        else:
            found += [] if one is None else [one]
    return tuple(sorted(found, key=lambda one: (one.created, one.id))), tuple(damaged)


def get(state_dir: Path, slice_id: str) -> Reservation | None:
    """One of them, None when it is not there; raises `Config` for a damaged one."""
    path = _path(state_dir, slice_id)
    raw = state.read(path)
    if raw is None:
        return None
    try:
        one = codec.decode(raw, Reservation, str(path))
    except Config as error:
        hint = "look at the file; without it the slice counts as foreign"
        raise Config(error.message, hint=hint) from error
    if one.id != slice_id:
        raise Config(f"{path}: it names slice {one.id!r}", hint="give the file its slice's name")
    return one


def write(state_dir: Path, one: Reservation) -> None:
    """Write it durably."""
    state.write_durably(_path(state_dir, one.id), codec.encode(one))


def remove(state_dir: Path, slice_id: str) -> None:
    """Remove it durably; nothing happens when it is not there."""
    state.remove(_path(state_dir, slice_id))


def _path(state_dir: Path, slice_id: str) -> Path:
    return folder(state_dir) / f"{slice_id}{_SUFFIX}"
