"""VG3xx: what the guest shows, and where."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from virtgpu.domain.lint.model import Hit, Subject, on, rule

_MDEV_DISPLAY = "libvirt 4.6 and newer; on PCI host devices 10.3 and newer"


@rule(
    "VG301",
    "display-without-graphics",
    "error",
    why="A vGPU's display is shown through a <graphics> device, and there is none. libvirt refuses"
    " the definition.",
    remedy="add <graphics type='vnc' listen='127.0.0.1'/>, or write display='off'",
    source="libvirt 9.0 qemu_validate.c: 'graphics device is needed for attribute value"
    " 'display=on' in <hostdev>'",
    versions=_MDEV_DISPLAY,
)
def display_without_graphics(s: Subject) -> Iterator[Hit]:
    if s.has("graphics"):
        return
    for node in s.of("hostdev"):
        if on(node, "display"):
            yield Hit(node, "display='on' and no <graphics> to show it")


@rule(
    "VG302",
    "ramfb-without-display",
    "error",
    why="ramfb is the boot picture of a vGPU's display; without the display there is none.",
    remedy="write display='on' too, or remove ramfb",
    source="formatdomain, ramfb; QEMU hw/vfio/pci.c: 'ramfb=on requires display=on'",
    versions=_MDEV_DISPLAY,
)
def ramfb_without_display(s: Subject) -> Iterator[Hit]:
    for node in s.of("hostdev"):
        if on(node, "ramfb") and not on(node, "display"):
            yield Hit(node, "ramfb='on' without display='on'")


@rule(
    "VG303",
    "double-ramfb",
    "error",
    why="QEMU takes one ramfb: the guest has one boot picture. libvirt refuses the definition"
    " (mediated devices), or QEMU the start.",
    remedy="leave it on at the first",
    source="https://github.com/kubevirt/kubevirt/pull/12053; libvirt 9.0 domain_validate.c, 'Only"
    " one vgpu device can have 'ramfb' enabled'",
)
def double_ramfb(s: Subject) -> Iterator[Hit]:
    lit = [node for node in s.of("hostdev") if on(node, "ramfb")]
    lit += [n for n in s.of("video") if n.find("model[@type='ramfb']") is not None]
    if len(lit) > 1:
        lines = ", ".join(str(node.sourceline) for node in lit)
        yield Hit(
            lit[1],
            f"{len(lit)} devices have ramfb='on' (lines {lines}); QEMU takes one",
            fix=None if any(n.tag == "video" for n in lit) else lambda: _leave_first(lit),
        )


def _leave_first(lit: list[etree._Element]) -> None:
    for node in lit[1:]:
        node.attrib.pop("ramfb", None)


@rule(
    "VG304",
    "video-none-not-alone",
    "error",
    why="<video> of type none says that there is no video device; libvirt refuses others beside.",
    remedy="remove it, or the others",
    source="libvirt 9.0 domain_validate.c: 'a 'none' video type must be the only video device'",
)
def video_none_not_alone(s: Subject) -> Iterator[Hit]:
    videos = list(s.of("video"))
    for node in videos:
        if node.find("model[@type='none']") is not None and len(videos) > 1:
            yield Hit(node, f"video type none is one of {len(videos)} video devices")
            return


@rule(
    "VG305",
    "two-primaries",
    "error",
    why="The guest has one primary video device.",
    remedy="leave primary='yes' on one",
    source="libvirt 9.0 domain_validate.c: 'Only one primary video device is supported'",
)
def two_primaries(s: Subject) -> Iterator[Hit]:
    first = [node for node in s.of("video") if on(node.find("model"), "primary")]
    if len(first) > 1:
        yield Hit(first[1], f"{len(first)} video devices say primary='yes'")


@rule(
    "VG306",
    "two-screens",
    "note",
    why="The guest has an emulated video card beside the vGPU with a display: two screens, and"
    " the firmware's picture is on the emulated one.",
    remedy="write <video><model type='none'/></video> and ramfb='on' at the vGPU",
    source="formatdomain, display and ramfb of mediated devices",
)
def two_screens(s: Subject) -> Iterator[Hit]:
    shown = [node for node in s.of("hostdev") if on(node, "display")]
    videos = [n for n in s.of("video") if n.find("model[@type='none']") is None]
    if shown and videos:
        yield Hit(
            videos[0], f"an emulated video card beside the vGPU on line {shown[0].sourceline}"
        )


@rule(
    "VG307",
    "no-boot-picture",
    "note",
    why="The vGPU is the only screen and has no ramfb: the screen is black until the guest's"
    " driver is up, in the firmware and at a failed boot.",
    remedy="write ramfb='on' at the vGPU",
    source="formatdomain, ramfb: the boot display of a vGPU",
    versions="libvirt 5.10 and newer",
)
def no_boot_picture(s: Subject) -> Iterator[Hit]:
    shown = [node for node in s.of("hostdev") if on(node, "display")]
    is_lit = any(on(node, "ramfb") for node in shown)
    if (
        shown
        and not is_lit
        and any(n.find("model[@type='none']") is not None for n in s.of("video"))
    ):
        yield Hit(shown[0], "the only screen is a vGPU without a boot picture (ramfb)")


@rule(
    "VG308",
    "display-model",
    "error",
    why="A display is a vfio-pci device's; libvirt refuses it at others.",
    remedy="remove display=, or write model='vfio-pci'",
    source="libvirt 9.0 qemu_validate.c: '<hostdev> attribute 'display' is only supported with"
    " model='vfio-pci''",
)
def display_model(s: Subject) -> Iterator[Hit]:
    for node in s.of("hostdev"):
        is_mdev = node.get("type") == "mdev"
        if is_mdev and node.get("display") and node.get("model") not in (None, "vfio-pci"):
            yield Hit(node, f"display= at a mediated device of model {node.get('model')!r}")
