"""Domains of one libvirt connection: look up, define, undefine; libvirt's refusals as our errors.

All functions take a connection from `Door.libvirt`. The module `libvirt` is loaded by then,
so that importing it here costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from virtgpu.errors import (
    AccessDenied,
    Config,
    Conflict,
    HostError,
    NotFound,
    Unsupported,
    VirtgpuError,
)

# libvirt's error codes by name, each with the error that a caller branches on. Everything else
# is a HostError. OPERATION_FAILED is what define says for a name that has another UUID.
_KINDS: dict[str, type[VirtgpuError]] = {
    "VIR_ERR_NO_DOMAIN": NotFound,
    "VIR_ERR_NO_NODE_DEVICE": NotFound,
    "VIR_ERR_XML_ERROR": Config,
    "VIR_ERR_XML_DETAIL": Config,
    "VIR_ERR_XML_INVALID_SCHEMA": Config,
    "VIR_ERR_INVALID_DOMAIN": Conflict,
    "VIR_ERR_OPERATION_INVALID": Conflict,
    "VIR_ERR_DOM_EXIST": Conflict,
    "VIR_ERR_OPERATION_FAILED": Conflict,
    "VIR_ERR_CONFIG_UNSUPPORTED": Unsupported,
    "VIR_ERR_NO_SUPPORT": Unsupported,
    "VIR_ERR_ACCESS_DENIED": AccessDenied,
    "VIR_ERR_OPERATION_DENIED": AccessDenied,
    "VIR_ERR_AUTH_FAILED": AccessDenied,
    "VIR_ERR_AUTH_CANCELLED": AccessDenied,
    "VIR_ERR_AUTH_UNAVAILABLE": AccessDenied,
}
_TRANSIENT = ("VIR_ERR_RPC", "VIR_ERR_OPERATION_TIMEOUT", "VIR_ERR_AGENT_UNRESPONSIVE")
_HINTS: dict[type[VirtgpuError], str] = {
    NotFound: "see the guests with: virtgpu vm list",
    Config: "look at the XML with: virtgpu vm render",
    Conflict: "see the guests with: virtgpu vm list",
    AccessDenied: "run as root, or as a member of the group that may use this libvirt",
    HostError: "look into the log of libvirt's daemon",
}


def lookup(connection: Any, name: str) -> Any | None:
    """The domain of that name, None when there is none."""
    import libvirt

    try:
        return connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise translated(error, f"guest {name!r}") from error


def lookup_xml(connection: Any, name: str) -> str | None:
    """The persistent definition as libvirt keeps it, None when there is no such guest.

    Passwords of displays are not in it (they would end in a plan or a journal), so defining
    this text again drops them.
    """
    import libvirt

    domain = lookup(connection, name)
    if domain is None:
        return None
    with translating(f"guest {name!r}"):
        return str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))


def define(connection: Any, xml: str) -> str:
    """Define a domain, checked against libvirt's schema; returns its UUID.

    Raises `Config` (libvirt refuses the XML), `Conflict` (the name or UUID is another guest's),
    `Unsupported` (this hypervisor cannot do it), `HostError`.
    """
    import libvirt

    with translating("libvirt refuses to define the guest"):
        domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
        return str(domain.UUIDString())


def definitions(connection: Any) -> tuple[str, ...]:
    """What every guest is defined as and what it runs with now, as XML."""
    import libvirt

    found = []
    with translating("libvirt does not list its guests"):
        for domain in connection.listAllDomains():
            try:
                found.append(str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)))
                if domain.isActive():
                    found.append(str(domain.XMLDesc(0)))
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:  # it went meanwhile
                    raise
    return tuple(found)


def is_known(connection: Any, uuid: str) -> bool:
    """Whether there is a guest of that UUID."""
    import libvirt

    try:
        connection.lookupByUUIDString(uuid)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return False
        raise translated(error, f"guest {uuid}") from error
    return True


def require_undefinable(connection: Any, name: str) -> Any:
    """The domain of that name, when undefining it would lose nothing but its NVRAM.

    Raises `NotFound`; `Conflict` when it runs (undefining would only make it transient), or has a
    saved state, snapshots or checkpoints: they are the operator's to delete.
    """
    import libvirt

    domain = lookup(connection, name)
    if domain is None:
        raise NotFound(f"there is no guest {name!r}", hint=_HINTS[NotFound])
    with translating(f"guest {name!r} cannot be undefined"):
        if domain.isActive():
            raise Conflict(
                f"guest {name!r} is running and is not undefined",
                hint=f"shut it down first: virsh shutdown {name}",
            )
        for has, what, hint in (
            (domain.hasManagedSaveImage, "a saved state", f"virsh managedsave-remove {name}"),
            (domain.snapshotNum, "snapshots", f"virsh snapshot-list {name}"),
            (domain.listAllCheckpoints, "checkpoints", f"virsh checkpoint-list {name}"),
        ):
            try:
                found = has()
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                    raise
                continue  # this hypervisor has no such thing
            if found:
                raise Conflict(f"guest {name!r} has {what}, which would be lost", hint=hint)
    return domain


def undefine(connection: Any, name: str) -> None:
    """Undefine a guest that is shut off, with its NVRAM; raises what `require_undefinable` does."""
    import libvirt

    domain = require_undefinable(connection, name)
    refused = (libvirt.VIR_ERR_INVALID_ARG, libvirt.VIR_ERR_NO_SUPPORT)
    with translating(f"guest {name!r} cannot be undefined"):
        try:
            domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)
        except libvirt.libvirtError as error:
            if error.get_error_code() not in refused:
                raise
            domain.undefine()  # a driver without NVRAM does not know the flag


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Turn a libvirtError inside the block into our error, with libvirt's own sentence."""
    import libvirt

    try:
        yield
    except libvirt.libvirtError as error:
        raise translated(error, what) from error


def translated(error: Any, what: str) -> VirtgpuError:
    """Our error for a libvirtError; *what* is the thing that was being done or looked at."""
    import libvirt

    code = error.get_error_code()
    names = {getattr(libvirt, name, None): name for name in (*_KINDS, *_TRANSIENT)}
    name = names.get(code, "")
    kind = _KINDS.get(name, HostError)
    sentence = " ".join(str(error.get_error_message() or error).split())
    return kind(f"{what}: {sentence}", hint=_HINTS.get(kind), transient=name in _TRANSIENT)
