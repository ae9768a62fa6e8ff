"""Log-odds asked in several presentations: their common part, and what is particular to each."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime

from llm_elicit.density import (
    BETWEEN_ROUNDS,
    DensityError,
    Evidence,
    FitSettings,
    Noise,
    Uniform,
    UtilitySettings,
    fit_evidence,
    fit_warnings,
)
from llm_elicit.density.judgments import merge
from llm_elicit.density.latent import make_latent
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.density.utility.gaussian_process import _GaussianProcess, _observations
from tests.density.targets import Array

SQUARE = Uniform([-1.0, -1.0], [1.0, 1.0])
PROCESS = GaussianProcessSettings(frequencies=64, draws=64)
SETTINGS = FitSettings(utility=UtilitySettings(process=PROCESS))


def evidence_of(
    seed: int, *, own: float, pairs: int = 60, wordings: int = 6, noise: float = 0.1
) -> Evidence:
    """Answers of a judge in both orders; ``own`` is the size of what a wording prefers alone."""
    rng = np.random.default_rng(seed)
    a, b = SQUARE.sample(pairs, rng), SQUARE.sample(pairs, rng)
    wording = np.arange(pairs) % wordings
    slope = np.array([1.0, 0.5]) + own * rng.normal(size=(wordings, 2))
    gain, position = np.exp(0.3 * rng.normal(size=wordings)), rng.normal(size=wordings)
    difference = gain[wording] * ((a - b) * slope[wording]).sum(1)
    log_odds = position[wording] + np.stack([difference, -difference])
    log_odds += noise * rng.normal(size=log_odds.shape)
    names = np.array([f"wording {number}" for number in wording])
    return Evidence.log_odds(
        np.concatenate([a, b]), np.concatenate([b, a]), log_odds.ravel(),
        presentation=np.tile(names, 2),
    )  # fmt: skip


def process_of(evidence: Evidence) -> _GaussianProcess:
    latent = make_latent(SQUARE)
    rows = _observations(merge(evidence), latent, Noise())
    return _GaussianProcess(rows, Noise(), torch.Generator().manual_seed(0), PROCESS)


@pytest.fixture(scope="module")
def process() -> _GaussianProcess:
    """A process with an interaction, and with a pair asked in two wordings."""
    evidence = evidence_of(0, own=0.7, pairs=24, wordings=3)
    first = evidence.measurements
    again = Evidence.log_odds(
        first.first[:2], first.second[:2], [0.3, -0.2], presentation=["another", "wording 2"]
    )
    process = process_of(evidence + again)
    process.maximize()
    return process


def test_the_slope_of_the_marginal_likelihood_is_its_derivative(process):
    at = process.theta + 0.1 * np.random.default_rng(0).normal(size=len(process.theta))
    value, slope = process.likelihood.loss_and_gradient(at)
    differences = approx_fprime(
        at, lambda theta: process.likelihood.loss_and_gradient(theta)[0], 1e-6
    )
    np.testing.assert_allclose(slope, differences, atol=2e-4)
    assert math.isfinite(value)


def covariance_of(process: _GaussianProcess) -> tuple[Array, Array]:
    """The covariances (n, n) of all rows and of the common part with them, by their definition."""
    theta = torch.from_numpy(process.theta)
    terms, rows = process.hyperparameters.unpack(theta), process.rows
    half = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for variance, block in zip(terms.variances, rows.prior_roots, strict=False):
        part = rows.quadratic_columns @ block
        half += variance * part @ part.T
    smooth = process.utility_columns[:, rows.quadratic_columns.shape[1] :]
    half += terms.variances[-1] * (smooth * process.spectrum) @ smooth.T
    common = (terms.gain[:, None] * half * terms.gain).numpy()
    alike = rows.cell[:, None] == rows.cell
    own = float(terms.interaction_variance) * alike * common
    effects = (process.position_columns * process.effect_variance) @ process.position_columns.T
    fixed = common + effects.numpy()
    return fixed + own + np.diag(terms.measurement_variance.numpy()), fixed


def test_the_posterior_of_the_common_part_is_that_of_its_covariance(process):
    every, common = covariance_of(process)
    expected = common @ np.linalg.solve(every, process.target.numpy())
    np.testing.assert_allclose(process.fitted.numpy(), expected, rtol=1e-8, atol=1e-8)
    doubt = common - common @ np.linalg.solve(every, common)
    half = (process.columns @ process.root).numpy()
    np.testing.assert_allclose(half @ half.T, doubt, atol=1e-8)


def test_a_pair_is_predicted_by_the_other_pairs(process):
    """What the others say is the conditional mean of the normal distribution of all rows."""
    every, _ = covariance_of(process)
    target, group = process.target.numpy(), process.rows.group
    predicted = process._predict_left_out()
    for number in range(group.max() + 1):
        rows, others = group == number, group != number
        weights = np.linalg.solve(every[np.ix_(others, others)], target[others])
        expected = every[np.ix_(rows, others)] @ weights
        np.testing.assert_allclose(predicted[rows], expected, rtol=1e-6, atol=1e-8)


def test_a_preference_that_depends_on_the_wording_is_told_from_one_that_does_not():
    interactions = {
        own: [
            fit_evidence(evidence_of(seed, own=own), sampling=SQUARE, settings=SETTINGS)
            .diagnostics["response"]["interaction"]
            for seed in range(2)
        ]
        for own in (0.0, 0.7)
    }  # fmt: skip
    assert all(response["share"] < 0.1 for response in interactions[0.0])
    assert all(response["share_interval"][0] < 0.001 for response in interactions[0.0])
    assert all(response["share_interval"][0] > 0.05 for response in interactions[0.7])
    assert all(0.1 < response["share"] < 0.7 for response in interactions[0.7])
    for response in interactions[0.0] + interactions[0.7]:
        odds = response["share"] / (1.0 - response["share"])
        assert response["generalizability"] == pytest.approx(1.0 / (1.0 + odds / 6))
        assert 1.0 / (1.0 + odds / response["needed"]) >= 0.8


def test_one_presentation_is_none():
    evidence = evidence_of(0, own=0.0, pairs=12, wordings=1)
    rows = evidence.measurements
    plain = Evidence.log_odds(rows.first, rows.second, rows.value)
    beliefs = [fit_evidence(e, sampling=SQUARE, settings=SETTINGS) for e in (evidence, plain)]
    points = SQUARE.sample(20, np.random.default_rng(1))
    first, second = (belief.utility(points) for belief in beliefs)
    assert (first == second).all()
    assert "interaction" not in beliefs[0].diagnostics["response"]


def test_the_position_effect_is_that_of_each_presentation():
    belief = fit_evidence(evidence_of(1, own=0.0, wordings=2), sampling=SQUARE, settings=SETTINGS)
    rng = np.random.default_rng(1)
    SQUARE.sample(60, rng), SQUARE.sample(60, rng), rng.normal(size=(2, 2)), rng.normal(size=2)
    expected = rng.normal(size=2)
    by_wording = belief.diagnostics["response"]["judges"]["judge"]["presentations"]
    positions = [by_wording[f"wording {number}"]["position"] for number in range(2)]
    np.testing.assert_allclose(positions, expected, atol=0.06)
    gains = [by_wording[f"wording {number}"]["gain"] for number in range(2)]
    assert math.prod(gains) == pytest.approx(1.0)  # relative to the judge's


def test_presentations_of_joined_evidence_are_matched_by_name():
    points = [[0.0, 0.0]], [[0.5, 0.5]]
    one = Evidence.log_odds(*points, [1.0], presentation=["a"])
    two = Evidence.probabilities(*points, [0.4], presentation=["b"])
    joined = one + two + Evidence.log_odds(*points, [2.0], presentation=["a"])
    assert joined.presentations == ("a", "b")
    assert joined.measurements.presentation.tolist() == [0, 1, 0]
    # Answers to one pair in one presentation are averaged, in two they are two rows.
    assert len(merge(joined + one + two).contrasts) == 2
    choices = Evidence.comparisons([[0.0, 0.0]], [[0.5, 0.5]])
    assert (choices + two).presentations == ("b",)
    assert {"presentation"} < set(asdict(joined.measurements))


def test_bands_of_choices_do_not_count_other_wordings_and_the_fit_says_so():
    rng = np.random.default_rng(0)
    a, b = SQUARE.sample(20, rng), SQUARE.sample(20, rng)
    one, two = (
        replace(Evidence.comparisons(a[part], b[part]), presentations=names)
        for part, names in ((slice(10), ("a", "b")), (slice(10, 20), ("b", "c")))
    )
    settings = replace(BETWEEN_ROUNDS, utility=replace(BETWEEN_ROUNDS.utility, folds=2))
    belief, plain = (
        fit_evidence(evidence, sampling=SQUARE, settings=settings)
        for evidence in (one + two, Evidence.comparisons(a, b))
    )
    assert [line for line in fit_warnings(belief) if "presentations" in line] == [
        "the answers in 3 presentations are choices, and the bands do not count what other "
        "wordings would change; ask for log-odds or stated probabilities, of which they do"
    ]
    assert "presentations" not in plain.diagnostics
    points = SQUARE.sample(5, rng)
    assert (belief.log_prob(points) == plain.log_prob(points)).all()


@pytest.mark.parametrize("names", [[1, 2], ["a"], "ab", [["a", "b"]]])
def test_presentations_are_names_one_per_row(names):
    with pytest.raises(DensityError, match="presentation must be 2 names, one per row"):
        Evidence.log_odds([[0.0], [1.0]], [[1.0], [2.0]], [0.1, 0.2], presentation=names)
