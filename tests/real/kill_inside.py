"""Runs on the mounted machine: python -m tests.real.kill_inside MAKE TAKE REQUEST > cells as JSON.

For every step of MAKE (create or define) and of TAKE (destroy or undefine) and for both moments: a
process dies there by SIGKILL, recovery runs twice, and the machine is looked at.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from tests.real.dying import NAME
from tests.real.inside import snapshot
from virtgpu.api import GuestShape, HostHandle, connect
from virtgpu.apply import journal
from virtgpu.model.plan import Plan
from virtgpu.model.slice import SliceState

SHAPE = GuestShape(memory_mib=64, vcpus=1)


def plan_of(host: HostHandle, verb: str, request: str) -> Plan:
    if verb == "create":
        return host.plan(request, guest=NAME)
    if verb == "define":
        return host.plan_define(NAME, [request], SHAPE)
    if verb == "undefine":
        return host.plan_undefine(NAME)
    return host.plan_destroy([one.id for one in host.slices() if one.guest == NAME])


def make(host: HostHandle, verb: str, request: str) -> None:
    if verb == "define":
        host.define(NAME, [request], SHAPE)
    else:
        host.create(request, guest=NAME)


def undo(host: HostHandle, verb: str) -> None:
    if verb == "define":
        host.undefine(NAME)
    else:
        host.destroy([one.id for one in host.slices() if one.guest == NAME])


def ours(host: HostHandle) -> list[str]:
    return [one.id for one in host.slices() if one.state is not SliceState.FOREIGN]


def guests(host: HostHandle, verb: str) -> list[str]:
    return [one.name for one in host.guests()] if verb in ("define", "undefine") else []


def die(verb: str, request: str, number: int, moment: str) -> None:
    words = [sys.executable, "-m", "tests.real.dying", verb, request, str(number), moment]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stderr)


def settle(host: HostHandle) -> list[str]:
    report = host.recover()
    assert report.is_clean, report.sentences
    assert host.recover().journals == (), "twice is not the same as once"
    assert journal.files(host.door.state_dir) == []
    return [one.outcome for one in report.journals]


def making(host: HostHandle, verb: str, request: str) -> list[dict[str, Any]]:
    cells = []
    before = snapshot()
    steps = [type(one).__name__ for one in plan_of(host, verb, request).steps]
    for number, kind in enumerate(steps, 1):
        for moment in ("before", "after"):
            die(verb, request, number, moment)
            outcome = settle(host)
            # Killed after the last step was done: only its journal was unfinished.
            assert snapshot() == before, (kind, moment, snapshot(), before)
            assert ours(host) == []
            assert guests(host, verb) == []
            cells.append({"verb": verb, "step": kind, "moment": moment, "outcome": outcome})
    return cells


def taking(host: HostHandle, verbs: tuple[str, str], request: str) -> list[dict[str, Any]]:
    make_verb, verb = verbs
    cells = []
    make(host, make_verb, request)
    steps = [type(one).__name__ for one in plan_of(host, verb, request).steps]
    undo(host, make_verb)
    empty = snapshot()
    for number, kind in enumerate(steps, 1):
        for moment in ("before", "after"):
            make(host, make_verb, request)
            die(verb, request, number, moment)
            outcome = settle(host)
            assert ours(host) == []
            assert guests(host, verb) == []
            assert snapshot() == empty, (kind, moment)
            cells.append({"verb": verb, "step": kind, "moment": moment, "outcome": outcome})
    return cells


def main(make_verb: str, take_verb: str, request: str) -> None:
    host = connect("local", connect_uri="qemu:///system")
    cells = making(host, make_verb, request) + taking(host, (make_verb, take_verb), request)
    print(json.dumps(cells))


if __name__ == "__main__":
    main(*sys.argv[1:4])
