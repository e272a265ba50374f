"""The real libvirtd inside the simulated machine, with state of its own and no systemd."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from virtgpu.errors import HostError
from virtgpu.model import shipped
from virtgpu.sim.namespaces import BIND, STAGE, call, mount, private_folder

SOCKET = Path("/run/libvirt/libvirt-sock")
LOG = STAGE / "libvirtd.log"
BIN = STAGE / "bin"
PYTHON = STAGE / "python"
_QEMU = Path("/usr/bin/qemu-system-x86_64")
_USER = "libvirt-qemu"
_DEADLINE_S = 30.0
_FOLDERS = (
    "/etc/libvirt",
    "/etc/mdevctl.d",
    "/var/lib/libvirt",
    "/var/log/libvirt",
    "/var/cache/libvirt",
    "/lib/modules",
)
_LIBVIRTD_CONF = f'auth_unix_rw = "none"\nlog_outputs = "2:file:{LOG}"\n'
_QEMU_CONF = """user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
stdio_handler = "file"
cgroup_controllers = []
namespaces = []
"""
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


def require() -> None:
    """Raises `HostError` when libvirtd is not installed here."""
    if shutil.which("libvirtd", path="/usr/local/sbin:/usr/sbin:/usr/bin") is None:
        raise HostError(
            "libvirtd is not installed",
            hint="apt install libvirt-daemon libvirt-daemon-driver-qemu qemu-system-x86 mdevctl,"
            " or take --no-libvirtd",
        )


def prepare(cache: Path | None) -> None:
    """Private folders for libvirt and mdevctl; *cache* keeps what libvirt learns of QEMU."""
    kept = None if cache is None else os.open(cache, os.O_PATH)
    for name in _FOLDERS:
        private_folder(Path(name))
    _add_user()
    modules = Path("/lib/modules") / os.uname().release
    modules.mkdir()
    (modules / "modules.alias").touch()  # nodedev-detach reads it
    for name in ("callouts", "notifiers"):
        (Path("/etc/mdevctl.d/scripts.d") / name).mkdir(parents=True)
    if kept is not None:
        mount(f"/proc/self/fd/{kept}", "/var/cache/libvirt", None, BIND)
    Path("/run/udev/data").mkdir(parents=True)
    Path("/run/udev/control").touch()  # libudev: udevd is there, so it listens


def _add_user() -> None:
    """Debian's libvirt wants its QEMU user to exist even where the configuration names another;
    the package that would add it also starts services."""
    import pwd

    try:
        pwd.getpwnam(_USER)
        return
    except KeyError:
        pass
    for name, line in (
        ("passwd", f"{_USER}:x:64055:64055::/:/bin/false"),
        ("group", f"{_USER}:x:64055:"),
    ):
        private = STAGE / name
        private.write_text(Path(f"/etc/{name}").read_text() + line + "\n")
        mount(private, f"/etc/{name}", None, BIND)


def install_tools(*, nvidia: bool, sriov_manage: bool) -> None:
    """The stand-ins for programs, first in PATH; NVML's module, first for Python."""
    BIN.mkdir()
    PYTHON.mkdir()
    names = {"udevadm": "udevadm"}
    if nvidia:
        names["nvidia-smi"] = "tool"
        (PYTHON / "pynvml.py").write_bytes(_stand_in("pynvml.py"))
    if sriov_manage:
        names["sriov-manage"] = "tool"
    for name, original in names.items():
        (BIN / name).write_bytes(_stand_in(original))
        (BIN / name).chmod(0o755)
    import virtgpu

    (STAGE / "package").write_text(str(Path(virtgpu.__file__).parent.parent))


def _stand_in(name: str) -> bytes:
    return shipped.read("virtgpu.sim", f"machine_bin/{name}")


def start(*, start_guests: bool) -> subprocess.Popen[bytes]:
    """Start libvirtd and wait for its socket; raises `HostError` with the end of its log."""
    for name, text in (("libvirtd.conf", _LIBVIRTD_CONF), ("qemu.conf", _QEMU_CONF)):
        (Path("/etc/libvirt") / name).write_text(text)
    if start_guests and _QEMU.exists():
        _replace_qemu()
    process = subprocess.Popen(
        ["libvirtd"], stdin=subprocess.DEVNULL, preexec_fn=_pretend_privileges()
    )
    deadline = time.monotonic() + _DEADLINE_S
    while not SOCKET.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise _did_not_start()
        time.sleep(0.005)
    # The socket is there before the drivers are, and a driver that fails ends the daemon.
    if shutil.which("virsh") is not None:
        asked = subprocess.run(["virsh", "-q", "-c", "qemu:///system", "uri"], capture_output=True)
        if asked.returncode != 0:
            raise _did_not_start()
    return process


def _did_not_start() -> HostError:
    errors = [line for line in read_log().splitlines() if ": error :" in line]
    said = errors[-1].partition(": error :")[2].strip() if errors else "its log says no error"
    return HostError(
        f"libvirtd did not start on the simulated host: {said}",
        hint="see its log with --log FILE, or take --no-libvirtd",
    )


def _replace_qemu() -> None:
    real = STAGE / "qemu"
    real.touch()
    mount(_QEMU, real, None, BIND)
    shim = STAGE / "qemu-shim"
    shim.write_bytes(_stand_in("qemu"))
    shim.chmod(0o755)
    mount(shim, _QEMU, None, BIND)


def read_log() -> str:
    """libvirtd's log so far."""
    try:
        return LOG.read_text(errors="replace")
    except OSError:
        return ""


def _pretend_privileges() -> Callable[[], None] | None:
    """libvirtd raises the lock limit for a VFIO guest and sets QEMU's groups. A container's root
    or a user namespace may not; then a seccomp filter lets these two calls do nothing and
    "succeed"."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
        os.setgroups(os.getgroups())
    except (ValueError, OSError):
        return _filter()
    return None


def _filter() -> Callable[[], None]:
    setgroups, prlimit64 = {"x86_64": (116, 302), "aarch64": (159, 261)}[os.uname().machine]
    load, equal, end = 0x20, 0x15, 0x06
    rules = (
        (load, 0, 0, 0),
        (equal, 6, 0, setgroups),
        (equal, 0, 4, prlimit64),
        (load, 0, 0, 24),
        (equal, 0, 2, resource.RLIMIT_MEMLOCK),
        (load, 0, 0, 32),
        (equal, 0, 1, 0),  # no new limit: a plain question
        (end, 0, 0, 0x7FFF0000),  # allow
        (end, 0, 0, 0x00050000),  # answer 0
    )
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in rules))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(rules), ctypes.addressof(program)))

    def install(_keep: object = program) -> None:
        call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        call("prctl", _SECCOMP, _FILTER, header)

    return install
