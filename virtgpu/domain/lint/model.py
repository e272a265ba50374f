"""What a rule is, what it is asked about, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from lxml import etree

from virtgpu.domain import read
from virtgpu.domain.target import Target
from virtgpu.domain.topology import number

if TYPE_CHECKING:
    from virtgpu.model.view import HostFunction, HostView

Severity = Literal["error", "warning", "note"]
ALWAYS = "every libvirt and QEMU"
OSINFO = "{http://libosinfo.org/xmlns/libvirt/domain/1.0}"


class Context(NamedTuple):
    """What is known beside the XML; everything may be missing, and is then not held against it.

    *target* is the hypervisor that it is for, *view* the host around it, *others* the guests of
    the same host, *exists* answers whether the host has a file.
    """

    target: Target = Target()
    view: HostView | None = None
    others: tuple[read.Guest, ...] = ()
    exists: Callable[[str], bool] | None = None


class Hit(NamedTuple):
    """One place where a rule is broken. *fix* mends the tree in place; *severity* and *remedy*
    stand in for the rule's own."""

    node: etree._Element
    message: str
    severity: Severity | None = None
    remedy: str | None = None
    fix: Callable[[], None] | None = None


class Rule(NamedTuple):
    """A rule for good: its *code* is never given to another. *versions* says for which libvirt
    and QEMU it holds, *source* where that is written."""

    code: str
    name: str
    severity: Severity
    why: str
    remedy: str
    versions: str
    source: str
    find: Callable[[Subject], Iterable[Hit]]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: by which rule, where (*line* of the file, None when it has no
    single place), and what to do about it. *can_fix* when `--fix` mends it."""

    code: str
    rule: str
    severity: Severity
    message: str
    line: int | None = None
    remedy: str | None = None
    can_fix: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. *schema* is the file that was used, None when the XML was therefore not
    validated; *ignored* counts what a comment or an option keeps quiet."""

    schema: str | None
    findings: tuple[Finding, ...] = ()
    ignored: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing is an error."""
        return all(finding.severity != "error" for finding in self.findings)


RULES: dict[str, Rule] = {}
Find = Callable[["Subject"], Iterable[Hit]]


def rule(
    code: str,
    name: str,
    severity: Severity,
    *,
    why: str,
    remedy: str,
    source: str,
    versions: str = ALWAYS,
) -> Callable[[Find], Find]:
    """Make a function from a subject to hits the rule of that code."""

    def register(find: Find) -> Find:
        assert code not in RULES, code
        RULES[code] = Rule(code, name, severity, why, remedy, versions, source, find)
        return find

    return register


class Subject:
    """A domain as the rules see it: what several of them ask, found once."""

    def __init__(self, root: etree._Element, context: Context) -> None:
        self.root = root
        self.target = context.target
        self.view = context.view
        self.others = context.others
        self.exists = context.exists
        self.name = root.findtext("name")
        self.uuid = root.findtext("uuid")
        holder = root.find("devices")
        self.devices = [] if holder is None else [d for d in holder if isinstance(d.tag, str)]
        kind = root.find("os/type")
        self.type = kind
        self.machine = "" if kind is None else kind.get("machine") or ""
        self.arch = "" if kind is None else kind.get("arch") or ""
        self.is_q35 = self.machine == "q35" or self.machine.startswith("pc-q35")
        self.is_pc = self.machine == "pc" or self.machine.startswith("pc-i440fx")
        self.is_qemu = root.get("type") in ("kvm", "qemu")
        self.hostdevs = tuple(read.host_devices_of(root))
        self.is_uefi = (
            root.find("os[@firmware='efi']") is not None
            or root.find("os/loader[@type='pflash']") is not None
        )

    def of(self, tag: str) -> Iterator[etree._Element]:
        """The devices of one tag."""
        return (device for device in self.devices if device.tag == tag)

    def has(self, tag: str) -> bool:
        """Whether there is a device of that tag."""
        return any(device.tag == tag for device in self.devices)

    @property
    def passed(self) -> list[etree._Element]:
        """The devices that VFIO serves: they pin the guest's memory."""
        return [node for node, _ in self.hostdevs] + [
            node
            for node in self.of("hostdev")
            if node.get("type") == "mdev" and all(node is not one for one, _ in self.hostdevs)
        ]

    @property
    def still(self) -> list[etree._Element]:
        """Those of them that hold the balloon still: not crypto adapters and channels of s390,
        which promise QEMU to reach nothing beyond what they are told (hw/vfio/ap.c, ccw.c)."""
        return [node for node in self.passed if node.get("model") not in ("vfio-ap", "vfio-ccw")]

    def host_function(self, device: read.HostDevice) -> HostFunction | None:
        """What the host knows of a PCI device that is given, None when it is not looked at, or has
        none such."""
        if self.view is None or device.pci is None:
            return None
        return self.view.functions.get(device.pci)

    def osinfo(self) -> str:
        """The libosinfo id of the guest's system, "" when the domain does not say it."""
        node = self.root.find(f"metadata/{OSINFO}libosinfo/{OSINFO}os")
        return "" if node is None else node.get("id") or ""

    @property
    def is_windows(self) -> bool:
        """Whether the domain says that its guest is Windows."""
        return self.osinfo().startswith("http://microsoft.com/win")

    def cells(self) -> list[etree._Element]:
        """The guest's own NUMA nodes."""
        return self.root.findall("cpu/numa/cell")

    def vcpus(self) -> int | None:
        """The most vCPUs that the guest can have."""
        return number(self.root.findtext("vcpu"))


def on(node: etree._Element | None, name: str) -> bool:
    """Whether an attribute is on or yes."""
    return node is not None and node.get(name) in ("on", "yes")
