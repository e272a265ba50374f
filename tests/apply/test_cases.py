"""Public bug reports about giving GPUs away, each with its source: what may and must not happen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import hosts, trees
from virtgpu.errors import AccessDenied, Capacity, Conflict, NotFound, Unsupported
from virtgpu.model import steps
from virtgpu.model.slice import SliceState


def kinds(plan: object) -> list[str]:
    return [type(one).__name__ for one in plan.steps]  # type: ignore[attr-defined]


def test_d04_four_guests_get_a_card_each_and_a_fifth_none(tmp_path: Path) -> None:
    """https://github.com/NVIDIA/kubevirt-gpu-device-plugin/issues/67"""
    host = hosts.simulated_case("D04", tmp_path)
    for number in range(4):
        host.create("gpu", guest=f"g{number}")
    with pytest.raises(Capacity):
        host.create("gpu", guest="g4")


class TestD06:
    """https://github.com/NVIDIA/kubevirt-gpu-device-plugin/issues/139"""

    def test_the_other_card_of_a_group_is_nobody_elses(self, tmp_path: Path) -> None:
        host = hosts.simulated_case("D06", tmp_path)
        host.create("2xgpu", guest="A")
        with pytest.raises((Conflict, Capacity)) as caught:
            host.create("gpu on 0000:28:00.0", guest="B")
        assert "A" in caught.value.message

    def test_two_cards_come_from_one_group(self, tmp_path: Path) -> None:
        host = hosts.simulated_case("D06", tmp_path)
        made = host.create("2xgpu", guest="C").slices
        assert {one.place.gpu for one in made} == {"0000:27:00.0", "0000:28:00.0"}

    def test_all_six_go_to_one_guest(self, tmp_path: Path) -> None:
        host = hosts.simulated_case("D06", tmp_path)
        assert len(host.create("6xgpu", guest="A").slices) == 6

    def test_pairs_serve_three_guests(self, tmp_path: Path) -> None:
        host = hosts.simulated_case("D06", tmp_path)
        for guest in "ABC":
            host.create("2xgpu", guest=guest)
        with pytest.raises((Conflict, Capacity)):
            host.create("gpu", guest="D")


def test_d07_an_unknown_node_is_never_counted_as_node_0(tmp_path: Path) -> None:
    """https://github.com/NVIDIA/kubevirt-gpu-device-plugin/pull/86"""
    with pytest.raises(Capacity):
        hosts.case("D07", tmp_path).plan("2xgpu@numa", guest="g1")


def test_g01_a_type_goes_to_the_card_that_lists_it(tmp_path: Path) -> None:
    """https://github.com/kernel/hypeman/pull/327"""
    host = hosts.case("G01", tmp_path)
    first = host.read().gpus[0].address
    (step,) = [
        one for one in host.plan("L40S-1Q", guest="g1").steps if isinstance(one, steps.SetVgpuType)
    ]
    assert step.type_id == "1147"
    assert step.vf.startswith(first[:-4])


def test_g02_a_type_is_asked_for_by_its_id(tmp_path: Path) -> None:
    """https://bugs.launchpad.net/nova/+bug/1896741"""
    plan = hosts.case("G02", tmp_path).plan("i915-GVTg_V5_8", guest="g1")
    (step,) = [one for one in plan.steps if isinstance(one, steps.CreateMdev)]
    assert (step.parent, step.type_id) == ("0000:06:00.1", "i915-GVTg_V5_8")


class TestG03:
    """https://github.com/mdevctl/mdevctl/issues/59"""

    def test_another_size_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        with pytest.raises(Capacity, match="equal-size mode"):
            hosts.case("G03", tmp_path).plan("V100S-4Q", guest="g1")

    def test_another_series_of_the_size_is_planned(self, tmp_path: Path) -> None:
        plan = hosts.case("G03", tmp_path).plan("V100S-8A", guest="g1")
        assert kinds(plan) == ["Reserve", "CreateMdev"]


class TestG04:
    """https://github.com/bigstack-oss/cubecos/issues/1316"""

    def test_another_size_is_refused_before_any_write(self, tmp_path: Path) -> None:
        host = hosts.case("G04", tmp_path)
        # The case has the telling lines only; nvidia-smi puts each GPU's below its bus id.
        answer = "GPU 00000001:C8:00.0\n" + (trees.CASES / "G04.nvidia-smi-q.txt").read_text()
        program = tmp_path / "root/usr/bin/nvidia-smi"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(
            "#!/bin/sh\ncase \"$1\" in -q) cat <<'E'\n" + answer + "E\n;;\n"
            "--query-gpu*)"
            " echo '00000001:C8:00.0, 0, GPU-0a, 97887, 0, Disabled, Disabled, RTX' ;;\n"
            "*) exit 6 ;; esac\n"
        )
        program.chmod(0o755)
        (gpu,) = host.read().gpus
        assert gpu.mixed_size is False  # "Supported" is a capability, not a mode
        assert kinds(host.plan("RTX Pro 6000 Blackwell DC-3A on 0001:c8:00.0", guest="g2")) == [
            "Reserve",
            "SetVgpuType",
        ]
        with pytest.raises(Capacity, match="mixed-size mode is off"):
            host.plan("RTX Pro 6000 Blackwell DC-6Q on 0001:c8:00.0", guest="g3")


class TestG05:
    """https://github.com/NVIDIA/vgpu-device-manager/issues/212"""

    def test_a_name_is_never_taken_without_its_suffix(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound) as caught:
            hosts.case("G05", tmp_path).plan("A100-1-5CME", guest="g1")
        assert "NVIDIA A100-1-5C" in (caught.value.hint or "")

    def test_case_and_prefix_are_the_only_tolerance(self, tmp_path: Path) -> None:
        host = hosts.case("G05", tmp_path)
        plan = host.plan("a100-1-5c", guest="g1")
        assert kinds(plan) == ["Reserve", "SetVgpuType"]

    def test_the_list_and_the_reason_say_the_same_number(self, tmp_path: Path) -> None:
        host = hosts.case("G05", tmp_path)
        assert [one.available for one in host.types()] == [1, 1]
        assert host.plan("A100-1-5C").why[0].endswith("and 1 of the type fit")
        with pytest.raises(Capacity, match="1 of 2 can be had"):
            host.plan("2xA100-1-5C")


def test_g07_a_pending_mode_is_not_on(tmp_path: Path) -> None:
    """https://github.com/NVIDIA/mig-parted/issues/9"""
    from virtgpu.errors import RecoveryNeeded, RolledBack

    name = hosts.profile_with(tmp_path, "h100x2-mig-vgpu", sim={"mig_pending": True})
    host = hosts.handle(name, tmp_path / "state")
    with pytest.raises((RolledBack, RecoveryNeeded), match="pending"):
        host.create("H100XM-1-10C on 0000:43:00.0", guest="g1")
    gpu = host.gpu("0000:43:00.0")
    assert gpu.vfs == ()


def test_g08_capacity_is_what_is_really_left(tmp_path: Path) -> None:
    """https://github.com/bigstack-oss/cubecos/issues/904"""
    types = hosts.case("G08", tmp_path).types()
    (one,) = [one for one in types if (one.name or "").endswith("DC-3Q")]
    # Four of the 48 VFs show their files, and two of those carry a vGPU.
    assert one.available == 2


def test_s02_more_vfs_than_the_card_has_are_refused_with_its_limit(tmp_path: Path) -> None:
    """https://github.com/amd/MxGPU-Virtualization/issues/13"""
    with pytest.raises((Unsupported, Capacity), match="at most 1"):
        hosts.case("S02", tmp_path).plan("2 x vf on 0000:c6:00.0", guest="g1")


class TestS03:
    """https://github.com/ironcore-dev/dpservice/issues/599"""

    def test_undo_does_not_turn_vfs_off_under_a_holder(self, tmp_path: Path) -> None:
        from virtgpu.errors import RecoveryNeeded

        host = hosts.handle("intel-flex140x2-off", tmp_path)
        door = host.door

        def after_the_vfs(number: int, step: steps.Step) -> None:
            if isinstance(step, steps.BindDriver):
                with door.changing() as kernel:  # type: ignore[attr-defined]
                    vf = kernel.bus.devices["0000:af:00.1"]
                    kernel.bus.bind(vf, "vfio-pci")
                    kernel.hold("qemu-system-x86", vf.group, vf.address)

        with pytest.raises(RecoveryNeeded, match="qemu-system-x86"):
            host.create("vf on 0000:af:00.0", guest="g1", progress=after_the_vfs)
        assert len(host.gpu("0000:af:00.0").vfs) == 1
        assert not host.recover().is_clean
        with door.changing() as kernel:  # type: ignore[attr-defined]
            kernel.let_go("0000:af:00.1")
        assert host.recover().is_clean
        assert host.gpu("0000:af:00.0").vfs == ()
        assert host.slices() == ()


class TestS04:
    """https://github.com/strongtz/i915-sriov-dkms/issues/342"""

    def test_a_vf_is_one_host_device_of_its_own(self, tmp_path: Path) -> None:
        host = hosts.case("S04", tmp_path)
        xml = host.render("g1", ["vf"]).decode()
        assert xml.count("<hostdev") == 1
        assert "multifunction" not in xml
        assert not any("00:02.0" in repr(one) for one in host.plan("vf", guest="g1").steps[1:])

    def test_its_pf_is_no_whole_card(self, tmp_path: Path) -> None:
        with pytest.raises(Conflict, match=r"0000:00:02\.1"):
            hosts.case("S04", tmp_path).plan("gpu on 0000:00:02.0", guest="g1")


class TestS05:
    """https://github.com/intel/intel-device-plugins-for-kubernetes/pull/629"""

    def test_only_the_gpu_without_vfs_is_a_whole_card(self, tmp_path: Path) -> None:
        host = hosts.case("S05", tmp_path)
        with pytest.raises(Capacity, match="1 of 2"):
            host.plan("2xgpu", guest="g1")
        (pick,) = [one for one in host.plan("gpu").steps if isinstance(one, steps.Reserve)]
        assert pick.reservation.place.gpu == "0000:b2:00.0"


class TestL05:
    """https://github.com/kubevirt/kubevirt/issues/7371"""

    def test_a_vendors_vf_is_never_bound_to_vfio_pci(self, tmp_path: Path) -> None:
        plan = hosts.handle("l40s-x4-mixed", tmp_path).plan("L40S-1Q", guest="g1")
        assert kinds(plan) == ["Reserve", "SetVgpuType"]


class TestL11:
    """https://github.com/kubevirt/kubevirt/issues/9037"""

    def test_what_others_made_is_shown_and_never_touched(self, tmp_path: Path) -> None:
        host = hosts.case("L11", tmp_path)
        found = host.slices()
        assert [one.state for one in found] == [SliceState.FOREIGN, SliceState.FOREIGN]
        host.recover()
        with pytest.raises(AccessDenied):
            host.plan_destroy([found[0].id])
        assert host.slices() == found

    def test_adopting_is_the_only_way(self, tmp_path: Path) -> None:
        host = hosts.case("L11", tmp_path)
        plan = host.plan_destroy([host.slices()[0].id], adopt=True)
        assert kinds(plan) == ["RemoveMdev"]


def test_l12_a_held_card_is_not_unbound(tmp_path: Path) -> None:
    """https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/1076"""
    host = hosts.case("L12", tmp_path)
    with pytest.raises(Conflict, match=r"3100 .*dcgm-exporter"):
        host.create("gpu on 0000:41:00.0", guest="g1")
