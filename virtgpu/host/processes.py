"""Processes of the machine that we run on, and whether a /proc shows all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from virtgpu.host import paths

if TYPE_CHECKING:
    from virtgpu.host.files import Files

# The inode of the first pid namespace (PROC_PID_INIT_INO in the kernel's proc_ns.h).
_FIRST_NAMESPACE = "pid:[4026531836]"


def started(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat, None when no such process lives; one that has ended and only
    waits to be collected does not.

    Always of this machine: the children that it is asked about are ours, whatever root a door has.
    """
    try:
        stat = (Path("/proc") / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may hold blanks and parentheses of its own.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def sees_all(files: Files) -> bool:
    """Whether proc below the host's root shows every process with its open files to us.

    It does when its process 1 lives in the first pid namespace and lets us see that: the link can
    only be read by one who may also trace that process, whatever hidepid says. A simulated
    machine is whole by itself; real sysfs can never hold its mark.
    """
    if files.exists(paths.SIMULATED_MARK):
        return True
    try:
        return files.readlink(paths.process(1, "ns", "pid")) == _FIRST_NAMESPACE
    except OSError:
        return False
