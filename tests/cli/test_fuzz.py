"""Any words on the command line: one sentence and an exit code of ours, never a traceback."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.command import virtgpu
from virtgpu.sim import profiles

CODES = {0, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13}
WORDS = (
    "gpu", "list", "show", "type", "slice", "create", "destroy", "vm", "render", "sim", "apply",
    "recover", "host", "completion", "bash", "reset", "A40-12Q", "vf", "8G", "gpu on 0000:51:00.0",
    "--for", "--dry-run", "-o", "json", "table", "--gpu", "--free", "--adopt", "--memory", "4096",
    "--template", "default", "--display", "--help", "--", "-", "", "0000:51:00.0", "a40x2-mdev-vf",
)  # fmt: skip
fuzzed = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@fuzzed
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=20)), max_size=7))
def test_any_words(words: list[str]) -> None:
    if "run" in words or "\0" in "".join(words):
        return  # a shell; and no argument of a process holds a zero byte
    with tempfile.TemporaryDirectory() as folder:
        done = virtgpu("--host", "sim:amd-v710", "--state-dir", folder, *words)
    assert done.code in CODES, (words, done.err)
    assert "Traceback" not in done.out + done.err


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.binary(max_size=300),
    st.integers(0, 10_000),
    st.sampled_from(["profile", "plan", "template", "state"]),
)
def test_any_file(garbage: bytes, place: int, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.json"
        sim = ("--state-dir", f"{folder}/state", "--host", "sim:amd-v710")
        if kind == "profile":
            real = json.dumps(profiles.load("amd-v710").raw).encode()
            path.write_bytes(_mutated(real, garbage, place))
            done = virtgpu("--state-dir", f"{folder}/state", "--host", f"sim:{path}", "gpu", "list")
        elif kind == "plan":
            real = virtgpu(*sim, "slice", "create", "vf", "--dry-run", "-o", "json").out.encode()
            path.write_bytes(_mutated(real, garbage, place))
            done = virtgpu(*sim, "apply", str(path))
        elif kind == "template":
            path.write_bytes(_mutated(b"<domain><name>x</name></domain>", garbage, place))
            done = virtgpu(*sim, "vm", "render", "a", "--gpu", "vf", "--template", str(path))
        else:
            sim = (*sim[:2], "--host", "sim:intel-flex140x2-off")
            virtgpu(*sim, "slice", "create", "vf", "--for", "g")
            folder = f"{folder}/state/sim/intel-flex140x2-off"
            file = next(Path(folder).glob("kernel.json" if place % 2 else "reservations/*"))
            file.write_bytes(_mutated(file.read_bytes(), garbage, place))
            done = virtgpu(*sim, "slice", "list")
    assert done.code in CODES, done.err
    assert "Traceback" not in done.out + done.err


def _mutated(real: bytes, garbage: bytes, place: int) -> bytes:
    at = place % (len(real) + 1)
    return real[:at] + garbage + real[at + len(garbage) :]
