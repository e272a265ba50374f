"""Killed by SIGKILL at every step, with the kernel outside of the killed process: recovery leaves
no slice, loses no reservation, and touches nothing of others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.machine import virtgpu
from tests.support.scenarios import IDS, SCENARIOS, Scenario

pytestmark = pytest.mark.real

# The steps that each scenario takes, so that a cell that is missing fails.
STEPS: dict[str, set[str]] = {
    "workstation-rtx4090": {"Reserve", "BindDriver", "Release"},
    "dgx-a100-8x80gb": {"Reserve", "BindDriver", "Release"},
    "intel-flex170": {"Reserve", "BindDriver", "Release"},
    "intel-flex140x2-off": {"Reserve", "SetVfs", "BindDriver", "Release"},
    "amd-v710": {"Reserve", "Release"},
    "pve-2xt4-mdev": {"Reserve", "CreateMdev", "RemoveMdev", "Release"},
    "intel-gvtg": {"Reserve", "CreateMdev", "RemoveMdev", "Release"},
    "a40x2-mdev-vf": {"Reserve", "CreateMdev", "RemoveMdev", "Release"},
    "a40x2-vendor-vfio": {"Reserve", "SetVgpuType", "ClearVgpuType", "Release"},
    "l40s-x4-mixed": {"Reserve", "SetVfs", "SetVgpuType", "ClearVgpuType", "Release"},
    "h100x2-mig-vgpu": {
        "Reserve",
        "CreateGpuInstance",
        "SetVgpuType",
        "ClearVgpuType",
        "DestroyGpuInstance",
        "Release",
    },
    "rtxpro6000-domain1": {"Reserve", "SetVgpuType", "ClearVgpuType", "Release"},
}


def cells(done: object) -> list[dict[str, str]]:
    assert done.returncode == 0, done.stderr  # type: ignore[attr-defined]
    found: list[dict[str, str]] = json.loads(done.stdout)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)
def test_slices(scenario: Scenario, tmp_path: Path) -> None:
    found = cells(
        machine.run(
            scenario.profile,
            sys.executable,
            "-m",
            "tests.real.kill_inside",
            "create",
            "destroy",
            scenario.request,
            state=tmp_path,
            options=("--no-libvirtd",),
        )
    )
    seen = {(one["step"], one["moment"]) for one in found}
    wanted = set(STEPS[scenario.profile])
    if "43:00.0" in scenario.request:
        wanted |= {"SetMigMode", "SetVfs"}
    assert seen == {(step, moment) for step in wanted for moment in ("before", "after")}


def test_guests(tmp_path: Path) -> None:
    found = cells(
        machine.run(
            "a40x2-mdev-vf",
            sys.executable,
            "-m",
            "tests.real.kill_inside",
            "define",
            "undefine",
            "A40-12Q",
            state=tmp_path,
        )
    )
    seen = {(one["verb"], one["step"]) for one in found}
    assert {("define", "DefineDomain"), ("undefine", "UndefineDomain")} <= seen


def test_a_child_that_outlives_us_finishes_and_recovery_waits_for_it(tmp_path: Path) -> None:
    """`remove` of a mediated device waits in the kernel for its holder; we are killed meanwhile."""
    script = """
import os, signal, subprocess, sys, time
from virtgpu.api import connect
import virtgpu.apply.perform as perform
host = connect()
one = host.create("T4-4Q on 0000:3b:00.0", guest="g1").slices[0]
group = os.readlink(f"/sys/bus/mdev/devices/{one.id}/iommu_group").rpartition("/")[2]
fd = None
child = os.fork()
if child == 0:
    real = host.door.write
    def write(path, text, **options):
        # Somebody opens the device between our look and our write.
        global fd
        subprocess.Popen([sys.executable, "-c",
            f"import os, time; os.open('/dev/vfio/{group}', os.O_RDWR); time.sleep(4)"])
        time.sleep(0.5)
        real(path, text, **options)
    host.door.write = write
    host.destroy([one.id])
    os._exit(0)
time.sleep(1.5)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
states = [x.state.value for x in host.slices() if x.id == one.id]
report = host.recover()
print(states, report.is_clean)
print(bool(host.create("T4-4Q on 0000:af:00.0", guest="g2").slices))
deadline = time.monotonic() + 20
while not (report := host.recover()).is_clean and time.monotonic() < deadline:
    time.sleep(0.2)
print(report.is_clean, [x.id for x in host.slices() if x.id == one.id], host.recover().journals)
"""
    done = machine.run(
        "pve-2xt4-mdev", sys.executable, "-c", script, state=tmp_path, options=("--no-libvirtd",)
    )
    assert done.stdout.splitlines() == ["['stuck'] False", "True", "True [] ()"], done.stderr


def test_two_at_once_on_one_card_and_the_first_fails(tmp_path: Path) -> None:
    first = virtgpu("slice", "create", "'T4-4Q on 0000:3b:00.0'", "--for", "first")
    second = virtgpu("slice", "create", "'T4-4Q on 0000:3b:00.0'", "--for", "second")
    script = f"""
echo 1:EIO > /sys/kernel/virtgpu_sim/faults
{first} & one=$!
sleep 0.15
{second}; echo "second $?"
wait $one; echo "first $?"
{virtgpu("slice", "list")} | grep -c -E "first|second"
"""
    done = machine.run(
        "pve-2xt4-mdev", "sh", "-c", script, state=tmp_path, options=("--no-libvirtd",)
    )
    lines = [one for one in done.stdout.splitlines() if one.startswith(("first", "second"))]
    codes = dict(one.split() for one in lines)
    # Whoever wrote first met the fault and was rolled back; the other is unharmed.
    assert sorted(codes.values()) == ["0", "12"], done.stderr
    assert done.stdout.splitlines()[-1] == "1"
