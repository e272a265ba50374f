"""Every error that virtgpu raises on purpose.

    VirtgpuError
     ├─ Usage           2   the request cannot be read, or makes no sense here
     ├─ Config          3   a file that we were given is wrong
     ├─ NotFound        4   no such device, type, slice, guest, profile
     ├─ AccessDenied    5   not allowed, or not ours
     ├─ Capacity        6   understood, possible in principle, no room now
     ├─ Conflict        7   somebody else has it, or the world has changed
     ├─ Unsupported     8   this host, driver or library cannot do it
     ├─ HostError       9   the machine refused: a file, an errno, a command
     ├─ KeyStoreError  10   the key store refused
     ├─ LuksError      11   the volume refused
     ├─ RolledBack     12   it failed and nothing has changed
     └─ RecoveryNeeded 13   it failed and something has changed

1 is no error: it is the answer "no". 70 is a defect in virtgpu itself.
"""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "Capacity",
    "Config",
    "Conflict",
    "HostError",
    "KeyStoreError",
    "LuksError",
    "NotFound",
    "RecoveryNeeded",
    "RolledBack",
    "Unsupported",
    "Usage",
    "VirtgpuError",
]


class VirtgpuError(Exception):
    """One sentence about one thing, and what to do next.

    *hint* is the next command or action for a person. *transient* says that
    the same call may succeed later without anybody changing anything.
    """

    exit_code = 70
    kind = "internal"

    def __init__(self, message: str, *, hint: str | None = None, transient: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.transient = transient


class Usage(VirtgpuError):
    """The request cannot be read, or makes no sense here."""

    exit_code = 2
    kind = "usage"


class Config(VirtgpuError):
    """A file that we were given is wrong."""

    exit_code = 3
    kind = "config"


class NotFound(VirtgpuError):
    """No such device, type, slice, guest or profile."""

    exit_code = 4
    kind = "not-found"


class AccessDenied(VirtgpuError):
    """Not allowed, or not ours to touch."""

    exit_code = 5
    kind = "access-denied"


class Capacity(VirtgpuError):
    """Understood and possible in principle, but there is no room now."""

    exit_code = 6
    kind = "capacity"


class Conflict(VirtgpuError):
    """Somebody else has it, or the world has changed since we looked."""

    exit_code = 7
    kind = "conflict"


class Unsupported(VirtgpuError):
    """This host, driver or library version cannot do it."""

    exit_code = 8
    kind = "unsupported"


class HostError(VirtgpuError):
    """The machine refused: a file, an errno or a command is named."""

    exit_code = 9
    kind = "host"


class KeyStoreError(VirtgpuError):
    """The key store refused or could not be reached."""

    exit_code = 10
    kind = "key-store"


class LuksError(VirtgpuError):
    """The LUKS volume or its header refused."""

    exit_code = 11
    kind = "luks"


class RolledBack(VirtgpuError):
    """A step failed; all steps before it were undone and nothing has changed."""

    exit_code = 12
    kind = "rolled-back"


class RecoveryNeeded(VirtgpuError):
    """A step failed and something of it remains; `virtgpu recover` knows what."""

    exit_code = 13
    kind = "recovery-needed"
