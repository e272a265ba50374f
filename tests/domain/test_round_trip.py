"""Reading gives back what was rendered, and what was the operator's stays byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tests.support.attachments import GUESTS, UUID, mdev, whole
from virtgpu.domain import elements, metadata, read, render, template
from virtgpu.model.attachment import Attachment
from virtgpu.model.gpu import Mechanism
from virtgpu.model.pci import PciAddress

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="".join(map(chr, range(32)))
                  + "\ufffe\uffff"),
    min_size=1,
    max_size=40,
)  # fmt: skip
NUMBER = st.none() | st.integers(0, 999_999_999)


@st.composite
def guests(draw: st.DrawFn) -> tuple[Attachment, ...]:
    """One to four slices of any mechanism, each of a card of its own."""
    ids = draw(
        st.lists(st.from_regex(r"[A-Za-z0-9.-]{1,64}", fullmatch=True), min_size=1, max_size=4,
                 unique=True)
    )  # fmt: skip
    slots = draw(
        st.lists(
            st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31)),
            min_size=len(ids), max_size=len(ids), unique=True,
        )
    )  # fmt: skip
    return tuple(draw(slices(slice_id, slot)) for slice_id, slot in zip(ids, slots, strict=True))


@st.composite
def slices(draw: st.DrawFn, slice_id: str, slot: tuple[int, int, int]) -> Attachment:
    mechanism = draw(st.sampled_from(list(Mechanism)))
    gpu = PciAddress.of((*slot, 0))
    is_mdev = mechanism in (Mechanism.MDEV_PF, Mechanism.MDEV_VF)
    count = draw(st.integers(1, 8)) if mechanism is Mechanism.WHOLE else 1
    return Attachment(
        slice_id=slice_id,
        mechanism=mechanism,
        request=draw(TEXT),
        gpu=gpu,
        functions=()
        if is_mdev
        else tuple(PciAddress.of((*slot, number)) for number in range(count)),
        managed=True if is_mdev else draw(st.booleans()),
        mdev=str(draw(st.uuids())) if is_mdev else None,
        type_name=draw(st.none() | TEXT),
        framebuffer_mib=draw(NUMBER),
        numa_node=draw(NUMBER),
        why=draw(st.none() | TEXT),
    )


@given(attachments=guests(), name=st.sampled_from(template.names()))
def test_reading_gives_back_what_was_rendered(
    attachments: tuple[Attachment, ...], name: str
) -> None:
    xml = render(template.shipped(name), name="g", uuid=UUID, attachments=attachments)
    found = read.guest(xml)
    assert found.attachments == attachments
    assert found.warnings == ()
    assert (found.name, found.uuid) == ("g", UUID)


def test_what_xml_cannot_carry_is_replaced_and_never_an_error() -> None:
    from msgspec.structs import replace

    xml = render(
        None, name="g", uuid=None, attachments=(replace(mdev(), why="a\0b", request="\udc80"),)
    )
    (found,) = read.guest(xml).attachments
    assert (found.why, found.request) == ("a\ufffdb", "\ufffd")


# -- an operator's own file

OWN = b"""<!-- the render farm's guest -->
<domain type='kvm' id='7' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
    <name>own</name>
    <metadata>
        <farm:rack xmlns:farm="urn:farm:1" number="7">
            <farm:note><![CDATA[<not> & xml]]></farm:note>
        </farm:rack>
    </metadata>
    <memory unit='KiB'>4194304</memory><!-- enough -->
    <os>
        <type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
    </os>
    <devices>
        <unknown-element keep="me"/>
        <emulator>/usr/local/bin/qemu</emulator>

        <controller type='pci' index='0' model='pcie-root'/>
        <controller type='pci' index='1' model='pcie-root-port'>
            <target chassis='1' port='0x10'/>
        </controller>
        <!-- gone: <hostdev/> -->
        <graphics type='vnc' passwd='x&amp;y' listen='::1'/>
        <hostdev mode='subsystem' type='usb'><source><vendor id='0x1234'/></source></hostdev>
    </devices>
    <seclabel type='none'/>
    <qemu:commandline>
        <qemu:arg value='-newarg'/>
    </qemu:commandline>
</domain>
<!-- end -->
"""


def without_ours(xml: bytes) -> etree._Element:
    """A rendered file without what virtgpu put into it."""
    root = etree.fromstring(xml, elements.PARSER)
    for node in root.findall("devices/hostdev"):
        alias = node.find("alias")
        if alias is not None and metadata.parse_alias(alias.get("name")) is not None:
            elements.remove(node)
    for node in root.findall("devices/controller[@model='pcie-root-port']"):
        if node.find("target") is None:
            elements.remove(node)
    ours = metadata.find(root)
    if ours is not None:
        elements.remove(ours)
    return root


def spelled(root: etree._Element) -> bytes:
    """The document whole, comments and blanks included; only the kind of quotes is left out."""
    return etree.tostring(root.getroottree(), method="c14n", with_comments=True)


def test_an_operators_file_is_kept_but_for_name_uuid_and_our_elements() -> None:
    xml = render(OWN, name="own", uuid=None, attachments=(mdev(), whole("0000:09:00.0", 2)))
    expected = etree.fromstring(OWN, elements.PARSER)
    del expected.attrib["id"]
    assert spelled(without_ours(xml)) == spelled(expected)
    assert b"<![CDATA[<not> & xml]]>" in xml


def test_without_slices_only_the_name_and_free_ports_differ() -> None:
    xml = render(OWN, name="other", uuid=None, attachments=())
    expected = etree.fromstring(
        OWN.replace(b"<name>own<", b"<name>other<").replace(b" id='7'", b""), elements.PARSER
    )
    assert spelled(without_ours(xml)) == spelled(expected)


def test_a_rendered_file_is_a_template_without_the_slices_in_it() -> None:
    """A guest made from another guest's file does not get that guest's GPU."""
    once = render(OWN, name="own", uuid=UUID, attachments=(mdev(),))
    again = render(once, name="two", uuid=None, attachments=(whole("0000:09:00.0"),))
    assert [one.slice_id for one in read.guest(again).attachments] == ["card"]
    assert len(read.guest(again).devices) == 1


def test_a_file_without_line_breaks_stays_one_line() -> None:
    text = b"<domain type='kvm'><name>n</name><devices/></domain>"
    xml = render(text, name="g", uuid=UUID, attachments=(mdev(),), spare_ports=0)
    assert xml.count(b"\n") == 1


def test_our_elements_are_indented_as_their_siblings() -> None:
    xml = render(OWN, name="g", uuid=None, attachments=(mdev(),))
    assert b'\n        <hostdev mode="subsystem" type="mdev"' in xml


def test_text_where_none_is_expected_is_kept() -> None:
    text = b"<domain><name>n</name><metadata>mine</metadata><devices>odd</devices></domain>"
    xml = render(text, name="g", uuid=None, attachments=(mdev(),))
    assert b"<metadata>mine<" in xml
    assert b"<devices>odd<" in xml


def test_every_mechanism_is_in_the_guests_that_are_tested() -> None:
    used = {one.mechanism for slices, _ in GUESTS.values() for one in slices}
    assert set(Mechanism) - used <= {Mechanism.MDEV_PF}  # to the guest the same as MDEV_VF
