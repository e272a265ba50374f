"""Whatever is given in place of domain XML: an error of ours that says what is wrong."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.attachments import mdev, whole
from tests.support.trees import CASES
from virtgpu.domain import elements, read, render, template
from virtgpu.domain.lint import lint
from virtgpu.errors import Config, Conflict, Unsupported

REAL = [path.read_bytes() for path in sorted(CASES.glob("L*.xml"))]
REAL += [template.shipped(name) for name in template.names()]
REAL += [render(None, name="g", uuid=None, attachments=(mdev(), whole("0000:09:00.0", 2)))]

BOMB = b"""<!DOCTYPE domain [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">]>
<domain><name>&d;</name></domain>"""
HOSTILE = {
    "empty": b"",
    "blank": b" \n",
    "no xml": b"not xml",
    "a list": b"<domains><domain/></domains>",
    "cut off": b"<domain type='kvm'><name>x",
    "two roots": b"<domain/><domain/>",
    "NUL": b"<domain>\0</domain>",
    "not UTF-8": b"<domain><name>\xff\xfe</name></domain>",
    "an encoding that nobody has": b"<?xml version='1.0' encoding='klingon'?><domain/>",
    "UTF-16 that is none": b"\xff\xfe<domain/>",
    "bomb": BOMB,
    "an entity from a file": b"<!DOCTYPE domain [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"
    b"<domain><name>&x;</name></domain>",
    "an entity from the net": b"<!DOCTYPE domain SYSTEM 'http://192.0.2.1/x.dtd'><domain/>",
    "an undeclared entity": b"<domain><name>&x;</name></domain>",
    "a namespace without a name": b"<domain><virtgpu:guest/></domain>",
    "deep": b"<domain>" + b"<a>" * 5000 + b"</a>" * 5000 + b"</domain>",
    "large": b"<domain>" + b" " * elements.MAX_BYTES + b"</domain>",
    "a great attribute": b"<domain type='" + b"x" * (elements.MAX_BYTES + 1) + b"'/>",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_domain_is_a_config_error_of_one_line(what: str) -> None:
    for act in (
        read.guest,
        lint,
        lambda raw: render(raw, name="g", uuid=None, attachments=()),
    ):
        with pytest.raises(Config) as caught:
            act(HOSTILE[what])
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 400
        assert "root:" not in caught.value.message  # of /etc/passwd


def test_a_processing_instruction_does_nothing(tmp_path: Path) -> None:
    raw = b"<?xml-stylesheet href='file:///etc/passwd'?><domain><name>g</name></domain>"
    assert read.guest(raw).name == "g"


@given(raw=st.binary(max_size=400))
def test_random_bytes_give_nothing_but_config_errors(raw: bytes) -> None:
    survives(raw)


@given(text=st.text(max_size=200))
def test_random_text_gives_nothing_but_config_errors(text: str) -> None:
    with contextlib.suppress(Config):
        read.guest(text)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real file with some pieces cut, doubled, swapped or overwritten."""
    raw = draw(st.sampled_from(REAL))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.integers(0, 40)))
        piece = draw(
            st.sampled_from([b"", raw[start:end] * 2, b"'", b"<", b"/>", b"-1", b"0x", b"&amp;"])
            | st.binary(max_size=8)
        )
        raw = raw[:start] + piece + raw[end:]
    return raw


@given(raw=mutated())
def test_a_damaged_file_is_read_or_refused_with_an_error_of_ours(raw: bytes) -> None:
    survives(raw)


VALUES = st.sampled_from(
    ["", "0", "-1", "0x", "08", "99999999999999999999999", "on", "é", "0xffffffff", " 5 ", "\u0661"]
)


@given(data=st.data())
def test_any_value_in_any_attribute_is_read_or_refused(data: st.DataObject) -> None:
    from lxml import etree

    root = etree.fromstring(data.draw(st.sampled_from(REAL)), elements.PARSER)
    nodes = [node for node in root.iter() if isinstance(node.tag, str) and node.attrib]
    for _ in range(data.draw(st.integers(1, 5))):
        node = data.draw(st.sampled_from(nodes))
        node.set(data.draw(st.sampled_from(sorted(map(str, node.attrib)))), data.draw(VALUES))
    survives(etree.tostring(root))


def survives(raw: bytes) -> None:
    try:
        read.guest(raw)
        report = lint(raw)
    except Config:
        return
    assert all(isinstance(one.message, str) for one in report.findings)
    try:
        made = render(raw, name="g", uuid=None, attachments=(mdev(), whole("0000:77:00.0", 2)))
    except (Config, Conflict, Unsupported):
        return
    assert [one.slice_id for one in read.guest(made).attachments] == ["4b200000", "card"]
