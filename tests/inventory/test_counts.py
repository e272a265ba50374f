"""How many files a reading of a host opens: it grows with GPUs, VFs and types, not with their
product. Counts, no times; docs/performance.md has the same numbers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bench import hosts
from tests.support.hosts import VENDORS
from virtgpu.api import HostHandle
from virtgpu.sim.door import SimDoor

TYPES = 29


class Counting(SimDoor):
    """A simulated host that counts what is opened on it: files, directories and links."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, state_dir=folder, environment={})
        self.opened: Counter[str] = Counter()

    def read(self, path: str) -> str:
        self.opened[path] += 1
        return super().read(path)

    def listdir(self, path: str) -> list[str]:
        self.opened[path] += 1
        return super().listdir(path)

    def readlink(self, path: str) -> str:
        self.opened[path] += 1
        return super().readlink(path)

    def links(self, path: str) -> dict[str, str]:
        self.opened[path] += 1
        return super().links(path)


def host(folder: Path, gpus: int, vfs: int, in_use: int = 0) -> tuple[HostHandle, Counting]:
    folder.mkdir(exist_ok=True)
    raw = hosts.profile(gpus, vfs, in_use)
    path = folder / f"{raw['name']}.json"
    path.write_text(json.dumps(raw))
    door = Counting(str(path), folder)
    return HostHandle(door, vendors=VENDORS), door


def opened(folder: Path, gpus: int, vfs: int, in_use: int = 0) -> int:
    handle, door = host(folder, gpus, vfs, in_use)
    handle.read()
    return door.opened.total()


def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "performance.md").read_text()


@pytest.mark.parametrize(("gpus", "vfs", "in_use"), [(2, 32, 0), (8, 16, 0), (8, 16, 64)])
def test_the_number_of_files_is_the_one_that_the_page_says(
    tmp_path: Path, gpus: int, vfs: int, in_use: int
) -> None:
    count = opened(tmp_path, gpus, vfs, in_use)
    assert f"| {gpus} GPUs, {vfs} VFs each, {TYPES} types, {in_use} slices | {count:,} |" in page()


@pytest.mark.parametrize("command", ["list", "slices", "render", "types"])
def test_a_command_reads_the_host_once(tmp_path: Path, command: str) -> None:
    handle, door = host(tmp_path, 2, 32)
    once = opened(tmp_path / "alone", 2, 32)
    door.opened.clear()
    {
        "list": handle.read,
        "slices": handle.slices,
        "render": lambda: handle.render("g", ["A40-12Q"]),
        "types": handle.types,
    }[command]()
    assert door.opened.total() == once


def test_what_is_opened_grows_with_vfs_and_types_and_not_with_their_product(
    tmp_path: Path,
) -> None:
    few, many = opened(tmp_path / "few", 1, 8), opened(tmp_path / "many", 1, 32)
    assert (many - few) / 24 <= 6


def test_a_vf_that_is_taken_is_asked_nothing_of_types(tmp_path: Path) -> None:
    handle, door = host(tmp_path, 1, 16, in_use=8)
    gpu = handle.read().gpus[0]
    taken = [vf.address for vf in gpu.vfs if vf.mdev is not None]
    asked = [path for path in door.opened if "/available_instances" in path]
    assert len(taken) == 8
    assert not [path for path in asked if any(one in path for one in taken)]
    assert all(vf.creatable == () for vf in gpu.vfs if vf.mdev is not None)


def test_the_texts_of_a_type_are_read_once_for_a_card(tmp_path: Path) -> None:
    handle, door = host(tmp_path, 2, 8)
    handle.read()
    assert sum(count for path, count in door.opened.items() if path.endswith("/name")) == 2 * TYPES


@pytest.mark.parametrize("in_use", [0, 1, 5, 8])
def test_each_vf_is_known_to_take_what_its_own_files_say(tmp_path: Path, in_use: int) -> None:
    handle, door = host(tmp_path, 1, 8, in_use)
    for vf in handle.read().gpus[0].vfs:
        base = f"sys/bus/pci/devices/{vf.address}/mdev_supported_types"
        said = {
            one for one in door.listdir(base) if int(door.read(f"{base}/{one}/available_instances"))
        }
        assert set(vf.creatable or ()) == said


class OneOff(SimDoor):
    """A host of which one VF takes nothing, against what its siblings say."""

    broken = ""

    def read(self, path: str) -> str:
        if f"/{self.broken}/" in path and path.endswith("/available_instances"):
            return "0\n"
        return super().read(path)


@pytest.mark.parametrize("broken", [0, 3])
def test_a_vf_that_says_otherwise_than_its_siblings_is_read_whole(
    tmp_path: Path, broken: int
) -> None:
    raw = hosts.profile(1, 4)
    path = tmp_path / "host.json"
    path.write_text(json.dumps(raw))
    door = OneOff(str(path), state_dir=tmp_path, environment={})
    door.broken = hosts.vf_address(raw["pci"][0], broken)
    vfs = HostHandle(door, vendors=VENDORS).read().gpus[0].vfs
    assert [bool(vf.creatable) for vf in vfs] == [index != broken for index in range(4)]
