"""Children that do what can block, and outlive us when it does.

A write to sysfs can hang in the kernel for ever, and so can a vendor's tool. So a child does
it: in a session of its own, without our descriptors (hence without our locks), told to start only
after its pid has been written down. When its deadline passes it is left alive, for nothing
ends a process that waits in the kernel, and a tool that is killed half-way leaves half a change.
"""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from virtgpu.host.door import Child, Completed, OnChild, Stuck
from virtgpu.host.processes import started

# Both wait on the descriptor argv[1] for "g" and what follows. When we are killed before that,
# they read the end of the file and do nothing. Exit status: 90 not told to start, 100 done,
# above it 100 + errno; Linux' errnos end at 133.
_NOT_TOLD = 90
_DONE = 100
_WRITER = f"""
import os, sys
go, target = int(sys.argv[1]), int(sys.argv[2])
told = b''
while chunk := os.read(go, 65536):
    told += chunk
if told[:1] != b'g':
    os._exit({_NOT_TOLD})
try:
    os._exit({_DONE} if os.write(target, told[1:]) == len(told) - 1 else {_DONE + errno.EIO})
except OSError as error:
    os._exit({_DONE} + error.errno)
"""
_STARTER = f"""
import os, signal, sys
go = int(sys.argv[1])
if os.read(go, 1) != b'g':
    os._exit({_NOT_TOLD})
os.close(go)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    os.write(2, f'{{sys.argv[2]}}: {{error.strerror}}'.encode())
    os._exit(127)
"""

# Children that we have left: dropping the object would let subprocess reap and forget them.
_left: list[subprocess.Popen[bytes]] = []


class _Streams(NamedTuple):
    stdin: int = subprocess.DEVNULL
    stdout: int = subprocess.DEVNULL
    stderr: int = subprocess.DEVNULL


_SILENT = _Streams()
_NO_ENVIRONMENT = {"LC_ALL": "C"}


def write(
    fd: int, payload: bytes, what: str, *, deadline_s: float, on_child: OnChild | None
) -> None:
    """Have a child write *payload* to the open descriptor *fd* by one write(2).

    Raises OSError with the errno that the child met, `Stuck` after the deadline.
    """
    argv = ["-c", _WRITER, "{go}", str(fd), what]
    process = _start_told(argv, b"g" + payload, on_child, _NO_ENVIRONMENT, descriptors=(fd,))
    if not _ends_within(process, deadline_s):
        raise Stuck(what, _leave(process))
    if process.returncode == _DONE:
        return
    number = process.returncode - _DONE
    if number not in errno.errorcode:
        raise OSError(errno.EIO, f"the writing process ended with {process.returncode}", what)
    raise OSError(number, os.strerror(number), what)


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: str | None,
    on_child: OnChild | None,
    environment: Mapping[str, str],
) -> Completed:
    """Run the program *argv[0]* (a path) and collect what it says.

    Its output goes to files in memory, not pipes: a program that outlives us must not die of
    SIGPIPE half-way.
    """
    with _Memory(b"") as out, _Memory(b"") as err, _Memory((stdin or "").encode()) as given:
        streams = _Streams(given.fd, out.fd, err.fd)
        if on_child is None:
            process = _start(argv, environment, streams)
        else:
            told = ["-c", _STARTER, "{go}", *argv]
            process = _start_told(told, b"g", on_child, environment, streams)
        if not _ends_within(process, timeout_s):
            raise Stuck(" ".join(argv), _leave(process))
        return Completed(process.returncode, out.text(), err.text())


# -- starting


def _start_told(
    argv: list[str],
    word: bytes,
    on_child: OnChild | None,
    environment: Mapping[str, str],
    streams: _Streams = _SILENT,
    descriptors: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start Python on *argv*, let the caller write its pid down, then give it the word."""
    go, tell = os.pipe()
    try:
        python = [sys.executable or "/usr/bin/python3", "-IS"]
        filled = python + [str(go) if part == "{go}" else part for part in argv]
        process = _start(filled, environment, streams, (go, *descriptors))
    except BaseException:
        os.close(tell)
        raise
    finally:
        os.close(go)
    try:
        if on_child is not None:
            on_child(_child(process))
        with suppress(BrokenPipeError):  # its exit status tells why it has gone
            os.write(tell, word)
    except BaseException:
        os.close(tell)
        process.wait()  # it reads the end of the file, and does nothing
        raise
    os.close(tell)
    return process


def _start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    streams: _Streams,
    descriptors: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    _left[:] = [process for process in _left if process.poll() is None]
    return subprocess.Popen(
        list(argv),
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        env=dict(environment),
        pass_fds=descriptors,
        cwd="/",
        start_new_session=True,
    )


# -- waiting


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    fd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        ended = bool(poll.poll(max(seconds, 0) * 1000))
    finally:
        os.close(fd)
    if ended:
        process.wait()
    return ended


def _leave(process: subprocess.Popen[bytes]) -> Child:
    _left.append(process)
    return _child(process)


def _child(process: subprocess.Popen[bytes]) -> Child:
    return Child(process.pid, started(process.pid) or 0)


# -- output


class _Memory:
    """An unnamed file in memory with *content*, its offset at the start."""

    def __init__(self, content: bytes) -> None:
        self.fd = os.memfd_create("virtgpu", os.MFD_CLOEXEC)
        os.write(self.fd, content)
        os.lseek(self.fd, 0, os.SEEK_SET)

    def text(self) -> str:
        """All that was written, undecodable bytes replaced."""
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0).decode("utf-8", "replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self.fd)
