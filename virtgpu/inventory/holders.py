"""Who has a device open now: one pass over the open files of all processes.

Asked before anything is taken away, because the kernel then waits for the holder, for ever.
So it is honest: what could not be read makes the answer unknown (None), and unknown refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from virtgpu.host import paths
from virtgpu.host.door import Door
from virtgpu.model.gpu import Holder

# Patterns as text: on most hosts nobody has such a file open, and none is compiled.
# A container may see /dev elsewhere and a node may be deleted under its holder, so the end of
# the link decides: /var/lib/x/rootfs/dev/nvidia0 (deleted).
_NODE = r"/dev/((?:vfio|dri|nvidia|snd/|i2c-)[^ ]*)(?: \(deleted\))?\Z"
# A VFIO device whose group is not open by name any more: it could be any device.
_NAMELESS = "anon_inode:[vfio-device]"
_GROUP = r"vfio/(?:noiommu-)?([0-9]+)"
_NVIDIA_MINOR = r"nvidia([0-9]+)"
_UVM = "nvidia-uvm"
# One NVIDIA node that opens onto every GPU; /dev/nvidia-modeset and -uvm come only beside these.
_NVIDIA_ALL = r"nvidiactl|nvidia-caps/.*|nvidia-vgpuctl"


class _Open(NamedTuple):
    pid: int
    command: str | None
    node: str  # below /dev


class Holders:
    """The device files that were open at one moment.

    *known* is false when some process could not be looked into. A question then is answered
    with the holders that were seen, and with None (unknown) when none was.
    """

    def __init__(self, found: Iterable[_Open], *, known: bool, nameless: bool = False) -> None:
        self.known = known
        self._found = tuple(sorted(set(found)))
        self._nameless = nameless

    def of_vfio(self, group: int | None, cdev: str | None) -> tuple[Holder, ...] | None:
        """Who has /dev/vfio/GROUP or /dev/vfio/devices/CDEV (`vfio3`) open."""

        def is_it(node: str) -> bool:
            match = re.fullmatch(_GROUP, node)
            if match is not None:
                return int(match[1]) == group
            return cdev is not None and node == f"vfio/devices/{cdev}"

        return self._answer(is_it, known=self.known and not self._nameless)

    def of_nvidia(self, minor: int | None) -> tuple[Holder, ...] | None:
        """Who has /dev/nvidiaMINOR open, or a node that opens onto every NVIDIA GPU.

        With an unknown minor every /dev/nvidiaN counts.
        """

        def is_it(node: str) -> bool:
            match = re.fullmatch(_NVIDIA_MINOR, node)
            if match is not None:
                return minor is None or int(match[1]) == minor
            return re.fullmatch(_NVIDIA_ALL, node) is not None

        return self._answer(is_it, known=self.known)

    def of_dri(self, names: Iterable[str]) -> tuple[Holder, ...] | None:
        """Who has one of these nodes (`card0`, `renderD128`) below /dev/dri open."""
        nodes = {f"dri/{name}" for name in names}
        return self._answer(nodes.__contains__, known=self.known)

    def of_sound(self, cards: Iterable[str]) -> tuple[Holder, ...] | None:
        """Who has a node of one of these sound cards (`card1`) open: control, PCM, MIDI, hwdep."""
        numbers = "|".join(re.escape(card.removeprefix("card")) for card in cards)
        pattern = re.compile(rf"snd/(?:controlC|pcmC|midiC|hwC|umpC)(?:{numbers})(?:D.*)?")
        return self._answer(lambda node: bool(pattern.fullmatch(node)), known=self.known)

    def of_i2c(self, adapters: Iterable[str]) -> tuple[Holder, ...] | None:
        """Who has one of these I2C adapters (`i2c-5`) open."""
        return self._answer(frozenset(adapters).__contains__, known=self.known)

    def _answer(self, is_it: Callable[[str], bool], *, known: bool) -> tuple[Holder, ...] | None:
        found = tuple(
            Holder(file=f"/dev/{one.node}", pid=one.pid, command=one.command)
            for one in self._found
            if is_it(one.node)
        )
        return found if found or known else None


def scan(door: Door) -> Holders:
    """Look through the open files of all processes once.

    A process that ends meanwhile holds nothing. Our own NVML is no holder.
    """
    known, nameless = door.sees_all_processes(), False
    try:
        pids = [int(name) for name in door.listdir(paths.PROC) if name.isdecimal()]
    except OSError:
        known, pids = False, []
    own = _own_pid(door)
    found: list[_Open] = []
    for pid in pids:
        nodes, complete = _open_nodes(door, pid)
        known = known and complete
        nameless = nameless or (_NAMELESS in nodes and not any(map(_names_device, nodes)))
        if pid == own and _UVM not in nodes:
            nodes = {node for node in nodes if not node.startswith("nvidia")}
        command = _command(door, pid) if nodes else None
        found += [_Open(pid, command, node) for node in nodes if node != _NAMELESS]
    return Holders(found, known=known, nameless=nameless)


def _own_pid(door: Door) -> int | None:
    """Ours in this /proc. NVML opens NVIDIA's nodes in us; CUDA would also open nvidia-uvm."""
    with suppress(OSError, ValueError):
        return int(door.readlink(f"{paths.PROC}/self"))
    return None


def _command(door: Door, pid: int) -> str | None:
    with suppress(OSError):
        return door.read(paths.process(pid, "comm")).removesuffix("\n")
    return None


# -- one process


def _open_nodes(door: Door, pid: int) -> tuple[set[str], bool]:
    """What a process has open of VFIO, NVIDIA and DRI, and whether that is all of it."""
    nodes: set[str] = set()
    try:
        for links in _open_files(door, pid):
            for target in links.values():
                node = _node(target)
                if node is not None:
                    nodes.add(node)
    except OSError:
        # One that is just going away answers with several errnos, EACCES among them.
        return nodes, not door.exists(paths.process(pid))
    return nodes, True


def _open_files(door: Door, pid: int) -> Iterator[dict[str, str]]:
    """What its descriptors lead to: when the first thread has ended, those of the others."""
    first = door.links(paths.process(pid, "fd"))
    yield first
    if first:
        return
    with suppress(FileNotFoundError):
        tasks = door.listdir(paths.process(pid, "task"))
        if len(tasks) > 1:
            yield from (door.links(paths.process(pid, "task", task, "fd")) for task in tasks)


def _node(target: str) -> str | None:
    if target == _NAMELESS:
        return target
    match = re.search(_NODE, target) if "/dev/" in target else None
    return match[1] if match else None


def _names_device(node: str) -> bool:
    return re.fullmatch(_GROUP, node) is not None or node.startswith("vfio/devices/")
