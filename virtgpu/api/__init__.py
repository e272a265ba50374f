"""The Python API: one host, its GPUs, slices and guests.

>>> import virtgpu
>>> host = virtgpu.connect("sim:a40x2-mdev-vf", state_dir="/tmp/virtgpu-doc")  # doctest: +SKIP
>>> plan = host.plan("A40-12Q", guest="render01")  # doctest: +SKIP
>>> print(plan.describe())  # doctest: +SKIP
>>> result = host.apply(plan)  # doctest: +SKIP
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from virtgpu.api.guests import Defined, GuestHost, GuestShape
from virtgpu.api.slices import OfferedType
from virtgpu.errors import Unsupported, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from virtgpu.host.door import Door

__all__ = ["Defined", "GuestShape", "HostHandle", "OfferedType", "connect", "simulated"]


def connect(
    target: str = "local",
    *,
    connect_uri: str | None = None,
    state_dir: Path | str | None = None,
) -> HostHandle:
    """A handle on one host: `local`, `sim:NAME` (a shipped profile) or `sim:FILE`.

    *connect_uri* is libvirt's (default `qemu:///system`); *state_dir* is where reservations and
    journals are (default /var/lib/virtgpu as root). Nothing is read or opened yet but the profile.

    Raises `Usage` for another target, `NotFound` or `Config` for a profile, `HostError` when this
    kernel cannot keep us within /sys.
    """
    from virtgpu.host.state import default_state_dir

    if state_dir is not None and not str(state_dir):
        raise Usage("the state directory has no name", hint="leave --state-dir out, or name one")
    if connect_uri is not None and not connect_uri:
        raise Usage("libvirt's URI is empty", hint="leave --connect out for qemu:///system")
    folder = Path(state_dir) if state_dir is not None else default_state_dir()
    return HostHandle(_door(target, folder.absolute()), connect_uri=connect_uri)


def _door(target: str, folder: Path) -> Door:
    if target == "local":
        from virtgpu.host.local import LocalDoor

        return LocalDoor(state_dir=folder)
    kind, colon, name = target.partition(":")
    if kind == "sim" and colon and name:
        from virtgpu.sim.door import SimDoor

        return SimDoor(name, state_dir=folder)
    raise Usage(
        f"host {target!r} is neither local nor sim:PROFILE",
        hint="see the profiles with: virtgpu sim list",
    )


class HostHandle(GuestHost):
    """One host. Every method reads the host anew; none keeps anything between calls."""

    def record(self) -> dict[str, Any]:
        """A profile of this host for `sim:FILE`, without serials or host names."""
        from virtgpu.sim.record import record

        return record(self.door)


def simulated() -> tuple[tuple[str, str], ...]:
    """The shipped profiles of simulated hosts: name, and one sentence about it."""
    from virtgpu.sim import profiles

    return tuple((name, profiles.load(name).about) for name in profiles.names())


def run_simulated(profile: str, command: Sequence[str], *, state_dir: Path, **options: Any) -> int:
    """Run a command on the mounted simulated host; see `virtgpu.sim.run.run`."""
    try:
        from virtgpu.sim.run import run
    except ImportError as error:  # Linux only
        raise Unsupported(f"this system cannot mount a simulated host: {error}") from error
    return run(profile, command, state_dir=state_dir, **options)
