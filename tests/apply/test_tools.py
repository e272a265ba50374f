"""What NVIDIA's tools answer, and what we make of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts
from virtgpu.apply import nvidia_tools
from virtgpu.errors import Conflict, HostError
from virtgpu.host.door import Completed
from virtgpu.model.pci import PciAddress
from virtgpu.sim.state import Process

CARD = PciAddress.parse("0000:43:00.0")
# What sriov-manage prints while another client has the card (vGPU user guide; the word is from
# /proc/driver/nvidia/gpus/*/unbindLock).
LOCKED = Completed(1, "", "Cannot obtain unbindLock for 0000:43:00.0\n")


class Answering(hosts.Spy):
    """A host whose tools answer what the test says, one answer after the other."""

    def __init__(self, folder: Path, *answers: Completed) -> None:
        super().__init__("h100x2-mig-vgpu", folder)
        self.answers = list(answers)
        self.slept = 0.0

    def run(self, argv: Sequence[str], **options: Any) -> Completed:
        self.ran.append(tuple(argv))
        return self.answers.pop(0)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def test_a_short_use_by_another_client_is_waited_for(tmp_path: Path) -> None:
    door = Answering(tmp_path, LOCKED, LOCKED, LOCKED, LOCKED, Completed(0, "Enabling VFs\n", ""))
    nvidia_tools.sriov_manage(door, None, CARD, on=True)
    assert [argv[1:] for argv in door.ran] == [("-e", "0000:43:00.0")] * 5
    assert door.slept > 0


def test_after_five_tries_the_holder_is_named(tmp_path: Path) -> None:
    with hosts.Spy("h100x2-mig-vgpu", tmp_path).changing() as kernel:
        kernel.holders.append(Process(pid=50000, command="dcgm", files=["/dev/nvidiactl"]))
    door = Answering(tmp_path, *[LOCKED] * 5)
    with pytest.raises(Conflict, match=r"in use by pid 50000 \(dcgm\).*unbindLock"):
        nvidia_tools.sriov_manage(door, None, CARD, on=False)


def test_a_tool_that_breaks_down_is_quoted_with_its_last_line(tmp_path: Path) -> None:
    broken = Completed(1, "", 'Traceback (most recent call last):\n  File "x"\nOSError: no space\n')
    with pytest.raises(HostError, match=r"nvidia-smi refused \(1\): OSError: no space$"):
        nvidia_tools.set_mig_mode(Answering(tmp_path, broken), None, CARD, on=True)


def test_a_pending_mode_is_not_a_mode(tmp_path: Path) -> None:
    # https://github.com/NVIDIA/mig-parted/issues/9
    pending = Completed(
        0, "Warning: MIG mode is in pending enable state for GPU 00000000:43:00.0\n", ""
    )
    with pytest.raises(HostError, match="only pending"):
        nvidia_tools.set_mig_mode(Answering(tmp_path, pending), None, CARD, on=True)
