"""From judgments to a belief density: `fit_belief` from pairs, `fit_evidence` from all kinds."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llm_elicit.density import errors, methods
from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.errors import DensityError
from llm_elicit.density.evidence import Evidence
from llm_elicit.density.feature_names import FeatureNames
from llm_elicit.density.latent import make_latent
from llm_elicit.density.likelihood import Judgments, Noise, choice_log_likelihood, merge
from llm_elicit.density.methods import MethodFit, Problem
from llm_elicit.density.sampling import (
    SamplingDensity,
    Uniform,
    check_inside,
    describe_unsupported,
)
from llm_elicit.density.score import fit_score
from llm_elicit.density.settings import FitSettings, Progress
from llm_elicit.density.torch_utils import one_thread
from llm_elicit.density.unbounded import GaussianMixture
from llm_elicit.density.utility.cross_validation import ChoiceData
from llm_elicit.density.utility.fit import UtilityFit, fit_utility
from llm_elicit.density.utility.gaussian_process import fit_log_odds
from llm_elicit.density.utility_function import DeferredDraws

JUDGE_METHODS = ("auto", "utility")
"""Methods that model the judges. They take log-odds, positions, ties, rankings and categories."""
SCORE_METHODS = ("score", "score-constant")
_REFERENCE_POINTS = 2048
_MIN_WEIGHT, _MAX_WEIGHT = 1e-9, 1e12
"""Weights outside this range exceed the precision of floats beside the prior."""


def fit_belief(  # noqa: PLR0913 - the public function carries every choice a caller can make
    winners: Any,
    losers: Any,
    *,
    sampling: SamplingDensity | None = None,
    method: str = "auto",
    noise: Noise | None = None,
    weights: npt.ArrayLike | None = None,
    log_odds: npt.ArrayLike | None = None,
    seed: int = 0,
    settings: FitSettings | None = None,
    progress: Progress | None = None,
) -> BeliefDensity:
    """Estimate a judge's belief density from pairwise comparisons.

    Args:
        winners: (n, d) floats in natural units. Columns of data frames are matched by name, in the
            order of ``winners``, and name the features; those of dtype "category" with words are
            codes 0, 1, ... in the order of the categories, and dates are days since 1 January 1970.
        losers: (n, d) floats; row i says winners[i] beat losers[i].
        sampling: λ, the density the compared points were drawn from: `Uniform`,
            `GaussianMixture` or `Empirical`. A `Uniform` may give features a logarithmic scale, and
            the belief that enters the utility is then the density per unit of that scale.
        method: ``"auto"``, the utility as a sum of forms weighted by held-out choices,
            with the reason in ``diagnostics["reason"]``; ``"score"``, networks trained on pairs by
            denoising score matching (after Mikkola, Acerbi and Klami, 2026), which take longer and
            share no part with ``"utility"``;
            ``"score-constant"``, the belief that one constant in place of their tempering field
            implies (Proposition 3.2);
            ``"utility"``, the Bradley–Terry utility density exp(f); or an external method, such as
            the baseline ``"flow"``, a preferential normalizing flow (Mikkola, Acerbi and
            Klami, 2024).
        noise: the judge's `Noise`; None is Bradley–Terry with s = √6/π.
        weights: (n,) >= 0, how many judgments a row stands for. A share q of votes for a over b is
            two rows: (a, b) with weight q and (b, a) with weight 1 − q. A judge who gives a
            probability gives a measurement instead: see ``log_odds``.
        log_odds: (n,) measured log-odds of the points in ``winners``, which are then those shown
            first, over the points in ``losers``, those shown second; as `Evidence.log_odds`.
        seed: seed of all random numbers of the fit; the same inputs and seed give the same belief.
        settings: `FitSettings`; the default suits problems of every size.
        progress: called as progress(stage, done, total).

    Diagnostics of the fit are in ``diagnostics``; see `BeliefDensity`.

    Raises:
        DensityError: an argument that cannot be used; the message says which, why, and what to do.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import Uniform
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
        >>> nearer = abs(a - 1) < abs(b - 1)              # this judge likes values near one
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
        >>> bool(abs(belief.sample(1000, seed=1).mean() - 1) < 0.5)
        True
    """
    if log_odds is None:
        evidence = Evidence.choices(winners, losers, weights)
    elif weights is None:
        evidence = Evidence.log_odds(winners, losers, log_odds)
    else:
        raise DensityError(
            "fit_belief: log_odds take no weights, since each of them is one answer; leave weights "
            "out, and repeat the row of a question that was asked several times."
        )
    return fit_evidence(
        evidence,
        sampling=sampling,
        method=method,
        noise=noise,
        seed=seed,
        settings=settings,
        progress=progress,
    )


def fit_evidence(
    evidence: Evidence,
    *,
    sampling: SamplingDensity | None = None,
    method: str = "auto",
    noise: Noise | None = None,
    seed: int = 0,
    settings: FitSettings | None = None,
    progress: Progress | None = None,
) -> BeliefDensity:
    """Estimate a belief density from judgments of every kind, and the judges' own parameters.

    ``diagnostics["utility"]["judging"]`` has each judge's noise ``level``, the effect of each place
    shown (``order_bias``, nats over the last place), and Davidson's ν (``ties``). The level of the
    first of ``evidence.judges`` is that of ``noise``, because choices determine only ratios of
    levels. With plain comparisons by one judge the result is that of `fit_belief`, bit for bit.

    If the evidence is choices alone, in several presentations, ``diagnostics["presentations"]``
    says how far the preference depends on them, as ``response`` does for log-odds. A method that
    models no presentations has their ``count`` there, and a ``message`` that its bands leave out
    the variation between presentations.

    Log-odds and stated probabilities are measurements of the utility, with the position effect and
    the dispersion estimated from them, judge by judge: ``diagnostics["response"]``, see
    `llm_elicit.density.utility.gaussian_process.fit_log_odds`. Without choices beside them the
    utility is in units of the log-odds and leaves the belief's sharpness open; see `fit_power`.

    Args:
        evidence: `Evidence`; all its judges have one belief. If it was made from data frames, these
            name the features.
        sampling: as in `fit_belief`.
        method: ``"auto"`` or ``"utility"``; any other method of `fit_belief` only if the evidence
            is plain comparisons by one judge.
        noise: as in `fit_belief`. Rankings and ties need Gumbel noise, and ``noise.ties`` is
            estimated, not read.
        seed: as in `fit_belief`.
        settings: as in `fit_belief`.
        progress: as in `fit_belief`.

    Raises:
        DensityError: as `fit_belief`.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import BETWEEN_ROUNDS, Uniform
        >>> rng = np.random.default_rng(0)
        >>> sets = rng.uniform(-3, 3, (40, 3, 1))
        >>> ranking = abs(sets[..., 0] - 1).argsort(axis=1)    # this judge likes values near one
        >>> belief = fit_evidence(Evidence.rankings(sets, ranking), sampling=Uniform([-3.0], [3.0]),
        ...                       settings=BETWEEN_ROUNDS)
        >>> bool(abs(belief.sample(1000, seed=1).mean() - 1) < 0.5)
        True
    """
    noise = Noise() if noise is None else noise
    settings = FitSettings() if settings is None else settings
    errors.check_seed("seed", seed)
    errors.check_instance("settings", settings, FitSettings, "pass FitSettings(...)")
    errors.check_callback("progress", progress)
    errors.check_instance("noise", noise, Noise, "pass Noise(...), or None for Bradley–Terry")
    errors.check_instance(
        "fit_evidence: evidence", evidence, Evidence, "make it by Evidence.comparisons"
    )
    # Own methods first: to look for installed ones takes 40 ms.
    if not isinstance(method, str) or (
        method not in methods.CORE_METHODS and method not in methods.available_methods()
    ):
        raise DensityError(
            f"fit_belief: method {method!r} is unknown; the methods are "
            f"{', '.join(methods.available_methods())}; choose one of them."
        )
    sampling, names = _match_features(sampling, evidence.features)
    check_rows(evidence, sampling)
    feature_order, reordered_sampling = list(range(evidence.dimension)), sampling
    if method in JUDGE_METHODS:
        # The belief does not depend on the order of the features.
        feature_order = canonical_order(evidence, sampling)
        reordered_sampling = sampling.reorder(feature_order)
    labelled = evidence if method in JUDGE_METHODS else evidence.without_presentations()
    judgments = merge(labelled.reorder_features(feature_order))
    _check_supported(method, noise, sampling, judgments)
    latent = make_latent(sampling, judgments.points[:, np.argsort(feature_order)])
    problem = Problem(judgments, reordered_sampling, noise, seed, settings, progress)
    start_time = time.perf_counter()
    with one_thread():
        fit = _run_method(problem, method)
        if method in JUDGE_METHODS:
            fit = methods.change_coordinates(fit, latent, feature_order)
        report = methods.common_diagnostics(latent, fit.model, fit.normalizer)
    total_seconds = time.perf_counter() - start_time
    diagnostics = {
        "method": method,
        "seed": seed,
        "noise": asdict(noise),
        "n": judgments.size + judgments.measured_pairs,
        "total_weight": float(judgments.weights.sum()) + judgments.measured_pairs,
        "dimension": problem.dimension,
        "device": settings.device,
        "coin_log_likelihood": float(np.log(0.5)),
        **fit.diagnostics,
        **report,
        "seconds": {
            "utility": round(fit.utility_seconds, 3),
            "density": round(total_seconds - fit.utility_seconds, 3),
            "total": round(total_seconds, 3),
        },
    }
    if method not in JUDGE_METHODS and len(evidence.presentations) > 1:
        count = len(evidence.presentations)
        diagnostics["presentations"] = {
            "count": count,
            "message": f"the answers are in {count} presentations, and the bands of this method do "
            'not count what others would change; those of "auto" and "utility" do',
        }
    reference = fit.normalizer.points(_REFERENCE_POINTS)
    belief = BeliefDensity(latent, fit.model, reference, diagnostics, fit.draws)
    return belief if names is None else belief.named(names.names, names.categories, names.dates)


def _match_features(
    sampling: SamplingDensity | None, names: FeatureNames | None
) -> tuple[SamplingDensity, FeatureNames | None]:
    """Return λ in the order of the points' names, and the names of the features."""
    if sampling is None:
        raise DensityError(
            "fit_belief: sampling is missing; the estimate depends on the density λ the pairs "
            "were drawn from; pass Uniform(low, high) or GaussianMixture(weights, means, covs)."
        )
    if not isinstance(sampling, SamplingDensity):
        raise DensityError(
            f"fit_belief: sampling is a {type(sampling).__name__}; the sampling densities known "
            "here are Uniform, GaussianMixture and Empirical; pass one of them."
        )
    order = sampling.names
    if order is None or names is None:
        return sampling, names if order is None else FeatureNames(order)
    if set(order) != set(names.names):
        raise DensityError(
            f"fit_belief: sampling has the features {', '.join(order)}, and the points have "
            f"{', '.join(names.names)}; they must be the same features."
        )
    if order != names.names:
        sampling = sampling.reorder([order.index(name) for name in names.names])
    return sampling, names


def canonical_order(evidence: Evidence, sampling: SamplingDensity) -> list[int]:
    """Return the features' numbers in an order that does not depend on that of the columns.

    A fit is made in this order, because its random numbers belong to columns: by how far winners
    lie above losers, in units of their differences. A correlated `GaussianMixture` keeps the order
    of the columns, since its Cholesky factor depends on it.
    """
    if isinstance(sampling, GaussianMixture):
        covariance = sampling.covariance
        if (covariance != np.diag(np.diagonal(covariance))).any():
            return list(range(evidence.dimension))
    measurements = evidence.measurements
    kinds = [
        (evidence.winners, evidence.losers, evidence.weights),
        (measurements.first, measurements.second, measurements.value),
    ]
    differences = np.concatenate([a - b for a, b, _ in kinds])
    weights = np.concatenate([weights for *_, weights in kinds])
    norm = np.sqrt(np.square(differences).sum(0))
    direction = (weights[:, None] * differences).sum(0) / np.where(norm > 0.0, norm, 1.0)
    points = np.concatenate([a for a, *_ in kinds])
    return sorted(
        range(len(direction)), key=lambda j: (round(float(direction[j]), 9), points[:, j].tobytes())
    )


def check_rows(evidence: Evidence, sampling: SamplingDensity) -> None:
    """Raise unless points lie in the support of λ and weights can be used."""
    d = evidence.dimension
    if d != sampling.dimension:
        raise DensityError(
            f"the points have {d} features and the sampling density {sampling.dimension}; they "
            "must agree; pass the λ that the pairs were drawn from."
        )
    measured = evidence.measurements
    points_by_name = {"winners": evidence.winners, "losers": evidence.losers}
    if len(measured):
        points_by_name |= {"first": measured.first, "second": measured.second}
    for name, points in points_by_name.items():
        if len(points) or not len(measured):
            check_inside(name, errors.check_table(name, points), sampling)
    weights = evidence.weights
    usable = (weights == 0) | ((weights >= _MIN_WEIGHT) & (weights <= _MAX_WEIGHT))
    for i in np.flatnonzero(~usable):
        raise DensityError(
            f"weights[{i}] is {weights[i]}; a weight is how many judgments a row stands for, 0 or "
            f"from {_MIN_WEIGHT:g} to {_MAX_WEIGHT:g}; give an unwanted comparison weight 0."
        )
    if not weights.any() and not len(measured):
        raise DensityError(
            "weights are all 0; at least one comparison must count; leave weights out to count "
            "every comparison once."
        )


def _check_supported(
    method: str, noise: Noise, sampling: SamplingDensity, judgments: Judgments
) -> None:
    """Raise unless the method models these judgments and there is memory for the fit."""
    context, models_judges = judgments.context, method in JUDGE_METHODS
    if noise.ties and not models_judges:
        raise DensityError(
            f"fit_belief: method {method!r} has no model of ties, and the noise has ties "
            f'= {noise.ties}; use "auto" or "utility", or leave ties out of the noise.'
        )
    unsupported = None if models_judges else describe_unsupported(sampling)
    if unsupported is not None:
        raise DensityError(
            f"fit_belief: method {method!r} takes only numbers without constraints, and "
            f'{unsupported}; use "auto" or "utility".'
        )
    if not models_judges and (context or judgments.measured_pairs):
        raise DensityError(
            f"fit_evidence: method {method!r} takes only winners and losers, without "
            'log-odds, judges, positions, ties or rankings; use "auto" or "utility", or give '
            "plain comparisons."
        )
    has_picks_or_ties = context is not None and (context.tie.any() or (context.pick >= 0).any())
    if has_picks_or_ties and noise.family != "gumbel":
        raise DensityError(
            "fit_evidence: rankings and ties are modelled for gumbel noise, not "
            f"{noise.family}; use gumbel, or give rankings as pairs and a tie as a "
            "preference of 0.5."
        )
    if models_judges and not judgments.measured_pairs:
        check_memory(judgments.size, sampling)


def _run_method(problem: Problem, method: str) -> MethodFit:
    if method not in methods.CORE_METHODS:
        return methods.external_method(method).fit(problem)
    if method in SCORE_METHODS:
        return fit_score(problem, constant=method == "score-constant")
    start_time = time.perf_counter()
    judgments, latent = problem.judgments, problem.latent
    if not judgments.measured_pairs:
        choice_fit = fit_choice_utility(problem)
        utility, draws, fit_report = choice_fit.utility, choice_fit.draws, choice_fit.diagnostics
        held_out, separation = fit_report["held_out"], fit_report.pop("separation")
        presentations = fit_report.pop("presentations", None)
        log_density = [
            latent.sampling.log_prob(x) - latent.sampling.log_scale_derivative(x)
            for x in (judgments.winners, judgments.losers)
        ]
        difference = torch.from_numpy(log_density[0] - log_density[1])
        sampling_log_likelihood = choice_log_likelihood(difference, problem.weights, problem.noise)
        weights = ", ".join(f"{form} {w:.0%}" for form, w in fit_report["weights"].items() if w)
        scores = ", ".join(f"{form} {value:.4f}" for form, value in held_out.items())
        warning = "" if separation is None else f" But {separation['message']}."
        report: dict[str, Any] = {
            "held_out_log_likelihood": held_out[fit_report["form"]],
            # Models that a belief should exceed, nats per comparison, cross-validated.
            "null_models": {
                "random choices": float(np.log(0.5)),
                "sampling density": float(sampling_log_likelihood),
                "position": held_out["constant"],
                "quadratic": held_out["quadratic"],
            },
            "separation": separation,
            "utility": fit_report,
            "reason": "The utility as a sum of forms, weighted by how well they predict held-out "
            f"comparisons: {weights} (nats per comparison: {scores}). Scores and flows are "
            "separate methods, which take longer and were not shown to predict comparisons "
            f"better.{warning}",
        }
        if presentations is not None:
            report["presentations"] = presentations
    else:
        progress = problem.progress or (lambda *_: None)
        progress("utility", 0, 1)
        process = problem.settings.utility.process
        fit, response = fit_log_odds(judgments, latent, problem.noise, problem.generator, process)
        progress("utility", 1, 1)
        utility, draws = fit.utility, DeferredDraws(lambda: fit.draws, len(fit.draws))
        report = {
            "response": response,
            "extent": fit.extension_report,
            "utility": {"form": "gaussian process", "length_scale": fit.length_scale},
            "reason": "The utility as a Gaussian process about a quadratic form, by regression of "
            "the measured log-odds.",
        }
    utility_seconds = time.perf_counter() - start_time
    if method != "auto":
        del report["reason"]
    utility = utility.to(torch.empty(0, device=problem.settings.device))
    belief = methods.UtilityDensity(latent, utility, problem.settings.annealing)
    return MethodFit(*belief.normalize(problem.generator), report, draws, utility_seconds)


def fit_choice_utility(problem: Problem) -> UtilityFit:
    """Fit the utility to choices, in the latent coordinates of the problem."""
    latent, judgments = problem.latent, problem.judgments
    data = ChoiceData(
        latent.features(problem.winners).numpy(),
        latent.features(problem.losers).numpy(),
        judgments.weights,
        judgments.pairs,
        judgments.context,
        latent.category,
    )
    settings = problem.settings.utility
    return fit_utility(data, problem.noise, problem.rng, settings, problem.progress)


_MAX_CATEGORIES = 200  # of one feature
_MATRICES = 8
_GIB = 2**30


def count_features(sampling: SamplingDensity) -> int:
    """Return the number of features p of the utility."""
    return int(
        sampling.dimension
        + sampling.periodic.sum()
        + sum(n - 1 for n in _category_columns(sampling))
    )


def count_terms(sampling: SamplingDensity) -> int:
    """Return the number of coefficients P of the quadratic form."""
    features = count_features(sampling)
    within = sum(n * (n + 1) // 2 for n in _category_columns(sampling))
    return features + features * (features + 1) // 2 - within


def _category_columns(sampling: SamplingDensity) -> list[int]:
    """Return the number of words less one of each categorical feature."""
    if not isinstance(sampling, Uniform):
        return []
    return [round(less) for less in (sampling.high - sampling.low)[sampling.categorical]]


def estimate_seconds(n: int, sampling: SamplingDensity) -> float:
    """Return about how many seconds of one core a fit by "auto" to n comparisons takes, with draws.

    Examples:
        >>> square = Uniform([0.0, 0.0], [1.0, 1.0])
        >>> estimate_seconds(200, square) < 60 < estimate_seconds(100_000, square)
        True
    """
    return float(3.0 * (n / 200.0) ** 0.6 + 1.3e-8 * count_terms(sampling) ** 3)


def check_memory(n: int, sampling: SamplingDensity) -> None:
    """Raise unless a utility can be fitted to n comparisons in the memory that is free.

    The quadratic form has P coefficients, see `count_terms`. Its fit holds their design (n, P) and
    about eight matrices (P, P), in double precision. A category of K words is K − 1 features, and a
    periodic feature two.
    """
    category_count = max(_category_columns(sampling), default=0) + 1
    if category_count > _MAX_CATEGORIES:
        raise DensityError(
            f"fit: a feature has {category_count:,} categories; at most {_MAX_CATEGORIES} can be "
            "fitted; merge rare ones."
        )
    terms = count_terms(sampling)
    memory = 8 * terms * (2 * n + _MATRICES * terms)
    try:
        rows = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):  # of another system
        return
    if memory > free:
        raise DensityError(
            f"fit: {n:,} comparisons over {count_features(sampling):,} features (a categorical "
            f"feature counts once per category, except the first) take about {memory / _GIB:,.1f} "
            "GiB of memory, and "
            f"{free / _GIB:,.1f} GiB are free; ask about fewer features, or merge rare "
            "categories."
        )
