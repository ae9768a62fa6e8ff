"""Planted judges: comparison logs whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.design import Design
from llm_elicit.planning.pairs import make_plan
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

Chooser = Callable[[Floats, Floats], Floats]


def box(d: int, half_width: float = 3.0) -> FeatureSpace:
    """A cube of `d` continuous features around 0, worded to six digits."""
    features = [
        Feature(name=f"x{i}", label=f"feature {i}", low=-half_width, high=half_width, digits=6)
        for i in range(d)
    ]
    return FeatureSpace(name="box", title="a box", subject="a point", features=tuple(features))


def gaussian_expert(space: FeatureSpace) -> Chooser:
    """P(option A) of a Bradley-Terry judge, s = 0.78, whose belief is standard normal."""

    def choose(first: Floats, second: Floats) -> Floats:
        gap = 0.5 * ((second**2).sum(axis=1) - (first**2).sum(axis=1))
        return np.asarray(1.0 / (1.0 + np.exp(-gap / 0.78)))

    return choose


def contrarian(choose: Chooser) -> Chooser:
    """A judge who prefers what another would leave."""
    return lambda first, second: 1.0 - choose(first, second)


def constant(probability: float) -> Chooser:
    """A judge who names option A with one probability, whatever is shown."""
    return lambda first, _: np.full(len(first), probability)


def circle(followed: float = 1.0) -> Chooser:
    """A judge who prefers what lies less than half a turn on, around 0 in the first two features.

    `followed` is the share of answers that follow the circle; the others go against it.
    """

    def choose(first: Floats, second: Floats) -> Floats:
        onward = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0] > 0
        return np.where(onward, 1.0 - followed, followed)

    return choose


@dataclass(frozen=True)
class Planted:
    """A judge and the random numbers of its pairs and choices."""

    choose: Chooser
    rng: np.random.Generator


def ask(
    space: FeatureSpace,
    choose: Chooser,
    rng: np.random.Generator,
    n: int = 100,
    name: str = "judge",
    soft: bool = False,
    both_orders: bool = True,
    *,
    triads: int = 0,
) -> Comparisons:
    """Put `n` pairs to a planted judge; hard judgments are drawn, soft ones are `choose`'s."""
    judges = {name: Planted(choose, rng)}
    return ask_each(space, judges, n, soft, both_orders, triads=triads)


def ask_each(
    space: FeatureSpace,
    judges: Mapping[str, Planted],
    n: int,
    soft: bool = False,
    both_orders: bool = True,
    *,
    triads: int = 0,
) -> Comparisons:
    """Put `n` pairs of its own to each planted judge: one table takes less time than many."""
    orders = ("ab", "ba") if both_orders else ("ab",)
    found = []
    for judge in judges.values():
        a, b = _pairs(space, judge.rng, n, triads)
        for order in orders:
            option_a = judge.choose(a, b) if order == "ab" else judge.choose(b, a)
            said_a = option_a > 0.5 if soft else judge.rng.random(n) < option_a
            probability = option_a if soft else said_a.astype(float)
            preferred = probability if order == "ab" else 1.0 - probability
            found.append(np.column_stack([said_a, preferred, a, b]))
    rows = np.concatenate(found)
    letter = np.where(rows[:, 0] > 0, "A", "B")
    features = [f"{side}_{key}" for side in "ab" for key in space.names]
    frame = pd.DataFrame(
        {
            **ANSWER,
            "judge": np.repeat(list(judges), n * len(orders)),
            "pair": np.tile(np.arange(n), len(found)),
            "order": np.tile(np.repeat(orders, n), len(judges)),
            "verdict": letter,
            "reply": letter,
            "probability": rows[:, 1],
            "soft": soft,
            "letter_mass": 0.5 if soft else None,
            **dict(zip(features, rows[:, 2:].T, strict=True)),
        }
    )
    return Comparisons(frame, space.names)


def _pairs(
    space: FeatureSpace, rng: np.random.Generator, n: int, triads: int
) -> tuple[Floats, Floats]:
    if not triads:
        return space.sample(n, rng), space.sample(n, rng)
    plan = make_plan(space, Design(pairs=n, triads=triads), int(rng.integers(2**32)))
    return plan.a, plan.b


ANSWER: dict[str, object] = {
    "replicate": 0,
    "template": "v1/zero-shot",
    "prompt_hash": "0" * 64,
    "model_asked": "planted",
    "model_answered": "planted",
    "prompt_tokens": 300,
    "completion_tokens": 1,
    "cached_tokens": 0,
    "cost": 0.0,
    "latency": 0.1,
    "attempts": 1,
    "cached": False,
    "asked_at": "2026-01-01T00:00:00Z",
}


def cards_of(frame: pd.DataFrame, seconds: float = 3.0) -> pd.DataFrame:
    """The cards of people's judgments: one a judgment, and every tenth asked again at once."""
    choice = frame["verdict"].map({"A": "a", "B": "b", "tie": "equal"})
    cards = pd.DataFrame(
        {
            "judge": frame["judge"], "expert": frame["model_answered"], "kind": "question",
            "question": np.arange(len(frame), dtype=float), "pair": frame["pair"],
            "order": frame["order"], "state": "answered", "choice": choice, "expected": None,
            "confidence": 0.7, "seconds": seconds,
        }
    )  # fmt: skip
    checks = cards[::20].assign(kind="attention", question=np.nan, expected="a", choice="a")
    return pd.concat([cards, cards[::10].assign(kind="repeat"), checks], ignore_index=True)
