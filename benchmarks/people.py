"""People's preference from few of their answers and a model's many: coverage and width.

`python -m benchmarks.people` prints the table of docs/benchmarks.md: of 300 simulated studies each,
the share of 90 % intervals that hold the truth and the mean width of the corrected ones relative to
people's own, of three effects and of the data. 400 pairs of three features; people have a utility
with a bend, and choose as a Bradley-Terry judge. Models: one that knows the utility up to noise,
one whose utility is half that of another, and one of random numbers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from llm_elicit.audit.inference import PredictionPowered, prediction_powered
from llm_elicit.spaces.features import Floats

PAIRS, FEATURES, STUDIES = 400, 3, 300
MODELS = {"good": 1.0, "mediocre": 0.5, "useless": 0.0}
"""The share of people's utility in that of each model."""
PEOPLE = {"hesitant": 1.0, "decided": 4.0}
"""The factor of the utility, and so of log-odds."""
_WEIGHTS = np.linspace(3.0, 0.0, FEATURES)


@dataclass(frozen=True)
class Study:
    """Answers to pairs: differences of features, choices less 1/2, predictions, sides of the data.

    `x` is `(n, 3)`, `y` and `f` are `(n,)`, `denser` is `(n, 1)`.
    """

    x: Floats
    y: Floats
    f: Floats
    denser: Floats

    @classmethod
    def draw(cls, rng: np.random.Generator, pairs: int, model: str, people: str) -> Study:
        """Draw pairs and answers."""
        a, b = rng.random((2, pairs, FEATURES))

        def utility(points: Floats) -> Floats:
            return np.asarray(points @ _WEIGHTS - 3.0 * np.square(points[:, 0] - 0.6))

        log_odds, share = PEOPLE[people] * (utility(a) - utility(b)), MODELS[model]
        others = PEOPLE[people] * ((a - b) @ np.roll(_WEIGHTS, 1))
        others = others if share else 3.0 * rng.standard_normal(pairs)
        predicted = share * log_odds + (1.0 - share) * others + 0.3 * rng.standard_normal(pairs)
        y = (rng.random(pairs) < expit(log_odds)) - 0.5
        distance = (np.square(points - 0.5).sum(axis=1) for points in (a, b))
        denser: Floats = np.sign(-np.subtract(*distance))[:, None]
        return cls(2.0 * (a - b), np.asarray(y), expit(predicted) - 0.5, denser)

    def estimates(self, is_common: np.ndarray) -> list[PredictionPowered]:
        """Return the estimates of three effects, and of the share of choices that go with data."""
        y = self.y[is_common]
        effects = prediction_powered(self.x, y, self.f, is_common)
        return effects + prediction_powered(self.denser, y, self.f, is_common)


def measure(
    model: str, people: str, common: int, studies: int = STUDIES
) -> tuple[Floats, Floats, Floats]:
    """Return coverage of people's own and of corrected intervals, and relative widths.

    All have shape `(studies, 4)`: three effects, and that of the data.
    """
    large = Study.draw(np.random.default_rng(1), 300_000, model, people)
    truth = [*np.linalg.lstsq(large.x, large.y, rcond=None)[0], float(large.denser[:, 0] @ large.y)]
    truth[-1] /= len(large.y)
    is_common = np.arange(PAIRS) < common
    rows = []
    for number in range(studies):
        study = Study.draw(np.random.default_rng([number, 2]), PAIRS, model, people)
        rows.append([
            (e.own.low <= t <= e.own.high, e.corrected.low <= t <= e.corrected.high, e.width_ratio)
            for e, t in zip(study.estimates(is_common), truth, strict=True)
        ])  # fmt: skip
    own, corrected, ratio = np.moveaxis(np.array(rows, dtype=np.float64), 2, 0)
    return own, corrected, ratio


if __name__ == "__main__":
    for people in PEOPLE:
        for common in (20, 40):
            for model in MODELS:
                own, corrected, ratio = measure(model, people, common)
                cells = [f"{values[:, :3].mean():.2f}, {values[:, 3].mean():.2f}"
                         for values in (own, corrected, ratio)]  # fmt: skip
                widest = np.quantile(ratio, 0.95)
                row = [people, str(common), model, *cells, f"{widest:.2f}"]
                sys.stdout.write(f"| {' | '.join(row)} |\n")
                sys.stdout.flush()
