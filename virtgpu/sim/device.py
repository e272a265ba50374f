"""One PCI function of the simulated machine, and its configuration space."""

from __future__ import annotations

import struct

import msgspec

from virtgpu.sim.profiles import Json
from virtgpu.sim.tree import Node

_SPEEDS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


class Device(msgspec.Struct, eq=False):
    """A function. *pf* and *index* are set on a VF; *home* is the driver that claims it."""

    address: str
    spec: Json
    group: int | None
    home: str | None
    pf: Device | None = None
    index: int = 0
    driver: str | None = None
    override: str | None = None
    place: Node | None = None
    config: bytearray = msgspec.field(default_factory=bytearray)
    vfs: list[Device] = []

    @property
    def node(self) -> Node:
        """Its directory; it has one from the moment that it is on the bus."""
        assert self.place is not None
        return self.place

    @property
    def card(self) -> Device:
        """The PF of a VF, else the function itself."""
        return self.pf or self

    @property
    def ids(self) -> str:
        """`10de:2235`."""
        return f"{self.spec['vendor']}:{self.spec['device']}"

    @property
    def subsystem(self) -> tuple[str, str]:
        """Subsystem vendor and device."""
        spec = self.spec
        return (
            spec.get("subsystem_vendor") or spec["vendor"],
            spec.get("subsystem_device") or spec["device"],
        )

    @property
    def class_code(self) -> str:
        """Six digits."""
        return str(self.spec.get("class") or "030200")

    @property
    def revision(self) -> str:
        """Two digits."""
        return str(self.spec.get("revision") or "a1")

    @property
    def modalias(self) -> str:
        """As the kernel prints it (file2alias.c)."""
        vendor, device = (text.upper() for text in self.subsystem)
        code = self.class_code.upper()
        return (
            f"pci:v0000{self.spec['vendor'].upper()}d0000{self.spec['device'].upper()}"
            f"sv0000{vendor}sd0000{device}bc{code[:2]}sc{code[2:4]}i{code[4:]}"
        )

    @property
    def uevent(self) -> str:
        """The text of the file of that name."""
        lines = [f"DRIVER={self.driver}"] if self.driver else []
        lines += [
            f"PCI_CLASS={self.class_code.upper().lstrip('0')}",
            f"PCI_ID={self.ids.upper()}",
            f"PCI_SUBSYS_ID={':'.join(self.subsystem).upper()}",
            f"PCI_SLOT_NAME={self.address}",
            f"MODALIAS={self.modalias}",
        ]
        return "\n".join(lines) + "\n"


def parts(address: str) -> tuple[str, int, int]:
    """Domain as text, bus, and slot and function as one number."""
    domain, bus, rest = address.split(":")
    return domain, int(bus, 16), int(rest[:2], 16) << 3 | int(rest[3:])


def at(domain: str, number: int) -> str:
    """The address of bus, slot and function as one number."""
    return f"{domain}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"


def vf_address(pf: Device, index: int) -> str:
    """PCIe SR-IOV 3.3.9 and 3.3.10: First VF Offset, VF Stride."""
    domain, bus, slot = parts(pf.address)
    sriov = pf.spec["sriov"]
    offset, stride = int(sriov.get("offset", 1)), int(sriov.get("stride", 1))
    return at(domain, (bus << 8 | slot) + offset + index * stride)


def config_space(device: Device, *, is_multi: bool, bridge: tuple[int, int] | None) -> bytearray:
    """Ids, power management, PCI Express, SR-IOV or ACS: what libvirt and lspci look at.

    *bridge* is (secondary, subordinate) bus number of a bridge.
    """
    c = bytearray(4096)
    spec, code = device.spec, bytes.fromhex(device.class_code)
    ids = (0xFFFF, 0xFFFF) if device.pf else (int(spec["vendor"], 16), int(spec["device"], 16))
    header = (1 if bridge else 0) | (0x80 if is_multi else 0)
    # Command: memory and bus mastering; status: has capabilities.
    revision = int(device.revision, 16)
    struct.pack_into(
        "<HHHHBBBBBBBB", c, 0, *ids, 6, 0x10, revision, code[2], code[1], code[0], 16, 0, header, 0
    )
    if bridge:
        struct.pack_into("<BBB", c, 0x18, 0, *bridge)
        struct.pack_into("<IHH", c, 0x100, 0x1000D, 0x1D, 0x1D)  # access control services, on
    else:
        struct.pack_into("<HH", c, 0x2C, *(int(text, 16) for text in device.subsystem))
    c[0x34] = 0x60
    link = 0 if device.pf else _link(spec)
    kind = 0x42 if bridge else 2  # PCI Express: root port, else endpoint; function level reset
    struct.pack_into("<BBHIHHIHH", c, 0x60, 0x10, 0xA0, kind, 0x10008022, 0, 0, link, 0, link)
    struct.pack_into("<BBHH", c, 0xA0, 1, 0, 3, 8)
    sriov = spec.get("sriov")
    if sriov and not device.pf:
        total = int(sriov["totalvfs"])
        vf_device = int(sriov.get("vf_device") or spec["device"], 16)
        fields = (total, total, 0, 0, int(sriov.get("offset", 1)), int(sriov.get("stride", 1)))
        struct.pack_into("<I8xHHHHHHHH", c, 0x100, 0x10010, *fields, 0, vf_device)
    return c


def _link(spec: Json) -> int:
    link = spec.get("link") or {}
    speed = _SPEEDS.get(str(link.get("max_speed") or "").partition(" ")[0], 4)
    return speed | int(link.get("max_width") or 16) << 4
