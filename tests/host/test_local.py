"""The door to a machine, and to a tree that looks like one, which keeps off the machine."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from virtgpu.errors import HostError, Unsupported
from virtgpu.host import nvml, paths, processes
from virtgpu.host.door import Child, Door
from virtgpu.host.files import Files
from virtgpu.host.libvirt import connected
from virtgpu.host.local import LocalDoor


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sys/bus").mkdir(parents=True)
    (root / "sys/bus/attribute").write_text("0")
    (root / "proc").mkdir()
    (root / "opt/tools").mkdir(parents=True)
    (root / "usr/bin").mkdir(parents=True)
    return root


@pytest.fixture
def door(root: Path, tmp_path: Path) -> Iterator[LocalDoor]:
    with LocalDoor(root, state_dir=tmp_path / "state") as door:
        yield door


def program(path: Path, text: str = "echo from the tree") -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


# -- writing


def test_a_write_goes_out_at_once(door: LocalDoor, root: Path) -> None:
    door.write("sys/bus/attribute", "1")
    assert (root / "sys/bus/attribute").read_text() == "1"


def test_a_write_with_a_deadline_is_made_by_a_child(door: LocalDoor, root: Path) -> None:
    seen: list[Child] = []
    door.write("sys/bus/attribute", "2", deadline_s=20, on_child=seen.append)
    assert (root / "sys/bus/attribute").read_text() == "2"
    assert seen
    assert seen[0].pid != os.getpid()


@pytest.mark.parametrize("deadline", [None, 20.0])
@pytest.mark.parametrize(
    ("path", "number"),
    [("etc/passwd", errno.EPERM), ("sys/none", errno.ENOENT), ("sys/bus", errno.EPERM)],
)
def test_a_write_elsewhere_is_refused_before_any_child(
    door: LocalDoor, path: str, number: int, deadline: float | None
) -> None:
    seen: list[Child] = []
    with pytest.raises(OSError) as caught:  # noqa: PT011, the errno is looked at
        door.write(path, "1", deadline_s=deadline, on_child=seen.append)
    assert (caught.value.errno, seen) == (number, [])


def test_no_descriptor_is_left_open(door: LocalDoor) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    door.read("sys/bus/attribute")
    before = count()
    for _ in range(5):
        door.read("sys/bus/attribute")
        door.listdir("sys/bus")
        door.exists("sys/none")
        door.write("sys/bus/attribute", "1")
        door.write("sys/bus/attribute", "1", deadline_s=20)
        with pytest.raises(FileNotFoundError):
            door.write("sys/none", "1", deadline_s=20)
        with pytest.raises(FileNotFoundError):
            door.readlink("sys/none")
    assert count() == before


# -- programs


def test_programs_are_those_of_the_tree(
    door: LocalDoor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:relative:")
    assert door.which("ls") is None
    program(root / "usr/bin/ls")
    assert door.which("ls") == "/usr/bin/ls"
    assert door.run(["ls"], timeout_s=20).stdout == "from the tree\n"
    assert door.run(["/usr/bin/ls"], timeout_s=20).rc == 0
    with pytest.raises(FileNotFoundError):
        door.run(["cat"], timeout_s=1)
    with pytest.raises(FileNotFoundError):
        door.run(["../../../bin/cat"], timeout_s=1)


def test_other_places_are_looked_at_last(door: LocalDoor, root: Path) -> None:
    program(root / "opt/tools/sriov-manage")
    assert door.which("sriov-manage") is None
    assert door.which("sriov-manage", ["/opt/tools"]) == "/opt/tools/sriov-manage"


def test_a_program_gets_the_c_locale_and_nothing_of_ours(
    door: LocalDoor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(root / "usr/bin/show", "env")
    monkeypatch.setenv("VIRTGPU_HOST", "x")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    lines = door.run(["show"], timeout_s=20).stdout.splitlines()
    assert "LC_ALL=C" in lines
    assert not [line for line in lines if line.startswith(("VIRTGPU_", "LANG="))]


# -- NVML


def test_a_tree_never_asks_the_machines_nvml(
    door: LocalDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=pytest.fail))
    with door.nvml() as library:
        assert library is None


@pytest.mark.parametrize("error", [ImportError("libnvidia-ml.so.1"), OSError(), RuntimeError()])
def test_nvml_that_does_not_start_is_absent(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=fail))
    with nvml.session() as library:
        assert library is None


def test_nvml_without_its_module_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with nvml.session() as library:
        assert library is None


def test_nvml_is_shut_down_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    library = SimpleNamespace(
        nvmlInit=lambda: calls.append("init"), nvmlShutdown=lambda: calls.append("shutdown")
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    session = nvml.session()
    assert session.__enter__() is library
    error = ZeroDivisionError()
    assert not session.__exit__(type(error), error, None)
    assert calls == ["init", "shutdown"]


# -- libvirt


def test_without_libvirts_binding_it_is_unsupported_with_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(Unsupported) as caught, connected("test:///default"):
        pass
    assert "python3-libvirt" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "uri", ["nonsense://", "test://", "qemu+unix:///system?socket=/nowhere/sock"]
)
def test_a_libvirt_that_does_not_answer_is_a_host_error_with_its_own_sentence(
    uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libvirt")
    with pytest.raises(HostError) as caught, connected(uri):
        pass
    assert f"libvirt does not answer at {uri}: " in caught.value.message
    assert "\n" not in caught.value.message
    assert capfd.readouterr().err == ""  # by itself the library prints it as well


def test_a_connection_is_closed_afterwards(door: LocalDoor) -> None:
    libvirt = pytest.importorskip("libvirt")
    with door.libvirt("test:///default") as connection:
        assert connection.getType() == "TEST"
    with pytest.raises(libvirt.libvirtError):
        connection.getType()


# -- processes


def test_a_process_is_known_by_pid_and_start() -> None:
    started = processes.started(os.getpid())
    assert started is not None
    assert started > 0
    assert processes.started(os.getpid()) == started


def test_a_process_that_has_ended_is_none_also_before_it_is_collected() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert processes.started(pid) is None
    os.waitpid(pid, 0)
    assert processes.started(pid) is None


def test_a_name_with_blanks_and_parentheses_hides_no_field(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = "S " + " ".join(str(number) for number in range(4, 53))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"7 (a) R (b) {fields}\n")
    assert processes.started(7) == 22  # field 22, proc(5)


@contextmanager
def tree_with_init(root: Path, namespace: str | None) -> Iterator[Files]:
    folder = root / "proc/1/ns"
    folder.mkdir(parents=True)
    if namespace is not None:
        (folder / "pid").symlink_to(namespace)
    yield Files(root)


@pytest.mark.parametrize(
    ("namespace", "whole"),
    [("pid:[4026531836]", True), ("pid:[4026532201]", False), (None, False)],
)
def test_proc_is_whole_when_its_first_process_is_the_machines(
    root: Path, namespace: str | None, whole: bool
) -> None:
    """PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h is 0xEFFFFFFC."""
    with tree_with_init(root, namespace) as files:
        assert processes.sees_all(files) is whole


def test_a_simulated_machine_says_so_itself(root: Path) -> None:
    mark = root / paths.SIMULATED_MARK
    mark.parent.mkdir(parents=True)
    mark.write_text("1\n")
    assert processes.sees_all(Files(root))


# -- the rest


def test_it_is_a_door(door: LocalDoor) -> None:
    def take(door: Door) -> Door:
        return door

    assert take(door) is door
    missing = [name for name in vars(Door) if not name.startswith("_") and not hasattr(door, name)]
    assert missing == []


def test_the_environment_is_only_what_is_virtgpus(
    door: LocalDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTGPU_X", "1")
    monkeypatch.setenv("VIRTGP", "1")
    found: dict[str, Any] = dict(door.environment())
    assert found["VIRTGPU_X"] == "1"
    assert all(name.startswith("VIRTGPU_") for name in found)


def test_time_is_in_utc_and_uuids_are_fresh(door: LocalDoor) -> None:
    assert door.now().tzinfo is not None
    assert door.now().utcoffset().total_seconds() == 0  # type: ignore[union-attr]
    assert door.new_uuid() != door.new_uuid()
    begin = door.monotonic()
    door.sleep(0.01)
    assert door.monotonic() - begin >= 0.01
