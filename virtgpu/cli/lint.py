"""`virtgpu vm lint`: which domains are meant, what is shown of the findings, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from virtgpu.cli.output import show
from virtgpu.cli.streams import put, say
from virtgpu.cli.world import World
from virtgpu.errors import NotFound, Usage

if TYPE_CHECKING:
    from virtgpu.domain.lint import Context, Finding, Report, Rule

LEVELS = ("error", "warning", "note")
Result = tuple[str, "Report"]


def is_file(word: str) -> bool:
    """Whether a word names a file and not a guest: it has a slash, or ends in .xml."""
    return "/" in word or word.endswith(".xml")


def codes(words: Sequence[str]) -> tuple[str, ...]:
    """The rules of that code; raises `NotFound` for one that there is not."""
    return tuple(_rule(word).code for word in words)


def _rule(code: str) -> Rule:
    from virtgpu.domain.lint import RULES

    rule = RULES.get(code.upper())
    if rule is None:
        raise NotFound(f"there is no rule {code!r}", hint="the rules are in docs/reference/lint.md")
    return rule


def explain(world: World, code: str) -> None:
    """Print all that is known of a rule."""
    rule = _rule(code)
    body = {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity,
        "why": rule.why,
        "remedy": rule.remedy,
        "versions": rule.versions,
        "source": rule.source,
    }
    lines = [f"{rule.code} {rule.name} ({rule.severity})", "", rule.why, ""]
    lines += [f"{key:8}  {body[key]}" for key in ("remedy", "versions", "source")]
    show(world, {"rule": body}, "\n".join(lines))


def version(text: str | None, what: str) -> int | None:
    """A version as people write it, in libvirt's count."""
    if text is None:
        return None
    from virtgpu.domain.target import version_number

    found = version_number(text)
    if found is None:
        raise Usage(f"{what} version {text!r} cannot be read", hint="write it as 11.3.0")
    return found


def results(
    world: World,
    words: Sequence[str],
    *,
    is_all: bool,
    ignore: Sequence[str],
    schema: str | None,
    libvirt: int | None,
    qemu: int | None,
) -> list[Result]:
    """Lint files (against each other, and the host when one was chosen) or guests of libvirt."""
    files = [word for word in words if is_file(word)]
    names = [word for word in words if not is_file(word)]
    if is_all and words:
        raise Usage("--all and names are two different questions", hint="leave one of them out")
    if files and names:
        raise Usage(
            f"{files[0]} is a file and {names[0]} a guest", hint="check them in two commands"
        )
    if not words and not is_all:
        raise Usage("nothing to check", hint="name domain XML files or guests, or say --all")
    if is_all or names:
        if libvirt is not None or qemu is not None:
            raise Usage("a guest's libvirt is known", hint="--libvirt and --qemu are for files")
        found = world.handle().lint(None if is_all else names, ignore=ignore, schema=schema)
        return list(found)
    from virtgpu.domain.lint import lint_all

    documents = [(name, _read(name)) for name in files]
    context = _context(world, libvirt, qemu)
    return list(lint_all(documents, context, schema=schema, ignore=ignore))


def _read(name: str) -> bytes:
    from virtgpu.host.state import read_given

    return read_given(name, "domain XML", hint="a word with / or .xml is a file")


def _context(world: World, libvirt: int | None, qemu: int | None) -> Context:
    from virtgpu.domain.lint import Context
    from virtgpu.domain.target import Target

    # A file may be meant for any host: only one that was named is held against it.
    base = Context() if world.host is None else world.handle().lint_context()
    return base._replace(target=Target(libvirt=libvirt, qemu=qemu))


def mend(world: World, words: Sequence[str], *, ignore: Sequence[str], dry_run: bool) -> None:
    """Mend files in place and print what changed, as a unified diff."""
    from difflib import unified_diff

    from virtgpu.domain.lint import fix
    from virtgpu.host.state import write_given

    names = [word for word in words if not is_file(word)]
    if names or not words:
        raise Usage(
            "--fix mends files",
            # Without --security-info the passwords of displays would be lost on the way.
            hint="virsh dumpxml --inactive --security-info NAME > NAME.xml, mend that file, and"
            " then: virsh define NAME.xml",
        )
    context = _context(world, None, None)
    mended: list[dict[str, Any]] = []
    for name in words:
        before = _read(name)
        after, done = fix(before, context, ignore=ignore, source=name)
        lines = unified_diff(
            before.decode("utf-8", "replace").splitlines(),
            after.decode("utf-8", "replace").splitlines(),
            name,
            name,
            lineterm="",
        )
        text = "\n".join(lines) if done else ""
        if done and not dry_run:
            write_given(name, after, "domain XML")
        mended.append({"source": name, "mended": list(done), "diff": text})
    shown = "\n".join(one["diff"] for one in mended if one["diff"])
    show(world, {"files": mended}, shown or "nothing to mend")


def print_results(
    world: World, found: Sequence[Result], *, level: str, as_sarif: bool, schema: str | None
) -> int:
    """Print the findings of *level* and above; the exit code is 1 when one is an error."""
    wanted = LEVELS[: LEVELS.index(level) + 1]
    kept = [
        (source, [one for one in report.findings if one.severity in wanted])
        for source, report in found
    ]
    if as_sarif:
        from virtgpu import __version__
        from virtgpu.domain.lint.sarif import sarif
        from virtgpu.model import codec

        put(codec.encode_pretty(sarif(kept, __version__)), nl=False)
    else:
        body = [
            {"source": source, "schema": report.schema, "ignored": report.ignored, "findings": some}
            for (source, report), (_, some) in zip(found, kept, strict=True)
        ]
        lines = [line for source, some in kept for one in some for line in _lines(source, one)]
        show(world, {"results": body}, "\n".join([*lines, _summary(found)]))
    if schema is not None and any(report.schema is None for _, report in found):
        say("note: libvirt's schema is not installed here, so nothing was validated against it")
    return int(any(not report.is_clean for _, report in found))


def _lines(source: str, one: Finding) -> list[str]:
    place = source if one.line is None else f"{source}:{one.line}"
    text = [f"{place}: {one.severity}: {one.message} [{one.code} {one.rule}]"]
    return [*text, f"    {one.remedy}"] if one.remedy else text


def _summary(found: Sequence[Result]) -> str:
    counts = {
        level: sum(one.severity == level for _, report in found for one in report.findings)
        for level in LEVELS
    }
    said = ", ".join(f"{count} {level}{'s' * (count != 1)}" for level, count in counts.items())
    return f"{len(found)} checked: {said}"
