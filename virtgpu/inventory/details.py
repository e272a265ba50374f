"""One card in detail, for a person who looks at it."""

from __future__ import annotations

import re

from virtgpu.host import paths
from virtgpu.host.door import Door
from virtgpu.inventory.reader import Reader
from virtgpu.model.details import Bar, Details
from virtgpu.model.gpu import Gpu
from virtgpu.model.pci import PciAddress

_REGION = r"\s+".join([r"0x([0-9a-fA-F]{1,16})"] * 3)
_BARS = 6  # the ROM and, for a PF, what its VFs take follow in the same file
_PREFETCH = 0x2000  # IORESOURCE_PREFETCH of include/linux/ioport.h
_UNKNOWN_WIDTH = (0, 255)  # PCIE_LNK_WIDTH_UNKNOWN of include/linux/pci.h; 0 is no link


def read(door: Door, gpu: Gpu) -> Details:
    """Read what the kernel and NVML say of this card beside what decides."""
    reader, one = Reader(door), gpu.address
    text = reader.text(paths.pci(one, "resource"))
    return Details(
        bars=None if text is None else parse_resource(text),
        link_speed=_speed(reader, one, "current_link_speed"),
        link_width=_width(reader, one, "current_link_width"),
        max_link_speed=_speed(reader, one, "max_link_speed"),
        max_link_width=_width(reader, one, "max_link_width"),
        reset_methods=_reset_methods(reader, gpu),
        serial=_serial(door, gpu),
    )


def parse_resource(text: str) -> tuple[Bar, ...] | None:
    """The BARs of `resource`: a line each of start, end and flags; None when it is no such file.

    >>> parse_resource("0x00000000e2000000 0x00000000e2ffffff 0x0000000000040200")
    (Bar(index=0, size_bytes=16777216, prefetchable=False),)
    """
    found = []
    for index, line in enumerate(text.splitlines()[:_BARS]):
        match = re.fullmatch(_REGION, line.strip())
        if match is None:
            return None
        start, end, flags = (int(field, 16) for field in match.groups())
        if flags and end > start:
            bar = Bar(index=index, size_bytes=end - start + 1, prefetchable=bool(flags & _PREFETCH))
            found.append(bar)
    return tuple(found)


def _speed(reader: Reader, one: PciAddress, name: str) -> str | None:
    text = reader.text(paths.pci(one, name))
    return None if not text or text.startswith("Unknown") else text


def _width(reader: Reader, one: PciAddress, name: str) -> int | None:
    width = reader.number(paths.pci(one, name))
    return None if width in _UNKNOWN_WIDTH else width


def _reset_methods(reader: Reader, gpu: Gpu) -> tuple[str, ...] | None:
    if gpu.can_reset is False:
        return ()
    # Linux before 5.15 has `reset` alone, which names none.
    text = reader.text(paths.pci(gpu.address, "reset_method"))
    return None if text is None else tuple(text.split())


def _serial(door: Door, gpu: Gpu) -> str | None:
    if gpu.nvml is None or gpu.nvml.index is None:
        return None
    from virtgpu.inventory import nvml

    with door.nvml() as library:
        return None if library is None else nvml.serial(library, gpu.nvml.index, gpu.address)
