"""Defining a guest as a user does against the bare libvirt calls, in turns in one run.

    python bench/define.py

Ours is `HostHandle.define` and `undefine` of a guest with one vGPU on a simulated host: the
inventory, the choice, the reservation, the journal with fsync, libvirt, and every read-back. Bare
is looking the name up, defining the same XML with validation, reading it back and undefining it.
Both on libvirt's test driver, with 0, 50 and 500 other guests defined. What ours takes is listed by
its parts, with how often each is done (shares under a profiler, which makes Python's parts look
larger). Exits with 1 when a limit is not kept.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import libvirt

from virtgpu.api import HostHandle, connect

PROFILE = Path(__file__).with_name("node-with-gpu.json")
URI = "test:///default"
NAME, REQUEST = "bench", "A40-12Q"
GUESTS, ROUNDS = (0, 50, 500), 15
LIMIT = 10.0  # at 0 guests; six is wanted
# Functions by file and name: a part is what they take with all that they call.
PARTS = {
    "inventory": ("reading.py", "read_host"),
    "list of guests": ("libvirt.py", "list_guests"),
    "journal and reservations, fsync": ("~", "<built-in method posix.fsync>"),
    "libvirt: define": ("libvirt_domains.py", "define"),
    "libvirt: undefine": ("libvirt_domains.py", "undefine"),
    "read-back of a step": ("observe.py", "observe"),
    "connections opened": ("libvirt.py", "open"),
}


def ours(handle: HostHandle) -> None:
    handle.define(NAME, [REQUEST])
    handle.undefine(NAME)


def bare(connection: Any, xml: str) -> None:
    try:
        connection.lookupByName(NAME)
    except libvirt.libvirtError as error:
        assert error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
    domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    assert domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    found = connection.lookupByName(NAME)
    assert not found.isActive()
    found.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE)


def timed(act: Callable[[], None]) -> float:
    begin = time.perf_counter()
    act()
    return (time.perf_counter() - begin) * 1000


def defined_xml(handle: HostHandle, connection: Any) -> str:
    """The very text that ours defines."""
    handle.define(NAME, [REQUEST])
    xml = str(connection.lookupByName(NAME).XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
    handle.undefine(NAME)
    return xml


def fill(connection: Any, count: int) -> None:
    """Guests of somebody's until there are *count*."""
    for number in range(len(connection.listAllDomains()), count):
        connection.defineXML(
            f"<domain type='test'><name>other{number}</name><memory>65536</memory>"
            "<os><type>hvm</type></os><devices><disk type='file' device='disk'>"
            f"<source file='/srv/other{number}.img'/><target dev='vda' bus='virtio'/></disk>"
            "<interface type='network'><source network='default'/></interface></devices></domain>"
        )


def print_parts(handle: HostHandle) -> None:
    profile = cProfile.Profile()
    profile.runcall(ours, handle)
    rows = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    whole = max(row[3] for row in rows.values())
    for part, (file, name) in PARTS.items():
        found = [row for key, row in rows.items() if key[0].endswith(file) and key[2] == name]
        calls, took = sum(row[1] for row in found), sum(row[3] for row in found)
        print(f"    {part:32} {calls:4} times  {took / whole:5.0%}")


def main() -> int:
    libvirt.registerErrorHandler(lambda *_: None, None)
    kept = libvirt.open(URI)  # the driver forgets its guests with the last connection
    for domain in kept.listAllDomains():
        domain.destroy()
        domain.undefine()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        handle = connect(f"sim:{PROFILE}", connect_uri=URI, state_dir=folder)
        xml = defined_xml(handle, kept)
        for guests in GUESTS:
            fill(kept, guests)
            pairs = [
                (timed(lambda: ours(handle)), timed(lambda: bare(kept, xml))) for _ in range(ROUNDS)
            ]
            mine = statistics.median(one for one, _ in pairs)
            ratio = statistics.median(one / other for one, other in pairs)
            found[guests] = mine, ratio
            print(f"{guests:4} guests: {mine:7.1f} ms, {ratio:6.1f} of the bare calls")
            print_parts(handle)
    growth = (found[500][0] - found[0][0]) / 500
    is_kept = found[0][1] <= LIMIT
    print(f"growth: {growth:.3f} ms a guest; at 0 guests {found[0][1]:.1f}, limit {LIMIT}: "
          f"{'ok' if is_kept else 'OVER'}")  # fmt: skip
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
