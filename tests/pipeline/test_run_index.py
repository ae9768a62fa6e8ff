"""A list of 80 runs: by pages, whatever lies in their folders, and never of yesterday."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.journal.control import write_control
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import run_index
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run, run_folders
from llm_elicit.pipeline.run_index import Labels, ListedRun, RunIndex, RunQuery
from llm_elicit.pipeline.snapshot import RunSnapshot, stored_snapshot
from llm_elicit.pipeline.stages import ask, plan, plan_grid
from llm_elicit.service.server import create_app
from llm_elicit.service.settings import ServerSettings

EXPERT = {"name": "expert", "backend": "simulated", "belief": "uniform"}
COUNT = 80


def campaign(folder: Path, name: str, **more: object) -> Campaign:
    small = {"space": "penguins_kinds", "design": {"pairs": 6}, "judges": [EXPERT]}
    return Campaign.model_validate({"name": name, "runs": str(folder), **small, **more})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with answers, among them old and odd ones; nothing was changed for seconds."""
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
    time.sleep(run_index._SETTLED + 0.2)
    return folder


@pytest.fixture(scope="module")
def kept(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of services that ran before."""
    path = tmp_path_factory.mktemp("kept") / "runs.sqlite"
    RunIndex(runs, path).sweep()
    return path


ALL = RunQuery(sort="name", limit=10_000)


def listed(index: RunIndex, query: RunQuery = ALL) -> dict[str, ListedRun]:
    """The runs of a page by name."""
    return {run.name: run for run in index.page(query).runs}


def states_of(index: RunIndex) -> dict[str, str]:
    """The states by name."""
    return {name: run.state for name, run in listed(index).items()}


def test_runs_are_read_once_and_not_again_after_a_restart(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = states_of(RunIndex(runs, tmp_path / "kept"))
    assert [name for name in states if name.startswith("run-")] == [
        f"run-{number:03d}" for number in range(COUNT)
    ]
    assert {states[f"run-{number:03d}"] for number in range(COUNT)} == {"done"}
    assert states["planned"] == states["direct"] == "planned"
    assert states["empty"] == "planned"
    empty = Run.open(runs / "empty")  # as one whose journal was begun just now
    assert (empty.answered, empty.measured_tokens) == ({}, {})
    for name in ("broken", "foreign", "huge", "deep", "damaged"):
        assert states[name] == "unreadable"
    assert not {"half", "grid"} & states.keys()
    assert sum(name.startswith("grid") for name in states) == 2
    again = RunIndex(runs, tmp_path / "kept")  # another start
    monkeypatch.setattr(run_index, "read_snapshot", _refused(run_index.read_snapshot))
    assert states_of(again) == states
    assert again.snapshot("run-000") is not None


def test_what_runs_have_spent_is_read_once_and_again_after_a_change(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, place = tmp_path / "runs", tmp_path / "index"
    for name in ("first", "second"):
        shutil.copytree(runs / "run-000", folder / name)
        _spend(folder / name, 0.25)
    monkeypatch.setattr(run_index, "_SETTLED", 0.0)
    assert RunIndex(folder, place).spent() == (0.5, [])
    read = list[str]()
    monkeypatch.setattr(run_index, "spent_in", _noting(run_index.spent_in, read))
    assert RunIndex(folder, place).spent() == (0.5, [])  # another start
    assert read == []
    _spend(folder / "second", 0.75)
    assert RunIndex(folder, place).spent() == (1.0, [])
    assert read == ["second"]
    # One that cannot be read any more counts as it did, and is named; so is one that never could.
    for name in ("second", "third"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / CAMPAIGN).write_text("name: [")
    for _ in range(2):
        assert RunIndex(folder, place).spent() == (1.0, ["second", "third"])
    assert run_index.spent_by(run_folders(folder)) == (0.25, ["second", "third"])


def _spend(folder: Path, usd: float) -> None:
    with sqlite3.connect(folder / JOURNAL) as db:
        db.execute("UPDATE workers SET spent = ?", (usd,))


def _noting(read, names):  # type: ignore[no-untyped-def]
    """Reads what runs have spent, and notes their names."""

    def noted(location):  # type: ignore[no-untyped-def]
        names.append(location.folder.name)
        return read(location)

    return noted


@pytest.mark.parametrize("path", ["/api/v1/campaigns", "/"])
def test_a_request_has_one_page(runs: Path, tmp_path: Path, path: str) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"run-{number:03d}").symlink_to(runs / f"run-{number:03d}")
    app = create_app(ServerSettings.model_validate({"runs": folder}))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.text.count('href="/campaigns/run-' if path == "/" else '"name":"run-') == 50


def _refused(read):  # type: ignore[no-untyped-def]
    """Reads the snapshots of runs that may still change, and no others."""

    def few(folder, *more):  # type: ignore[no-untyped-def]
        assert not folder.name.startswith("run-"), folder
        return read(folder, *more)

    return few


def test_one_that_cannot_be_read_says_why(runs: Path, kept: Path) -> None:
    why = {name: run.problems for name, run in listed(RunIndex(runs, kept)).items()}
    assert "not valid YAML" in why["broken"][0]
    assert "name: Field required" in why["foreign"][0]
    assert "too many for a settings file" in why["huge"][0]
    assert "nested too deeply; use fewer levels" in why["deep"][0]
    assert "damaged" in why["damaged"][0] or "not a database" in why["damaged"][0]


def test_the_list_says_what_each_run_says_itself(runs: Path, kept: Path) -> None:
    found = listed(RunIndex(runs, kept))
    for name in ("run-000", "run-001", "planned", "direct"):
        said = found[name].model_dump(exclude={"created", "tags", "archived"})
        snapshot = stored_snapshot(Run.open(runs / name))
        assert RunSnapshot(**said) == RunIndex(runs, kept).snapshot(name) == snapshot
    assert RunIndex(runs, kept).snapshot("damaged") is None
    assert found["direct"].judges["expert"].total == 12 + 3
    assert found["run-007"].judges["expert"].done == 12


def test_a_change_is_seen_at_once_by_every_service(runs: Path, kept: Path) -> None:
    here, there = RunIndex(runs, kept), RunIndex(runs, kept)
    assert states_of(here) == states_of(there)
    run = Run.open(runs / "run-002")
    for state in ("failed", "done"):
        write_control(run.location, state=state)
        for index in (here, there, RunIndex(runs, kept)):
            assert states_of(index)["run-002"] == state
    shutil.rmtree(runs / "run-003")
    assert "run-003" not in states_of(here)
    assert "run-003" not in states_of(RunIndex(runs, kept))
    shutil.copytree(runs / "run-004", runs / "new")
    assert states_of(there)["new"] == "done"
    at_work = stored_snapshot(Run.open(runs / "new")).model_copy(update={"state": "running"})
    page = here.page(RunQuery(state="running"), {"new": at_work})
    assert [run.name for run in page.runs] == ["new"]
    shutil.rmtree(runs / "new")


def test_a_page_is_searched_sorted_and_counted_by_the_index_alone(runs: Path, kept: Path) -> None:
    index = RunIndex(runs, kept)
    Labels(tags=("Pilot", "v2"), archived=False).write(runs / "run-010")
    Labels(archived=True).write(runs / "run-011")
    for name in ("run-010", "run-011"):
        index.refresh(name)
    assert list(listed(index, RunQuery("RUN pilot"))) == ["run-010"]
    assert list(listed(index, RunQuery(tag="pilot"))) == ["run-010"]
    assert list(listed(index, RunQuery(archived=True))) == ["run-011"]
    assert set(listed(index, RunQuery(state="unreadable"))) == {
        "broken", "foreign", "huge", "deep", "damaged",
    }  # fmt: skip
    page = index.page(RunQuery("run-01", sort="name", offset=2, limit=3))
    assert [run.name for run in page.runs] == ["run-013", "run-014", "run-015"]
    assert (page.total, page.states, page.unread) == (9, {"done": 9}, 0)
    assert page.tags == {"pilot": 1, "v2": 1}
    day = listed(index)["run-000"].created[:10]
    assert index.page(RunQuery("run-0", since=day, until=day)).total == 78
    assert index.page(RunQuery(until="2020-01-01")).total == 0
    Labels().write(runs / "run-011")
    # Whatever the order, only the small index is read, and the snapshots of the page's runs.
    for sort in ("active", "created", "updated", "name", "cost"):
        statement, values = RunQuery("run", tag="x", sort=sort).statement
        plan = [row[3] for row in index._db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        scans = [step for step in plan if step.startswith(("SCAN", "SEARCH"))]
        assert scans, plan
        assert all("COVERING INDEX" in step or "name=?" in step for step in scans), plan


def test_runs_that_have_not_been_read_are_counted(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of many new runs does not wait for them: it reads those that it shows."""
    index = RunIndex(runs, tmp_path / "new.sqlite")
    page = index.page(RunQuery("run-0", sort="name", limit=5))
    assert [run.state for run in page.runs] == ["done"] * 5
    assert page.unread == page.total - 5
    unfinished = {path.name for path in index.sweep()}
    assert unfinished == {"planned", "direct", "empty"} | {
        name for name in listed(index) if name.startswith("grid")
    }
    page = index.page(RunQuery("run-0"))
    assert (page.unread, page.states) == (0, {"done": page.total})
    monkeypatch.setattr(run_index, "read_snapshot", None)  # a later sweep reads none of them again
    index.sweep()


def test_a_damaged_index_is_made_again(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(b"no database" * 500)
    assert len(states_of(RunIndex(runs, path))) > 70


def test_a_folder_that_cannot_be_written_is_no_obstacle(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    index = RunIndex(runs, tmp_path / "kept")
    assert states_of(index) == states_of(index)
