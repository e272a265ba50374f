"""The host's memory nodes."""

from __future__ import annotations

from virtgpu.host import paths
from virtgpu.inventory.reader import Reader, number
from virtgpu.model.gpu import NumaNode


def read(reader: Reader) -> tuple[NumaNode, ...]:
    """The nodes by number, with CPUs, memory and distances to each node in order."""
    ids = (number(name[4:]) for name in reader.names(paths.NUMA_NODES) if name.startswith("node"))
    return tuple(_node(reader, one) for one in sorted(one for one in ids if one is not None))


def _node(reader: Reader, node: int) -> NumaNode:
    return NumaNode(
        id=node,
        cpulist=reader.text(paths.numa_node(node, "cpulist")) or None,
        memory_mib=parse_memory(reader.text(paths.numa_node(node, "meminfo")) or ""),
        distances=parse_distances(reader.text(paths.numa_node(node, "distance")) or ""),
    )


def parse_memory(text: str) -> int | None:
    """`Node 0 MemTotal:  263840556 kB` in MiB."""
    for line in text.splitlines():
        _, found, rest = line.partition("MemTotal:")
        kilobytes = number(rest.strip().removesuffix("kB").strip()) if found else None
        if kilobytes is not None:
            return kilobytes // 1024
    return None


def parse_distances(text: str) -> tuple[int, ...]:
    """`10 21`; nothing when one of them is no number."""
    found = tuple(number(part) for part in text.split())
    return tuple(one for one in found if one is not None) if None not in found else ()
