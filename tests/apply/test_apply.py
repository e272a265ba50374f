"""Applying on the simulated host: made, shown, taken back to the exact state; and cut off at every
write, in every way, without leaving anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts
from tests.support.scenarios import IDS, SCENARIOS, Scenario
from tests.support.trials import Faulty, Killed, NoChild
from virtgpu.api import HostHandle
from virtgpu.apply import journal
from virtgpu.errors import (
    AccessDenied,
    Capacity,
    Conflict,
    RecoveryNeeded,
    RolledBack,
    VirtgpuError,
)
from virtgpu.model.slice import SliceState

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)


def snapshot(host: HostHandle) -> dict[str, Any]:
    found: dict[str, Any] = host.door.kernel.snapshot()  # type: ignore[attr-defined]
    # A driver_override of nobody is the same as none ever set.
    return {key: value for key, value in found.items() if value}


def writes_of(scenario: Scenario, folder: Path, act: Callable[[HostHandle], Any]) -> int:
    """How many writes it takes."""
    door = Faulty(scenario.profile, folder, {})
    act(HostHandle(door, vendors=hosts.VENDORS))
    return door.count


def create(host: HostHandle, scenario: Scenario) -> Any:
    return host.create(scenario.request, guest="g1")


def nothing_is_left(host: HostHandle, before: dict[str, Any]) -> None:
    assert snapshot(host) == before
    assert [one for one in host.slices() if one.state is not SliceState.FOREIGN] == []
    assert journal.files(host.door.state_dir) == []


@every_scenario
def test_what_is_made_is_shown_and_taken_back(scenario: Scenario, tmp_path: Path) -> None:
    host = hosts.handle(scenario.profile, tmp_path)
    before, foreign = snapshot(host), host.slices()
    made = create(host, scenario).slices
    shown = {one.id: one for one in host.slices()}
    for one in made:
        assert shown[one.id].state is SliceState.PRESENT
        assert one.place.mechanism.value == scenario.mechanism
    host.destroy([one.id for one in made])
    assert host.slices() == foreign
    after = snapshot(host)
    # VFs, MIG mode and mixed size are the card's: they stay for the next slice.
    for key in ("mdevs", "vgpus", "instances", "overrides", "holders"):
        assert after.get(key) == before.get(key) or not after.get(key), key


@every_scenario
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_write_of_making_nothing_is_left(
    scenario: Scenario, moment: str, tmp_path: Path
) -> None:
    total = writes_of(scenario, tmp_path / "count", lambda host: create(host, scenario))
    for number in range(1, total + 1):
        folder = tmp_path / str(number)
        host = hosts.handle(scenario.profile, folder)
        before = snapshot(host)
        with pytest.raises(Killed):
            create(
                HostHandle(
                    Faulty(scenario.profile, folder, {number: moment}), vendors=hosts.VENDORS
                ),
                scenario,
            )
        report = host.recover()
        assert [one.outcome for one in report.journals] == ["undone"], number
        nothing_is_left(host, before)
        assert host.recover().journals == ()
        nothing_is_left(host, before)


@every_scenario
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_write_of_taking_it_is_finished(
    scenario: Scenario, moment: str, tmp_path: Path
) -> None:
    made = hosts.handle(scenario.profile, tmp_path / "count")
    ids = [one.id for one in create(made, scenario).slices]
    total = writes_of(scenario, tmp_path / "count", lambda host: host.destroy(ids))
    for number in range(1, total + 1):
        folder = tmp_path / str(number)
        host = hosts.handle(scenario.profile, folder)
        ids = [one.id for one in create(host, scenario).slices]
        dying = Faulty(scenario.profile, folder, {number: moment})
        with pytest.raises(Killed):
            HostHandle(dying, vendors=hosts.VENDORS).destroy(ids)
        assert [one.outcome for one in host.recover().journals] == ["finished"], number
        assert [one for one in host.slices() if one.state is not SliceState.FOREIGN] == []
        assert host.recover().journals == ()


def killed_in(
    scenario: Scenario, folder: Path, number: int, act: Callable[[HostHandle], Any]
) -> Faulty | None:
    """Killed while a child does the write; None where no child does it."""
    dying = Faulty(scenario.profile, folder, {number: "in"})
    try:
        with pytest.raises(Killed):
            act(HostHandle(dying, vendors=hosts.VENDORS))
    except NoChild:
        return None
    return dying


@every_scenario
@pytest.mark.parametrize("done", [True, False], ids=["later done", "never done"])
def test_killed_in_a_write_of_making(scenario: Scenario, done: bool, tmp_path: Path) -> None:
    total = writes_of(scenario, tmp_path / "count", lambda host: create(host, scenario))
    cells = 0
    for number in range(1, total + 1):
        folder = tmp_path / str(number)
        host = hosts.handle(scenario.profile, folder)
        before = snapshot(host)
        dying = killed_in(scenario, folder, number, lambda one: create(one, scenario))
        if dying is None:
            continue
        cells += 1
        assert [one.outcome for one in host.recover().journals] == ["left"], number
        dying.end_child(done=done)
        assert [one.outcome for one in host.recover().journals] == ["undone"], number
        nothing_is_left(host, before)
        assert host.recover().journals == ()
    assert cells or not total, "no write of it is made by a child"


@every_scenario
@pytest.mark.parametrize("done", [True, False], ids=["later done", "never done"])
def test_killed_in_a_write_of_taking(scenario: Scenario, done: bool, tmp_path: Path) -> None:
    made = hosts.handle(scenario.profile, tmp_path / "count")
    ids = [one.id for one in create(made, scenario).slices]
    total = writes_of(scenario, tmp_path / "count", lambda host: host.destroy(ids))
    cells = 0
    for number in range(1, total + 1):
        folder = tmp_path / str(number)
        host = hosts.handle(scenario.profile, folder)
        ids = [one.id for one in create(host, scenario).slices]
        dying = killed_in(scenario, folder, number, lambda one, ids=ids: one.destroy(ids))
        if dying is None:
            continue
        cells += 1
        assert [one.outcome for one in host.recover().journals] == ["left"], number
        dying.end_child(done=done)
        assert [one.outcome for one in host.recover().journals] == ["finished"], number
        assert [one for one in host.slices() if one.state is not SliceState.FOREIGN] == []
        assert host.recover().journals == ()
    assert cells or not total, "no write of it is made by a child"


@every_scenario
def test_a_write_that_fails_undoes_those_before_it(scenario: Scenario, tmp_path: Path) -> None:
    total = writes_of(scenario, tmp_path / "count", lambda host: create(host, scenario))
    for number in range(1, total + 1):
        folder = tmp_path / str(number)
        host = hosts.handle(scenario.profile, folder)
        before = snapshot(host)
        dying = Faulty(scenario.profile, folder, {number: "EIO"})
        with pytest.raises(RolledBack):
            create(HostHandle(dying, vendors=hosts.VENDORS), scenario)
        nothing_is_left(host, before)


def test_the_scenarios_have_every_step_on_hardware(tmp_path: Path) -> None:
    from virtgpu.model import steps

    seen: set[type] = set()
    for number, scenario in enumerate(SCENARIOS):
        host = hosts.handle(scenario.profile, tmp_path / str(number))
        made = create(host, scenario)
        seen |= {type(one) for one in made.plan.steps}
        seen |= {type(one) for one in host.plan_destroy([s.id for s in made.slices]).steps}
    # Mixed size is turned on by nobody's request; libvirt's steps are shown with a real libvirtd.
    left = {steps.SetMixedSize, steps.DefineDomain, steps.UndefineDomain}
    assert seen == set(steps.Step.__args__) - left


class TestStuck:
    """A write that does not come back leaves its device alone, and all others usable."""

    def stuck(self, tmp_path: Path) -> tuple[HostHandle, str, str]:
        host = hosts.handle("pve-2xt4-mdev", tmp_path)
        one = host.create("T4-4Q on 0000:3b:00.0", guest="g1").slices[0]
        return host, one.id, one.place.mdev or ""

    def test_it_is_said_and_the_rest_of_the_host_works(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host, slice_id, uuid = self.stuck(tmp_path)
        monkeypatch.setattr("virtgpu.apply.perform.WRITE_S", 0.2)
        door = host.door

        def take_hold(number: int, step: object) -> None:
            # Somebody opens the device between our look and our write.
            original = door.write

            def write(path: str, text: str, **options: Any) -> None:
                with door.changing() as kernel:  # type: ignore[attr-defined]
                    group = next(m.group for m in kernel.state.mdevs if m.uuid == uuid)
                    kernel.hold("qemu-system-x86", group, uuid)
                original(path, text, **options)

            door.write = write  # type: ignore[method-assign]

        with pytest.raises(RecoveryNeeded, match="has not come back"):
            host.destroy([slice_id], progress=take_hold)
        host = hosts.handle("pve-2xt4-mdev", tmp_path)
        assert {one.id: one.state for one in host.slices()}[slice_id] is SliceState.STUCK
        assert host.create("T4-4Q on 0000:af:00.0", guest="g2").slices
        with pytest.raises(Conflict, match="has not come back"):
            host.create("T4-4Q on 0000:3b:00.0", guest="g3")
        with pytest.raises(Conflict, match="has not come back"):
            host.destroy([slice_id])
        report = host.recover()
        assert not report.is_clean
        self.let_go(host, uuid)
        assert host.recover().is_clean
        assert slice_id not in {one.id for one in host.slices()}

    def let_go(self, host: HostHandle, uuid: str) -> None:
        import time

        from virtgpu.apply import stuck

        with host.door.changing() as kernel:  # type: ignore[attr-defined]
            kernel.let_go(uuid)
        deadline = time.monotonic() + 20
        while stuck.load(host.door) and time.monotonic() < deadline:
            time.sleep(0.05)  # the child that does it is a process of its own


class TestSavedPlans:
    def test_it_is_applied_later(self, tmp_path: Path) -> None:
        host = hosts.handle("a40x2-mdev-vf", tmp_path)
        plan = host.plan("A40-12Q", guest="g1")
        result = host.apply(plan)
        assert [one.id for one in result.slices] == [
            one.id for one in host.slices() if one.guest == "g1"
        ]

    def test_twice_is_refused(self, tmp_path: Path) -> None:
        host = hosts.handle("a40x2-mdev-vf", tmp_path)
        plan = host.plan("A40-12Q", guest="g1")
        host.apply(plan)
        with pytest.raises(Conflict, match="stale"):
            host.apply(plan)

    def test_one_more_vgpu_with_room_left_leaves_it_valid(self, tmp_path: Path) -> None:
        host = hosts.handle("pve-2xt4-mdev", tmp_path)
        plan = host.plan("T4-4Q on 0000:3b:00.0", guest="g1")
        host.create("T4-4Q on 0000:3b:00.0", guest="g2")
        host.apply(plan)

    def test_a_change_on_another_card_leaves_it_valid(self, tmp_path: Path) -> None:
        host = hosts.handle("pve-2xt4-mdev", tmp_path)
        plan = host.plan("T4-4Q on 0000:3b:00.0", guest="g1")
        host.create("T4-4Q on 0000:af:00.0", guest="g2")
        host.apply(plan)

    def test_its_vf_taken_makes_it_stale(self, tmp_path: Path) -> None:
        host = hosts.handle("a40x2-mdev-vf", tmp_path)
        plan = host.plan("A40-12Q", guest="g1")
        host.create("A40-12Q", guest="g2")  # the same first free VF
        with pytest.raises(Conflict, match="stale"):
            host.apply(plan)

    def test_no_room_left_makes_it_stale(self, tmp_path: Path) -> None:
        host = hosts.handle("pve-2xt4-mdev", tmp_path)
        plan = host.plan("T4-4Q on 0000:3b:00.0", guest="g1")
        for number in range(4):
            host.create("T4-4Q on 0000:3b:00.0", guest=f"x{number}")
        with pytest.raises(Conflict, match="stale"):
            host.apply(plan)

    def test_another_hosts_plan_is_refused(self, tmp_path: Path) -> None:
        plan = hosts.handle("a40x2-mdev-vf", tmp_path).plan("A40-12Q")
        with pytest.raises(Conflict, match="is for host sim:a40x2-mdev-vf"):
            hosts.handle("pve-2xt4-mdev", tmp_path).apply(plan)

    def test_an_edited_file_is_refused(self, tmp_path: Path) -> None:
        from virtgpu.apply.executor import load_plan
        from virtgpu.errors import Config
        from virtgpu.model import codec

        plan = hosts.handle("a40x2-mdev-vf", tmp_path).plan("A40-12Q")
        path = tmp_path / "plan.json"
        path.write_text(codec.encode_pretty(plan).replace("nvidia-563", "nvidia-565"))
        with pytest.raises(Config, match="digest"):
            load_plan(path)

    def test_a_file_that_others_can_write_is_refused(self, tmp_path: Path) -> None:
        from virtgpu.apply.executor import load_plan
        from virtgpu.model import codec

        path = tmp_path / "plan.json"
        path.write_text(codec.encode_pretty(hosts.handle("a40x2-mdev-vf", tmp_path).plan("A40-1Q")))
        path.chmod(0o666)
        with pytest.raises(AccessDenied):
            load_plan(path)


class TestDestroying:
    def test_a_held_slice_stays(self, tmp_path: Path) -> None:
        host = hosts.handle("a40x2-vendor-vfio", tmp_path)
        one = host.create("A40-12Q on 0000:51:00.0", guest="g1").slices[0]
        with host.door.changing() as kernel:  # type: ignore[attr-defined]
            vf = kernel.bus.devices[str(one.place.vf)]
            kernel.hold("qemu-system-x86", vf.group, vf.address)
        with pytest.raises(Conflict, match="qemu-system-x86"):
            host.destroy([one.id])

    def test_a_refusal_right_after_the_guest_stopped_is_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = hosts.profile_with(tmp_path, "a40x2-vendor-vfio", sim={"clear_refusals": 2})
        host = hosts.handle(name, tmp_path / "state")
        monkeypatch.setattr(host.door, "sleep", lambda _: None)
        one = host.create("A40-12Q", guest="g1").slices[0]
        host.destroy([one.id])
        assert one.id not in {found.id for found in host.slices()}

    def test_after_a_reboot_only_the_promise_goes(self, tmp_path: Path) -> None:
        host = hosts.handle("a40x2-mdev-vf", tmp_path)
        one = host.create("A40-12Q", guest="g1").slices[0]
        (host.door.state_dir / "kernel.json").unlink()  # mediated devices do not survive it
        (found,) = [x for x in host.slices() if x.id == one.id]
        assert found.state is SliceState.ABSENT
        host.destroy([one.id])
        assert one.id not in {x.id for x in host.slices()}

    def test_a_promise_without_hardware_counts(self, tmp_path: Path) -> None:
        host = hosts.handle("pve-2xt4-mdev", tmp_path)
        for number in range(4):
            host.create("T4-4Q on 0000:3b:00.0", guest=f"g{number}")
        (host.door.state_dir / "kernel.json").unlink()
        with pytest.raises(Capacity, match="promised"):
            host.create("T4-4Q on 0000:3b:00.0", guest="late")


@pytest.mark.parametrize("code", ["EACCES", "EPERM"])
@pytest.mark.parametrize(
    ("profile", "request_", "number", "driver"),
    [
        ("a40x2-vendor-vfio", "A40-12Q", 1, "nvidia"),
        ("pve-2xt4-mdev", "T4-4Q", 1, "nvidia"),
        ("workstation-rtx4090", "gpu on 0000:01:00.0", 2, "nvidia"),
    ],
)
def test_a_driver_that_refuses_is_named_and_not_the_rights_to_its_file(
    tmp_path: Path, code: str, profile: str, request_: str, number: int, driver: str
) -> None:
    """NVIDIA's driver answers EPERM to root: /sys/.../current_vgpu_type of a VF in use."""
    from virtgpu.sim.door import SimDoor

    faults = {"VIRTGPU_SIM_FAULTS": f"{number}:{code}"}
    door = SimDoor(profile, state_dir=tmp_path, environment=faults)
    host = HostHandle(door, vendors=hosts.VENDORS)
    with pytest.raises(VirtgpuError, match=rf"driver {driver} refused .*{code}") as caught:
        host.create(request_)
    assert "no right to a file" in caught.value.message


def test_the_driver_may_be_silent_about_what_it_did_not_make(tmp_path: Path) -> None:
    """The facts disagree whether an impossible id is refused; reading back decides."""
    name = hosts.profile_with(tmp_path, "a40x2-vendor-vfio", sim={"vgpu_refusal": "silent"})
    host = hosts.handle(name, tmp_path / "state")
    before = snapshot(host)

    def take_the_room(number: int, step: object) -> None:
        if number == 1:
            with host.door.changing() as kernel:  # type: ignore[attr-defined]
                card = kernel.cards["0000:51:00.0"]
                for vf in card.pf.vfs[10:13]:
                    kernel.state.vgpus[vf.address] = card.make(card.kinds["563"])

    with pytest.raises(RolledBack, match="did not make"):
        host.create("A40-12Q on 0000:51:00.0", guest="g1", progress=take_the_room)
    assert [one for one in host.slices() if one.guest] == []
    assert before != snapshot(host)
