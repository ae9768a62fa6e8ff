"""Damaged files of a finished run: named, remade, or refused; nothing is lost in silence."""

import itertools
import json
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fakes.spaces import write_two_features
from hypothesis import strategies as st
from typer.testing import CliRunner

from fuzz.damage import DAMAGES, DEAR, commands
from fuzz.oracle import Outcome, command, fuzz
from llm_elicit.cli import main as cli

CAMPAIGN = """
name: small
space: two.yaml
design: {pairs: 24}
judges: [{name: expert, backend: simulated}]
fit: {method: utility, samples: 100}
"""
FILES = ("journal.sqlite", "journal.sqlite", "cache.sqlite", "comparisons.parquet", "plan.parquet",
         "campaign.yaml", "audit.json", "log.jsonl")  # fmt: skip
BELIEF = ("samples.parquet", "draws.parquet", "bands.json", "belief.json", "belief.safetensors",
          "inputs.sha256", "powers.parquet", "power.json")  # fmt: skip
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, quick_fits: None) -> Path:
    """A folder with a campaign and its finished run; nothing in it is opened any more."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.yaml").write_text(CAMPAIGN)
    write_two_features(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(cli.app, ["run", "small.yaml"])
    assert result.exit_code == 0, result.output
    return folder


def _file(run: Path, name: str) -> Path:
    if name == "cache.sqlite":
        return run.parent / name
    return run / "beliefs" / "expert" / "utility" / name if name in BELIEF else run / name


def test_damage(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _answers(finished)
    audited = _numbers(finished)

    def tried(value: tuple[str, Any, int]) -> Outcome:
        name, damage, seed = value
        rng = random.Random(seed)
        folder = tmp_path / f"{next(NUMBERS)}"
        shutil.copytree(finished, folder)
        path = _file(folder / "runs" / "small", name)
        if not path.is_file():
            return Outcome("success", "not there")
        damage(path, rng)
        monkeypatch.chdir(folder)
        way = rng.choice(commands(path))
        outcome = command(*way)
        broken = f"{name} {damage.__name__} seed {seed}, {' '.join(way)}"
        if outcome.kind == "failure":
            outcome = Outcome("failure", f"{outcome.said} [{broken}]")
        elif outcome.kind == "success" and name not in outcome.said:
            # Without a word about the file, nothing may differ.
            if way[0] in ("ask", "export", "run"):
                outcome = _kept(folder, whole, broken)
            if way in (DEAR[1], DEAR[3]) and _numbers(folder) != audited:
                said = "other numbers in the audit, without a word"
                outcome = Outcome("failure", f"{said} [{broken}]")
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(folder)
        return outcome

    damages = st.tuples(
        st.sampled_from(FILES + BELIEF), st.sampled_from(DAMAGES), st.integers(0, 2**32)
    )
    fuzz("damage", damages, tried)


def _answers(folder: Path) -> list[tuple[Any, ...]]:
    """What the journal holds."""
    with sqlite3.connect(folder / "runs" / "small" / "journal.sqlite") as db:
        return db.execute(
            "SELECT question, reply, asked_at FROM answers ORDER BY question"
        ).fetchall()


def _kept(folder: Path, whole: list[tuple[Any, ...]], broken: str) -> Outcome:
    """After success every answer that was there is there, and the table is made of them."""
    try:
        now = _answers(folder)
    except sqlite3.Error as error:
        return Outcome("failure", f"success over a journal with {error} [{broken}]")
    if now != whole:
        return Outcome("failure", f"{sum(a not in now for a in whole)} answers differ [{broken}]")
    for table in (folder / "new.csv", folder / "runs" / "small" / "comparisons.parquet"):
        if table.is_file():
            rows = len(pd.read_csv(table) if table.suffix == ".csv" else pd.read_parquet(table))
            if rows != len(whole):
                return Outcome("failure", f"{rows} rows of {len(whole)} [{broken}]")
    return Outcome("success")


def _numbers(folder: Path) -> str:
    """The audit, as text."""
    audit = json.loads((folder / "runs" / "small" / "audit.json").read_text("utf-8"))
    return json.dumps(audit, sort_keys=True)
