"""How often answers at random are called a signal, and how often a real belief is found.

The verdict "signal" needs two things (`llm_elicit.audit.signal`): answers that depend on the
points, by a randomization test, and a belief apart from λ. Coins are put to the first alone, which
can only alarm more often than both; the target's own judge is put to both, with a fit.
"""

from __future__ import annotations

import time

import numpy as np

from llm_elicit.audit.evidence import AuditSettings
from llm_elicit.audit.signal import assess_signal, distance_from_sampling, randomization_test
from llm_elicit.audit.standard import Standard
from llm_elicit.benchmarks.catalogue import find
from llm_elicit.benchmarks.job import Job, Row
from llm_elicit.benchmarks.measure import Array, Streams, compare, peak_mib, provenance_of
from llm_elicit.comparisons import Choices
from llm_elicit.density import BETWEEN_ROUNDS, fit_belief
from llm_elicit.features import Feature, FeatureSpace

COINS = 100
_DRAWN = 4000


def measure_power(job: Job) -> Row:
    """The share of coins that raise an alarm, and whether the target's judge is found.

    Example:
        >>> row = measure_power(Job("power", "Ring2D", "auto", seed=11, n=200))
        >>> row["false_alarms"] < 0.2, row["found"]
        (True, 1.0)
    """
    target, settings = find([job.target])[0], AuditSettings()
    streams = Streams.of(job.target, job.seed)
    winners, losers = compare(target, job.n, streams)
    space = _space(np.concatenate([winners, losers]))
    began = time.perf_counter()
    p_values = [
        randomization_test(_tossed(winners, losers, streams.truth), space, settings.flips,
                           streams.truth)[0]
        for _ in range(COINS)
    ]  # fmt: skip
    tested = time.perf_counter()
    belief = fit_belief(
        winners, losers, sampling=target.sampling, method="auto", seed=streams.fit,
        settings=BETWEEN_ROUNDS,
    )  # fmt: skip
    sampling = target.sampling.sample(_DRAWN, streams.truth)
    standard = Standard.of(space, sampling)
    drawn = belief.sample(_DRAWN, seed=streams.draw)
    rng = streams.truth
    apart = distance_from_sampling(standard(drawn), standard(sampling), job.n, settings, rng)
    # Which side a winner stood on says nothing, so half of the pairs are turned.
    told = _turned(winners, losers, rng)
    verdict = assess_signal(
        *randomization_test(told, space, settings.flips, rng), apart, settings
    ).verdict
    return {
        "dimension": target.dimension,
        "false_alarms": float(np.mean(np.array(p_values) < settings.level)),
        "coins": COINS,
        "found": float(verdict == "signal"),
        "fit_seconds": time.perf_counter() - tested,
        "sample_seconds": tested - began,
        "peak_mib": peak_mib(),
        **provenance_of(time.perf_counter()),
    }


def _space(points: Array) -> FeatureSpace:
    """A space that these points (n, d) lie in: the tests need scales alone."""
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


def _tossed(a: Array, b: Array, rng: np.random.Generator) -> Choices:
    """A coin's choices on these pairs."""
    return Choices(a, b, rng.integers(2, size=len(a)).astype(np.float64), np.arange(len(a)))
