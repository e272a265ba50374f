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
from virtgpu.errors import Conflict, NotFound, RecoveryNeeded, RolledBack

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


class TestPendingMig:
    """`nvidia-smi -mig 1` ends with 0 and leaves the mode pending where the card needs a reset
    (https://github.com/NVIDIA/mig-parted/issues/9)."""

    CARD = "0000:43:00.0"
    KIND = "H100XM-1-10C"

    def host(self, folder: Path) -> HostHandle:
        name = hosts.profile_with(folder, "h100x2-mig-vgpu", sim={"mig_pending": True})
        return hosts.handle(name, folder / "state")

    def leave_pending(self, host: HostHandle) -> None:
        with host.door.changing() as kernel:  # type: ignore[attr-defined]
            kernel.state.mig[self.CARD].pending = True

    def test_it_is_undone_before_12_is_said(self, tmp_path: Path) -> None:
        host = self.host(tmp_path)
        before = look(host)
        with pytest.raises(RolledBack, match="pending") as caught:
            host.create(f"{self.KIND} on {self.CARD}", guest="g1")
        assert f"nvidia-smi --gpu-reset -i {self.CARD}" in (caught.value.hint or "")
        assert look(host) == before

    def test_what_cannot_be_undone_is_13_and_recovery_undoes_it(self, tmp_path: Path) -> None:
        host = self.host(tmp_path)
        before = look(host)
        broken = Faulty(host.door.label[4:], tmp_path / "state", {2: "EIO"})
        with pytest.raises(RecoveryNeeded, match="nvidia-smi"):
            HostHandle(broken, vendors=hosts.VENDORS).create(f"{self.KIND} on {self.CARD}")
        assert look(host)["mig"][self.CARD] == {"current": False, "pending": True}
        assert [one.outcome for one in host.recover().journals] == ["undone"]
        assert look(host) == before

    @pytest.mark.parametrize("request_", ["H100XM-1-10C", "mig:1g.10gb", "H100XM-80C", "gpu"])
    def test_a_card_with_a_pending_mode_is_given_to_nobody(
        self, request_: str, tmp_path: Path
    ) -> None:
        host = self.host(tmp_path)
        self.leave_pending(host)
        with pytest.raises(Conflict, match="is off, and on after its next reset") as caught:
            host.plan(f"{request_} on {self.CARD}", guest="g1")
        assert f"nvidia-smi -i {self.CARD} -mig 0" in (caught.value.hint or "")
        on_it = [one for one in host.types() if one.gpu == self.CARD]
        assert {one.available for one in on_it} <= {0}

    @pytest.mark.parametrize("request_", ["mig:1g.10gb", "gpu"])
    def test_a_plan_made_before_it_was_pending_is_stale(
        self, request_: str, tmp_path: Path
    ) -> None:
        host = self.host(tmp_path)
        plan = host.plan(f"{request_} on {self.CARD}", guest="g1")
        self.leave_pending(host)
        with pytest.raises(Conflict, match="MIG layout"):
            host.apply(plan)


class TestMixedSize:
    """Turning VFs on and giving the card away wipe mixed-size mode (hardware notes, 4)."""

    @pytest.mark.parametrize(
        ("profile", "request_", "card"),
        [
            ("l40s-x4-mixed", "L40S-48Q on 0000:a7:00.0", "0000:a7:00.0"),
            ("l40s-x4-mixed", "gpu on 0000:a7:00.0", "0000:a7:00.0"),
            ("h100x2-mig-vgpu", "mig:1g.10gb on 0000:43:00.0", "0000:43:00.0"),
        ],
    )
    def test_it_is_turned_off_by_a_step_and_back_on_by_undoing(
        self, profile: str, request_: str, card: str, tmp_path: Path
    ) -> None:
        host = hosts.handle(profile, tmp_path)
        with host.door.changing() as kernel:  # type: ignore[attr-defined]
            kernel.state.mixed[card] = True
        before = look(host)
        steps = [type(one).__name__ for one in host.plan(request_, guest="g1").steps]
        assert steps[1] == "SetMixedSize"
        door = Faulty(profile, tmp_path, {})
        HostHandle(door, vendors=hosts.VENDORS).plan(request_)
        door.given = {3: "EIO"}
        with pytest.raises(RolledBack):
            HostHandle(door, vendors=hosts.VENDORS).create(request_, guest="g1")
        assert look(host) == before
