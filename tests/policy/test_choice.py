"""Choosing: the rule of the issue, promises, and that nothing is ever over-committed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support import hosts
from tests.support.scenarios import SCENARIOS
from virtgpu.errors import Capacity, NotFound, Usage, VirtgpuError
from virtgpu.model import gpu as model
from virtgpu.model.pci import PciAddress
from virtgpu.model.request import Request
from virtgpu.model.slice import SliceState
from virtgpu.policy import names
from virtgpu.policy.choice import choose, left
from virtgpu.policy.ledger import join
from virtgpu.sim import profiles

TYPES = json.loads((Path(__file__).parent.parent / "data" / "vgpu-type-names.json").read_text())


def gpu_of(profile: str, request: str, folder: Path) -> str:
    plan = hosts.handle(profile, folder).plan(request)
    return str(plan.steps[0].reservation.place.gpu)  # type: ignore[union-attr]


class TestRule:
    def test_best_fit_by_frame_buffer(self, tmp_path: Path) -> None:
        # 36 GB are left on the first card, 48 GB on the second.
        assert gpu_of("a40x2-mdev-vf", "A40-12Q", tmp_path) == "0000:51:00.0"

    def test_what_does_not_fit_there_goes_where_it_does(self, tmp_path: Path) -> None:
        assert gpu_of("a40x2-mdev-vf", "A40-48Q", tmp_path) == "0000:ca:00.0"

    def test_the_lowest_address_between_equals(self, tmp_path: Path) -> None:
        assert gpu_of("dgx-a100-8x80gb", "gpu", tmp_path) == "0000:07:00.0"

    def test_a_named_gpu_or_vf_is_taken(self, tmp_path: Path) -> None:
        assert gpu_of("a40x2-mdev-vf", "A40-12Q on 0000:ca:00.0", tmp_path) == "0000:ca:00.0"
        plan = hosts.handle("a40x2-mdev-vf", tmp_path).plan("A40-12Q on 0000:ca:00.7")
        assert plan.steps[0].reservation.place.vf == "0000:ca:00.7"  # type: ignore[union-attr]

    def test_least_disruption_first(self, tmp_path: Path) -> None:
        # 0000:a7:00.0 would need its VFs turned on.
        assert gpu_of("l40s-x4-mixed", "L40S-48Q", tmp_path) == "0000:27:00.0"

    def test_a_size_takes_the_smallest_type_that_is_large_enough(self, tmp_path: Path) -> None:
        plan = hosts.handle("a40x2-mdev-vf", tmp_path).plan("13G:Q")
        assert plan.steps[0].reservation.place.type_name == "NVIDIA A40-16Q"  # type: ignore[union-attr]

    def test_a_size_without_series_asks_which(self, tmp_path: Path) -> None:
        with pytest.raises(Usage, match="A, C, Q") as caught:
            hosts.handle("a40x2-vendor-vfio", tmp_path).plan("12G")
        assert "licence" in (caught.value.hint or "")

    def test_a_time_sliced_type_goes_past_a_card_with_mig_on(self, tmp_path: Path) -> None:
        assert gpu_of("h100x2-mig-vgpu", "H100XM-4C", tmp_path) == "0000:43:00.0"
        with pytest.raises(Capacity, match="MIG is on"):
            gpu_of("h100x2-mig-vgpu", "H100XM-4C on 0000:1b:00.0", tmp_path)

    def test_one_switch_or_one_node(self, tmp_path: Path) -> None:
        plan = hosts.handle("dgx-a100-8x80gb", tmp_path).plan("2xgpu@pcie")
        picks = [s.reservation.place.gpu for s in plan.steps if hasattr(s, "reservation")]
        assert picks == ["0000:07:00.0", "0000:0f:00.0"]
        with pytest.raises(Capacity):
            hosts.handle("dgx-a100-8x80gb", tmp_path).plan("3xgpu@pcie")

    def test_an_instance_is_put_where_it_leaves_most(self, tmp_path: Path) -> None:
        host = hosts.handle("h100x2-mig-vgpu", tmp_path)
        plan = host.plan("mig:1g.10gb on 0000:1b:00.0")
        assert plan.steps[0].reservation.place.gi_start == 6  # type: ignore[union-attr]
        host.apply(plan)
        free = {one.name: one.free for one in host.gpu("0000:1b:00.0").mig.profiles}  # type: ignore[union-attr]
        assert free["4g.40gb"] == 1
        assert free["3g.40gb"] == 1


class TestNames:
    @pytest.mark.parametrize("spelling", ["A40-12Q", "nvidia a40-12q", "GRID A40-12Q"])
    def test_prefix_and_case_are_the_only_tolerance(self, tmp_path: Path, spelling: str) -> None:
        hosts.handle("a40x2-mdev-vf", tmp_path).plan(spelling)

    @pytest.mark.parametrize("wrong", ["A40-12", "A40-12QQ", "A40 12Q", "40-12Q", "A4O-12Q"])
    def test_an_unknown_name_lists_the_close_ones_and_stops(
        self, tmp_path: Path, wrong: str
    ) -> None:
        with pytest.raises(NotFound) as caught:
            hosts.handle("a40x2-mdev-vf", tmp_path).plan(wrong)
        assert "close names" in (caught.value.hint or "")

    @pytest.mark.parametrize("end", ["DC-3Q", "blackwell dc-3q", "6000 Blackwell DC-3Q"])
    def test_the_end_of_a_name_is_enough_where_one_type_of_the_host_has_it(
        self, tmp_path: Path, end: str
    ) -> None:
        plan = hosts.handle("rtxpro6000-domain1", tmp_path).plan(end)
        name = plan.steps[0].reservation.place.type_name  # type: ignore[union-attr]
        assert name == "NVIDIA RTX Pro 6000 Blackwell DC-3Q"

    @pytest.mark.parametrize("part", ["C-3Q", "3Q", "-3Q", "DC-3", "Blackwell DC", "DC-5Q"])
    def test_a_part_of_a_word_or_a_beginning_is_never_taken(
        self, tmp_path: Path, part: str
    ) -> None:
        with pytest.raises((NotFound, Usage)):
            hosts.handle("rtxpro6000-domain1", tmp_path).plan(part)

    def test_an_end_that_two_types_have_asks_which(self, tmp_path: Path) -> None:
        host = hosts.handle("rtxpro6000-domain1", tmp_path).read()
        both = _with_another(host, "0001:c8:00.0", "NVIDIA RTX 5000 Ada DC-3Q")
        with pytest.raises(Usage, match=r"2 types of this host end with 'DC-3Q'") as caught:
            choose(both, Request.parse("DC-3Q on 0001:c8:00.0"), ())
        assert "NVIDIA RTX 5000 Ada DC-3Q" in (caught.value.hint or "")
        assert "NVIDIA RTX Pro 6000 Blackwell DC-3Q" in (caught.value.hint or "")

    def test_ends_of_the_documented_names_are_told_apart(self) -> None:
        assert names.meant("DC-12Q", TYPES) == ("NVIDIA RTX Pro 6000 Blackwell DC-12Q",)
        assert names.meant("NVIDIA A40-12Q", TYPES) == ("NVIDIA A40-12Q",)
        assert names.meant("12Q", TYPES) == ()

    def test_the_nearest_instance_profiles_are_named_first(self, tmp_path: Path) -> None:
        # GB200 as nvidia-smi prints it: NVIDIA MIG user guide, "GB200 MIG profiles".
        gb200 = ["7g.186gb", "4g.93gb", "3g.93gb", "2g.47gb", "1g.47gb", "1g.23gb+me", "1g.23gb"]
        assert names.near_profiles("1g.24gb", gb200)[:3] == ["1g.23gb", "1g.23gb+me", "1g.47gb"]
        with pytest.raises(NotFound, match=r"mig:1g\.23gb") as caught:
            hosts.handle("rtxpro6000-domain1", tmp_path).plan("mig:1g.23gb")
        assert "nearest first: 1g.24gb+gfx, 2g" in (caught.value.hint or "")

    def test_every_type_name_is_read_and_printed_the_same(self) -> None:
        for name in TYPES:
            request = Request.parse(name)
            assert Request.parse(str(request)) == request
            assert names.bare(request.what.name) == names.bare(name)  # type: ignore[union-attr]

    def test_no_two_types_are_taken_for_one(self) -> None:
        assert len({names.bare(one) for one in TYPES}) == len(set(TYPES))


class TestCounts:
    @pytest.mark.parametrize(
        ("profile", "request_", "fewer"),
        [
            ("dgx-a100-8x80gb", "9xgpu", "8xgpu"),
            ("a40x2-mdev-vf", "9xA40-12Q", "7xA40-12Q"),
            ("a40x2-vendor-vfio", "9xA40-12Q", "4xA40-12Q"),
            ("intel-flex170", "20xvf", "3xvf"),
            ("intel-flex140x2-off", "40xvf on 0000:af:00.0", "31xvf on 0000:af:00.0"),
            ("h100x2-mig-vgpu", "20xmig:1g.10gb", "14xmig:1g.10gb"),
            ("pve-2xt4-mdev", "20xT4-4Q", "6xT4-4Q"),
        ],
    )
    def test_what_this_request_has_chosen_is_told_from_what_others_have(
        self, tmp_path: Path, profile: str, request_: str, fewer: str
    ) -> None:
        host = hosts.handle(profile, tmp_path)
        with pytest.raises(Capacity, match="already chosen in this request") as caught:
            host.plan(request_)
        assert "is taken" not in caught.value.message.replace("is taken by", "")
        assert "not there yet" not in caught.value.message
        assert caught.value.hint == f"so many can be had: '{fewer}'"
        host.plan(fewer)


def _with_another(host: model.Host, address: str, name: str) -> model.Host:
    """The host with one more card, whose DC-3Q is another product's."""
    (gpu,) = (one for one in host.gpus if one.address == address)
    offers = tuple(
        msgspec.structs.replace(one, type=msgspec.structs.replace(one.type, name=name))
        for one in gpu.offers
        if (one.type.name or "").endswith("DC-3Q")
    )
    other = msgspec.structs.replace(gpu, address=PciAddress("0001:d8:00.0"), offers=offers)
    return msgspec.structs.replace(host, gpus=(*host.gpus, other))


@pytest.mark.parametrize(
    ("profile", "made"),
    [
        *((one, None) for one in profiles.names()),
        *((one.profile, one.request) for one in SCENARIOS),
    ],
)
def test_what_is_left_is_what_can_be_had(tmp_path: Path, profile: str, made: str | None) -> None:
    handle = hosts.handle(profile, tmp_path)
    if made is not None:
        handle.create(made)
    host = handle.read()
    slices = join(host, handle._reservations(), ())
    for one in left(host, slices):
        what = "vf" if one.type.id == "vf" else names.label(one.type)
        assert one.available is not None
        for count in (one.available, one.available + 1):
            if not 1 <= count <= 64:
                continue
            request = Request.parse(f"{count}x{what} on {one.gpu.address}")
            try:
                options = choose(host, request, slices)
            except VirtgpuError:
                assert count > one.available, (what, one)
            else:
                assert count == one.available, (what, one)
                said = re.search(r"and (\d+) of the type fit|first of (\d+) free", options[0].why)
                assert said is None or one.available == int(said[1] or said[2])


_ADDRESSES = st.builds(
    "{:04x}:{:02x}:{:02x}.{}".format,
    st.integers(0, 0xFFFFF),
    st.integers(0, 255),
    st.integers(0, 31),
    st.integers(0, 7),
)


@given(
    st.one_of(
        st.sampled_from(TYPES),
        st.sampled_from(["vf", "gpu", "vf:flex170", "gpu:A100", "8G:Q", "48G", "mig:1g.10gb+me"]),
    ),
    st.integers(1, 64),
    st.sampled_from(["", "@numa", "@pcie", "@nvlink"]),
    st.one_of(st.just(""), _ADDRESSES.map(" on {}".format)),
)
def test_parse_and_print_are_inverse(what: str, count: int, scope: str, on: str) -> None:
    request = Request.parse(f"{count}x{what}{scope}{on}")
    assert request.count == count
    assert Request.parse(str(request)) == request


@given(st.text(max_size=60))
def test_any_text_is_a_request_or_a_usage_error(text: str) -> None:
    try:
        request = Request.parse(text)
    except Usage as error:
        assert error.message
    else:
        assert Request.parse(str(request)) == request


class Host(RuleBasedStateMachine):
    """Make and destroy at random; look whether the card was given more than it has."""

    @initialize(
        profile=st.sampled_from(
            [
                "a40x2-vendor-vfio",
                "pve-2xt4-mdev",
                "h100x2-mig-vgpu",
                "intel-flex170",
                "l40s-x4-mixed",
            ]
        )
    )
    def start(self, profile: str) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.host = hosts.handle(profile, Path(self.folder.name))
        self.names = [one.name or one.id for one in self.host.types()] + ["gpu", "vf", "4G:Q"]

    @rule(data=st.data(), count=st.integers(1, 3))
    def make(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(self.names))
        try:
            made = self.host.create(f"{count}x{name}", guest="g").slices
        except VirtgpuError as error:
            assert error.exit_code in (4, 6, 7, 8), error
        else:
            assert len(made) == count

    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        ours = [one.id for one in self.host.slices() if one.state is not SliceState.FOREIGN]
        if ours:
            self.host.destroy([data.draw(st.sampled_from(ours))])

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if not hasattr(self, "host"):
            return
        slices = self.host.slices()
        places = [
            one.place.vf or one.place.mdev for one in slices if one.place.vf or one.place.mdev
        ]
        assert len(places) == len(set(places))
        whole = [f for one in slices for f in one.place.functions]
        assert len(whole) == len(set(whole))
        for card in self.host.door.kernel.cards.values():  # type: ignore[attr-defined]
            used = [card.kinds[one.type_id].fb_mib for one in card.vgpus()]
            assert sum(used) <= max(card.total_mib, sum(used) if card.is_mig else 0)
        ours = [one for one in slices if one.state is not SliceState.FOREIGN]
        assert all(one.state is SliceState.PRESENT for one in ours)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


Host.TestCase.settings = settings(
    max_examples=12, stateful_step_count=10, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestNothingIsOverCommitted = Host.TestCase
