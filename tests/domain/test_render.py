"""What a guest's XML looks like, from each shipped template and for each mechanism."""

from __future__ import annotations

import os

import pytest
from lxml import etree

from tests.support.attachments import GUESTS, MDEV, UUID, mdev, plain_vf, vendor_vfio, whole
from tests.support.golden import Golden
from virtgpu.domain import render, template
from virtgpu.domain.lint import lint
from virtgpu.domain.target import PCI_DISPLAY, Target, startable
from virtgpu.errors import Config, Conflict, NotFound, Unsupported, Usage

NEW = Target(libvirt=PCI_DISPLAY)


def has_screen(name: str) -> bool:
    return b"<graphics" in template.shipped(name)


COMBINATIONS = [
    (name, guest)
    for name in template.names()
    for guest, (_, shows) in GUESTS.items()
    if has_screen(name) or not shows
]
every_guest = pytest.mark.parametrize(("name", "guest"), COMBINATIONS)


def rendered(name: str, guest: str) -> bytes:
    slices, shows = GUESTS[guest]
    return render(
        template.shipped(name), name="render01", uuid=UUID, attachments=slices, display=shows
    )


@every_guest
def test_the_xml_is_the_reviewed_one(name: str, guest: str, golden: Golden) -> None:
    golden.check(f"domain/{name}-{guest}.xml", rendered(name, guest).decode())


@every_guest
def test_the_xml_is_valid_for_libvirt_and_clean(name: str, guest: str) -> None:
    report = lint(rendered(name, guest))
    if report.schema is None and os.environ.get("CI") != "true":
        pytest.skip("libvirt's schema is not installed: apt install libvirt-common")
    assert report.schema is not None
    assert [one for one in report.findings if one.severity != "note"] == []


def test_every_shipped_template_is_valid_as_it_is() -> None:
    for name in template.names():
        found = lint(template.shipped(name)).findings
        assert [one for one in found if one.severity != "note"] == []


def test_a_guest_for_qemu_without_kvm_has_its_type_and_no_host_cpu() -> None:
    xml = render(
        None, name="g", uuid=None, attachments=(mdev(),), target=Target(domain_type="qemu")
    )
    root = etree.fromstring(xml)
    assert root.get("type") == "qemu"
    assert root.find("cpu") is None
    assert lint(xml).is_clean


def test_the_same_request_twice_gives_the_same_bytes() -> None:
    """What is prepared once for a template is not changed by a guest made from it."""
    first = rendered("default", "mixed")
    rendered("default", "mdev-display")
    assert rendered("default", "mixed") == first


# -- figures and names


@pytest.mark.parametrize(
    "name", ["", " ", " g", "g ", "a/b", ".", "..", "a\nb", "a\0b", "x" * 201, "\udc80"]
)
def test_a_name_that_libvirt_refuses_is_a_usage_error(name: str) -> None:
    with pytest.raises(Usage):
        render(None, name=name, uuid=None, attachments=())


@pytest.mark.parametrize("name", ["render01", "web <1> & 'co'", "größe", "a b", "x" * 200])
def test_any_other_name_is_kept(name: str) -> None:
    root = etree.fromstring(render(None, name=name, uuid=None, attachments=()))
    assert root.findtext("name") == name


def test_memory_and_vcpus_replace_the_templates() -> None:
    root = etree.fromstring(
        render(None, name="g", uuid=None, attachments=(), memory_mib=3000, vcpus=3)
    )
    memory = root.find("memory")
    assert memory is not None
    assert (memory.text, memory.get("unit")) == ("3000", "MiB")
    assert root.findtext("vcpu") == "3"


@pytest.mark.parametrize("size", [{"memory_mib": 0}, {"memory_mib": 1 << 40}, {"vcpus": -1}])
def test_an_impossible_size_is_a_usage_error(size: dict[str, int]) -> None:
    with pytest.raises(Usage):
        render(None, name="g", uuid=None, attachments=(), **size)  # type: ignore[arg-type]


def test_a_template_that_deals_out_memory_by_node_keeps_its_size() -> None:
    text = b"<domain>\n<name>n</name><cpu><numa><cell id='0' memory='1'/></numa></cpu></domain>"
    with pytest.raises(Config, match="line 2: <numa> fixes the memory"):
        render(text, name="g", uuid=None, attachments=(), memory_mib=1024)


def test_a_uuid_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(Usage, match="is not a UUID"):
        render(None, name="g", uuid="4b200000", attachments=())


def test_without_a_uuid_libvirt_chooses_one() -> None:
    text = template.shipped("default").replace(b"</name>", b"</name><uuid>x</uuid>")
    assert b"<uuid>" not in render(text, name="g", uuid=None, attachments=())


# -- devices


def test_a_slice_is_not_given_twice() -> None:
    with pytest.raises(Conflict, match="given twice"):
        render(None, name="g", uuid=None, attachments=(mdev(), mdev()))


def test_two_slices_never_share_a_device() -> None:
    with pytest.raises(Conflict, match=MDEV):
        render(None, name="g", uuid=None, attachments=(mdev(), mdev(slice_id="other")))


def test_a_device_of_the_template_is_not_given_again_whatever_its_spelling() -> None:
    text = template.shipped("default").replace(
        b"<memballoon",
        b"<hostdev mode='subsystem' type='pci'><source><address bus='59'/></source></hostdev>"
        b"<memballoon",
    )
    with pytest.raises(Conflict, match=r"0000:3b:00\.0 is given to the guest by the template"):
        render(text, name="g", uuid=None, attachments=(whole("0000:3b:00.0"),))


def test_a_slice_without_any_device_is_a_usage_error() -> None:
    from msgspec.structs import replace

    with pytest.raises(Usage, match="names no host device"):
        render(None, name="g", uuid=None, attachments=(replace(plain_vf(), functions=()),))


def test_an_id_that_no_alias_can_carry_is_a_usage_error() -> None:
    with pytest.raises(Usage, match="alias"):
        render(None, name="g", uuid=None, attachments=(mdev(slice_id="a b"),))


# -- the screen


def test_a_screen_needs_something_that_shows_it() -> None:
    text = template.shipped("headless")
    with pytest.raises(Config, match="no <graphics>"):
        render(text, name="g", uuid=None, attachments=(mdev(),), display=True)


def test_a_whole_card_has_no_screen_that_qemu_could_show() -> None:
    with pytest.raises(Usage, match="none of the guest's devices is a vGPU"):
        render(None, name="g", uuid=None, attachments=(whole("0000:3b:00.0"),), display=True)


@pytest.mark.parametrize(
    "target", [Target(), Target(libvirt=9_000_000), Target(libvirt=10_002_000)]
)
def test_a_vf_shows_a_screen_from_libvirt_10_3_on(target: Target) -> None:
    """https://libvirt.org/formatdomain.html: display on PCI host devices, since 10.3.0"""
    with pytest.raises(Unsupported, match=r"10\.3\.0"):
        render(None, name="g", uuid=None, attachments=(vendor_vfio(),), target=target, display=True)
    xml = render(None, name="g", uuid=None, attachments=(vendor_vfio(),), target=NEW, display=True)
    assert xml.count(b'ramfb="on"') == 1


@pytest.mark.parametrize(
    ("version", "can"), [(None, True), (9_000_000, False), (9_006_000, False), (9_007_000, True)]
)
def test_a_variant_driver_needs_libvirt_9_7(version: int | None, can: bool) -> None:
    """https://libvirt.org/news.html, 9.7.0: VFIO variant drivers"""
    found = startable(Target(libvirt=version), (mdev(), vendor_vfio()))
    assert (found is None) is can
    assert startable(Target(libvirt=version), (mdev(), plain_vf())) is None


def test_an_unknown_template_names_those_that_there_are() -> None:
    with pytest.raises(NotFound) as caught:
        template.shipped("nope")
    assert "default" in (caught.value.hint or "")
