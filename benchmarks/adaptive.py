"""The number of questions needed if the pairs of each round depend on the answers before it.

A judge with a known belief is asked pairs from λ, then rounds half as large as all before them
together, each suggested by a fit without networks. The last fit is `auto` with its defaults.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import Job, Row
from benchmarks.measure import (
    Array,
    Streams,
    choose,
    compare,
    peak_mib,
    provenance_of,
)
from benchmarks.targets import Target, find
from llm_elicit.density import (
    BETWEEN_ROUNDS,
    BeliefDensity,
    FitSettings,
    fit_belief,
    suggest_pairs,
)

FIRST = 50
"""Comparisons per feature in the first round."""
_GROWTH = 1.5


def round_ends(dimension: int, n: int) -> list[int]:
    """Return comparisons asked by the end of each round.

    Examples:
        >>> round_ends(2, 400)
        [100, 150, 225, 338, 400]
    """
    ends = [min(FIRST * dimension, n)]
    while ends[-1] < n:
        ends.append(min(math.ceil(_GROWTH * ends[-1]), n))
    return ends


@dataclass
class _Asked:
    """A simulated judge and its answers."""

    target: Target
    streams: Streams
    winners: list[Array] = field(default_factory=list)
    losers: list[Array] = field(default_factory=list)

    def keep(self, choices: tuple[Array, Array]) -> None:
        self.winners.append(choices[0])
        self.losers.append(choices[1])

    def fit(self, settings: FitSettings | None) -> BeliefDensity:
        return fit_belief(
            np.concatenate(self.winners),
            np.concatenate(self.losers),
            sampling=self.target.sampling,
            method="auto",
            seed=self.streams.fit + len(self.winners),
            settings=settings,
        )


def measure_adaptive(job: Job) -> Row:
    """Ask in rounds up to the job's n and return its row; ``curve`` has the distances on the way.

    ``suggest_seconds`` are those of the slowest round, for a hundred pairs.
    """
    target = find([job.target])[0]
    streams = Streams.of(job.target, job.seed)
    truth = target.sample(job.samples, streams.truth)
    asked, ends = _Asked(target, streams), round_ends(target.dimension, job.n)
    asked.keep(compare(target, ends[0], streams))
    curve: list[dict[str, Any]] = []
    slowest, last, began = 0.0, 0.0, time.process_time()
    for number, end in enumerate(ends):
        fitting = time.process_time()
        belief = asked.fit(None if end == job.n else BETWEEN_ROUNDS)
        drawn = belief.sample(job.samples, seed=streams.draw)
        last = time.process_time() - fitting
        curve.append({"n": end, **_distances(job, drawn, truth)})
        if end < job.n:
            size, choosing = ends[number + 1] - end, time.process_time()
            pairs = suggest_pairs(belief, size, seed=streams.fit + number)
            slowest = max(slowest, (time.process_time() - choosing) * 100 / size)
            asked.keep(choose(target, pairs, streams))
    return {
        "dimension": target.dimension,
        "fit_seconds": last,
        "sample_seconds": 0.0,
        "total_seconds": time.process_time() - began,
        "suggest_seconds": slowest,
        "peak_mib": peak_mib(),
        "curve": json.dumps(curve),
        **{name: curve[-1][name] for name in ("w1", "mmtv")},
        **_floor(job, target, streams),
        **provenance_of(time.process_time()),
    }


def _distances(job: Job, drawn: Array, truth: Array) -> dict[str, float]:
    from benchmarks.metrics import distances  # noqa: PLC0415 - see measure

    return distances(drawn, truth, job.points)._asdict()


def _floor(job: Job, target: Target, streams: Streams) -> Row:
    from benchmarks.metrics import floor  # noqa: PLC0415 - see measure

    chance = floor(target, job.samples, job.points, streams.truth)
    return {f"{name}_floor": value for name, value in chance._asdict().items()}
