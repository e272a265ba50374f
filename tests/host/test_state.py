"""Our own files: whole after a crash, private, not led astray by links; and the lock of a host."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from virtgpu.errors import AccessDenied, Conflict, HostError, NotFound
from virtgpu.host import state

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "ours"
    state.make_private(folder)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    )


# -- durable files


def test_files_and_folders_are_ours_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        state.write_durably(tmp_path / "a/b/file", b"x")
    finally:
        os.umask(old)
    assert mode(tmp_path / "a") == mode(tmp_path / "a/b") == 0o700
    assert mode(tmp_path / "a/b/file") == 0o600
    assert state.read(tmp_path / "a/b/file") == b"x"


def test_a_file_that_is_not_there_reads_as_none(folder: Path) -> None:
    assert state.read(folder / "none") is None
    assert state.read(folder / "no/folder") is None
    assert state.names(folder / "no") == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.write_durably(folder / "file", b"old")

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("write", "fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(HostError, match="No space left"):
                state.write_durably(folder / "file", b"new")
        assert state.read(folder / "file") == b"old"
        assert os.listdir(folder) == ["file"]  # noqa: PTH208


@pytest.mark.parametrize("moment", ["os.write", "os.fsync", "os.rename"])
def test_a_process_killed_in_a_write_leaves_the_old_file_whole(folder: Path, moment: str) -> None:
    state.write_durably(folder / "file", b"old")
    code = f"""
import os, signal, sys
from pathlib import Path
from virtgpu.host import state
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{moment} = die
state.write_durably(Path(sys.argv[1]), b"new" * 5000)
"""
    process = python(code, str(folder / "file"))
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    assert state.read(folder / "file") == b"old"
    assert state.names(folder) == ["file"]  # what was left half-way is nobody's


def test_a_reader_never_sees_half_a_file(folder: Path) -> None:
    contents = (b"a" * 50_000, b"b" * 70_000)
    state.write_durably(folder / "file", contents[0])
    ends = threading.Event()
    seen: set[bytes | None] = set()

    def look() -> None:
        while not ends.is_set():
            seen.add(state.read(folder / "file"))

    reader = threading.Thread(target=look)
    reader.start()
    for turn in range(100):
        state.write_durably(folder / "file", contents[turn % 2])
    ends.set()
    reader.join()
    assert seen <= set(contents)


def test_names_are_sorted_and_chosen_by_their_end(folder: Path) -> None:
    for name in ("b.json", "a.json", "c.journal"):
        state.write_durably(folder / name, b"")
    assert state.names(folder, ".json") == ["a.json", "b.json"]


def test_removing_twice_is_the_same_as_once(folder: Path) -> None:
    state.write_durably(folder / "file", b"")
    for _ in range(2):
        state.remove(folder / "file")
        assert state.names(folder) == []
    state.remove(folder / "no/such/folder")


# -- links and other people


def test_a_link_in_place_of_a_file_is_not_written_through(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "file").symlink_to(victim)
    with pytest.raises(AccessDenied, match="symbolic link"):
        state.read(folder / "file")
    with pytest.raises(AccessDenied, match="symbolic link"):
        state.try_lock(folder / "file", create=True)
    state.write_durably(folder / "file", b"ours")
    assert victim.read_text() == "precious"
    assert not (folder / "file").is_symlink()


def test_a_dangling_link_makes_no_file_elsewhere(folder: Path, tmp_path: Path) -> None:
    (folder / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AccessDenied):
        state.try_lock(folder / "lock", create=True)
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_in_place_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    for act in (
        lambda: state.make_private(link),
        lambda: state.write_durably(link / "file", b""),
        lambda: state.names(link),
    ):
        with pytest.raises(AccessDenied, match="symbolic link"):
            act()  # type: ignore[no-untyped-call]
    assert state.names(folder) == []


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(folder: Path, bits: int) -> None:
    folder.chmod(bits)
    for act in (
        lambda: state.make_private(folder),
        lambda: state.write_durably(folder / "file", b""),
        lambda: state.names(folder),
    ):
        with pytest.raises(AccessDenied, match="others can write"):
            act()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_to_is_not_believed(folder: Path, bits: int) -> None:
    state.write_durably(folder / "file", b"forged")
    (folder / "file").chmod(bits)
    with pytest.raises(AccessDenied, match="others can write") as caught:
        state.read(folder / "file")
    assert "chmod" in (caught.value.hint or "")
    with pytest.raises(AccessDenied):
        state.try_lock(folder / "file")


def test_a_file_or_folder_of_another_user_is_not_believed(folder: Path) -> None:
    state.write_durably(folder / "file", b"forged")
    os.chown(folder / "file", NOBODY, NOBODY)
    with pytest.raises(AccessDenied, match=f"user {NOBODY}"):
        state.read(folder / "file")
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(AccessDenied, match=f"user {NOBODY}"):
        state.names(folder)


def test_what_is_no_file_is_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "folder").mkdir()
    with pytest.raises(AccessDenied, match="not a regular file"):
        state.read(folder / "pipe")
    with pytest.raises(AccessDenied, match="not a regular file"):
        state.read(folder / "folder")


def test_a_saved_plan_is_believed_only_where_nobody_else_can_put_one(tmp_path: Path) -> None:
    inner = tmp_path / "open/inner"
    inner.mkdir(parents=True)
    plan = inner / "plan.json"
    plan.write_text("{}")
    state.check_private(plan)
    inner.parent.chmod(0o777)
    with pytest.raises(AccessDenied, match=re.escape(f"{inner.parent}")):
        state.check_private(plan)
    inner.parent.chmod(0o1777)  # as /tmp: others cannot rename what is ours
    state.check_private(plan)
    plan.chmod(0o666)
    with pytest.raises(AccessDenied):
        state.check_private(plan)
    with pytest.raises(NotFound):
        state.check_private(inner / "none")


def test_a_link_to_a_plan_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("{}")
    (tmp_path / "plan").chmod(0o666)
    (tmp_path / "link").symlink_to("plan")
    with pytest.raises(AccessDenied):
        state.check_private(tmp_path / "link")


# -- locked files


def test_a_locked_file_is_appended_to_read_and_cut(folder: Path) -> None:
    lock = state.try_lock(folder / "journal", create=True)
    assert lock is not None
    with lock:
        lock.append(b"one\n")
        lock.append(b"two\nhal")
        assert lock.read() == b"one\ntwo\nhal"
        lock.cut(8)
        lock.append(b"three\n")
        assert lock.read() == b"one\ntwo\nthree\n"
    assert state.read(folder / "journal") == b"one\ntwo\nthree\n"
    assert mode(folder / "journal") == 0o600


def test_one_holder_at_a_time(folder: Path) -> None:
    first = state.try_lock(folder / "journal", create=True)
    assert first is not None
    assert state.try_lock(folder / "journal", create=True) is None
    first.close()
    first.close()
    second = state.try_lock(folder / "journal")
    assert second is not None
    second.close()


def test_a_file_that_is_gone_cannot_be_locked(folder: Path) -> None:
    assert state.try_lock(folder / "journal") is None
    assert state.names(folder) == []


def test_a_file_removed_between_opening_and_locking_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two recoveries at once: the second must not work on a name that is nobody's any more."""
    state.write_durably(folder / "journal", b"")
    real = fcntl.flock

    def late(fd: int, what: int) -> None:
        (folder / "journal").unlink()
        real(fd, what)

    monkeypatch.setattr(fcntl, "flock", late)
    assert state.try_lock(folder / "journal") is None


# -- the host's lock

HOLD = """
import sys, time
from pathlib import Path
from virtgpu.host import state
with state.host_lock(Path(sys.argv[1]), what="create an mdev on 0000:51:00.4") as note:
    print("held", flush=True)
    if sys.stdin.readline(): note("write it down")
    print("noted", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_who_waits_in_vain_is_told_the_holders_pid_and_step(
    folder: Path, holder: subprocess.Popen[str]
) -> None:
    def refusal() -> Conflict:
        with pytest.raises(Conflict) as caught, state.host_lock(folder, timeout_s=0.2, what="x"):
            pass
        return caught.value

    begin = time.monotonic()
    first = refusal()
    assert 0.2 <= time.monotonic() - begin < 5
    assert f"process {holder.pid} (create an mdev on 0000:51:00.4)" in first.message
    assert str(holder.pid) in (first.hint or "")
    assert first.transient
    assert holder.stdin is not None
    assert holder.stdout is not None
    print(file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "noted\n"
    assert "(write it down)" in refusal().message


def test_the_lock_of_a_killed_process_is_free(folder: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with state.host_lock(folder, timeout_s=5, what="after it"):
        pass


def test_the_lock_is_free_afterwards_also_after_an_error(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), state.host_lock(folder, what="x"):
        raise ZeroDivisionError
    with state.host_lock(folder, timeout_s=0, what="y"):
        assert state.read(folder / "lock") == f"{os.getpid()} y\n".encode()
    assert state.read(folder / "lock") == b""


def test_waiting_ends_when_the_lock_is_let_go(folder: Path) -> None:
    lock = state.try_lock(folder / "lock", create=True)
    assert lock is not None
    timer = threading.Timer(0.2, lock.close)
    timer.start()
    with state.host_lock(folder, timeout_s=10, what="x"):
        pass
    timer.join()


def lives_on(start: Callable[[], int], folder: Path) -> None:
    """The lock is free after its block, though the child started in it lives."""
    with state.host_lock(folder, what="x"):
        pid = start()
    try:
        with state.host_lock(folder, timeout_s=2, what="y"):
            os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_forked_child_does_not_hold_it_on(folder: Path) -> None:
    def start() -> int:
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(told, b".")
            signal.pause()
            os._exit(0)
        os.read(ready, 1)
        os.close(ready)
        os.close(told)
        return pid

    lives_on(start, folder)


def test_a_program_started_meanwhile_does_not_hold_it_on(folder: Path) -> None:
    lives_on(lambda: os.posix_spawn("/bin/sleep", ["sleep", "60"], {}), folder)


def test_a_lock_in_a_folder_of_others_is_not_taken(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(AccessDenied), state.host_lock(folder, what="x"):
        pass


# -- files that a person names


def test_a_given_file_is_read_or_named(tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(b"x")
    assert state.read_given(str(tmp_path / "plan"), "plan file", hint="h") == b"x"
    for name in (str(tmp_path / "none"), "a\0b"):
        with pytest.raises(NotFound, match="there is no plan file"):
            state.read_given(name, "plan file", hint="h")
    with pytest.raises(HostError, match="cannot be read: Is a directory"):
        state.read_given(str(tmp_path), "plan file", hint="h")


def test_a_file_that_was_asked_for_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    state.write_given(str(tmp_path / "plan"), b"one", "plan")
    state.write_given(str(tmp_path / "plan"), b"two", "plan")
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
    assert (tmp_path / "plan").read_bytes() == b"two"
    with pytest.raises(HostError, match="cannot be written"):
        state.write_given(str(tmp_path / "no/plan"), b"", "plan")


def test_the_state_is_where_the_environment_the_system_or_the_user_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VIRTGPU_STATE_DIR", "/srv/state")
    assert state.default_state_dir() == Path("/srv/state")
    monkeypatch.delenv("VIRTGPU_STATE_DIR")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state.default_state_dir() == Path("/var/lib/virtgpu")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state.default_state_dir() == Path("/home/u/.local/state/virtgpu")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state.default_state_dir() == Path("/home/u/.local/state/virtgpu")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert state.default_state_dir() == Path("/s/virtgpu")


# -- what a killed writer leaves

_WRITER = """
import os, sys
from pathlib import Path
from virtgpu.host import state
def stop(*_, **__): print("x", flush=True); sys.stdin.read()
if sys.argv[1] == "write":
    os.rename = stop
    state.write_durably(Path(sys.argv[2]), b"x")
else:
    os.link = stop
    state.create_locked(Path(sys.argv[2]), b"x")
"""


@pytest.mark.parametrize("verb", ["write", "create"])
def test_a_file_without_a_name_goes_once_its_writer_is_dead(folder: Path, verb: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, verb, str(folder / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.read(1)
        state.sweep(folder)
        assert len(list(folder.iterdir())) == 1  # its writer lives
        writer.kill()
    state.sweep(folder)
    assert list(folder.iterdir()) == []


def test_sweeping_disturbs_no_writer(folder: Path) -> None:
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            state.sweep(folder)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(300):
            state.write_durably(folder / "a", str(number).encode())
            lock = state.create_locked(folder / f"{number}", b"x")
            assert lock is not None
            lock.close()
    finally:
        done.set()
        sweeper.join()
    assert state.read(folder / "a") == b"299"
    assert len(list(folder.iterdir())) == 301
