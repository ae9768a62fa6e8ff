"""False alarms of the test of a preference, and its power.

Random judges and the target's judge are tested by the randomization test of `llm_elicit.audit`, one
judge per run.

The variant ``rounds`` asks both in rounds, as in `benchmarks.adaptive`: pairs from λ,
then pairs suggested by fits to the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from benchmarks import DEFAULT, Job, Row
from benchmarks.adaptive import round_ends
from benchmarks.measure import Array, Streams, choose, peak_mib, provenance_of
from benchmarks.targets import Target, find
from llm_elicit.audit.randomization import RandomizationTest
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Response
from llm_elicit.comparisons.table import Choices
from llm_elicit.density import BETWEEN_ROUNDS, BeliefDensity, fit_belief, suggest_pairs
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import Feature, FeatureSpace

ROUNDS = "rounds"
RANDOM_JUDGES = {DEFAULT: 100, ROUNDS: 20}
"""Judges at random a job, by variant; in rounds each needs fits of its own."""
Answer = Callable[[tuple[Array, Array]], tuple[Array, Array]]


def measure_power(job: Job) -> Row:
    """Return the share of random judges with an alarm, and whether the target's judge is found.

    Examples:
        >>> row = measure_power(Job("power", "Ring2D", "auto", seed=11, n=200))
        >>> row["false_alarms"] < 0.2, row["found"]
        (True, 1.0)
    """
    target, settings = find([job.target])[0], AuditSettings()
    streams = Streams.of(job.target, job.seed)
    rng = streams.truth
    ends = round_ends(target.dimension, job.n) if job.variant == ROUNDS else [job.n]
    schedule = Schedule(tuple(range(a, b) for a, b in pairwise([0, *ends])))

    def judge(pairs: tuple[Array, Array]) -> tuple[Array, Array]:
        return choose(target, pairs, streams)

    def choose_at_random(pairs: tuple[Array, Array]) -> tuple[Array, Array]:
        wins = rng.random(len(pairs[0]))[:, None] < 0.5
        return np.where(wins, *pairs), np.where(wins, *reversed(pairs))

    def test(choices: Choices) -> float:
        space = _space(np.concatenate([choices.a, choices.b]))
        found = RandomizationTest(Response.from_choices(choices), space, schedule)
        return found.run(settings.flips, rng).p_value

    def at_random() -> Choices:
        if job.variant == ROUNDS:
            return _turned(*_ask(choose_at_random, target, ends, streams), rng)
        return _random(winners, losers, rng)

    start = time.process_time()
    winners, losers = _ask(judge, target, ends, streams)
    began = time.process_time()
    count = RANDOM_JUDGES[job.variant]
    p_values = [test(at_random()) for _ in range(count)]
    tested = time.process_time()
    # Which side a winner stood on says nothing, so half of the pairs are turned.
    found = test(_turned(winners, losers, rng)) < settings.level
    return {
        "dimension": target.dimension,
        "false_alarms": float(np.mean(np.array(p_values) < settings.level)),
        "random_judges": count,
        "found": float(found),
        "fit_seconds": began - start,
        "sample_seconds": tested - began,
        "peak_mib": peak_mib(),
        **provenance_of(time.process_time()),
    }


def _ask(answer: Answer, target: Target, ends: list[int], streams: Streams) -> tuple[Array, Array]:
    """Return winners and losers (n, d) of pairs from λ, then of rounds chosen by the answers."""
    a, b = (target.sampling.sample(ends[0], streams.pairs) for _ in range(2))
    winners, losers = answer((a, b))
    for start, end in pairwise(ends):
        belief = _fit(winners, losers, target, streams)
        more = answer(suggest_pairs(belief, end - start, seed=int(streams.pairs.integers(2**32))))
        winners, losers = (
            np.concatenate(both) for both in zip((winners, losers), more, strict=True)
        )
    return winners, losers


def _fit(winners: Array, losers: Array, target: Target, streams: Streams) -> BeliefDensity:
    return fit_belief(
        winners, losers, sampling=target.sampling, method="auto", seed=streams.fit,
        settings=BETWEEN_ROUNDS,
    )  # fmt: skip


def _space(points: Array) -> FeatureSpace:
    """Return a feature space that contains points (n, d); the tests need only its scales."""
    margin = 1e-6 + np.ptp(points, axis=0)
    limits = zip(points.min(axis=0) - margin, points.max(axis=0) + margin, strict=True)
    features = tuple(
        Feature(name=f"x{i}", label=f"feature {i}", low=float(low), high=float(high), digits=9)
        for i, (low, high) in enumerate(limits)
    )
    return FeatureSpace(name="target", title="a target", subject="a point", features=features)


def _turned(winners: Array, losers: Array, rng: np.random.Generator) -> Choices:
    first = rng.random(len(winners)) < 0.5
    a = np.where(first[:, None], winners, losers)
    b = np.where(first[:, None], losers, winners)
    return Choices(a, b, first.astype(np.float64), np.arange(len(a)))


def _random(a: Array, b: Array, rng: np.random.Generator) -> Choices:
    """Random choices on these pairs."""
    return Choices(a, b, rng.integers(2, size=len(a)).astype(np.float64), np.arange(len(a)))
