"""libvirt's names of node devices, as far as they say what a device is."""

from __future__ import annotations

import re
from typing import NamedTuple

from virtgpu.model.pci import PciAddress

# Since libvirt 7.7 the parent's address is part of the name; the domain has four digits or more.
_MDEV = re.compile(r"mdev_([0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})(?:_(.+))?", re.ASCII)
_PCI = re.compile(r"([0-9a-f]{4,8})_([0-9a-f]{2})_([01][0-9a-f])_([0-7])", re.ASCII)


class MdevNode(NamedTuple):
    """A mediated device by its node device's name; *parent* is None before libvirt 7.7, and
    where the parent is no PCI device."""

    uuid: str
    parent: PciAddress | None


def mdev_node(name: str) -> MdevNode | None:
    """What the name of a node device says of a mediated device, None for another kind of device.

    Names are read, never built to look one up: match by UUID
    (https://bugs.launchpad.net/nova/+bug/1951656).

    >>> mdev_node("mdev_4b200000_0000_4000_8000_000000005c01_0000_3b_00_0")
    MdevNode(uuid='4b200000-0000-4000-8000-000000005c01', parent='0000:3b:00.0')
    """
    match = _MDEV.fullmatch(name)
    if match is None:
        return None
    parent = _PCI.fullmatch(match[2] or "")
    return MdevNode(
        uuid=match[1].replace("_", "-"),
        parent=PciAddress.parse("{}:{}:{}.{}".format(*parent.groups())) if parent else None,
    )
