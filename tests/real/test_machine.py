"""The mounted simulation itself: real errnos, real processes, and a machine that is as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.machine import virtgpu

pytestmark = pytest.mark.real

FREE_VF = "/sys/bus/pci/devices/0000:51:00.6"


def sh(profile: str, script: str, tmp_path: Path, *options: str) -> str:
    done = machine.run(
        profile, "sh", "-c", script, state=tmp_path, options=("--no-libvirtd", *options)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_writes_fail_with_the_kernels_errnos(tmp_path: Path) -> None:
    script = """
import errno, os
def refused(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.close(fd)
vf = "/sys/bus/pci/devices/0000:51:00.6/nvidia/current_vgpu_type"
print(refused(vf, "1"), refused(vf, "0"), refused(vf, "563"), refused(vf, "563"))
print(refused("/sys/bus/pci/devices/0000:51:00.0/sriov_numvfs", "99"))
for call in (lambda: os.mkdir("/sys/x"), lambda: open("/sys/kernel/x", "w"),
             lambda: open("/sys/bus/pci/devices/0000:51:00.0/vendor", "w")):
    try:
        call()
        print("ok")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    done = machine.run(
        "a40x2-vendor-vfio",
        sys.executable,
        "-c",
        script,
        state=tmp_path,
        options=("--no-libvirtd",),
    )
    # mkdir EPERM, new file EACCES, read-only file EACCES: sysfs refuses root too.
    assert done.stdout.split() == [
        "EINVAL",
        "EPERM",
        "ok",
        "EPERM",
        "ERANGE",
        "EPERM",
        "EACCES",
        "EACCES",
    ], done.stderr


def test_changed_names_are_seen_at_once(tmp_path: Path) -> None:
    script = f"""
set -e
pf=/sys/bus/pci/devices/0000:4d:00.0
ls -d $pf/virtfn* | wc -l
{virtgpu("gpu", "list", "-o", "json")} | grep -c virtfn || true
echo 0 > $pf/sriov_numvfs
ls -d $pf/virtfn* 2>/dev/null | wc -l
echo 7 > $pf/sriov_numvfs
ls -d $pf/virtfn* | wc -l
ls /sys/bus/pci/devices | grep -c 4d:00
"""
    assert sh("intel-flex170", script, tmp_path).split() == ["4", "0", "0", "7", "8"]


def test_the_state_is_that_of_the_in_process_front(tmp_path: Path) -> None:
    sh("a40x2-mdev-vf", virtgpu("slice", "create", "A40-12Q", "--for", "g1"), tmp_path)
    from tests.support import hosts

    host = hosts.handle("a40x2-mdev-vf", tmp_path)
    assert [one.state.value for one in host.slices() if one.guest == "g1"] == ["present"]
    host.destroy([one.id for one in host.slices() if one.guest == "g1"])
    listed = sh("a40x2-mdev-vf", virtgpu("slice", "list"), tmp_path)
    assert "g1" not in listed
    assert "qemu" in listed  # the profile's own guest, as a real process


def test_two_of_one_machine_are_refused(tmp_path: Path) -> None:
    script = (
        f"{virtgpu('--host', 'sim:amd-v710', '--state-dir', str(tmp_path), 'gpu', 'list')}; echo $?"
    )
    assert sh("amd-v710", script, tmp_path).split()[-1] == "7"


def test_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    def code(*command: str) -> int:
        done = machine.run("amd-v710", *command, state=tmp_path, options=("--no-libvirtd",))
        return done.returncode

    assert code("sh", "-c", "exit 42") == 42
    assert code("sh", "-c", "kill -TERM $$") == 128 + signal.SIGTERM
    assert code("/does/not/exist") == 127


def test_the_machine_is_as_before(tmp_path: Path) -> None:
    def state() -> dict[str, object]:
        etc = {
            str(path): path.stat().st_mtime_ns
            for folder in ("/etc/libvirt", "/etc/mdevctl.d", "/var/lib/libvirt")
            for path in sorted(Path(folder).rglob("*"))
        }
        mounts = Path("/proc/self/mounts").read_text()
        nodes = {name: (Path("/dev") / name).stat().st_ino for name in ("null", "fuse", "zero")}
        return {"etc": etc, "mounts": mounts, "nodes": nodes, "host": os.uname().nodename}

    before = state()
    done = machine.run("a40x2-mdev-vf", "virsh", "nodedev-list", "--cap", "pci", state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert state() == before


def test_killing_it_ends_everything_in_it(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "virtgpu.cli",
        "--state-dir",
        str(tmp_path),
        "sim",
        "run",
        "amd-v710",
        "--no-libvirtd",
        "--",
        "sleep",
        "7654",
    ]
    process = subprocess.Popen(words, cwd=machine.ROOT)
    deadline = time.monotonic() + 20
    while not sleepers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleepers()
    process.kill()
    process.wait()
    while sleepers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleepers() == []


def sleepers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == b"sleep\x007654\x00":
                found.append(str(path))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("fault", ["1:kill-before", "1:kill-after"])
def test_the_kernel_outlives_a_killed_writer(fault: str, tmp_path: Path) -> None:
    script = f"""
echo '{fault}' > /sys/kernel/virtgpu_sim/faults
{virtgpu("slice", "create", "A40-12Q", "--for", "g1")}
echo "killed $?"
{virtgpu("recover")}
{virtgpu("slice", "list")} | grep -c g1
{virtgpu("recover")}
"""
    out = sh("a40x2-mdev-vf", script, tmp_path)
    # The write is made by a child: its death alone is an error that our process undoes.
    assert "killed" in out
    assert out.rstrip().splitlines()[-2:] == ["0", "nothing to recover"]


def test_nvidia_smi_and_nvml_answer_there(tmp_path: Path) -> None:
    out = sh(
        "hgx-h100-8x-mig",
        "nvidia-smi mig -lgi; " + virtgpu("gpu", "show", "0000:1b:00.0"),
        tmp_path,
    )
    assert "MIG 3g.40gb" in out
    assert "3g.40gb at 4" in out


def test_a_missing_fuse_device_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from virtgpu.errors import HostError
    from virtgpu.sim import run

    original = os.open

    def no_fuse(path: object, *arguments: int, **options: int) -> int:
        if path == "/dev/fuse":
            raise FileNotFoundError(2, "No such file or directory")
        return original(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", no_fuse)
    with pytest.raises(HostError) as caught:
        run.run("amd-v710", ["true"], state_dir=tmp_path)
    assert "modprobe fuse" in (caught.value.hint or "")
