"""Coverage of credible bands: judges with a known belief, and 90 % bands of its posterior draws.

Each row has the share of bands that contain the true value: of every feature's mean, of its
quantiles at five levels, and of its distribution function at the true 10, 30, 50, 70 and 90 %
quantiles (the band of a marginal). Judges choose with the noise of the variant; the fit assumes
the same noise, except in the variants with a wrong level. The judge of the variant "log-odds" is a
`LowAmplitudeJudge`, and its belief is brought to the true power.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks import DEFAULT, Job, Row
from benchmarks.low_amplitude import LowAmplitudeJudge
from benchmarks.measure import Array, Streams, compare, peak_mib, provenance_of
from benchmarks.targets import Target, find
from llm_elicit.density import BeliefDensity, Noise, band, fit_belief, fit_evidence

LEVEL = 0.9
_QUANTILES = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
_CUTS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
_TRUE = 200_000


@dataclass(frozen=True)
class Judge:
    """The noise of the choices, and the noise that the fit assumes."""

    real: Noise
    assumed: Noise


JUDGES = {
    DEFAULT: Judge(Noise(), Noise()),
    "exponential": Judge(Noise("exponential"), Noise("exponential")),
    "normal": Judge(Noise("normal"), Noise("normal")),
    "half-level": Judge(Noise(), Noise(level=0.5 * Noise().level)),
    "double-level": Judge(Noise(), Noise(level=2.0 * Noise().level)),
}
LOG_ODDS = "log-odds"
KINDS_OF_JUDGES = (*JUDGES, LOG_ODDS)


def measure_coverage(job: Job) -> Row:
    """Fit, draw beliefs, and return which shares of the bands hold the truth.

    Examples:
        >>> row = measure_coverage(Job("coverage", "Ring2D", "auto", seed=11, n=40))
        >>> 0.0 <= row["quantile_cover"] <= 1.0
        True
    """
    target, streams = find([job.target])[0], Streams.of(job.target, job.seed)
    ask = _ask_for_log_odds if job.variant == LOG_ODDS else _ask_for_choices
    fit = ask(job, target, streams)
    began = time.process_time()
    belief = fit()
    fitted = time.process_time()
    draws = belief.draws(seed=streams.draw)
    drawn = time.process_time()
    truth = target.sample(_TRUE, streams.truth)
    cuts = np.quantile(truth, _CUTS, axis=0)
    means = draws.mean()
    held = {
        "mean": _held(means, truth.mean(0)),
        "quantile": _held(draws.quantile(_QUANTILES), np.quantile(truth, _QUANTILES, axis=0)),
        "cdf": _held(draws.cdf(cuts), np.repeat(_CUTS[:, None], target.dimension, 1)),
    }
    low, high = band(means, LEVEL)
    return {
        "dimension": target.dimension,
        "fit_seconds": fitted - began,
        "sample_seconds": drawn - fitted,
        "peak_mib": peak_mib(),
        **{f"{name}_cover": share for name, share in held.items()},
        "mean_width": float(((high - low) / truth.std(0)).mean()),
        **provenance_of(drawn),
    }


def _ask_for_choices(job: Job, target: Target, streams: Streams) -> Callable[[], BeliefDensity]:
    """Return the fit to a judge's choices."""
    judge = JUDGES[job.variant]
    winners, losers = compare(target, job.n, streams, judge.real)
    return partial(
        fit_belief, winners, losers, sampling=target.sampling, method=job.method,
        noise=judge.assumed, seed=streams.fit,
    )  # fmt: skip


def _ask_for_log_odds(job: Job, target: Target, streams: Streams) -> Callable[[], BeliefDensity]:
    """Return the fit to a judge's log-odds, at the true power."""
    judge = LowAmplitudeJudge.of(target, streams.choices)
    a, b = (target.sampling.sample(job.n, streams.pairs) for _ in range(2))
    answers = judge.judge_points(a, b)
    fit = partial(
        fit_evidence, answers, sampling=target.sampling, method=job.method, seed=streams.fit
    )
    return lambda: fit().tempered(1.0 / judge.gain, seed=streams.fit)


def _held(values: Array, truth: Array) -> float:
    """Return the share of bands around values (S, ...) that hold the truth (...)."""
    low, high = band(values, LEVEL)
    return float(((low <= truth) & (truth <= high)).mean())
