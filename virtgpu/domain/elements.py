"""Parsing that trusts nobody, and the few edits that keep a file readable."""

from __future__ import annotations

import re

from lxml import etree

from virtgpu.errors import Config

MAX_BYTES = 1 << 20
_HINT = "give a libvirt domain XML file, as `virsh dumpxml` prints it"

# No entity, no network, no DTD, and libxml2's own limits on depth and size stay on.
PARSER = etree.XMLParser(
    resolve_entities=False,
    no_network=True,
    load_dtd=False,
    dtd_validation=False,
    huge_tree=False,
    strip_cdata=False,  # an operator's file is kept as it was written
)
# What is outside of Char in XML 1.0 (2.2), as a short class: the long one took 2 ms to compile.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def parse(text: bytes | str, source: str) -> etree._Element:
    """The `<domain>` element; raises `Config` that names *source* and says what is wrong."""
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(raw) > MAX_BYTES:
        raise Config(f"{source}: {len(raw)} bytes are too many for a domain", hint=_HINT)
    try:
        root = etree.fromstring(raw, PARSER)
    except (etree.XMLSyntaxError, ValueError, LookupError) as error:
        raise Config(f"{source}: no XML: {_one_line(error)}", hint=_HINT) from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise Config(
            f"{source}: a document type declaration has no place in domain XML",
            hint="remove the <!DOCTYPE …> and what it declares",
        )
    if root.tag != "domain":
        raise Config(f"{source}: the outermost element is <{root.tag!s}>, not <domain>", hint=_HINT)
    return root


def text_of(root: etree._Element) -> bytes:
    """The document as UTF-8: the root and the comments around it, each from a new line."""
    around = [*reversed(list(root.itersiblings(preceding=True))), root, *root.itersiblings()]
    pieces = [etree.tostring(node, encoding="utf-8", with_tail=False) for node in around]
    return b"\n".join(pieces) + b"\n"


def text_like(root: etree._Element, original: bytes) -> bytes:
    """The document as UTF-8, with the quotes and the XML declaration of the *original*: what an
    operator compares shows only what changed."""
    text = text_of(root)
    if original.count(b"='") > original.count(b'="'):
        pieces = re.split(rb"(<!--.*?-->|<!\[CDATA\[.*?\]\]>)", text, flags=re.DOTALL)
        # lxml writes > inside a value as &gt;, so a tag ends at the first one.
        pieces[::2] = [re.sub(rb"<[^>]*>", _single_quoted, piece) for piece in pieces[::2]]
        text = b"".join(pieces)
    head = re.match(rb"<\?xml [^>]*\?>\s*", original)
    is_utf8 = head is not None and (b"encoding" not in head[0] or b"utf-8" in head[0].lower())
    return (head[0] if head is not None and is_utf8 else b"") + text


def _single_quoted(tag: re.Match[bytes]) -> bytes:
    return re.sub(rb"""="([^"']*)\"""", rb"='\1'", tag[0])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or "it is empty"


def clean(text: str) -> str:
    """The text with what XML cannot carry replaced."""
    return _NOT_XML.sub("\ufffd", text)


def is_clean(text: str) -> bool:
    """Whether XML can carry the text as it is."""
    return _NOT_XML.search(text) is None


def append(parent: etree._Element, *new: etree._Element) -> None:
    """Put elements last, indented as their siblings are; a file without line breaks stays so."""
    if not new:
        return
    between, end = _open_end(parent)
    for element in new:
        if len(element):
            _indent(element, parent.text)
        element.tail = between
    new[-1].tail = end
    parent.extend(new)


def _open_end(parent: etree._Element) -> tuple[str | None, str | None]:
    """Make room at the end: what comes between new elements, and what after the last of them."""
    if not _is_blank(parent.text):
        return None, None
    if len(parent) == 0:
        line = _line_of(parent)
        if line is None:
            return None, None
        parent.text = f"{line}  "
        return parent.text, line
    last = parent[-1]
    end = last.tail
    if not _is_blank(end):
        return None, None
    last.tail = parent.text
    return parent.text, end


def _line_of(element: etree._Element) -> str | None:
    """The line break and blanks before an element, None when it is not on a line of its own."""
    before, parent = element.getprevious(), element.getparent()
    text = before.tail if before is not None else parent.text if parent is not None else None
    return text if text and "\n" in text and _is_blank(text) else None


def _indent(element: etree._Element, pad: str | None) -> None:
    if pad and "\n" in pad and _is_blank(pad):
        tail = element.tail
        etree.indent(element, "  ", level=(len(pad) - pad.rfind("\n") - 1) // 2)
        element.tail = tail


def _is_blank(text: str | None) -> bool:
    return not text or text.isspace()


def insert_after(anchor: etree._Element, element: etree._Element) -> None:
    """Put *element* right after *anchor*, indented as it is."""
    parent = anchor.getparent()
    element.tail = anchor.tail
    anchor.addnext(element)
    if parent is not None and _is_blank(parent.text) and _is_blank(anchor.tail):
        anchor.tail = parent.text
        _indent(element, parent.text)


def remove(element: etree._Element) -> None:
    """Take *element* out; the text that follows it stays where it was."""
    parent = element.getparent()
    if parent is None:
        return
    tail, before = element.tail, element.getprevious()
    parent.remove(element)
    if before is not None:
        before.tail = tail if _is_blank(before.tail) else f"{before.tail}{tail or ''}"
    elif len(parent) == 0 or not _is_blank(tail):
        parent.text = tail if _is_blank(parent.text) else f"{parent.text}{tail or ''}"
