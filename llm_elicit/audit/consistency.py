"""The consistency of a judge's answers: order bias, agreement under swap, test–retest agreement.

A judge with no preference for a position chooses option A half the time over both orders of the
same pairs, and picks the same point whichever is shown first.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from llm_elicit.audit.inference import Interval, t_interval, wilson
from llm_elicit.comparisons.table import Choices, Comparisons
from llm_elicit.comparisons.table_files import VERDICTS
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats


class Consistency(StrictModel):
    """One judge's consistency; None if the questions asked do not allow a measurement.

    Attributes:
        judgments: number of answers.
        verdicts: number of answers by how they were read.
        pairs: number of pairs with at least one choice.
        soft_share: share of the choices that have a probability from token log-probabilities.
        order_bias: P(option A chosen) − 1/2 from the verdicts A and B, in [−1/2, 1/2].
        soft_order_bias: the mean probability of option A, minus 1/2, from soft judgments.
        agreement: share of pairs asked in both orders whose verdicts pick the same point;
            1/2 for random choices, 0 for a judge who always says A.
        retest: share of pairs of answers to the same question in the same order that pick the same
            point; 1/2 for random choices, 1 for a judge who never varies.
        soft_agreement: share of the choices with a probability from token log-probabilities whose
            reply is the likelier letter.
        swap_difference: mean |P(a preferred | a first) − P(a preferred | b first)|; 0 if the order
            does not matter.
        decisiveness: mean |preference − 1/2| over pairs; 1/2 for a judge who is always certain.
    """

    judgments: int
    verdicts: dict[str, int]
    pairs: int
    soft_share: float | None
    order_bias: Interval | None
    soft_order_bias: Interval | None
    agreement: Interval | None
    retest: Interval | None = None
    soft_agreement: Interval | None = None
    swap_difference: float | None
    decisiveness: float | None


def measure_consistency(comparisons: Comparisons, judge: str, choices: Choices) -> Consistency:
    """Measure one judge. Order bias and agreement need pairs asked in both orders.

    With one order only, a preference for a point and one for a position cannot be distinguished.
    """
    rows = comparisons.answers_of(judge)
    counts = rows["verdict"].value_counts()
    chosen = rows[rows["probability"].notna()]
    first = (chosen["order"] == "ab").to_numpy()
    probability = chosen["probability"].to_numpy(np.float64)
    table = pd.DataFrame(
        {
            "pair": chosen["pair"].to_numpy(),
            "first": first,
            "soft": chosen["soft"].to_numpy(bool),
            "a_preferred": probability,
            "option_a": np.where(first, probability, 1.0 - probability),
            "said_a": (chosen["verdict"] == "A").to_numpy(np.float64),
            "hard": chosen["verdict"].isin(["A", "B"]).to_numpy(),
        }
    )
    both = table[table.groupby("pair")["first"].transform("nunique") == 2]
    letters = both[both["hard"]]
    return Consistency(
        judgments=len(rows),
        verdicts={verdict: int(counts.get(verdict, 0)) for verdict in VERDICTS},
        pairs=len(choices),
        soft_share=float(table["soft"].mean()) if len(table) else None,
        order_bias=_balanced_share(letters),
        soft_order_bias=_soft_bias(both[both["soft"]]),
        agreement=_agreement(letters),
        retest=_retest(table[table["hard"]]),
        soft_agreement=_soft_agreement(table[table["hard"] & table["soft"]]),
        swap_difference=_swap_difference(both),
        decisiveness=float(np.abs(choices.preference - 0.5).mean()) if len(choices) else None,
    )


def _balanced_share(letters: pd.DataFrame) -> Interval | None:
    """Return the order bias of verdicts, with the two orders of a pair weighted equally.

    Answers to one pair are correlated, so the interval is Wilson's at the effective sample size
    share (1 − share) / Var(share), with the variance between pairs, but at most the number of
    answers: zero observed variance does not mean zero uncertainty.
    """
    letters = letters[letters.groupby("pair")["first"].transform("nunique") == 2]
    if letters.empty:
        return None
    by_pair = _pair_means(letters, "said_a")
    share, n = float(by_pair.mean()), len(by_pair)
    variance = float(by_pair.var(ddof=1)) / n if n > 1 else 0.0
    binomial = share * (1 - share)
    if binomial == 0:
        effective = float(n)
    elif variance == 0:
        effective = float(len(letters))
    else:
        effective = min(binomial / variance, float(len(letters)))
    interval = wilson(share, effective)
    return _shifted(interval, -0.5)


def _soft_bias(soft: pd.DataFrame) -> Interval | None:
    """Return the order bias of probabilities, with Student's interval over pairs."""
    soft = soft[soft.groupby("pair")["first"].transform("nunique") == 2]
    if soft.empty:
        return None
    by_pair = _pair_means(soft, "option_a")
    if len(by_pair) < 2:
        return None
    mean = t_interval(by_pair)
    within = {"low": max(0.0, mean.low), "high": min(1.0, mean.high)}
    return _shifted(mean.model_copy(update=within), -0.5)


def _agreement(letters: pd.DataFrame) -> Interval | None:
    """Return the share of pairs where both orders pick the same point, replicates averaged."""
    picked_a = (letters["said_a"] == 1) == letters["first"]
    by_order = letters.assign(picked_a=picked_a.astype(float)).pivot_table(
        index="pair", columns="first", values="picked_a", aggfunc="mean"
    )
    if by_order.shape[1] < 2:
        return None
    rates = by_order.dropna().to_numpy(np.float64)
    if len(rates) == 0:
        return None
    same = rates[:, 0] * rates[:, 1] + (1 - rates[:, 0]) * (1 - rates[:, 1])
    return wilson(float(same.mean()), len(same))


def _retest(letters: pd.DataFrame) -> Interval | None:
    """Return the agreement of repeated answers, questions weighted equally within a pair."""
    asked = letters.groupby(["pair", "first"])["said_a"].agg(["sum", "count"])
    asked = asked[asked["count"] > 1]
    if asked.empty:
        return None
    said_a, count = asked["sum"].to_numpy(np.float64), asked["count"].to_numpy(np.float64)
    same = (said_a * (said_a - 1) + (count - said_a) * (count - said_a - 1)) / (count * (count - 1))
    by_pair = pd.Series(same, index=asked.index).groupby(level="pair").mean()
    return wilson(float(by_pair.mean()), len(by_pair))


def _soft_agreement(soft: pd.DataFrame) -> Interval | None:
    """Return the share of replies that are the likelier letter, over pairs."""
    if soft.empty:
        return None
    likelier = (soft["option_a"] > 0.5) == (soft["said_a"] == 1)
    by_pair = likelier.groupby(soft["pair"]).mean()
    return wilson(float(by_pair.mean()), len(by_pair))


def _swap_difference(both: pd.DataFrame) -> float | None:
    """Return mean |P(a preferred | a first) − P(a preferred | b first)| over pairs."""
    if both.empty:
        return None
    means = both.groupby(["pair", "first"])["a_preferred"].mean().unstack()
    return float(np.abs(means[True] - means[False]).mean())


def _pair_means(table: pd.DataFrame, column: str) -> Floats:
    """Return each pair's mean of `column`, its two orders weighted equally."""
    by_order = table.groupby(["pair", "first"])[column].mean()
    return by_order.groupby(level="pair").mean().to_numpy(np.float64)


def _shifted(interval: Interval, by: float) -> Interval:
    return Interval(value=interval.value + by, low=interval.low + by, high=interval.high + by)
