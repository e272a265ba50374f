"""Our own files: private, durable, safe against links that somebody else has put there.

Everything is 0600 in folders of 0700. Errors name the file: these functions are the only ones
that know it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from virtgpu.errors import AccessDenied, Conflict, HostError, NotFound, Usage, VirtgpuError

_HINT = "use another state directory with --state-dir, or run as root"
_ROOM = "make room on its file system; nothing that was there is lost"
_AWAY = "remove it once you know who put it there, or use another --state-dir"
_TEMPORARY = ".new-"
_GIVEN_LIMIT = 64 << 20


def default_state_dir() -> Path:
    """$VIRTGPU_STATE_DIR, else /var/lib/virtgpu for root, else the user's own folder for state
    (XDG base directories)."""
    chosen = os.environ.get("VIRTGPU_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/virtgpu")
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # the specification: a relative one is to be ignored
        base = Path.home() / ".local/state"
    return base / "virtgpu"


# -- who may write what


def check_private(path: Path) -> None:
    """Raises `AccessDenied` when somebody else can write to the file or folder, or replace it.

    Every folder above counts too; in a sticky one (/tmp) others cannot touch our own files.
    Raises `NotFound` when it is not there.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        found = real.lstat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise AccessDenied(f"{path} is not a regular file", hint="name a file of yours")
        _refuse_writable(path, found, sticky=False)
        for folder in real.parents:
            _refuse_writable(folder, folder.lstat(), sticky=True)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {path}") from error
    except OSError as error:
        raise refused(error, path, "look at") from error


def make_private(folder: Path) -> None:
    """Make a folder of ours with mode 0700 (those above as well), or check the one that is there.

    Raises `AccessDenied` when it is a link, or when somebody else can write to it.
    """
    try:
        _make_folders(folder)
        os.close(_open_folder(folder))
    except OSError as error:
        raise refused(error, folder, "make") from error


def _make_folders(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        _sync_folder(folder.parent)


def _open_folder(folder: Path) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _refuse_writable(folder, os.fstat(fd), sticky=False)
    except VirtgpuError:
        os.close(fd)
        raise
    return fd


def _refuse_writable(path: Path, found: os.stat_result, *, sticky: bool) -> None:
    # In a user namespace the machine's root is an unknown user; who owns / is trusted anyway.
    if found.st_uid not in (0, os.geteuid(), Path("/").stat().st_uid):
        raise AccessDenied(f"{path} belongs to user {found.st_uid}", hint=f"chown root {path}")
    others_can = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others_can and not (sticky and found.st_mode & stat.S_ISVTX):
        mode = stat.S_IMODE(found.st_mode)
        raise AccessDenied(
            f"others can write to {path} (mode {mode:04o})", hint=f"chmod go-w {path}"
        )


# -- files


def write_durably(path: Path, content: bytes) -> None:
    """Put *content* into *path* so that a crash leaves the old file or the new one, whole."""
    try:
        make_private(path.parent)
        folder = _open_folder(path.parent)
        try:
            _replace(folder, path.name, content)
        finally:
            os.close(folder)
    except OSError as error:
        raise refused(error, path, "write") from error


def _replace(folder: int, name: str, content: bytes) -> None:
    fd, temporary = _open_temporary(folder)
    try:
        _write_all(fd, content)
        os.fsync(fd)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    finally:
        os.close(fd)
    os.fsync(folder)


def _open_temporary(folder: int) -> tuple[int, str]:
    """A new file without a proper name yet, locked while its writer lives; see `sweep`."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        name = f"{_TEMPORARY}{os.urandom(8).hex()}"
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        # Between our open and our lock a sweep may have taken it for one that was left.
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return fd, name
        os.close(fd)


def read(path: Path) -> bytes | None:
    """The content of one of our files, None when it is not there.

    Raises `AccessDenied` when it is a link or when others can write to it.
    """
    try:
        fd = _open_ours(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused(error, path, "read") from error
    with os.fdopen(fd, "rb") as file:
        return file.read()


def names(folder: Path, suffix: str = "") -> list[str]:
    """The sorted names in a folder of ours that end with *suffix*; none when it is not there."""
    try:
        fd = _open_folder(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(error, folder, "list") from error
    try:
        found = os.listdir(fd)  # noqa: PTH208, a descriptor
    finally:
        os.close(fd)
    return sorted(
        name for name in found if name.endswith(suffix) and not name.startswith(_TEMPORARY)
    )


def exists(path: Path) -> bool:
    """Whether one of our files is there."""
    try:
        return path.exists()
    except OSError as error:
        raise refused(error, path, "look at") from error


def remove_folder(folder: Path) -> None:
    """Remove a folder of ours with all that is in it; nothing happens when it is not there."""
    import shutil

    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        if folder.exists():
            raise
    except OSError as error:
        raise refused(error, folder, "remove") from error


def sweep(folder: Path) -> None:
    """Remove what a killed process had begun to write: the files without a proper name that nobody
    has locked."""
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - names only
            if name.startswith(_TEMPORARY):
                _sweep_one(folder / name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused(error, folder, "tidy") from error


def _sweep_one(path: Path) -> None:
    with suppress(FileNotFoundError, BlockingIOError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(fd)


def remove(path: Path) -> None:
    """Remove a file of ours for good; nothing happens when it is not there."""
    try:
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            _sync_folder(path.parent)
    except OSError as error:
        raise refused(error, path, "remove") from error


class LockedFile:
    """One of our files, held by a flock that ends with this object or this process.

    A journal is written through it, so that its lock tells whether its apply still lives.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def read(self) -> bytes:
        """All that was written so far."""
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    def append(self, content: bytes) -> None:
        """Add *content* at the end; it is on the disk when this returns."""
        try:
            os.lseek(self._fd, 0, os.SEEK_END)
            _write_all(self._fd, content)
            os.fsync(self._fd)
        except OSError as error:
            raise refused(error, self.path, "write") from error

    def replace(self, content: bytes) -> None:
        """Put *content* in the place of all that was there: a remark, neither durable nor vital."""
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, content, 0)

    def cut(self, length: int) -> None:
        """Drop all after the first *length* bytes: a line that a crash left half written."""
        try:
            os.ftruncate(self._fd, length)
            os.fsync(self._fd)
        except OSError as error:
            raise refused(error, self.path, "write") from error

    def close(self) -> None:
        """Let the lock go."""
        if self._fd >= 0:
            _held.discard(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def try_lock(path: Path, *, create: bool = False) -> LockedFile | None:
    """Open and lock one of our files; None when another holds it, or it is gone.

    With *create* it is made (and its folder) when it is not there.
    """
    try:
        fd = _open_ours(path, os.O_RDWR)
    except FileNotFoundError:
        if not create:
            return None
        fd = _create_ours(path)
    except OSError as error:
        raise refused(error, path, "open") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Removed between our open and our lock: the name may mean another file by now.
        gone = os.fstat(fd).st_nlink == 0
    except BlockingIOError:
        gone = True
    if gone:
        os.close(fd)
        return None
    _held.add(fd)
    return LockedFile(path, fd)


def create_locked(path: Path, content: bytes) -> LockedFile | None:
    """Make one of our files with its first content, locked before anybody can see its name; None
    when that name is taken."""
    make_private(path.parent)
    try:
        folder = _open_folder(path.parent)
        try:
            fd = _link_new(folder, path.name, content)
        finally:
            os.close(folder)
    except FileExistsError:
        return None
    except OSError as error:
        raise refused(error, path, "make") from error
    _held.add(fd)
    return LockedFile(path, fd)


def _link_new(folder: int, name: str, content: bytes) -> int:
    fd, temporary = _open_temporary(folder)
    try:
        _write_all(fd, content)
        os.fsync(fd)
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        os.close(fd)
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
    return fd


def _create_ours(path: Path) -> int:
    make_private(path.parent)
    try:
        fd = _open_ours(path, os.O_RDWR | os.O_CREAT)
        _sync_folder(path.parent)
    except OSError as error:
        raise refused(error, path, "make") from error
    return fd


def _open_ours(path: Path, flags: int) -> int:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise AccessDenied(f"{path} is not a regular file", hint=_AWAY)
        _refuse_writable(path, found, sticky=False)
    except VirtgpuError:
        os.close(fd)
        raise
    return fd


# Locks that this process holds. A forked child (multiprocessing in somebody's program) would hold
# them on after we have ended, so it lets its copies go at once; exec closes them by itself.
_held: set[int] = set()


def _forget_locks() -> None:
    for fd in _held:
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)


# -- the lock of a host


@contextmanager
def host_lock(
    state_dir: Path, *, timeout_s: float = 30.0, what: str
) -> Iterator[Callable[[str], None]]:
    """Hold the one lock of a host; *what* is the step that others are told about.

    Yields a function that tells them the next step. Raises `Conflict` with the holder's pid and
    step when it is not free within *timeout_s*. Never hold it across a call that may run our
    own hook: that takes the same lock.
    """
    path = state_dir / "lock"
    deadline = time.monotonic() + timeout_s
    while (lock := try_lock(path, create=True)) is None:
        if time.monotonic() >= deadline:
            raise _held_by_another(path, timeout_s)
        # flock has no deadline of its own; uneven pauses keep waiters from marching in step.
        time.sleep(0.005 + os.urandom(1)[0] / 17_000)
    with lock:

        def note(step: str) -> None:
            lock.replace(f"{os.getpid()} {step}\n".encode())

        note(what)
        try:
            yield note
        finally:
            lock.replace(b"")


def _held_by_another(path: Path, timeout_s: float) -> Conflict:
    pid, _, step = (read(path) or b"").decode("utf-8", "replace").strip().partition(" ")
    waited = f"was not free within {timeout_s:g} s"
    if not pid.isdigit():
        return Conflict(f"the host's lock {path} {waited}", hint="try again", transient=True)
    return Conflict(
        f"the host is locked by process {pid} ({step}) and {waited}",
        hint=f"wait for it, or look at it: ps -fp {pid}",
        transient=True,
    )


# -- files that a person names


def read_given(name: str, what: str, *, hint: str) -> bytes:
    """A file that a person gave us to read; raises `NotFound` or `HostError` with its name."""
    try:
        if not name:
            raise FileNotFoundError
        with Path(name).open("rb") as file:
            return file.read(_GIVEN_LIMIT + 1)
    except (FileNotFoundError, ValueError) as error:
        raise NotFound(f"there is no {what} {name!r}", hint=hint) from error
    except OSError as error:
        raise HostError(f"{what} {name!r} cannot be read: {error.strerror}", hint=hint) from error


def write_given(name: str, content: bytes, what: str) -> None:
    """A file that a person asked us to write: whole, or not at all; one that was there keeps its
    owner and mode. Raises `Usage`, `HostError`."""
    path = Path(name)
    if not path.name or "\0" in name:
        raise Usage(f"{what} {name!r}: that is no name of a file")
    path = Path(os.path.realpath(path))  # behind a link: the link stays
    temporary = path.with_name(f"{path.name}{_TEMPORARY}{os.urandom(4).hex()}")
    try:
        temporary.write_bytes(content)
        if path.exists():
            old = path.stat()
            os.chown(temporary, old.st_uid, old.st_gid)
            temporary.chmod(old.st_mode & 0o7777)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise HostError(f"{what} {name!r} cannot be written: {error.strerror}") from error


# -- small things


def _write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refused(error: OSError, path: Path, verb: str) -> VirtgpuError:
    """Our error for what the system refused with one of our files."""
    if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and path.is_symlink()):
        return AccessDenied(f"{path} is a symbolic link", hint=_AWAY)
    if error.errno in (errno.EACCES, errno.EPERM):
        return AccessDenied(f"cannot {verb} {path}: {error.strerror}", hint=_HINT)
    hint = _ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else _HINT
    return HostError(f"cannot {verb} {path}: {error.strerror}", hint=hint)
