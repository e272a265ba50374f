"""Running things on the mounted simulated machine, from tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run(
    profile: str, *command: str, state: Path, options: tuple[str, ...] = (), timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`virtgpu sim run PROFILE -- COMMAND` with a state of its own."""
    words = [sys.executable, "-m", "virtgpu.cli", "sim", "run", profile, *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VIRTGPU_")}
    environment |= {"VIRTGPU_STATE_DIR": str(state), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*words, "--", *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=timeout,
        env=environment,
        check=False,
    )


def virtgpu(*words: str) -> str:
    """A virtgpu command line for a shell inside."""
    return " ".join([sys.executable, "-m", "virtgpu.cli", *words])
