"""What a PCI function is, in the words of the PCI Code and ID Assignment Specification."""

from __future__ import annotations

# Host, ISA and PCI-to-PCI bridges; an NVSwitch (0680) is an endpoint like any other.
BRIDGES = ("0600", "0601", "0604")

_SUBCLASSES = {
    "0104": "RAID controller",
    "0106": "SATA controller",
    "0107": "SAS controller",
    "0108": "NVMe controller",
    "0200": "Ethernet controller",
    "0207": "InfiniBand controller",
    "0300": "VGA controller",
    "0302": "3D controller",
    "0403": "audio device",
    "0601": "ISA bridge",
    "0604": "PCI bridge",
    "0c03": "USB controller",
    "0c05": "SMBus controller",
    "1200": "processing accelerator",
}
_CLASSES = {
    "01": "storage controller",
    "02": "network controller",
    "03": "display controller",
    "04": "multimedia controller",
    "05": "memory controller",
    "06": "bridge",
    "07": "communication controller",
    "08": "system peripheral",
    "0c": "serial bus controller",
    "0d": "wireless controller",
    "10": "encryption controller",
    "11": "signal processing controller",
}


def words(class_code: str) -> str:
    """What a class code says: the subclass where it is a usual one, else the class.

    >>> words("0c0330"), words("0180"), words("")
    ('USB controller', 'storage controller', 'device of an unknown class')
    """
    known = _SUBCLASSES.get(class_code[:4]) or _CLASSES.get(class_code[:2])
    return known or (
        f"device of class {class_code}" if class_code else "device of an unknown class"
    )
