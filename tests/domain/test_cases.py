"""Public bug reports about domain XML, each with its source."""

from __future__ import annotations

import pytest
from lxml import etree

from tests.support.attachments import GUESTS, MDEV, mdev, pci, plain_vf, vendor_vfio, whole
from tests.support.trees import CASES
from virtgpu.domain import read, render, template, topology
from virtgpu.domain.lint import lint
from virtgpu.domain.target import PCI_DISPLAY, Target
from virtgpu.errors import Conflict
from virtgpu.model.attachment import Attachment


def case(name: str) -> bytes:
    return (CASES / f"{name}.xml").read_bytes()


def found(name: str) -> list[tuple[str, str, int | None]]:
    found = lint(case(name)).findings
    return [(one.rule, one.severity, one.line) for one in found if one.severity != "note"]


def source_addresses(xml: bytes) -> list[dict[str, str]]:
    return [dict(node.attrib) for node in etree.fromstring(xml).iterfind(".//source/address")]  # type: ignore[misc]


class TestL01:
    """https://github.com/apache/cloudstack/issues/12960"""

    def test_a_gpu_in_domain_1_keeps_its_domain(self) -> None:
        xml = render(None, name="g1", uuid=None, attachments=(whole("0001:d6:00.0"),))
        assert source_addresses(xml) == [
            {"domain": "0x0001", "bus": "0xd6", "slot": "0x00", "function": "0x0"}
        ]

    def test_the_wrong_one_is_no_device_and_one_finding_on_its_attribute(self) -> None:
        assert read.guest(case("L01-wrong")).devices == ()
        assert found("L01-wrong") == [("address-out-of-range", "error", 8)]


class TestL02:
    """https://github.com/canonical/lxd/issues/12643"""

    def test_both_functions_share_a_slot_and_only_the_first_says_multifunction(self) -> None:
        xml = render(None, name="g1", uuid=None, attachments=(whole("0000:c3:00.0", 2),))
        at = [dict(node.attrib) for node in etree.fromstring(xml).iterfind(".//hostdev/address")]
        assert len({(one["bus"], one["slot"]) for one in at}) == 1
        assert [one["function"] for one in at] == ["0x0", "0x1"]
        assert [one.get("multifunction") for one in at] == ["on", None]


class TestL03:
    """https://github.com/Juniper/wistar/issues/14"""

    def test_two_devices_on_one_address_are_both_named_with_their_lines(self) -> None:
        (finding,) = lint(case("L03-a")).findings
        assert (finding.rule, finding.severity) == ("double-address", "error")
        assert "<memballoon> and <interface> (line " in finding.message
        assert "0000:00:0a.0" in finding.message

    def test_a_function_0_that_says_nothing_is_a_warning_on_its_line(self) -> None:
        lines = case("L03-b").splitlines()
        ((rule, severity, line),) = found("L03-b")
        assert (rule, severity) == ("multifunction-missing", "warning")
        assert line is not None
        assert lines[line - 1].strip() == b"<interface type='network'>"

    def test_a_function_0_that_says_off_is_an_error(self) -> None:
        assert [one[:2] for one in found("L03-c")] == [("multifunction-off", "error")]

    @pytest.mark.parametrize("name", ["L03-a", "L03-b", "L03-c"])
    def test_no_address_of_any_element_is_taken(self, name: str) -> None:
        given = etree.fromstring(case(name))
        taken = {topology.guest_address(node) for node in given.find("devices")}  # type: ignore[union-attr]
        xml = render(case(name), name="g", uuid=None, attachments=(whole("0000:09:00.0", 2),))
        ours = [
            topology.guest_address(node)
            for node in etree.fromstring(xml).iterfind("devices/hostdev")
        ]
        assert len(set(ours)) == 2
        assert not taken & set(ours)


class TestL04:
    """https://github.com/kubevirt/kubevirt/pull/12053"""

    def test_two_ramfb_are_one_error_that_names_both(self) -> None:
        (finding,) = [one for one in lint(case("L04")).findings if one.severity == "error"]
        assert finding.rule == "double-ramfb"
        assert "lines 7, 10" in finding.message

    def test_a_guest_with_several_vgpus_has_one_ramfb_on_the_first(self) -> None:
        slices = (
            vendor_vfio(),
            mdev(),
            mdev(slice_id="x", uuid="4b200000-0000-4000-8000-00000000aaaa"),
        )
        xml = render(
            None, name="g", uuid=None, attachments=slices, display=True,
            target=Target(libvirt=PCI_DISPLAY),
        )  # fmt: skip
        assert [one.ramfb for one in read.guest(xml).devices] == [True, None, None]


class TestL05:
    """https://github.com/kubevirt/kubevirt/issues/7371"""

    def test_a_vendors_vf_is_unmanaged_and_a_plain_one_managed(self) -> None:
        xml = render(None, name="g", uuid=None, attachments=(vendor_vfio(), plain_vf()))
        assert [one.managed for one in read.guest(xml).devices] == [False, True]


def test_l06_rendering_sets_no_memory_limit() -> None:
    """https://github.com/kubevirt/kubevirt/pull/17805"""
    for name in template.names():
        for slices, _ in GUESTS.values():
            xml = render(template.shipped(name), name="g", uuid=None, attachments=slices)
            assert b"hard_limit" not in xml


OTHER = "4b200000-0000-4000-8000-00000000bbbb"


def devices(*slices: Attachment) -> tuple[read.HostDevice, ...]:
    """As a guest's finished XML gives them."""
    return read.guest(render(None, name="new", uuid=None, attachments=slices)).devices


class TestL08:
    """https://github.com/truenas/middleware/pull/18767"""

    def test_one_device_in_two_spellings_is_one_device(self) -> None:
        findings = [one for one in lint(case("L08-one")).findings if one.severity == "error"]
        assert [(one.rule, one.line) for one in findings] == [("double-device", 10)]
        assert "0000:65:00.0" in findings[0].message
        assert "first on line 7" in findings[0].message

    def test_the_device_of_another_guest_is_refused_with_its_name(self) -> None:
        guests = [read.guest(case("L08-one"))]
        with pytest.raises(Conflict, match="guest 'one'"):
            read.require_free(devices(whole("0000:65:00.0")), guests)

    def test_the_same_holds_for_mediated_devices_in_any_spelling(self) -> None:
        text = render(None, name="one", uuid=None, attachments=(mdev(),))
        other = read.guest(text.replace(MDEV.encode(), MDEV.replace("-", "").upper().encode()))
        with pytest.raises(Conflict, match="guest 'one'"):
            read.require_free(devices(mdev(MDEV.upper(), slice_id=OTHER)), [other])

    def test_the_guests_own_definition_is_no_obstacle(self) -> None:
        guest = read.Guest(
            name="one", uuid="u1", devices=(read.HostDevice(pci=pci("0000:65:00.0")),)
        )
        read.require_free(devices(whole("0000:65:00.0")), [guest], uuid="u1")

    def test_a_device_of_nobody_is_free(self) -> None:
        read.require_free(devices(whole("0000:66:00.0")), [read.guest(case("L08-one"))])


class TestL10:
    """https://bugs.launchpad.net/nova/+bug/2074219"""

    def test_devices_without_alias_are_read_beside_ours(self) -> None:
        devices = read.guest(case("L10")).devices
        assert [one.slice_id for one in devices] == [None, "1"]

    def test_a_missing_alias_is_no_finding(self) -> None:
        assert [one for one in lint(case("L10")).findings if one.severity == "error"] == []

    def test_as_a_template_it_loses_our_element_and_no_other(self) -> None:
        xml = render(case("L10"), name="g1", uuid=None, attachments=())
        assert [one.slice_id for one in read.guest(xml).devices] == [None]
        assert b"c2170000-0000-4000-8000-000000008804" in xml
        assert b'name="ua-root"' in xml


class TestL13:
    """https://github.com/kubevirt/kubevirt/issues/11981"""

    @pytest.mark.parametrize("spare", [0, 2, 5])
    def test_a_guest_whose_ports_are_taken_gets_one_a_gpu_and_spare_ones(self, spare: int) -> None:
        def ports(xml: bytes) -> int:
            return len(etree.fromstring(xml).findall("devices/controller[@model='pcie-root-port']"))

        waiting = topology.layout_of(etree.fromstring(case("L13"))).waiting
        slices = (mdev(), whole("0000:09:00.0", 2))
        xml = render(case("L13"), name="g", uuid=None, attachments=slices, spare_ports=spare)
        assert ports(xml) == ports(case("L13")) + len(slices) + waiting + spare
