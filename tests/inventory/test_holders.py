"""Who has a device open: found by group, cdev and node; unknown where it cannot be known."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import trees
from virtgpu.host.local import LocalDoor
from virtgpu.inventory.holders import Holders, scan
from virtgpu.model.gpu import Holder

PROCESSES = [
    {"pid": 4242, "comm": "qemu-system-x86", "fds": ["/dev/vfio/vfio", "/dev/vfio/63", "/dev/kvm"]},
    {"pid": 4243, "comm": "qemu-system-x86", "fds": ["/dev/iommu", "/dev/vfio/devices/vfio3"]},
    {"pid": 3100, "comm": "dcgm-exporter", "fds": ["/dev/nvidiactl", "/dev/nvidia0"]},
    {"pid": 3200, "comm": "Xorg", "fds": ["/dev/dri/card1", "/dev/dri/renderD128"]},
    {"pid": 1, "comm": "systemd", "fds": ["/dev/null", "socket:[17]", "/var/lib/dev/vfio/9.log"]},
]


def door(folder: Path, processes: list[dict[str, Any]] = PROCESSES) -> LocalDoor:
    root = trees.build(folder / "root", {"processes": processes})
    return LocalDoor(root, state_dir=folder / "state")


def held(folder: Path, *fds: str, comm: str = "x") -> Holders:
    return scan(door(folder, [{"pid": 7, "comm": comm, "fds": list(fds)}]))


QEMU = Holder(file="/dev/vfio/63", pid=4242, command="qemu-system-x86")


def test_a_vfio_device_is_held_by_who_has_its_group_or_its_cdev_open(tmp_path: Path) -> None:
    found = scan(door(tmp_path))
    assert found.known
    assert found.of_vfio(63, None) == (QEMU,)
    assert found.of_vfio(64, "vfio3") == (
        Holder(file="/dev/vfio/devices/vfio3", pid=4243, command="qemu-system-x86"),
    )
    assert found.of_vfio(6, "vfio30") == ()
    assert found.of_vfio(None, None) == ()


def test_a_gpu_on_nvidias_driver_is_held_by_its_node_and_by_the_one_for_all(
    tmp_path: Path,
) -> None:
    found = scan(door(tmp_path))
    files = {0: ["/dev/nvidia0", "/dev/nvidiactl"], 1: ["/dev/nvidiactl"]}
    for minor, names in files.items():
        holders = found.of_nvidia(minor)
        assert holders is not None
        assert [one.file for one in holders] == names
        assert {(one.pid, one.command) for one in holders} == {(3100, "dcgm-exporter")}


def test_with_an_unknown_minor_every_gpus_node_counts(tmp_path: Path) -> None:
    found = held(tmp_path, "/dev/nvidia7").of_nvidia(None)
    assert found is not None
    assert len(found) == 1


@pytest.mark.parametrize(
    ("node", "counts"),
    [
        ("nvidia-caps/nvidia-cap21", True),
        ("nvidia-vgpuctl", True),
        ("nvidia-modeset", False),
        ("nvidia-uvm", False),
        ("nvidia-caps-imex-channels/channel0", False),
        ("nvidia1", False),
    ],
)
def test_which_of_nvidias_nodes_opens_onto_gpu_0(tmp_path: Path, node: str, counts: bool) -> None:
    found = held(tmp_path, f"/dev/{node}").of_nvidia(0)
    assert found is not None
    assert bool(found) is counts


def test_a_display_is_held_by_who_has_its_drm_nodes_open(tmp_path: Path) -> None:
    found = scan(door(tmp_path))
    holders = found.of_dri(["card1", "renderD128"])
    assert holders is not None
    assert [one.file for one in holders] == ["/dev/dri/card1", "/dev/dri/renderD128"]
    assert found.of_dri(["card0", "renderD129"]) == ()


@pytest.mark.parametrize(
    "target",
    [
        "/dev/vfio/63 (deleted)",
        "/var/lib/containers/storage/overlay/1a/merged/dev/vfio/63",
        "/dev/vfio/noiommu-63",
    ],
)
def test_a_container_or_a_deleted_node_hides_no_holder(tmp_path: Path, target: str) -> None:
    found = held(tmp_path, target).of_vfio(63, None)
    assert found is not None
    assert found[0].pid == 7


def test_a_vfio_device_without_a_name_may_be_any(tmp_path: Path) -> None:
    """A guest whose group descriptor was closed after the device was taken from it."""
    found = held(tmp_path, "anon_inode:[vfio-device]")
    assert found.of_vfio(63, None) is None
    assert found.of_dri(["card0"]) == ()
    assert held(tmp_path / "2", "anon_inode:[vfio-device]", "/dev/vfio/9").of_vfio(63, None) == ()


def test_a_name_with_odd_bytes_is_read_and_one_that_is_gone_is_unknown(tmp_path: Path) -> None:
    found = held(tmp_path, "/dev/vfio/63", comm="a \udc80) b".encode("utf-8", "replace").decode())
    assert found.of_vfio(63, None) is not None
    root = trees.build(
        tmp_path / "2", {"processes": [{"pid": 7, "comm": "x", "fds": ["/dev/vfio/63"]}]}
    )
    (root / "proc/7/comm").unlink()
    holders = scan(LocalDoor(root, state_dir=tmp_path)).of_vfio(63, None)
    assert holders is not None
    assert holders[0].command is None


def test_the_threads_of_a_process_whose_first_has_ended_are_looked_at(tmp_path: Path) -> None:
    """/proc/PID/fd of an ended first thread is empty, and its other threads hold the files on."""
    root = trees.build(tmp_path / "root", {"processes": [{"pid": 7, "comm": "x", "fds": []}]})
    for task, fds in (("7", []), ("8", ["/dev/vfio/63"])):
        folder = root / "proc/7/task" / task / "fd"
        folder.mkdir(parents=True)
        for number, target in enumerate(fds):
            (folder / str(number)).symlink_to(target)
    holders = scan(LocalDoor(root, state_dir=tmp_path)).of_vfio(63, None)
    assert holders is not None
    assert holders[0].pid == 7


# -- unknown


class Refusing(LocalDoor):
    """One process that may not be looked into."""

    def __init__(self, folder: Path, error: int, *, then_gone: bool = False) -> None:
        super().__init__(
            trees.build(folder / "root", {"processes": PROCESSES}), state_dir=folder / "state"
        )
        links, exists = self.links, self.exists

        def refuse(path: str) -> dict[str, str]:
            if path == "proc/1/fd":
                raise OSError(error, os.strerror(error), path)
            return links(path)

        self.links = refuse
        self.exists = lambda path: exists(path) and not (then_gone and path == "proc/1")


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.EIO])
def test_one_process_that_cannot_be_looked_into_makes_an_empty_answer_unknown(
    tmp_path: Path, error: int
) -> None:
    found = scan(Refusing(tmp_path, error))
    assert not found.known
    assert found.of_vfio(64, None) is None
    assert found.of_dri(["card0"]) is None
    assert found.of_vfio(63, None) == (QEMU,)  # who was seen is no less a holder


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ESRCH, errno.EACCES])
def test_a_process_that_ends_meanwhile_holds_nothing(tmp_path: Path, error: int) -> None:
    found = scan(Refusing(tmp_path, error, then_gone=True))
    assert found.known
    assert found.of_vfio(64, None) == ()


def test_a_proc_that_does_not_show_every_process_makes_the_answer_unknown(tmp_path: Path) -> None:
    one = door(tmp_path)
    one.sees_all_processes = lambda: False  # type: ignore[method-assign]
    found = scan(one)
    assert found.of_vfio(64, None) is None
    assert found.of_vfio(63, None) == (QEMU,)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    root = trees.build(tmp_path / "root", {})
    (root / "proc").rmdir()
    assert scan(LocalDoor(root, state_dir=tmp_path)).of_vfio(63, None) is None


# -- this machine


def test_an_open_file_of_a_real_process_is_found(tmp_path: Path) -> None:
    """Through the kernel's own /proc: a file whose name ends as a VFIO group's does."""
    group = tmp_path / "dev/vfio/63"
    group.parent.mkdir(parents=True)
    group.touch()
    code = "import sys; f = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(group)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with LocalDoor(state_dir=tmp_path) as machine:
            holders = scan(machine).of_vfio(63, None)
        assert holders is not None
        assert process.pid in [one.pid for one in holders]
    finally:
        process.communicate()
    with LocalDoor(state_dir=tmp_path) as machine:
        again = scan(machine).of_vfio(63, None)
    assert process.pid not in [one.pid for one in again or ()]


def test_our_own_nvml_is_no_holder_and_our_own_cuda_is(tmp_path: Path) -> None:
    for fds, is_held in ((["/dev/nvidia0"], False), (["/dev/nvidia0", "/dev/nvidia-uvm"], True)):
        root = trees.build(
            tmp_path / str(is_held), {"processes": [{"pid": 7, "comm": "virtgpu", "fds": fds}]}
        )
        (root / "proc/self").symlink_to("7")
        found = scan(LocalDoor(root, state_dir=tmp_path)).of_nvidia(0)
        assert found is not None
        assert bool(found) is is_held
