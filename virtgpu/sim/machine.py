"""The simulated machine, mounted: the kernel's files over /sys, its holders as real processes, and
the real libvirtd. All of it lives in private namespaces and dies with them."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from virtgpu.host import state
from virtgpu.sim import faults
from virtgpu.sim.door import run_tool
from virtgpu.sim.fuse import Events, Server
from virtgpu.sim.kernel import Kernel
from virtgpu.sim.namespaces import BIND, NOSUID, STAGE, detach, die_with_parent, mount, set_name
from virtgpu.sim.state import Process
from virtgpu.sim.tree import Node, Tree, refuse

_CONTROL = "sys/kernel/virtgpu_sim"
_KEPT_ANSWERS = 32
_MIRRORED = (
    "devices/system/cpu",
    "devices/system/node",
    "devices/virtual/net/lo",
    "class/net",
    "kernel/mm/hugepages",
    "module/kvm",
    "module/kvm_intel",
    "module/kvm_amd",
)
_SKIPPED = frozenset(
    ("power", "cpuidle", "cpufreq", "hotplug", "crash_hotplug", "microcode", "sections")
)
_CHUNK = 1 << 16


class Machine:
    """A kernel with what only the mounted front has: control files, faults, a file of its state."""

    def __init__(self, kernel: Kernel, file: Path, spec: str | None) -> None:
        self.kernel = kernel
        self._file = file
        self._holders = list(kernel.holders)
        self._faults = faults.parse(spec or "")
        self._is_breaking = False
        self._writes = 0
        self._answers: dict[str, dict[str, Any]] = {}
        self._saved = b""
        self._command: Node | None = None
        kernel.holders.clear()  # they are real processes here
        self._add_control()

    @property
    def holders(self) -> list[Process]:
        """The processes that the profile says are there."""
        return self._holders

    # -- control files

    def _add_control(self) -> None:
        tree = self.kernel.tree
        base = tree.dir(_CONTROL)
        self._command = tree.file(base, "command", write=self._run)
        tree.file(base, "answers", lambda: json.dumps(self._answers))
        tree.file(base, "nvml", self._nvml)
        tree.file(base, "faults", write=self._set_faults)
        tree.file(base, "snapshot", lambda: json.dumps(self.kernel.snapshot(), indent=1))

    def _nvml(self) -> str:
        found = self.kernel.nvml_state() if self.kernel.has_nvidia else {"devices": []}
        return json.dumps(found)

    def _run(self, text: str) -> None:
        try:
            words = json.loads(text)
            token, argv = str(words["token"]), [str(one) for one in words["argv"]]
        except (ValueError, KeyError, TypeError):
            raise refuse(22) from None
        done = run_tool(self.kernel, argv, breaking=self._is_breaking)
        self._answers[token] = done._asdict()
        for old in list(self._answers)[:-_KEPT_ANSWERS]:
            del self._answers[old]

    def _set_faults(self, text: str) -> None:
        from virtgpu.errors import Usage

        try:
            self._faults = faults.parse(text)
        except Usage:
            raise refuse(22) from None
        self._writes = 0

    def fault(self, node: Node) -> str | None:
        """The fault of this write, if any; control files do not count, but for the tools' one."""
        if node is not self._command and node.path.startswith(f"/{_CONTROL}/"):
            return None
        if not node.path.startswith(("/sys/", "/proc/")):
            return None
        self._writes += 1
        fault = self._faults.get(self._writes)
        self._is_breaking = fault == faults.HALF and node is self._command
        if fault == faults.HALF:
            return None if self._is_breaking else "EIO"
        return fault

    # -- state

    def save(self) -> None:
        """Keep the state as the in-process door finds it."""
        snapshot = self.kernel.snapshot()
        there = {one.uuid for one in self.kernel.state.mdevs} | set(self.kernel.state.vgpus)
        kept = [one for one in self._holders if one.owner is None or one.owner in there]
        import msgspec

        snapshot["holders"] = msgspec.to_builtins(kept)
        content = json.dumps(snapshot, separators=(",", ":")).encode()
        if content != self._saved:
            self._saved = content
            state.write_durably(self._file, content)

    # -- serving

    def serve(self, fuse: int, machine: int) -> None:
        """Answer until unmounted; *machine* is a descriptor of the real sysfs, only read."""
        mirror(self.kernel.tree, machine)
        Server(
            fuse,
            self.kernel.tree,
            take_events=self.kernel.take_events,
            send_events=_event_sender(),
            before=self.kernel.tick,
            changed=self.save,
            fault=self.fault,
        ).serve()


def mount_machine(machine: Machine) -> None:
    """FUSE on /sys, /dev/vfio and /proc/driver, served by a process of its own.

    Only that process keeps a descriptor of the real sysfs. No mount of it stays: root could make
    a read-only bind mount writable again.
    """
    real = STAGE / "realsys"
    real.mkdir()
    mount("sysfs", real, "sysfs", NOSUID)
    sysfs = os.open(real, os.O_RDONLY | os.O_DIRECTORY)
    detach(real)
    detach("/sys")  # with its cgroup mounts: libvirt then does without cgroups
    tree = STAGE / "tree"
    tree.mkdir()
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    mount("virtgpu-sim", tree, "fuse.virtgpu-sim", NOSUID, options)
    if os.fork() == 0:  # after the mount: before it, a read of the descriptor fails
        die_with_parent()
        os.chdir("/")
        machine.serve(fuse, sysfs)
        os._exit(0)
    os.close(fuse)
    os.close(sysfs)
    for source, target in (
        ("sys", "/sys"),
        ("dev/vfio", "/dev/vfio"),
        ("proc/driver", "/proc/driver"),
    ):
        if Path(target).is_dir():
            mount(tree / source, target, None, BIND)


def start_holder(one: Process) -> None:
    """A process that has the files open, as a guest's QEMU has."""
    if os.fork():
        return
    die_with_parent()
    set_name(one.command)
    for name in one.files:
        try:
            os.set_inheritable(os.open(name, os.O_RDWR), True)
        except OSError:
            continue  # gone since: then nobody holds it
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    while True:
        import signal

        signal.pause()


# -- this machine's own facts, to read only


def mirror(tree: Tree, machine: int) -> None:
    """Show processors, memory and KVM of the real machine, where the profile has none of its own.

    Names are copied now; a file's text is read when somebody asks for it.
    """
    sys = tree.dir("sys")
    for top in _MIRRORED:
        if not os.access(top, os.F_OK, dir_fd=machine):
            continue
        is_profiles = top.endswith("/node") and bool(tree.dir(top, sys).entries)
        for path, folders, files, fd in os.fwalk(top, dir_fd=machine):
            node = tree.dir(path, sys)
            folders[:] = [one for one in folders if one not in _SKIPPED]
            if is_profiles:
                # The profile's nodes; the machine's list of which are online would contradict.
                break
            _copy(tree, machine, path, node, [*folders, *files], fd)
        if is_profiles:
            _complete_nodes(tree, tree.dir(top, sys))
    tree.take_stale()


def _copy(tree: Tree, machine: int, path: str, node: Node, names: list[str], fd: int) -> None:
    for name in names:
        if (
            name in _SKIPPED
            or name in node.entries
            or (path.startswith("devices/system/node/node") and name.startswith("memory"))
        ):
            continue
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            tree.link(node, name, os.readlink(name, dir_fd=fd))
        elif stat.S_ISREG(mode) and mode & 0o444:
            tree.file(node, name, partial(_read, machine, f"{path}/{name}"))


def _read(machine: int, path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY, dir_fd=machine)
    try:
        return os.read(fd, _CHUNK)
    finally:
        os.close(fd)


def _complete_nodes(tree: Tree, base: Node) -> None:
    """What libnuma looks at beside the profile's own facts."""
    ids = sorted(int(name[4:]) for name in base.entries if name.startswith("node"))
    for name in ("online", "possible", "has_memory", "has_cpu"):
        if name not in base.entries:
            tree.file(base, name, ",".join(str(one) for one in ids))
    for one in ids:
        node = base.entries[f"node{one}"]
        if "cpumap" not in node.entries:
            tree.file(node, "cpumap", "00000000")


def _event_sender() -> Callable[[Events], None]:
    """Sends what udevd would send; a network namespace has its own listeners."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)

    def send(events: Events) -> None:
        for fields in events:
            body = b"".join(one.encode() + b"\0" for one in fields)
            # struct udev_monitor_netlink_header: magic, sizes and offsets, filters left at 0.
            head = struct.pack("=8sIIII", b"libudev\0", socket.htonl(0xFEEDCAFE), 40, 40, len(body))
            try:
                sock.sendto(head + bytes(16) + body, (0, 2))
            except ConnectionRefusedError:
                return  # nobody listens

    return send
