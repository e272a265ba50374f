"""Private namespaces: mounts, processes, network, IPC and host name of our own, and a /dev of our
own on a tmpfs, so that nothing in there reaches the machine's.

/dev is one devtmpfs for the whole machine, also in a new mount namespace: a script that missed this
once replaced /dev/null on its machine. So the new /dev is built in another place and moved over.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import stat
import struct
from pathlib import Path

from virtgpu.errors import HostError

NOSUID, NOEXEC, BIND, MOVE, REC, PRIVATE = 2, 8, 4096, 8192, 16384, 1 << 18
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_SET_DEATH_SIGNAL, _SET_NAME = 1, 15
_DETACH = 2
# Not kvm: nested virtualization differs from machine to machine, and guests here compute nothing.
_NODES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "net/tun")

STAGE = Path("/run/virtgpu-sim")

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """A function of libc; raises OSError with its errno."""
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)


def mount(
    source: str | Path | None,
    target: str | Path,
    kind: str | None = None,
    flags: int = 0,
    data: str | None = None,
) -> None:
    """mount(2)."""
    raw = [None if x is None else os.fsencode(str(x)) for x in (source, target, kind, data)]
    call("mount", raw[0], raw[1], raw[2], ctypes.c_ulong(flags), raw[3])


def detach(path: str | Path) -> None:
    """Drop the machine's mounts here from our namespace. A user namespace may not uncover them,
    but the mount that follows hides them all the same."""
    with contextlib.suppress(OSError):
        call("umount2", os.fsencode(str(path)), _DETACH)


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends."""
    call("prctl", _SET_DEATH_SIGNAL, signal.SIGKILL)


def set_name(name: str) -> None:
    """What `ps` and /proc/PID/comm call this process."""
    call("prctl", _SET_NAME, name.encode()[:15] + b"\0", 0, 0, 0)


def enter() -> int | None:
    """Make the namespaces and fork process 1 of them.

    Returns None in process 1 and, in the process that called, the exit status once that has
    ended. Raises `HostError` when it is not allowed here.
    """
    outside = Path("/proc/self/ns/mnt").stat().st_ino
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET | (_NEWUSER if uid else 0)
    try:
        call("unshare", flags)
    except OSError as error:
        raise HostError(
            f"new namespaces are not allowed here: {error.strerror}",
            hint="run as root; in a container: --privileged, or --cap-add SYS_ADMIN and no seccomp",
        ) from error
    if uid:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            (Path("/proc/self") / name).write_text(text)
    child = os.fork()
    if child:
        return wait_for(child)
    die_with_parent()
    mount(None, "/", None, REC | PRIVATE)
    if os.getpid() != 1 or Path("/proc/self/ns/mnt").stat().st_ino == outside:
        os._exit(70)  # not where we believe to be: touch nothing
    return None


def wait_for(child: int) -> int:
    """The exit status of a child; what a terminal sends us is for it."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def settle() -> None:
    """A private /run, /dev and /proc, a host name, and the loopback link up."""
    call("sethostname", b"simulated", 9)
    with socket.socket() as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    mount("tmpfs", "/run", "tmpfs", NOSUID, "mode=755")
    STAGE.mkdir()
    _private_dev()
    mount("proc", "/proc", "proc", NOSUID | NOEXEC)


def _private_dev() -> None:
    machine = Path("/dev").stat().st_dev
    dev = STAGE / "dev"
    dev.mkdir()
    mount("tmpfs", dev, "tmpfs", NOSUID, "mode=755")
    if dev.stat().st_dev == machine:
        os._exit(70)
    for name in _NODES:
        if (Path("/dev") / name).exists():
            (dev / name).parent.mkdir(exist_ok=True)
            _copy_node(Path("/dev") / name, dev / name)
    for name in ("pts", "shm", "vfio", "hugepages"):
        (dev / name).mkdir()
    options = "newinstance,ptmxmode=0666,mode=620"
    mount("devpts", dev / "pts", "devpts", NOSUID | NOEXEC, options)
    mount("tmpfs", dev / "shm", "tmpfs", NOSUID, "mode=1777")
    for name, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        (dev / name).symlink_to(target)
    detach("/dev")
    mount(dev, "/dev", None, MOVE)


def _copy_node(source: Path, target: Path) -> None:
    """The same device under an inode of our own, so that a chmod or rm stays private. A user
    namespace may not make nodes; there a bind mount is as safe, for an ordinary user cannot
    change the machine's node."""
    found = source.stat()
    try:
        os.mknod(target, found.st_mode, found.st_rdev)
        target.chmod(stat.S_IMODE(found.st_mode))
    except PermissionError:
        target.touch()
        mount(source, target, None, BIND)


def private_folder(path: Path) -> None:
    """An empty folder of our own at *path*; the machine's is hidden, and one that it lacks is
    made without making it there."""
    if not path.is_dir():
        _shadow(path.parent)
        path.mkdir()
    mount("tmpfs", path, "tmpfs", NOSUID, "mode=755")


def _shadow(folder: Path) -> None:
    """Put a tmpfs over a folder, with links to all that was in it."""
    if not folder.is_dir():
        _shadow(folder.parent)
        folder.mkdir()
        return
    real = STAGE / "shadow" / str(folder).strip("/").replace("/", "_")
    if real.exists():
        return
    real.mkdir(parents=True)
    mount(folder, real, None, BIND | REC)
    names = sorted(one.name for one in real.iterdir())
    mount("tmpfs", folder, "tmpfs", NOSUID, "mode=755")
    for name in names:
        (folder / name).symlink_to(real / name)
