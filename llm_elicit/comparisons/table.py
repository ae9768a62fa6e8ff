"""The typed table of judgments: a row a judgment, in and out of Parquet, JSONL and CSV.

This is what the orchestrator writes and what the density core and the audit consume. Columns:

======================  ==========================================================================
judge                   the judge's name in the campaign
pair, order, replicate  which question: pair number, "ab" or "ba" (which point was option A), 0...
a_<feature>, b_<...>    the two points, natural units; of a categorical feature its codes
template, prompt_hash   the template's id; SHA-256 of the rendered messages
model_asked             the model the campaign named
model_answered          the model the provider says answered
reply                   the raw text of the answer
verdict                 "A", "B", "tie", "refusal", "truncated" or "unparsable"
probability             P(a preferred to b), the presentation order undone; empty without a choice
soft                    whether probability is measured: by log-probabilities, or as stated
format                  "letter", "probability" or "ratio": what was asked for; a letter without it
letter_mass             how much of the model's own probability the two letters had (soft only)
prompt_tokens, ...      completion_tokens, cached_tokens; cost (USD; empty where no price is known)
latency, attempts       seconds of the answering request; requests sent for this answer
cached                  served from an earlier run's answer, at no cost
asked_at                UTC time of the answer, ISO 8601
thinking                what a reasoning model showed of its thinking; only where it was asked for
======================  ==========================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.lazy_module import LazyModule
from llm_elicit._util.sanitize import guard, unguard, visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_columns import read_csv
from llm_elicit.spaces.features import Floats

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow
    from pyarrow import parquet
else:
    pd, pyarrow, parquet = (
        LazyModule("pandas"),
        LazyModule("pyarrow"),
        LazyModule("pyarrow.parquet"),
    )

_LEAST = 1e-9
"""Probabilities nearer to 0 or 1 are read as this."""

VERDICTS = ("A", "B", "tie", "refusal", "truncated", "unparsable")

_COLUMNS = {
    "judge": "string",
    "pair": "int64",
    "order": "string",
    "replicate": "int64",
    "template": "string",
    "prompt_hash": "string",
    "model_asked": "string",
    "model_answered": "string",
    "reply": "string",
    "verdict": "string",
    "probability": "float64",
    "soft": "bool",
    "letter_mass": "float64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "cached_tokens": "int64",
    "cost": "float64",
    "latency": "float64",
    "attempts": "int64",
    "cached": "bool",
    "asked_at": "string",
}
_OPTIONAL = {"thinking": "string", "format": "string"}
_TYPES = {**_COLUMNS, **_OPTIONAL}


@dataclass(frozen=True)
class Choices:
    """One judge's answers, a row a pair with at least one choice.

    Attributes:
        a, b: the points, `(n, d)`, natural units.
        preference: P(a preferred), averaged over orders and replicates, `(n,)` in [0, 1].
            Averaging over both orders removes what being shown first adds to any option; not what
            it adds by an option's own content.
        pair: the pairs' numbers, `(n,)`.
    """

    a: Floats
    b: Floats
    preference: Floats
    pair: np.ndarray[tuple[int], np.dtype[np.int64]]

    def __len__(self) -> int:
        return len(self.preference)

    def weighted(self) -> tuple[Floats, Floats, Floats]:
        """(winners, losers, weights): each pair as two weighted rows that sum to one comparison.

        Row i says a beat b with weight q, row n + i says b beat a with weight 1 - q.
        """
        winners = np.concatenate([self.a, self.b])
        losers = np.concatenate([self.b, self.a])
        weights = np.concatenate([self.preference, 1.0 - self.preference])
        keep = weights > 0
        return winners[keep], losers[keep], weights[keep]


@dataclass(frozen=True)
class Judgments:
    """One judge's choices one by one, with how they were asked.

    Attributes:
        a, b: the points, `(n, d)`, natural units.
        preference: P(a preferred), `(n,)`; one half where the judge called them equal.
        first: whether a was shown first, `(n,)`.
        tie: whether the judge called them equal, `(n,)`.
        soft: whether the preference is a measured probability, `(n,)`.
        pair: the pairs' numbers, `(n,)`.
        format: what was asked for, "letter", "probability" or "ratio", `(n,)`.
    """

    a: Floats
    b: Floats
    preference: Floats
    first: np.ndarray[tuple[int], np.dtype[np.bool_]]
    tie: np.ndarray[tuple[int], np.dtype[np.bool_]]
    soft: np.ndarray[tuple[int], np.dtype[np.bool_]]
    pair: np.ndarray[tuple[int], np.dtype[np.int64]]
    format: np.ndarray[tuple[int], np.dtype[np.str_]]

    @property
    def sign(self) -> Floats:
        """1 where a was shown first, −1 where b was, `(n,)`."""
        return np.where(self.first, 1.0, -1.0)

    @property
    def first_shown(self) -> Floats:
        """P(first shown), `(n,)`."""
        return np.where(self.first, self.preference, 1.0 - self.preference)

    @property
    def log_odds(self) -> Floats:
        """log P(first shown) / P(second shown), `(n,)` nats, finite."""
        p = np.clip(self.preference, _LEAST, 1.0 - _LEAST)
        return self.sign * np.log(p / (1.0 - p))


class Comparisons:
    """The judgments of a run.

    Attributes:
        frame: the table described at the top of this module.
        features: the feature names, in the order of the points' columns.
    """

    def __init__(self, frame: pd.DataFrame, features: list[str]) -> None:
        needed = [*_COLUMNS, *(f"{side}_{name}" for side in "ab" for name in features)]
        missing = [column for column in needed if column not in frame.columns]
        if missing:
            raise InputError(f"comparisons: no column {missing[0]!r}; is this a comparison log?")
        more = {name: kind for name, kind in _OPTIONAL.items() if name in frame.columns}
        kept = frame[[*needed, *more]].astype({**_COLUMNS, **more}).reset_index(drop=True)
        self.frame = _with_hard_choices(kept)
        self.features = features

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"Comparisons({len(self)} judgments by {', '.join(self.judges)})"

    @property
    def judges(self) -> list[str]:
        """The judges' names, in order of first appearance."""
        return list(dict.fromkeys(self.frame["judge"]))

    def of(self, judge: str) -> pd.DataFrame:
        """The rows of one judge."""
        return self.frame[self.frame["judge"] == judge]

    def choices(self, judge: str) -> Choices:
        """One judge's choices, both orders and all replicates of a pair averaged.

        Each order counts alike, however many replicates of it were answered.
        """
        rows = self._chosen(judge)
        by_order = rows.groupby(["pair", "order"])["probability"].mean()
        preference = by_order.groupby(level="pair").mean()
        points = rows.groupby("pair").first().loc[preference.index]
        return Choices(
            *self._points(points),
            preference.to_numpy(np.float64),
            preference.index.to_numpy(np.int64),
        )

    def judgments(self, judge: str) -> Judgments:
        """One judge's choices, every order and replicate for itself."""
        rows = self._chosen(judge)
        return Judgments(
            *self._points(rows),
            rows["probability"].to_numpy(np.float64),
            (rows["order"] == "ab").to_numpy(bool),
            (rows["verdict"] == "tie").to_numpy(bool),
            rows["soft"].to_numpy(bool),
            rows["pair"].to_numpy(np.int64),
            _formats(rows),
        )

    def _chosen(self, judge: str) -> pd.DataFrame:
        rows = self.of(judge)
        return rows[rows["probability"].notna()]

    def _points(self, rows: pd.DataFrame) -> tuple[Floats, Floats]:
        a, b = (
            rows[[f"{side}_{name}" for name in self.features]].to_numpy(np.float64) for side in "ab"
        )
        return a, b

    def write(self, path: Path) -> Path:
        """Write as Parquet, JSONL or CSV, by the path's suffix.

        In a CSV a text that a spreadsheet would run as a formula has an apostrophe before it,
        which `read` takes off again.

        Raises:
            InputError: another suffix.
        """
        return write_comparisons([self], path)

    @classmethod
    def read(cls, path: Path) -> Comparisons:
        """Read what `write` wrote.

        Raises:
            InputError: no such file, another suffix, or not a comparison log.
        """
        if not path.is_file():
            raise InputError(f"{path}: no such file; run the campaign first")
        if path.suffix not in (".parquet", ".jsonl", ".csv"):
            raise InputError(f"{path}: unknown format; use .parquet, .jsonl or .csv")
        try:
            frame = _read(path)
        except (OSError, ValueError, TypeError, AttributeError, pyarrow.ArrowException) as error:
            reason = visible(" ".join(str(error).split()), 200)
            raise InputError(
                f"{path}: not a table that can be read: {reason}; write it again, by the stage "
                "`ask` or by `llm-elicit export`"
            ) from None
        features = [str(name)[2:] for name in frame.columns if str(name).startswith("a_")]
        _check_cells(frame, features, path)
        return cls(frame, features)


def _read(path: Path) -> pd.DataFrame:
    """The table as it stands in a file."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".jsonl":
        return pd.read_json(path, lines=True, dtype=False)
    # Text stays text: a reply "NA" is not a gap, a hash of digits is not a number.
    text = {name: "string" for name, kind in _TYPES.items() if kind == "string"}
    gaps = {name: [""] for name in ("probability", "letter_mass", "cost")}
    return _each_text(read_csv(path, dtype=text, keep_default_na=False, na_values=gaps), unguard)


def _check_cells(frame: pd.DataFrame, features: list[str], path: Path) -> None:
    """Nothing, if every cell is what its column holds.

    Raises:
        InputError: a column is missing, or a cell holds something else; the message names the
            first, with its row, counted from 1 below the header.
    """
    points = [f"{side}_{name}" for side in "ab" for name in features]
    missing = [name for name in [*_COLUMNS, *points] if name not in frame.columns]
    if missing or not features:
        named = repr(missing[0]) if missing else "of a feature (a_...)"
        raise InputError(f"{path}: no column {named}; is this a table of comparisons?")
    for name in points:
        _check_column(frame[name], "float64", path)
        _refuse(frame[name], ~np.isfinite(frame[name].to_numpy(np.float64)), path, "no number")
    for name, kind in _TYPES.items():
        if name in frame.columns:
            _check_column(frame[name], kind, path)
    for name, known in {"order": ("ab", "ba"), "verdict": VERDICTS}.items():
        _refuse(frame[name], ~frame[name].isin(known), path, f"none of {', '.join(known)}")
    p = frame["probability"]
    _refuse(p, p.notna() & ~p.between(0, 1), path, "no probability between 0 and 1")
    question = ["judge", "pair", "order", "replicate", *frame.columns.intersection(["format"])]
    again = frame.duplicated(question)
    _refuse(frame["pair"], again, path, "answered twice by one judge in one order and replicate")


def _check_column(column: pd.Series[Any], kind: str, path: Path) -> None:
    """Nothing, if a column's cells are of the kind that it holds."""
    if kind == "string":
        needed = column.name in ("judge", "order", "verdict", "template")
        if not pd.api.types.is_string_dtype(column):
            text = column.map(lambda cell: isinstance(cell, str)).to_numpy(bool)
            _refuse(column, ~text & (column.notna() | needed), path, "no text")
        _refuse(column, column.isna() & needed, path, "no text")
    elif kind == "bool":
        # One bad cell makes texts of a whole column: it is named before the others.
        for known in ((True, False, "True", "False"), (True, False)):
            _refuse(column, ~column.isin(known), path, "neither true nor false")
    else:
        numbers = pd.to_numeric(column, errors="coerce")
        _refuse(column, numbers.isna() & column.notna(), path, "no number")
        if kind == "int64":
            _refuse(column, ~(numbers % 1 == 0), path, "no whole number")


def _refuse(column: pd.Series[Any], bad: Any, path: Path, rule: str) -> None:
    """Raise the error of the first bad cell of a column, if there is any."""
    rows = np.flatnonzero(np.asarray(bad, dtype=bool))
    if rows.size:
        cell = visible(repr(column.iloc[rows[0]]), 100)
        more = f" ({rows.size:,} such cells)" if rows.size > 1 else ""
        raise InputError(
            f"{path}: column {column.name!r}, row {rows[0] + 1}: {cell} is {rule}{more}; correct "
            "it, or have the run write the table again"
        )


def write_comparisons(parts: Iterable[Comparisons], path: Path) -> Path:
    """Write a table as `Comparisons.write` does, part by part: no more is in memory at once.

    Args:
        parts: successive rows of the table; one part at least, which may be empty.
        path: the file. It is replaced when the table is whole, and not before.

    Raises:
        InputError: another suffix, or the file cannot be written.
    """
    ways = {".parquet": _write_parquet, ".jsonl": _write_jsonl, ".csv": _write_csv}
    if path.suffix not in ways:
        raise InputError(f"{path}: unknown format; use .parquet, .jsonl or .csv")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")  # other processes write theirs
    try:
        ways[path.suffix]((part.frame for part in parts), unfinished)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); check the path, its "
            "permissions and the disk's space"
        ) from None
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return path


def _write_parquet(frames: Iterable[pd.DataFrame], path: Path) -> None:
    tables = (pyarrow.Table.from_pandas(frame, preserve_index=False) for frame in frames)
    first = next(tables)
    with parquet.ParquetWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _write_jsonl(frames: Iterable[pd.DataFrame], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for frame in frames:
            frame.to_json(file, orient="records", lines=True, force_ascii=False)


def _write_csv(frames: Iterable[pd.DataFrame], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        for number, frame in enumerate(frames):
            _each_text(frame, guard).to_csv(file, index=False, header=number == 0)


def _formats(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    """What form of answer was asked for; a letter in tables that do not say."""
    if "format" not in rows.columns:
        return np.full(len(rows), "letter")
    return rows["format"].fillna("letter").to_numpy(np.str_)


def _with_hard_choices(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with the letter's choice where a probability is no number: a letter was chosen.

    Tables have such rows where a provider's log-probabilities were NaN.
    """
    bare = frame["probability"].isna() & frame["verdict"].isin(("A", "B"))
    if not bare.any():
        return frame
    a_won = (frame["verdict"] == "A") == (frame["order"] == "ab")
    return frame.assign(
        probability=frame["probability"].mask(bare, a_won.astype(float)),
        soft=frame["soft"] & ~bare,
    )


def _each_text(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """The table with every text in it changed."""
    texts = [name for name, kind in _TYPES.items() if kind == "string" and name in frame.columns]
    return frame.assign(**{name: frame[name].map(change, na_action="ignore") for name in texts})
