"""Fifty at once on a GPU with sixteen slots: sixteen succeed, each time, and the others are told
that there is no room."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import hosts
from virtgpu.model.slice import SliceState

pytestmark = pytest.mark.long

CAPACITY = 6
REQUEST = "T4-1Q on 0000:3b:00.0"  # max_instance=16 in the driver's own description


@pytest.mark.parametrize("repeat", range(20))
def test_fifty_creates(repeat: int, tmp_path: Path) -> None:
    environment = os.environ | {"VIRTGPU_STATE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "virtgpu.cli", "--host", "sim:pve-2xt4-mdev", "slice", "create",
             REQUEST, "--for", f"g{number}"],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for number in range(50)
    ]  # fmt: skip
    errors = [one.communicate(timeout=300)[1] for one in processes]
    codes = collections.Counter(one.returncode for one in processes)
    assert codes == {0: 16, CAPACITY: 34}, set(errors)
    host = hosts.handle("pve-2xt4-mdev", tmp_path)
    ours = [one for one in host.slices() if one.state is not SliceState.FOREIGN]
    assert len(ours) == len({one.id for one in ours}) == 16
    assert {one.state for one in ours} == {SliceState.PRESENT}
    assert len({one.guest for one in ours}) == 16
