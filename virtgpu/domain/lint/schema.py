"""VG001: libvirt's own RELAX NG schema, and the place that it does not take."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

from lxml import etree

from virtgpu.domain.lint.addresses import LIMITS, out_of_range
from virtgpu.domain.lint.model import Hit, Subject, rule
from virtgpu.errors import Config

# Where libvirt's packages put it; which of them is the distribution's business.
SCHEMAS = (
    "/usr/share/libvirt/schemas/domain.rng",
    "/usr/local/share/libvirt/schemas/domain.rng",
)
CODE, UNREADABLE = "VG001", "VG002"
_MAX_FINDINGS = 20
_MAX_TRIES = 400


def find_schema() -> str | None:
    """libvirt's schema on this machine, None when it is not installed."""
    return next((path for path in SCHEMAS if Path(path).is_file()), None)


@lru_cache(maxsize=4)
def _load(path: str) -> etree.RelaxNG:
    try:
        return etree.RelaxNG(etree.parse(path, etree.XMLParser(no_network=True)))
    except (etree.LxmlError, OSError) as error:
        reason = " ".join(str(error).split())
        raise Config(
            f"{path}: no RELAX NG schema: {reason}",
            hint="give libvirt's domain.rng, with the files beside it",
        ) from error


@rule(
    CODE,
    "schema",
    "error",
    why="libvirt's schema does not take the domain. libvirt itself leaves out what it does not"
    " know, without a word, unless it is asked to validate (virsh edit, virsh define --validate).",
    remedy="compare it with https://libvirt.org/formatdomain.html",
    source="libvirt's domain.rng, as it is installed or given with --schema",
    versions="the libvirt whose schema it is",
)
def schema(_s: Subject) -> Iterator[Hit]:
    # Called by the engine with the path; as a rule of the list it finds nothing by itself.
    return iter(())


@rule(
    UNREADABLE,
    "no-domain",
    "error",
    why="The text is no XML, or no libvirt domain, so nothing in it can be checked.",
    remedy="give a libvirt domain XML file, as `virsh dumpxml` prints it",
    source="https://www.w3.org/TR/xml/; formatdomain, element domain",
)
def no_domain(_s: Subject) -> Iterator[Hit]:
    # Found before there is a tree to ask: see engine.lint_all.
    return iter(())


def validate(root: etree._Element, path: str) -> Iterator[Hit]:
    """What the schema at *path* refuses: the innermost element, attribute or text that does."""
    found = _load(path)
    if found.validate(root) or _is_only_out_of_range(root, found):
        return
    messages = [f"libvirt's schema: {entry.message}" for entry in found.error_log]
    places = list(_places(root, found))[:_MAX_FINDINGS]
    if not places:
        for message in dict.fromkeys(messages[:_MAX_FINDINGS]):
            yield Hit(root, message)
    for node, what in places:
        yield Hit(node, f"libvirt's schema does not take {what}")


def _is_only_out_of_range(root: etree._Element, found: etree.RelaxNG) -> bool:
    """Whether VG105 says it all: the domain is valid with those parts of addresses at 0."""
    copy = deepcopy(root)
    wrong = [
        address
        for device in copy.iterfind("devices/*")
        if isinstance(device.tag, str)
        for address in (*device.findall("address"), *device.findall("source/address"))
        if out_of_range(device, address)
    ]
    for address in wrong:
        for name in LIMITS.keys() & address.keys():
            address.set(name, "0")
    return bool(wrong) and bool(found.validate(copy))


def _places(root: etree._Element, found: etree.RelaxNG) -> Iterator[tuple[etree._Element, str]]:
    """libxml2 blames the outermost element for anything in an interleave. So each part of the
    domain is tried alone in a small valid one, and what fails is taken apart."""
    tries = _Tries(found)
    for part in root:
        if not isinstance(part.tag, str):
            continue
        if part.tag != "devices":
            yield from _in_part(root, part, None, tries)
            continue
        for device in part:
            if isinstance(device.tag, str):
                yield from _in_part(root, device, "devices", tries)


class _Tries:
    """A validator that gives up after so many questions: a hostile file must not take long."""

    def __init__(self, found: etree.RelaxNG) -> None:
        self.found, self.left = found, _MAX_TRIES

    def takes(self, root: etree._Element) -> bool:
        self.left -= 1
        return self.left < 0 or bool(self.found.validate(root))


def _in_part(
    root: etree._Element, part: etree._Element, holder: str | None, tries: _Tries
) -> Iterator[tuple[etree._Element, str]]:
    small = _small(root)
    parent = small if holder is None else etree.SubElement(small, holder)
    if holder is None:
        for old in small.findall(str(part.tag)):
            small.remove(old)
    copy = deepcopy(part)
    copy.tail = None
    parent.append(copy)
    if tries.takes(small):
        return
    # Both trees are walked by the same steps, so the place in the copy is the place in the file.
    inner, outer = copy, part
    while True:
        step = _healing_child(small, inner, tries)
        if step is None:
            break
        inner, outer = inner[step], outer[step]
    yield outer, _what(small, inner, tries)


def _small(root: etree._Element) -> etree._Element:
    small = etree.Element("domain", {"type": root.get("type") or "kvm"})
    etree.SubElement(small, "name").text = "x"
    etree.SubElement(small, "memory").text = "1"
    system = etree.SubElement(small, "os")
    etree.SubElement(system, "type").text = "hvm"
    return small


def _healing_child(small: etree._Element, node: etree._Element, tries: _Tries) -> int | None:
    """The child without which all is well."""
    for number, child in enumerate(list(node)):
        if not isinstance(child.tag, str):
            continue
        node.remove(child)
        is_well = tries.takes(small)
        node.insert(number, child)
        if is_well:
            return number
    return None


def _what(small: etree._Element, node: etree._Element, tries: _Tries) -> str:
    for name, value in list(node.attrib.items()):
        del node.attrib[name]
        is_well = tries.takes(small)
        node.set(name, value)
        if is_well:
            return f"{name}={value!r} of <{node.tag!s}>"
    if not len(node) and not node.attrib and (node.text or "").strip():
        return f"{(node.text or '').strip()!r} in <{node.tag!s}>"
    return f"<{node.tag!s}>: something in it is missing, unknown or out of place"
