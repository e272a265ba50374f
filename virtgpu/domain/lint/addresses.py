"""VG1xx: where devices are on the guest's PCI buses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from lxml import etree

from virtgpu.domain.lint.model import Hit, Subject, rule
from virtgpu.domain.topology import guest_address, layout_of, number
from virtgpu.model.pci import PciAddress

# QEMU's own function 0, which no XML names: the LPC bridge of q35, the ISA bridge of i440fx.
_BUILT_IN = ((0, 0, 0x1F), (0, 0, 1))
_CONVENTIONAL = ("pci-bridge", "dmi-to-pci-bridge", "pcie-to-pci-bridge", "pci-expander-bus")
_PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
LIMITS = {"domain": 0xFFFF, "bus": 0xFF, "slot": 0x1F, "function": 7}
Slot = tuple[int, int, int]


def _slots(s: Subject) -> dict[Slot, dict[int, etree._Element]]:
    slots: defaultdict[Slot, dict[int, etree._Element]] = defaultdict(dict)
    for device in s.devices:
        address = guest_address(device)
        if address is not None:
            slots[address[:3]].setdefault(address[3], device)
    return slots


def _buses(s: Subject) -> dict[int, etree._Element]:
    """The PCI controllers with an index, by it."""
    found: dict[int, etree._Element] = {}
    for node in s.of("controller"):
        index = number(node.get("index")) if node.get("type") == "pci" else None
        if index is not None:
            found.setdefault(index, node)
    return found


@rule(
    "VG101",
    "double-address",
    "error",
    why="Two devices have one address in the guest. libvirt refuses such a definition, in some"
    " versions with advice about multifunction that does not help.",
    remedy="remove one of the two <address> elements: libvirt then finds a place",
    source="https://github.com/Juniper/wistar/issues/14; libvirt 9.0 domain_addr.c, 'Attempted"
    " double use of PCI Address'",
)
def double_address(s: Subject) -> Iterator[Hit]:
    seen: dict[tuple[int, int, int, int], etree._Element] = {}
    for device in s.devices:
        address = guest_address(device)
        # A console that is also a serial port is one device in two elements.
        if address is None or device.tag == "console":
            continue
        if address in seen:
            other = seen[address]
            yield Hit(
                device,
                f"<{device.tag!s}> and <{other.tag!s}> (line {other.sourceline}) are both"
                f" at guest address {PciAddress.of(address)}",
            )
        seen.setdefault(address, device)


@rule(
    "VG102",
    "multifunction-off",
    "error",
    why="A slot of the guest has several functions, and function 0 says multifunction='off'."
    " libvirt takes it as it stands; QEMU refuses the second function when the guest starts.",
    remedy="write multifunction='on' into the address of function 0",
    source="https://github.com/Juniper/wistar/issues/14; measured with libvirt 11.3",
)
def multifunction_off(s: Subject) -> Iterator[Hit]:
    for slot, functions in _slots(s).items() if s.is_qemu else ():
        first = _function_0(functions, "off")
        if first is not None:
            message = (
                f"slot {PciAddress.of((*slot, 0))} has several functions, and function 0 says 'off'"
            )
            yield Hit(first, message, fix=_turn_on(first))


@rule(
    "VG103",
    "multifunction-missing",
    "warning",
    why="A slot of the guest has several functions, and function 0 does not say so. Today's"
    " libvirt adds multifunction='on' by itself; other tools and old versions do not.",
    remedy="write multifunction='on' into the address of function 0",
    source="https://github.com/Juniper/wistar/issues/14; measured with libvirt 9.0 and 11.3",
)
def multifunction_missing(s: Subject) -> Iterator[Hit]:
    is_old = s.target.libvirt is not None and s.target.libvirt < 2_000_000
    for slot, functions in _slots(s).items() if s.is_qemu else ():
        first = _function_0(functions, None)
        if first is not None:
            yield Hit(
                first,
                f"slot {PciAddress.of((*slot, 0))} has several functions, and function 0 does not"
                " say multifunction='on'",
                severity="error" if is_old else None,
                fix=_turn_on(first),
            )


def _function_0(functions: dict[int, etree._Element], said: str | None) -> etree._Element | None:
    first = functions.get(0)
    if first is None or len(functions) == 1:
        return None
    return first if first.find("address").get("multifunction") == said else None  # type: ignore[union-attr]


def _turn_on(device: etree._Element):  # type: ignore[no-untyped-def]
    return lambda: device.find("address").set("multifunction", "on")  # type: ignore[union-attr]


@rule(
    "VG104",
    "function-0-missing",
    "error",
    why="A slot without function 0 does not exist for the guest: a PCI bus is scanned by function"
    " 0 of each slot, and the others are then not looked for.",
    remedy="put one device of that slot on function 0, or remove the addresses",
    source="PCI Local Bus Specification 3.0, 3.2.2.3.4 (function 0 is required)",
)
def function_0_missing(s: Subject) -> Iterator[Hit]:
    for slot, functions in _slots(s).items():
        if 0 not in functions and slot not in _BUILT_IN:
            device = next(iter(functions.values()))
            yield Hit(device, f"slot {PciAddress.of((*slot, 0))} has no function 0")


@rule(
    "VG105",
    "address-out-of-range",
    "error",
    why="A part of a PCI address is outside of what PCI has. Often the address was split by"
    " position, and one without a domain was read from the wrong end.",
    remedy="write domain, bus, slot (to 0x1f) and function (to 7) from DDDD:BB:SS.F",
    source="https://github.com/apache/cloudstack/issues/12960; formatdomain, Device addresses",
)
def address_out_of_range(s: Subject) -> Iterator[Hit]:
    for device in s.devices:
        for address in (*device.findall("address"), *device.findall("source/address")):
            for name in out_of_range(device, address):
                yield Hit(
                    address,
                    f"{name}={address.get(name)!r} is out of range: a {name} is at most"
                    f" {LIMITS[name]:#x}",
                )


def out_of_range(device: etree._Element, address: etree._Element) -> list[str]:
    """The parts of a PCI address that PCI does not have."""
    is_pci = address.get("type") == "pci" or (
        address.get("type") is None and address.get("bus") is not None and _is_pci_source(device)
    )
    if not is_pci:
        return []
    return [
        name
        for name, limit in LIMITS.items()
        if (value := number(address.get(name))) is not None
        and value > limit
        # A VMD's domain is above 16 bits, and libvirt takes it for a host device.
        and not (name == "domain" and value <= 0xFFFFFFFF)
    ]


def _is_pci_source(device: etree._Element) -> bool:
    return (device.tag, device.get("type")) in (
        ("hostdev", "pci"),
        ("interface", "hostdev"),
        ("disk", "nvme"),
    )


@rule(
    "VG106",
    "port-slot",
    "error",
    why="A PCIe root port and a switch's downstream port have one slot, number 0.",
    remedy="write slot='0x00', or remove the address",
    source="libvirt 9.0 domain_addr.c: minSlot and maxSlot of a pcie-root-port are 0",
)
def port_slot(s: Subject) -> Iterator[Hit]:
    buses = _buses(s)
    for device in s.devices:
        address = guest_address(device)
        port = None if address is None else buses.get(address[1])
        if address is not None and port is not None and port.get("model") in _PORTS and address[2]:
            yield Hit(
                device,
                f"<{device.tag!s}> is in slot {address[2]:#x} of a {port.get('model')} (controller"
                f" {address[1]}), which has slot 0 only",
            )


@rule(
    "VG107",
    "conventional-bus",
    "warning",
    why="A PCI Express device behind a conventional PCI bridge loses its extended configuration"
    " space; drivers of GPUs miss capabilities there and give up.",
    remedy="put it on a pcie-root-port of its own",
    source="https://libvirt.org/pci-topologies.html; QEMU docs/pcie.txt, 2 (Device placement)",
)
def conventional_bus(s: Subject) -> Iterator[Hit]:
    buses = _buses(s)
    for node, device in s.hostdevs:
        address = guest_address(node)
        bus = None if address is None else buses.get(address[1])
        if bus is not None and s.is_q35 and bus.get("model") in _CONVENTIONAL:
            yield Hit(node, f"{device.key} is on a {bus.get('model')} of a PCIe machine")


@rule(
    "VG108",
    "on-root-complex",
    "note",
    why="A device directly on pcie.0 is an integrated endpoint for the guest: it cannot be"
    " unplugged, and some GPU drivers refuse one without a link.",
    remedy="put it on a pcie-root-port of its own",
    source="QEMU docs/pcie.txt, 2.1 (Root Bus)",
)
def on_root_complex(s: Subject) -> Iterator[Hit]:
    for node, device in s.hostdevs:
        address = guest_address(node)
        if s.is_q35 and address is not None and address[:2] == (0, 0):
            yield Hit(node, f"{device.key} is directly on the root bus pcie.0")


@rule(
    "VG109",
    "no-free-port",
    "note",
    why="Every PCIe port of the guest is taken. A device can be plugged into a running guest only"
    " where a port is free, and ports cannot be plugged.",
    remedy="add <controller type='pci' model='pcie-root-port'/>, one for each later device",
    source="https://github.com/kubevirt/kubevirt/issues/11981; libvirt.org/pci-hotplug.html",
)
def no_free_port(s: Subject) -> Iterator[Hit]:
    ports = [n for n in s.of("controller") if n.get("model") == "pcie-root-port"]
    # Only of a file whose ports are numbered: libvirt adds and numbers those of a short one.
    if not s.is_q35 or not ports or any(n.get("index") is None for n in ports):
        return
    if all(n.find("address") is None for n in ports):
        return
    layout = layout_of(s.root)
    if not layout.free_ports:
        yield Hit(ports[-1], f"no root port of {len(ports)} is free: nothing can be plugged in")


@rule(
    "VG110",
    "double-controller",
    "error",
    why="Two controllers of one type have one index.",
    remedy="give each an index of its own, or leave the index out",
    source="libvirt 9.0 domain_conf.c: controllers are found by type and index",
)
def double_controller(s: Subject) -> Iterator[Hit]:
    seen: dict[tuple[str, int], etree._Element] = {}
    for node in s.of("controller"):
        index = number(node.get("index"))
        kind = node.get("type") or ""
        if index is None or kind == "usb":  # companions of one USB controller share its index
            continue
        other = seen.setdefault((kind, index), node)
        if other is not node:
            yield Hit(node, f"{kind} controller {index} is there already (line {other.sourceline})")


@rule(
    "VG111",
    "split-card",
    "warning",
    why="Functions of one card, as a GPU and its audio, are in different slots of the guest."
    " Drivers that look for their other functions in the same slot do not find them.",
    remedy="give them one slot: functions 0, 1, ..., and multifunction='on' on function 0",
    source="https://github.com/canonical/lxd/issues/12643",
)
def split_card(s: Subject) -> Iterator[Hit]:
    if s.view is None:
        return
    cards: defaultdict[str, list[tuple[etree._Element, Slot]]] = defaultdict(list)
    for node, device in s.hostdevs:
        address = guest_address(node)
        known = None if device.pci is None else s.view.functions.get(device.pci)
        if address is not None and known is not None and known.pf is None:
            cards[known.address.card].append((node, address[:3]))
    for card, members in cards.items():
        if len({slot for _, slot in members}) > 1:
            yield Hit(members[1][0], f"the functions of card {card} are in different guest slots")


@rule(
    "VG112",
    "half-card",
    "warning",
    why="The card has more functions than the guest gets. Guest drivers of some cards do not come"
    " up without them, and what stays behind keeps the host's driver beside a device in use.",
    remedy="give the missing function too, in the same guest slot",
    source="https://github.com/canonical/lxd/issues/12643",
)
def half_card(s: Subject) -> Iterator[Hit]:
    if s.view is None:
        return
    given = {device.pci for _, device in s.hostdevs}
    told: set[str] = set()
    for node, device in s.hostdevs:
        known = None if device.pci is None else s.view.functions.get(device.pci)
        # Of a display only: ports of a NIC are functions too, and are given one by one.
        if known is None or known.pf is not None or not known.class_code.startswith("03"):
            continue
        missing = [str(f.address) for f in s.view.card(known.address) if f.address not in given]
        if missing and known.address.card not in told:
            told.add(known.address.card)
            yield Hit(node, f"{device.key} is given without {', '.join(missing)}, of the same card")


@rule(
    "VG113",
    "root-address",
    "error",
    why="The root bus is where addresses begin: pci-root and pcie-root have none.",
    remedy="remove the <address> of that controller",
    source="libvirt 9.0 domain_validate.c: 'pci-root and pcie-root controllers should not have an"
    " address'",
)
def root_address(s: Subject) -> Iterator[Hit]:
    for node in s.of("controller"):
        if node.get("model") in ("pci-root", "pcie-root") and node.find("address") is not None:
            yield Hit(node, f"<controller model={node.get('model')!r}> has an address")


@rule(
    "VG114",
    "root-index",
    "error",
    why="The root bus of a PC is bus 0; libvirt refuses another index.",
    remedy="write index='0'",
    source="libvirt 9.0 domain_validate.c: pci-root and pcie-root have index 0 (a PC has one root)",
)
def root_index(s: Subject) -> Iterator[Hit]:
    for node in s.of("controller"):
        index = number(node.get("index"))
        if (s.is_q35 or s.is_pc) and node.get("model") in ("pci-root", "pcie-root") and index:
            yield Hit(node, f"<controller model={node.get('model')!r}> has index {index}, not 0")


@rule(
    "VG115",
    "wrong-root",
    "error",
    why="A q35 machine has a PCIe root and an i440fx machine a PCI root; QEMU cannot exchange"
    " them. It happens when only the machine type of a file was changed.",
    remedy="change the model of controller 0, and remove the addresses of the other machine",
    source="libvirt 9.0 qemu_validate.c, PCI controllers by machine type",
)
def wrong_root(s: Subject) -> Iterator[Hit]:
    wrong = "pci-root" if s.is_q35 else "pcie-root" if s.is_pc else None
    for node in s.of("controller"):
        if wrong is not None and node.get("model") == wrong:
            yield Hit(node, f"machine {s.machine!r} has no {wrong}")


@rule(
    "VG116",
    "vf-as-function",
    "warning",
    why="A VF that is in the slot of its PF on the host is no function of that card for a guest:"
    " it is a device of its own. Tools that take all functions of a slot sweep it in.",
    remedy="give the VF a guest slot or port of its own, function 0",
    source="PCIe Base Specification, 9 (SR-IOV): VFs are devices of their own by routing id",
)
def vf_as_function(s: Subject) -> Iterator[Hit]:
    slots = _slots(s)
    for node, device in s.hostdevs:
        known = s.host_function(device)
        if known is None or known.pf is None or known.pf.card != known.address.card:
            continue
        address = guest_address(node)
        if address is not None and len(slots[address[:3]]) > 1:
            yield Hit(node, f"{device.key}, a VF of {known.pf}, shares its guest slot with others")
