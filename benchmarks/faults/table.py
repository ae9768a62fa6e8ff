"""The table: every fault, and the result of the campaign."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.faults.process_rows import PROCESS_ROWS
from benchmarks.faults.provider_rows import LATENCY, cases, run_case
from benchmarks.faults.result_row import COLUMNS, ResultRow, Size
from benchmarks.tables import Table
from llm_elicit.errors import InputError

FULL = Size()
CLEAN = "clean"


def names() -> tuple[str, ...]:
    """Return the names of the rows, in the table's order."""
    return (*cases(FULL), *PROCESS_ROWS)


def run_faults(
    size: Size, note: Callable[[str], None], wanted: Sequence[str] = (), questions: int = 0
) -> Table:
    """Run the rows, one after the other.

    Args:
        size: numbers of questions and of faults.
        note: called with one line at the beginning of each row.
        wanted: names of rows; all by default. The clean run is made whenever its time is needed.
        questions: of the rows on rates, instead of the number in `size`.

    Raises:
        InputError: there is no such row.
    """
    size = replace(size, questions=questions or size.questions)
    known = cases(size)
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        raise InputError(f"no row {unknown[0]!r}; known: {', '.join(names())}")
    chosen = [name for name in names() if name in wanted or not wanted]
    if any(name in known and known[name].slower for name in chosen) and CLEAN not in chosen:
        chosen.insert(0, CLEAN)
    lines: list[ResultRow] = []
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        for name in chosen:
            note(name)
            own = Path(folder) / name
            clean = lines[0].seconds if lines and lines[0].fault == CLEAN else None
            if name in known:
                lines.append(run_case(name, known[name], size, own, clean))
            else:
                lines.append(PROCESS_ROWS[name](size, own))
            # A row takes minutes; a table that is stopped has the finished ones.
            note(" | ".join(lines[-1].cells))
    title = (
        f"Campaigns under faults: {size.questions:,} questions, {size.slots} slots, answers "
        f"after {LATENCY * 1000:.0f} ms where nothing else is said"
    )
    return Table(title, COLUMNS, tuple(line.cells for line in lines))
