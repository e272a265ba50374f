"""openat2(2): open a path that the kernel keeps within a directory (Linux 5.6).

Python has no binding of it. `O_NOFOLLOW` alone guards the last component only.
"""

from __future__ import annotations

import ctypes
import errno
import os

from virtgpu.errors import HostError

NO_MAGICLINKS = 0x02
NO_SYMLINKS = 0x04
BENEATH = 0x08
IN_ROOT = 0x10

_NUMBER = 437  # the same on every architecture that KVM runs on
# "..", taken while anything on the machine is renamed or mounted, gives EAGAIN: openat2(2) says
# to try again.
_TRIES = 1000


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_SIZE = ctypes.sizeof(_How)
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(_How),
    ctypes.c_size_t,
)
_hows: dict[tuple[int, int], _How] = {}


def open_at(directory: int, path: str, flags: int, resolve: int) -> int:
    """Open *path* below the descriptor *directory*; raises OSError with the kernel's errno."""
    raw = os.fsencode(path)
    how = _hows.setdefault((flags, resolve), _How(flags | os.O_CLOEXEC, 0, resolve))
    for _ in range(_TRIES):
        fd: int = _syscall(_NUMBER, directory, raw, how, _SIZE)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


def require(directory: int) -> None:
    """Raises `HostError` when the kernel, or a sandbox around us, has no openat2."""
    try:
        os.close(open_at(directory, ".", os.O_PATH | os.O_DIRECTORY, BENEATH))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        raise HostError(
            f"the system call openat2 is not available here: {error.strerror}",
            hint="virtgpu needs Linux 5.6 or newer; in a container, a runtime whose seccomp "
            "profile allows openat2",
        ) from error
