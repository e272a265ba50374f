"""Who holds the functions beside a GPU, by the nodes that their own drivers make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts, trees
from virtgpu.api import HostHandle
from virtgpu.errors import Conflict
from virtgpu.host.local import LocalDoor

# D05 is a GeForce with four functions: VGA, audio, USB, UCSI.
GPU = "gpu on 0000:09:00.0"
CARD = "/sys/bus/pci/devices/0000:09:00"


def tree() -> dict[str, Any]:
    return trees.case("D05") | {"dirs": [f"{CARD}.1/sound/card1", f"{CARD}.3/i2c-7"]}


def host(folder: Path, found: dict[str, Any]) -> HostHandle:
    root = trees.build(folder / "root", found)
    return HostHandle(LocalDoor(root, state_dir=folder / "s"), vendors=hosts.VENDORS)


# Names of nodes: Documentation/admin-guide/devices.txt and sound/core of Linux.
@pytest.mark.parametrize(
    ("node", "counts"),
    [
        ("/dev/snd/controlC1", True),
        ("/dev/snd/pcmC1D3p", True),
        ("/dev/snd/hwC1D0", True),
        ("/dev/snd/controlC0", False),
        ("/dev/snd/controlC11", False),
        ("/dev/snd/pcmC10D1p", False),
        ("/dev/snd/seq", False),
        ("/dev/snd/timer", False),
        ("/dev/i2c-7", True),
        ("/dev/i2c-70", False),
    ],
)
def test_an_open_node_of_a_function_holds_the_card(tmp_path: Path, node: str, counts: bool) -> None:
    found = tree() | {"processes": [{"pid": 812, "comm": "someone", "fds": [node]}]}
    handle = host(tmp_path, found)
    if not counts:
        handle.plan(GPU)
        return
    with pytest.raises(Conflict, match=r"held by pid 812 \(someone\)"):
        handle.plan(GPU)


@pytest.mark.parametrize(
    ("comm", "command"),
    [
        ("pipewire", "systemctl --user stop pipewire.socket"),
        ("pulseaudio", "systemctl --user stop pulseaudio.socket"),
        ("nvidia-persiste", "systemctl stop nvidia-persistenced"),
        ("Xorg", "systemctl stop display-manager"),
    ],
)
def test_a_known_service_is_refused_with_the_command_that_stops_it(
    tmp_path: Path, comm: str, command: str
) -> None:
    process = {"pid": 812, "comm": comm, "fds": ["/dev/snd/pcmC1D3p"]}
    with pytest.raises(Conflict) as caught:
        host(tmp_path, tree() | {"processes": [process]}).plan(GPU)
    assert command in (caught.value.hint or "")


class TestUsb:
    """Documentation/driver-api/usb: interfaces of a device are bound to drivers one by one."""

    def usb(self, *path: str, driver: str) -> dict[str, Any]:
        found = tree()
        device = "/".join((f"{CARD}.2/usb3", *path))
        found["links"][f"{CARD}.2/usb3/3-0:1.0/driver"] = "/sys/bus/usb/drivers/hub"
        found["files"][f"{device}/product"] = "Ultra Fit\n"
        found["links"][f"{device}/{path[-1]}:1.0/driver"] = f"/sys/bus/usb/drivers/{driver}"
        return found

    @pytest.mark.parametrize("path", [("3-1",), ("3-1", "3-1.4")])
    def test_a_device_with_a_driver_is_named(self, tmp_path: Path, path: tuple[str, ...]) -> None:
        said = rf"USB Ultra Fit at {path[-1]} \(driver usb-storage\)"
        with pytest.raises(Conflict, match=said):
            host(tmp_path, self.usb(*path, driver="usb-storage")).plan(GPU)

    def test_hubs_alone_hold_nothing(self, tmp_path: Path) -> None:
        host(tmp_path, self.usb("3-1", driver="hub")).plan(GPU)


def test_unbinding_looks_again(tmp_path: Path) -> None:
    from virtgpu.apply.world import function_holders
    from virtgpu.model.pci import PciAddress

    process = {"pid": 812, "comm": "pipewire", "fds": ["/dev/snd/pcmC1D3p"]}
    door = host(tmp_path, tree() | {"processes": [process]}).door
    held = {n: function_holders(door, PciAddress(f"0000:09:00.{n}")) for n in (1, 2, 3)}
    assert [one.pid for one in held[1] or ()] == [812]
    assert (held[2], held[3]) == ((), ())
