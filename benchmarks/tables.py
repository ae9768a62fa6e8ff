"""The paper's tables with our numbers beside the published ones (Mikkola, Acerbi and Klami, 2026).

Published numbers are means over ten seeds with their standard deviations. The paper's computer had
two Intel Xeon Cascade Lake processors of 20 cores each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import gmean

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Published:
    """A mean over ten seeds and its standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True)
class PublishedSeconds:
    """Mean seconds: training the score, estimating τ(x), drawing 25,000 to 40,000 samples."""

    training: float
    tempering: float
    sampling: float

    @property
    def total(self) -> float:
        """All three."""
        return self.training + self.tempering + self.sampling


_TABLE_1 = """
Onemoon2D           1.37 0.03  0.44 0.13  0.37 0.14  0.54 0.00  0.25 0.06  0.22 0.06
Twomoons2D          1.29 0.06  0.54 0.14  0.44 0.09  0.53 0.01  0.15 0.03  0.14 0.02
Ring2D              0.87 0.03  0.40 0.07  0.39 0.08  0.40 0.01  0.27 0.01  0.26 0.01
Gaussian4D          6.12 0.05  1.69 0.22  1.40 0.24  0.72 0.01  0.41 0.05  0.44 0.08
Mixturegaussians4D  3.75 0.02  1.23 0.06  1.09 0.09  0.53 0.01  0.27 0.01  0.22 0.02
Stargaussian6D      2.25 0.02  1.55 0.04  1.28 0.04  0.19 0.00  0.18 0.02  0.16 0.01
Mixturegaussians10D 1.41 0.01  1.10 0.12  1.33 0.11  0.19 0.00  0.14 0.02  0.26 0.06
Gaussian16D         5.50 0.03  5.00 0.07  5.00 0.06  0.16 0.00  0.13 0.00  0.13 0.00
"""
_COLUMNS = [(m, k) for m in ("w1", "mmtv") for k in ("flow", "score-constant", "score")]


def _table_1() -> dict[tuple[str, str, str], Published]:
    found = {}
    for line in _TABLE_1.strip().splitlines():
        target, *cells = line.split()
        numbers = [float(cell) for cell in cells]
        for place, (metric, method) in enumerate(_COLUMNS):
            found[target, method, metric] = Published(*numbers[2 * place : 2 * place + 2])
    return found


TABLE_1 = _table_1()

SECONDS = {
    "Onemoon2D": PublishedSeconds(80, 49, 690),
    "Twomoons2D": PublishedSeconds(81, 48, 701),
    "Ring2D": PublishedSeconds(82, 47, 692),
    "Gaussian4D": PublishedSeconds(283, 2660, 7187),
    "Mixturegaussians4D": PublishedSeconds(262, 4560, 6958),
    "Stargaussian6D": PublishedSeconds(440, 3364, 12053),
    "Mixturegaussians10D": PublishedSeconds(653, 6728, 27314),
    "Gaussian16D": PublishedSeconds(797, 4977, 47477),
}

# Wasserstein distance between winners drawn jointly with their losers and winners drawn alone.
MARGINALIZATION = {
    "Onemoon2D": Published(0.085, 0.009),
    "Twomoons2D": Published(0.072, 0.010),
    "Ring2D": Published(0.077, 0.012),
    "Gaussian4D": Published(0.069, 0.001),
    "Mixturegaussians4D": Published(0.071, 0.002),
    "Stargaussian6D": Published(0.156, 0.001),
    "Mixturegaussians10D": Published(0.366, 0.001),
    "Gaussian16D": Published(0.671, 0.001),
}


def published(target: str, method: str, metric: str) -> Published | None:
    """Return the paper's number for a target, a method and ``"w1"`` or ``"mmtv"``, if it has one.

    A method that the paper does not have stands beside the paper's own, ``score``.

    Examples:
        >>> published("Ring2D", "score", "w1")
        Published(mean=0.39, sd=0.08)
    """
    known = method if (target, method, metric) in TABLE_1 else "score"
    return TABLE_1.get((target, known, metric))


PAPER_FLOORS = {
    "Onemoon2D": 0.015, "Twomoons2D": 0.046, "Ring2D": 0.045, "Gaussian4D": 0.140,
    "Mixturegaussians4D": 0.188, "Stargaussian6D": 0.334, "Mixturegaussians10D": 0.628,
    "Gaussian16D": 2.16,
}  # fmt: skip
"""Wasserstein distances between two true samples of the paper's 15,000 points."""


@dataclass(frozen=True)
class Table:
    """A title, column names and rows of text: shown on a terminal or written as Markdown."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """Return the table in Markdown.

        Examples:
            >>> print(Table("Seconds", ("target", "ours"), [("Ring2D", "6")]).markdown())
            **Seconds**
            <BLANKLINE>
            | target | ours |
            | --- | --- |
            | Ring2D | 6 |
        """
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "\n".join([f"**{self.title}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


@dataclass(frozen=True)
class _Group:
    """The rows of one target, method and variant."""

    target: str
    method: str
    variant: str
    rows: pd.DataFrame

    @property
    def done(self) -> pd.DataFrame:
        """The rows of jobs that did not fail."""
        return self.rows[self.rows["error"].isna()]

    @property
    def seeds(self) -> str:
        """The number of finished jobs, and of failed ones."""
        done = len(self.done)
        failed = len(self.rows) - done
        return f"{done}, {failed} failed" if failed else f"{done}"

    def numbers(self, name: str) -> Array:
        """Return a column of the jobs that did not fail."""
        if name not in self.rows:
            return np.empty(0)
        return self.done[name].to_numpy(np.float64)

    def mean(self, name: str, digits: int = 3) -> str:
        """Return the mean over seeds."""
        return _text(np.mean, self.numbers(name), digits)

    def median(self, name: str) -> str:
        """Return the median over seeds."""
        return _median(self.numbers(name))

    def spread(self, name: str, digits: int = 3) -> str:
        """Return mean ± standard deviation over seeds; with one seed, the number alone."""
        values = self.numbers(name)
        sd = f" ± {values.std(ddof=1):.{digits}f}" if values.size > 1 else ""
        return _text(np.mean, values, digits) + sd


Columns = dict[str, Callable[[_Group], str]]
"""The cell of each column, by its heading."""

_TARGET: Columns = {"target": lambda g: g.target}
_SEEDS: Columns = {"seeds": lambda g: g.seeds}
_MEMORY: Columns = {"peak MiB": lambda g: g.mean("peak_mib", 0)}


def make_tables(table: str, rows: pd.DataFrame) -> list[Table]:
    """Return the tables of a benchmark's rows, as `run_table` returns them."""
    if rows.empty:
        return []
    groups = [
        _Group(str(target), str(method), str(variant), each)
        for (target, method, variant), each in rows.groupby(
            ["target", "method", "variant"], sort=False
        )
    ]
    if table in _TABLES:
        title, columns = _TABLES[table]
        return [_table(title, _TARGET | columns | _SEEDS, groups)]
    kind: Columns = {"variant": lambda g: g.variant}
    if table != "ablation":
        kind = {"method": lambda g: g.method}
    names = {"w1": "Wasserstein", "mmtv": "MMTV"}
    return [
        _table(name, _TARGET | kind | _distance(metric) | _MEMORY | _SEEDS, groups)
        for metric, name in names.items()
    ]


def _table(title: str, columns: Columns, groups: Sequence[_Group]) -> Table:
    cells = [tuple(cell(group) for cell in columns.values()) for group in groups]
    return Table(title, tuple(columns), cells)


def _distance(metric: str) -> Columns:
    floor = f"{metric}_floor"
    return {
        "published": lambda g: _published(published(g.target, g.method, metric)),
        "ours": lambda g: g.spread(metric),
        "floor": lambda g: g.mean(floor),
        "excess": lambda g: _text(np.mean, g.numbers(metric) - g.numbers(floor)),
        "seconds": lambda g: _text(np.mean, _seconds(g), 1),
    }


def _seconds(group: _Group) -> Array:
    return group.numbers("fit_seconds") + group.numbers("sample_seconds")


def _published_seconds(group: _Group) -> PublishedSeconds | None:
    return SECONDS.get(group.target) if group.method == "score" else None


def _published_fit(group: _Group) -> str:
    paper = _published_seconds(group)
    return f"{paper.training:.0f} + {paper.tempering:.0f}" if paper else ""


def _published_sampling(group: _Group) -> str:
    paper = _published_seconds(group)
    return f"{paper.sampling:.0f}" if paper else ""


def _times_faster(group: _Group) -> str:
    """Return how many times as long the paper's method took."""
    paper, ours = _published_seconds(group), _seconds(group)
    return f"{paper.total / ours.mean():.0f}×" if paper and ours.size else ""


def _published_excess(group: _Group) -> Array:
    """Return the published Wasserstein distance minus its floor; empty if the paper has none."""
    paper = published(group.target, "score", "w1")
    return np.array([] if paper is None else [paper.mean - PAPER_FLOORS[group.target]])


def _rounds(group: _Group) -> list[tuple[float, float]]:
    """Return pairs per feature by the end of each round, and the mean excess there."""
    curves = [json.loads(text) for text in group.done["curve"]]
    if not curves:
        return []
    floors, d = group.numbers("w1_floor"), int(group.done["dimension"].iloc[0])
    excess = np.array([[at["w1"] for at in curve] for curve in curves]) - floors[:, None]
    return [(at["n"] / d, mean) for at, mean in zip(curves[0], excess.mean(axis=0), strict=True)]


def _rounds_to_published(group: _Group) -> str:
    """Return by how many pairs per feature the published excess is reached."""
    reached = (n for n, mean in _rounds(group) if (mean <= _published_excess(group)).any())
    return next((f"{n:.0f}·d" for n in reached), "")


def _coverage(group: _Group) -> Array:
    return np.stack([group.numbers(f"{kind}_cover") for kind in ("mean", "quantile", "cdf")])


def _rank_correlation(group: _Group) -> str:
    rank = group.numbers("rank_correlation")
    return f"{_text(np.median, rank)} ({rank.min():.2f})" if rank.size else ""


def _power_ratio(group: _Group) -> Array:
    return group.numbers("power") / group.numbers("true_power")


_TABLES: dict[str, tuple[str, Columns]] = {
    "runtime": (
        "Seconds to fit and to draw 25,000 samples (published: on 40 cores)",
        {
            "method": lambda g: g.method,
            "published fit": _published_fit,
            "fit": lambda g: g.spread("fit_seconds", 1),
            "published sampling": _published_sampling,
            "sampling": lambda g: g.spread("sample_seconds", 1),
            "times faster": _times_faster,
            **_MEMORY,
        },
    ),
    "marginalization": (
        "Wasserstein between winners drawn jointly and alone",
        {
            "variant": lambda g: g.variant,
            "published": lambda g: _published(MARGINALIZATION.get(g.target), 3),
            "joint–alone": lambda g: g.spread("w1"),
            "joint–true": lambda g: g.spread("w1_joint"),
            "alone–true": lambda g: g.spread("w1_alone"),
            "floor": lambda g: g.mean("w1_floor"),
        },
    ),
    "adaptive": (
        "Pairs chosen in rounds",
        {
            "published excess at 1000·d": lambda g: _text(np.mean, _published_excess(g), 2),
            "excess by the end of each round": lambda g: ", ".join(
                f"{n:.0f}·d {mean:.3f}" for n, mean in _rounds(g)
            ),
            "published reached": _rounds_to_published,
            "W1": lambda g: g.spread("w1"),
            "floor": lambda g: g.mean("w1_floor"),
            "MMTV": lambda g: g.mean("mmtv"),
            "s for 100 pairs": lambda g: g.mean("suggest_seconds", 2),
            "seconds": lambda g: g.mean("total_seconds", 0),
        },
    ),
    "coverage": (
        "Share of 90 % bands that hold the truth",
        {
            "judge": lambda g: g.variant,
            "means": lambda g: g.spread("mean_cover", 2),
            "quantiles": lambda g: g.spread("quantile_cover", 2),
            "distribution functions": lambda g: g.spread("cdf_cover", 2),
            "together": lambda g: _text(np.mean, _coverage(g), 2),
            "width of means' bands, sd": lambda g: g.mean("mean_width", 2),
            "fit s": lambda g: g.mean("fit_seconds", 1),
            "draws s": lambda g: g.mean("sample_seconds", 1),
        },
    ),
    "power": (
        "False alarms and power of the test of a preference",
        {
            "asked": lambda g: g.variant,
            "random judges called consistent": lambda g: g.spread("false_alarms"),
            "random judges": lambda g: f"{int(g.numbers('random_judges').sum())}",
            "judge found": lambda g: g.mean("found", 2),
        },
    ),
    "low-amplitude": (
        "Judges of low amplitude: medians over seeds, shares and means",
        {
            "judge": lambda g: g.variant,
            "rank correlation (least)": _rank_correlation,
            "W1, estimated power": lambda g: g.median("w1"),
            "W1, true power": lambda g: g.median("w1_true_power"),
            "estimated / true": lambda g: _median(g.numbers("w1") / g.numbers("w1_true_power")),
            "floor": lambda g: g.median("w1_floor"),
            "power / true": lambda g: _text(gmean, _power_ratio(g), 2),
            "error of its logarithm": lambda g: _text(np.mean, np.abs(np.log(_power_ratio(g))), 2),
            "interval covers": lambda g: g.mean("covered", 2),
            "coherent": lambda g: g.mean("coherent", 2),
            "fit s": lambda g: g.mean("fit_seconds", 1),
            "power s": lambda g: g.mean("power_seconds", 1),
        },
    ),
}
"""The title and the columns of the tables that are not of distances."""


def _published(value: Published | None, digits: int = 2) -> str:
    return f"{value.mean:.{digits}f} ± {value.sd:.{digits}f}" if value else ""


def _text(statistic: Callable[[Array], Any], values: Array, digits: int = 3) -> str:
    """Return a statistic of values; empty without any."""
    return f"{statistic(values):.{digits}f}" if values.size else ""


def _median(values: Array) -> str:
    """Return the median of the values that were measured."""
    return _text(np.median, values[np.isfinite(values)])
