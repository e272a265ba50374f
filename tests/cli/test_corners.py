"""What people and programs do to a command line that nobody thought of."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.command import virtgpu
from virtgpu.sim import profiles

A40 = ("--host", "sim:a40x2-mdev-vf")


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script in a shell where $V is virtgpu on a simulated host."""
    command = f"{sys.executable} -m virtgpu --host sim:a40x2-mdev-vf"
    return subprocess.run(
        ["sh", "-c", script],
        env=os.environ | {"V": command} | environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=60,
    )


class TestStreams:
    def test_without_any_word_it_helps(self) -> None:
        done = virtgpu()
        assert done.code == 2
        assert "Usage: virtgpu" in done.err
        assert "Traceback" not in done.err

    def test_the_shell_completes(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "virtgpu"],
            env=os.environ
            | {"_VIRTGPU_COMPLETE": "bash_complete", "COMP_WORDS": "virtgpu sl", "COMP_CWORD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "plain,slice\n"

    def test_a_full_disk_for_the_output_is_said_and_the_slice_is_made(self) -> None:
        done = shell("$V slice create A40-12Q --for g1 > /dev/full")
        assert done.returncode == 9
        assert "standard output cannot be written: No space left" in done.stderr
        assert done.stderr.count("\n") == 2
        assert "g1" in virtgpu(*A40, "slice", "list").out

    def test_a_closed_output_stops_before_anything_is_done(self) -> None:
        done = shell("$V slice create A40-12Q --for g1 >&-")
        assert done.returncode == 9
        assert "standard output is closed" in done.stderr
        assert "g1" not in virtgpu(*A40, "slice", "list").out

    def test_a_closed_stderr_changes_nothing(self) -> None:
        done = shell("$V slice create A40-12Q --for g1 2>&-")
        assert done.returncode == 0
        assert "made for g1" in done.stdout

    def test_a_terminal_that_lacks_a_letter_shows_its_number(self) -> None:
        done = shell(
            "$V slice create A40-12Q --for gäst-漢 && $V slice list", PYTHONIOENCODING="latin-1"
        )
        assert done.returncode == 0
        assert "\\u6f22" in done.stdout


class TestWords:
    @pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[31m", "x" * 20_000, "a/b", "\udcff"])
    def test_a_slice_is_for_a_guest_that_libvirt_could_name(self, name: str) -> None:
        done = virtgpu(*A40, "slice", "create", "A40-12Q", "--for", name)
        assert done.code == 2
        assert "guest name" in done.err

    @pytest.mark.parametrize("text", ["A40-12Q on foo", "A40-12Q on", "gpu on 0000:51:00.0 on"])
    def test_on_what_is_asked(self, text: str) -> None:
        assert virtgpu(*A40, "slice", "create", text, "--dry-run").code == 2

    @pytest.mark.parametrize(
        "words",
        [
            ("--host", "", "gpu", "list"),
            (*A40, "--state-dir", "", "gpu", "list"),
            (*A40, "--connect", "", "vm", "list"),
            (*A40, "type", "list", "--gpu", ""),
            (*A40, "sim", "record", ""),
        ],
    )
    def test_an_empty_word_is_a_mistake_and_not_the_default(self, words: tuple[str, ...]) -> None:
        assert virtgpu(*words).code == 2

    def test_an_empty_template_is_not_there(self) -> None:
        words = ("vm", "render", "a", "--gpu", "A40-12Q", "--template", "")
        assert virtgpu(*A40, *words).code == 4

    def test_types_of_a_gpu_that_is_not_there(self) -> None:
        assert virtgpu(*A40, "type", "list", "--gpu", "0000:99:00.0").code == 4

    def test_a_device_is_no_plan(self) -> None:
        done = virtgpu(*A40, "apply", "/dev/null")
        assert done.code == 5
        assert "not a regular file" in done.err
        assert "chmod" not in done.err

    def test_what_is_no_plan_says_how_to_get_one(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.json"
        path.write_text("{}")
        done = virtgpu(*A40, "apply", str(path))
        assert done.code == 3
        assert "--dry-run -o json" in done.err


class TestTypes:
    def test_what_can_be_made_after_changes_counts_as_free(self) -> None:
        """`slice create` makes them: so does the list say."""
        for profile, gpu, kind, left in (
            ("h100x2-mig-vgpu", "0000:1b:00.0", "NVIDIA H100XM-1-10C", 7),  # 7x 1g.10gb on an H100
            ("h100x2-mig-vgpu", "0000:1b:00.0", "NVIDIA H100XM-3-40C", 2),
            ("l40s-x4-mixed", "0000:a7:00.0", "NVIDIA L40S-24Q", 2),
            ("intel-flex140x2-off", "0000:af:00.0", None, 31),
        ):
            host = ("--host", f"sim:{profile}")
            virtgpu("sim", "reset", profile)
            types = virtgpu(*host, "type", "list", "--free", "--gpu", gpu, "-o", "json").json[
                "types"
            ]
            (one,) = [one for one in types if one["name"] == kind]
            assert one["available"] == left
            assert one["reason"].startswith("first ")
            for number in range(left if left < 10 else 1):
                request = f"{kind or 'vf'} on {gpu}"
                assert virtgpu(*host, "slice", "create", request, "--for", f"g{number}").code == 0
            if left < 10:
                after = virtgpu(*host, "type", "list", "--gpu", gpu, "-o", "json").json["types"]
                (one,) = [one for one in after if one["name"] == kind]
                assert one["available"] == 0

    def test_what_is_unknown_may_be_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("virtgpu.sim.door.SimDoor.sees_all_processes", lambda _: False)
        host = ("--host", "sim:intel-arc-pro-b50")
        types = virtgpu(*host, "type", "list", "--free", "-o", "json").json["types"]
        assert [one["available"] for one in types] == [None]


class TestPlans:
    def test_a_dry_apply_checks_and_touches_nothing(self, tmp_path: Path) -> None:
        plan = tmp_path / "plan.json"
        plan.write_text(virtgpu(*A40, "slice", "create", "A40-12Q", "--dry-run", "-o", "json").out)
        before = virtgpu(*A40, "slice", "list").out
        assert virtgpu(*A40, "apply", str(plan), "--dry-run").code == 0
        assert virtgpu(*A40, "slice", "list").out == before
        assert virtgpu(*A40, "apply", str(plan)).code == 0
        assert virtgpu(*A40, "apply", str(plan), "--dry-run").code == 7

    def test_a_dry_recovery_says_what_it_would_do(self, tmp_path: Path) -> None:
        made = shell("VIRTGPU_SIM_FAULTS=1:kill-after $V slice create A40-12Q --for g1")
        assert made.returncode == 128 + signal.SIGKILL
        before = virtgpu(*A40, "slice", "list").out
        done = virtgpu(*A40, "recover", "--dry-run")
        assert (done.code, "to undo" in done.out) == (0, True)
        assert virtgpu(*A40, "slice", "list").out == before
        assert "undone" in virtgpu(*A40, "recover").out
        assert "g1" not in virtgpu(*A40, "slice", "list").out

    def test_as_yaml_it_is_the_same_plan(self) -> None:
        import yaml

        words = (*A40, "slice", "create", "A40-12Q", "--dry-run", "-o")
        one, other = yaml.safe_load(virtgpu(*words, "yaml").out), virtgpu(*words, "json").json
        assert one.keys() == other.keys()
        assert one["summary"] == other["summary"]

    def test_an_adopted_slice_that_goes_is_named(self) -> None:
        host = ("--host", "sim:rtxpro6000-domain1")
        virtgpu("sim", "reset", "rtxpro6000-domain1")
        theirs = [
            one["id"]
            for one in virtgpu(*host, "slice", "list", "-o", "json").json["slices"]
            if one["state"] == "foreign" and one["holders"] == []
        ]
        done = virtgpu(*host, "slice", "destroy", "--adopt", theirs[0], "-o", "json")
        assert [one["id"] for one in done.json["slices"]] == theirs[:1]


class TestDamage:
    def damaged(self, tmp_path: Path) -> tuple[str, Path]:
        slice_id = virtgpu(*A40, "slice", "create", "A40-12Q", "--for", "g1", "-o", "json").json[
            "slices"
        ][0]["id"]
        path = tmp_path / "state/sim/a40x2-mdev-vf/reservations"
        broken = path / "11111111-1111-4111-8111-111111111111.json"
        broken.write_text("{")
        return slice_id, broken

    def test_a_damaged_reservation_hides_no_other_and_is_said(self, tmp_path: Path) -> None:
        slice_id, broken = self.damaged(tmp_path)
        done = virtgpu(*A40, "slice", "list")
        assert done.code == 0
        assert slice_id in done.out
        assert broken.name in done.err
        assert virtgpu(*A40, "slice", "create", "A40-12Q").code == 3
        done = virtgpu(*A40, "recover")
        assert done.code == 13
        assert broken.name in done.err

    def test_a_folder_called_as_a_journal_stops_nothing(self, tmp_path: Path) -> None:
        self.damaged(tmp_path)[1].unlink()
        (tmp_path / "state/sim/a40x2-mdev-vf/journal/x.journal").mkdir()
        assert virtgpu(*A40, "slice", "list").code == 0
        assert virtgpu(*A40, "recover").code == 13

    def test_what_a_killed_writer_left_is_swept(self, tmp_path: Path) -> None:
        self.damaged(tmp_path)[1].unlink()
        folder = tmp_path / "state/sim/a40x2-mdev-vf/reservations"
        left, held = folder / ".new-0123", folder / ".new-4567"
        for one in (left, held):
            one.write_text("half")
        with held.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert virtgpu(*A40, "recover").code == 0
            assert not left.exists()
            assert held.exists()  # its writer lives


class TestProfiles:
    def test_an_endless_file_ends(self) -> None:
        done = virtgpu("--host", "sim:/dev/zero", "gpu", "list")
        assert done.code == 3

    def test_a_file_called_as_a_shipped_profile_is_another_machine(self, tmp_path: Path) -> None:
        name = hosts.profile_with(tmp_path, "a40x2-mdev-vf")
        file = tmp_path / "a40x2-mdev-vf.json"
        Path(name).rename(file)
        virtgpu(*A40, "slice", "create", "A40-12Q", "--for", "g1")
        assert "g1" not in virtgpu("--host", f"sim:{file}", "slice", "list").out

    def test_a_reset_that_cannot_be_done_is_no_success(self, tmp_path: Path) -> None:
        virtgpu(*A40, "slice", "create", "A40-12Q", "--for", "g1")
        folder = tmp_path / "state/sim/a40x2-mdev-vf"
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
        assert virtgpu("sim", "reset", "a40x2-mdev-vf").code in (5, 9)
        assert list((tmp_path / "elsewhere/reservations").iterdir())

    def test_a_dry_reset_touches_nothing(self) -> None:
        virtgpu(*A40, "slice", "create", "A40-12Q", "--for", "g1")
        done = virtgpu("sim", "reset", "a40x2-mdev-vf", "--dry-run", "-o", "json")
        assert done.json["profile"]["folder"].endswith("sim/a40x2-mdev-vf")
        assert "g1" in virtgpu(*A40, "slice", "list").out

    @pytest.mark.parametrize(
        ("profile", "path"),
        [
            ("a40x2-vendor-vfio", ("nvml", "devices", 0, "memory_total_mib")),
            ("a40x2-vendor-vfio", ("nvml", "devices", 0, "minor")),
            ("a40x2-vendor-vfio", ("nvml", "devices", 0, "host_vgpu_mode")),
            ("a40x2-vendor-vfio", ("nvml", "vgpus", 0, "placement_id")),
            ("a40x2-vendor-vfio", ("placement", "mixed", "12", 0)),
            ("a40x2-vendor-vfio", ("pci", 0, "vendor_vfio", "row")),
            ("a40x2-vendor-vfio", ("vgpu_types", "A40", 0, "id")),
            ("a40x2-vendor-vfio", ("vgpu_types", "A40", 0, "max_instances_mixed")),
            ("h100x2-mig-vgpu", ("mig", "10de:2330", "compute_slices")),
            ("h100x2-mig-vgpu", ("mig", "10de:2330", "profiles", 0, "starts")),
            ("rtxpro6000-domain1", ("nvml", "gpu_instances", 0, "instances", 0, "ci")),
            ("jetson-orin", ("host", "devicetree", "compatible")),
        ],
    )
    def test_a_value_of_the_wrong_kind_is_named(
        self, profile: str, path: tuple[str | int, ...], tmp_path: Path
    ) -> None:
        raw = json.loads(json.dumps(profiles.load(profile).raw))
        at = raw
        if path[0] == "pci":
            at = next(one for one in raw["pci"] if "vendor_vfio" in one)
            path = path[2:]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = "x"
        file = tmp_path / "p.json"
        file.write_text(json.dumps(raw))
        done = virtgpu("--host", f"sim:{file}", "gpu", "list")
        assert done.code == 3, done.err
        assert "p.json" in done.err

    def test_a_log_that_cannot_be_written_is_said(self) -> None:
        words = ("sim", "run", "a40x2-mdev-vf", "--log", "/nonexistent/x", "--no-libvirtd")
        done = virtgpu(*words, "--", "true")
        assert done.code == 9
        if "/dev/fuse" not in done.err:
            assert "log '/nonexistent/x' cannot be written" in done.err


@pytest.mark.parametrize("columns", ["", "0", "40", "60", "78", "200", "x", "-5", "٣"])
def test_the_help_is_as_wide_as_click_would_make_it(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import click

    from virtgpu.cli.app import cli

    monkeypatch.setenv("COLUMNS", columns)
    ours = cli.make_context("virtgpu", ["gpu"])
    plain = click.Context(cli, info_name="virtgpu")
    assert type(ours.make_formatter()) is not type(plain.make_formatter())
    assert ours.make_formatter().width == plain.make_formatter().width
