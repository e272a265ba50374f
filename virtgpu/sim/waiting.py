"""A child that does what must wait: it tries again until the device's holder has gone.

The real kernel blocks the writer itself; here its place is taken by a process that lives on,
so that whoever asks sees the same: a living child, and one day a finished write.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from virtgpu.host import processes
from virtgpu.host.door import Child
from virtgpu.sim.tree import InUse

_PAUSE_S = 0.05
_left: list[subprocess.Popen[bytes]] = []


def leave(profile: str, folder: Path, argv: list[str], *, stall: bool) -> Child:
    """Start the child; *argv* is `write PATH TEXT` or `run PROGRAM ARGUMENT...`.

    A *stall* never ends by itself: only with the machine's folder.
    """
    words = json.dumps({"profile": profile, "folder": str(folder), "argv": argv, "stall": stall})
    process = subprocess.Popen(
        [sys.executable, "-m", "virtgpu.sim.waiting", words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _left[:] = [one for one in _left if one.poll() is None]
    _left.append(process)  # a dropped object would let subprocess forget a living child
    return Child(process.pid, processes.started(process.pid) or 0)


def main(words: str) -> None:
    """Try until it is done, refused, or the machine is gone."""
    from virtgpu.sim.door import SimDoor, run_tool, write_to

    told = json.loads(words)
    folder, (verb, *rest) = Path(told["folder"]), told["argv"]
    door = SimDoor(told["profile"], state_dir=folder.parent.parent, environment={})
    while folder.is_dir():
        if not told["stall"]:
            with suppress(InUse), door.changing() as kernel:
                if verb == "write":
                    with suppress(OSError):
                        write_to(kernel, rest[0], rest[1])
                else:
                    run_tool(kernel, rest)
                return
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1])
