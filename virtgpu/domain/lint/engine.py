"""Running the rules: suppression by comments, order, and mending what is safe to mend."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from lxml import etree

from virtgpu.domain import elements, read
from virtgpu.domain.lint import schema as schemas
from virtgpu.domain.lint.model import RULES, Context, Finding, Hit, Report, Subject
from virtgpu.errors import Config

# libvirt's own schema, wherever it is installed.
AUTO = "auto"
_PASSES = 10
_IGNORE = r"\s*virtgpu:\s*ignore\s+((?:VG[0-9]{3}[,\s]*)+).*"


def lint(
    xml: bytes | str,
    context: Context = Context(),  # noqa: B008 - a frozen value
    *,
    schema: str | Path | None = AUTO,
    ignore: Collection[str] = (),
    source: str = "domain XML",
) -> Report:
    """Check a domain.

    *schema* is a domain.rng (`AUTO`: libvirt's own on this machine, None: none), *ignore* codes
    that are not looked for. Raises `Config` when the text is no domain XML, or the given schema
    cannot be read.
    """
    return lint_root(elements.parse(xml, source), context, schema=schema, ignore=ignore)


def lint_root(
    root: etree._Element,
    context: Context = Context(),  # noqa: B008 - a frozen value
    *,
    schema: str | Path | None = AUTO,
    ignore: Collection[str] = (),
) -> Report:
    """Check a parsed domain; the tree stays as it is."""
    path = _schema_path(schema)
    quiet = _Quiet(root)
    findings, ignored = [], 0
    for code, hit in _hits(root, context, path, ignore):
        if quiet.covers(code, hit.node):
            ignored += 1
        else:
            findings.append(_finding(code, hit))
    findings.sort(key=lambda one: (one.line or 0, one.code))
    return Report(schema=path, findings=tuple(findings), ignored=ignored)


def lint_all(
    documents: Iterable[tuple[str, bytes]],
    context: Context = Context(),  # noqa: B008 - a frozen value
    *,
    schema: str | Path | None = AUTO,
    ignore: Collection[str] = (),
) -> Iterator[tuple[str, Report]]:
    """Check several domains of one host, each also against the others.

    What is no domain XML is a finding of its own, and no reason to leave the others out.
    """
    parsed = [(source, _parsed(text, source)) for source, text in documents]
    guests = [None if isinstance(root, Finding) else read.guest_of(root) for _, root in parsed]
    for number, (source, root) in enumerate(parsed):
        if isinstance(root, Finding):
            yield source, Report(schema=_schema_path(schema), findings=(root,))
            continue
        rest = (guest for at, guest in enumerate(guests) if at != number and guest is not None)
        here = context._replace(others=(*context.others, *rest))
        yield source, lint_root(root, here, schema=schema, ignore=ignore)


def _parsed(text: bytes, source: str) -> etree._Element | Finding:
    try:
        return elements.parse(text, source)
    except Config as error:
        rule = RULES[schemas.UNREADABLE]
        line = getattr(error.__cause__, "lineno", None)
        return Finding(
            code=rule.code,
            rule=rule.name,
            severity=rule.severity,
            message=error.message.removeprefix(f"{source}: "),
            line=line if isinstance(line, int) and line > 0 else None,
            remedy=error.hint,
        )


def fix(
    xml: bytes | str,
    context: Context = Context(),  # noqa: B008 - a frozen value
    *,
    ignore: Collection[str] = (),
    source: str = "domain XML",
) -> tuple[bytes, tuple[Finding, ...]]:
    """The document with all mended that has one safe mend, and what was mended.

    Nothing of the rest changes. What has no mend is left for a person.
    """
    raw = xml.encode("utf-8", "replace") if isinstance(xml, str) else xml
    root = elements.parse(raw, source)
    mended: list[Finding] = []
    for _ in range(_PASSES):
        quiet = _Quiet(root)
        # One mend can bring another rule up; each pass looks anew.
        done = [
            (_finding(code, hit), hit)
            for code, hit in _hits(root, context, None, ignore)
            if hit.fix is not None and not quiet.covers(code, hit.node)
        ]
        if not done:
            break
        for finding, hit in done:
            assert hit.fix is not None
            hit.fix()
            mended.append(finding)
    return elements.text_like(root, raw) if mended else raw, tuple(mended)


def _schema_path(schema: str | Path | None) -> str | None:
    if schema == AUTO:
        return schemas.find_schema()
    return None if schema is None else str(schema)


def _hits(
    root: etree._Element, context: Context, path: str | None, ignore: Collection[str]
) -> Iterator[tuple[str, Hit]]:
    if path is not None and schemas.CODE not in ignore:
        yield from ((schemas.CODE, hit) for hit in schemas.validate(root, path))
    subject = Subject(root, context)
    for code, rule in RULES.items():
        if code not in ignore:
            yield from ((code, hit) for hit in rule.find(subject))


def _finding(code: str, hit: Hit) -> Finding:
    rule = RULES[code]
    return Finding(
        code=code,
        rule=rule.name,
        severity=hit.severity or rule.severity,
        message=" ".join(hit.message.split()),
        line=hit.node.sourceline,
        remedy=hit.remedy or rule.remedy,
        can_fix=hit.fix is not None,
    )


class _Quiet:
    """`<!-- virtgpu: ignore VG201 why -->`: the element after it and all below; above the root,
    the whole file."""

    def __init__(self, root: etree._Element) -> None:
        self.codes: dict[etree._Element, set[str]] = {}
        around = root.itersiblings(preceding=True)
        for comment in (*around, *root.iter(etree.Comment)):
            match = re.fullmatch(_IGNORE, comment.text or "", re.DOTALL)
            if match is None:
                continue
            target: etree._Element | None = root
            if comment.getparent() is not None:
                following = comment.itersiblings()
                target = next((one for one in following if isinstance(one.tag, str)), None)
            if target is not None:
                self.codes.setdefault(target, set()).update(re.findall(r"VG[0-9]{3}", match[1]))

    def covers(self, code: str, node: etree._Element) -> bool:
        if not self.codes:
            return False
        return any(code in self.codes.get(one, ()) for one in (node, *node.iterancestors()))
