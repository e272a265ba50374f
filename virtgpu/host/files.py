"""The files of one host below a root that cannot be left, and the one write seam.

The root is held as a directory descriptor, so that a later rename or chroot changes nothing.
Paths are relative to it. What is below sys/ stays below sys/: links within sysfs are followed,
none leads out of it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from virtgpu.errors import HostError
from virtgpu.host.openat2 import BENEATH, IN_ROOT, NO_MAGICLINKS, NO_SYMLINKS, open_at, require

# The only file outside sysfs that is written: sriov-manage's lock in NVIDIA's procfs.
_UNBIND_LOCK = re.compile(r"proc/driver/nvidia/gpus/[^/]+/unbindLock")
_CHUNK = 1 << 16
_PAGE = 4096  # no text attribute of sysfs is longer, so that a shorter read was all of it
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Files:
    """Reads and writes below *root*; every method raises OSError with the kernel's errno."""

    def __init__(self, root: Path) -> None:
        try:
            self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise HostError(
                f"the host's root {root} cannot be opened: {error.strerror}",
                hint="name an existing directory",
            ) from error
        self._sys: int | None = None
        require(self._root)
        self.is_machine = os.path.samestat(os.fstat(self._root), Path("/").stat())

    def close(self) -> None:
        """Let the descriptors go."""
        for fd in (self._root, self._sys):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._root, self._sys = -1, None

    def __del__(self) -> None:
        if hasattr(self, "_root"):
            self.close()

    # -- reading

    def read(self, path: str) -> str:
        """The whole text of a file, undecodable bytes replaced."""
        fd = self._open_to_read(path)
        try:
            raw = os.read(fd, _CHUNK)
            whole = len(raw) < _PAGE and path.startswith("sys/")
            while not whole and (more := os.read(fd, _CHUNK)):
                raw += more
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(fd)
        return raw.decode("utf-8", "replace")

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, unsorted."""
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return os.listdir(fd)  # noqa: PTH208, a descriptor
        finally:
            os.close(fd)

    def readlink(self, path: str) -> str:
        """The text of a symbolic link; EINVAL when it is none."""
        fd = self._open(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            # The empty path means the link itself; for anything else Linux then says ENOENT.
            return os.readlink("", dir_fd=fd)
        except OSError as error:
            is_link = stat.S_ISLNK(os.fstat(fd).st_mode)
            number = error.errno if is_link and error.errno else errno.EINVAL
            raise OSError(number, os.strerror(number), path) from None
        finally:
            os.close(fd)

    def links(self, path: str) -> dict[str, str]:
        """The symbolic links in a directory: name and text."""
        found: dict[str, str] = {}
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in os.listdir(fd):  # noqa: PTH208, a descriptor
                try:
                    found[name] = os.readlink(name, dir_fd=fd)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.EINVAL):  # gone, or no link
                        error.filename = f"{path}/{name}"
                        raise
        finally:
            os.close(fd)
        return found

    def exists(self, path: str) -> bool:
        """Whether the path is there and a link leads to something."""
        try:
            os.close(self._open(path, os.O_PATH))
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            raise
        return True

    def program(self, path: str) -> str | None:
        """The machine's own name of an executable file of this host, None when it is none.

        Below a root of its own, links are resolved there, never on the machine.
        """
        try:
            fd = self._open(path, os.O_PATH)
        except OSError:
            return None
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode) or not mode & 0o111:
                return None
            return f"/{path}" if self.is_machine else _name(fd)
        finally:
            os.close(fd)

    # -- the write seam

    def open_to_write(self, path: str) -> int:
        """A descriptor of an existing regular file below sys/ (or an unbindLock), for writing.

        Nothing is created or truncated; anywhere else is EPERM.
        """
        if not path.startswith("sys/") and not _UNBIND_LOCK.fullmatch(path):
            raise PermissionError(errno.EPERM, "virtgpu writes only below sys/", path)
        found = self._open(path, os.O_PATH)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise PermissionError(errno.EPERM, "not a regular file", path)
            return _reopen(found, os.O_WRONLY, path)
        finally:
            os.close(found)

    # -- opening

    def _open_to_read(self, path: str) -> int:
        """Device nodes and pipes are never opened: opening one can already do something."""
        if path.startswith(("sys/", "proc/")):
            return self._open(path, os.O_RDONLY)
        found = self._open(path, os.O_PATH)
        try:
            mode = os.fstat(found).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(mode):
                raise PermissionError(errno.EPERM, "not a regular file", path)
            return _reopen(found, os.O_RDONLY, path)
        finally:
            os.close(found)

    def _open(self, path: str, flags: int) -> int:
        padded = f"/{path}/"
        if "//" in padded or "/../" in padded or "/./" in padded or "\0" in path:
            raise PermissionError(errno.EACCES, "not a plain path below the host's root", path)
        if not path.startswith("sys/"):
            return open_at(self._root, path, flags, IN_ROOT | NO_MAGICLINKS)
        try:
            return self._open_below_sys(path[4:], flags)
        except OSError as error:
            error.filename = path
            raise

    def _open_below_sys(self, path: str, flags: int) -> int:
        if self._sys is None:
            self._sys = open_at(self._root, "sys", os.O_PATH | os.O_DIRECTORY, NO_SYMLINKS)
        try:
            return open_at(self._sys, path, flags, BENEATH | NO_MAGICLINKS)
        except OSError as error:
            inside = error.errno == errno.EXDEV and self._without_absolute_links(path, flags)
            if not inside:
                raise
        return open_at(self._sys, inside, flags, BENEATH | NO_MAGICLINKS)

    def _without_absolute_links(self, path: str, flags: int) -> str | None:
        """The same place by its own name below sys/, None when it lies elsewhere.

        The kernel's links are relative; a tree that somebody copied may have absolute ones.
        """
        flags = os.O_PATH | flags & os.O_NOFOLLOW
        fd = open_at(self._root, f"sys/{path}", flags, IN_ROOT | NO_MAGICLINKS)
        try:
            name, base = _name(fd), _name(self._sys)
        finally:
            os.close(fd)
        return name[len(base) + 1 :] if name.startswith(f"{base}/") else None


def _reopen(fd: int, flags: int, path: str) -> int:
    """Open the very file that an O_PATH descriptor stands for."""
    try:
        return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        error.filename = path
        raise


def _name(fd: int | None) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())
