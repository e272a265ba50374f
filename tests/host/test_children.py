"""Children that write and run for us: what they may inherit, and what is left when they hang."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from virtgpu.host import children, processes
from virtgpu.host.door import Child, Stuck
from virtgpu.host.state import try_lock

ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}


def wait_until(is_so: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    path = tmp_path / "attribute"
    path.write_text("0")
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    yield fd, path
    os.close(fd)


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes no more: a write to it waits as one in the kernel does."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    os.set_blocking(reader, False)
    yield reader, writer
    drain(reader)
    os.close(writer)
    os.close(reader)


def drain(reader: int) -> bytes:
    found = b""
    with suppress(BlockingIOError):
        while chunk := os.read(reader, 1 << 20):
            found += chunk
    return found


def write(fd: int, payload: bytes, deadline_s: float = 10, on_child: object = None) -> None:
    children.write(fd, payload, "sys/x", deadline_s=deadline_s, on_child=on_child)  # type: ignore[arg-type]


# -- writing


def test_the_child_writes_once_and_is_gone(target: tuple[int, Path]) -> None:
    fd, path = target
    seen: list[Child] = []
    write(fd, b"4b200000", on_child=seen.append)
    assert path.read_bytes() == b"4b200000"
    assert processes.started(seen[0].pid) is None


def test_its_pid_is_told_before_it_writes(target: tuple[int, Path]) -> None:
    fd, path = target
    content: list[bytes] = []

    def on_child(child: Child) -> None:
        assert processes.started(child.pid) == child.started
        time.sleep(0.1)
        content.append(path.read_bytes())

    write(fd, b"1", on_child=on_child)
    assert content == [b"0"]


def test_when_its_pid_cannot_be_noted_nothing_is_written(target: tuple[int, Path]) -> None:
    fd, path = target
    seen: list[Child] = []

    def on_child(child: Child) -> None:
        seen.append(child)
        raise OSError(errno.ENOSPC, "the journal is full")

    with pytest.raises(OSError, match="journal"):
        write(fd, b"1", on_child=on_child)
    assert path.read_bytes() == b"0"
    assert processes.started(seen[0].pid) is None


@pytest.mark.parametrize(
    ("name", "flags", "number"),
    [("/dev/full", os.O_WRONLY, errno.ENOSPC), ("/dev/null", os.O_RDONLY, errno.EBADF)],
)
def test_the_errno_of_the_write_comes_through(name: str, flags: int, number: int) -> None:
    fd = os.open(name, flags)
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT011, the errno is looked at
            write(fd, b"1")
    finally:
        os.close(fd)
    assert caught.value.errno == number
    assert caught.value.filename == "sys/x"


def test_a_large_payload_arrives_whole(target: tuple[int, Path]) -> None:
    fd, path = target
    write(fd, b"g" * 60_000)
    assert path.read_bytes() == b"g" * 60_000


def test_a_child_that_somebody_ends_is_an_error(full_pipe: tuple[int, int]) -> None:
    with pytest.raises(OSError, match="ended with -9"):
        write(full_pipe[1], b"1", on_child=lambda child: os.kill(child.pid, signal.SIGKILL))


def test_a_write_that_hangs_is_left_alive_and_finishes_later(full_pipe: tuple[int, int]) -> None:
    reader, writer = full_pipe
    begin = time.monotonic()
    with pytest.raises(Stuck) as caught:
        write(writer, b"late", deadline_s=0.3)
    assert 0.3 <= time.monotonic() - begin < 5
    child = caught.value.child
    assert processes.started(child.pid) == child.started
    assert "sys/x" in str(caught.value)
    assert str(child.pid) in str(caught.value)
    written = drain(reader)
    wait_until(lambda: processes.started(child.pid) is None)
    assert (written + drain(reader)).endswith(b"late")


def test_a_parent_killed_before_the_word_has_written_nothing(tmp_path: Path) -> None:
    path = tmp_path / "attribute"
    path.write_text("0")
    code = """
import os, signal, sys
from virtgpu.host import children
def on_child(child):
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
fd = os.open(sys.argv[1], os.O_WRONLY)
children.write(fd, b"1", "x", deadline_s=10, on_child=on_child)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: processes.started(int(done.stdout)) is None)
    assert path.read_text() == "0"


def test_a_parent_killed_after_the_word_leaves_a_child_that_writes(tmp_path: Path) -> None:
    """Why the pid is in the journal: the write still happens."""
    fifo = tmp_path / "attribute"
    os.mkfifo(fifo)
    code = """
import os, signal, sys, threading
from virtgpu.host import children
reader = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
fd = os.open(sys.argv[1], os.O_WRONLY)
os.set_blocking(fd, False)
try:
    while True: os.write(fd, b"x" * 4096)
except BlockingIOError: pass
os.set_blocking(fd, True)
def on_child(child):
    print(child.pid, flush=True)
try:
    children.write(fd, b"late", "x", deadline_s=0.5, on_child=on_child)
except Exception:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    keeper = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(fifo)], capture_output=True, text=True, timeout=60
        )
        pid = int(done.stdout)
        assert done.returncode == -signal.SIGKILL
        assert processes.started(pid) is not None
        written = drain(keeper)
        wait_until(lambda: processes.started(pid) is None)
        assert (written + drain(keeper)).endswith(b"late")
    finally:
        os.close(keeper)


# -- running


def run(argv: list[str], timeout_s: float = 20, stdin: str | None = None, on_child: object = None):  # type: ignore[no-untyped-def]
    return children.run(
        argv, timeout_s=timeout_s, stdin=stdin, on_child=on_child, environment=ENVIRONMENT  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("told", [False, True])
def test_status_and_both_outputs_come_back(told: bool) -> None:
    seen: list[Child] = []
    argv = ["/bin/sh", "-c", "cat; echo out; echo err >&2; exit 3"]
    done = run(argv, stdin="in\n", on_child=seen.append if told else None)
    assert done == (3, "in\nout\n", "err\n")
    assert len(seen) == told


@pytest.mark.parametrize("told", [False, True])
def test_a_signal_is_a_negative_status(told: bool) -> None:
    done = run(["/bin/sh", "-c", "kill -TERM $$"], on_child=(lambda _: None) if told else None)
    assert done.rc == -signal.SIGTERM


def test_a_program_sees_a_clean_environment_and_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("VIRTGPU_HOST", "sim:x")
    done = run(["/usr/bin/env"])
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == ENVIRONMENT
    code = "import os; print(os.getsid(0) == os.getpid(), os.getcwd(), os.read(0, 9))"
    assert run(["/usr/bin/python3", "-c", code]).stdout == "True / b''\n"


def test_it_has_none_of_our_descriptors(tmp_path: Path) -> None:
    with (tmp_path / "ours").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        listed = run(["/bin/ls", "-l", "/proc/self/fd"]).stdout
    assert "ours" not in listed


def test_a_program_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "tool"
    broken.write_text("#!/nowhere/interpreter\n")
    broken.chmod(0o755)
    done = run([str(broken)], on_child=lambda _: None)
    assert done.rc == 127
    assert "No such file" in done.stderr
    with pytest.raises(FileNotFoundError):
        run([str(broken)])


def test_output_that_is_no_text_is_replaced() -> None:
    assert run(["/usr/bin/printf", r"a\377b"]).stdout == "a\ufffdb"


def test_a_program_that_hangs_is_left_alive_and_can_still_print(tmp_path: Path) -> None:
    """Nothing ends it: a tool that is killed half-way leaves half a change."""
    mark = tmp_path / "done"
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"read x < {go}; echo talking || exit 9; echo finished > {mark}"
    with pytest.raises(Stuck) as caught:
        run(["/bin/sh", "-c", script], timeout_s=0.3)
    child = caught.value.child
    assert processes.started(child.pid) == child.started
    go.write_text("go\n")
    wait_until(lambda: processes.started(child.pid) is None)
    assert mark.read_text() == "finished\n"


def test_a_lock_is_free_again_though_a_child_lives_on(
    tmp_path: Path, full_pipe: tuple[int, int]
) -> None:
    lock = try_lock(tmp_path / "lock", create=True)
    assert lock is not None
    with pytest.raises(Stuck):
        write(full_pipe[1], b"1", deadline_s=0.2)
    lock.close()
    again = try_lock(tmp_path / "lock")
    assert again is not None
    again.close()


def test_a_lock_of_somebody_elses_kind_is_not_inherited_either(tmp_path: Path) -> None:
    """Also a descriptor without close-on-exec, as a library may leave it."""
    path = tmp_path / "theirs"
    go = tmp_path / "go"
    os.mkfifo(go)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.set_inheritable(fd, True)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(Stuck) as caught:
        run(["/bin/sh", "-c", f"read x < {go}"], timeout_s=0.2)
    os.close(fd)
    other = os.open(path, os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    go.write_text("go\n")
    wait_until(lambda: processes.started(caught.value.child.pid) is None)
