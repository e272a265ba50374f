"""Guests as a libvirt connection knows them, read with what virtgpu wrote into them.

Every function takes a connection from `Door.libvirt`; nothing is remembered between calls.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec
from lxml import etree

from virtgpu.domain import elements, read
from virtgpu.domain.target import Target
from virtgpu.errors import Config, NotFound, Usage, VirtgpuError
from virtgpu.host import paths
from virtgpu.host.door import Door
from virtgpu.host.libvirt_domains import (
    define,
    lookup,
    lookup_xml,
    require_undefinable,
    translated,
    translating,
    undefine,
)

__all__ = [
    "KnownGuest",
    "define",
    "guest",
    "guest_xml",
    "is_active",
    "is_same_machine",
    "list_guests",
    "lookup_xml",
    "require_same_machine",
    "require_undefinable",
    "target",
    "undefine",
]


class KnownGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest of one connection. *definition* is what the next start uses, *live* what runs now
    (None when it is shut off); both may hold devices that the other lacks."""

    name: str
    uuid: str
    is_active: bool
    is_persistent: bool
    definition: read.Guest
    live: read.Guest | None = None

    @property
    def both(self) -> tuple[read.Guest, ...]:
        """Definition and live state, for questions about who has a device."""
        return (self.definition,) if self.live is None else (self.definition, self.live)


def target(connection: Any) -> Target:
    """The versions behind a connection, and whether its guests are KVM's."""
    with translating("libvirt does not say its version"):
        capabilities = connection.getCapabilities()
        return Target(
            libvirt=connection.getLibVersion(),
            qemu=connection.getVersion() if connection.getType() == "QEMU" else None,
            domain_type=_domain_type(capabilities),
        )


def _domain_type(capabilities: str) -> str:
    root = _capabilities(capabilities)
    types = (
        [] if root is None else [node.get("type") for node in root.iterfind("guest/arch/domain")]
    )
    return next((kind for kind in ("kvm", "qemu", *types) if kind in types), "kvm") or "kvm"


def _capabilities(text: str) -> etree._Element | None:
    try:
        return etree.fromstring(text.encode(), elements.PARSER)
    except etree.XMLSyntaxError:
        return None


def list_guests(connection: Any) -> tuple[KnownGuest, ...]:
    """All guests, running or not, sorted by name."""
    with translating("libvirt does not list its guests"):
        domains = connection.listAllDomains()
    guests = [known for domain in domains if (known := _known(domain)) is not None]
    return tuple(sorted(guests, key=lambda known: known.name))


def _known(domain: Any) -> KnownGuest | None:
    """None for a guest that went away while we looked."""
    import libvirt

    try:
        is_active = bool(domain.isActive())
        return KnownGuest(
            name=domain.name(),
            uuid=domain.UUIDString(),
            is_active=is_active,
            is_persistent=bool(domain.isPersistent()),
            definition=_read(domain, libvirt.VIR_DOMAIN_XML_INACTIVE),
            live=_read(domain, 0) if is_active else None,
        )
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise translated(error, f"guest {domain.name()!r} cannot be read") from error


def _read(domain: Any, flags: int) -> read.Guest:
    try:
        return read.guest(domain.XMLDesc(flags), f"guest {domain.name()!r}")
    except Config as error:
        # A guest of somebody's that we cannot read hides its devices, not the others.
        return read.Guest(name=domain.name(), uuid=domain.UUIDString(), warnings=(error.message,))


def guest(connection: Any, name: str) -> KnownGuest:
    """One guest by its name; raises `NotFound`."""
    found = _known(_domain(connection, name))
    if found is None:
        raise _nobody(name)
    return found


def guest_xml(connection: Any, name: str, *, live: bool = False) -> str:
    """The definition, or with *live* the XML of what runs now; raises `NotFound`."""
    import libvirt

    with translating(f"guest {name!r} cannot be read"):
        flags = 0 if live else libvirt.VIR_DOMAIN_XML_INACTIVE
        return str(_domain(connection, name).XMLDesc(flags))


def is_active(connection: Any, name: str) -> bool:
    """Whether the guest runs; raises `NotFound`."""
    with translating(f"guest {name!r} cannot be read"):
        return bool(_domain(connection, name).isActive())


def _domain(connection: Any, name: str) -> Any:
    domain = lookup(connection, name)
    if domain is None:
        raise _nobody(name)
    return domain


def _nobody(name: str) -> VirtgpuError:
    return NotFound(f"there is no guest {name!r}", hint="see the guests with: virtgpu vm list")


def is_same_machine(connection: Any, door: Door) -> bool | None:
    """Whether the hypervisor runs on the host whose GPUs *door* shows; None when unknown.

    libvirt's host UUID is compared with the firmware's. A simulated host has no firmware of
    its own: whatever connection its user gives is taken as its hypervisor.
    """
    if door.is_simulated:
        return True
    with translating("libvirt does not describe its host"):
        uri = urlsplit(connection.getURI())
        root = _capabilities(connection.getCapabilities())
    if uri.scheme.partition("+")[0] == "test":
        return False
    theirs = _real_uuid(None if root is None else root.findtext("host/uuid"))
    ours = _real_uuid(_product_uuid(door))
    if theirs is not None and ours is not None:
        return theirs == ours
    # Firmware without a UUID, or not root: a connection that names no host is a local one.
    return True if not uri.netloc else None


def _product_uuid(door: Door) -> str | None:
    try:
        return door.read(paths.PRODUCT_UUID)
    except OSError:
        return None


def _real_uuid(text: str | None) -> str | None:
    """Lower case without dashes; None for the blanks that some firmware has (all digits equal),
    in whose place libvirt makes up a random one."""
    digits = (text or "").strip().replace("-", "").lower()
    return digits if len(set(digits)) > 1 else None


def require_same_machine(connection: Any, door: Door) -> None:
    """Raise `Usage` unless slices made on this host can be used by that hypervisor."""
    if is_same_machine(connection, door) is not True:
        with translating("libvirt does not say where it is"):
            uri = connection.getURI()
        raise Usage(
            f"{uri} is not known to be the machine with these GPUs, so no slice is made for it",
            hint="run virtgpu on that machine, or define the guest without one: --no-slice",
        )
