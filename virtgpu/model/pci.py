"""PCI addresses, as the kernel, NVML and libvirt write them."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from virtgpu.errors import Usage

# The kernel prints four hex digits of domain and more from 10000 up (VMD);
# NVML prints eight. The short form without a domain means domain 0.
_ADDRESS = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]+):(?P<slot>[0-9a-f]+)\.(?P<function>[0-9a-f]+)",
    re.IGNORECASE | re.ASCII,
)
_HINT = "write DOMAIN:BUS:SLOT.FUNCTION in hex, for example 0000:51:00.0"
_LIMITS = {"domain": 0xFFFFFFFF, "bus": 0xFF, "slot": 0x1F, "function": 7}


class _Parts(NamedTuple):
    domain: int
    bus: int
    slot: int
    function: int


class PciAddress(str):
    """The address of one PCI function, spelled as sysfs spells it; sorts by domain first.

    It *is* that text, so that it goes into JSON and paths as it stands.

    >>> PciAddress.parse("00000001:C8:00.0")
    '0001:c8:00.0'
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address in the spelling of sysfs, NVML or lspci.

        Raises `Usage` and names the part that is wrong.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise Usage(f"{text!r} is not a PCI address", hint=_HINT)
        parts = {name: int(digits or "0", 16) for name, digits in match.groupdict().items()}
        for name, limit in _LIMITS.items():
            if parts[name] > limit:
                raise Usage(
                    f"PCI address {text!r}: {name} 0x{parts[name]:x} is above 0x{limit:x}",
                    hint=_HINT,
                )
        return cls.of(_Parts(**parts))

    @classmethod
    def of(cls, parts: tuple[int, int, int, int]) -> Self:
        """The address of (domain, bus, slot, function)."""
        domain, bus, slot, function = parts
        return cls(f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")

    @property
    def parts(self) -> _Parts:
        """(domain, bus, slot, function) as numbers."""
        domain, bus, rest = self.split(":")
        slot, function = rest.split(".")
        return _Parts(int(domain, 16), int(bus, 16), int(slot, 16), int(function, 16))

    @property
    def card(self) -> str:
        """The address without its function, the same for all functions of a slot."""
        return self.rpartition(".")[0]

    def vf(self, offset: int, stride: int, index: int) -> Self:
        """The address of VF *index* (from 0) of this PF (PCIe SR-IOV 3.3.9, 3.3.10)."""
        domain, bus, slot, function = self.parts
        number = (bus << 8 | slot << 3 | function) + offset + stride * index
        return self.of((domain, number >> 8, number >> 3 & 0x1F, number & 7))

    def __lt__(self, other: str) -> bool:
        return (
            self.parts < other.parts if isinstance(other, PciAddress) else str.__lt__(self, other)
        )

    def __le__(self, other: str) -> bool:
        return self == other or self < other

    def __gt__(self, other: str) -> bool:
        return not self <= other

    def __ge__(self, other: str) -> bool:
        return not self < other
