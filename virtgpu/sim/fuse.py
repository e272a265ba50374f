"""The mounted front: serves the kernel's files over /dev/fuse, with the errnos of the model.

The protocol is spoken directly (linux/fuse.h, version 7.31): a binding would have to be compiled,
and none lets a write wait or the kernel forget single names. One thread answers; a second one ends
writes: it makes the kernel forget changed names, sends the device events, and only then lets
write(2) return, because the kernel may hold a folder's lock while it waits for the first thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import signal
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from virtgpu.sim.tree import InUse, Node, Tree, refuse

_FOREVER = 1 << 30  # seconds: the kernel may cache, it is told what to forget
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_HEADER = struct.Struct("<IIQQIIII")
_LOOKUP, _FORGET, _GETATTR, _SETATTR, _READLINK = 1, 2, 3, 4, 5
_OPEN, _READ, _WRITE, _STATFS, _RELEASE = 14, 15, 16, 17, 18
_INIT, _OPENDIR, _READDIR, _RELEASEDIR = 26, 27, 28, 29
_CREATE, _INTERRUPT, _BATCH_FORGET = 35, 36, 42
# symlink, mknod, mkdir, unlink, rmdir, rename, link, rename2: sysfs lets nobody make a name.
_NAMING = frozenset((6, 8, 9, 10, 11, 12, 13, 45))
_DIRECT_IO, _NOFLUSH, _CACHE_SYMLINKS, _INVAL_ENTRY = 1, 1 << 5, 1 << 23, 3
_KINDS = {stat.S_IFDIR: 4, stat.S_IFREG: 8, stat.S_IFLNK: 10}
_POLL_S = 0.05

Events = list[list[str]]


class Request(NamedTuple):
    """One question of the kernel; *raw* is all of it, so that it can be asked again."""

    raw: bytes
    opcode: int
    unique: int
    number: int
    pid: int
    body: bytes


def parse(raw: bytes) -> Request:
    """The fields of a request."""
    _, opcode, unique, number, _, _, pid, _ = _HEADER.unpack_from(raw)
    return Request(raw, opcode, unique, number, pid, raw[_HEADER.size :])


class Server:
    """Serves *tree* on the descriptor *fd* until it is unmounted.

    *changed* is called after each write that came through, *faults* before each, with its number.
    """

    def __init__(
        self,
        fd: int,
        tree: Tree,
        *,
        take_events: Callable[[], Events],
        send_events: Callable[[Events], None],
        before: Callable[[], None],
        changed: Callable[[], None],
        fault: Callable[[Node], str | None],
    ) -> None:
        self._fd = fd
        self._tree = tree
        self._take_events = take_events
        self._send_events = send_events
        self._before = before
        self._changed = changed
        self._fault = fault
        self._handles: dict[int, object] = {}
        self._next_handle = 1
        self._ending: queue.SimpleQueue[tuple[list[tuple[int, str]], Events, bytes]] = (
            queue.SimpleQueue()
        )
        self._waiting: list[Request] = []
        self._kill_after: int | None = None
        self._answers: dict[int, Callable[[Node, Request], bytes]] = {
            _LOOKUP: self._lookup,
            _GETATTR: self._getattr,
            _SETATTR: self._getattr,
            _READLINK: lambda node, _: node.readlink().encode(),
            _OPEN: self._open,
            _READ: self._read,
            _WRITE: self._write,
            _RELEASE: self._release,
            _RELEASEDIR: self._release,
            _OPENDIR: self._opendir,
            _READDIR: self._readdir,
            _STATFS: lambda *_: struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0),
            _INIT: _init,
        }

    # -- the loop

    def serve(self) -> None:
        """Answer until the file system is unmounted."""
        threading.Thread(target=self._end_writes, daemon=True).start()
        while True:
            if self._waiting and not select.select([self._fd], [], [], _POLL_S)[0]:
                again, self._waiting = self._waiting, []
                for request in again:
                    self._handle(request, again=True)
                continue
            try:
                self._handle(parse(os.read(self._fd, 1 << 17)))
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno not in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    raise

    def _handle(self, request: Request, *, again: bool = False) -> None:
        if request.opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            return
        try:
            self._before()
            answer, code = self._answer(request, again=again), 0
        except _Stalled:
            return
        except InUse:
            self._waiting.append(request)
            return
        except OSError as error:
            answer, code = b"", error.errno or errno.EIO
        except Exception as error:  # a defect here must not hang the caller
            print(f"simulated /sys: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
            answer, code = b"", errno.EIO
        reply = struct.pack("<IiQ", 16 + len(answer), -code, request.unique) + answer
        stale, events = self._tree.take_stale(), self._take_events()
        if request.opcode == _WRITE and code == 0:
            self._changed()
        if self._kill_after is not None:
            _kill(self._kill_after)
            self._kill_after = None
        if stale or events:
            self._ending.put((stale, events, reply))
        else:
            self._send(reply)

    def _answer(self, request: Request, *, again: bool) -> bytes:
        if request.opcode in _NAMING:
            raise refuse(errno.EPERM)
        if request.opcode == _CREATE:
            raise refuse(errno.EACCES)
        if request.opcode not in self._answers:
            raise refuse(errno.ENOSYS)
        node = self._tree.nodes[request.number or 1]
        if request.opcode == _WRITE and not again:
            self._meet_fault(node, request)
        return self._answers[request.opcode](node, request)

    def _meet_fault(self, node: Node, request: Request) -> None:
        fault = self._fault(node)
        if fault is None:
            return
        if fault == "stall":
            raise _Stalled
        if fault == "kill-before":
            _kill(request.pid)
            raise refuse(errno.EINTR)
        if fault == "kill-after":
            self._kill_after = request.pid
        else:
            raise refuse(getattr(errno, fault))

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):  # interrupted, or not cached
            os.write(self._fd, message)

    def _end_writes(self) -> None:
        while True:
            stale, events, reply = self._ending.get()
            for parent, name in stale:
                raw = name.encode()
                body = struct.pack("<QII", parent, len(raw), 0) + raw + b"\0"
                with contextlib.suppress(OSError):
                    self._send(struct.pack("<IiQ", 16 + len(body), _INVAL_ENTRY, 0) + body)
            self._send_events(events)
            self._send(reply)

    # -- answers

    def _keep(self, value: object) -> int:
        self._handles[self._next_handle] = value
        self._next_handle += 1
        return self._next_handle - 1

    def _lookup(self, node: Node, request: Request) -> bytes:
        child = node.child(request.body.rstrip(b"\0").decode("utf-8", "surrogateescape"))
        if child is None:  # number 0: a "not there" that the kernel may cache
            return _ENTRY.pack(0, 0, _FOREVER, 0, 0, 0) + bytes(_ATTR.size)
        return _ENTRY.pack(child.number, 0, _FOREVER, _FOREVER, 0, 0) + attributes(child)

    def _getattr(self, node: Node, _request: Request) -> bytes:
        return struct.pack("<QII", _FOREVER, 0, 0) + attributes(node)

    def _open(self, node: Node, request: Request) -> bytes:
        access = struct.unpack_from("<I", request.body)[0] & os.O_ACCMODE
        writes = node.write or node.write_at
        if (access != os.O_WRONLY and not node.read) or (access != os.O_RDONLY and not writes):
            raise refuse(errno.EACCES)  # sysfs checks this for root too
        if node.is_exclusive:
            if node.opened is not None:
                raise refuse(errno.EBUSY)
            node.opened = access
        return struct.pack("<QII", self._keep(None), _DIRECT_IO | _NOFLUSH, 0)

    def _read(self, node: Node, request: Request) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", request.body)
        if not node.is_alive or node.read is None:
            raise refuse(errno.ENODEV)
        if offset == 0 or self._handles.get(handle) is None:
            data = node.read()
            self._handles[handle] = data.encode() if isinstance(data, str) else bytes(data)
        kept = self._handles[handle]
        assert isinstance(kept, bytes)
        return kept[offset : offset + size]

    def _write(self, node: Node, request: Request) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", request.body)
        if not node.is_alive:
            raise refuse(errno.ENODEV)
        data = request.body[40 : 40 + size]
        if node.write_at is not None:
            node.write_at(data, offset)
        elif node.write is not None:
            node.write(data.decode("utf-8", "replace").strip())
        return struct.pack("<II", size, 0)

    def _release(self, node: Node, request: Request) -> bytes:
        node.opened = None
        self._handles.pop(struct.unpack_from("<Q", request.body)[0], None)
        return b""

    def _opendir(self, node: Node, _request: Request) -> bytes:
        entries = [(".", node.number, 4), ("..", (node.parent or node).number, 4)]
        entries += [
            (name, child.number, _KINDS[stat.S_IFMT(child.mode)])
            for name, child in node.entries.items()
        ]
        return struct.pack("<QII", self._keep(entries), 0, 0)

    def _readdir(self, _node: Node, request: Request) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", request.body)
        entries = self._handles[handle]
        assert isinstance(entries, list)
        return directory(entries[offset:], offset, size)


class _Stalled(Exception):
    """A write that is never answered: its writer waits until it is killed."""


def attributes(node: Node) -> bytes:
    """`struct fuse_attr`."""
    size = 0 if node.is_directory else node.size
    links = 2 if node.is_directory else 1
    return _ATTR.pack(node.number, size, 0, 0, 0, 0, 0, 0, 0, node.mode, links, 0, 0, 0, 4096, 0)


def directory(entries: Iterable[tuple[str, int, int]], offset: int, size: int) -> bytes:
    """As many `struct fuse_dirent` as fit into *size* bytes."""
    out = bytearray()
    for at, (name, number, kind) in enumerate(entries, offset + 1):
        raw = name.encode()
        record = struct.pack("<QQII", number, at, len(raw), kind) + raw
        record += bytes(-len(record) % 8)
        if len(out) + len(record) > size:
            break
        out += record
    return bytes(out)


def _init(_node: Node, request: Request) -> bytes:
    minor = min(struct.unpack_from("<II", request.body)[1], 31)
    return struct.pack("<IIIIHHIIHHI28x", 7, minor, 0, _CACHE_SYMLINKS, 16, 12, 65536, 1, 0, 0, 0)


def _kill(pid: int) -> None:
    # 0 is what the kernel says of a process that this pid namespace does not have.
    if pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
