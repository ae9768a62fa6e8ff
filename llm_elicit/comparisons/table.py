"""The typed table of judgments, a row each, which the orchestrator writes and fits and audits read.

Columns:

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
soft                    whether probability is measured (log-probabilities) or stated, not a choice
format                  "letter", "probability" or "ratio": what was asked for; a letter without it
letter_mass             how much of the model's own probability the two letters had (soft only)
prompt_tokens, ...      completion_tokens, cached_tokens; cost (USD; empty where no price is known)
latency, attempts       seconds of the answering request; requests sent for this answer
cached                  served from an earlier run's answer, at no cost
asked_at                UTC time of the answer, ISO 8601
thinking                the visible reasoning of a reasoning model; only if it was asked for
======================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit.comparisons.table_files import (
    COLUMNS,
    OPTIONAL_COLUMNS,
    VERDICTS,
    read_frame,
    write_frames,
)
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import Floats

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["VERDICTS", "Choices", "Comparisons", "Judgments", "write_comparisons"]

_LEAST = 1e-9
"""The least distance of a probability to 0 and 1 for log-odds."""


@dataclass(frozen=True)
class Choices:
    """One judge's answers, a row for each pair with at least one choice.

    Attributes:
        a, b: the points, `(n, d)`, natural units.
        preference: P(a preferred), averaged over orders and replicates, `(n,)` in [0, 1].
            Averaging over both orders removes a position effect that is the same for all options.
        pair: the pairs' numbers, `(n,)`.
    """

    a: Floats
    b: Floats
    preference: Floats
    pair: np.ndarray[tuple[int], np.dtype[np.int64]]

    def __len__(self) -> int:
        return len(self.preference)

    def weighted(self) -> tuple[Floats, Floats, Floats]:
        """Return winners, losers and weights: each pair as two rows whose weights sum to one.

        In row i, a beats b with weight q; in row n + i, b beats a with weight 1 - q.
        """
        winners = np.concatenate([self.a, self.b])
        losers = np.concatenate([self.b, self.a])
        weights = np.concatenate([self.preference, 1.0 - self.preference])
        keep = weights > 0
        return winners[keep], losers[keep], weights[keep]


@dataclass(frozen=True)
class Judgments:
    """One judge's judgments one by one, with how the questions were put.

    Attributes:
        a, b: the points, `(n, d)`, natural units.
        preference: P(a preferred), `(n,)`; one half for a tie.
        first: whether a was shown first, `(n,)`.
        tie: whether the judgment is a tie, `(n,)`.
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
        needed = [*COLUMNS, *(f"{side}_{name}" for side in "ab" for name in features)]
        missing = [column for column in needed if column not in frame.columns]
        if missing:
            raise InputError(f"comparisons: no column {missing[0]!r}; is this a comparison log?")
        more = {name: kind for name, kind in OPTIONAL_COLUMNS.items() if name in frame.columns}
        kept = frame[[*needed, *more]].astype({**COLUMNS, **more}).reset_index(drop=True)
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
        """Return the rows of one judge."""
        return self.frame[self.frame["judge"] == judge]

    def choices(self, judge: str) -> Choices:
        """Return one judge's choices, averaged over both orders and all replicates of a pair.

        Each order has the same weight, whatever its number of answered replicates.
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
        """Return one judge's judgments, a row for every order and replicate."""
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

        In a CSV, a text that a spreadsheet would run as a formula gets an apostrophe before it,
        which `read` removes.

        Raises:
            InputError: another suffix.
        """
        return write_comparisons([self], path)

    @classmethod
    def read(cls, path: Path) -> Comparisons:
        """Read a table that `write` wrote.

        Raises:
            InputError: no such file, another suffix, or not a table of comparisons.
        """
        return cls(*read_frame(path))


def write_comparisons(parts: Iterable[Comparisons], path: Path) -> Path:
    """Write a table as `Comparisons.write` does, part by part, to bound the memory.

    Args:
        parts: successive rows of the table; at least one part, which may be empty.
        path: the file. It is replaced when the table is complete.

    Raises:
        InputError: another suffix, or the file cannot be written.
    """
    return write_frames((part.frame for part in parts), path)


def _formats(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    """Return the answer formats; a letter in tables without that column."""
    if "format" not in rows.columns:
        return np.full(len(rows), "letter")
    return rows["format"].fillna("letter").to_numpy(np.str_)


def _with_hard_choices(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace missing probabilities of chosen letters by the choices.

    Tables have such rows if a provider's log-probabilities were NaN.
    """
    bare = frame["probability"].isna() & frame["verdict"].isin(("A", "B"))
    if not bare.any():
        return frame
    a_won = (frame["verdict"] == "A") == (frame["order"] == "ab")
    return frame.assign(
        probability=frame["probability"].mask(bare, a_won.astype(float)),
        soft=frame["soft"] & ~bare,
    )
