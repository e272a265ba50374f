"""The host devices of one slice, as libvirt writes them."""

from __future__ import annotations

from lxml import etree

from virtgpu.domain import metadata
from virtgpu.domain.target import PCI_DISPLAY, Target, is_vendor_vfio, version_text
from virtgpu.errors import Unsupported, Usage
from virtgpu.model.attachment import Attachment
from virtgpu.model.pci import PciAddress

Place = tuple[int, int] | None


def root_port(index: int) -> etree._Element:
    """A PCIe root port; libvirt gives it its own address on bus 0."""
    return etree.Element(
        "controller", {"type": "pci", "index": str(index), "model": "pcie-root-port"}
    )


def hostdevs(attachment: Attachment, place: Place, *, display: bool) -> list[etree._Element]:
    """One element per function, or the one of a mediated device, at *place* in the guest.

    *display* makes it the guest's boot display.
    """
    if attachment.mdev is not None:
        return [_mdev(attachment, attachment.mdev, place, display=display)]
    if not attachment.functions:
        raise Usage(f"slice {attachment.slice_id} names no host device")
    is_card = len(attachment.functions) > 1
    return [
        _pci(attachment, function, number, place, is_card=is_card, display=display)
        for number, function in enumerate(attachment.functions)
    ]


def _pci(
    attachment: Attachment,
    function: PciAddress,
    number: int,
    place: Place,
    *,
    is_card: bool,
    display: bool,
) -> etree._Element:
    managed = "yes" if attachment.managed else "no"
    node = etree.Element("hostdev", {"mode": "subsystem", "type": "pci", "managed": managed})
    if display:
        _turn_on(node)
    source = etree.SubElement(node, "source")
    etree.SubElement(source, "address", _numbers(*function.parts))
    _add_alias(node, attachment.slice_id, number)
    if place is not None:
        at = {"type": "pci"} | _numbers(0, *place, number)
        if is_card and number == 0:
            # Only function 0, and always said: libvirt takes 'off' and QEMU then refuses.
            at["multifunction"] = "on"
        etree.SubElement(node, "address", at)
    return node


def _mdev(attachment: Attachment, uuid: str, place: Place, *, display: bool) -> etree._Element:
    # libvirt ignores managed on mediated devices and prints 'no'.
    node = etree.Element(
        "hostdev", {"mode": "subsystem", "type": "mdev", "managed": "no", "model": "vfio-pci"}
    )
    if display:
        _turn_on(node)
    else:
        node.set("display", "off")
    source = etree.SubElement(node, "source")
    etree.SubElement(source, "address", {"uuid": uuid})
    _add_alias(node, attachment.slice_id, 0)
    if place is not None:
        etree.SubElement(node, "address", {"type": "pci"} | _numbers(0, *place, 0))
    return node


def _turn_on(node: etree._Element) -> None:
    node.set("display", "on")
    node.set("ramfb", "on")


def _add_alias(node: etree._Element, slice_id: str, number: int) -> None:
    etree.SubElement(node, "alias", {"name": metadata.alias(slice_id, number)})


def _numbers(domain: int, bus: int, slot: int, function: int) -> dict[str, str]:
    """An address as libvirt prints it; a domain from 10000 up (VMD) has more digits."""
    return {
        "domain": f"0x{domain:04x}",
        "bus": f"0x{bus:02x}",
        "slot": f"0x{slot:02x}",
        "function": f"0x{function:x}",
    }


def boot_display(attachments: tuple[Attachment, ...], target: Target) -> Attachment:
    """The one device that shows the guest's screen: the first that can, whatever its mechanism.

    QEMU refuses a second ramfb. Raises `Unsupported` (this libvirt) or `Usage` (nothing here has
    a screen that QEMU could show).
    """
    for attachment in attachments:
        if attachment.mdev is not None:
            return attachment
        if is_vendor_vfio(attachment) and target.knows(PCI_DISPLAY):
            return attachment
    if any(is_vendor_vfio(a) for a in attachments):
        found = "unknown" if target.libvirt is None else version_text(target.libvirt)
        raise Unsupported(
            "the display of a vGPU on a VF needs libvirt"
            f" {version_text(PCI_DISPLAY)} or newer, found {found}",
            hint="leave --display out and use a remote desktop inside the guest",
        )
    raise Usage(
        "a display was asked for, and none of the guest's devices is a vGPU",
        hint="a whole card shows its picture at its own outputs: leave --display out",
    )
