"""The root of a host cannot be left, device nodes are not opened, and only sysfs is written."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from virtgpu.errors import HostError
from virtgpu.host.files import Files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small host, and a secret beside its root."""
    root = tmp_path / "root"
    (root / "sys/devices/gpu").mkdir(parents=True)
    (root / "sys/bus").mkdir()
    (root / "proc/1").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "dev").mkdir()
    (root / "sys/devices/gpu/vendor").write_text("0x10de\n")
    (root / "proc/1/comm").write_text("init\n")
    (root / "etc/secret").write_text("inside\n")
    (tmp_path / "secret").write_text("outside\n")
    return root


@pytest.fixture
def files(root: Path) -> Files:
    return Files(root)


def refused(act: Callable[[], object]) -> int:
    with pytest.raises(OSError) as caught:  # noqa: PT011, the errno is looked at
        act()
    assert caught.value.errno is not None
    return caught.value.errno


# -- leaving the root


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "sys/../etc/secret",
        "sys/../../secret",
        "sys/devices/..",
        "./sys",
        "sys/./devices",
        "sys//devices",
        "/etc/secret",
        "",
        "sys/devices/gpu/vendor\0",
    ],
)
def test_only_a_plain_path_below_the_root_is_taken(files: Files, path: str) -> None:
    for act in (files.read, files.listdir, files.readlink, files.open_to_write):
        assert refused(lambda act=act: act(path)) in (errno.EACCES, errno.EPERM)  # type: ignore[misc]
    assert refused(lambda: files.exists(path)) == errno.EACCES


@pytest.mark.parametrize(
    "target", ["/etc/secret", "../../etc/secret", "../../../secret", "../../proc/1/comm"]
)
def test_a_link_out_of_sys_is_not_followed(files: Files, root: Path, target: str) -> None:
    (root / "sys/bus/out").symlink_to(target)
    assert refused(lambda: files.read("sys/bus/out")) in (errno.EXDEV, errno.ENOENT)
    assert refused(lambda: files.open_to_write("sys/bus/out")) in (errno.EXDEV, errno.ENOENT)
    assert files.readlink("sys/bus/out") == target


def test_a_folder_below_sys_that_is_a_link_out_is_not_entered(files: Files, root: Path) -> None:
    (root / "sys/bus/etc").symlink_to("../../etc")
    assert refused(lambda: files.read("sys/bus/etc/secret")) == errno.EXDEV
    assert refused(lambda: files.listdir("sys/bus/etc")) == errno.EXDEV


def test_sys_itself_may_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real/sys").mkdir(parents=True)
    (tmp_path / "real/sys/x").write_text("1")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/sys").symlink_to("../real/sys")
    assert refused(lambda: Files(tmp_path / "root").read("sys/x")) == errno.ELOOP


def test_an_absolute_link_elsewhere_means_the_hosts_own_root(files: Files, root: Path) -> None:
    (root / "etc/link").symlink_to("/etc/secret")
    (root / "etc/up").symlink_to("../../../../secret")
    assert files.read("etc/link") == "inside\n"
    assert not files.exists("etc/up")


def test_links_within_sys_are_followed_relative_or_absolute(files: Files, root: Path) -> None:
    (root / "sys/bus/one").symlink_to("../devices/gpu")
    (root / "sys/bus/two").symlink_to("/sys/devices/gpu")
    assert files.read("sys/bus/one/vendor") == "0x10de\n"
    assert files.read("sys/bus/two/vendor") == "0x10de\n"
    assert files.listdir("sys/bus/two") == ["vendor"]


def test_a_link_that_the_kernel_makes_up_is_not_followed() -> None:
    """/proc/self/root and /proc/self/cwd lead anywhere."""
    machine = Files(Path("/"))
    pid = os.getpid()
    assert refused(lambda: machine.listdir(f"proc/{pid}/root")) == errno.ELOOP
    assert machine.readlink(f"proc/{pid}/root") == "/"


def test_a_renamed_root_is_still_the_same_host(files: Files, root: Path) -> None:
    root.rename(root.parent / "elsewhere")
    assert files.read("sys/devices/gpu/vendor") == "0x10de\n"


def test_a_root_that_is_not_there_is_a_host_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="nowhere"):
        Files(tmp_path / "nowhere")


def test_a_door_that_was_closed_opens_nothing(root: Path) -> None:
    files = Files(root)
    files.close()
    files.close()
    assert refused(lambda: files.read("etc/secret")) == errno.EBADF


def test_a_kernel_without_openat2_is_a_host_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    from virtgpu.host import openat2

    def missing(*_: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(openat2, "open_at", missing)
    with pytest.raises(HostError) as caught:
        Files(root)
    assert "5.6" in (caught.value.hint or "")


# -- what is read


def test_a_file_is_read_whole_whatever_its_size(files: Files, root: Path) -> None:
    for size in (0, 1, 4095, 4096, 4097, 70_000):
        (root / "sys/devices/gpu/big").write_text("x" * size)
        assert len(files.read("sys/devices/gpu/big")) == size


def test_bytes_that_are_no_text_are_replaced(files: Files, root: Path) -> None:
    (root / "sys/devices/gpu/label").write_bytes(b"a\xff\0b")
    assert files.read("sys/devices/gpu/label") == "a\ufffd\0b"


def test_a_pipe_or_socket_is_never_opened(files: Files, root: Path) -> None:
    """Opening a pipe would wait for its other end; opening a device can already do something."""
    os.mkfifo(root / "dev/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(root / "dev")  # a socket's path is short
        listener.bind("socket")
        os.chdir(here)
        for name in ("dev/pipe", "dev/socket"):
            assert refused(lambda name=name: files.read(name)) == errno.EPERM  # type: ignore[misc]
            assert files.exists(name)


def test_a_device_node_of_the_machine_is_never_opened() -> None:
    machine = Files(Path("/"))
    assert machine.exists("dev/null")
    assert refused(lambda: machine.read("dev/null")) == errno.EPERM
    assert refused(lambda: machine.open_to_write("dev/null")) == errno.EPERM


@pytest.mark.parametrize(
    ("act", "path", "number"),
    [
        ("read", "sys/devices/none", errno.ENOENT),
        ("read", "sys/devices/gpu", errno.EISDIR),
        ("read", "etc", errno.EISDIR),
        ("read", "sys/devices/gpu/vendor/x", errno.ENOTDIR),
        ("listdir", "sys/devices/gpu/vendor", errno.ENOTDIR),
        ("listdir", "sys/none", errno.ENOENT),
        ("readlink", "sys/devices/gpu/vendor", errno.EINVAL),
        ("readlink", "sys/none", errno.ENOENT),
        ("open_to_write", "sys/none", errno.ENOENT),
        ("open_to_write", "sys/devices/gpu", errno.EPERM),
        ("open_to_write", "etc/secret", errno.EPERM),
        ("open_to_write", "proc/1/comm", errno.EPERM),
        ("open_to_write", "sys", errno.EPERM),
    ],
)
def test_each_refusal_has_the_kernels_errno_and_the_path(
    files: Files, act: str, path: str, number: int
) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011, the errno is looked at
        getattr(files, act)(path)
    assert caught.value.errno == number
    assert str(caught.value.filename) == path


def test_a_dangling_link_or_a_loop_leads_to_nothing(files: Files, root: Path) -> None:
    (root / "sys/bus/gone").symlink_to("../devices/none")
    (root / "sys/bus/loop").symlink_to("loop")
    assert not files.exists("sys/bus/gone")
    assert not files.exists("sys/bus/loop")
    assert files.readlink("sys/bus/gone") == "../devices/none"


def test_the_links_of_a_folder_are_told_and_nothing_else_in_it(files: Files, root: Path) -> None:
    (root / "proc/1/fd").mkdir()
    (root / "proc/1/fd/0").symlink_to("socket:[17]")
    (root / "proc/1/fd/1").symlink_to("/dev/vfio/63")
    (root / "proc/1/fd/file").write_text("")
    assert files.links("proc/1/fd") == {"0": "socket:[17]", "1": "/dev/vfio/63"}
    assert refused(lambda: files.links("proc/2/fd")) == errno.ENOENT
    assert refused(lambda: files.links("../proc/1/fd")) == errno.EACCES


# -- what is written


def test_nothing_is_created_by_a_write(files: Files, root: Path) -> None:
    before = sorted(root.rglob("*"))
    refused(lambda: files.open_to_write("sys/devices/gpu/new"))
    assert sorted(root.rglob("*")) == before


def test_a_write_does_not_shorten_the_file(files: Files, root: Path) -> None:
    """sysfs has no length, and a file of somebody's tree is not emptied before the write."""
    fd = files.open_to_write("sys/devices/gpu/vendor")
    os.write(fd, b"1x")
    os.close(fd)
    assert (root / "sys/devices/gpu/vendor").read_text() == "1x10de\n"


def test_the_only_file_outside_of_sysfs_is_the_lock_of_sriov_manage(
    files: Files, root: Path
) -> None:
    gpu = root / "proc/driver/nvidia/gpus/0000:51:00.0"
    gpu.mkdir(parents=True)
    (gpu / "unbindLock").write_text("0\n")
    (gpu / "power").write_text("0\n")
    os.close(files.open_to_write("proc/driver/nvidia/gpus/0000:51:00.0/unbindLock"))
    for path in ("power", "unbindLock/x", "../unbindLock"):
        name = f"proc/driver/nvidia/gpus/0000:51:00.0/{path}"
        assert refused(lambda name=name: files.open_to_write(name)) == errno.EPERM  # type: ignore[misc]


# -- programs


def test_a_program_is_an_executable_file_of_this_host(files: Files, root: Path) -> None:
    (root / "bin").mkdir()
    tool = root / "bin/tool"
    tool.write_text("#!/bin/sh\n")
    assert files.program("bin/tool") is None
    tool.chmod(0o755)
    assert files.program("bin/tool") == str(tool)
    assert files.program("bin") is None
    (root / "bin/sh").symlink_to("/bin/bash")
    assert files.program("bin/sh") is None  # the machine has one, this host does not
