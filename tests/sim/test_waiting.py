"""A write that does not come back: a child lives on in its place, as on a real machine."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from virtgpu.host.door import Child, Stuck
from virtgpu.sim.door import SimDoor

NUMVFS = "sys/bus/pci/devices/0000:af:00.0/sriov_numvfs"


def stall(tmp_path: Path) -> tuple[SimDoor, Stuck, list[Child]]:
    door = SimDoor(
        "intel-flex140x2-off", state_dir=tmp_path, environment={"VIRTGPU_SIM_FAULTS": "1:stall"}
    )
    children: list[Child] = []
    with pytest.raises(Stuck) as caught:
        door.write(NUMVFS, "2", deadline_s=0.1, on_child=children.append)
    return door, caught.value, children


def test_a_stalled_write_is_a_living_process_that_never_writes(tmp_path: Path) -> None:
    door, stuck, children = stall(tmp_path)
    assert stuck.child == children[-1]
    assert door.process_started(stuck.child.pid) == stuck.child.started
    assert door.read(NUMVFS) == "0\n"
    # It ends with the machine, not before.
    shutil.rmtree(tmp_path / "sim")
    deadline = time.monotonic() + 10
    while door.process_started(stuck.child.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert door.process_started(stuck.child.pid) is None


def test_without_a_deadline_waiting_is_busy(tmp_path: Path) -> None:
    door = SimDoor(
        "intel-flex140x2-off", state_dir=tmp_path, environment={"VIRTGPU_SIM_FAULTS": "1:stall"}
    )
    with pytest.raises(OSError, match=os.strerror(16)):
        door.write(NUMVFS, "2")


@pytest.mark.parametrize("spec", ["x", "1:", ":EIO", "1:ENOTHING", "1:EIO;2:EIO", "-1:EIO"])
def test_a_fault_that_cannot_be_read_is_a_usage_error(spec: str) -> None:
    from virtgpu.errors import Usage
    from virtgpu.sim import faults

    with pytest.raises(Usage, match="is no fault"):
        faults.parse(spec)
