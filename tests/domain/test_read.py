"""What of ours is in a guest that somebody may have edited, and what devices it takes."""

from __future__ import annotations

import pytest

from tests.support.attachments import whole
from virtgpu.domain import metadata, read, render
from virtgpu.errors import Usage

SLICE = "<v:slice id='s1' request='vf' mechanism='plain-vf' gpu='0000:51:00.0' {}/>"


def guest(slices: str, devices: str = "", version: str = "1") -> read.Guest:
    return read.guest(
        "<domain><name>g</name><metadata>"
        f"<v:guest xmlns:v='urn:virtgpu:guest:1' version='{version}'>{slices}</v:guest></metadata>"
        f"<devices>{devices}</devices></domain>"
    )


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        (SLICE.replace("s1", "a b"), "'a b' is not a slice id"),
        (SLICE.replace("id='s1'", ""), "None is not a slice id"),
        (SLICE.replace("plain-vf", "magic"), "'magic' is not a valid Mechanism"),
        (SLICE.replace("0000:51:00.0", "51"), "'51' is not a PCI address"),
        (SLICE.replace("00.0", "ff.0"), "slot 0xff is above 0x1f"),
        (SLICE.format("framebuffer_mib='-1'"), "framebuffer_mib '-1' is not a number"),
        (SLICE.format("numa_node='9999999999'"), "is not a number"),
    ],
)
def test_a_slice_that_cannot_be_read_is_a_warning_with_its_reason(slices: str, why: str) -> None:
    found = guest(slices.replace("{}", ""))
    assert found.attachments == ()
    assert len(found.warnings) == 1
    assert why in found.warnings[0]
    assert "line 1" in found.warnings[0]


def test_metadata_of_another_version_is_left_alone_and_said() -> None:
    found = guest(SLICE.format(""), version="2")
    assert found.attachments == ()
    assert "version '2' is not '1'" in found.warnings[0]


def test_a_slice_named_twice_counts_once() -> None:
    found = guest(SLICE.format("") * 2)
    assert len(found.attachments) == 1
    assert "names slice s1 twice" in found.warnings[0]


def test_a_device_whose_slice_the_metadata_does_not_name_is_said() -> None:
    found = guest(
        "",
        "<hostdev type='pci'><source><address bus='1'/></source>"
        "<alias name='ua-virtgpu-lost'/></hostdev>",
    )
    assert found.attachments == ()
    assert found.warnings == ("a device of slice lost, which the metadata does not name",)
    assert found.devices[0].slice_id == "lost"


def test_the_functions_of_a_card_come_in_their_order_whatever_that_of_the_file() -> None:
    text = render(None, name="g", uuid=None, attachments=(whole("0000:09:00.0", 2),)).decode()
    head, first, second, tail = split(text)
    (found,) = read.guest(head + second + first + tail).attachments
    assert found == whole("0000:09:00.0", 2)


def split(text: str) -> tuple[str, str, str, str]:
    """Before, first, second hostdev, after."""
    one = text.index("<hostdev")
    two = text.index("<hostdev", one + 1)
    end = text.rindex("</hostdev>") + len("</hostdev>")
    return text[:one], text[one:two], text[two:end], text[end:]


@pytest.mark.parametrize(
    ("device", "key"),
    [
        ("<hostdev type='pci'><source><address domain='0x0001' bus='0xd6'/></source></hostdev>",
         "0001:d6:00.0"),
        ("<hostdev type='pci'><source><address bus='010'/></source></hostdev>", "0000:08:00.0"),
        ("<hostdev type='mdev'><source><address uuid='4B2000000000400080000000000000AA'/></source>"
         "</hostdev>", "4b200000-0000-4000-8000-0000000000aa"),
        ("<interface type='hostdev'><source><address type='pci' bus='4' slot='16' function='4'/>"
         "</source></interface>", "0000:04:10.4"),
        ("<disk type='nvme'><source type='pci'><address bus='2'/></source></disk>", "0000:02:00.0"),
    ],
)  # fmt: skip
def test_every_way_to_take_a_device_of_the_host_is_seen(device: str, key: str) -> None:
    assert [one.key for one in guest("", device).devices] == [key]


@pytest.mark.parametrize(
    "device",
    [
        "<hostdev type='usb'><source><address bus='1' device='2'/></source></hostdev>",
        "<hostdev type='pci'/>",
        "<hostdev type='pci'><source/></hostdev>",
        "<hostdev type='pci'><source><address slot='0x20'/></source></hostdev>",
        "<hostdev type='pci'><source><address bus='x'/></source></hostdev>",
        "<hostdev type='mdev'><source><address uuid='x'/></source></hostdev>",
        "<interface type='network'><source network='default'/></interface>",
    ],
)
def test_what_names_no_device_of_the_host_is_left_out(device: str) -> None:
    assert guest("", device).devices == ()


def test_a_domain_without_name_or_devices_is_read() -> None:
    found = read.guest("<domain/>")
    assert (found.name, found.uuid, found.devices, found.attachments) == (None, None, (), ())


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("ua-virtgpu-4b20", ("4b20", 0)),
        ("ua-virtgpu-a.b-c_f7", ("a.b-c", 7)),
        ("ua-virtgpu-a_f0", None),
        ("ua-virtgpu-a_f8", None),
        ("ua-virtgpu-", None),
        ("ua-other", None),
        ("hostdev0", None),
        (None, None),
    ],
)
def test_only_an_alias_of_ours_is_ours(text: str | None, meaning: object) -> None:
    assert metadata.parse_alias(text) == meaning


def test_an_alias_is_read_as_it_was_made() -> None:
    for function in range(8):
        assert metadata.parse_alias(metadata.alias("a.b-c", function)) == ("a.b-c", function)
    with pytest.raises(Usage):
        metadata.alias("x" * 65)
