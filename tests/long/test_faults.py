"""Every write of making and of taking, refused and cut off, once and twice in a row, recovery cut
off as well: afterwards the machine is as it was, or as it was to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.scenarios import IDS, SCENARIOS, Scenario
from tests.support.trials import Act, InProcess, Trials

pytestmark = pytest.mark.long

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # What survives a loss of power is not asked here.
    monkeypatch.setattr(os, "fsync", lambda _: None)


def run(
    scenario: Scenario, folder: Path, act: Act, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials(InProcess(scenario.profile, folder / "prepared", folder / "trial"), act)
    trials.twice()
    assert trials.count or not trials.writes
    with capsys.disabled():
        print(
            f"\n{scenario.profile} {verb} {scenario.request}: {trials.count} trials,"
            f" {trials.cut_recoveries} with recovery cut off, no fault"
        )


@every_scenario
def test_making(scenario: Scenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prepared").mkdir(mode=0o700)
    run(
        scenario,
        tmp_path,
        lambda host: host.create(scenario.request, guest="g1"),
        "create",
        capsys,
    )


@every_scenario
def test_taking(scenario: Scenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = hosts.handle(scenario.profile, tmp_path / "prepared").create(
        scenario.request, guest="g1"
    )
    ids = [one.id for one in made.slices]
    run(scenario, tmp_path, lambda host: host.destroy(ids), "destroy", capsys)
