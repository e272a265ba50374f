"""python -m tests.real.dying VERB REQUEST STEP MOMENT: apply, and die by SIGKILL at that step.

MOMENT is `before` (journalled, not done) or `after` (done, not journalled).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from virtgpu.api import GuestShape, connect
from virtgpu.apply import executor

NAME = "mortal"


def main(verb: str, request: str, number: int, moment: str) -> None:
    count = 0
    real = executor.perform

    def perform(doing: Any, step: Any) -> None:
        nonlocal count
        count += 1
        if count == number and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(doing, step)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    executor.perform = perform
    host = connect("local", connect_uri="qemu:///system")
    shape = GuestShape(memory_mib=64, vcpus=1)
    if verb == "create":
        host.create(request, guest=NAME)
    elif verb == "define":
        host.define(NAME, [request], shape)
    elif verb == "undefine":
        host.undefine(NAME)
    else:
        host.destroy([one.id for one in host.slices() if one.guest == NAME])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
