"""The command line as its users meet it: output, errors, exit codes, options before and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from tests.support.command import virtgpu
from tests.support.golden import Golden
from virtgpu.cli.app import NOUNS, cli
from virtgpu.sim import profiles

A40 = ("--host", "sim:a40x2-mdev-vf")


def commands() -> list[tuple[str, click.Command]]:
    context = click.Context(cli, info_name="virtgpu")
    found: list[tuple[str, click.Command]] = []
    for noun in NOUNS:
        command = cli.get_command(context, noun)
        assert command is not None
        if isinstance(command, click.Group):
            found += [(f"{noun} {name}", one) for name, one in command.commands.items()]
        else:
            found.append((noun, command))
    return found


class TestHelp:
    def test_the_nouns_are_those_of_the_design(self) -> None:
        assert set(NOUNS) == {
            "host", "gpu", "type", "slice", "vm", "sim", "apply", "recover", "completion",
        }  # fmt: skip

    @pytest.mark.parametrize(("name", "command"), commands(), ids=[n for n, _ in commands()])
    def test_every_command_has_help_with_an_example(
        self, name: str, command: click.Command
    ) -> None:
        done = virtgpu(*name.split(), "--help")
        assert done.code == 0
        assert "Example: virtgpu " in done.out
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in ("vcpus",):
                assert option.help, option.name

    def test_the_version_is_the_packages(self) -> None:
        from virtgpu import __version__

        done = subprocess.run(
            [sys.executable, "-m", "virtgpu.cli", "--version"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == f"virtgpu {__version__}\n"

    def test_help_imports_nothing_heavy(self) -> None:
        script = (
            "import sys; sys.argv = ['virtgpu', '--help']\n"
            "from virtgpu.cli.entry import run\nrun(['--help'])\n"
            "heavy = [n for n in sys.modules if n.split('.')[0] in "
            "('lxml', 'libvirt', 'pynvml', 'rich', 'yaml', 'msgspec')]\n"
            "print(heavy, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stderr == "[]\n"


class TestOptions:
    def test_they_go_before_the_noun_and_after_the_verb(self) -> None:
        before = virtgpu(*A40, "-o", "json", "gpu", "list")
        after = virtgpu("gpu", "list", *A40, "-o", "json")
        assert before.out == after.out
        assert len(before.json["gpus"]) == 2

    def test_the_environment_is_the_weakest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VIRTGPU_HOST", "sim:pve-2xt4-mdev")
        assert virtgpu("gpu", "list", "-o", "json").json["gpus"][0]["address"] == "0000:3b:00.0"
        named = virtgpu(*A40, "gpu", "list", "-o", "json").json["gpus"][0]["address"]
        assert named == "0000:51:00.0"

    def test_every_option_has_a_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VIRTGPU_SLICE_CREATE_DRY_RUN", "1")
        done = virtgpu(*A40, "slice", "create", "A40-12Q")
        assert "1. reserve slice" in done.out
        assert virtgpu(*A40, "slice", "list", "-o", "json").out.count("foreign") == 1


class TestOutput:
    @pytest.mark.parametrize(
        ("words", "noun"),
        [
            (("gpu", "list"), "gpus"),
            (("type", "list"), "types"),
            (("slice", "list"), "slices"),
            (("sim", "list"), "profiles"),
        ],
    )
    def test_lists_are_objects_with_a_version_and_their_noun(
        self, words: tuple[str, ...], noun: str
    ) -> None:
        done = virtgpu(*A40, *words, "-o", "json")
        assert done.err == ""
        assert done.json["version"] == 1
        for item in done.json[noun]:
            assert "name" in item
            assert "id" in item or "address" in item

    def test_yaml_says_the_same_as_json(self) -> None:
        as_json = virtgpu(*A40, "gpu", "list", "-o", "json").json
        assert yaml.safe_load(virtgpu(*A40, "gpu", "list", "-o", "yaml").out) == as_json

    def test_unknown_is_a_dash_in_the_table_and_null_in_json(self) -> None:
        sim = ("--host", "sim:amd-v710")
        row = virtgpu(*sim, "gpu", "list").out.splitlines()[1]
        assert " - " in row
        gpu = virtgpu(*sim, "gpu", "list", "-o", "json").json["gpus"][0]
        assert gpu["framebuffer_mib"] is None
        assert gpu["nvml"] is None

    @pytest.mark.parametrize("profile", profiles.names())
    def test_golden_tables(self, profile: str, golden: Golden) -> None:
        sim = ("--host", f"sim:{profile}")
        text = ""
        for words in (
            ("host", "show"),
            ("gpu", "list"),
            ("type", "list", "--free"),
            ("slice", "list"),
        ):
            done = virtgpu(*sim, *words)
            assert done.code == 0, done.err
            text += f"$ virtgpu {' '.join(words)}\n{done.out}{done.err}\n"
        golden.check(f"cli/{profile}.txt", text)

    def test_golden_json(self, golden: Golden) -> None:
        golden.check("cli/gpu-show.json", virtgpu(*A40, "gpu", "show", "ca:00.0", "-o", "json").out)


class TestErrors:
    CASES = (
        (("nonsense",), 2),
        (("gpu", "show", "banana"), 2),
        (("slice", "create", "99999x A40-12Q"), 2),
        (("slice", "create", "8G"), 2),
        (("slice", "create", "2xA40-12Q@moon"), 2),
        (("--host", "moon", "gpu", "list"), 2),
        (("vm", "render", "a/b", "--gpu", "A40-12Q"), 2),
        (("--host", "sim:none-such", "gpu", "list"), 4),
        (("gpu", "show", "0000:99:00.0"), 4),
        (("slice", "create", "A40-13Q"), 4),
        (("slice", "destroy", "nonesuch"), 4),
        (("vm", "render", "a", "--gpu", "A40-12Q", "--template", "none-such"), 4),
        (("apply", "/does/not/exist"), 4),
        (("slice", "destroy", "72c97c49-a909-5423-abb7-aa45f739b15a"), 5),
        (("slice", "create", "5xA40-12Q on 0000:51:00.0"), 6),
        (("slice", "create", "A40-24Q on 0000:51:00.0"), 6),
        (("slice", "destroy", "--adopt", "72c97c49-a909-5423-abb7-aa45f739b15a"), 7),
        (("slice", "create", "gpu on 0000:51:00.0"), 7),
        (("slice", "create", "mig:1g.10gb"), 8),
        (("slice", "create", "2xA40-12Q@nvlink"), 8),
        (("--connect", "qemu+unix:///none?socket=/none", "vm", "list"), 9),
    )

    @pytest.mark.parametrize(("words", "code"), CASES, ids=[" ".join(w) for w, _ in CASES])
    def test_one_sentence_a_hint_and_the_right_code(
        self, words: tuple[str, ...], code: int
    ) -> None:
        done = virtgpu(*A40, *words) if "--host" not in words else virtgpu(*words)
        assert done.code == code, done.err
        assert done.out == ""
        lines = done.err.splitlines()
        assert lines[0].startswith("error: ")
        assert "Traceback" not in done.err
        assert len(lines) <= 2

    def test_with_json_the_error_is_json_on_stderr(self) -> None:
        done = virtgpu(*A40, "gpu", "show", "0000:99:00.0", "-o", "json")
        body = json.loads(done.err)
        assert body["version"] == 1
        assert body["error"]["kind"] == "not-found"
        assert body["error"]["exit_code"] == 4
        assert body["error"]["transient"] is False
        assert done.out == ""

    def test_a_defect_of_ours_is_a_sentence_and_a_report(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr("virtgpu.api.HostHandle.read", lambda _: 1 / 0)
        done = virtgpu(*A40, "gpu", "list")
        assert done.code == 70
        assert "ZeroDivisionError" in done.err
        (report,) = tmp_path.glob("virtgpu-report-*")
        assert "Traceback" in report.read_text()
        assert report.stat().st_mode & 0o077 == 0

    def test_a_reader_that_has_gone_is_no_error(self) -> None:
        words = [sys.executable, "-m", "virtgpu.cli", *A40, "type", "list"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 0


class TestSlices:
    def test_from_request_to_nothing_again(self) -> None:
        made = virtgpu(*A40, "slice", "create", "A40-12Q", "--for", "g1", "-o", "json").json
        (one,) = made["slices"]
        assert one["name"] == "NVIDIA A40-12Q"
        listed = virtgpu(*A40, "slice", "list", "-o", "json").json["slices"]
        assert [x["state"] for x in listed if x["id"] == one["id"]] == ["present"]
        assert virtgpu(*A40, "slice", "destroy", one["id"][:8]).code == 0
        assert one["id"] not in virtgpu(*A40, "slice", "list").out

    def test_a_saved_plan_is_applied_once(self, tmp_path: Path) -> None:
        plan = tmp_path / "plan.json"
        plan.write_text(
            virtgpu(*A40, "slice", "create", "A40-12Q", "--for", "g", "--dry-run", "-o", "json").out
        )
        assert virtgpu(*A40, "slice", "list", "-o", "json").out.count('"id"') == 1
        assert virtgpu(*A40, "apply", str(plan)).code == 0
        assert virtgpu(*A40, "apply", str(plan)).code == 7

    def test_recover_says_that_there_is_nothing(self) -> None:
        assert virtgpu(*A40, "recover").out == "nothing to recover\n"


class TestVm:
    def test_render_touches_nothing_and_prints_xml(self) -> None:
        done = virtgpu(*A40, "vm", "render", "render01", "--gpu", "A40-12Q", "--memory", "4096")
        assert done.out.startswith("<domain")
        assert "render01" in done.out
        assert virtgpu(*A40, "slice", "list", "-o", "json").out.count('"id"') == 1

    def test_render_takes_a_file_of_the_operators(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.xml"
        file.write_text(
            "<domain type='kvm'><!-- mine --><name>x</name><memory>65536</memory><os>"
            "<type machine='q35'>hvm</type></os><devices/></domain>"
        )
        done = virtgpu(*A40, "vm", "render", "a", "--gpu", "A40-12Q", "--template", str(file))
        assert "<!-- mine -->" in done.out

    def test_slices_are_not_made_for_another_machines_hypervisor(self) -> None:
        done = virtgpu("--connect", "test:///default", "vm", "define", "a", "--gpu", "gpu")
        assert done.code == 2
        assert "--no-slice" in done.err

    def test_reads_work_anywhere(self) -> None:
        done = virtgpu("--connect", "test:///default", "vm", "list", "-o", "json")
        assert [one["name"] for one in done.json["guests"]] == ["test"]


class TestSim:
    def test_a_recorded_host_gives_the_same_inventory(self, tmp_path: Path) -> None:
        for profile in ("a40x2-vendor-vfio", "pve-2xt4-mdev", "intel-flex170", "dgx-a100-8x80gb"):
            file = tmp_path / f"{profile}.json"
            assert virtgpu("--host", f"sim:{profile}", "sim", "record", str(file)).code == 0
            again = virtgpu("--host", f"sim:{file}", "gpu", "list", "-o", "json").json["gpus"]
            first = virtgpu("--host", f"sim:{profile}", "gpu", "list", "-o", "json").json["gpus"]
            for one, other in zip(first, again, strict=True):
                for field in (
                    "address",
                    "name",
                    "driver",
                    "iommu_group",
                    "numa_node",
                    "mechanisms",
                    "functions",
                    "sriov",
                ):
                    assert one[field] == other[field], (profile, field)
                assert len(one["vfs"]) == len(other["vfs"])

    def test_recording_tells_no_name(self, tmp_path: Path) -> None:
        text = virtgpu(*A40, "sim", "record", "-").out
        for secret in ("GPU-dbe42361", "1320000000000", f'"{os.uname().nodename}"'):
            assert secret not in text

    def test_reset_forgets_what_was_made(self) -> None:
        virtgpu(*A40, "slice", "create", "A40-12Q", "--for", "g1")
        assert virtgpu("sim", "reset", "a40x2-mdev-vf").code == 0
        assert "g1" not in virtgpu(*A40, "slice", "list").out

    def test_show_says_what_is_unproven(self) -> None:
        assert "unproven: " in virtgpu("sim", "show", "h100x2-mig-vgpu").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str) -> None:
    assert "_VIRTGPU_COMPLETE" in virtgpu("completion", shell).out
