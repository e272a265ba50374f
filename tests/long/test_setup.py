"""The README's two commands on a bare Debian 12, in a root folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

CLONE = Path(__file__).resolve().parents[2]
# What the commands are meant to leave, or what a running system changes by itself.
OURS = ("var/lib/virtgpu-setup", "tmp", "proc", "dev", "run", "root/.cache")
PACKAGES = ("usr", "etc", "var", "bin", "sbin", "lib", "lib64")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Debian 12 with nothing but its required packages: no python3, git or gcc."""
    kept = Path(os.environ.get("VIRTGPU_SETUP_DIR", "/var/lib/virtgpu-setup")) / "bare12"
    if not (kept / ".ready").exists():
        shutil.rmtree(kept, ignore_errors=True)
        mirror = _run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Codename: bookworm"]
        ).stdout.split()
        debian = [uri for uri in mirror if uri.rstrip("/").endswith("/debian")]
        url = debian[0] if debian else "http://deb.debian.org/debian"
        _run(["debootstrap", "--variant=minbase", "bookworm", str(kept), url])
        (kept / ".ready").touch()
    root = tmp_path_factory.mktemp("debian") / "root"
    _run(["cp", "-a", str(kept), str(root)])
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain clone: what a user gets, without anything that lies beside it."""
    target = tmp_path_factory.mktemp("clone") / "virtgpu"
    _run(["git", "clone", "-q", str(CLONE), str(target)])
    return target


def _run(command: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert not check or done.returncode == 0, (
        f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done


def _inside(
    bare: Path, clone: Path, *command: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    in_root = str(clone / "scripts/in-root")
    return _run([in_root, str(bare), str(clone), *command], check=check)


def _units(root: Path) -> set[str]:
    places = (root / "etc/systemd/system").rglob("*"), (root / "etc").glob("rc?.d/*")
    return {str(path.relative_to(root)) for place in places for path in place if path.is_symlink()}


def _files(root: Path) -> set[str]:
    found = set()
    for folder, folders, files in os.walk(root):
        below = os.path.relpath(folder, root)
        folders[:] = [name for name in folders if os.path.normpath(f"{below}/{name}") not in OURS]
        found |= {os.path.normpath(f"{below}/{name}") for name in files}
    return found


@pytest.fixture(scope="module")
def first(bare: Path, clone: Path) -> dict[str, object]:
    """`scripts/try` on the bare machine, once, with the state around it."""
    before = {
        "units": _units(bare),
        "files": _files(bare),
        "mounts": Path("/proc/mounts").read_text(),
    }
    done = _inside(bare, clone, "sh", "scripts/try")
    return {"before": before, "said": done.stdout, "talk": done.stderr}


def test_try_needs_no_python_git_or_gcc(bare: Path, first: dict[str, object]) -> None:
    assert not (bare / "usr/bin/git").exists()
    assert not (bare / "usr/bin/gcc").exists()


def test_try_lists_packages_with_their_size_before_it_installs_them(
    first: dict[str, object],
) -> None:
    talk = str(first["talk"])
    assert talk.index("KiB") < talk.index("2/3 virtgpu")
    assert "additional disk space" in talk


def test_try_shows_inventory_plan_xml_libvirt_and_the_undoing(first: dict[str, object]) -> None:
    said = str(first["said"])
    for piece in (
        "0000:ca:00.0",
        "A40-12Q",
        "GPU>",
        "type='mdev'",
        "Domain 'render01' started",
        "running",
        "Domain 'render01' destroyed",
    ):
        assert piece in said, piece


def test_try_leaves_units_and_mounts_as_they_were(bare: Path, first: dict[str, object]) -> None:
    before = first["before"]
    assert isinstance(before, dict)
    assert _units(bare) == before["units"]
    assert Path("/proc/mounts").read_text() == before["mounts"]
    assert not (bare / "usr/sbin/policy-rc.d").exists()


def test_try_leaves_only_its_packages_and_its_own_folders(
    bare: Path, first: dict[str, object]
) -> None:
    before = first["before"]
    assert isinstance(before, dict)
    new = _files(bare) - before["files"]
    assert {path.split("/")[0] for path in new} <= set(PACKAGES)
    assert not [
        path for path in new if path.startswith(("var/lib/libvirt/qemu/domain", "var/lib/virtgpu/"))
    ]


def test_a_second_try_installs_nothing(bare: Path, clone: Path, first: dict[str, object]) -> None:
    again = _inside(bare, clone, "sh", "scripts/try")
    assert "all packages are there" in again.stderr
    assert "building the wheel" not in again.stderr
    assert "Domain 'render01' started" in again.stdout


def test_try_without_fuse_says_what_to_do(
    bare: Path, clone: Path, first: dict[str, object]
) -> None:
    done = _inside(bare, clone, "sh", "-c", "rm /dev/fuse; exec sh scripts/try", check=False)
    assert done.returncode == 9
    assert "/dev/fuse" in done.stderr
    assert "hint:" in done.stderr


def test_a_part_that_does_not_exist_is_a_usage_error(clone: Path) -> None:
    done = _run(["sh", str(clone / "scripts/test"), "nonsense"], check=False)
    assert done.returncode == 2
    assert "the parts are" in done.stderr


def test_try_remove_takes_the_packages_away_again(
    bare: Path, clone: Path, first: dict[str, object]
) -> None:
    _inside(bare, clone, "sh", "scripts/try", "--remove")
    before = first["before"]
    assert isinstance(before, dict)
    assert not (bare / "usr/sbin/libvirtd").exists()
    assert not (bare / "usr/bin/python3").exists()
    assert not (clone / ".venv-try").exists()
    left = {
        path for path in _files(bare) - before["files"] if not path.startswith(("var/", "etc/"))
    }
    assert left == set()
