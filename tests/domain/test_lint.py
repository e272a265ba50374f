"""Each rule with what breaks it; suppression, mending, the schema, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tests.support.attachments import mdev as our_mdev
from tests.support.command import virtgpu
from tests.support.lint_examples import EXAMPLES, HOST, at, dom, hostdev, rng
from tests.support.trees import CASES, build, case
from virtgpu.domain import render, values
from virtgpu.domain.lint import RULES, Context, fix, lint, lint_all, schema
from virtgpu.domain.lint.sarif import sarif
from virtgpu.errors import Config
from virtgpu.host.local import LocalDoor
from virtgpu.inventory.view import read_view


def codes(xml: str | bytes, context: Context = Context()) -> set[str]:  # noqa: B008
    return {one.code for one in lint(xml, context).findings}


# -- every rule


@pytest.mark.parametrize("code", EXAMPLES)
def test_what_breaks_a_rule_is_found_and_what_keeps_it_is_not(code: str) -> None:
    example = EXAMPLES[code]
    report = lint(example.bad, example.context)
    assert report.schema is not None, "libvirt's schema is not installed: apt install libvirt0"
    found = [one for one in report.findings if one.code == code]
    assert found
    assert all(one.line and "\n" not in one.message for one in found)
    better = lint(example.good, example.better or example.context)
    assert [one for one in better.findings if one.code == code] == []


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_domain_that_keeps_a_rule_is_no_error_by_another(code: str) -> None:
    example = EXAMPLES[code]
    found = lint(example.good, example.better or example.context)
    # Two of them name files that this host has not, one a firmware that QEMU would look for.
    assert [one for one in found.findings if one.severity == "error"] == []


def test_there_are_examples_for_no_rule_that_is_gone() -> None:
    # What is no domain at all has a test of its own below.
    assert EXAMPLES.keys() | {"VG002"} == RULES.keys()


def test_every_rule_says_what_a_person_needs() -> None:
    for code, rule in RULES.items():
        assert code == rule.code
        assert len(rule.why) > 30
        assert rule.why.endswith(".")
        assert rule.remedy
        assert rule.source
        assert rule.versions
        assert not rule.remedy.endswith(".")
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    assert len(RULES) >= 40


# -- details of some


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        (rng(at("0x04")) + rng(at("0x04", 1)), "VG103"),
        (rng(at("0x04", 0, " multifunction='off'")) + rng(at("0x04", 1)), "VG102"),
        (rng(at("0x04", 1)), "VG104"),
        (rng(at("0x1f", 2)), None),  # beside q35's own LPC bridge, which no XML names
        (rng(at("0x00")) * 2, None),  # all zeros: libvirt finds a place
    ],
)
def test_a_slot_of_several_functions_needs_a_function_0_that_says_so(
    devices: str, found: str | None
) -> None:
    assert codes(dom(devices)) == ({found} - {None})


def test_an_address_in_another_slot_bus_or_domain_is_another_address() -> None:
    assert codes(dom(rng(at("0x04")) + rng(at("0x05")) + rng(at("0x04", bus="0x01")))) == set()


def test_a_guest_whose_metadata_and_devices_disagree_is_warned_of_in_both_ways() -> None:
    text = render(None, name="g", uuid=None, attachments=(our_mdev(),)).decode()
    alias = '<alias name="ua-virtgpu-4b200000"/>'
    messages = {one.message for one in lint(text.replace('id="4b200000"', 'id="other"')).findings}
    assert "a device of slice 4b200000, which the metadata does not name" in messages
    messages = {one.message for one in lint(text.replace(alias, "")).findings}
    assert "slice 4b200000 has no host device in the domain" in messages


def test_locked_memory_counts_devices_only_with_a_guest_iommu_and_since_8_7() -> None:
    from tests.support.lint_examples import old

    iommu = "<iommu model='intel'><driver caching_mode='on'/></iommu>"
    limit = "<memtune><hard_limit unit='GiB'>9</hard_limit></memtune>"
    two = hostdev("0000:17:00.0") + hostdev("0000:18:00.0")
    assert "VG501" in codes(dom(two + iommu, limit))
    assert "VG501" not in codes(dom(two, limit))
    assert "VG501" not in codes(dom(two + iommu, limit), old(8_006_000))


def test_a_limit_in_libvirts_own_margin_is_a_warning_and_room_for_later_does_not_count() -> None:
    def found(gib: int, more: str = "") -> list[str]:
        limit = f"<memtune><hard_limit unit='GiB'>{gib}</hard_limit></memtune>"
        text = dom(hostdev("0000:17:00.0"), limit + more, memory="16")
        return [one.severity for one in lint(text).findings if one.code == "VG501"]

    room = "<maxMemory slots='2' unit='GiB'>64</maxMemory>"
    assert [found(16), found(17, room)] == [["error"], []]
    assert (
        found(16, "<cpu><numa><cell id='0' cpus='0-3' memory='15' unit='GiB'/></numa></cpu>") == []
    )
    limit = "<memtune><hard_limit unit='MiB'>8600</hard_limit></memtune>"
    (one,) = [f for f in lint(dom(hostdev("0000:17:00.0"), limit)).findings if f.code == "VG501"]
    assert one.severity == "warning"


# -- the schema


def test_a_schema_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "domain.rng").write_text("<grammar")
    (tmp_path / "other.rng").write_text("<html/>")
    for name in ("domain.rng", "other.rng", "none.rng"):
        with pytest.raises(Config, match=name) as caught:
            lint(dom(), schema=tmp_path / name)
        assert "\n" not in caught.value.message


def test_without_a_schema_the_report_says_that_it_was_not_validated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schema, "SCHEMAS", ("/nowhere/domain.rng",))
    report = lint(EXAMPLES["VG001"].bad)
    assert (report.schema, report.findings) == (None, ())


def test_a_file_full_of_faults_gives_a_readable_number_of_findings() -> None:
    report = lint(dom("<nonsense/>" * 500))
    assert 0 < len(report.findings) <= 20


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("<domain type='kvm'>\n<name>g</name>\n<devices>\n<nonsense/>\n</devices></domain>", 4,
         "<nonsense>"),
        ("<domain type='kvm'>\n<name>g</name>\n<devices>\n<rng model='virtio'>\n"
         "<rate bytes='1' period='x'/><backend model='random'/></rng></devices></domain>", 5,
         "period='x'"),
        ("<domain type='kvm'>\n<name>g</name>\n<memory unit='pages'>4</memory></domain>", 3,
         "unit='pages'"),
        ("<domain type='kvm'>\n<name>g</name>\n<vcpu>many</vcpu>\n<odd/></domain>", 3, "'many'"),
    ],
)  # fmt: skip
def test_the_schema_blames_the_innermost_place(text: str, line: int, words: str) -> None:
    found = [one for one in lint(text).findings if one.code == "VG001"]
    assert found[0].line == line
    assert words in found[0].message


# -- suppression


def test_a_comment_keeps_a_rule_quiet_for_the_element_after_it() -> None:
    bad = hostdev("0000:17:00.0") + hostdev("0000:17:00.0")
    comment = "<!-- virtgpu: ignore VG201, VG901 the test host -->"
    report = lint(dom(hostdev("0000:17:00.0") + comment + hostdev("0000:17:00.0")))
    assert "VG201" not in {one.code for one in report.findings}
    assert report.ignored == 2
    assert "VG201" in codes(dom(bad))
    assert "VG201" in codes(dom(comment + bad))  # the first of the two is not to blame


def test_a_comment_above_the_domain_holds_for_all_of_it() -> None:
    text = "<!-- virtgpu: ignore VG201 known -->\n" + EXAMPLES["VG201"].bad
    assert "VG201" not in codes(text)


# -- mending


FIXABLE = [
    code
    for code, example in EXAMPLES.items()
    if any(one.code == code and one.can_fix for one in lint(example.bad, example.context).findings)
]


@pytest.mark.parametrize("code", FIXABLE)
def test_a_mend_makes_the_finding_go_and_no_error_come(code: str) -> None:
    example = EXAMPLES[code]
    before = lint(example.bad, example.context)
    after, done = fix(example.bad, example.context)
    assert code in {one.code for one in done}
    report = lint(after, example.context)
    assert code not in {one.code for one in report.findings}
    assert {one.code for one in report.findings} <= {one.code for one in before.findings}
    again, more = fix(after, example.context)
    assert (again, more) == (after, ())


def test_what_is_mended_shows_in_no_other_line() -> None:
    before = (CASES / "L03-c.xml").read_bytes()
    after, _ = fix(before)
    assert after == before.replace(b"multifunction='off'", b"multifunction='on'")


def test_a_file_without_a_mend_stays_byte_for_byte() -> None:
    for name in ("L03-a", "L08-one", "L10"):
        before = (CASES / f"{name}.xml").read_bytes()
        assert fix(before) == (before, ())


# -- with a host


def host(tmp_path: Path, name: str) -> Context:
    door = LocalDoor(build(tmp_path, case(name)), state_dir=tmp_path)
    return Context(view=read_view(door), exists=door.exists)


def test_l02_half_a_card_names_the_missing_function(tmp_path: Path) -> None:
    """https://github.com/canonical/lxd/issues/12643"""
    report = lint((CASES / "L02-half.xml").read_bytes(), host(tmp_path, "L02"))
    (found,) = [one for one in report.findings if one.code == "VG112"]
    assert "0000:c3:00.1" in found.message
    assert found.severity == "warning"


def test_l05_each_vf_is_held_against_its_driver(tmp_path: Path) -> None:
    """https://github.com/kubevirt/kubevirt/issues/7371"""
    report = lint((CASES / "L05.xml").read_bytes(), host(tmp_path, "L05"))
    errors = [one for one in report.findings if one.severity == "error"]
    assert [(one.code, one.line) for one in errors] == [("VG203", 7), ("VG205", 13)]
    assert "iavf" in errors[0].message
    assert "virsh nodedev-detach pci_0000_c3_1b_1" in (errors[0].remedy or "")


def test_a_host_that_says_nothing_is_held_against_nobody(tmp_path: Path) -> None:
    door = LocalDoor(build(tmp_path, {}), state_dir=tmp_path)
    context = Context(view=read_view(door), exists=None)
    for example in EXAMPLES.values():
        without = codes(example.bad)
        with_empty = codes(example.bad, context)
        assert with_empty - without <= {"VG206"}


def test_the_view_of_a_host_reads_what_its_tree_says(tmp_path: Path) -> None:
    tree = case("L05")
    tree["files"] |= {
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
        "/sys/devices/system/cpu/online": "0-63\n",
        "/proc/cpuinfo": "processor : 0\naddress sizes\t: 52 bits physical, 57 bits virtual\n",
    }
    view = read_view(LocalDoor(build(tmp_path, tree), state_dir=tmp_path))
    assert (view.page_kib, view.cpus, view.phys_bits) == ((2048,), "0-63", 52)
    by_name = {str(one.address): one for one in view.functions.values()}
    assert by_name["0000:82:00.4"].vgpu_type == "1147"
    assert str(by_name["0000:82:00.4"].pf) == "0000:82:00.0"
    assert by_name["0000:c3:1b.1"].driver == "iavf"
    assert by_name["0000:c3:1b.1"].iommu_group == 210


# -- several


def test_l08_the_other_domain_is_named() -> None:
    """https://github.com/truenas/middleware/pull/18767"""
    names = ("L08-one", "L08-two")
    files = [(name, (CASES / f"{name}.xml").read_bytes()) for name in names]
    reports = dict(lint_all(files))
    shared = [one.message for one in reports["L08-two"].findings if one.code == "VG202"]
    assert shared == ["host device 0000:65:00.0 belongs to guest 'one' too"]


def test_a_file_that_is_no_domain_is_a_finding_and_the_others_are_checked(tmp_path: Path) -> None:
    broken, odd = tmp_path / "broken.xml", tmp_path / "odd.xml"
    broken.write_text("<domain>\n<name>g</nom></domain>")
    odd.write_text("<network/>")
    good = str(CASES / "L03-b.xml")
    done = virtgpu("vm", "lint", str(broken), str(odd), good)
    assert done.code == 1
    assert f"{broken}:2: error: no XML: Opening and ending tag mismatch" in done.out
    assert f"{odd}: error: the outermost element is <network>, not <domain> [VG002" in done.out
    assert f"{good}:" in done.out
    assert "3 checked: 2 errors" in done.out
    body = json.loads(virtgpu("vm", "lint", str(broken), "--sarif").out)
    assert body["runs"][0]["results"][0]["ruleId"] == "VG002"


def test_all_guests_are_checked_each_against_the_others(tmp_path: Path) -> None:
    pytest.importorskip("libvirt", reason="libvirt-python is an extra; scripts/test installs it")
    twice = "<node>"
    for name in ("one", "two"):
        twice += (
            f"<domain type='test'><name>{name}</name><memory>65536</memory>"
            f"<os><type>hvm</type></os><devices>{hostdev('0001:65:00.0')}</devices></domain>"
        )
    file = tmp_path / "node.xml"
    file.write_text(f"{twice}</node>")
    done = virtgpu("--connect", f"test://{file}", "vm", "lint", "--all")
    assert done.code == 1
    assert "host device 0001:65:00.0 belongs to guest 'two' too [VG202 shared-device]" in done.out
    assert "host device 0001:65:00.0 belongs to guest 'one' too [VG202 shared-device]" in done.out
    assert "2 checked: 2 errors" in done.out
    # Without the host's own hypervisor nothing is held against this machine.
    assert "VG207" not in done.out
    assert "1 checked" in virtgpu("--connect", f"test://{file}", "vm", "lint", "one", "one").out


# -- output


def test_sarif_names_rules_places_and_levels() -> None:
    report = lint(EXAMPLES["VG201"].bad)
    body = sarif([("a.xml", report.findings)], "1")
    (one,) = body["runs"]
    rules = [rule["id"] for rule in one["tool"]["driver"]["rules"]]
    for result in one["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "a.xml"
        assert place["physicalLocation"]["region"]["startLine"] >= 1


def test_the_command_ends_with_1_for_an_error_and_0_for_a_warning() -> None:
    bad, warned = str(CASES / "L03-a.xml"), str(CASES / "L03-b.xml")
    done = virtgpu("vm", "lint", bad)
    assert done.code == 1
    assert f"{bad}:12: error: <memballoon> and <interface> (line 7)" in done.out
    done = virtgpu("vm", "lint", warned)
    assert done.code == 0
    assert "[VG103 multifunction-missing]" in done.out
    assert "VG103" not in virtgpu("vm", "lint", warned, "--level", "error").out
    assert "VG103" not in virtgpu("vm", "lint", warned, "--ignore", "vg103").out


def test_the_command_prints_json_and_sarif() -> None:
    bad = str(CASES / "L03-a.xml")
    body = json.loads(virtgpu("vm", "lint", bad, "-o", "json").out)
    assert body["results"][0]["findings"][0]["code"] == "VG101"
    body = json.loads(virtgpu("vm", "lint", bad, "--sarif").out)
    assert body["version"] == "2.1.0"


def test_the_command_explains_a_rule() -> None:
    out = virtgpu("vm", "lint", "--explain", "vg501").out
    assert out.startswith("VG501 locked-memory (error)")
    assert "kubevirt/pull/17805" in out


def test_the_command_mends_a_file_and_shows_how(tmp_path: Path) -> None:
    file = tmp_path / "c.xml"
    before = (CASES / "L03-c.xml").read_bytes()
    file.write_bytes(before)
    done = virtgpu("vm", "lint", str(file), "--fix", "--dry-run")
    assert file.read_bytes() == before
    assert "+      <address" in done.out
    assert virtgpu("vm", "lint", str(file), "--fix").out == done.out
    assert b"multifunction='on'" in file.read_bytes()
    assert virtgpu("vm", "lint", str(file), "--fix").out == "nothing to mend\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 2),
        (("--all", "a.xml"), 2),
        (("a.xml", "guest"), 2),
        (("none.xml",), 4),
        (("--explain", "VG000"), 4),
        (("none.xml", "--ignore", "VG000"), 4),
        (("a.xml", "--libvirt", "eleven"), 2),
        (("guest", "--fix"), 2),
        (("--all", "--fix"), 2),
        (("a.xml", "--fix", "--sarif"), 2),
        (("a.xml", "--dry-run"), 2),
    ],
)
def test_a_question_that_makes_no_sense_is_one_sentence(words: tuple[str, ...], code: int) -> None:
    done = virtgpu("vm", "lint", *words)
    assert done.code == code
    assert done.err.startswith(("error: ", "Usage"))
    assert "Traceback" not in done.err


# -- values and hostile input


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_numbers_reads_back(found: set[int]) -> None:
    text = values.list_of(frozenset(found))
    assert values.numbers_of(text) == (frozenset(found) if found else None)


@given(st.text(max_size=12))
def test_no_text_of_a_list_or_size_makes_it_fall(text: str) -> None:
    values.numbers_of(text)
    values.factor(text)
    assert values.size_text(1 << 30) == "1 GiB"


@given(
    code=st.sampled_from(sorted(EXAMPLES)),
    number=st.integers(0, 400),
    word=st.sampled_from(["", "-1", "x", "0x", "99999999999999999999", "on", " ", "7"]),
)
def test_no_attribute_or_text_makes_a_rule_fall(code: str, number: int, word: str) -> None:
    root = etree.fromstring(EXAMPLES[code].bad)
    nodes = [node for node in root.iter() if isinstance(node.tag, str)]
    node = nodes[number % len(nodes)]
    if node.attrib:
        node.set(list(node.attrib)[number % len(node.attrib)], word)
    else:
        node.text = word
    text = etree.tostring(root)
    lint(text, HOST)
    fix(text, HOST)


def test_a_domain_of_nothing_is_checked() -> None:
    assert lint(b"<domain/>", HOST, schema=None).findings == ()
