"""One card in detail: `gpu show`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import hosts, trees
from tests.support.command import virtgpu
from virtgpu.api import HostHandle
from virtgpu.host.local import LocalDoor
from virtgpu.inventory.details import parse_resource
from virtgpu.model.details import Bar

# The BARs that a vGPU VF of an A2 showed (256 KiB, 2 GiB, 32 MiB), in the form of resource_show
# (drivers/pci/pci-sysfs.c): the upper half of a 64-bit BAR is an empty line, a ROM is the seventh.
A2_VF = """\
0x00000000a0000000 0x00000000a003ffff 0x0000000000040200
0x0000206000000000 0x000020607fffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000206400000000 0x0000206401ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x00000000a0080000 0x00000000a00fffff 0x0000000000046200
0x00000000a1000000 0x00000000a13fffff 0x0000000000040200
"""


def test_resource_gives_the_bars_and_neither_the_rom_nor_those_of_vfs() -> None:
    assert parse_resource(A2_VF) == (
        Bar(index=0, size_bytes=256 << 10),
        Bar(index=1, size_bytes=2 << 30, prefetchable=True),
        Bar(index=3, size_bytes=32 << 20, prefetchable=True),
    )


@given(st.text(max_size=200))
def test_any_text_is_bars_or_unknown(text: str) -> None:
    found = parse_resource(text)
    assert found is None or all(bar.size_bytes > 1 for bar in found)


class TestShow:
    SIM = ("--host", "sim:a40x2-vendor-vfio", "gpu", "show", "0000:51:00.0")

    @pytest.mark.parametrize(
        "line",
        [
            "BARs                 0: 16 MiB, 1: 64 GiB prefetchable, 3: 32 MiB prefetchable",
            "link now             16.0 GT/s PCIe x16",
            "link at most         16.0 GT/s PCIe x16",
            "reset methods        flr, bus",
            "serial number        *********0000",
        ],
    )
    def test_the_text_has(self, line: str) -> None:
        assert line in virtgpu(*self.SIM).out.splitlines()

    def test_json_has_all_of_it_and_the_whole_serial_number(self) -> None:
        found = virtgpu(*self.SIM, "-o", "json").json["details"]
        assert found["serial"] == "1320000000000"
        assert found["bars"][1]["size_bytes"] == 64 << 30
        assert found["reset_methods"] == ["flr", "bus"]

    def test_what_is_not_said_is_unknown(self, tmp_path: Path) -> None:
        tree = trees.case("D02")
        device = "/sys/bus/pci/devices/0000:89:00.0"
        # pcie_get_speed_cap and its like print so where there is no link to ask.
        tree["files"] |= {
            f"{device}/current_link_speed": "Unknown speed\n",
            f"{device}/current_link_width": "0\n",
            f"{device}/max_link_width": "255\n",
            f"{device}/reset": "",
        }
        root = trees.build(tmp_path / "root", tree)
        host = HostHandle(LocalDoor(root, state_dir=tmp_path / "s"), vendors=hosts.VENDORS)
        found = host.details(host.gpu("0000:89:00.0"))
        assert (found.bars, found.link_speed, found.link_width) == (None, None, None)
        assert (found.max_link_width, found.reset_methods, found.serial) == (None, None, None)

    def test_no_way_to_reset_is_said_and_not_unknown(self, tmp_path: Path) -> None:
        host = hosts.case("D02", tmp_path)
        assert host.details(host.gpu("0000:89:00.0")).reset_methods == ()
