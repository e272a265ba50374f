"""VG8xx: what libvirt takes, and then leaves out or changes without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lxml import etree

from virtgpu.domain import elements, metadata, read
from virtgpu.domain.lint.model import Hit, Subject, rule
from virtgpu.domain.topology import guest_address, number
from virtgpu.domain.values import size, size_text

_FOREIGN_OK = ("{http://libvirt.org/schemas/domain/",)


@rule(
    "VG801",
    "managed-mdev",
    "note",
    why="managed= means nothing for a mediated device: libvirt ignores it and never makes or"
    " removes one.",
    remedy="write managed='no', and make the mdev before the guest starts",
    source="formatdomain, managed: ignored for every type but pci",
)
def managed_mdev(s: Subject) -> Iterator[Hit]:
    for node in s.of("hostdev"):
        if node.get("type") == "mdev" and node.get("managed") == "yes":
            yield Hit(
                node,
                "managed='yes' on a mediated device is ignored",
                fix=lambda node=node: node.set("managed", "no"),  # type: ignore[misc]
            )


@rule(
    "VG802",
    "pin-of-no-vcpu",
    "warning",
    why="The guest has no vCPU of that number; libvirt leaves the pin out.",
    remedy="remove it, or raise <vcpu>",
    source="libvirt 9.0 domain_conf.c: 'Ignoring vcpupin for missing vcpus'",
)
def pin_of_no_vcpu(s: Subject) -> Iterator[Hit]:
    vcpus = s.vcpus()
    for node in s.root.findall("cputune/vcpupin"):
        one = number(node.get("vcpu"))
        if vcpus is not None and one is not None and one >= vcpus:
            yield Hit(
                node,
                f"a pin for vCPU {one}; the guest has {vcpus}, from 0",
                fix=lambda node=node: elements.remove(node),  # type: ignore[misc]
            )


@rule(
    "VG803",
    "driver-vfio",
    "note",
    why="driver name='vfio' has had no effect since KVM's own assignment went away.",
    remedy="leave it out",
    source="formatdomain, driver of a PCI hostdev",
)
def driver_vfio(s: Subject) -> Iterator[Hit]:
    for node in s.of("hostdev"):
        driver = node.find("driver[@name='vfio']")
        if driver is not None:
            yield Hit(driver, "driver name='vfio' has no effect")


@rule(
    "VG804",
    "foreign-element",
    "warning",
    why="libvirt keeps elements of other namespaces inside <metadata> only. Elsewhere they are gone"
    " after the definition.",
    remedy="move it into <metadata>",
    source="formatdomain, metadata",
)
def foreign_element(s: Subject) -> Iterator[Hit]:
    for holder in (s.root, s.root.find("devices")):
        for node in holder if holder is not None else ():
            if not isinstance(node.tag, str) or not node.tag.startswith("{"):
                continue
            if not node.tag.startswith(_FOREIGN_OK):
                yield Hit(node, f"<{_local(node)}> of another namespace is outside of <metadata>")


def _local(node: etree._Element) -> str:
    return etree.QName(node).localname


@rule(
    "VG805",
    "lost-metadata",
    "warning",
    why="libvirt keeps one element per namespace in <metadata>, and none without a namespace.",
    remedy="give it a namespace of its own, or put it into the element that is there",
    source="formatdomain, metadata: custom namespaces, only one top-level element per namespace",
)
def lost_metadata(s: Subject) -> Iterator[Hit]:
    seen: set[str] = set()
    for node in s.root.findall("metadata/*"):
        if not isinstance(node.tag, str):
            continue
        space = etree.QName(node).namespace
        if space is None:
            yield Hit(node, f"<{node.tag}> in <metadata> has no namespace")
        elif space in seen:
            yield Hit(node, f"a second element of {space} in <metadata>")
        seen.add(space or "")


@rule(
    "VG806",
    "runtime-id",
    "note",
    why="The id is that of a running guest; a definition has none.",
    remedy="take the XML with virsh dumpxml --inactive",
    source="formatdomain: id is given to running guests",
)
def runtime_id(s: Subject) -> Iterator[Hit]:
    if s.root.get("id") is not None:
        yield Hit(
            s.root,
            f"id={s.root.get('id')!r} is of a running guest",
            fix=lambda: _forget_id(s.root),
        )


def _forget_id(root: etree._Element) -> None:
    root.attrib.pop("id", None)


@rule(
    "VG807",
    "own-alias",
    "note",
    why="libvirt makes its aliases itself, and keeps only those that begin with ua-.",
    remedy="begin it with ua-, or leave it out",
    source="formatdomain, alias",
)
def own_alias(s: Subject) -> Iterator[Hit]:
    if s.root.get("id") is not None:  # of a running guest: libvirt's own
        return
    for node in s.devices:
        alias = node.find("alias")
        name = None if alias is None else alias.get("name")
        if alias is not None and name is not None and not name.startswith("ua-"):
            yield Hit(alias, f"alias {name!r} is replaced when the guest starts")


@rule(
    "VG808",
    "double-alias",
    "error",
    why="Two devices have one alias; libvirt refuses the definition.",
    remedy="give each an alias of its own",
    source="libvirt 9.0 domain_validate.c: 'non unique alias detected'",
)
def double_alias(s: Subject) -> Iterator[Hit]:
    found = [(node, alias) for node in s.devices if (alias := node.find("alias")) is not None]
    # A console that is also the serial port is one device in two elements.
    names = [
        alias.get("name")
        for node, alias in found
        if node.tag != "console" and (alias.get("name") or "").startswith("ua-")
    ]
    counts = Counter(names)
    told: set[str | None] = set()
    for _, alias in found:
        name = alias.get("name")
        if counts[name] > 1 and name not in told:
            told.add(name)
            yield Hit(alias, f"{counts[name]} devices have the alias {name!r}")


@rule(
    "VG809",
    "own-metadata",
    "warning",
    why="What virtgpu wrote into the domain and its devices disagree: somebody changed one of"
    " them.",
    remedy="see what it has: virtgpu vm show NAME; take the device or the entry away",
    source="virtgpu docs/reference/domain-xml.md",
)
def own_metadata(s: Subject) -> Iterator[Hit]:
    place = metadata.find(s.root)
    for warning in read.guest_of(s.root).warnings:
        yield Hit(s.root if place is None else place, warning)


@rule(
    "VG810",
    "current-above-memory",
    "warning",
    why="currentMemory is above memory; libvirt lowers it without a word.",
    remedy="raise <memory>, or correct <currentMemory>",
    source="libvirt 9.0 domain_postparse.c, virDomainDefPostParseMemory",
)
def current_above_memory(s: Subject) -> Iterator[Hit]:
    node = s.root.find("currentMemory")
    now, most = size(node), size(s.root.find("memory"))
    has_more = s.root.find("maxMemory") is not None or bool(s.cells()) or s.has("memory")
    if node is not None and now is not None and most is not None and now > most and not has_more:
        yield Hit(node, f"currentMemory {size_text(now)} is above memory {size_text(most)}")


@rule(
    "VG811",
    "host-address-in-guest",
    "warning",
    why="The <address> of a host device outside of <source> is its place in the guest. One that is"
    " the host's own address there is mostly a mistake: the guest has no such bus.",
    remedy="remove it: libvirt finds a place",
    source="formatdomain, Host device assignment and Device addresses",
)
def source_as_guest_address(s: Subject) -> Iterator[Hit]:
    buses = [number(n.get("index")) or 0 for n in s.of("controller") if n.get("type") == "pci"]
    for node, device in s.hostdevs:
        address = guest_address(node)
        if device.pci is None or address is None or address[1] <= max([*buses, 8]):
            continue
        if address == device.pci.parts:
            yield Hit(node, f"the guest's address of {device.key} is the host's")
