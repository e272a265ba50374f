"""Every shipped profile and every kind of request that it can serve, with the real libvirtd:
planned, made, defined against libvirt's own schema, started, looked at while it runs, undone.

A negative twin (its device's address off by one) must not start. libvirt before 9.7 cannot start a
guest on a vendor's own VFIO driver: there, and only there, such a cell is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.real.cells import CELLS
from tests.support import machine
from virtgpu.sim import profiles

pytestmark = pytest.mark.real

_FIRST_WITH_VARIANTS = 9_007_000


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What libvirt learns of QEMU, kept between the machines of one run."""
    return tmp_path_factory.mktemp("cache")


def test_the_table_has_every_shipped_profile() -> None:
    assert set(CELLS) == set(profiles.names())


@pytest.mark.parametrize("profile", profiles.names())
def test_cells(profile: str, tmp_path: Path, cache: Path) -> None:
    done = machine.run(
        profile,
        sys.executable,
        "-m",
        "tests.real.inside",
        profile,
        state=tmp_path,
        options=("--cache", str(cache)),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    cells: dict[str, dict[str, Any]] = {one["cell"]: one for one in found["results"]}
    for one in cells.values():
        assert "error" not in one, one.get("trace")
    assert cells["inventory"]["different"] == []
    for request in CELLS[profile]:
        cell = cells[request]
        print(f"{profile} {request}: {cell['outcome']}")
        if cell["outcome"] == "refused":
            assert found["libvirt"] < _FIRST_WITH_VARIANTS
            assert "9.7.0 or newer can" in cell["reason"]
        else:
            assert cell["outcome"] == "started"
            assert cell["twin"], "the negative twin started"
