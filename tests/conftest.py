"""Options and rules of the whole suite."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.golden import Golden

GOLDEN = Path(__file__).parent / "golden"
_MARK = "TESTS_OF_VIRTGPU"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate-golden", action="store_true", help="write the golden files anew; then review"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with a file of tests/golden."""
    return Golden(GOLDEN, regenerate=bool(request.config.getoption("--regenerate-golden")))


@pytest.fixture(autouse=True)
def _no_state_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees or makes state outside its own folder, whatever the environment says."""
    for name in list(os.environ):
        if name.startswith("VIRTGPU_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VIRTGPU_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    """A write that did not come back has left a child: whoever started it ends it."""
    yield
    for name in ("virtgpu.sim.waiting", "virtgpu.host.children"):
        left = getattr(sys.modules.get(name), "_left", [])
        while left:
            process = left.pop()
            process.kill()
            process.wait()


@pytest.fixture(scope="session", autouse=True)
def _world_as_before() -> Iterator[None]:
    """/dev and /sys are the same after the tests: a script that missed this replaced /dev/null.
    And no process of ours outlives them."""
    before = _nodes()
    mark = f"{os.getpid()}.{time.monotonic_ns()}"
    os.environ[_MARK] = mark
    yield
    assert _nodes() == before
    deadline = time.monotonic() + 5  # one that was just told to end may need a moment
    while (left := _processes_left(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def _processes_left(mark: str) -> list[str]:
    """Living processes that inherited the mark, whoever their parent is now, and direct children
    that were given an environment of their own."""
    me, found = str(os.getpid()), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or entry.name == me:
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        is_ours = f"{_MARK}={mark}".encode() in environment or stat[1] == me
        if is_ours and stat[0] not in "ZX" and "multiprocessing" not in command:
            found.append(f"{entry.name} {command}")
    return found


def _nodes() -> dict[str, tuple[int, int, int]]:
    found = {}
    for name in ("/dev/null", "/dev/zero", "/dev/fuse", "/dev/vfio", "/sys/bus/pci"):
        path = Path(name)
        if path.exists():
            stat = path.stat()
            found[name] = (stat.st_mode, stat.st_rdev, stat.st_ino)
    return found


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With CI=true a skip is a failure: a part that could run and did not proves nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if skipped and os.environ.get("CI") == "true" and not hasattr(session.config, "workerinput"):
        reporter.write_line(f"{len(skipped)} skipped, and CI=true: that is a failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
