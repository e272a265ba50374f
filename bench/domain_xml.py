"""XML generation in process: virtgpu, virtinst's Guest.get_xml(), and lxml by hand, in one run.

    python bench/domain_xml.py

Each side makes the same guest: q35, virtio, one mediated vGPU. Instructions per guest are those of
callgrind for MANY guests less those for FEW, so that starting up counts nothing; guests a second
are measured in turns, so that a busy machine slows all sides alike. Exits with 1 when a limit is
not kept: ours at most a twentieth of virtinst's, at most three times those of the floor.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
VIRTINST = "/usr/share/virt-manager"
NAME, UUID = "render01", "c7a5fdbd-cdaf-9455-926a-d65c16db1809"
MDEV = "4b200000-0000-4000-8000-000000005c01"
MEMORY_MIB, VCPUS = 4096, 4
FEW, MANY, ROUNDS, ROUND_SECONDS = 20, 120, 7, 0.3
LIMITS = {"virtinst": 1 / 20, "floor": 3.0}


def ours() -> Callable[[], object]:
    """The whole of virtgpu's render, with aliases, metadata and checks."""
    from virtgpu.domain import render, template
    from virtgpu.model.attachment import Attachment
    from virtgpu.model.gpu import Mechanism
    from virtgpu.model.pci import PciAddress

    slice_ = Attachment(
        slice_id="4b200000",
        mechanism=Mechanism.MDEV_VF,
        request="A40-12Q",
        gpu=PciAddress.parse("0000:51:00.0"),
        mdev=MDEV,
        type_name="NVIDIA A40-12Q",
        framebuffer_mib=12288,
        numa_node=0,
        why="best fit",
    )
    text = template.shipped("default")
    size = {"memory_mib": MEMORY_MIB, "vcpus": VCPUS}
    return lambda: render(text, name=NAME, uuid=UUID, attachments=(slice_,), **size)


def floor() -> Callable[[], object]:
    """The least that lxml can do: copy a parsed template, set four texts, add one element."""
    from copy import deepcopy

    from lxml import etree

    parsed = etree.parse(ROOT / "xml_templates" / "default.xml").getroot()
    etree.SubElement(parsed, "uuid")

    def patch() -> bytes:
        root = deepcopy(parsed)
        root.find("name").text = NAME
        root.find("uuid").text = UUID
        root.find("memory").text = str(MEMORY_MIB)
        root.find("vcpu").text = str(VCPUS)
        node = etree.SubElement(
            root.find("devices"), "hostdev", mode="subsystem", type="mdev", model="vfio-pci"
        )
        etree.SubElement(etree.SubElement(node, "source"), "address", uuid=MDEV)
        return etree.tostring(root)

    return patch


def virtinst() -> Callable[[], object]:
    """virtinst's builder for the same guest: made once, its XML printed each time.

    Making the guest object as well costs it three times as much again.
    """
    sys.path.insert(0, VIRTINST)
    import virtinst as peer

    connection = peer.VirtinstConnection("test:///default")
    connection.open(None, None)
    guest = peer.Guest(connection)
    guest.type, guest.name, guest.uuid = "kvm", NAME, UUID
    guest.memory, guest.vcpus = MEMORY_MIB * 1024, VCPUS
    guest.os.os_type, guest.os.arch, guest.os.machine = "hvm", "x86_64", "q35"
    guest.features.acpi = guest.features.apic = True
    guest.cpu.mode, guest.clock.offset = "host-passthrough", "utc"
    devices = [
        (peer.DeviceInterface, {"type": "user", "model": "virtio"}),
        (peer.DeviceController, {"type": "usb", "model": "qemu-xhci"}),
        *[
            (peer.DeviceController, {"type": "pci", "index": index, "model": "pcie-root-port"})
            for index in range(1, 7)
        ],
        (peer.DeviceInput, {"type": "tablet", "bus": "usb"}),
        (peer.DeviceSerial, {"type": "pty"}),
        (peer.DeviceConsole, {"type": "pty"}),
        (peer.DeviceGraphics, {"type": "vnc", "autoport": True, "listen": "127.0.0.1"}),
        (peer.DeviceVideo, {"model": "virtio"}),
        (peer.DeviceRng, {"model": "virtio", "backend_model": "random", "device": "/dev/urandom"}),
        (peer.DeviceMemballoon, {"model": "none"}),
        (peer.DeviceHostdev, {"type": "mdev", "model": "vfio-pci", "managed": False, "uuid": MDEV}),
    ]
    for kind, settings in devices:
        device = kind(connection)
        if kind is peer.DeviceHostdev:
            device.mode = "subsystem"
        for name, value in settings.items():
            setattr(device, name, value)
        guest.add_device(device)
    return guest.get_xml


SIDES = {"virtgpu": ours, "virtinst": virtinst, "floor": floor}


def work(side: str, count: int | None) -> None:
    """A side's own process: *count* guests at once, or a figure for each line of stdin."""
    make = SIDES[side]()
    make()
    if count is not None:
        for _ in range(count):
            make()
        return
    for _ in sys.stdin:
        done, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < ROUND_SECONDS:
            make()
            done += 1
        print(done / elapsed, flush=True)


def command(side: str, *more: str) -> list[str]:
    python = "/usr/bin/python3" if side == "virtinst" else sys.executable
    return [python, __file__, side, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}


def instructions(side: str, count: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        done = subprocess.run(
            [*valgrind, *command(side, str(count))],
            env=environment(),
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if collected is None:
        sys.exit(f"valgrind did not count: {done.stderr[-500:]}")
    return int(collected[1])


def rates() -> dict[str, float]:
    """Guests a second of each side, the median of rounds taken in turns."""
    workers = {
        side: subprocess.Popen(
            command(side),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for side in SIDES
    }
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(ROUNDS):
        for side, worker in workers.items():
            assert worker.stdin is not None
            assert worker.stdout is not None
            print(file=worker.stdin, flush=True)
            found[side].append(float(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()
    return {side: statistics.median(figures) for side, figures in found.items()}


def main() -> int:
    each = {
        side: (instructions(side, MANY) - instructions(side, FEW)) / (MANY - FEW) for side in SIDES
    }
    speed = rates()
    worst = 0
    for side in SIDES:
        ratio, limit = each["virtgpu"] / each[side], LIMITS.get(side, 1.0)
        worst |= ratio > limit
        print(
            f"{side:10} {each[side] / 1e6:7.3f} M instructions a guest  {speed[side]:8.0f} guests/s"
            f"  virtgpu takes {ratio:5.3f} of it  limit {limit:5.3f}"
            f"  {'ok' if ratio <= limit else 'OVER'}"
        )
    return int(worst)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
        sys.exit(0)
    sys.exit(main())
