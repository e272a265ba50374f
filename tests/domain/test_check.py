"""Each rule with what breaks it; and that no rule is without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.attachments import mdev
from virtgpu.domain import check, render
from virtgpu.errors import Config


def domain(devices: str, metadata: str = "") -> str:
    return (
        "<domain type='kvm'><name>g</name>"
        f"{metadata}<memory>1048576</memory>"
        "<os><type arch='x86_64' machine='q35'>hvm</type></os>"
        f"<devices>{devices}</devices></domain>"
    )


def at(slot: int, function: int, more: str = "", tag: str = "rng model='virtio'") -> str:
    name = tag.partition(" ")[0]
    return (
        f"<{tag}><backend model='random'>/dev/urandom</backend>"
        f"<address type='pci' domain='0' bus='0' slot='{slot}' function='{function}' {more}/>"
        f"</{name}>"
    )


def pci(source: str, more: str = "") -> str:
    return (
        f"<hostdev mode='subsystem' type='pci' {more}>"
        f"<source><address {source}/></source></hostdev>"
    )


def vgpu(number: int, alias: str = "", more: str = "") -> str:
    name = f"<alias name='{alias}'/>" if alias else ""
    return (
        f"<hostdev mode='subsystem' type='mdev' model='vfio-pci' {more}><source>"
        f"<address uuid='4b200000-0000-4000-8000-{number:012}'/></source>{name}</hostdev>"
    )


METADATA = "<metadata><v:guest xmlns:v='urn:virtgpu:guest:1' version='1'>{}</v:guest></metadata>"
BROKEN = {
    "schema": domain("<nonsense/>"),
    "double-address": domain(at(4, 0) + at(4, 0)),
    "multifunction": domain(at(4, 0) + at(4, 1)),
    "double-alias": domain(vgpu(1, "ua-a") + vgpu(2, "ua-a")),
    "double-device": domain(pci("bus='0x65'") + pci("domain='0x0000' bus='101' slot='0'")),
    "double-ramfb": domain(
        vgpu(1, more="display='on' ramfb='on'") + vgpu(2, more="display='on' ramfb='on'")
    ),
    "own-metadata": domain("", METADATA.format("<v:slice id='a b'/>")),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_what_breaks_a_rule_is_found_by_that_rule_alone(rule: str) -> None:
    report = check.check(BROKEN[rule])
    assert report.schema is not None, "libvirt's schema is not installed: apt install libvirt0"
    assert {one.rule for one in report.findings} == {rule}
    assert all("\n" not in one.message for one in report.findings)


def test_every_rule_has_something_that_breaks_it() -> None:
    assert len(BROKEN) == len(check.RULES) + 1  # and the schema


def test_a_file_without_fault_is_clean() -> None:
    report = check.check(domain(at(4, 0, "multifunction='on'") + at(4, 1) + vgpu(1) + vgpu(2)))
    assert report.findings == ()
    assert report.is_clean


def test_a_warning_leaves_it_clean_and_an_error_does_not() -> None:
    assert check.check(BROKEN["multifunction"]).is_clean
    assert not check.check(BROKEN["double-address"]).is_clean


@pytest.mark.parametrize(
    ("devices", "severity"),
    [
        (at(4, 0) + at(4, 1), "warning"),
        (at(4, 0, "multifunction='off'") + at(4, 1), "error"),
        (at(4, 1), "error"),  # function 0 is missing
        (at(0x1F, 2), None),  # beside q35's own LPC bridge, which no XML names
    ],
)
def test_a_slot_of_several_functions_needs_a_function_0_that_says_so(
    devices: str, severity: str | None
) -> None:
    found = [one.severity for one in check.check(domain(devices)).findings]
    assert found == ([] if severity is None else [severity])


def test_an_address_in_another_slot_bus_or_domain_is_another_address() -> None:
    bus = at(4, 0).replace("bus='0'", "bus='1'")
    assert check.check(domain(at(4, 0) + at(5, 0) + bus)).findings == ()


def test_a_guest_whose_metadata_and_devices_disagree_is_warned_of_in_both_ways() -> None:
    text = render(None, name="g", uuid=None, attachments=(mdev(),)).decode()
    alias = '<alias name="ua-virtgpu-4b200000"/>'
    (orphan,) = check.check(text.replace('id="4b200000"', 'id="other"')).findings[:1]
    assert orphan.severity == "warning"
    messages = [one.message for one in check.check(text.replace(alias, "")).findings]
    assert messages == ["slice 4b200000 has no host device in the domain"]


def test_a_schema_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "domain.rng").write_text("<grammar")
    (tmp_path / "other.rng").write_text("<html/>")
    for name in ("domain.rng", "other.rng", "none.rng"):
        with pytest.raises(Config, match=name) as caught:
            check.check(domain(""), schema=tmp_path / name)
        assert "\n" not in caught.value.message


def test_without_a_schema_the_report_says_that_it_was_not_validated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check, "SCHEMAS", ("/nowhere/domain.rng",))
    report = check.check(BROKEN["schema"])
    assert (report.schema, report.findings) == (None, ())


def test_a_file_full_of_faults_gives_a_readable_number_of_findings() -> None:
    report = check.check(domain("<nonsense/>" * 500))
    assert 0 < len(report.findings) <= 20
