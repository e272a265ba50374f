"""Host profiles: the hardware that a simulated machine has, as JSON (schema 1).

A profile is a state, not a script: the kernel model makes it move. The key `sim` may choose where
real systems disagree, and what a test needs:

    vgpu_refusal  errno name of an impossible `current_vgpu_type`, or "silent" (guess: EINVAL)
    mdev_full     errno name of a `create` without room: ENOSPC (default) or EUSERS
    mig_pending   true: changing MIG mode needs a reset, as on older cards
    late_vfs_s    seconds until new VFs appear after the write
    clear_refusals  how often writing 0 to `current_vgpu_type` is refused at first
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from virtgpu.errors import Config, NotFound
from virtgpu.host import state
from virtgpu.model import shipped

Json = dict[str, Any]

_PACKAGE, _FOLDER = "virtgpu.sim", "profiles"
_MAX_BYTES = 16 << 20


class Profile:
    """One profile: *name* is the shipped name or the file's stem, *raw* what the JSON says. *key*
    names its state: two files of one name, or one called as a shipped profile, are two machines."""

    def __init__(self, name: str, raw: Json, key: str | None = None) -> None:
        self.name = name
        self.key = key or name
        self.raw = raw
        self.host: Json = raw.get("host") or {}
        self.modules: Json = self.host.get("modules") or {}
        self.pci: list[Json] = raw.get("pci") or []
        self.choices: Json = raw.get("sim") or {}

    @property
    def about(self) -> str:
        """One sentence about it."""
        return str(self.raw.get("about") or "")

    @property
    def is_vgpu_host(self) -> bool:
        """Whether NVIDIA's vGPU Manager runs there."""
        return "nvidia_vgpu_vfio" in self.modules

    def nvml_device(self, address: str) -> Json | None:
        """What NVML says about the card at that address, None where NVML does not know it."""
        for device in (self.raw.get("nvml") or {}).get("devices") or []:
            bus_id = device.get("pci_bus_id")
            if bus_id is not None and _same(bus_id, address):
                return dict(device)
        return None


def _same(bus_id: str, address: str) -> bool:
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" == address


def names() -> tuple[str, ...]:
    """The shipped profiles."""
    return shipped.names(_PACKAGE, ".json", _FOLDER)


def load(name_or_path: str) -> Profile:
    """A shipped profile by name, or a file (anything with a slash, or ending in .json).

    Raises `NotFound` (with the names that there are) and `Config` (no such schema).
    """
    if "/" in name_or_path or name_or_path.endswith(".json"):
        return _from_file(Path(name_or_path))
    if name_or_path not in names():
        raise NotFound(
            f"there is no profile {name_or_path!r}",
            hint="see them with: virtgpu sim list; a file is given with its path",
        )
    text = shipped.read(_PACKAGE, f"{_FOLDER}/{name_or_path}.json").decode()
    return Profile(name_or_path, parse(text, name_or_path))


def _from_file(path: Path) -> Profile:
    raw = state.read_given(str(path), "profile", hint="see: virtgpu sim list")
    if len(raw) > _MAX_BYTES:
        raise Config(f"profile {path} has more than {_MAX_BYTES} bytes")
    key = f"{path.stem}-{crc32(os.fsencode(path.resolve())):08x}"
    return Profile(path.stem, parse(raw.decode("utf-8", "replace"), str(path)), key)


def parse(text: str, source: str) -> Json:
    """The JSON of a profile, checked as far as the kernel model relies on it.

    Raises `Config` that names *source* and the place.
    """
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Config(f"{source}: no JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("schema") != 1:
        raise Config(
            f"{source}: no host profile of schema 1", hint="see: virtgpu sim record --help"
        )
    from virtgpu.sim.schema import check

    check(raw, source)
    return raw
