"""Every write of making and of taking, refused and cut off, once and twice in a row, recovery cut
off as well: afterwards the machine is as it was, or as it was to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.scenarios import IDS, SCENARIOS, Scenario
from tests.support.trials import Trials

pytestmark = pytest.mark.long

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # What survives a loss of power is not asked here.
    monkeypatch.setattr(os, "fsync", lambda _: None)


def say(capsys: pytest.CaptureFixture[str], trials: Trials, verb: str) -> None:
    assert trials.count or not trials.writes
    with capsys.disabled():
        print(f"\n{trials.scenario.profile} {verb}: {trials.count} trials, no fault")


@every_scenario
def test_making(scenario: Scenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir(mode=0o700)
    trials = Trials(
        scenario, prepared, tmp_path, lambda host: host.create(scenario.request, guest="g1")
    )
    trials.all()
    say(capsys, trials, "create")


@every_scenario
def test_taking(scenario: Scenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = tmp_path / "prepared"
    made = hosts.handle(scenario.profile, prepared).create(scenario.request, guest="g1")
    ids = [one.id for one in made.slices]
    trials = Trials(scenario, prepared, tmp_path, lambda host: host.destroy(ids))
    trials.all()
    say(capsys, trials, "destroy")
