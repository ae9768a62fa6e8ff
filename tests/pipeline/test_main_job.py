"""The main job on the real small model: asked, killed, resumed, reported."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from llm_elicit.cli.main import app
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.run_folder import Run

CAMPAIGN = """
name: tiny-penguins
space: two.yaml
design: {pairs: 3}
judges:
  # One thread an engine: where cores are busy, threads of one engine mostly wait for each other.
  - {name: smollm2, backend: local, model: smollm2, concurrency: 2}
  - {name: table-expert, backend: simulated}
fit: {method: utility, samples: 100}
"""
QUESTIONS = 6
DATASETS = Path(__file__).parents[2] / "datasets"


def write_space(folder: Path) -> None:
    """Write the penguins' space with two features: three pairs say next to nothing of more."""
    space = yaml.safe_load((DATASETS / "penguins.yaml").read_text())
    space["features"] = space["features"][-2:]
    (folder / "two.yaml").write_text(yaml.safe_dump(space))
    shutil.copy(DATASETS / space["table"]["file"], folder)


def answered(folder: Path) -> dict[tuple[int, str], str]:
    """(pair, order) of the local model's answered questions, with the time of the answer."""
    table = folder / "runs" / "tiny-penguins" / "comparisons.parquet"
    frame = pd.read_parquet(table)
    frame = frame[frame["judge"] == "smollm2"]
    return {(row.pair, row.order): row.asked_at for row in frame.itertuples()}


def done_in_journal(folder: Path) -> int:
    path = folder / "runs" / "tiny-penguins" / "journal.sqlite"
    if not path.is_file():
        return 0
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
            query = "SELECT count(*) FROM questions WHERE judge = 'smollm2' AND state = 'done'"
            return int(journal.execute(query).fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # the file is there, its tables are not yet


@pytest.mark.local_model
@pytest.mark.timeout(1000)  # a real model, which takes its time on a busy machine
def test_killed_in_the_middle_and_run_again_asks_nothing_twice(tmp_path, monkeypatch, quick_fits):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CAMPAIGN)
    write_space(tmp_path)
    first = subprocess.Popen(
        [sys.executable, "-m", "llm_elicit", "run", "c.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 400
    while not done_in_journal(tmp_path):
        assert first.poll() is None, first.stdout.read()
        assert time.monotonic() < deadline, "no answers within minutes"
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    kept = done_in_journal(tmp_path)
    assert 1 <= kept < QUESTIONS

    # The stage alone reads what the killed process left.
    stages.export(Run.open(tmp_path / "runs" / "tiny-penguins"), tmp_path / "early.csv")
    before = pd.read_csv(tmp_path / "early.csv").query("judge == 'smollm2'")
    assert len(before) == kept

    second = CliRunner().invoke(app, ["run", "c.yaml"])
    assert second.exit_code == 0, second.output
    after = answered(tmp_path)
    assert len(after) == QUESTIONS
    for row in before.itertuples():
        assert after[(row.pair, row.order)] == row.asked_at  # the very answer, not a new one
    assert (tmp_path / "runs" / "tiny-penguins" / "report.html").stat().st_size > 50_000
    assert "smollm2: " in second.stdout
    assert "table-expert: " in second.stdout
