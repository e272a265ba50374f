"""Never one slice to two guests, and nothing of a guest lost: by every way that leads there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts
from virtgpu.api import GuestShape, HostHandle
from virtgpu.apply import journal, perform, reservations
from virtgpu.apply.executor import load_plan
from virtgpu.errors import (
    Capacity,
    Config,
    Conflict,
    HostError,
    RecoveryNeeded,
    RolledBack,
)
from virtgpu.host import libvirt_domains
from virtgpu.host.libvirt import connected
from virtgpu.model import codec, steps
from virtgpu.model.slice import SliceState
from virtgpu.sim.door import SimDoor

URI = "test:///default"


@pytest.fixture
def connection() -> Iterator[Any]:
    """libvirt's test hypervisor; it lives while somebody is connected."""
    pytest.importorskip("libvirt")
    with connected(URI) as connection:
        yield connection


def on_libvirt(profile: str, folder: Path) -> HostHandle:
    door = SimDoor(profile, state_dir=folder, environment={})
    return HostHandle(door, vendors=hosts.VENDORS, connect_uri=URI)


def guest_with(name: str, *addresses: str) -> bytes:
    """A guest that somebody has written by hand."""
    given = "".join(
        "<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0x{}'"
        " bus='0x{}' slot='0x{}' function='0x{}'/></source></hostdev>".format(
            *one.replace(".", ":").split(":")
        )
        for one in addresses
    )
    return (
        f"<domain type='test'><name>{name}</name><memory>65536</memory>"
        f"<os><type>hvm</type></os><devices>{given}</devices></domain>"
    ).encode()


class TestSavedPlans:
    @pytest.mark.parametrize(
        ("profile", "request_"),
        [
            ("intel-arc-pro-b50", "vf"),
            ("amd-mi210", "vf"),
            ("a40x2-vendor-vfio", "A40-12Q"),
            ("dgx-a100-8x80gb", "2xgpu@pcie"),
        ],
    )
    def test_of_two_with_the_same_device_one_is_refused(
        self, profile: str, request_: str, tmp_path: Path
    ) -> None:
        host = hosts.handle(profile, tmp_path)
        plans = [host.plan(request_, guest=name) for name in ("alice", "bob")]
        host.apply(plans[0])
        with pytest.raises(Conflict, match="stale"):
            host.apply(plans[1])
        assert {one.guest for one in host.slices() if one.guest} == {"alice"}

    def test_a_device_that_somebody_holds_by_now_is_refused(self, tmp_path: Path) -> None:
        host = hosts.handle("intel-flex170", tmp_path)
        plan = host.plan("vf", guest="alice")
        place = plan.steps[0].reservation.place  # type: ignore[union-attr]
        group = next(
            v.iommu_group for g in host.read().gpus for v in g.vfs if v.address == place.vf
        )
        with host.door.changing() as kernel:  # type: ignore[attr-defined]
            kernel.hold("qemu-system-x86", group, str(place.vf))
        with pytest.raises(Conflict, match="stale: vf holders of"):
            host.apply(plan)


class TestDefinedGuests:
    def test_their_slices_are_not_destroyed(self, connection: Any, tmp_path: Path) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        slice_id = host.create("A40-12Q", guest="render01").slices[0].id
        early = host.plan_destroy([slice_id])
        assert [one.id for one in host.define("render01", ["A40-12Q"]).slices] == [slice_id]
        with pytest.raises(Conflict, match="in the definition of that guest") as caught:
            host.destroy([slice_id])
        assert "vm undefine render01" in (caught.value.hint or "")
        with pytest.raises(Conflict, match=f"stale: domain of {slice_id}"):
            host.apply(early)
        assert "and nobody holds it" in host.plan_undefine("render01").describe()
        host.undefine("render01")
        assert slice_id not in {one.id for one in host.slices()}

    def test_whose_guest_is_gone_is_destroyed(self, connection: Any, tmp_path: Path) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        slice_id = host.define("render01", ["A40-12Q"]).slices[0].id
        connection.lookupByName("render01").undefine()
        plan = host.plan_destroy([slice_id])
        assert "guest render01 is not defined any more" in plan.describe()
        host.apply(plan)
        assert slice_id not in {one.id for one in host.slices()}

    def test_whose_guest_is_gone_serves_the_next_of_that_name(
        self, connection: Any, tmp_path: Path
    ) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        first = host.define("render01", ["A40-12Q"])
        connection.lookupByName("render01").undefine()
        second = host.define("render01", ["A40-12Q"])
        assert [one.id for one in second.slices] == [one.id for one in first.slices]
        assert second.uuid != first.uuid

    def test_of_which_libvirt_says_nothing_stays(self, connection: Any, tmp_path: Path) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        slice_id = host.define("render01", ["A40-12Q"]).slices[0].id
        one = reservations.get(host.door.state_dir, slice_id)
        assert one is not None
        lost = codec.decode(
            codec.encode(one).replace(URI.encode(), b"qemu+unix:///system?socket=/nowhere"),
            type(one),
            "it",
        )
        reservations.write(host.door.state_dir, lost)
        with pytest.raises(Conflict, match="whether that is still defined is unknown"):
            host.destroy([slice_id])
        assert slice_id in {one.id for one in host.slices()}

    def test_a_vf_in_anothers_definition_is_passed_over(
        self, connection: Any, tmp_path: Path
    ) -> None:
        host = on_libvirt("intel-arc-pro-b50", tmp_path)
        first = host.plan("vf").steps[0].reservation.place.vf  # type: ignore[union-attr]
        connection.defineXML(guest_with("theirs", str(first)).decode())
        mine = host.define("mine", ["vf"]).slices
        assert [one.place.vf for one in mine] != [first]
        with pytest.raises(Conflict, match="guest theirs"):
            host.plan_define("more", [f"vf on {first}"])

    def test_a_vf_that_its_own_template_gives_is_passed_over(
        self, connection: Any, tmp_path: Path
    ) -> None:
        host = on_libvirt("intel-arc-pro-b50", tmp_path)
        first = str(host.plan("vf").steps[0].reservation.place.vf)  # type: ignore[union-attr]
        shape = GuestShape(template=guest_with("x", first))
        mine = host.define("mine", ["vf"], shape).slices
        assert [one.place.vf for one in mine] != [first]

    def test_a_template_does_not_give_what_a_slice_has(
        self, connection: Any, tmp_path: Path
    ) -> None:
        host = on_libvirt("intel-arc-pro-b50", tmp_path)
        one = host.create("vf", guest="alice").slices[0]
        shape = GuestShape(template=guest_with("x", str(one.place.vf)))
        with pytest.raises(Conflict, match=f"slice {one.id} of alice has"):
            host.define("bob", [], shape)

    def test_a_template_does_not_give_what_another_guest_has(
        self, connection: Any, tmp_path: Path
    ) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        connection.defineXML(guest_with("theirs", "0000:65:00.0").decode())
        shape = GuestShape(template=guest_with("x", "0000:65:00.0"))
        with pytest.raises(Conflict, match="belongs to guest 'theirs'"):
            host.plan_define("bob", ["A40-12Q"], shape)

    def test_a_saved_plan_is_refused_when_another_guest_has_the_device_by_now(
        self, connection: Any, tmp_path: Path
    ) -> None:
        host = on_libvirt("intel-arc-pro-b50", tmp_path)
        plan = host.plan_define("mine", ["vf"])
        place = plan.steps[0].reservation.place  # type: ignore[union-attr]
        connection.defineXML(guest_with("theirs", str(place.vf)).decode())
        with pytest.raises(RolledBack, match="belongs to guest 'theirs'"):
            host.apply(plan)
        assert [one for one in host.slices() if one.guest] == []


class TestUndefining:
    def test_a_slice_that_does_not_go_keeps_its_guest(
        self, connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        host.define("render01", ["A40-12Q"])
        before = host.guest_xml("render01")

        def refuse(*_: object) -> None:
            raise HostError("the kernel refused")

        monkeypatch.setitem(perform._DO, steps.RemoveMdev, refuse)
        with pytest.raises(RolledBack):
            host.undefine("render01")
        assert host.guest_xml("render01") == before
        assert host.slices()[0].state is SliceState.PRESENT

    def test_what_cannot_be_undone_is_finished(
        self, connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        slice_id = host.define("render01", ["A40-12Q"]).slices[0].id

        def full(*_: object) -> None:
            raise HostError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(reservations, "remove", full)
            with pytest.raises(RecoveryNeeded, match="cannot be brought back as it was"):
                host.undefine("render01")
        assert [one.outcome for one in host.recover().journals] == ["finished"]
        assert slice_id not in {one.id for one in host.slices()}
        assert "render01" not in {one.name for one in host.guests()}

    def test_an_edited_guest_makes_a_saved_plan_stale(
        self, connection: Any, tmp_path: Path
    ) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        host.define("render01", ["A40-12Q"])
        plan = host.plan_undefine("render01")
        text = host.guest_xml("render01").replace("<vcpu", "<title>mine</title><vcpu")
        connection.defineXML(text)
        with pytest.raises(Conflict, match="stale: guest 'render01' was edited"):
            host.apply(plan)
        assert host.slices()[0].state is SliceState.PRESENT

    def test_a_saved_state_is_the_operators(self, connection: Any, tmp_path: Path) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        host.define("render01", [], GuestShape(template=guest_with("x")))
        domain = connection.lookupByName("render01")
        domain.create()
        domain.managedSave()
        with pytest.raises(Conflict, match="has a saved state"):
            host.undefine("render01")
        domain.managedSaveRemove()
        host.undefine("render01")

    def test_the_plan_says_that_the_nvram_goes(self, connection: Any, tmp_path: Path) -> None:
        host = on_libvirt("a40x2-mdev-vf", tmp_path)
        text = guest_with("x").replace(
            b"<type>hvm</type>",
            b"<type>hvm</type><loader readonly='yes' type='pflash'>/a.fd</loader>"
            b"<nvram>/b.fd</nvram>",
        )
        host.define("render01", [], GuestShape(template=text))
        assert "the NVRAM of render01 goes" in host.plan_undefine("render01").describe()
        host.undefine("render01")
        host.define("render02", [], GuestShape(template=guest_with("x")))
        assert "NVRAM" not in host.plan_undefine("render02").describe()
        libvirt_domains.undefine(connection, "render02")


class TestUnsettled:
    """A guest gets no slice of which an apply has not ended, or that is not there."""

    def cut_off(self, folder: Path) -> tuple[HostHandle, str]:
        """A slice whose making was cut off, and that recovery cannot take back yet."""
        host = on_libvirt("a40x2-mdev-vf", folder)
        plan = host.plan("A40-12Q", guest="render01")
        result = host.apply(plan)
        journal.Journal.create(host.door.state_dir, plan).close()
        path = journal.files(host.door.state_dir)[0]
        with path.open("ab") as file:
            for number in range(len(plan.steps)):
                file.write(codec.encode(journal.Line(event="begin", step=number)) + b"\n")
        return host, result.slices[0].id

    def test_one_that_is_cut_off_is_not_bound(
        self, connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host, slice_id = self.cut_off(tmp_path)
        assert {one.id: one.state for one in host.slices()}[slice_id] is SliceState.STUCK
        with pytest.raises(Conflict, match="has not ended"):
            host.plan_define("render01", ["A40-12Q"])
        with pytest.raises(Conflict, match="has not ended"):
            host.plan_destroy([slice_id])
        assert [one.outcome for one in host.recover().journals] == ["undone"]
        assert slice_id not in {one.id for one in host.slices()}

    def test_one_that_is_bound_by_now_is_not_taken_back(
        self, connection: Any, tmp_path: Path
    ) -> None:
        host, slice_id = self.cut_off(tmp_path)
        one = reservations.get(host.door.state_dir, slice_id)
        assert one is not None
        raw = json.loads(codec.encode(one)) | {"domain_uuid": host.door.new_uuid()}
        reservations.write(host.door.state_dir, codec.convert(raw, type(one), "it"))
        report = host.recover()
        assert [one.outcome for one in report.journals] == ["left"]
        assert "promised to render01 otherwise" in str(report.journals[0].reason)
        assert any(one.place.mdev == slice_id for one in host.slices())

    def test_one_that_is_absent_is_not_bound(self, connection: Any, tmp_path: Path) -> None:
        host = on_libvirt("pve-2xt4-mdev", tmp_path)
        one = host.create("T4-4Q on 0000:3b:00.0", guest="render01").slices[0]
        (host.door.state_dir / "kernel.json").unlink()
        with pytest.raises(Conflict, match="not there any more") as caught:
            host.plan_define("render01", ["T4-4Q on 0000:3b:00.0"])
        assert f"slice destroy {one.id}" in (caught.value.hint or "")


def test_a_vf_that_is_set_aside_stays_so(tmp_path: Path) -> None:
    """One VF alone on vfio-pci is somebody's: also when our own slices have bound its siblings."""
    host = hosts.handle("intel-flex170", tmp_path)
    (card,) = [gpu for gpu in host.read().gpus if gpu.vfs]
    aside = [vf.address for vf in card.vfs if vf.driver == "vfio-pci"]
    assert len(aside) == 1
    free = next(one.available for one in host.types() if one.id == "vf")
    assert free == len(card.vfs) - 1
    for number in range(free):
        place = host.create("vf", guest=f"g{number}").slices[0].place
        assert place.vf not in aside
    with pytest.raises(Capacity, match="is set aside"):
        host.create("vf", guest="late")
    assert next(one.available for one in host.types() if one.id == "vf") == 0


class TestSharedInstance:
    """Two vGPUs in one GPU instance: it goes with the last of them, whichever that is."""

    TYPE = "RTX Pro 6000 Blackwell DC-2-24Q"

    def two(self, folder: Path) -> tuple[HostHandle, list[str]]:
        from virtgpu.sim import profiles

        raw = json.loads(json.dumps(profiles.load("rtxpro6000-domain1").raw))
        for entry in raw["nvml"]["gpu_instances"][:1]:
            entry["instances"] = entry["instances"][:1]
        path = folder / "cut.json"
        path.write_text(json.dumps(raw))
        host = hosts.handle(str(path), folder / "state")
        made = [host.create(self.TYPE, guest=f"g{n}").slices[0] for n in range(2)]
        assert [one.place.gi_start is not None for one in made] == [True, False]
        return host, [one.id for one in made]

    def instances(self, host: HostHandle) -> int:
        return sum(len(gpu.mig.instances) for gpu in host.read().gpus if gpu.mig is not None)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_one_after_the_other(self, order: tuple[int, int], tmp_path: Path) -> None:
        host, ids = self.two(tmp_path)
        before = self.instances(host)
        host.destroy([ids[order[0]]])
        assert self.instances(host) == before
        assert ids[order[1]] in {one.id for one in host.slices()}
        host.destroy([ids[order[1]]])
        assert self.instances(host) == before - 1

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_both_at_once(self, order: tuple[int, int], tmp_path: Path) -> None:
        host, ids = self.two(tmp_path)
        before = self.instances(host)
        host.destroy([ids[n] for n in order])
        assert self.instances(host) == before - 1

    def test_the_plan_says_so(self, tmp_path: Path) -> None:
        host, ids = self.two(tmp_path)
        assert f"stays: slice {ids[1]} is in it" in host.plan_destroy([ids[0]]).describe()


class TestPathsInPlans:
    """Ids and kernel names of a file become parts of paths: none may lead elsewhere."""

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"id": "{plan}"', '"id": "../../../../tmp/evil"'),
            ('"id": "{slice}"', '"id": "../evil"'),
            ('"type_id": "nvidia-563"', '"type_id": "../nvidia-563"'),
            ('"type_id": "nvidia-563"', '"type_id": ".."'),
            ('"uuid": "{slice}"', '"uuid": "{slice}\\n"'),
        ],
    )
    def test_they_are_refused(self, old: str, new: str, tmp_path: Path) -> None:
        host = hosts.handle("a40x2-mdev-vf", tmp_path / "state")
        plan = host.plan("A40-12Q", guest="g1")
        names = {"plan": plan.id, "slice": plan.steps[0].reservation.id}  # type: ignore[union-attr]
        text = codec.encode_pretty(plan)
        for name, value in names.items():
            old, new = old.replace(f"{{{name}}}", value), new.replace(f"{{{name}}}", value)
        assert old in text
        path = tmp_path / "plan.json"
        path.write_text(text.replace(old, new))
        with pytest.raises(Config, match="regex"):
            load_plan(path)

    def test_another_id_does_not_fit_the_digest(self, tmp_path: Path) -> None:
        host = hosts.handle("a40x2-mdev-vf", tmp_path / "state")
        plan = host.plan("A40-12Q", guest="g1")
        path = tmp_path / "plan.json"
        path.write_text(codec.encode_pretty(plan).replace(plan.id, host.door.new_uuid()))
        with pytest.raises(Config, match="digest"):
            load_plan(path)
