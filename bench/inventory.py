"""How long the inventory of a large host takes, from a real file tree.

    python bench/inventory.py

Builds hosts of 1 to 16 GPUs with 16 VFs each on a machine of 400 processes, under vendor VFIO (the
VFs list their types) and with mediated devices (29 type folders on each VF), and reads each in
turns. Exits with 1 when 8 GPUs with 128 VFs take longer than their limit, or when the time is not
linear in devices.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import hosts
from virtgpu import vendors
from virtgpu.host import paths
from virtgpu.host.local import LocalDoor
from virtgpu.inventory import read_host
from virtgpu.model.gpu import Host

GPUS, VFS_EACH, PROCESSES = (1, 2, 4, 8, 16), 16, 400
LIMIT_MS, MDEV_LIMIT_MS, ROUNDS = 60.0, 80.0, 15
IN_USE = 64
# Twice the devices may take a quarter more than twice the time of what is not fixed cost.
LINEAR = 1.25
TYPES = "ID    : vGPU Name\n" + "".join(
    f"{1145 + number} : NVIDIA L40S-{size}{series}\n"
    for number, (size, series) in enumerate(
        (size, series) for series in "BQCA" for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
    )
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def function(root: Path, address: str, parent: str, group: int, files: dict[str, str]) -> Path:
    """One PCI function as sysfs has it: the folder below its port, links from the bus."""
    folder = root / "sys/devices/pci0000:00" / parent / address
    for name, text in files.items():
        write(folder / name, text)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(f"../../../devices/pci0000:00/{parent}/{address}")
    members = root / f"sys/kernel/iommu_groups/{group}/devices"
    members.mkdir(parents=True, exist_ok=True)
    (members / address).symlink_to(f"../../../../devices/pci0000:00/{parent}/{address}")
    (folder / "iommu_group").symlink_to(f"../../../../kernel/iommu_groups/{group}")
    driver = root / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to("../../../../bus/pci/drivers/nvidia")
    return folder


def common(device: str) -> dict[str, str]:
    return {
        "vendor": "0x10de\n",
        "device": f"{device}\n",
        "class": "0x030200\n",
        "subsystem_vendor": "0x10de\n",
        "subsystem_device": "0x16a1\n",
        "numa_node": "0\n",
        "driver_override": "(null)\n",
        "resource": "0x0 0x0 0x0\n" * 13,
        "irq": "16\n",
        "enable": "1\n",
        "config": "\0" * 256,
    }


def build(root: Path, gpus: int) -> Path:
    for number in range(gpus):
        port, bus = f"0000:00:{number + 1:02x}.0", 0x10 + number * 8
        write(root / f"sys/devices/pci0000:00/{port}/class", "0x060400\n")
        base = f"0000:{bus:02x}:"
        gpu = function(
            root,
            f"{base}00.0",
            port,
            100 * number,
            common("0x26b9")
            | {
                "sriov_totalvfs": f"{VFS_EACH}\n",
                "sriov_numvfs": f"{VFS_EACH}\n",
                "sriov_vf_device": "26b9\n",
                "sriov_offset": "4\n",
                "sriov_stride": "1\n",
            },
        )
        for index in range(VFS_EACH):
            address = f"{base}{(index + 4) // 8:02x}.{(index + 4) % 8}"
            vf = function(
                root,
                address,
                port,
                100 * number + 1 + index,
                common("0x26b9")
                | {
                    "nvidia/creatable_vgpu_types": TYPES,
                    "nvidia/current_vgpu_type": "0\n",
                    "nvidia/vgpu_params": "\n",
                },
            )
            (vf / "physfn").symlink_to(f"../{base}00.0")
            (gpu / f"virtfn{index}").symlink_to(f"../{address}")
    write(root / "proc/sys/kernel/osrelease", "6.8.0\n")
    write(root / paths.SIMULATED_MARK, "1\n")
    return add_processes(root)


def add_processes(root: Path) -> Path:
    for pid in range(1000, 1000 + PROCESSES):
        write(root / f"proc/{pid}/comm", "worker\n")
        (root / f"proc/{pid}/fd").mkdir()
        for fd in range(12):
            (root / f"proc/{pid}/fd/{fd}").symlink_to(f"/var/log/file{fd}")
    return root


def mdev_host(root: Path, gpus: int, in_use: int = 0) -> Path:
    """What the simulated kernel shows of a host with mediated devices on VFs, as files."""
    return add_processes(hosts.lay_out(hosts.profile(gpus, VFS_EACH, in_use), root))


def read(door: LocalDoor) -> tuple[float, Host]:
    begin = time.perf_counter()
    host = read_host(door, VENDORS)
    return (time.perf_counter() - begin) * 1000, host


VENDORS = vendors.load()


def compare(name: str, doors: dict[int, LocalDoor], limit_ms: float, offers: int) -> bool:
    """Read the hosts in turns; whether 8 GPUs are quick enough, and twice as many linear."""
    times: dict[int, list[float]] = {gpus: [] for gpus in doors}
    for _ in range(ROUNDS):
        for gpus, door in doors.items():
            took, host = read(door)
            times[gpus].append(took)
            assert len(host.gpus) == gpus
            assert sum(len(gpu.vfs) for gpu in host.gpus) == gpus * VFS_EACH
            assert all(len(gpu.offers) == offers for gpu in host.gpus)
            assert host.warnings == ()
    found = {gpus: statistics.median(figures) for gpus, figures in times.items()}
    for gpus, took in found.items():
        print(
            f"{name}: {gpus:3} GPUs {gpus * VFS_EACH:4} VFs {took:7.1f} ms"
            f"  {min(times[gpus]):7.1f} least"
        )
    growth = (found[16] - found[8]) / (found[8] - found[4]) / 2
    is_quick, is_linear = found[8] <= limit_ms, growth <= LINEAR
    print(f"8 GPUs with 128 VFs: limit {limit_ms:.0f} ms: {'ok' if is_quick else 'OVER'}")
    print(f"growth from 8 to 16 over that from 4 to 8, per device: {growth:.2f}, limit {LINEAR}: "
          f"{'ok' if is_linear else 'OVER'}")  # fmt: skip
    return is_quick and is_linear


def in_use(door: LocalDoor) -> bool:
    """Eight GPUs with 64 mediated devices."""
    times = []
    for _ in range(ROUNDS):
        took, host = read(door)
        times.append(took)
        assert sum(len(gpu.all_mdevs) for gpu in host.gpus) == IN_USE
    took = statistics.median(times)
    is_quick = took <= MDEV_LIMIT_MS
    print(f"mdev on VFs: 8 GPUs, {IN_USE} slices in use {took:7.1f} ms  limit {MDEV_LIMIT_MS:.0f}"
          f" ms: {'ok' if is_quick else 'OVER'}")  # fmt: skip
    return is_quick


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)

        def door(root: Path) -> LocalDoor:
            return LocalDoor(root, state_dir=base / "s")

        listed = {gpus: door(build(base / f"vfio{gpus}", gpus)) for gpus in GPUS}
        mediated = {gpus: door(mdev_host(base / f"mdev{gpus}", gpus)) for gpus in GPUS}
        used = door(mdev_host(base / "used", 8, IN_USE))
        kept = [
            compare("vendor VFIO", listed, LIMIT_MS, offers=40),
            compare("mdev on VFs", mediated, MDEV_LIMIT_MS, offers=29),
            in_use(used),
        ]
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
