"""What is wrong with a domain: libvirt's own schema, and what our own output must keep.

Each check is a function from a domain to findings; more of them make a linter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
from lxml import etree

from virtgpu.domain import elements, read
from virtgpu.domain.topology import guest_address
from virtgpu.errors import Config

# Where libvirt's packages put it; which of them is the distribution's business.
SCHEMAS = (
    "/usr/share/libvirt/schemas/domain.rng",
    "/usr/local/share/libvirt/schemas/domain.rng",
)
_MAX_FINDINGS = 20
# QEMU's own function 0, which no XML names: the LPC bridge of q35, the ISA bridge of i440fx.
_BUILT_IN = ((0, 0, 0x1F), (0, 0, 1))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, where, and what to do about it."""

    rule: str
    message: str
    line: int | None = None
    severity: Literal["error", "warning"] = "error"
    remedy: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. *schema* is the file that was used, None when this machine has none and
    the XML was therefore not validated."""

    schema: str | None
    findings: tuple[Finding, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is an error."""
        return all(finding.severity != "error" for finding in self.findings)


def check(xml: bytes | str, *, schema: str | Path | None = None) -> Report:
    """Validate a domain and look for what libvirt takes and QEMU then refuses.

    *schema* is a domain.rng; without it libvirt's own on this machine. Raises `Config` when the
    text is no domain XML, or the given schema cannot be read.
    """
    root = elements.parse(xml, "domain XML")
    path = find_schema() if schema is None else str(schema)
    findings = [] if path is None else list(_validate(root, path))
    for rule in RULES:
        findings += rule(root)
    return Report(schema=path, findings=tuple(findings))


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


def _validate(root: etree._Element, path: str) -> Iterator[Finding]:
    # libxml2 blames the outermost element for anything in an interleave; the first is the best.
    schema = _load(path)
    if schema.validate(root):
        return
    for entry in list(schema.error_log)[:_MAX_FINDINGS]:
        yield Finding(rule="schema", line=entry.line, message=f"libvirt's schema: {entry.message}")


def _double_address(root: etree._Element) -> Iterator[Finding]:
    seen: dict[tuple[int, int, int, int], etree._Element] = {}
    for device in _devices(root):
        address = guest_address(device)
        if address is None:
            continue
        if address in seen:
            other = seen[address]
            yield Finding(
                rule="double-address",
                line=device.sourceline,
                message=f"<{device.tag!s}> and <{other.tag!s}> (line {other.sourceline}) are both"
                f" at guest address {_text(address)}",
                remedy="remove one of the two <address> elements: libvirt then finds a place",
            )
        seen.setdefault(address, device)


def _multifunction(root: etree._Element) -> Iterator[Finding]:
    slots: defaultdict[tuple[int, int, int], dict[int, etree._Element]] = defaultdict(dict)
    for device in _devices(root):
        address = guest_address(device)
        if address is not None:
            slots[address[:3]].setdefault(address[3], device)
    for slot, functions in slots.items():
        first = functions.get(0)
        if set(functions) <= {0} or (first is None and slot in _BUILT_IN):
            continue
        said = None if first is None else first.find("address").get("multifunction")  # type: ignore[union-attr]
        if said != "on":
            device = next(iter(functions.values())) if first is None else first
            yield Finding(
                rule="multifunction",
                line=device.sourceline,
                # libvirt adds a missing one by itself; it takes 'off' and QEMU then refuses.
                severity="warning" if first is not None and said is None else "error",
                message=f"slot {_text((*slot, 0))} has several functions, and function 0"
                + (" is missing" if first is None else " does not say multifunction='on'"),
                remedy="write multifunction='on' into the address of function 0",
            )


def _double_alias(root: etree._Element) -> Iterator[Finding]:
    aliases = (node.find("alias") for node in _devices(root))
    names = Counter(node.get("name") for node in aliases if node is not None)
    for name, count in names.items():
        if count > 1:
            yield Finding(rule="double-alias", message=f"{count} devices have the alias {name!r}")


def _double_device(root: etree._Element) -> Iterator[Finding]:
    seen: dict[str, read.HostDevice] = {}
    for device in read.host_devices(root):
        if device.key in seen:
            yield Finding(
                rule="double-device",
                line=device.line,
                message=f"host device {device.key} is given twice"
                f" (first on line {seen[device.key].line})",
                remedy="remove one of the two",
            )
        seen.setdefault(device.key, device)


def _double_ramfb(root: etree._Element) -> Iterator[Finding]:
    lit = [device for device in read.host_devices(root) if device.ramfb]
    if len(lit) > 1:
        lines = ", ".join(str(device.line) for device in lit)
        yield Finding(
            rule="double-ramfb",
            line=lit[1].line,
            message=f"{len(lit)} devices have ramfb='on' (lines {lines}); QEMU takes one",
            remedy="leave it on at the first",
        )


def _own_metadata(root: etree._Element) -> Iterator[Finding]:
    for warning in read.guest_of(root).warnings:
        yield Finding(rule="own-metadata", severity="warning", message=warning)


RULES: tuple[Callable[[etree._Element], Iterator[Finding]], ...] = (
    _double_address,
    _multifunction,
    _double_alias,
    _double_device,
    _double_ramfb,
    _own_metadata,
)


def _devices(root: etree._Element) -> list[etree._Element]:
    devices = root.find("devices")
    return [] if devices is None else [node for node in devices if isinstance(node.tag, str)]


def _text(address: tuple[int, int, int, int]) -> str:
    domain, bus, slot, function = address
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
