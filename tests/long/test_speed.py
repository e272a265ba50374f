"""The speeds that are promised, measured by the scripts in bench/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.long
@pytest.mark.parametrize("name", ["domain_xml", "inventory"])
def test_a_promised_speed_is_kept(name: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCH / f"{name}.py"], capture_output=True, text=True, timeout=600
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
