"""The paper's tables with our numbers beside the published ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit.benchmarks.published import (
    MARGINALIZATION,
    PAPER_FLOORS,
    SECONDS,
    Published,
    published,
)

_NAMES = {"w1": "Wasserstein", "mmtv": "MMTV"}


@dataclass(frozen=True)
class Table:
    """A title, column names and rows of text: shown on a terminal or written as Markdown."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """Return the table in Markdown.

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
    """Return the tables of a benchmark's rows, as `run_table` returns them."""
    if rows.empty:
        return []
    own = {
        "runtime": _runtime,
        "marginalization": _marginalization,
        "adaptive": _adaptive,
        "coverage": _coverage,
        "power": _power,
        "faint": _faint,
    }
    if table in own:
        return [own[table](rows)]
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
        paper = SECONDS.get(target) if method == "score" else None
        lines.append(
            (
                target,
                method,
                f"{paper.training:.0f} + {paper.tempering:.0f}" if paper else "",
                _spread(fit, 1),
                f"{paper.sampling:.0f}" if paper else "",
                _spread(sampling, 1),
                f"{paper.total / (fit + sampling).mean():.0f}×" if paper and fit.size else "",
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
        paper = MARGINALIZATION.get(target)
        cells = [_spread(_column(group, name)) for name in ("w1", "w1_joint", "w1_alone")]
        floor = _mean(_column(group, "w1_floor"))
        lines.append((target, variant, _published(paper, 3), *cells, floor, _count(group)))
    columns = (
        "target", "variant", "published", "joint–alone", "joint–true", "alone–true", "floor",
        "seeds",
    )  # fmt: skip
    return Table("Wasserstein between winners drawn jointly and alone", columns, lines)


def _adaptive(rows: pd.DataFrame) -> Table:
    """Excess over the floor on the way, and how many comparisons reach the published excess."""
    lines = []
    for (target, _, _), group in _groups(rows):
        paper, floor = published(target, "score", "w1"), PAPER_FLOORS.get(target)
        excess = None if paper is None or floor is None else paper.mean - floor
        done = group[group["error"].isna()]
        curves = [json.loads(text) for text in done["curve"]]
        floors = done["w1_floor"].to_numpy(np.float64)
        d = int(done["dimension"].iloc[0]) if curves else 1
        way = [
            (at["n"], np.mean([c[k]["w1"] for c in curves] - floors))
            for k, at in enumerate(curves[0] if curves else [])
        ]
        reached = next((n for n, mean in way if excess is not None and mean <= excess), None)
        lines.append(
            (
                target,
                "" if excess is None else f"{excess:.2f}",
                ", ".join(f"{n / d:.0f}·d {mean:.3f}" for n, mean in way),
                f"{reached / d:.0f}·d" if reached else "",
                _spread(_column(group, "w1")),
                _mean(floors),
                _mean(_column(group, "mmtv")),
                _mean(_column(group, "suggest_seconds"), 2),
                _mean(_column(group, "total_seconds"), 0),
                _count(group),
            )
        )
    columns = (
        "target", "published excess at 1000·d", "excess by the end of each round",
        "published reached", "W1", "floor", "MMTV", "s for 100 pairs", "seconds", "seeds",
    )  # fmt: skip
    return Table("Pairs chosen in rounds", columns, lines)


def _power(rows: pd.DataFrame) -> Table:
    lines = []
    for (target, _, variant), group in _groups(rows):
        count = int(_column(group, "random_judges").sum())
        alarms = _column(group, "false_alarms")
        found = _column(group, "found")
        lines.append((target, variant, _spread(alarms), f"{count}", _mean(found, 2), _count(group)))
    columns = (
        "target",
        "asked",
        "random judges called consistent",
        "random judges",
        "judge found",
        "seeds",
    )
    return Table("False alarms and power of the test of a preference", columns, lines)


def _faint(rows: pd.DataFrame) -> Table:
    lines = []
    for (target, _, variant), group in _groups(rows):
        rank, pinned = _column(group, "rank_correlation"), _column(group, "w1")
        known = _column(group, "w1_true_power")
        off = np.log(_column(group, "power") / _column(group, "true_power"))
        seconds = [_mean(_column(group, f"{part}_seconds"), 1) for part in ("fit", "power")]
        lines.append((
            target, variant, f"{np.median(rank):.3f} ({rank.min():.2f})" if rank.size else "",
            _median(pinned), _median(known), _median(pinned / known),
            _median(_column(group, "w1_floor")),
            f"{np.exp(off.mean()):.2f}" if off.size else "", _mean(abs(off), 2),
            _mean(_column(group, "covered"), 2), _mean(_column(group, "coherent"), 2),
            *seconds, _count(group),
        ))  # fmt: skip
    columns = (
        "target", "judge", "rank correlation (least)", "W1, pinned", "W1, true power",
        "pinned / true", "floor", "power / true", "error of its logarithm", "interval covers",
        "coherent", "fit s", "power s", "seeds",
    )  # fmt: skip
    return Table("Judges of low amplitude: medians over seeds, shares and means", columns, lines)


def _coverage(rows: pd.DataFrame) -> Table:
    kinds = ("mean", "quantile", "cdf")
    lines = []
    for (target, _, variant), group in _groups(rows):
        shares = [_column(group, f"{kind}_cover") for kind in kinds]
        cells = [_spread(each, 2) for each in shares]
        together = f"{np.mean(shares):.2f}" if shares[0].size else ""
        width = _mean(_column(group, "mean_width"), 2)
        seconds = [_mean(_column(group, f"{part}_seconds"), 1) for part in ("fit", "sample")]
        lines.append((target, variant, *cells, together, width, *seconds, _count(group)))
    columns = (
        "target", "judge", "means", "quantiles", "distribution functions", "together",
        "width of means' bands, sd", "fit s", "draws s", "seeds",
    )  # fmt: skip
    return Table("Share of 90 % bands that hold the truth", columns, lines)


def _column(group: pd.DataFrame, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the numbers of a column, of the jobs that did not fail."""
    if name not in group:
        return np.empty(0)
    return group.loc[group["error"].isna(), name].to_numpy(np.float64)


def _published(value: Published | None, digits: int = 2) -> str:
    return f"{value.mean:.{digits}f} ± {value.sd:.{digits}f}" if value else ""


def _mean(values: np.ndarray[Any, np.dtype[np.float64]], digits: int = 3) -> str:
    return f"{values.mean():.{digits}f}" if values.size else ""


def _median(values: np.ndarray[Any, np.dtype[np.float64]], digits: int = 3) -> str:
    finite = values[np.isfinite(values)]
    return f"{np.median(finite):.{digits}f}" if finite.size else ""


def _spread(values: np.ndarray[Any, np.dtype[np.float64]], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds; with one seed, the number alone."""
    if values.size < 2:
        return _mean(values, digits)
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def _count(group: pd.DataFrame) -> str:
    failed = int(group["error"].notna().sum())
    return f"{len(group) - failed}" + (f", {failed} failed" if failed else "")
