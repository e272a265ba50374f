"""A host whose files say anything: the inventory, the plan and the command line stay whole."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import hosts, trees
from virtgpu.errors import VirtgpuError

CASES = ("G01", "G03", "G08", "D05", "S05", "L11", "L12", "S06")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(CASES), st.integers(0, 1 << 30), st.binary(max_size=40))
def test_damaged_files_give_warnings_or_one_sentence(case: str, seed: int, garbage: bytes) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        host = hosts.case(case, Path(folder))
        files = [p for p in sorted((Path(folder) / "root/sys").rglob("*")) if p.is_file()]
        for path in chance.sample(files, min(3, len(files))):
            if chance.random() < 0.3:
                path.unlink()
            else:
                path.write_bytes(garbage)
        found = host.read()
        assert len({gpu.address for gpu in found.gpus}) == len(found.gpus)
        for request in ("gpu", "vf", "L40S-1Q", "8G:Q"):
            try:
                host.plan(request, guest="g")
            except VirtgpuError as error:
                assert error.message


@pytest.mark.parametrize("kind", ["loop", "outside", "directory", "huge"])
def test_links_that_lead_nowhere_or_outside(kind: str, tmp_path: Path) -> None:
    host = hosts.case("D05", tmp_path)
    device = tmp_path / "root/sys/bus/pci/devices/0000:09:00.0"
    vendor = device / "vendor"
    vendor.unlink()
    if kind == "loop":
        vendor.symlink_to("vendor")
    elif kind == "outside":
        secret = tmp_path / "secret"
        secret.write_text("0x10de\n")
        vendor.symlink_to(secret)
    elif kind == "directory":
        vendor.mkdir()
    else:
        vendor.write_text("0x10de" * 200_000)
    assert "0000:09:00.0" not in {gpu.address for gpu in host.read().gpus}


def test_the_trees_are_those_of_the_cases() -> None:
    for name in CASES:
        assert trees.case(name)["files"]
