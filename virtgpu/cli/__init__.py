"""The command `virtgpu`: a client of `virtgpu.api` and of nothing else."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    if sys.argv[1:] == ["--version"]:
        # Before anything is imported: scripts ask for it often.
        from virtgpu import __version__

        print(f"virtgpu {__version__}")  # noqa: T201
        sys.exit(0)
    from virtgpu.cli.entry import run

    sys.exit(run(sys.argv[1:]))
