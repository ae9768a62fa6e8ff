"""Judges with log-odds of low amplitude, whose power is estimated from judgments of ranges.

The judge's log-odds of a over b are κ (log p(a) − log p(b)), with κ such that their standard
deviation over pairs from λ is `LOG_ODDS_SD`, plus noise and a position effect that varies between
pairs. The judge is asked pairs from λ and then pairs of ranges, with log-odds
κ (log P(R) − log P(R')), each in both orders. The true power of the fitted utility is 1/κ.

Two variants measure how often a judge is called incoherent, without distances: ``mass`` answers
ranges as above, ``values`` by the mean of log p over a range, independent of its width.
"""

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp
from scipy.stats import spearmanr

from benchmarks import DEFAULT, Job, Row
from benchmarks.measure import Array, Streams, peak_mib, provenance_of
from benchmarks.targets import Target, find
from llm_elicit.density import (
    BeliefDensity,
    Evidence,
    GaussianMixture,
    Ranges,
    Uniform,
    fit_evidence,
    fit_power,
)
from llm_elicit.planning.direct_questions import draw_ranges

LOG_ODDS_SD = 0.2
"""Standard deviation of the log-odds over pairs from λ."""
_NOISE, _POSITION, _POSITION_SD = 0.07, 0.1, 0.05
_RANGES = 40
_SCALE_DRAWS, _POINTS, _AVERAGED = 100_000, 4000, 2000
_NODES = {1: 400, 2: 160}
_TAIL = 0.005
COHERENCE = ("mass", "values")
RESPONSES = (DEFAULT, *COHERENCE)
"""How ranges are answered."""
COHERENCE_TARGETS = ("Normal1D", "Onemoon2D", "Gaussian4D")


@dataclass
class LowAmplitudeJudge:
    """A judge who holds the target's density and answers with small log-odds; ``gain`` is κ."""

    target: Target
    gain: float
    rng: np.random.Generator = field(repr=False)

    @classmethod
    def of(cls, target: Target, rng: np.random.Generator) -> LowAmplitudeJudge:
        """Return the judge whose log-odds over pairs from λ have the sd `LOG_ODDS_SD`."""
        a, b = (target.log_density(target.sampling.sample(_SCALE_DRAWS, rng)) for _ in range(2))
        return cls(target, LOG_ODDS_SD / float(np.std(a - b)), rng)

    def judge_points(self, a: Array, b: Array) -> Evidence:
        """Its answers to pairs of points (n, d), in both orders."""
        apart = self.target.log_density(a) - self.target.log_density(b)
        sides = np.concatenate([a, b]), np.concatenate([b, a])
        return Evidence.log_odds(*sides, self._answer(apart))

    def judge_ranges(self, first: Array, second: Array, *, by_mass: bool = True) -> Ranges:
        """Its answers to pairs of ranges (n, d, 2), in both orders, by mass or by mean log p."""
        of = log_mass if by_mass else self.mean_log_density
        apart = of(self.target, first) - of(self.target, second)
        sides = np.concatenate([first, second]), np.concatenate([second, first])
        return Ranges(*sides, self._answer(apart))

    def mean_log_density(self, target: Target, boxes: Array) -> Array:
        """Mean log p (n,) within boxes (n, d, 2), free features being drawn from λ."""
        x = target.sampling.sample(_AVERAGED, self.rng)
        found = np.empty(len(boxes))
        for at, box in enumerate(boxes):
            bounded = np.isfinite(box).all(1)
            within = x.copy()
            low, high = box[bounded].T
            within[:, bounded] = low + (high - low) * self.rng.random((_AVERAGED, len(low)))
            found[at] = target.log_density(within).mean()
        return found

    def _answer(self, apart: Array) -> Array:
        """Return log-odds (2n,) given the differences (n,) of log p: one order, then the other."""
        position = self.rng.normal(_POSITION, _POSITION_SD, len(apart))
        both = np.concatenate([position + self.gain * apart, position - self.gain * apart])
        return np.asarray(both + self.rng.normal(0.0, _NOISE, len(both)))


def log_mass(target: Target, boxes: Array) -> Array:
    """Return log of the mass (n,) that the target has in boxes (n, d, 2), up to one constant.

    By Gauss–Legendre quadrature over two features at most: those that a box bounds of a mixture of
    Gaussians, λ's bounds being far away, or else all.
    """
    return np.array([_log_mass(target, box) for box in boxes])


def _log_mass(target: Target, box: Array) -> float:
    density, bounds = target.log_density, box
    if target.law is not None:
        bounded = np.flatnonzero(np.isfinite(box).all(1))
        density, bounds = _marginal(target.law, bounded).log_prob, box[bounded]
    elif isinstance(target.sampling, Uniform):
        low, high = target.sampling.low[:, None], target.sampling.high[:, None]
        bounds = np.clip(box, low, high)
    nodes, weights = _rule(len(bounds))
    middle, half = bounds.mean(1), 0.5 * (bounds[:, 1] - bounds[:, 0])
    axes = np.meshgrid(*(middle[:, None] + half[:, None] * nodes), indexing="ij")
    products = np.meshgrid(*np.log(half[:, None] * weights), indexing="ij")
    points = np.stack([axis.ravel() for axis in axes], axis=1)
    return float(logsumexp(density(points) + np.sum(products, axis=0).ravel()))


@functools.cache
def _rule(features: int) -> tuple[Array, Array]:
    """Return nodes and weights for each of so many features; to compute them takes 15 ms."""
    return np.polynomial.legendre.leggauss(_NODES[features])


def _marginal(law: GaussianMixture, features: npt.NDArray[np.intp]) -> GaussianMixture:
    covariances = law.covariances[:, features[:, None], features]
    return GaussianMixture(law.weights, law.means[:, features], covariances)


def box_of(target: Target) -> tuple[Array, Array]:
    """Return the box (d,), (d,) that ranges are drawn within: λ's, or its central 99 %."""
    if isinstance(target.sampling, Uniform):
        return target.sampling.low, target.sampling.high
    points = target.sampling.sample(_SCALE_DRAWS, np.random.default_rng(0))
    low, high = np.quantile(points, [_TAIL, 1.0 - _TAIL], axis=0)
    return low, high


def measure_low_amplitude(job: Job) -> Row:
    """Fit the judge, estimate the power from ranges, and return the errors of both.

    Examples:
        >>> job = Job("low-amplitude", "Ring2D", "auto", seed=11, n=50, points=200)
        >>> row = measure_low_amplitude(job)
        >>> row["rank_correlation"] > 0.3, row["power_low"] < row["power_high"]
        (True, True)
    """
    target, streams = find([job.target])[0], Streams.of(job.target, job.seed)
    judge = LowAmplitudeJudge.of(target, streams.choices)
    pairs = tuple(target.sampling.sample(job.n, streams.pairs) for _ in range(2))
    answers = judge.judge_points(*pairs)
    drawn = draw_ranges(*box_of(target), _RANGES, streams.pairs)
    ranges = judge.judge_ranges(*drawn, by_mass=job.variant != "values")
    began = time.process_time()
    belief = fit_evidence(answers, sampling=target.sampling, method=job.method, seed=streams.fit)
    fitted = time.process_time()
    power = fit_power(belief, ranges=ranges, seed=streams.draw)
    estimated = time.process_time()
    true_power = 1.0 / judge.gain
    at = target.sampling.sample(_POINTS, streams.truth)
    distances: Row = {}
    if job.variant == DEFAULT:
        distances = _distances(job, target, belief, (power.value, true_power), streams)
    return {
        "dimension": target.dimension,
        "rank_correlation": float(spearmanr(belief.utility(at), target.log_density(at))[0]),
        "held_out_r2": belief.diagnostics["response"]["held_out_r2"],
        "true_power": true_power,
        "power": power.value,
        "power_low": power.low,
        "power_high": power.high,
        "covered": float(power.low <= true_power <= power.high),
        "coherent": None if power.coherence is None else float(power.coherence.coherent),
        "fit_seconds": fitted - began,
        "power_seconds": estimated - fitted,
        "sample_seconds": 0.0,
        "peak_mib": peak_mib(),
        "diagnostics": json.dumps(belief.diagnostics, default=str),
        **distances,
        **provenance_of(estimated),
    }


def _distances(
    job: Job, target: Target, belief: BeliefDensity, powers: tuple[float, float], streams: Streams
) -> Row:
    """Return W1 at the estimated and at the true power, and the floor."""
    # Not before the fit: what these bring in would count into its memory.
    from llm_elicit.audit.distances import wasserstein  # noqa: PLC0415

    truth, other = (target.sample(job.points, streams.truth) for _ in range(2))
    sharper = (belief.tempered(power, seed=streams.draw) for power in powers)
    found = [wasserstein(b.sample(job.points, seed=streams.draw), truth) for b in sharper]
    return {"w1": found[0], "w1_true_power": found[1], "w1_floor": wasserstein(other, truth)}
