"""Defining a guest through virtgpu against the bare libvirt calls, in turns in one run.

    python bench/define.py

Both sides look the name up, define the same XML with validation, read the UUID back and undefine,
on libvirt's test driver. Exits with 1 when ours takes more than 1.15 times as long.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import libvirt

from virtgpu.domain import render
from virtgpu.host import libvirt_domains
from virtgpu.model.attachment import Attachment
from virtgpu.model.gpu import Mechanism
from virtgpu.model.pci import PciAddress

LIMIT = 1.15
ROUNDS = 300
UUID = "11111111-2222-4333-8444-555555555555"


def guest() -> str:
    gpu = PciAddress("0000:51:00.0")
    vgpu = Attachment(
        slice_id=UUID, mechanism=Mechanism.MDEV_VF, request="A40-12Q", gpu=gpu, mdev=UUID
    )
    xml = render(None, name="bench", uuid=UUID, attachments=[vgpu]).decode()
    return xml.replace('type="kvm"', 'type="test"')


def bare(connection: Any, xml: str) -> None:
    try:
        connection.lookupByName("bench")
    except libvirt.libvirtError as error:
        assert error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
    domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    assert domain.UUIDString() == UUID
    found = connection.lookupByName("bench")
    assert not found.isActive()
    found.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE)


def ours(connection: Any, xml: str) -> None:
    assert libvirt_domains.lookup(connection, "bench") is None
    assert libvirt_domains.define(connection, xml) == UUID
    libvirt_domains.undefine(connection, "bench")


def timed(act: Callable[[Any, str], None], connection: Any, xml: str) -> float:
    begin = time.perf_counter()
    act(connection, xml)
    return time.perf_counter() - begin


def main() -> int:
    libvirt.registerErrorHandler(lambda *_: None, None)
    connection = libvirt.open("test:///default")
    xml = guest()
    timed(bare, connection, xml)
    timed(ours, connection, xml)
    pairs = [(timed(ours, connection, xml), timed(bare, connection, xml)) for _ in range(ROUNDS)]
    ratio = statistics.median(one / other for one, other in pairs)
    print(
        f"define, read back, undefine: {ratio:.3f} of the bare calls"
        f" ({statistics.median(one for one, _ in pairs) * 1e3:.2f} ms)"
        f"  limit {LIMIT}  {'ok' if ratio <= LIMIT else 'OVER'}"
    )
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
