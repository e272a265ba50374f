"""Plans as values: golden files, what they rest on, and JSON there and back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support import hosts
from tests.support.golden import Golden
from tests.support.scenarios import IDS, SCENARIOS, Scenario
from virtgpu.api.slices import reserved_by
from virtgpu.errors import AccessDenied, Conflict, Usage
from virtgpu.model import codec
from virtgpu.model.gpu import Gpu, Holder, Host, Mig
from virtgpu.model.plan import Plan
from virtgpu.model.request import Request
from virtgpu.model.slice import Reservation
from virtgpu.model.steps import inverse
from virtgpu.plan.create import plan_create
from virtgpu.plan.destroy import plan_destroy
from virtgpu.plan.facts import ATTRIBUTES, stale
from virtgpu.policy.ledger import join

CREATED = "2026-01-02T03:04:05Z"
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)


def ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012x}"


def planned(host: Host, request: str, promised: tuple[Reservation, ...] = ()) -> Plan:
    return plan_create(
        host,
        Request.parse(request),
        promised,
        guest="render01",
        ids=ids(),
        created=CREATED,
        apply_id="00000000-0000-4000-8000-ffffffffffff",
    ).sealed()


def read(profile: str, folder: Path) -> Host:
    return hosts.handle(profile, folder).read()


@every_scenario
def test_golden_plans(scenario: Scenario, tmp_path: Path, golden: Golden) -> None:
    plan = planned(read(scenario.profile, tmp_path), scenario.request)
    name = "".join(c if c.isalnum() else "-" for c in f"{scenario.profile}-{scenario.request}")
    golden.check(f"plans/{name}.json", codec.encode_pretty(plan))
    golden.check(f"plans/{name}.txt", plan.describe() + "\n")


@every_scenario
def test_json_and_back_is_the_same_plan(scenario: Scenario, tmp_path: Path) -> None:
    plan = planned(read(scenario.profile, tmp_path), scenario.request)
    again = codec.decode(codec.encode(plan), Plan, "plan")
    assert again == plan
    assert again.is_intact()


@every_scenario
def test_every_step_is_the_inverse_of_its_inverse(scenario: Scenario, tmp_path: Path) -> None:
    for step in planned(read(scenario.profile, tmp_path), scenario.request).steps:
        assert inverse(inverse(step)) == step
        assert inverse(step) != step


@every_scenario
def test_a_fresh_plan_is_not_stale(scenario: Scenario, tmp_path: Path) -> None:
    host = read(scenario.profile, tmp_path)
    assert stale(planned(host, scenario.request), host, ()) == ()


@every_scenario
def test_a_plan_names_steps_and_arguments_and_no_path(scenario: Scenario, tmp_path: Path) -> None:
    text = codec.encode(planned(read(scenario.profile, tmp_path), scenario.request)).decode()
    assert "sys/" not in text
    assert "echo" not in text


class TestFacts:
    """Each attribute that a plan names, changed, makes it stale; anything else does not."""

    def host(self, tmp_path: Path) -> tuple[Host, Plan, Gpu]:
        host = read("a40x2-vendor-vfio", tmp_path)
        plan = planned(host, "A40-12Q on 0000:51:00.0")
        gpu = host.gpu(plan.steps[0].reservation.place.gpu)  # type: ignore[union-attr]
        assert gpu is not None
        return host, plan, gpu

    def changed(self, host: Host, gpu: Gpu, **fields: object) -> Host:
        new = msgspec.structs.replace(gpu, **fields)
        gpus = tuple(new if one.address == gpu.address else one for one in host.gpus)
        return msgspec.structs.replace(host, gpus=gpus)

    @pytest.mark.parametrize(
        ("fields", "attribute"),
        [
            ({"device_id": "2236"}, "ids"),
            ({"driver": "vfio-pci"}, "driver"),
            ({"mechanisms": ()}, "framework"),
            ({"vfs": ()}, "vfs"),
            ({"mixed_size": True}, "mixed size"),
            ({"framebuffer_left_mib": 4096}, "frame buffer left"),
        ],
    )
    def test_of_the_pf(self, tmp_path: Path, fields: dict[str, object], attribute: str) -> None:
        host, plan, gpu = self.host(tmp_path)
        reasons = stale(plan, self.changed(host, gpu, **fields), ())
        assert any(reason.startswith(f"{attribute} of {gpu.address}") for reason in reasons)

    def test_of_the_vf(self, tmp_path: Path) -> None:
        host, plan, gpu = self.host(tmp_path)
        place = plan.steps[0].reservation.place  # type: ignore[union-attr]
        vfs = tuple(
            msgspec.structs.replace(vf, vgpu_type="563") if vf.address == place.vf else vf
            for vf in gpu.vfs
        )
        reasons = stale(plan, self.changed(host, gpu, vfs=vfs), ())
        assert any(reason.startswith("vf type of") for reason in reasons)

    @pytest.mark.parametrize(
        "fields",
        [
            {"warnings": ("something",)},
            {"nvml": None},
            {"framebuffer_left_mib": 12288},
            {"bridges": ()},
        ],
    )
    def test_other_things_do_not_count(self, tmp_path: Path, fields: dict[str, object]) -> None:
        host, plan, gpu = self.host(tmp_path)
        assert stale(plan, self.changed(host, gpu, **fields), ()) == ()

    def test_mig_layout(self, tmp_path: Path) -> None:
        host = read("h100x2-mig-vgpu", tmp_path)
        plan = planned(host, "mig:1g.10gb on 0000:1b:00.0")
        gpu = host.gpus[0]
        new = self.changed(host, gpu, mig=Mig(current=False, pending=False))
        assert any("MIG layout" in one for one in stale(plan, new, ()))

    def test_the_plans_name_every_attribute_that_there_is(self, tmp_path: Path) -> None:
        named = set()
        for number, one in enumerate(SCENARIOS):
            host = hosts.handle(one.profile, tmp_path / str(number))
            plan = host.plan(one.request)
            host.apply(plan)
            destroying = host.plan_destroy([r.id for r in reserved_by(plan)])
            named |= {fact.attribute for made in (plan, destroying) for fact in made.facts}
        assert named == set(ATTRIBUTES)

    def test_what_must_be_left_is_left_for_all_of_it(self, tmp_path: Path) -> None:
        plan = planned(read("a40x2-vendor-vfio", tmp_path), "2xA40-12Q on 0000:51:00.0")
        left = {fact.attribute: fact.value for fact in plan.facts if fact.compare == "at least"}
        assert left == {"frame buffer left": 24576, "type left": 2}


class TestDestroying:
    def made(self, tmp_path: Path, request: str = "A40-12Q") -> tuple[Host, Reservation]:
        host = hosts.handle("a40x2-mdev-vf", tmp_path)
        (one,) = host.create(request, guest="g1").slices
        return host.read(), one

    def destroy(self, host: Host, promised: tuple[Reservation, ...], which: int) -> Plan:
        slices = join(host, promised)
        return plan_destroy(host, [slices[which]], promised, ids=ids(), created=CREATED)

    def test_the_reservation_goes_last(self, tmp_path: Path) -> None:
        host, one = self.made(tmp_path)
        names = [type(step).__name__ for step in self.destroy(host, (one,), 0).steps]
        assert names == ["RemoveMdev", "Release"]

    def test_a_foreign_one_needs_adopting(self, tmp_path: Path) -> None:
        host, one = self.made(tmp_path)
        with pytest.raises(AccessDenied, match="was not made by virtgpu"):
            self.destroy(host, (one,), 1)

    @pytest.mark.parametrize(
        ("holders", "words"),
        [((Holder(file="/dev/vfio/9", pid=7, command="qemu"),), "pid 7"), (None, "unknown")],
    )
    def test_a_held_one_stays_and_so_does_one_of_which_nothing_is_known(
        self, tmp_path: Path, holders: tuple[Holder, ...] | None, words: str
    ) -> None:
        host, one = self.made(tmp_path)
        slices = [msgspec.structs.replace(s, holders=holders) for s in join(host, (one,))]
        with pytest.raises(Conflict, match=words):
            plan_destroy(host, slices[:1], (one,), ids=ids(), created=CREATED)

    def test_naming_one_twice_is_a_mistake(self, tmp_path: Path) -> None:
        host, one = self.made(tmp_path)
        slices = join(host, (one,))
        with pytest.raises(Usage, match="twice"):
            plan_destroy(host, [slices[0]] * 2, (one,), ids=ids(), created=CREATED)
