"""A list of 200 runs: soon there, whatever lies in their folders, and never of yesterday."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.journal.control import write_control
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import snapshot
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run
from llm_elicit.pipeline.snapshot import RunIndex, stored_snapshot
from llm_elicit.pipeline.stages import ask, plan, plan_grid
from llm_elicit.service.server import create_app
from llm_elicit.service.settings import ServerSettings

EXPERT = {"name": "expert", "backend": "simulated", "belief": "uniform"}
COUNT = 200


def campaign(folder: Path, name: str, **more: object) -> Campaign:
    small = {"space": "penguins_kinds", "design": {"pairs": 6}, "judges": [EXPERT]}
    return Campaign.model_validate({"name": name, "runs": str(folder), **small, **more})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 runs with answers, among them old and odd ones; nothing was changed for seconds."""
    folder = tmp_path_factory.mktemp("many")
    first = plan(campaign(folder, "run-000"))
    asyncio.run(ask(first, progress=Silent()))
    for number in range(1, COUNT):
        shutil.copytree(first.folder, folder / f"run-{number:03d}")
    plan(campaign(folder, "planned"))
    plan(campaign(folder, "direct", direct={"samples": 3}))
    grid = {"templates": ["v1/zero-shot", "v1/few-shot"]}
    plan_grid(campaign(folder, "grid", grid=grid))
    for name, text in {
        "broken": "name: [",
        "foreign": "services: {web: {image: nginx}}",
        "huge": "a: " + "x" * 6_000_000,
        "deep": "a: " + "[" * 50_000,
    }.items():
        (folder / name).mkdir()
        (folder / name / CAMPAIGN).write_text(text)
    (folder / "half").mkdir()  # not yet a run
    shutil.copytree(first.folder, folder / "damaged")
    (folder / "damaged" / JOURNAL).write_bytes(b"no database" * 500)
    shutil.copytree(first.folder, folder / "empty")
    (folder / "empty" / JOURNAL).write_bytes(b"")
    time.sleep(snapshot._SETTLED + 0.2)
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where services that ran before keep what they know."""
    return tmp_path_factory.mktemp("kept")


def timed(index: RunIndex) -> tuple[dict[str, str], float]:
    """The states by name, and the seconds of this process's processor."""
    began = time.process_time()
    found = index.snapshots()
    return {run.name: run.state for run in found}, time.process_time() - began


def test_200_runs_are_listed_soon_and_again_at_once(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, cold = timed(RunIndex(runs, tmp_path / "kept"))
    assert cold < 2.5  # 0.4 s where nothing else is at work
    assert [name for name in states if name.startswith("run-")] == [
        f"run-{number:03d}" for number in range(COUNT)
    ]
    assert {states[f"run-{number:03d}"] for number in range(COUNT)} == {"done"}
    assert states["planned"] == states["direct"] == "planned"
    assert states["empty"] == "planned"
    for name in ("broken", "foreign", "huge", "deep", "damaged"):
        assert states[name] == "unreadable"
    assert not {"half", "grid"} & states.keys()
    assert sum(name.startswith("grid") for name in states) == 2
    again = RunIndex(runs, tmp_path / "kept")  # another start
    monkeypatch.setattr(snapshot, "read_snapshot", _refused(snapshot.read_snapshot))
    restarted, after = timed(again)
    assert restarted == states
    assert after < 0.5
    assert timed(again)[1] < 0.25


@pytest.mark.parametrize("path", ["/api/campaigns", "/"])
def test_the_first_request_for_200_runs_is_answered_soon(
    runs: Path, tmp_path: Path, path: str
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"run-{number:03d}").symlink_to(runs / f"run-{number:03d}")
    app = create_app(ServerSettings.model_validate({"runs": folder}))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        began = time.process_time()
        answer = client.get(path)
        # On an idle machine 0.1 s, and 0.25 s with the page's examples.
        assert time.process_time() - began < 0.5
        assert answer.status_code == 200
        assert answer.text.count("run-") >= COUNT


def _refused(read):  # type: ignore[no-untyped-def]
    """Reads the snapshots of runs that may still change, and no others."""

    def few(folder, *more):  # type: ignore[no-untyped-def]
        assert not folder.name.startswith("run-"), folder
        return read(folder, *more)

    return few


def test_one_that_cannot_be_read_says_why(runs: Path, kept: Path) -> None:
    why = {run.name: run.problems for run in RunIndex(runs, kept).snapshots()}
    assert "not valid YAML" in why["broken"][0]
    assert "name: Field required" in why["foreign"][0]
    assert "too many for a settings file" in why["huge"][0]
    assert "nested too deeply; use fewer levels" in why["deep"][0]
    assert "damaged" in why["damaged"][0] or "not a database" in why["damaged"][0]


def test_the_list_says_what_each_run_says_itself(runs: Path, kept: Path) -> None:
    found = {run.name: run for run in RunIndex(runs, kept).snapshots()}
    for name in ("run-000", "run-001", "planned", "direct"):
        assert found[name] == stored_snapshot(Run.open(runs / name))
    assert found["direct"].judges["expert"].total == 12 + 3
    assert found["run-007"].judges["expert"].done == 12


def test_a_change_is_seen_at_once_by_every_service(runs: Path, kept: Path) -> None:
    here, there = RunIndex(runs, kept), RunIndex(runs, kept)
    assert timed(here)[0] == timed(there)[0]
    run = Run.open(runs / "run-002")
    for state in ("failed", "done"):
        write_control(run.location, state=state)
        for index in (here, there, RunIndex(runs, kept)):
            assert timed(index)[0]["run-002"] == state
    shutil.rmtree(runs / "run-003")
    assert "run-003" not in timed(here)[0]
    assert "run-003" not in timed(RunIndex(runs, kept))[0]
    assert "run-004" not in timed_without(there, "run-004")
    assert "run-004" in timed(there)[0]


def timed_without(index: RunIndex, name: str) -> set[str]:
    return {run.name for run in index.snapshots({name})}


def test_a_folder_that_cannot_be_written_is_no_obstacle(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    index = RunIndex(runs, tmp_path / "kept")
    assert timed(index)[0] == timed(index)[0]
