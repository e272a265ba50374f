"""Instructions of whole commands, counted by callgrind: virtgpu against its peers in one run.

    python bench/instructions.py

Prints one row a comparison: ours, the peer's, the ratio, the limit. Warm .pyc, same Python for both
where both are Python.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import hosts

VIRTGPU = str(Path(sys.executable).with_name("virtgpu"))
NODE = Path(__file__).with_name("node-with-gpu.xml")
PROFILE = Path(__file__).with_name("node-with-gpu.json")
TREE_ENV = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}


class Row(NamedTuple):
    """One comparison; *limit* is the most that ours may be of the peer's."""

    name: str
    ours: list[str]
    peer: list[str]
    limit: float


def rows(folder: Path) -> list[Row]:
    click = [sys.executable, "-c", "import click"]
    floor = [sys.executable, "-c", "import click, msgspec"]
    virtgpu = [sys.executable, VIRTGPU]
    # The same machine for both: NODE for libvirt's test driver, PROFILE for our simulated host.
    return [
        Row("virtgpu --version", [*virtgpu, "--version"], click, 1.3),
        Row("virtgpu --help", [*virtgpu, "--help"], click, 1.18),
        Row("gpu list, one GPU", [*simulated(folder, PROFILE), "gpu", "list"], floor, 1.75),
        Row("slice list, one GPU", [*simulated(folder, PROFILE), "slice", "list"], floor, 1.75),
        Row(
            "vm render, one GPU, 4 VFs",
            render(folder, PROFILE),
            virt_install(NODE, "pci_0000_51_00_4"),
            0.45,
        ),
        large(folder, gpus=2, vfs=32, limit=0.55),
        large(folder, gpus=8, vfs=16, limit=0.5),
    ]


def simulated(folder: Path, profile: Path) -> list[str]:
    world = ["--state-dir", str(folder / "state"), "--host", f"sim:{profile}"]
    return [sys.executable, VIRTGPU, *world]


def render(folder: Path, profile: Path) -> list[str]:
    return [*simulated(folder, profile), "vm", "render", "render01", "--gpu", "A40-12Q"]


def virt_install(node: Path, device: str) -> list[str]:
    return [
        "/usr/bin/python3", "/usr/bin/virt-install", "--connect", f"test://{node}",
        "--name", "render01", "--memory", "4096", "--vcpus", "4", "--disk", "none",
        "--network", "none",
        "--osinfo", "generic", "--boot", "hd", "--hostdev", device, "--print-xml", "1",
    ]  # fmt: skip


def large(folder: Path, *, gpus: int, vfs: int, limit: float) -> Row:
    """A host of real size, equally big for both: the node XML is made from our profile."""
    raw = hosts.profile(gpus, vfs)
    profile, node = folder / f"{raw['name']}.json", folder / f"{raw['name']}.xml"
    profile.write_text(json.dumps(raw))
    node.write_bytes(hosts.node_xml(raw))
    device = hosts.nodedev_name(hosts.vf_address(raw["pci"][0], 0))
    name = f"vm render, {gpus} GPUs, {vfs} VFs each"
    return Row(name, render(folder, profile), virt_install(node, device), limit)


def instructions(command: list[str]) -> int:
    """Instructions of the whole process, children left out; raises when it fails."""
    environment = {**os.environ, **TREE_ENV}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # warm: the first run writes the .pyc
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        done = subprocess.run(
            [*valgrind, *command],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if collected is None:
        sys.exit(f"valgrind did not count: {done.stderr[-500:]}")
    return int(collected[1])


def main() -> int:
    worst = 0
    counted: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(Path(folder)):
            ours = instructions(row.ours)
            key = " ".join(row.peer)
            peer = counted[key] = counted.get(key) or instructions(row.peer)
            ratio = ours / peer
            worst |= ratio > row.limit
            print(
                f"{row.name:30} {ours / 1e6:8.0f} M  peer {peer / 1e6:8.0f} M  "
                f"ratio {ratio:5.2f}  limit {row.limit:4.2f}  "
                f"{'ok' if ratio <= row.limit else 'OVER'}"
            )
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
