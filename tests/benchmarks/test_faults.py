"""The faults' rows in a short form: one of each kind, and the rules that hold for every row."""

from pathlib import Path

import pytest

from benchmarks.faults.process_rows import PROCESS_ROWS
from benchmarks.faults.provider_rows import cases, run_case
from benchmarks.faults.result_row import COLUMNS, SHORT, ResultRow
from benchmarks.faults.table import run_faults
from benchmarks.provider_process import ServerCounts
from llm_elicit.errors import InputError


def test_a_row_says_what_was_paid_twice_beside_its_bound() -> None:
    counts = ServerCounts(
        requests=1_020, questions=1_000, faults=4, answered=999, twice=15, answers=1_015,
        followed=0, seconds=5.0,
    )  # fmt: skip
    line = ResultRow(
        "429", "some", 1_000, counts, 5.0, "≤ 2 × clean", clean=4.0, bound=16, over=0.0
    )
    cells = dict(zip(COLUMNS, line.cells, strict=True))
    assert cells["answered once"] == "984"
    assert cells["paid twice"] == "16 (at most 16)"
    assert (cells["over the cap"], cells["against clean"]) == ("0.00", "1.25 ×")
    assert cells["reached"] == "yes"


def test_a_row_that_is_not_known_is_named() -> None:
    with pytest.raises(InputError, match="no row 'nope'; known: clean, 429"):
        run_faults(SHORT, print, ["nope"])


@pytest.mark.parametrize("name", ["cap"])
def test_a_provider_row(name: str, tmp_path: Path) -> None:
    line = run_case(name, cases(SHORT)[name], SHORT, tmp_path / name, clean=None)
    assert line.unmet == []


@pytest.mark.parametrize("name", ["SIGKILL", "disk-full", "postgres-1"])
def test_a_process_row(name: str, tmp_path: Path) -> None:
    line = PROCESS_ROWS[name](SHORT, tmp_path)
    assert line.unmet == []
    assert line.counts.answered == line.questions
