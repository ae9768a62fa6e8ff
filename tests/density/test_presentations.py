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
from llm_elicit.density.latent import make_latent
from llm_elicit.density.likelihood import merge
from llm_elicit.density.settings import GaussianProcessSettings, MixtureSettings, ScoreSettings
from llm_elicit.density.utility.cross_validation import ChoiceData
from llm_elicit.density.utility.gaussian_process import _GaussianProcess
from llm_elicit.density.utility.interaction import (
    ChoiceInteraction,
    Interaction,
    PresentedChoices,
    _propagate_expectations,
)
from llm_elicit.density.utility.judges import JudgeTerms
from llm_elicit.density.utility.marginal_likelihood import Observations
from llm_elicit.density.utility.quadratic import QuadraticTerms
from llm_elicit.density.utility_function import UtilityDraws
from tests.density.targets import Array

pytestmark = pytest.mark.usefixtures("few_particles")

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
    rows = Observations.of(merge(evidence), latent, Noise())
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


QUICK = replace(
    BETWEEN_ROUNDS,
    utility=replace(BETWEEN_ROUNDS.utility, folds=2, mixture=MixtureSettings(counts=())),
)


def choices_of(evidence: Evidence, scale: float) -> Evidence:
    """The choices of a judge with these log-odds times a scale."""
    rows = evidence.measurements
    chance = 1.0 / (1.0 + np.exp(-scale * rows.value))
    first = np.random.default_rng(3).random(len(chance)) < chance
    names = np.array(evidence.presentations)[rows.presentation]
    return Evidence.comparisons(
        rows.first, rows.second, first, first=np.ones(len(first), dtype=bool), presentation=names
    )


def test_choices_say_how_far_they_depend_on_the_wording():
    latent = make_latent(SQUARE)
    for own, low, high in ((0.0, 0.0, 0.15), (1.0, 0.2, 0.8)):
        evidence = choices_of(evidence_of(5, own=own, pairs=240, noise=0.0), 2.5)
        judgments = merge(evidence)
        context = judgments.context
        assert context is not None
        winners, losers = (
            latent.features(torch.from_numpy(latent.to_latent(side))).numpy()
            for side in (judgments.winners, judgments.losers)
        )
        data = ChoiceData(winners, losers, judgments.weights, judgments.pairs, context)
        fit = PresentedChoices(data, JudgeTerms.neutral(context), Noise()).estimate()
        assert low < fit.estimate.share < high
        assert (fit.estimate.share_interval[0] > 0.05) == (own > 0.0)
        assert fit.gains.prod() == pytest.approx(1.0)
        rng = np.random.default_rng(5)
        (
            SQUARE.sample(240, rng),
            SQUARE.sample(240, rng),
            rng.normal(size=(6, 2)),
            rng.normal(size=6),
        )
        assert np.corrcoef(fit.positions, rng.normal(size=6))[0, 1] > 0.9


def test_bands_of_choices_count_what_other_wordings_change():
    rows = evidence_of(0, own=0.7, pairs=40, wordings=3, noise=0.0)
    evidence = choices_of(rows, 2.0)
    belief, plain = (
        fit_evidence(e, sampling=SQUARE, settings=QUICK)
        for e in (evidence, evidence.without_presentations())
    )
    report = belief.diagnostics["presentations"]
    assert set(report["judges"]["judge"]["presentations"]) == set(evidence.presentations)
    assert "presentations" not in plain.diagnostics
    assert not [line for line in fit_warnings(belief) if "presentations" in line]
    latent = make_latent(SQUARE)
    points = torch.from_numpy(latent.to_latent(SQUARE.sample(40, np.random.default_rng(1))))
    widths = [
        np.quantile(np.diff(e.utility_draws()(latent.features(points))), [0.1, 0.9], 0)
        for e in (belief, plain)
    ]
    counted, uncounted = (high - low for low, high in widths)
    assert (counted > 1.1 * uncounted).mean() > 0.8


def test_a_method_without_presentations_says_that_its_bands_do_not_count_them():
    rng = np.random.default_rng(0)
    names = ["a", "b"] * 10
    evidence = Evidence.comparisons(
        SQUARE.sample(20, rng), SQUARE.sample(20, rng), presentation=names
    )
    brief = FitSettings(score=ScoreSettings(networks=2, width=8, steps=5))
    belief = fit_evidence(evidence, sampling=SQUARE, method="score", settings=brief)
    assert [line for line in fit_warnings(belief, quality=False) if "presentations" in line] == [
        "the answers are in 2 presentations, and the bands of this method do not count what "
        'others would change; those of "auto" and "utility" do'
    ]


def test_the_evidence_of_choices_is_that_of_an_integral():
    rng = np.random.default_rng(0)
    design, weights = rng.normal(size=(12, 1)), rng.integers(1, 3, size=12).astype(float)
    grid = np.linspace(-8.0, 8.0, 4001)
    log_cdf = Noise().log_cdf(torch.from_numpy(grid * design)).numpy()
    density = np.exp(weights @ log_cdf - 0.5 * grid**2) / math.sqrt(2.0 * math.pi)
    evidence = np.trapezoid(density, grid)
    mean = np.trapezoid(density * grid, grid) / evidence
    start = torch.stack([torch.full((12,), 0.1), torch.zeros(12)]).double()
    result = _propagate_expectations(
        torch.from_numpy(design), torch.from_numpy(weights), Noise(), start
    )
    assert result.log_evidence == pytest.approx(math.log(evidence), abs=0.01)
    assert float(result.mean) == pytest.approx(mean, abs=0.01)


def test_draws_add_what_an_average_over_presentations_leaves_open():
    terms = QuadraticTerms.of(np.full(2, -1))
    root = torch.diag(torch.tensor([1.0, 2.0, 0.0, 0.0, 0.0])).double()
    share = 0.5
    estimate = Interaction(share, (0.0, 1.0), 3, 0.75, (0.0, 1.0), (share,) * 16)
    model = ChoiceInteraction(estimate, np.ones(3), np.ones(0), terms, root)
    draws = UtilityDraws(torch.ones(4000, 2), torch.zeros(4000, 2, 2))
    common = model.widen(draws)
    # One quarter is not common, and the rest of the prior's variances are 1 and 4.
    np.testing.assert_allclose(common.linear.mean(0), 1.0, atol=0.06)
    np.testing.assert_allclose(common.linear.var(0), [0.25, 1.0], rtol=0.1)
    assert not common.curvature.any()


def test_choices_of_joined_evidence_keep_the_names_of_their_presentations():
    pair, other = ([[0.0, 0.0]], [[0.5, 0.5]]), ([[0.0, 0.5]], [[0.5, 0.5]])
    one, two = (Evidence.comparisons(*p, presentation=[n]) for p, n in ((pair, "a"), (other, "b")))
    joined = one + two + Evidence.comparisons(*pair)
    assert joined.presentations == ("a", "b")
    assert (joined + one).presentation.tolist() == [0, 1, -1, 0]
    judgments = merge(joined + one)
    assert judgments.context is not None
    assert sorted(judgments.context.presentation.tolist()) == [-1, 0, 1]
    assert merge(joined.without_presentations()).context is None


@pytest.mark.parametrize("names", [[1, 2], ["a"], "ab", [["a", "b"]]])
def test_presentations_are_names_one_per_row(names):
    with pytest.raises(DensityError, match="presentation must be 2 names, one per row"):
        Evidence.log_odds([[0.0], [1.0]], [[1.0], [2.0]], [0.1, 0.2], presentation=names)
