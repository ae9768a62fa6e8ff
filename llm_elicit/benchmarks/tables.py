"""The paper's tables with our numbers beside the published ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit.benchmarks.published import MARGINALIZATION, SECONDS, Published, published

_NAMES = {"w1": "Wasserstein", "mmtv": "MMTV"}


@dataclass(frozen=True)
class Table:
    """A title, column names and rows of text: shown on a terminal or written as Markdown."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The table in Markdown.

        Example:
            >>> print(Table("Seconds", ("target", "ours"), [("Ring2D", "6")]).markdown())
            **Seconds**
            <BLANKLINE>
            | target | ours |
            | --- | --- |
            | Ring2D | 6 |
        """
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "\n".join([f"**{self.title}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def make_tables(table: str, rows: pd.DataFrame) -> list[Table]:
    """The tables of a benchmark's rows, as `run_table` returns them."""
    if rows.empty:
        return []
    if table == "runtime":
        return [_runtime(rows)]
    if table == "marginalization":
        return [_marginalization(rows)]
    return [_distances(rows, metric, ablation=table == "ablation") for metric in _NAMES]


def _groups(rows: pd.DataFrame) -> Iterable[tuple[tuple[str, ...], pd.DataFrame]]:
    """Rows of one target, method and variant, in the order of the rows."""
    return rows.groupby(["target", "method", "variant"], sort=False)  # type: ignore[return-value]


def _distances(rows: pd.DataFrame, metric: str, ablation: bool) -> Table:
    lines = []
    for (target, method, variant), group in _groups(rows):
        ours, floor = _column(group, metric), _column(group, f"{metric}_floor")
        seconds = _column(group, "fit_seconds") + _column(group, "sample_seconds")
        lines.append(
            (
                target,
                variant if ablation else method,
                _published(published(target, method, metric)),
                _spread(ours),
                _mean(floor),
                _mean(ours - floor),
                _mean(seconds, 1),
                _mean(_column(group, "peak_mib"), 0),
                _count(group),
            )
        )
    kind = "variant" if ablation else "method"
    columns = (
        "target", kind, "published", "ours", "floor", "excess", "seconds", "peak MiB", "seeds",
    )  # fmt: skip
    return Table(_NAMES[metric], columns, lines)


def _runtime(rows: pd.DataFrame) -> Table:
    lines = []
    for (target, method, _), group in _groups(rows):
        fit, sampling = _column(group, "fit_seconds"), _column(group, "sample_seconds")
        theirs = SECONDS.get(target)
        told = theirs if method == "score" else None
        lines.append(
            (
                target,
                method,
                f"{told.training:.0f} + {told.tempering:.0f}" if told else "",
                _spread(fit, 1),
                f"{told.sampling:.0f}" if told else "",
                _spread(sampling, 1),
                f"{told.total / (fit + sampling).mean():.0f}×" if told and fit.size else "",
                _mean(_column(group, "peak_mib"), 0),
                _count(group),
            )
        )
    columns = (
        "target", "method", "published fit", "fit", "published sampling", "sampling",
        "times faster", "peak MiB", "seeds",
    )  # fmt: skip
    return Table(
        "Seconds to fit and to draw 25,000 samples (published: on 40 cores)", columns, lines
    )


def _marginalization(rows: pd.DataFrame) -> Table:
    lines = []
    for (target, _, variant), group in _groups(rows):
        told = MARGINALIZATION.get(target)
        cells = [_spread(_column(group, name)) for name in ("w1", "w1_joint", "w1_alone")]
        floor = _mean(_column(group, "w1_floor"))
        lines.append((target, variant, _published(told, 3), *cells, floor, _count(group)))
    columns = (
        "target", "variant", "published", "joint–alone", "joint–true", "alone–true", "floor",
        "seeds",
    )  # fmt: skip
    return Table("Wasserstein between winners drawn jointly and alone", columns, lines)


def _column(group: pd.DataFrame, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The numbers of a column, of the jobs that did not fail."""
    if name not in group:
        return np.empty(0)
    return group.loc[group["error"].isna(), name].to_numpy(np.float64)


def _published(value: Published | None, digits: int = 2) -> str:
    return f"{value.mean:.{digits}f} ± {value.sd:.{digits}f}" if value else ""


def _mean(values: np.ndarray[Any, np.dtype[np.float64]], digits: int = 3) -> str:
    return f"{values.mean():.{digits}f}" if values.size else ""


def _spread(values: np.ndarray[Any, np.dtype[np.float64]], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds; with one seed, the number alone."""
    if values.size < 2:
        return _mean(values, digits)
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def _count(group: pd.DataFrame) -> str:
    failed = int(group["error"].notna().sum())
    return f"{len(group) - failed}" + (f", {failed} failed" if failed else "")
