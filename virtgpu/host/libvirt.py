"""A connection to libvirt, for every kind of door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from virtgpu.errors import AccessDenied, HostError, Unsupported


@contextmanager
def connected(uri: str) -> Iterator[Any]:
    """An open connection, closed afterwards.

    Raises `Unsupported` without libvirt's binding, `AccessDenied` when libvirt does not let us in,
    else `HostError` with libvirt's own sentence.
    """
    try:
        import libvirt
    except ImportError as error:
        raise Unsupported(
            "libvirt's Python binding is not installed",
            hint="apt install python3-libvirt, or pip install 'virtgpu[libvirt]'",
        ) from error
    # By default the library prints every error on stderr before it raises it.
    libvirt.registerErrorHandler(_say_nothing, None)
    try:
        connection = libvirt.open(uri)
    except libvirt.libvirtError as error:
        raise _refused(uri, error) from error
    try:
        yield connection
    finally:
        with suppress(libvirt.libvirtError):
            connection.close()


def _say_nothing(_context: Any, _error: Any) -> None:
    pass


def _refused(uri: str, error: Any) -> HostError | AccessDenied:
    from virtgpu.host.libvirt_domains import translated

    ours = translated(error, f"libvirt does not answer at {uri}")
    if isinstance(ours, AccessDenied):
        return ours
    return HostError(
        ours.message,
        hint="is its daemon running, and the URI right? try: virsh -c URI version",
        transient=ours.transient,
    )
