"""`python -m virtgpu.cli`: the same as the command `virtgpu`."""

from virtgpu.cli import main

main()
