"""Steps of several writes: each state that they can be left in is known, whichever way it went,
and what is not known is never called done or undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts
from tests.support.trials import Faulty, Killed, look
from virtgpu.api import HostHandle
from virtgpu.apply import journal
from virtgpu.errors import NotFound, RecoveryNeeded, RolledBack

DGX = "dgx-a100-8x80gb"


def faulty(profile: str, folder: Path, **given: str) -> HostHandle:
    faults = {int(number[1:]): fault for number, fault in given.items()}
    return HostHandle(Faulty(profile, folder, faults), vendors=hosts.VENDORS)


def given_away(folder: Path) -> tuple[HostHandle, str, dict[str, Any]]:
    """A card that was given to a guest, and the machine before that."""
    host = hosts.handle(DGX, folder)
    before = look(host)
    return host, host.create("gpu on 0000:07:00.0", guest="g1").slices[0].id, before


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_card_that_was_being_given_back_has_its_driver_afterwards(
    number: int, moment: str, tmp_path: Path
) -> None:
    host, slice_id, before = given_away(tmp_path)
    with pytest.raises(Killed):
        faulty(DGX, tmp_path, **{f"n{number}": moment}).destroy([slice_id])
    assert [one.outcome for one in host.recover().journals] == ["finished"]
    assert look(host) == before


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_card_that_could_not_be_given_back_is_the_guests_still(
    number: int, tmp_path: Path
) -> None:
    host, slice_id, _ = given_away(tmp_path)
    given = look(host)
    with pytest.raises(RolledBack):
        faulty(DGX, tmp_path, **{f"n{number}": "EIO"}).destroy([slice_id])
    assert look(host) == given


def test_undoing_that_was_cut_off_is_undone_by_recovery(tmp_path: Path) -> None:
    host = hosts.handle(DGX, tmp_path)
    before = look(host)
    with pytest.raises(Killed):
        faulty(DGX, tmp_path, n4="EIO", n6="after").create("2xgpu", guest="g")
    assert [one.outcome for one in host.recover().journals] == ["undone"]
    assert look(host) == before


class TestSomebodyElse:
    """Somebody gives the card to a driver of theirs while ours is cut off."""

    def cut_off(self, folder: Path) -> tuple[HostHandle, str, dict[str, Any]]:
        host, slice_id, before = given_away(folder)
        with pytest.raises(Killed):
            faulty(DGX, folder, n2="after").destroy([slice_id])
        self.bind(host, "nouveau")
        return host, slice_id, before

    def bind(self, host: HostHandle, driver: str) -> None:
        with host.door.changing() as kernel:  # type: ignore[attr-defined]
            device = kernel.bus.devices["0000:07:00.0"]
            if device.driver:
                kernel.bus.unbind(device)
            kernel.bus.driver_node(driver)
            kernel.tree.find("sys/bus/pci/devices/0000:07:00.0/driver_override").write(driver)
            kernel.bus.probe(device)

    def test_it_is_left_and_said(self, tmp_path: Path) -> None:
        host, slice_id, _ = self.cut_off(tmp_path)
        (one,) = host.recover().journals
        assert one.outcome == "left"
        assert "0000:07:00.0 has driver nouveau" in (one.reason or "")
        assert f"virtgpu recover --as-is {one.plan}" in (one.hint or "")
        assert look(host)["promised"] == [slice_id]
        assert look(host)["functions"]["0000:07:00.0"] == ("nouveau", "nouveau")

    def test_set_right_by_hand_it_is_finished(self, tmp_path: Path) -> None:
        host, _, before = self.cut_off(tmp_path)
        self.bind(host, "vfio-pci")
        assert [one.outcome for one in host.recover().journals] == ["finished"]
        assert look(host) == before

    def test_it_may_be_left_as_it_is(self, tmp_path: Path) -> None:
        host, _, _ = self.cut_off(tmp_path)
        plan = journal.files(host.door.state_dir)[0].stem
        (one,) = host.recover(as_is=[plan]).journals
        assert (one.outcome, "nouveau" in (one.reason or "")) == ("finished", True)
        assert look(host)["functions"]["0000:07:00.0"] == ("nouveau", "nouveau")
        assert look(host)["promised"] == []
        with pytest.raises(NotFound, match="no unfinished plan"):
            host.recover(as_is=[plan])

    def test_in_one_run_it_is_13_and_not_12(self, tmp_path: Path) -> None:
        host = hosts.handle(DGX, tmp_path)
        door = Faulty(DGX, tmp_path, {3: "EIO"})
        original = door.write

        def write(path: str, text: str, **options: Any) -> None:
            try:
                original(path, text, **options)
            except OSError:
                self.bind(host, "nouveau")
                raise

        door.write = write  # type: ignore[method-assign]
        with pytest.raises(RecoveryNeeded, match=r"0000:07:00\.0 has driver nouveau"):
            HostHandle(door, vendors=hosts.VENDORS).create("gpu on 0000:07:00.0", guest="g")
