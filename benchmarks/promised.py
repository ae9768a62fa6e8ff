"""What is promised of simulated judges: power, and what their beliefs are worth in rows.

`python -m benchmarks.promised verdict 0.4` (or effect, difference, auc) prints one row: the size
(for a verdict the reliability, which is else 0.5), the pairs recommended for a power of 80 %, and
the share of 200 new campaigns of this size in which the test succeeds. A number of campaigns and
`choices`, for a judge without log-odds, may follow.

`python -m benchmarks.promised worth 20` prints a row for each of two spaces and two judges who
are worth 20 rows: the density of 20 rows; and a judge who knows the density of half of the table,
mixed with a uniform one, so that its mean score is that of 20 rows. With `elicited 40`, a number of
runs, it is the belief fitted to log-odds of the latter. The table has up to 300 other rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import cast

import numpy as np

import llm_elicit as le
from llm_elicit import density
from llm_elicit.audit.inference import wilson_interval
from llm_elicit.audit.panel import RowScores, learn_rows
from llm_elicit.audit.responses import ResponseKind
from llm_elicit.comparisons.table import sampling_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.pipeline.pilot import AssumedJudge
from llm_elicit.pipeline.statistical_power import Question, Simulator
from llm_elicit.spaces.features import FeatureSpace, Floats

TARGET, RELIABILITY = 0.8, 0.5


def measure_promise(
    question: Question, size: float, campaigns: int = 200, answers: ResponseKind = "log-odds"
) -> str:
    """Return a row of the table: question, size, pairs with interval, realized power."""
    reliability = size if question == "verdict" else RELIABILITY
    sizes: dict[Question, float] = {} if question == "verdict" else {question: size}
    result = le.power(
        "simulated", questions=[question], sizes=sizes, reliability=reliability,
        answers=answers, power=TARGET,
    )  # fmt: skip
    (promised,) = result.questions
    assert promised.pairs is not None
    campaign = Campaign.load("simulated")
    judge = AssumedJudge(result.judge.name, answers, reliability)
    trial = Simulator(campaign, campaign.load_space(), judge).trial(
        promised.question, promised.size
    )
    successes = [trial(promised.pairs, 10**9 + number) > 0 for number in range(campaigns)]
    realized = wilson_interval(sum(successes) / campaigns, campaigns)
    pairs = f"{promised.pairs} [{promised.low}, {promised.high}]"
    return (
        f"| {question}, {answers} | {size:g} | {pairs} | "
        f"{realized.value:.2f} [{realized.low:.2f}, {realized.high:.2f}] |"
    )


class WorthJudges:
    """Judges of a space who are worth so many rows, and a table of rows that they do not know.

    Args:
        space: the feature space.
        size: the number of rows, one of `llm_elicit.audit.panel.SIZES`.
        seed: of the run.
    """

    def __init__(self, space: FeatureSpace, size: int, seed: int) -> None:
        self.space, self.size, self.rng = space, size, np.random.default_rng([seed, 0x3077])
        rows = space.table_points()[self.rng.permutation(len(space.table_points()))]
        known = min(len(rows) // 2, 400)
        self.known, others = rows[:known], rows[known:]
        self.learned = RowScores.learn(space, others[:300], np.random.default_rng(seed))
        self.width = self.learned.widths[self.learned.sizes.index(size)]
        starts = range(0, known - size + 1, size)
        means = [self._learn(rows[i : i + size], others).mean() for i in starts]
        truth, shares = np.exp(self._learn(self.known, others)), np.linspace(0.0, 1.0, 201)
        scores = [np.log(share * truth + 1.0 - share).mean() for share in shares]
        self.share = float(np.interp(np.mean(means), scores, shares))

    def _learn(self, rows: Floats, points: Floats) -> Floats:
        return learn_rows(self.space, rows, points, self.width)

    def answer(self, kind: str, points: Floats) -> Floats:
        """Return the log density of a judge at points, relative to uniform."""
        if kind == "rows":
            return self._learn(self.known[: self.size], points)
        known = np.exp(self._learn(self.known, points))
        if kind == "mixed":
            return np.asarray(np.log(self.share * known + 1.0 - self.share))
        a, b = (self.space.sample(300, self.rng) for _ in range(2))
        noise = self.rng.normal(0.0, 0.1, 300)
        log_odds = self.answer("mixed", a) - self.answer("mixed", b) + noise
        belief = density.fit_evidence(
            density.Evidence.log_odds(a, b, log_odds), sampling=sampling_of(self.space)
        )
        low, high = self.space.scale_ends
        per_scale = belief.log_prob(points) - belief.sampling.log_scale_derivative(points)
        return np.asarray(per_scale + np.log(high - low).sum())


def measure_worth(size: int, runs: int, kinds: tuple[str, ...]) -> Iterator[str]:
    """Yield rows of the table: share within half and twice the size, median, and coverage."""
    for name in ("penguins", "countries"):
        space = FeatureSpace.load(name)
        reported = {kind: list[tuple[float, bool]]() for kind in kinds}
        for seed in range(runs):
            judges = WorthJudges(space, size, seed)
            for kind in kinds:
                worth = judges.learned.worth(judges.answer(kind, judges.learned.points))
                reported[kind].append((worth.value, worth.low <= size <= worth.high))
        for kind, results in reported.items():
            values, covered = np.array(results).T
            near = float(((values >= size / 2) & (values <= 2 * size)).mean())
            yield (
                f"| {name}, {kind} | {size} | {near:.2f} of {runs} | {np.median(values):.0f} | "
                f"{covered.mean():.2f} |"
            )


if __name__ == "__main__":
    if sys.argv[1] == "worth":
        elicited = "elicited" in sys.argv
        runs = int(sys.argv[4]) if len(sys.argv) > 4 else 40
        for line in measure_worth(
            int(sys.argv[2]), runs, ("elicited",) if elicited else ("rows", "mixed")
        ):
            sys.stdout.write(line + "\n")
        sys.exit()
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    kind: ResponseKind = "choices" if "choices" in sys.argv else "log-odds"
    row = measure_promise(cast(Question, sys.argv[1]), float(sys.argv[2]), number, kind)
    sys.stdout.write(row + "\n")
