"""Runs whose service is gone are taken over, by one of those that are left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.journal.connection import AT_WORK, RunLock
from llm_elicit.orchestrator.journal.control import begin_control, read_control, write_control
from llm_elicit.pipeline import runtime
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.run_index import RunIndex
from llm_elicit.pipeline.runtime import Recovery
from llm_elicit.pipeline.stages import plan


def _begun(folder: Path, name: str = "one", **recorded: object) -> Run:
    """Plan a run that a service has begun, and that gave its last sign of life long ago."""
    run = plan(
        Campaign.model_validate(
            {
                "name": name, "space": "penguins", "design": {"pairs": 20}, "runs": str(folder),
                "judges": [{"name": "expert", "backend": "simulated"}],
            }
        )
    )  # fmt: skip
    begin_control(run.location, **{"state": "running", "owner": "service", **recorded})
    write_control(run.location, alive=0.0)
    return run


def _taken(found: tuple[list[Run], bool]) -> tuple[list[str], bool]:
    return [run.campaign.name for run in found[0]], found[1]


@pytest.mark.parametrize("indexed", [False, True])
def test_one_of_two_services_takes_a_run_over(tmp_path: Path, indexed: bool) -> None:
    _begun(tmp_path)
    _begun(tmp_path, "command", owner="process")
    _begun(tmp_path, "ended", state="done")
    index = RunIndex(tmp_path, tmp_path / "index" / "runs.sqlite") if indexed else None
    one, other = Recovery(tmp_path, index), Recovery(tmp_path, index)
    assert _taken(one.take_over(set())) == (["one"], False)
    assert _taken(other.take_over(set())) == ([], True)
    assert _taken(one.take_over({"one"})) == ([], False)


def test_a_run_of_a_process_that_is_only_suspended_is_left_alone(tmp_path: Path) -> None:
    """It holds the lock of the run's folder, and goes on once it wakes."""
    run = _begun(tmp_path)
    with RunLock(run.folder, name=AT_WORK):
        assert _taken(Recovery(tmp_path).take_over(set())) == ([], True)
    assert _taken(Recovery(tmp_path).take_over(set())) == (["one"], False)


def test_ended_runs_are_not_read_again_until_their_journal_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _begun(tmp_path, state="done")
    found = Recovery(tmp_path)
    assert _taken(found.take_over(set())) == ([], False)
    read: list[Path] = []

    def counted(location: object) -> None:
        read.append(run.folder)

    with monkeypatch.context() as patched:
        patched.setattr(runtime, "read_control", counted)
        found.take_over(set())
    assert not read
    write_control(run.location, state="running", alive=0.0)
    assert _taken(found.take_over(set())) == (["one"], False)


def test_what_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    _begun(tmp_path)
    lost = _begun(tmp_path, "lost")
    written = (lost.folder / "campaign.yaml").read_text()
    (lost.folder / "campaign.yaml").write_text(written.replace("space: penguins", "space: none"))
    (lost.folder / "manifest.json").unlink()
    for name, text in (("empty", ""), ("other", "name: [1"), ("gone", "name: gone\nspace: none")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "campaign.yaml").write_text(text)
    assert _taken(Recovery(tmp_path).take_over(set())) == (["one"], False)
    control = read_control(lost.location)
    assert control is not None
    assert not control.at_work  # or it would read as if someone worked on it
    assert control.takeovers == 0


def test_the_process_of_a_stage_ends_with_its_parent(tmp_path: Path) -> None:
    """Otherwise two processes would fit a run whose service was killed and that was taken over."""
    run = _begun(tmp_path)
    parent = (
        "import asyncio, pathlib, sys\n"
        "from llm_elicit.pipeline.stage_process import run_stages\n"
        "async def go():\n"
        "    async for said in run_stages(pathlib.Path(sys.argv[1]), ['live'] * 1000):\n"
        "        print(said, flush=True)\n"
        "asyncio.run(go())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, str(run.folder)], stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        assert "began" in service.stdout.readline()
        service.kill()
    until = time.monotonic() + 120.0
    while _is_at_work(run.folder):
        assert time.monotonic() < until
        time.sleep(0.1)


def _is_at_work(folder: Path) -> bool:
    """Whether a process of a stage of this run lives; by Linux."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"llm_elicit.pipeline.stage_process" in words and str(folder).encode() in words:
            return True
    return False
