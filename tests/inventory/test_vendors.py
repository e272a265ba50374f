"""What each maker's cards can do, and why some can do nothing: by capability, on small trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts, trees
from virtgpu.api import HostHandle
from virtgpu.host.local import LocalDoor
from virtgpu.model.gpu import Mechanism

ADDRESS = "0000:03:00.0"


def host(tmp_path: Path, driver: str | None = None, **files: str) -> HostHandle:
    base = f"/sys/bus/pci/devices/{ADDRESS}"
    tree: dict[str, Any] = {
        "files": {f"{base}/{name}": f"{text}\n" for name, text in files.items()},
        "links": {f"{base}/iommu_group": "/sys/kernel/iommu_groups/7"},
        "dirs": ["/sys/kernel/iommu_groups/7/devices"],
    }
    if driver:
        tree["links"][f"{base}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        tree["dirs"].append(f"/sys/bus/pci/drivers/{driver}")
    root = trees.build(tmp_path / "root", tree)
    return HostHandle(LocalDoor(root, state_dir=tmp_path / "state"), vendors=hosts.VENDORS)


def test_an_mi100_goes_whole_only(tmp_path: Path) -> None:
    (gpu,) = (
        host(tmp_path, "amdgpu", vendor="0x1002", device="0x738c", **{"class": "0x038000"})
        .read()
        .gpus
    )
    assert gpu.vendor == "amd"
    assert gpu.mechanisms == (Mechanism.WHOLE,)
    assert "no SR-IOV capability" in (gpu.whole_only or "")


def test_a_consumer_card_says_why_it_goes_whole_only(tmp_path: Path) -> None:
    gpu = hosts.handle("workstation-rtx4090", tmp_path).gpu("0000:01:00.0")
    assert gpu.mechanisms == (Mechanism.WHOLE,)
    assert "no SR-IOV capability" in (gpu.whole_only or "")


def test_a_bare_metal_driver_makes_no_vfs(tmp_path: Path) -> None:
    gpu = hosts.handle("dgx-a100-8x80gb", tmp_path).read().gpus[0]
    assert gpu.enable_vfs is None
    assert "makes no VFs" in (gpu.whole_only or "")


def test_another_makers_gpu_is_a_plain_pci_gpu(tmp_path: Path) -> None:
    (gpu,) = host(tmp_path, vendor="0x1db7", device="0xdc20", **{"class": "0x030000"}).read().gpus
    assert (gpu.vendor, gpu.mechanisms) == ("other", (Mechanism.WHOLE,))


@pytest.mark.parametrize(
    ("vendor", "device", "code"),
    [
        ("0x1a03", "0x2000", "0x030000"),  # ASPEED: the server's own console
        ("0x1da3", "0x1020", "0x120000"),  # an accelerator that is no GPU
        ("0x8086", "0x7d1d", "0x120000"),  # Intel's NPU
        ("0x10de", "0x22ba", "0x040300"),  # a card's audio function alone
        ("0x15b3", "0x101b", "0x020700"),
    ],
)
def test_what_is_no_gpu(tmp_path: Path, vendor: str, device: str, code: str) -> None:
    found = host(tmp_path, vendor=vendor, device=device, **{"class": code}).read()
    assert found.gpus == ()


@pytest.mark.parametrize("code", ["0x030000", "0x030200", "0x038000", "0x120000"])
def test_every_class_of_a_gpu(tmp_path: Path, code: str) -> None:
    (gpu,) = host(tmp_path, vendor="0x1002", device="0x74a1", **{"class": code}).read().gpus
    assert gpu.class_code == code[2:]


def test_a_gpu_without_a_group_is_blocked_with_the_reason(tmp_path: Path) -> None:
    found = host(tmp_path, vendor="0x1002", device="0x738c", **{"class": "0x038000"})
    (tmp_path / f"root/sys/bus/pci/devices/{ADDRESS}/iommu_group").unlink()
    (gpu,) = found.read().gpus
    assert gpu.mechanisms == ()
    assert "IOMMU" in (gpu.blocked or "")


def test_a_third_partys_vendor_is_found_and_a_broken_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from virtgpu import vendors

    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[virtgpu.vendors]\nacme = acme_gpus\nbroken = no_such_module\n"
    )
    (tmp_path / "acme_gpus.py").write_text(
        "name = 'acme'\ndef claims(f): return False\ndef probe(r, g): return {}\n"
        "def types(r, c, f): return None\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.warns(UserWarning, match="no_such_module"):
        found = vendors.load()
    assert [one.name for one in found] == ["acme", "amd", "intel", "nvidia", "other"]
