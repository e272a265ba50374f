"""Every write refused by the kernel, and every one cut off by SIGKILL, with real writes to the
mounted machine and the real libvirtd: it is as before, or as it was to be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import machine

pytestmark = pytest.mark.real

SLICES = ("create", "destroy", "--no-libvirtd")
GUESTS = ("define", "undefine")


@pytest.mark.parametrize(
    ("profile", "request_", "how", "writes"),
    [
        # driver_override, unbind, drivers_probe for each function; back with one more.
        ("workstation-rtx4090", "gpu on 0000:01:00.0", SLICES, (6, 8)),
        ("intel-flex170", "vf", SLICES, (2, 2)),  # it had no driver
        ("intel-flex140x2-off", "vf", SLICES, (3, 2)),  # the VFs stay on
        ("h100x2-mig-vgpu", "mig:3g.40gb on 0000:43:00.0", SLICES, (4, 3)),
        ("dgx-a100-8x80gb", "gpu on 0000:07:00.0", GUESTS, (4, 5)),
        ("a40x2-mdev-vf", "A40-12Q", GUESTS, (2, 2)),
    ],
)
def test_nothing_is_left_half_done(
    profile: str, request_: str, how: tuple[str, ...], writes: tuple[int, int], tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "tests.real.faults_inside", *how[:2], request_]
    done = machine.run(profile, *words, state=tmp_path, options=how[2:], timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for verb, count in zip(how[:2], writes, strict=True):
        made, trials, recoveries = found[verb]
        print(f"{profile} {verb}: {made} writes, {trials} trials, {recoveries} recoveries cut off")
        assert made == count
        assert trials >= 5 * count
