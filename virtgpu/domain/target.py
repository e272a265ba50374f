"""What the hypervisor that gets the XML is, and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from virtgpu.errors import Unsupported
from virtgpu.model.attachment import Attachment
from virtgpu.model.gpu import Mechanism

# Versions as libvirt counts them: major * 1,000,000 + minor * 1,000 + release.
UNMANAGED_VARIANT = 9_007_000  # VFIO variant drivers with managed='no' (libvirt.org/news, 9.7.0)
PCI_DISPLAY = 10_003_000  # display and ramfb on PCI host devices (formatdomain)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The hypervisor that the XML is for. None means unknown: then nothing is held against it.

    *domain_type* replaces the type of a shipped template (`qemu` on a host without KVM).
    """

    libvirt: int | None = None
    qemu: int | None = None
    domain_type: str = "kvm"

    def knows(self, version: int) -> bool:
        """Whether its libvirt is at least *version*; an unknown one is taken for an old one."""
        return self.libvirt is not None and self.libvirt >= version


def version_text(version: int) -> str:
    """A version number of libvirt or QEMU as people write it.

    >>> version_text(9_007_000)
    '9.7.0'
    """
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"


def version_number(text: str) -> int | None:
    """A version as people write it, None when it is none.

    >>> version_number("9.7"), version_number("new")
    (9007000, None)
    """
    parts = text.split(".")
    if not 1 <= len(parts) <= 3 or not all(p.isascii() and p.isdigit() for p in parts):
        return None
    major, minor, release = (int(p) for p in (*parts, "0", "0")[:3])
    return major * 1_000_000 + minor * 1_000 + release


def is_vendor_vfio(attachment: Attachment) -> bool:
    """Whether the device stays on the vendor's own VFIO driver: a VF that is not managed."""
    return (
        attachment.mechanism in (Mechanism.VENDOR_VFIO, Mechanism.MIG)
        and attachment.mdev is None
        and not attachment.managed
    )


def startable(target: Target, attachments: Iterable[Attachment]) -> Unsupported | None:
    """Why the guest cannot be started there, None when nothing is known against it.

    libvirt itself would define such a guest, and fail when it is started.
    """
    if target.libvirt is None or target.libvirt >= UNMANAGED_VARIANT:
        return None
    for attachment in attachments:
        if is_vendor_vfio(attachment):
            device = attachment.functions[0] if attachment.functions else attachment.gpu
            return Unsupported(
                f"libvirt {version_text(target.libvirt)} cannot start a guest with {device}, a VF"
                " on its vendor's own VFIO driver;"
                f" libvirt {version_text(UNMANAGED_VARIANT)} or newer can",
                hint="upgrade libvirt on that host (Debian 12 has one in backports)",
            )
    return None
