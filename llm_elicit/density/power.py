"""The scale of a belief: which power k makes exp(k f) the judge's density.

Comparisons determine f up to a factor, so the belief is one of p_k ∝ exp(k f). Further answers
determine k, by the likelihoods of `llm_elicit.density.power_likelihood`. Each is evaluated at a
grid of powers, and at a finer grid about the most likely ones, and interpolated by a cubic spline.
The prior is flat in log k.

Where few comparisons leave f inexact within the bulk of the belief, the sources differ. Points and
quantiles give the power at which p_k is nearest to the judge's density, which is below that of the
judge: 0.3 to 0.4 of it with 60 pairs of four features, 0.7 with 300. Ratios of points from λ give
the judge's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.errors import DensityError, instance, seed_of
from llm_elicit.density.power_likelihood import Curve, PowerLikelihoods
from llm_elicit.density.power_path import log_grid
from llm_elicit.density.ranges import RangeLikelihood, Ranges
from llm_elicit.density.summaries import Coherence, Power
from llm_elicit.density.torch_utils import one_thread

Array = npt.NDArray[np.float64]

_FINER = 16
_LIKELY = 8.0  # nats below the most likely power, beyond which the coarse grid suffices
_FINE = 4001


def fit_power(
    belief: BeliefDensity,
    *,
    points: npt.ArrayLike | None = None,
    quantiles: Mapping[int, Mapping[float, float]] | None = None,
    ranges: Ranges | None = None,
    ratios: Sequence[npt.ArrayLike] | None = None,
    seed: int = 0,
) -> Power:
    """Return the power k at which exp(k f) is the judge's density, with f the belief's utility.

    Parameters
    ----------
    belief : fitted by "auto" or "utility"; the power is relative to it.
    points : (m, d) points that the judge stated, or draws from its density, natural units.
    quantiles : for each feature, by number, values of its quantiles by level: {0: {0.5: 3.1}}.
    ranges : `Ranges` that the judge compared.
    ratios : (a, b, log_ratio), (n, d), (n, d) and (n,): the log of how many times as plausible
        a is.
    seed : of the random numbers of integration.

    Returns
    -------
    The `Power` by all sources given, with that of each alone in ``sources``.

    Raises
    ------
    DensityError : no source, points outside the support, quantiles that do not increase, ranges
        outside the support, values that are not finite, a flat belief, or one by another method.

    Examples
    --------
    >>> import numpy as np
    >>> from llm_elicit.density import Uniform, fit_belief
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.uniform(-3, 3, (2, 60, 1))
    >>> log_odds = 0.1 * (b**2 - a**2)[:, 0] + 0.02 * rng.normal(size=60)   # a tenth of N(0, ½)
    >>> belief = fit_belief(a, b, log_odds=log_odds, sampling=Uniform([-3.0], [3.0]))
    >>> power = fit_power(belief, points=rng.normal(0, 0.5**0.5, (100, 1)))
    >>> bool(power.low < 10 < power.high)
    True
    """
    instance("fit_power: belief", belief, BeliefDensity, "fit one first")
    seed_of("fit_power: seed", seed)
    if ranges is not None:
        instance("fit_power: ranges", ranges, Ranges, "make it by Ranges(first, second, log_odds)")
    if quantiles is not None and not isinstance(quantiles, Mapping):
        raise DensityError(
            f"fit_power: quantiles = {quantiles!r}; pass {{feature: {{level: value}}}}."
        )
    with one_thread():
        fitted = PowerLikelihoods(belief, seed)
        of_ranges = None if ranges is None else fitted.of_ranges(ranges)
        found: dict[str, Curve] = {}
        if points is not None:
            found["points"] = fitted.of_points(points)
        if quantiles is not None:
            found["quantiles"] = fitted.of_quantiles(quantiles)
        if of_ranges is not None:
            found["ranges"] = of_ranges.curve
        if ratios is not None:
            found["ratios"] = fitted.of_ratios(ratios)
        if not found:
            raise DensityError(
                "fit_power: no source was given; pass points, quantiles, ranges or ratios."
            )
        return _power(fitted.powers, found, of_ranges)


def _power(powers: Array, found: dict[str, Curve], of_ranges: RangeLikelihood | None) -> Power:
    """Return the power by all log-likelihoods together, and by each alone."""
    nodes = {name: _nodes(powers, curve) for name, curve in found.items()}
    coherence: Coherence | None = None
    if of_ranges is not None:
        coherence = of_ranges.coherence(nodes["ranges"].likely)
    at = np.linspace(np.log(powers[0]), np.log(powers[-1]), _FINE)
    curves = {name: each.curve(at) for name, each in nodes.items()}
    alone = [_summary(at, curve, name) for name, curve in curves.items()]
    alone = [replace(p, coherence=coherence) if p.source == "ranges" else p for p in alone]
    if len(alone) == 1:
        return replace(alone[0], sources=(alone[0],))
    joint = _summary(at, sum(curves.values(), np.zeros(_FINE)), " + ".join(found))
    return replace(joint, sources=tuple(alone), agreement=_agreement(alone), coherence=coherence)


@dataclass(frozen=True)
class _Nodes:
    """A log-likelihood at powers (K,), with those of them that are ``likely`` (L,)."""

    powers: Array
    values: Array
    likely: Array

    def curve(self, at: Array) -> Array:
        """Return values (n,) at log-powers (n,) by a cubic spline."""
        return np.asarray(CubicSpline(np.log(self.powers), self.values)(at))


def _nodes(powers: Array, curve: Curve) -> _Nodes:
    """Return a log-likelihood at these powers, and at closer ones about the most likely."""
    values = curve(powers)
    near = np.flatnonzero(values > values.max() - _LIKELY)
    first, last = max(near[0] - 1, 0), min(near[-1] + 1, len(powers) - 1)
    finer = log_grid(powers[first], powers[last], _FINER)
    closer = curve(finer)
    # Each grid has particles of its own, so the two curves differ by a constant besides noise.
    within = slice(first, last + 1)
    matched = CubicSpline(np.log(finer), closer)(np.log(powers[within]))
    shift = float(np.mean(values[near] - matched[near - first]))
    outside = np.delete(np.arange(len(powers)), np.r_[within])
    merged = np.concatenate([powers[outside], finer])
    both = np.concatenate([values[outside], closer + shift])
    order = np.argsort(merged)
    return _Nodes(merged[order], both[order], finer)


def _summary(at: Array, logs: Array, source: str) -> Power:
    """Return the median and central 90 % of the posterior under a prior flat in log k."""
    mass = np.exp(logs - logsumexp(logs))
    reached = np.cumsum(mass) - 0.5 * mass
    low, value, high = np.exp(np.interp([0.05, 0.5, 0.95], reached, at))
    sd = float(np.sqrt(mass @ np.square(at - mass @ at)))
    above_flat = float(logs.max() - logs[0])
    return Power(float(value), float(low), float(high), source, sd, above_flat=above_flat)


def _agreement(alone: Sequence[Power]) -> float:
    """Return the p-value of Cochran's test that all have one log k."""
    logs, weight = np.log([p.value for p in alone]), np.array([p.log_sd for p in alone]) ** -2.0
    centre = weight @ logs / weight.sum()
    return float(stats.chi2.sf(weight @ np.square(logs - centre), len(alone) - 1))
