"""Public bug reports about finding GPUs, each with its source: what the inventory must say."""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import hosts, trees
from virtgpu.api import HostHandle
from virtgpu.domain.read import guest
from virtgpu.errors import Conflict, NotFound, Unsupported, Usage
from virtgpu.host.local import LocalDoor
from virtgpu.model.gpu import Mechanism


def by_address(handle: Any) -> dict[str, Any]:
    return {gpu.address: gpu for gpu in handle.read().gpus}


class TestD01:
    """https://github.com/beam-cloud/beta9/issues/984"""

    def test_the_eight_digit_domain_of_nvml_joins_the_four_digit_one_of_sysfs(
        self, tmp_path: Path
    ) -> None:
        handle = hosts.case("D01", tmp_path)
        answer = json.loads((trees.CASES / "D01.cmd.json").read_text())["stdout"]
        _, bus_id, index, uuid = (one.strip() for one in answer.split(","))
        handle.door.nvml = lambda: one_gpu(bus_id, uuid)  # type: ignore[method-assign]
        (gpu,) = handle.read().gpus
        assert gpu.address == "0001:00:00.0"
        assert gpu.nvml is not None
        assert (gpu.nvml.index, gpu.nvml.uuid) == (int(index), uuid)

    def test_without_nvml_the_same_gpu_is_there(self, tmp_path: Path) -> None:
        (gpu,) = hosts.case("D01", tmp_path).read().gpus
        assert (gpu.address, gpu.nvml) == ("0001:00:00.0", None)

    @pytest.mark.parametrize("spelling", ["00000001:00:00.0", "0001:00:00.0"])
    def test_both_spellings_name_it(self, tmp_path: Path, spelling: str) -> None:
        assert hosts.case("D01", tmp_path).gpu(spelling).address == "0001:00:00.0"

    def test_the_short_form_means_domain_0(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match=r"0000:00:00\.0"):
            hosts.case("D01", tmp_path).gpu("00:00.0")


@contextmanager
def one_gpu(bus_id: str, uuid: str) -> Any:
    """NVML with one GPU and nothing more to say of it."""

    class Refused(Exception):
        pass

    def refuse(*_: Any) -> Any:
        raise Refused

    class Library:
        NVMLError = Refused
        nvmlDeviceGetCount = staticmethod(lambda: 1)  # noqa: N815
        nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)  # noqa: N815
        nvmlDeviceGetPciInfo = staticmethod(lambda _: SimpleNamespace(busId=bus_id))  # noqa: N815
        nvmlDeviceGetUUID = staticmethod(lambda _: uuid)  # noqa: N815

        def __getattr__(self, _name: str) -> Any:
            return refuse

    yield Library()


class TestD02:
    """https://github.com/kata-containers/kata-containers/issues/11252"""

    def test_the_same_bus_in_two_domains_is_two_cards(self, tmp_path: Path) -> None:
        handle = hosts.case("D02", tmp_path)
        addresses = [gpu.address for gpu in handle.read().gpus]
        assert len(set(addresses)) == 8
        assert addresses[:4] == ["0000:89:00.0", "0000:8a:00.0", "0000:d1:00.0", "0000:d2:00.0"]
        assert handle.gpu("0001:89:00.0").iommu_group == 117
        assert handle.gpu("89:00.0").iommu_group == 113

    def test_the_xml_names_the_domain(self, tmp_path: Path) -> None:
        xml = hosts.case("D02", tmp_path).render("g1", ["gpu on 0001:89:00.0"])
        assert b'<address domain="0x0001" bus="0x89" slot="0x00" function="0x0"/>' in xml


def test_d03_class_and_vendor_decide_together(tmp_path: Path) -> None:
    """https://github.com/apache/cloudstack/issues/11701"""
    assert set(by_address(hosts.case("D03", tmp_path))) == {"0000:05:00.0", "0000:03:00.0"}


class TestD04:
    """https://github.com/NVIDIA/kubevirt-gpu-device-plugin/issues/67"""

    def test_the_audio_function_is_part_of_the_card(self, tmp_path: Path) -> None:
        gpus = hosts.case("D04", tmp_path).read().gpus
        assert len(gpus) == 4
        for gpu in gpus:
            audio = gpu.address[:-1] + "1"
            assert [one.address for one in gpu.functions] == [gpu.address, audio]

    def test_four_cards_for_one_guest_are_eight_host_devices(self, tmp_path: Path) -> None:
        xml = hosts.case("D04", tmp_path).render("g1", ["4xgpu"])
        assert len(guest(xml).devices) == 8


class TestD05:
    """https://github.com/uwzis/GPU-Passthrough-Manager/issues/21"""

    def test_the_plan_switches_all_four_functions_and_remembers_their_drivers(
        self, tmp_path: Path
    ) -> None:
        plan = hosts.case("D05", tmp_path).plan("gpu on 0000:09:00.0", guest="g1")
        binds = [one for one in plan.steps if type(one).__name__ == "BindDriver"]
        assert [one.previous_driver for one in binds] == [
            "nvidia",
            "snd_hda_intel",
            "xhci_hcd",
            "i2c_nvidia_gpu",
        ]
        assert {one.driver for one in binds} == {"vfio-pci"}

    def test_the_guest_gets_one_slot_with_four_functions(self, tmp_path: Path) -> None:
        xml = hosts.case("D05", tmp_path).render("g1", ["gpu on 0000:09:00.0"]).decode()
        assert xml.count("<hostdev") == xml.count('managed="yes"') == 4
        assert xml.count("multifunction") == 1
        for function in range(4):
            assert f'bus="0x01" slot="0x00" function="0x{function}"' in xml


class TestD06:
    """https://github.com/NVIDIA/kubevirt-gpu-device-plugin/issues/139"""

    def test_each_card_says_who_shares_its_group(self, tmp_path: Path) -> None:
        gpus = by_address(hosts.case("D06", tmp_path))
        assert len(gpus) == 6
        assert gpus["0000:27:00.0"].group_others == ("0000:28:00.0",)

    def test_a_stranger_is_refused_with_what_it_is_and_its_driver(self, tmp_path: Path) -> None:
        tree = trees.case("D06")
        # Class 0c0330 is a USB controller with xHCI (PCI Code and ID Assignment Specification).
        device = "/sys/bus/pci/devices/0000:28:00.0"
        tree["files"][f"{device}/class"] = "0x0c0330\n"
        tree["links"][f"{device}/driver"] = "/sys/bus/pci/drivers/xhci_hcd"
        for one in ("0000:27:00.0", "0000:28:00.0"):
            member = f"/sys/kernel/iommu_groups/41/devices/{one}"
            tree["links"][member] = f"/sys/bus/pci/devices/{one}"
        root = trees.build(tmp_path / "root", tree)
        handle = HostHandle(LocalDoor(root, state_dir=tmp_path / "s"), vendors=hosts.VENDORS)
        said = r"with 0000:28:00\.0 \(USB controller, driver xhci_hcd\)"
        with pytest.raises(Conflict, match=said):
            handle.plan("gpu on 0000:27:00.0")


class TestVfsThatOfferNothing:
    """Documentation/ABI/testing/sysfs-bus-pci, sriov_drivers_autoprobe: with 0, VFs stay without
    a driver. https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/: types come with the vGPU
    Manager's services, nvidia-vgpud and nvidia-vgpu-mgr."""

    PF, VF = "/sys/bus/pci/devices/0000:3b:00.0", "/sys/bus/pci/devices/0000:3b:00.4"

    def host(self, folder: Path, *, driver: str | None, autoprobe: str) -> HostHandle:
        tree = trees.case("G05")
        for name in [one for one in tree["files"] if "/nvidia/" in one]:
            del tree["files"][name]
        del tree["links"][f"{self.VF}/driver"]
        if driver is not None:
            tree["links"][f"{self.VF}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        tree["files"][f"{self.PF}/sriov_drivers_autoprobe"] = f"{autoprobe}\n"
        tree["dirs"] = ["/sys/module/nvidia_vgpu_vfio"]
        root = trees.build(folder / "root", tree)
        return HostHandle(LocalDoor(root, state_dir=folder / "s"), vendors=hosts.VENDORS)

    @pytest.mark.parametrize(
        ("driver", "autoprobe", "reason", "command"),
        [
            (None, "0", "sriov_drivers_autoprobe is 0", f"echo 1 > {PF}/sriov_drivers_autoprobe"),
            (None, "1", "no driver is bound", "sriov-manage -d 0000:3b:00.0"),
            ("nvidia", "1", "daemon does not run", "systemctl restart nvidia-vgpud"),
            ("vfio-pci", "1", "bound to vfio-pci", "sriov-manage -d 0000:3b:00.0"),
        ],
    )
    def test_the_list_and_the_refusal_say_what_is_missing_and_the_command(
        self, tmp_path: Path, driver: str | None, autoprobe: str, reason: str, command: str
    ) -> None:
        from virtgpu.cli.nouns.gpu import gpu_row

        host = self.host(tmp_path, driver=driver, autoprobe=autoprobe)
        (gpu,) = host.read().gpus
        note = str(gpu_row(gpu)[-1])
        assert reason in note
        assert command in note
        with pytest.raises(NotFound, match=reason) as caught:
            host.plan("A100-1-5C")
        assert command in (caught.value.hint or "")

    def test_types_that_nvml_knows_are_refused_with_it_too(self, tmp_path: Path) -> None:
        host = hosts.handle("l40s-x4-mixed", tmp_path)
        pf = "0000:a7:00.0"
        host.door.write(f"sys/bus/pci/devices/{pf}/sriov_drivers_autoprobe", "0")
        tool = host.door.which("sriov-manage", ("/usr/lib/nvidia",))
        host.door.run((tool or "", "-e", pf), timeout_s=60)
        gpu = host.gpu(pf)
        assert gpu.missing is not None
        with pytest.raises(Unsupported, match="sriov_drivers_autoprobe is 0") as caught:
            host.plan(f"L40S-48Q on {pf}")
        assert (caught.value.hint or "").startswith("echo 1 >")
        assert {one.available for one in host.types() if one.gpu == pf} == {0}
        assert host.plan("L40S-48Q")  # another card has it

    @pytest.mark.parametrize("profile", ["a40x2-vendor-vfio", "a40x2-mdev-vf", "intel-flex170"])
    def test_a_card_that_offers_something_lacks_nothing(self, tmp_path: Path, profile: str) -> None:
        assert all(gpu.missing is None for gpu in hosts.handle(profile, tmp_path).read().gpus)


class TestReset:
    """Documentation/ABI/testing/sysfs-bus-pci: `reset` and `reset_method` are there for a device
    that can be reset by itself."""

    def why(self, folder: Path, *files: str) -> str:
        tree = trees.case("D02")
        for name in files:
            tree["files"][f"/sys/bus/pci/devices/0000:89:00.0/{name}"] = "flr\n"
        root = trees.build(folder / "root", tree)
        host = HostHandle(LocalDoor(root, state_dir=folder / "s"), vendors=hosts.VENDORS)
        return host.plan("gpu on 0000:89:00.0").why[0]

    def test_a_card_without_any_is_given_with_a_note(self, tmp_path: Path) -> None:
        assert "may not start a second time before the host is rebooted" in self.why(tmp_path)

    @pytest.mark.parametrize("name", ["reset", "reset_method"])
    def test_a_card_with_one_is_given_without(self, tmp_path: Path, name: str) -> None:
        assert "rebooted" not in self.why(tmp_path, name)


def test_d07_a_numa_node_of_minus_one_is_unknown(tmp_path: Path) -> None:
    """https://github.com/NVIDIA/kubevirt-gpu-device-plugin/pull/86"""
    gpus = by_address(hosts.case("D07", tmp_path))
    assert gpus.pop("0000:65:00.0").numa_node is None
    assert [gpu.numa_node for gpu in gpus.values()] == [0]


def test_d08_an_error_sentence_on_stdout_is_no_address(tmp_path: Path) -> None:
    """https://github.com/bigstack-oss/cubecos/issues/1486"""
    handle = hosts.case("D08", tmp_path)
    answer = json.loads((trees.CASES / "D08.cmd.json").read_text())
    program = tmp_path / "root/usr/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{answer['stdout']}E\nexit {answer['rc']}\n")
    program.chmod(0o755)
    (gpu,) = handle.read().gpus
    assert gpu.nvml is None
    assert gpu.mechanisms == (Mechanism.WHOLE,)
    assert answer["stdout"].strip() not in repr(gpu)


@pytest.mark.parametrize("error", ["NOT_FOUND", "DRIVER_NOT_LOADED"])
def test_d08_the_same_holds_for_what_nvml_answers(tmp_path: Path, error: str) -> None:
    """https://github.com/bigstack-oss/cubecos/issues/1486"""

    class Refused(Exception):
        pass

    def refuse(*_: Any) -> Any:
        raise Refused(error)

    class Library:
        NVMLError = Refused
        nvmlDeviceGetCount = staticmethod(lambda: 1)  # noqa: N815

        def __getattr__(self, _name: str) -> Any:
            return refuse

    handle = hosts.case("D08", tmp_path)
    handle.door.nvml = lambda: nullcontext(Library())  # type: ignore[method-assign]
    (gpu,) = handle.read().gpus
    assert gpu.nvml is None
    assert gpu.mechanisms == (Mechanism.WHOLE,)
    assert error not in repr(gpu)


class TestG01:
    """https://github.com/kernel/hypeman/pull/327"""

    def test_both_spellings_of_the_list_give_the_same_types(self, tmp_path: Path) -> None:
        first, second = hosts.case("G01", tmp_path).read().gpus
        assert [(one.type.id, one.type.name) for one in first.offers] == [
            ("1145", "NVIDIA L40S-1B"),
            ("1147", "NVIDIA L40S-1Q"),
            ("1151", "NVIDIA L40S-6Q"),
        ]
        assert [vf.vgpu_type for vf in second.vfs if vf.vgpu_type not in (None, "0")] == ["1160"]
        assert all(not vf.creatable for vf in second.vfs)

    def test_a_line_that_is_no_type_makes_the_list_unknown_and_is_said(
        self, tmp_path: Path
    ) -> None:
        handle = hosts.case("G01", tmp_path)
        vf = handle.read().gpus[0].vfs[0].address
        name = f"sys/bus/pci/devices/{vf}/nvidia/creatable_vgpu_types"
        (tmp_path / "root" / name).write_text("what is this\n")
        gpu = handle.read().gpus[0]
        assert gpu.vfs[0].creatable is None
        assert any(name in warning for warning in gpu.warnings)


def test_g02_a_type_without_a_name_goes_by_its_id(tmp_path: Path) -> None:
    """https://bugs.launchpad.net/nova/+bug/1896741"""
    (gpu,) = hosts.case("G02", tmp_path).read().gpus
    (offer,) = gpu.offers
    assert (offer.type.id, offer.type.name, offer.available) == ("i915-GVTg_V5_8", None, 2)


class TestG03:
    """https://github.com/mdevctl/mdevctl/issues/59"""

    def test_the_first_vgpu_fixes_the_size_and_the_reason_is_said(self, tmp_path: Path) -> None:
        (gpu,) = hosts.case("G03", tmp_path).read().gpus
        offers = {(one.type.name or "").rpartition("-")[2]: one for one in gpu.offers}
        assert offers["8A"].available
        assert offers["4Q"].available == 0
        assert "equal-size mode" in (offers["4Q"].reason or "")


def test_g08_the_number_of_vfs_is_not_the_number_of_vgpus(tmp_path: Path) -> None:
    """https://github.com/bigstack-oss/cubecos/issues/904"""
    handle = hosts.case("G08", tmp_path)
    (gpu,) = handle.read().gpus
    assert len(gpu.vfs) == 48
    used = [vf.address for vf in gpu.vfs if vf.vgpu_type not in (None, "0")]
    assert used == ["0000:42:00.2", "0000:42:00.3"]
    assert [(one.id, one.state.value) for one in handle.slices()] == [
        ("0000:42:00.2", "foreign"),
        ("0000:42:00.3", "foreign"),
    ]


def test_s02_a_card_and_its_one_vf_are_two_ways_to_use_one_thing(tmp_path: Path) -> None:
    """https://github.com/amd/MxGPU-Virtualization/issues/13"""
    (gpu,) = hosts.case("S02", tmp_path).read().gpus
    assert gpu.sriov is not None
    assert gpu.sriov.total_vfs == 1


def test_s04_a_vf_in_the_slot_of_its_pf_is_no_function_of_the_card(tmp_path: Path) -> None:
    """https://github.com/strongtz/i915-sriov-dkms/issues/342"""
    (gpu,) = hosts.case("S04", tmp_path).read().gpus
    assert [one.address for one in gpu.functions] == ["0000:00:02.0"]
    assert [vf.address for vf in gpu.vfs] == ["0000:00:02.1", "0000:00:02.2", "0000:00:02.3"]


class TestS05:
    """https://github.com/intel/intel-device-plugins-for-kubernetes/pull/629"""

    def test_a_pf_with_vfs_on_is_no_whole_card(self, tmp_path: Path) -> None:
        gpus = by_address(hosts.case("S05", tmp_path))
        assert gpus["0000:af:00.0"].mechanisms == (Mechanism.VF,)
        assert Mechanism.WHOLE in gpus["0000:b2:00.0"].mechanisms

    def test_nothing_is_remembered_from_an_earlier_reading(self, tmp_path: Path) -> None:
        handle = hosts.case("S05", tmp_path)
        handle.read()
        folder = tmp_path / "root/sys/bus/pci/devices"
        (folder / "0000:af:00.0/sriov_numvfs").write_text("0\n")
        for link in (folder / "0000:af:00.0").glob("virtfn*"):
            link.unlink()
        assert Mechanism.WHOLE in by_address(handle)["0000:af:00.0"].mechanisms


def test_s06_a_vf_of_a_nic_needs_no_interface_name(tmp_path: Path) -> None:
    """https://github.com/canonical/lxd/pull/8517"""
    host = hosts.case("S06", tmp_path).read()
    nics = {nic.address: nic for nic in host.nics}
    assert {"0000:04:10.0", "0000:04:10.4"} <= set(nics)
    assert nics["0000:04:10.4"].driver == "vfio-pci"
    assert not host.warnings


@pytest.mark.parametrize("address", ["0000:00:d6.0", "0000:00:00.9", "0000:1ff:00.0", "x"])
def test_l01_an_address_out_of_range_names_the_part(tmp_path: Path, address: str) -> None:
    """https://github.com/apache/cloudstack/issues/12960"""
    with pytest.raises(Usage):
        hosts.case("L01", tmp_path).gpu(address)
