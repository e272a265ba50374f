"""The simulated kernel answers as Linux does. Sources: drivers/pci/iov.c, drivers/base/bus.c,
drivers/vfio/mdev, and the reports that the model's own comments name."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support import hosts
from virtgpu.sim import profiles
from virtgpu.sim.door import SimDoor, write_to
from virtgpu.sim.kernel import Kernel
from virtgpu.sim.modes import NvidiaRefused
from virtgpu.sim.state import Process
from virtgpu.sim.tree import InUse

DEV = "sys/bus/pci/devices"
FLEX = f"{DEV}/0000:4d:00.0"
UUID = "11111111-2222-4333-8444-555555555555"


def kernel(name: str, **choices: object) -> Kernel:
    profile = profiles.load(name)
    profile.choices = {**profile.choices, **choices}
    return Kernel(profile)


def refusal(k: Kernel, path: str, text: str) -> str:
    with pytest.raises(OSError, match=r".") as caught:
        write_to(k, path, text)
    return errno.errorcode[caught.value.errno or 0]


def read(k: Kernel, path: str) -> str:
    node = k.tree.find(path)
    assert node.read is not None
    text = node.read()
    assert isinstance(text, str)
    return text.strip()


class TestSriovNumvfs:
    """Documentation/ABI/testing/sysfs-bus-pci and sriov_numvfs_store in drivers/pci/iov.c."""

    def test_above_the_total_is_out_of_range(self) -> None:
        assert refusal(kernel("intel-flex170"), f"{FLEX}/sriov_numvfs", "32") == "ERANGE"

    def test_another_number_over_a_number_is_busy(self) -> None:
        assert refusal(kernel("intel-flex170"), f"{FLEX}/sriov_numvfs", "5") == "EBUSY"

    def test_the_same_number_again_does_nothing(self) -> None:
        k = kernel("intel-flex170")
        write_to(k, f"{FLEX}/sriov_numvfs", "4")
        assert k.take_events() == []

    def test_through_zero_is_the_way(self) -> None:
        k = kernel("intel-flex170")
        write_to(k, f"{FLEX}/sriov_numvfs", "0")
        assert "0000:4d:00.1" not in k.bus.devices
        write_to(k, f"{FLEX}/sriov_numvfs", "5")
        assert read(k, f"{FLEX}/sriov_numvfs") == "5"
        assert k.tree.find(f"{FLEX}/virtfn4").name == "0000:4d:00.5"

    @pytest.mark.parametrize("text", ["x", "", "-1", "1e3"])
    def test_what_is_no_number_is_invalid(self, text: str) -> None:
        assert refusal(kernel("intel-flex170"), f"{FLEX}/sriov_numvfs", text) == "EINVAL"

    @pytest.mark.parametrize(
        ("name", "address"), [("a40x2-mdev-vf", "0000:51:00.0"), ("amd-v710", "0000:43:00.0")]
    )
    def test_drivers_that_make_vfs_themselves_have_no_hook(self, name: str, address: str) -> None:
        assert refusal(kernel(name), f"{DEV}/{address}/sriov_numvfs", "0") == "ENOENT"

    def test_zero_waits_for_the_holder_of_a_vf(self) -> None:
        k = kernel("intel-flex170")
        vf = k.bus.devices["0000:4d:00.1"]
        assert vf.group is not None
        k.hold("qemu", vf.group, vf.address)
        with pytest.raises(InUse):
            write_to(k, f"{FLEX}/sriov_numvfs", "0")
        assert read(k, f"{FLEX}/sriov_numvfs") == "4"

    def test_vfs_can_appear_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        k = kernel("intel-flex140x2-off", late_vfs_s=60)
        write_to(k, f"{DEV}/0000:af:00.0/sriov_numvfs", "2")
        assert read(k, f"{DEV}/0000:af:00.0/sriov_numvfs") == "2"
        assert "0000:af:00.1" not in k.bus.devices
        monkeypatch.setattr("time.time", lambda: 1e12)
        k.tick()
        assert "0000:af:00.2" in k.bus.devices


class TestDrivers:
    """drivers/base/bus.c: bind_store, unbind_store; drivers/pci/pci-driver.c: new_id."""

    def test_the_way_of_libvirt_to_vfio_pci_and_back(self) -> None:
        k = kernel("intel-flex140x2-off")
        path = f"{DEV}/0000:af:00.0"
        write_to(k, f"{path}/driver_override", "vfio-pci")
        write_to(k, "sys/bus/pci/drivers/i915/unbind", "0000:af:00.0")
        assert k.bus.devices["0000:af:00.0"].driver is None
        write_to(k, "sys/bus/pci/drivers_probe", "0000:af:00.0")
        assert k.tree.find(f"{path}/driver").name == "vfio-pci"
        assert "33" in k.tree.find("dev/vfio").entries
        write_to(k, f"{path}/driver_override", "\n")
        assert read(k, f"{path}/driver_override") == "(null)"
        write_to(k, "sys/bus/pci/drivers/vfio-pci/unbind", "0000:af:00.0")
        write_to(k, "sys/bus/pci/drivers_probe", "0000:af:00.0")
        assert k.tree.find(f"{path}/driver").name == "i915"
        assert "33" not in k.tree.find("dev/vfio").entries

    def test_bind_of_a_bound_one_is_busy(self) -> None:
        k = kernel("intel-flex140x2-off")
        assert refusal(k, "sys/bus/pci/drivers/i915/bind", "0000:af:00.0") == "EBUSY"

    def test_bind_without_a_match_is_no_device(self) -> None:
        k = kernel("intel-flex140x2-off")
        assert refusal(k, "sys/bus/pci/drivers/vfio-pci/bind", "0000:af:00.0") == "ENODEV"

    def test_unbind_of_another_drivers_is_no_device(self) -> None:
        k = kernel("intel-flex140x2-off")
        assert refusal(k, "sys/bus/pci/drivers/vfio-pci/unbind", "0000:af:00.0") == "ENODEV"

    def test_probe_of_the_unknown_is_no_device(self) -> None:
        assert refusal(kernel("amd-v710"), "sys/bus/pci/drivers_probe", "0000:99:00.0") == "ENODEV"

    def test_new_id_twice_exists(self) -> None:
        k = kernel("amd-v710")
        write_to(k, "sys/bus/pci/drivers/vfio-pci/new_id", "1002 7460")
        assert refusal(k, "sys/bus/pci/drivers/vfio-pci/new_id", "1002 7460") == "EEXIST"
        assert refusal(k, "sys/bus/pci/drivers/vfio-pci/new_id", "1002") == "EINVAL"

    def test_vfio_pci_does_not_take_a_vf_of_nvidias(self) -> None:
        """https://github.com/kubevirt/kubevirt/issues/17642"""
        k = kernel("a40x2-vendor-vfio")
        vf = "0000:51:00.6"
        write_to(k, f"{DEV}/{vf}/driver_override", "vfio-pci")
        write_to(k, "sys/bus/pci/drivers/nvidia/unbind", vf)
        assert refusal(k, "sys/bus/pci/drivers/vfio-pci/bind", vf) == "EINVAL"


class TestMdev:
    """drivers/vfio/mdev/mdev_sysfs.c: create_store, remove_store."""

    PARENT = f"{DEV}/0000:ca:00.4/mdev_supported_types"

    def test_a_device_comes_and_goes(self) -> None:
        k = kernel("a40x2-mdev-vf")
        write_to(k, f"{self.PARENT}/nvidia-563/create", UUID)
        assert read(k, f"{self.PARENT}/nvidia-563/available_instances") == "0"
        assert k.tree.find(f"sys/bus/mdev/devices/{UUID}/mdev_type").name == "nvidia-563"
        write_to(k, f"sys/bus/mdev/devices/{UUID}/remove", "1")
        assert read(k, f"{self.PARENT}/nvidia-563/available_instances") == "1"

    def test_a_known_uuid_exists(self) -> None:
        k = kernel("a40x2-mdev-vf")
        write_to(k, f"{self.PARENT}/nvidia-563/create", UUID)
        other = f"{DEV}/0000:ca:00.5/mdev_supported_types/nvidia-563/create"
        assert refusal(k, other, UUID) == "EEXIST"

    @pytest.mark.parametrize("text", ["", "1", "x" * 36, UUID + "0"])
    def test_a_bad_uuid_is_invalid(self, text: str) -> None:
        k = kernel("a40x2-mdev-vf")
        assert refusal(k, f"{self.PARENT}/nvidia-563/create", text) == "EINVAL"

    @pytest.mark.parametrize("code", ["ENOSPC", "EUSERS"])
    def test_without_room_it_says_what_the_profile_chooses(self, code: str) -> None:
        k = kernel("a2-mdev-vf", mdev_full=code)
        path = f"{DEV}/0000:08:00.5/mdev_supported_types/nvidia-748/create"
        assert refusal(k, path, UUID) == code

    def test_the_first_size_is_the_only_one(self) -> None:
        """https://github.com/mdevctl/mdevctl/issues/59"""
        k = kernel("a40x2-mdev-vf")
        free = f"{DEV}/0000:51:00.6/mdev_supported_types"
        assert read(k, f"{free}/nvidia-563/available_instances") == "1"
        assert read(k, f"{free}/nvidia-557/available_instances") == "0"

    def test_remove_waits_for_the_holder(self) -> None:
        k = kernel("pve-2xt4-mdev")
        held = k.state.mdevs[0].uuid
        with pytest.raises(InUse):
            write_to(k, f"sys/bus/mdev/devices/{held}/remove", "1")
        k.let_go(held)
        write_to(k, f"sys/bus/mdev/devices/{held}/remove", "1")


class TestVendorVfio:
    """Section 3 of the formats: NVIDIA's user guide 17 and the reports that it names."""

    FREE = f"{DEV}/0000:51:00.6/nvidia/current_vgpu_type"

    def test_a_type_is_made_at_once_and_cleared_by_0(self) -> None:
        k = kernel("a40x2-vendor-vfio")
        write_to(k, self.FREE, "563")
        assert read(k, self.FREE) == "563"
        assert read(k, f"{DEV}/0000:51:00.6/nvidia/creatable_vgpu_types") == "ID    : vGPU Name"
        write_to(k, self.FREE, "0")
        assert read(k, self.FREE) == "0"

    @pytest.mark.parametrize("wrong", ["1", "565"])
    def test_what_cannot_be_made_is_refused_and_leaves_0(self, wrong: str) -> None:
        k = kernel("a40x2-vendor-vfio")
        assert refusal(k, self.FREE, wrong) == "EINVAL"
        assert read(k, self.FREE) == "0"

    def test_or_is_not_refused_and_leaves_0(self) -> None:
        k = kernel("a40x2-vendor-vfio", vgpu_refusal="silent")
        write_to(k, self.FREE, "1")
        assert read(k, self.FREE) == "0"

    def test_a_taken_vf_refuses_another(self) -> None:
        k = kernel("a40x2-vendor-vfio")
        taken = f"{DEV}/0000:51:00.4/nvidia/current_vgpu_type"
        assert refusal(k, taken, "563") == "EPERM"
        assert read(k, taken) == "563"

    def test_0_on_an_empty_vf_is_refused(self) -> None:
        assert refusal(kernel("a40x2-vendor-vfio"), self.FREE, "0") == "EPERM"

    def test_0_under_a_guest_is_refused(self) -> None:
        k = kernel("a40x2-vendor-vfio")
        assert refusal(k, f"{DEV}/0000:51:00.4/nvidia/current_vgpu_type", "0") == "EPERM"

    @pytest.mark.parametrize("name", ["placement_id", "gpu_instance_id", "vgpu_params"])
    def test_files_of_a_vgpu_do_not_answer_without_one(self, name: str) -> None:
        k = kernel("a40x2-vendor-vfio")
        with pytest.raises(OSError, match=r"No such device or address"):
            read(k, f"{DEV}/0000:51:00.6/nvidia/{name}")

    def test_mixed_size_goes_by_places(self) -> None:
        k = kernel("l40s-x4-mixed")
        listed = read(k, f"{DEV}/0000:26:00.6/nvidia/creatable_vgpu_types")
        assert "L40S-12Q" in listed
        assert "L40S-16Q" not in listed
        write_to(k, f"{DEV}/0000:26:00.6/nvidia/current_vgpu_type", "1153")
        assert read(k, f"{DEV}/0000:26:00.6/nvidia/placement_id") == "24"

    def test_without_a_gpu_instance_it_is_an_io_error(self) -> None:
        k = kernel("h100x2-mig-vgpu")
        path = f"{DEV}/0000:1b:00.4/nvidia/current_vgpu_type"
        assert refusal(k, path, "9010") == "EIO"
        gi = k.create_gi("0000:1b:00.0", 19, None, True)
        write_to(k, path, "9010")
        assert read(k, f"{DEV}/0000:1b:00.4/nvidia/gpu_instance_id") == str(gi)


class TestMig:
    """The MIG user guide, and section 6 of the formats."""

    CARD = "0000:1b:00.0"

    def test_a_layout_that_adds_up_and_does_not_fit_is_refused(self) -> None:
        """https://github.com/NVIDIA/k8s-test-infra/issues/886"""
        k = kernel("h100x2-mig-vgpu")
        for _ in range(4):
            k.create_gi(self.CARD, 15, None, False)  # 1g.20gb takes two memory places
        with pytest.raises(NvidiaRefused, match="Insufficient Resources"):
            k.create_gi(self.CARD, 19, None, False)

    def test_an_instance_in_use_stays(self) -> None:
        k = kernel("h100x2-mig-vgpu")
        gi = k.create_gi(self.CARD, 19, 0, True)
        with pytest.raises(NvidiaRefused, match="In use by another client"):
            k.destroy_gi(self.CARD, gi)  # its compute instance first
        k.destroy_ci(self.CARD, gi)
        k.destroy_gi(self.CARD, gi)
        with pytest.raises(NvidiaRefused, match="Not Found"):
            k.destroy_gi(self.CARD, None)

    def test_mode_cannot_go_off_with_vfs_on(self) -> None:
        with pytest.raises(NvidiaRefused, match="In use by another client"):
            kernel("h100x2-mig-vgpu").set_mig_mode(self.CARD, False)

    def test_turning_vfs_off_wipes_instances_and_keeps_the_mode(self) -> None:
        k = kernel("h100x2-mig-vgpu")
        k.create_gi(self.CARD, 19, None, True)
        assert k.sriov_manage(["-d", self.CARD]).rc == 0
        device = k.nvml_state()["devices"][0]
        assert device["mig"]["current"]
        assert device["gi"] == []


class TestSriovManage:
    def test_enabling_twice_is_harmless(self) -> None:
        k = kernel("h100x2-mig-vgpu")
        first = k.sriov_manage(["-e", "0000:43:00.0"])
        assert first == (0, "Enabling VFs on 0000:43:00.0\n", "")
        assert k.sriov_manage(["-e", "0000:43:00.0"]) == first
        assert len(k.bus.devices["0000:43:00.0"].vfs) == 20

    def test_another_client_keeps_the_lock(self) -> None:
        k = kernel("h100x2-mig-vgpu")
        k.state.holders.append(Process(pid=50000, command="dcgm", files=["/dev/nvidiactl"]))
        done = k.sriov_manage(["-e", "0000:43:00.0"])
        assert done.rc == 1
        assert done.stderr == "Cannot obtain unbindLock for 0000:43:00.0\n"


@pytest.mark.parametrize("name", profiles.names())
def test_the_state_is_all_that_there_is(name: str) -> None:
    first = Kernel(profiles.load(name))
    again = Kernel(profiles.load(name), first.snapshot())
    assert again.snapshot() == first.snapshot()
    assert sorted(n.path for n in again.tree.walk()) == sorted(n.path for n in first.tree.walk())


class TestDoor:
    def test_another_process_sees_what_was_written(self, tmp_path: Path) -> None:
        one = SimDoor("intel-flex140x2-off", state_dir=tmp_path, environment={})
        other = SimDoor("intel-flex140x2-off", state_dir=tmp_path, environment={})
        assert other.read(f"{DEV}/0000:af:00.0/sriov_numvfs") == "0\n"
        one.write(f"{DEV}/0000:af:00.0/sriov_numvfs", "3")
        assert other.read(f"{DEV}/0000:af:00.0/sriov_numvfs") == "3\n"

    def test_a_fault_fails_the_chosen_write_only(self, tmp_path: Path) -> None:
        door = SimDoor(
            "intel-flex140x2-off",
            state_dir=tmp_path,
            environment={"VIRTGPU_SIM_FAULTS": "2:EIO"},
        )
        door.write(f"{DEV}/0000:af:00.0/sriov_numvfs", "3")
        with pytest.raises(OSError, match="Input/output error"):
            door.write(f"{DEV}/0000:af:00.0/sriov_numvfs", "0")
        door.write(f"{DEV}/0000:af:00.0/sriov_numvfs", "0")

    def test_nothing_leaves_the_tree(self, tmp_path: Path) -> None:
        door = SimDoor("amd-v710", state_dir=tmp_path, environment={})
        for path in ("sys/../etc/passwd", "etc/passwd", "../x", "sys/bus/\0"):
            with pytest.raises(OSError, match=r"."):
                door.read(path)

    def test_reset_forgets(self, tmp_path: Path) -> None:
        from virtgpu.sim.door import reset

        host = hosts.handle("intel-flex140x2-off", tmp_path)
        host.create("vf", guest="g1")
        reset("intel-flex140x2-off", tmp_path)
        assert hosts.handle("intel-flex140x2-off", tmp_path).slices() == ()
