"""Every shipped profile says what a correct inventory finds (`expect`): with NVML, by nvidia-smi
alone, and by sysfs alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts
from virtgpu.inventory import read_host
from virtgpu.model.gpu import Gpu
from virtgpu.sim import profiles

NAMES = profiles.names()


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = profiles.load(name).raw.get("expect") or {}
    return found


def is_called(gpu_type: Any, short: str) -> bool:
    name = gpu_type.name or gpu_type.id
    return bool(
        name == short
        or name.removeprefix("NVIDIA ").removeprefix("GRID ") == short
        or name.endswith(f" {short}")
    )


def available(gpu: Gpu, short: str) -> int | None:
    """How many more of a type; one that is not offered at all counts as none."""
    found = [one.available for one in gpu.offers if is_called(one.type, short)]
    return found[0] if found else 0


@pytest.mark.parametrize("name", NAMES)
def test_the_inventory_is_what_the_profile_expects(name: str, tmp_path: Path) -> None:
    host = read_host(hosts.Spy(name, tmp_path), hosts.VENDORS)
    assert host.warnings == ()
    for address, wanted in expected(name).items():
        gpu = host.gpu(address)  # type: ignore[arg-type]
        if gpu is None:
            continue
        if "mechanisms" in wanted:
            assert [one.value for one in gpu.mechanisms] == wanted["mechanisms"], address
        if "vfs" in wanted:
            assert len(gpu.vfs) == wanted["vfs"]["total"]
        if "mixed" in wanted:
            assert gpu.mixed_size is wanted["mixed"]
        if "free_gb" in wanted:
            assert gpu.framebuffer_left_mib == wanted["free_gb"] * 1024
        for short, count in wanted.get("free", {}).items():
            assert available(gpu, short) == count, (address, short)


@pytest.mark.parametrize("name", NAMES)
def test_nvidia_smi_says_the_same_as_nvml(name: str, tmp_path: Path) -> None:
    with_nvml = read_host(hosts.Spy(name, tmp_path), hosts.VENDORS)
    without = read_host(hosts.Spy(name, tmp_path, has_nvml=False), hosts.VENDORS)
    assert without.warnings == ()
    for one, other in zip(with_nvml.gpus, without.gpus, strict=True):
        assert one.name == other.name
        assert one.mixed_size == other.mixed_size
        assert mig(one) == mig(other)


def mig(gpu: Gpu) -> Any:
    """MIG facts without the order in which profiles are told."""
    if gpu.mig is None:
        return None
    found = {(one.id, one.name, one.starts, one.free) for one in gpu.mig.profiles}
    return gpu.mig.current, gpu.mig.pending, found, gpu.mig.instances


@pytest.mark.parametrize("name", NAMES)
def test_without_any_tool_everything_in_sysfs_is_still_right(name: str, tmp_path: Path) -> None:
    class Bare(hosts.Spy):
        def which(self, name: str, places: Any = ()) -> str | None:
            return None

    full = read_host(hosts.Spy(name, tmp_path), hosts.VENDORS)
    bare = read_host(Bare(name, tmp_path, has_nvml=False), hosts.VENDORS)
    for one, other in zip(full.gpus, bare.gpus, strict=True):
        for field in (
            "address",
            "driver",
            "numa_node",
            "iommu_group",
            "functions",
            "group_others",
            "bridges",
            "sriov",
            "mdevs",
            "holders",
            "boot_console",
        ):
            assert getattr(one, field) == getattr(other, field), (one.address, field)
        assert [vf.address for vf in one.vfs] == [vf.address for vf in other.vfs]
        assert [vf.vgpu_type for vf in one.vfs] == [vf.vgpu_type for vf in other.vfs]


def test_gpu_instances_leave_what_the_profile_says(tmp_path: Path) -> None:
    host = read_host(hosts.Spy("hgx-h100-8x-mig", tmp_path), hosts.VENDORS)
    for index, wanted in expected("hgx-h100-8x-mig")["free"].items():
        mode = host.gpus[int(index)].mig
        assert mode is not None
        free = {one.name: one.free for one in mode.profiles}
        assert {k: free[k] for k in wanted if k != "note"} == {
            k: v for k, v in wanted.items() if k != "note"
        }


def test_pending_is_not_on(tmp_path: Path) -> None:
    gpu = read_host(hosts.Spy("hgx-h100-8x-mig", tmp_path), hosts.VENDORS).gpus[4]
    assert gpu.mig is not None
    assert (gpu.mig.current, gpu.mig.pending) == (False, True)


def test_vfs_come_by_number_and_not_by_text(tmp_path: Path) -> None:
    gpu = read_host(hosts.Spy("rtxpro6000-domain1", tmp_path), hosts.VENDORS).gpus[0]
    names = expected("rtxpro6000-domain1")["vf_names"]
    assert {f"virtfn{vf.index}": vf.address for vf in gpu.vfs}.items() >= names.items()
    assert [vf.index for vf in gpu.vfs] == list(range(48))


def test_neighbours_on_one_switch_share_a_bridge(tmp_path: Path) -> None:
    host = read_host(hosts.Spy("dgx-a100-8x80gb", tmp_path), hosts.VENDORS)
    for one, other in expected("dgx-a100-8x80gb")["pairs"]:
        shared = set(host.gpus[one].bridges) & set(host.gpus[other].bridges)
        assert shared
    assert not set(host.gpus[0].bridges) & set(host.gpus[2].bridges)


def test_a_jetson_has_a_reason_and_no_gpu(tmp_path: Path) -> None:
    host = read_host(hosts.Spy("jetson-orin", tmp_path), hosts.VENDORS)
    assert host.gpus == ()
    (one,) = host.platform_gpus
    assert "no PCI function" in one.reason


def test_the_host_reads_as_json_and_back(tmp_path: Path) -> None:
    from virtgpu.model import codec
    from virtgpu.model.gpu import Host

    for name in NAMES:
        host = read_host(hosts.Spy(name, tmp_path), hosts.VENDORS)
        assert codec.decode(codec.encode(host), Host, name) == host
        json.loads(codec.encode(host))
