"""What every fit reports of itself: sampler, bounds, and the error of its log-density.

*Effective sample size.* Annealed particles that descend from the same initial draw share a
genealogy. Moves make relatives independent as far as they mix, but relatives keep in common what
moves cannot change, such as the mode they are in. The variance of a mean over particles is
therefore estimated with genealogies as the unit,

    V = F/(F − 1) · Σ_f S_f²/n²,   S_f = Σ_{i in genealogy f} (φ(x_i) − mean φ),

the estimator of Lee and Whiteley (2018, "Variance estimation in the particle filter") for a
normalized mean, with n²/Σ n_f² for the F of the small-sample factor. The effective sample size
is the number of independent draws that would have this variance: Var φ/V. The smallest over the
mean and the mean square of every feature is reported. It does not measure whether a mode was
missed by all particles. Systematic resampling is less noisy than the multinomial resampling
that the estimator assumes, so the size is conservative.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.empirical import Empirical
from llm_elicit.density.latent import Array, Latent
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.methods import DensityModel, LogNormalizer
from llm_elicit.density.sampling import SamplingDensity
from llm_elicit.density.smc import Draws
from llm_elicit.density.uniform import Uniform

AT_BOUND = 0.01
_MEASURED = 512


def effective_size(genealogies: Tensor, values: Tensor) -> float:
    """Return the effective number of draws for the means of values (n, k), the smallest of k."""
    n = len(values)
    centred = (values - values.mean(0)).double()
    labels = torch.from_numpy(np.unique(genealogies.numpy(), return_inverse=True)[1])
    count = int(labels.max()) + 1
    if count == n:
        return float(n)
    sizes = torch.bincount(labels, minlength=count).double()
    members = n**2 / float(sizes.square().sum())
    if members <= 1.0:
        return 1.0
    sums = torch.zeros(count, centred.shape[1], dtype=torch.float64).index_add_(0, labels, centred)
    between, within = sums.square().sum(0), centred.square().sum(0)
    varies = within > 1e-12 * n
    if not varies.any():
        return float(members)
    least = float((within[varies] / between[varies].clamp(min=1e-300)).min())
    return max(1.0, min(n * least, float(n)) * (1.0 - 1.0 / members))


def sampler_facts(latent: Latent, draws: Draws) -> dict[str, Any]:
    """Return the numbers of draws and of genealogies, and the effective sample size."""
    t = latent.features(draws.points)
    size = effective_size(draws.genealogies, torch.cat([t, t.square()], 1))
    n = len(draws.points)
    return {
        "draws": n,
        "genealogies": len(np.unique(draws.genealogies.numpy())),
        "effective": round(size, 1),
        "effective_share": round(size / n, 4),
    }


def bound_facts(latent: Latent, draws: Draws) -> dict[str, Any]:
    """Return the shares of draws near the bounds of λ's support and beyond the compared points.

    ``each`` (d,) is the share within 1 % of a feature's range, on its scale, from either bound;
    None if the feature has none. A flat belief has 0.02 of its mass there. ``any`` is the share
    with at least one feature there. ``beyond_comparisons`` is the share farther out than every
    compared point, where the belief is tapered and no answer is informative; 0 in a box.
    """
    near = near_bounds(latent.sampling, latent.from_latent(draws.points.numpy()))
    beyond = draws.points.norm(dim=1) > latent.radius
    in_box = isinstance(latent.sampling, Uniform)
    return {
        "each": [None if math.isnan(s) else s for s in near.mean(0).tolist()],
        "any": None if np.isnan(near).all() else float((near == 1.0).any(1).mean()),
        "beyond_comparisons": 0.0 if in_box else float(beyond.double().mean()),
    }


def near_bounds(sampling: SamplingDensity, x: Array) -> Array:
    """Return 1 where a feature of x (n, d) lies within 1 % of its range from a bound, else 0.

    NaN if the feature has no bound, is periodic, has categories, or has whole numbers of
    which one is more than 1 % of the range. The range of a feature with one bound is that of the
    central 99.9 % of λ.
    """
    if isinstance(sampling, Uniform):
        cube = sampling.to_cube(x)
        near = np.minimum(cube, 1.0 - cube) < AT_BOUND
        ends = np.stack([sampling.low, sampling.high])[..., None].repeat(2, -1)
        coarse = (np.diff(sampling.edges(ends))[..., 0] > AT_BOUND).any(0)
        unbounded = sampling.categorical | sampling.periodic | coarse
        return np.where(unbounded, np.nan, near.astype(np.float64))
    if not isinstance(sampling, Empirical):
        return np.full(x.shape, np.nan)
    low, high = sampling.marginals.low, sampling.marginals.high
    tails = torch.tensor([[-3.29], [3.29]], dtype=torch.float64).expand(2, sampling.dimension)
    first, last = sampling.marginals.value(tails).numpy()
    width = np.where(np.isfinite(high), high, last) - np.where(np.isfinite(low), low, first)
    z = sampling.to_scale(x)
    near = np.minimum(z - low, high - z) < AT_BOUND * width
    bounded = np.isfinite(low) | np.isfinite(high)
    return np.where(bounded, near.astype(np.float64), np.nan)


def self_report(latent: Latent, model: DensityModel, normalizer: LogNormalizer) -> dict[str, Any]:
    """Return the part of ``diagnostics`` that is common to all methods; JSON-able.

    ``log_prob_error`` (nats): the standard error of log Z, the root mean square error of
    evaluation and of the path (see `llm_elicit.density.methods.EvaluationError`), and
    the root of the sum of their squares; None where a solver failed.
    """
    chosen = torch.linspace(0, len(normalizer.draws.points) - 1, _MEASURED).long()
    error = model.evaluation_error(normalizer.draws.points[chosen])
    parts = (normalizer.standard_error, error.numerical, error.path)
    names = ("log_normalizer", "evaluation", "path", "total")
    stated = zip(names, (*parts, math.hypot(*parts)), strict=True)
    return {
        "log_normalizer": normalizer.value,
        "log_normalizer_se": normalizer.standard_error,
        "log_prob_error": {k: v if math.isfinite(v) else None for k, v in stated},
        "sampler": sampler_facts(latent, normalizer.draws),
        "bounds": bound_facts(latent, normalizer.draws),
    }


def bounded_below(diagnostics: Mapping[str, Any]) -> bool:
    """Return whether choices bound a belief's sharpness from below only, and not by chance.

    Example:
        >>> bounded_below({"separation": {"rule": "linear", "by_chance": False}}), bounded_below({})
        (True, False)
    """
    separation = diagnostics.get("separation")
    return separation is not None and not separation["by_chance"]


def fit_warnings(diagnostics: Mapping[str, Any]) -> list[str]:
    """Return a line on each uncertainty of a belief that its bands do not show.

    Example:
        >>> fit_warnings({"separation": None, "extent": {"factor": 2.0, "message": "it is long"}})
        ['it is long']
    """
    facts = (diagnostics.get(name) for name in ("separation", "extent"))
    return [str(fact["message"]) for fact in facts if isinstance(fact, Mapping)]


def at_level(diagnostics: dict[str, Any], noise: Noise, before: Noise) -> dict[str, Any]:
    """Return the report of a fit at another noise level: levels and position effects rescaled.

    Held-out likelihoods are those of the same choices and do not change, but for that of λ as the
    belief, which would need the comparisons and is left out.
    """
    report = {**copy.deepcopy(diagnostics), "noise": asdict(noise)}
    report.get("null_models", {}).pop("sampling density", None)
    judging = report.get("utility", {}).get("judging", {})
    for judge in judging.get("judges", {}).values():
        judge["level"] *= noise.level / before.level
        for places in judge["order_bias"].values():
            for place in places:
                place["nats"] *= noise.scale / before.scale
                place["se"] *= noise.scale / before.scale
    return report
