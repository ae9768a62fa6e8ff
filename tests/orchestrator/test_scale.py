"""What large runs rest on: plans written by the database, tables written part by part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import select

from llm_elicit.comparisons.table import Comparisons
from llm_elicit.orchestrator import judgments
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import reading
from llm_elicit.orchestrator.journal.schema import questions
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.judgments import write_judgments
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.planning.pairs import Plan, Query
from orchestrator.conftest import EXPERT
from orchestrator.running import campaign, plan_of, run, table


def _rows(location: JournalLocation, judge: str) -> list[Query]:
    c = questions.c
    wanted = select(c.pair, c.form, c.replicate).where(c.judge == judge).order_by(c.id)
    with reading(location) as db:
        return [Query(*row) for row in db.execute(wanted)]


def _prepare(location: JournalLocation, plan: Plan) -> None:
    journal = Journal(location, {"fingerprint": "x"})
    journal.prepare(["expert", "other"], plan)
    journal.close()


def test_the_rows_of_a_plan_are_its_queries_in_their_order(location: JournalLocation) -> None:
    """Two judges with a round of their own each, a round to come between them, replicates."""
    study = campaign([EXPERT], pairs=12, design={"pairs": 12, "replicates": 3})
    whole = plan_of(study)
    own = {"expert": (4, 5), "other": (8, 9, 10, 11)}
    later = whole.a.copy()
    later[6:8] = float("nan")
    first = replace(whole, a=later, fixed=4, unshared=own)
    _prepare(location, first)
    assert first.spans("other") == [range(4), range(8, 12)]
    for judge in ("expert", "other"):
        assert _rows(location, judge) == list(first.of(judge))
    assert len(_rows(location, "expert")) == 6 * 2 * 3


def test_a_plan_that_grew_adds_what_is_new_and_direct_questions(location: JournalLocation) -> None:
    short, long = (campaign([EXPERT], pairs=n, direct={"samples": 3}) for n in (5, 9))
    _prepare(location, plan_of(short))
    before = _rows(location, "expert")
    _prepare(location, plan_of(long))
    rows = _rows(location, "expert")
    assert rows[: len(before)] == before
    assert set(rows) == set(plan_of(long).of("expert"))
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("at_once", [7, 50_000])
def test_a_table_written_in_parts_is_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(judgments, "ROWS_PER_PART", at_once)
    study = campaign([EXPERT], pairs=12)
    folder = tmp_path / "run"
    run(study, folder)
    whole = table(study, folder)
    frame = whole.frame
    frame.to_parquet(tmp_path / "whole.parquet", index=False)
    for ending in ("jsonl", "csv"):
        whole.write(tmp_path / f"whole.{ending}")
    for ending in ("parquet", "jsonl", "csv"):
        path = tmp_path / f"parts.{ending}"
        write_judgments(Study(study, study.load_space(), plan_of(study), folder), path)
        if ending == "parquet":
            pd.testing.assert_frame_equal(Comparisons.read(path).frame, frame, check_exact=True)
        if ending != "parquet" or at_once > len(frame):
            assert path.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_a_table_of_no_rows_has_its_columns(tmp_path: Path) -> None:
    study = campaign([EXPERT])
    run(study, tmp_path / "run")
    empty = Comparisons(table(study, tmp_path / "run").frame.iloc[:0], study.load_space().names)
    for ending in ("parquet", "csv"):
        path = empty.write(tmp_path / f"empty.{ending}")
        assert list(Comparisons.read(path).frame.columns) == list(empty.frame.columns)
