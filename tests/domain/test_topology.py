"""Where devices go in the guest: a port of their own, never a place that something else has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tests.support.attachments import mdev, whole
from virtgpu.domain import read, render, topology
from virtgpu.domain.topology import Layout, Placement, place
from virtgpu.errors import Unsupported


def layout(devices: str, machine: str = "q35") -> Layout:
    head = f"<domain><os><type machine='{machine}'>hvm</type></os>"
    return topology.layout_of(etree.fromstring(f"{head}<devices>{devices}</devices></domain>"))


def port(index: int | str, more: str = "") -> str:
    return f"<controller type='pci' index='{index}' model='pcie-root-port'>{more}</controller>"


def on_bus(bus: int, slot: int = 0) -> str:
    return f"<rng model='virtio'><address type='pci' bus='{bus}' slot='{slot}'/></rng>"


@pytest.mark.parametrize(
    ("machine", "is_pcie"),
    [("q35", True), ("pc-q35-7.2", True), ("virt", True), ("virt-8.0", True),
     ("pc", False), ("pc-i440fx-7.2", False), ("virtual", False), ("pseries", False)],
)  # fmt: skip
def test_q35_and_virt_have_pcie(machine: str, is_pcie: bool) -> None:
    assert layout("", machine).is_pcie is is_pcie


def test_a_root_complex_says_so_itself_whatever_the_machine() -> None:
    assert layout("<controller type='pci' index='0' model='pcie-root'/>", "x").is_pcie


def test_a_port_that_carries_nothing_is_free() -> None:
    found = layout(port(1) + port(2) + port("0x3") + on_bus(2))
    assert found.free_ports == (1, 3)
    assert found.next_index == 4


def test_a_port_of_an_expander_bus_is_not_ours_to_take() -> None:
    """It belongs to a NUMA node."""
    behind = port(7, "<address type='pci' bus='0x80' slot='0'/>")
    found = layout(behind)
    assert found.free_ports == ()
    assert found.next_index == 0x81


def test_new_ports_come_after_every_number_in_use() -> None:
    assert layout(port(9) + on_bus(12)).next_index == 13


def test_free_ports_are_used_first_and_spare_ones_added() -> None:
    free = Layout(is_pcie=True, next_index=4, free_ports=(1, 3))
    assert place(free, (1, 1, 1), spare=0) == Placement(((1, 0), (3, 0), (4, 0)), (4,))
    assert place(free, (1,), spare=2).new_ports == (4,)
    assert place(free, (), spare=2).new_ports == ()


def test_a_guest_has_255_buses_at_most() -> None:
    almost = Layout(is_pcie=True, next_index=255)
    assert place(almost, (1,), spare=0).places == ((255, 0),)
    with pytest.raises(Unsupported, match="no PCI bus left"):
        place(almost, (1, 1), spare=0)


def test_a_card_of_more_than_eight_functions_fits_no_slot() -> None:
    with pytest.raises(Unsupported, match="9 functions"):
        place(Layout(is_pcie=True), (9,))


class TestWithoutPcie:
    def test_one_function_goes_where_libvirt_likes_and_a_card_into_a_free_slot(self) -> None:
        found = layout(on_bus(0, 30) + on_bus(0, 29), "pc")
        assert place(found, (1, 2, 1, 4)) == Placement((None, (0, 28), None, (0, 27)))

    def test_a_full_bus_has_no_room_for_a_card(self) -> None:
        full = layout("".join(on_bus(0, slot) for slot in range(3, 31)), "pc")
        assert place(full, (1,)).places == (None,)
        with pytest.raises(Unsupported, match="no free slot"):
            place(full, (2,))

    def test_a_guest_of_machine_pc_gets_no_root_port(self) -> None:
        text = (
            b"<domain type='kvm'><name>n</name><memory>1</memory>"
            b"<os><type machine='pc'>hvm</type></os><devices/></domain>"
        )
        xml = render(text, name="g", uuid=None, attachments=(whole("0000:09:00.0", 2), mdev()))
        root = etree.fromstring(xml)
        assert root.find("devices/controller") is None
        at = [node.find("address") for node in root.iterfind("devices/hostdev")]
        assert [node is None for node in at] == [False, False, True]
        assert at[0] is not None
        assert at[0].get("multifunction") == "on"


@pytest.mark.parametrize(
    ("device", "takes"),
    [
        ("<interface type='user'/>", True),
        ("<disk><target bus='virtio'/></disk>", True),
        ("<disk><target bus='sata'/></disk>", False),
        ("<controller type='scsi' model='virtio-scsi'/>", True),
        ("<controller type='sata'/>", False),
        ("<input type='tablet' bus='usb'/>", False),
        ("<input type='tablet' bus='virtio'/>", True),
        ("<sound model='ich9'/>", False),
        ("<sound model='ich6'/>", True),
        ("<watchdog model='itco'/>", False),
        ("<watchdog model='i6300esb'/>", True),
        ("<memory model='virtio-mem'/>", True),
        ("<memory model='dimm'/>", False),
        ("<serial type='pty'/>", False),
        (on_bus(0, 4), False),
    ],
)
def test_a_port_is_kept_for_what_libvirt_still_places(device: str, takes: bool) -> None:
    """libvirt's qemu_domain_address.c: what goes on a root port, and what onto bus 0."""
    nothing = "<controller type='usb' model='none'/><memballoon model='none'/>"
    assert layout(nothing + device).waiting - layout(nothing).waiting == takes


def test_what_libvirt_adds_by_itself_has_a_port_too() -> None:
    assert layout("").waiting == 2  # USB controller and balloon
    scsi = "<disk><target bus='scsi'/></disk><controller type='usb' model='none'/>"
    assert layout(scsi + "<memballoon model='none'/>").waiting == 1


@st.composite
def templates(draw: st.DrawFn) -> bytes:
    """A q35 guest with devices at random places, and more without one."""
    taken = draw(
        st.lists(st.tuples(st.integers(0, 40), st.integers(1, 31)), max_size=12, unique=True)
    )
    ports = draw(st.lists(st.integers(1, 60), max_size=8, unique=True))
    waiting = draw(st.integers(0, 5))
    devices = "".join(on_bus(bus, slot) for bus, slot in taken) + "".join(map(port, ports))
    devices += "<interface type='user'/>" * waiting
    return (
        "<domain type='kvm'><name>n</name><memory>1</memory><os><type machine='q35'>hvm</type></os>"
        f"<devices>{devices}</devices></domain>"
    ).encode()


@given(text=templates(), spare=st.integers(0, 4))
def test_no_two_devices_share_a_place_and_each_has_a_port_of_its_own(
    text: bytes, spare: int
) -> None:
    slices = (whole("0000:09:00.0", 3), mdev(), whole("0001:09:00.0", slice_id="b"))
    root = etree.fromstring(
        render(text, name="g", uuid=None, attachments=slices, spare_ports=spare)
    )
    nodes = root.find("devices")
    assert nodes is not None
    found = [at for node in nodes if (at := topology.guest_address(node)) is not None]
    assert len(found) == len(set(found))
    buses = [topology.guest_address(node)[1] for node in nodes.iterfind("hostdev")]  # type: ignore[index]
    assert buses[0] == buses[1] == buses[2]
    assert len(set(buses)) == 3
    others = {at[1] for node in nodes.iterfind("rng") if (at := topology.guest_address(node))}
    assert not others & set(buses)
    ports = [node.get("index") for node in nodes.iterfind("controller")]
    assert len(ports) == len(set(ports))
    assert {str(bus) for bus in buses} <= set(ports)
    free = set(ports) - {str(bus) for bus in others} - {str(bus) for bus in buses}
    assert len(free) >= spare
    assert len(read.guest(etree.tostring(root)).attachments) == 3
