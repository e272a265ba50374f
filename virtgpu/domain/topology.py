"""Where host devices go in the guest: PCIe root ports on q35, slots of bus 0 elsewhere.

libvirt first honours every address that is written down, then gives the others whatever is
free. So our devices get addresses that no element has, each GPU on a root port of its own, and
enough ports are added for what libvirt still has to place and for a device plugged in later.
"""

from __future__ import annotations

import re

import msgspec
from lxml import etree

from virtgpu.errors import Unsupported

SPARE_PORTS = 2
_PCIE_MACHINES = re.compile(r"(pc-)?q35|virt(-|\Z)")
_LAST_BUS = 0xFF
_PARTS = ("domain", "bus", "slot", "function")
# Compiled when it is first used: most commands never do.
_NUMBER = r"(?a)\s*(0[xX][0-9a-fA-F]+|[0-9]+)\s*"

# Devices of these kinds take a port each when they have no address and are not excepted below.
_ON_A_PORT = (
    *("controller", "crypto", "disk", "filesystem", "hostdev", "input", "interface", "iommu"),
    *("memballoon", "memory", "rng", "shmem", "sound", "video", "vsock", "watchdog"),
)


class Layout(msgspec.Struct, frozen=True):
    """What a template leaves free. *free_ports* are root ports on bus 0 that carry nothing;
    *other_ports* counts those whose number libvirt has yet to give; *waiting* counts devices
    that libvirt will put on a port; *free_slots* are those of bus 0 where there is no PCIe.
    """

    is_pcie: bool
    next_index: int = 1
    free_ports: tuple[int, ...] = ()
    other_ports: int = 0
    waiting: int = 0
    free_slots: tuple[int, ...] = ()


class Placement(msgspec.Struct, frozen=True):
    """(bus, slot) for each device in order, None to let libvirt choose; the ports to be added."""

    places: tuple[tuple[int, int] | None, ...]
    new_ports: tuple[int, ...] = ()


def number(text: str | None) -> int | None:
    """A number as libvirt reads it (0x is hex, a leading 0 octal), None for anything else.

    >>> number("0x65"), number("101"), number("010"), number("08"), number(None)
    (101, 101, 8, None, None)
    """
    match = re.fullmatch(_NUMBER, text or "")
    if match is None or len(match[1]) > 20:
        return None
    digits = match[1]
    if digits[:2].lower() == "0x":
        return int(digits, 16)
    try:
        return int(digits, 8 if digits[0] == "0" else 10)
    except ValueError:
        return None


def guest_address(device: etree._Element) -> tuple[int, int, int, int] | None:
    """The PCI address of a device in the guest, None when it has none or an unreadable one.

    Slot 0 of bus 0 is the host bridge's: libvirt takes that address for none, and finds a place
    (virPCIDeviceAddressIsEmpty).
    """
    address = device.find("address[@type='pci']")
    found = None if address is None else numbers(address)
    return None if found is None or found[:3] == (0, 0, 0) else found


def numbers(address: etree._Element) -> tuple[int, int, int, int] | None:
    """(domain, bus, slot, function) of an address element; what is left out is 0."""
    domain, bus, slot, function = (number(address.get(name, "0")) for name in _PARTS)
    if domain is None or bus is None or slot is None or function is None:
        return None
    return domain, bus, slot, function


def layout_of(root: etree._Element) -> Layout:
    """What the domain leaves free for our devices."""
    devices = root.find("devices")
    children = [] if devices is None else [d for d in devices if isinstance(d.tag, str)]
    addresses = [address for d in children if (address := guest_address(d)) is not None]
    if not _is_pcie(root, children):
        taken = {slot for _domain, bus, slot, _function in addresses if bus == 0}
        # Slots 0 to 2 are the host bridge, PIIX and the first video card of `pc`.
        return Layout(
            is_pcie=False, free_slots=tuple(s for s in range(30, 2, -1) if s not in taken)
        )
    ports = [d for d in children if _is_root_port(d)]
    buses = {bus for _domain, bus, _slot, _function in addresses}
    indexes = [number(d.get("index")) for d in children if _is_pci_controller(d)]
    free = sorted(
        {index for p in ports if (index := number(p.get("index"))) and index not in buses}
    )
    return Layout(
        is_pcie=True,
        next_index=max([0, *buses, *(i for i in indexes if i is not None)]) + 1,
        free_ports=tuple(free),
        other_ports=sum(1 for p in ports if p.get("index") is None),
        waiting=_count_waiting(children),
    )


def _is_pcie(root: etree._Element, devices: list[etree._Element]) -> bool:
    if any(_is_pci_controller(d) and d.get("model") == "pcie-root" for d in devices):
        return True
    machine = root.find("os/type")
    return machine is not None and _PCIE_MACHINES.match(machine.get("machine") or "") is not None


def _is_pci_controller(device: etree._Element) -> bool:
    return device.tag == "controller" and device.get("type") == "pci"


def _is_root_port(device: etree._Element) -> bool:
    """A root port on bus 0: one below an expander bus belongs to its NUMA node."""
    if not _is_pci_controller(device) or device.get("model") != "pcie-root-port":
        return False
    address = guest_address(device)
    return address is None or address[1] == 0


def place(layout: Layout, functions: tuple[int, ...], *, spare: int = SPARE_PORTS) -> Placement:
    """Places for devices with so many *functions* each; raises `Unsupported` without room."""
    if any(count > 8 for count in functions):
        raise Unsupported(f"a card of {max(functions)} functions does not fit one guest slot (8)")
    if not layout.is_pcie:
        return _place_on_bus_0(layout, functions)
    wanted = len(functions)
    ours = layout.free_ports[:wanted]
    missing = wanted - len(ours)
    left = len(layout.free_ports) - len(ours) + layout.other_ports
    more = missing + max(0, layout.waiting + spare - left)
    if layout.next_index + more - 1 > _LAST_BUS:
        raise Unsupported(f"the guest has no PCI bus left for {wanted} host devices")
    new = tuple(range(layout.next_index, layout.next_index + more))
    return Placement(tuple((bus, 0) for bus in (*ours, *new[:missing])), new)


def _place_on_bus_0(layout: Layout, functions: tuple[int, ...]) -> Placement:
    # A single function goes where libvirt likes; several must be told their common slot.
    slots = iter(layout.free_slots)
    places: list[tuple[int, int] | None] = []
    for count in functions:
        slot = next(slots, None) if count > 1 else None
        if count > 1 and slot is None:
            raise Unsupported("the guest's PCI bus 0 has no free slot for a whole card")
        places.append(None if slot is None else (0, slot))
    return Placement(tuple(places))


def _count_waiting(devices: list[etree._Element]) -> int:
    """How many devices libvirt will put on a port, those that it adds by itself included.

    Counted high where in doubt: a port too many costs nothing.
    """
    written = sum(1 for d in devices if _takes_port(d))
    written -= any(d.tag == "video" and d.find("address") is None for d in devices)
    return max(0, written) + _count_implied(devices)


def _takes_port(device: etree._Element) -> bool:
    address = device.find("address")
    is_placed = address is not None and (
        address.get("type") != "pci" or guest_address(device) is not None
    )
    if device.tag not in _ON_A_PORT or is_placed:
        return False
    match device.tag:
        case "controller":
            kind, model = device.get("type"), device.get("model") or ""
            if kind == "pci":
                return model in ("pcie-to-pci-bridge", "pcie-switch-upstream-port")
            return kind not in ("ide", "fdc", "sata", "ccid") and model != "none"
        case "disk":
            target = device.find("target")
            bus = None if target is None else target.get("bus")
            return bus is None or bus == "virtio"
        case "input":
            return device.get("bus") == "virtio"
        case "memballoon" | "video":
            inner = device.find("model")
            return "none" not in (device.get("model"), None if inner is None else inner.get("type"))
        case "memory":
            return (device.get("model") or "").startswith("virtio")
        case "sound":
            return device.get("model") != "ich9"
        case "watchdog":
            return device.get("model") != "itco"
    return True


def _count_implied(devices: list[etree._Element]) -> int:
    tags = {d.tag for d in devices}
    controllers = {d.get("type") for d in devices if d.tag == "controller"}
    implied = {
        "usb": True,
        "scsi": any(d.tag == "disk" and d.find("target[@bus='scsi']") is not None for d in devices),
        "virtio-serial": any(d.find("target[@type='virtio']") is not None for d in devices),
    }
    missing = sum(1 for kind, is_needed in implied.items() if is_needed and kind not in controllers)
    return missing + ("memballoon" not in tags)
