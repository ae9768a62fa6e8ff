"""The utility fit: likelihood, ensembles, model choice and the annealing sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from llm_elicit.density import (
    DensityError,
    GaussianMixture,
    MixtureSettings,
    Noise,
    PosteriorSettings,
    SmoothSettings,
    Uniform,
    UtilitySettings,
    band,
    fit_belief,
    simulate_choices,
)
from llm_elicit.density.latent import make_latent
from llm_elicit.density.likelihood import Response, assign_folds
from llm_elicit.density.utility.cross_validation import (
    ChoiceData,
    CrossValidation,
    HeldOutPredictions,
    fit_form_weights,
)
from llm_elicit.density.utility.fit import choose_warp, fit_utility
from llm_elicit.density.utility.mixture import MixtureFit, fit_mixtures
from llm_elicit.density.utility.quadratic import (
    QuadraticFit,
    QuadraticTerms,
    Ridges,
    fit_smooth,
    process_spectra,
)
from llm_elicit.density.utility_function import ComponentStack, Tail, Utility, UtilityDraws, Warp
from tests.density.conftest import QUICK
from tests.density.targets import (
    Array,
    anneal_two_modes,
    ask,
    check_judgments,
    random_process,
    wasserstein,
)

pytestmark = pytest.mark.usefixtures("few_particles")

_WARP = Warp.of(np.random.default_rng(0).normal(size=(50, 2)), np.array([9.0, 0.0]), np.zeros(2))


@pytest.mark.parametrize("warp", [None, _WARP])
def test_hand_written_gradient_matches_automatic_differentiation(warp: Warp | None) -> None:
    process = random_process(3, 2, torch.Generator().manual_seed(0))
    parts = torch.tensor([0.3, -1.0]), torch.tensor([[1.0, 0.4], [0.4, -2.0]])
    utility = Utility(*parts, fourier=process, warp=warp)
    t = torch.randn(20, 2, generator=torch.Generator().manual_seed(1))
    value, slope = utility.value_and_gradient(t)
    point = t.clone().requires_grad_()
    at = point if warp is None else warp(point)
    quadratic = at @ utility.linear + ((at @ utility.curvature) * at).sum(1)
    expected = quadratic + process(at).mean(0)
    (gradient,) = torch.autograd.grad(expected.sum(), point)
    np.testing.assert_allclose(value, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(slope, gradient, atol=1e-4)
    np.testing.assert_allclose(utility(t), value, atol=1e-5)


@pytest.mark.parametrize("tail", [Tail(), Tail(3.0, 0.0), Tail(0.2, 0.4)])
def test_gradient_of_the_mixture_matches_automatic_differentiation(tail: Tail) -> None:
    generator = torch.Generator().manual_seed(2)
    whiten = torch.eye(3) + 0.3 * torch.randn(2, 4, 3, 3, generator=generator)
    offset = torch.randn(2, 4, 3, generator=generator)
    stack = ComponentStack(whiten, offset, torch.randn(2, 4, generator=generator), 0.7, tail)
    t = torch.randn(15, 3, generator=generator, requires_grad=True)
    white = torch.einsum("nd,skde->snke", t, whiten) - offset[:, None]
    q, b, power = white.square().sum(-1), tail.size, tail.power
    fall = b / power * ((1 + q / b) ** power - 1) if power else b * torch.log(1 + q / b)
    expected = 0.7 * torch.logsumexp(stack.height[:, None] - 0.5 * fall, -1)
    (gradient,) = torch.autograd.grad(expected.mean(0).sum(), t)
    value, slope = stack.mean_and_gradient(t.detach())
    np.testing.assert_allclose(stack(t.detach()), expected.detach(), atol=1e-5)
    np.testing.assert_allclose(value, expected.mean(0).detach(), atol=1e-5)
    np.testing.assert_allclose(slope, gradient, atol=1e-5)


def test_a_quadratic_s_evidence_is_the_integral_over_its_coefficients() -> None:
    """Two coefficients, so that the integral can be taken on a grid."""
    rng = np.random.default_rng(3)
    winners, losers = rng.normal(0.3, 1, (300, 1)), rng.normal(0, 1, (300, 1))
    data = ChoiceData(winners, losers, np.ones(300), np.arange(300))
    quadratic = QuadraticFit(CrossValidation(data, Response(Noise()), 4, rng))
    design = torch.from_numpy(quadratic.terms.columns(winners) - quadratic.terms.columns(losers))
    linear, curvature = np.meshgrid(np.linspace(-3, 3, 301), np.linspace(-3, 3, 301))
    betas = np.stack([linear.ravel(), curvature.ravel()])
    choices = Noise().log_cdf(design @ torch.from_numpy(betas)).sum(0).numpy()
    for ridge in (0.3, 3.0, 30.0):
        # The linear coefficient is held by the ridge, the common curvature by 1e-4.
        precision = np.array([ridge, 1e-4])[:, None]
        prior = 0.5 * (np.log(precision / (2 * np.pi)) - precision * betas**2).sum(0)
        expected = logsumexp(choices + prior) + np.log(0.02**2)
        ridges = Ridges(ridge, 1.0, 1.0)
        found = quadratic.fit(ridges).evidence
        assert found == pytest.approx(expected, abs=0.02)


def test_a_cross_term_is_what_all_have_in_common_and_as_much_of_its_own() -> None:
    rng = np.random.default_rng(5)
    data = ChoiceData(*rng.normal(size=(2, 20, 4)), np.ones(20), np.arange(20))
    quadratic = QuadraticFit(CrossValidation(data, Response(Noise()), 2, rng))
    covariance = np.linalg.inv(quadratic.prior(Ridges(0.25, 0.5, 0.5)))
    i, j = np.triu_indices(4)
    crossed = covariance[4:, 4:][np.ix_(i != j, i != j)]
    np.testing.assert_allclose(crossed, 2.0 * np.eye(6) + 2.0)
    np.testing.assert_allclose(covariance[:4, :4], 4.0 * np.eye(4), atol=1e-12)
    apart = np.array([1.0, -1.0, 0.0, 0.0])
    alone = covariance[4:, 4:][np.ix_(i == j, i == j)]
    assert apart @ alone @ apart == pytest.approx(4.0)
    assert np.ones(4) @ alone @ np.ones(4) > 1e4


def test_suited_ridges_are_likelier_than_others() -> None:
    """Of each kind three times the ridge, and a third, for a correlated belief off the middle."""
    rng = np.random.default_rng(6)
    factor = np.linalg.cholesky(0.2 * np.eye(3) + 0.1)
    pairs = rng.normal(size=(2, 300, 3))
    height = [-0.5 * np.square(np.linalg.solve(factor, (s - 0.5).T)).sum(0) for s in pairs]
    won = (height[0] - height[1] + rng.logistic(0, Noise().level, 300) > 0)[:, None]
    data = ChoiceData(
        np.where(won, *pairs), np.where(won, *pairs[::-1]), np.ones(300), np.arange(300)
    )
    quadratic = QuadraticFit(CrossValidation(data, Response(Noise()), 4, rng))
    suited = quadratic.estimate_ridges()
    best = quadratic.fit(suited).posterior
    for kind in suited._fields:
        for times in (1 / 3, 3.0):
            other = suited._replace(**{kind: times * getattr(suited, kind)})
            less = best - quadratic.fit(other).posterior
            # All three features are alike: any large ridge suits what they differ by.
            assert less > (-0.02 if kind == "apart" else 0.1)


def test_a_ridge_stays_where_choices_tell_nothing_of_its_terms() -> None:
    """Only the first of two features is ever asked about: cross terms are unknown."""
    rng = np.random.default_rng(7)
    pairs = rng.normal(size=(2, 200, 2)) * [1.0, 0.0]
    won = (pairs[0, :, 0] - pairs[1, :, 0] + rng.logistic(0, 0.78, 200) > 0)[:, None]
    data = ChoiceData(
        np.where(won, *pairs), np.where(won, *pairs[::-1]), np.ones(200), np.arange(200)
    )
    quadratic = QuadraticFit(CrossValidation(data, Response(Noise()), 4, rng))
    assert quadratic.estimate_ridges().crossed == 1.0
    assert quadratic.fit_multiples((0.1, 1.0, 10.0))[0].coefficients[[1, 3]] == pytest.approx(0.0)


@pytest.mark.parametrize("times", [1.0, 100.0])
def test_ridges_of_terms_that_are_zero_are_not_far_above_the_choices_information(
    times: float,
) -> None:
    """Choices without a trend: evidence has no maximum, and ridges ran to 10,000."""
    rng = np.random.default_rng(1)
    pairs = rng.normal(size=(2, 200, 3))
    won = (np.square(pairs[1]) - np.square(pairs[0])).sum(1)[:, None] > 0
    # Reflected choices are as likely, so that the mode of every linear and cross term is 0.
    signs = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)])
    weak = 0.5 * rng.normal(size=(2, 100, 3))
    winners, losers = (
        (np.concatenate([np.where(won, *order), *both])[:, None] * signs).reshape(-1, 3)
        for order, both in ((pairs, weak), (pairs[::-1], weak[::-1]))
    )
    mass = np.full(len(winners), times)
    data = ChoiceData(winners, losers, mass, np.arange(len(winners)))
    quadratic = QuadraticFit(CrossValidation(data, Response(Noise()), 4, rng))
    suited = quadratic.estimate_ridges()
    best = quadratic.fit(suited)
    regression = quadratic.regression(suited)
    fisher = regression.precision(torch.from_numpy(best.coefficients)) - regression.prior
    information = fisher.diagonal()[:3].mean()
    assert best.coefficients[:3] == pytest.approx(0.0, abs=0.02)
    assert suited.linear < 4 * information
    assert suited.crossed < 10 * fisher.diagonal()[[4, 5, 7]].mean()


@pytest.mark.parametrize(("d", "n"), [(1, 60), (8, 200), (32, 640)])
def test_a_belief_off_the_middle_is_found_where_features_have_nothing_to_do_with_each_other(
    d: int, n: int
) -> None:
    """N(0.7, 0.5²) in each; a ridge for all kinds of terms left 32 features within 0.15 of zero."""
    rng = np.random.default_rng(0)
    pairs = rng.uniform(-1.7, 1.7, size=(2, n, d))
    height = [-0.5 * np.square((side - 0.7) / 0.5).sum(1) for side in pairs]
    won = (height[0] - height[1] + rng.logistic(0, Noise().level, n) > 0)[:, None]
    data = ChoiceData(np.where(won, *pairs), np.where(won, *pairs[::-1]), np.ones(n), np.arange(n))
    quadratic = QuadraticFit(CrossValidation(data, Response(Noise()), 4, rng))
    best = quadratic.fit_multiples((0.1, 1.0, 10.0))[0]
    found = quadratic.terms.utility(best.coefficients)
    curvature, linear = found.curvature.double().numpy(), found.linear.double().numpy()
    centre = -0.5 * np.linalg.solve(curvature, linear)
    assert np.abs(centre - 0.7).max() < 0.3
    assert centre.mean() == pytest.approx(0.7, abs=0.15)
    alike = (Ridges(ridge, ridge, ridge) for ridge in (0.01, 0.1, 1.0, 10.0, 100.0))
    of_one = max(quadratic.fit(ridges).evidence for ridges in alike)
    assert best.evidence > of_one + (10.0 if d > 1 else -0.5)
    assert d == 1 or best.ridges.linear < 0.1 * min(best.ridges.apart, best.ridges.crossed)


def test_few_choices_of_a_wide_belief_leave_no_direction_open() -> None:
    """1600 comparisons, 152 coefficients: the common curvature lends itself to all directions."""
    rng = np.random.default_rng(4)
    factor = np.linalg.cholesky(np.full((16, 16), 0.2) + 0.13 * np.eye(16))
    pairs = rng.normal(size=(2, 1600, 16))
    height = [-0.5 * np.square(np.linalg.solve(factor, side.T)).sum(0) for side in pairs]
    won = height[0] - height[1] + rng.logistic(0, Noise().level, 1600) > 0
    winners, losers = np.where(won[:, None], *pairs), np.where(won[:, None], *pairs[::-1])
    data = ChoiceData(winners, losers, np.ones(1600), np.arange(1600))
    quadratic = QuadraticFit(CrossValidation(data, Response(Noise()), 4, rng))
    beta = quadratic.fit_multiples((0.01, 0.1, 1.0, 10.0))[0].coefficients
    curvature = -2.0 * quadratic.terms.utility(beta).curvature.double().numpy()
    # The true ones are 7.7 in fifteen directions and 0.3 in the last, which is hard to see.
    assert np.linalg.eigvalsh(curvature)[0] > 0.2


def test_two_far_bumps_are_found_and_described_by_a_mixture() -> None:
    """0.7 N(−1.5, 0.3²) + 0.3 N(1.5, 0.3²) in the first feature, N(0, 0.5²) in the second."""
    law = GaussianMixture([0.7, 0.3], [[-1.5, 0.0], [1.5, 0.0]], [np.diag([0.09, 0.25])] * 2)
    box = Uniform([-3.0, -3.0], [3.0, 3.0])
    winners, losers = ask(law.log_prob, box, 2000, seed=17)
    belief = fit_belief(winners, losers, sampling=box, method="auto", settings=QUICK)
    notes = belief.diagnostics["utility"]
    assert notes["weights"]["quadratic"] == 0.0
    assert notes["weights"]["mixture of 2"] > 0.2
    assert notes["held_out"]["weighted sum"] > notes["held_out"]["quadratic"] + 0.1
    assert "mixture of 2" in belief.diagnostics["reason"]
    x = belief.sample(4000, seed=1)
    assert (x[:, 0] < 0).mean() == pytest.approx(0.7, abs=0.15)
    assert np.abs(x[x[:, 0] < 0].mean(0) - [-1.5, 0.0]).max() < 0.15
    assert wasserstein(x[:1000], law.sample(1000, np.random.default_rng(0))) < 0.6


@pytest.mark.parametrize("freedom", [2.0, 1e6])
def test_heavy_tails_of_an_elliptical_belief_are_found(freedom: float) -> None:
    """With so many degrees of freedom it is normal, and no form with a tail takes part."""
    box, factor = Uniform([-4.0, -4.0], [4.0, 4.0]), np.array([[0.35, 0.0], [0.2, 0.3]])

    def log_density(x: Array) -> Array:
        q = np.square(np.linalg.solve(factor, (x - [0.5, -0.5]).T)).sum(0)
        return -0.5 * (freedom + 2.0) * np.log1p(q / freedom)

    settings = replace(QUICK, utility=replace(QUICK.utility, posterior=PosteriorSettings(draws=32)))
    belief = fit_belief(*ask(log_density, box, 2000, seed=4), sampling=box, settings=settings)
    weights = belief.diagnostics["utility"]["weights"]
    if freedom > 2.0:
        assert "exponential" not in weights
        return
    assert weights["Student t of 2"] + weights["Student t of 4"] > 0.7
    x = np.random.default_rng(0).standard_t(2.0, (2000, 2)) @ factor.T + [0.5, -0.5]
    truth, values = log_density(x[box.contains(x)]), belief.log_prob(x[box.contains(x)])
    assert float(np.std(values - truth)) < 0.5  # 1.04 without such forms
    low, high = band(belief.draws().quantile([0.1, 0.9]))
    own = np.quantile(belief.sample(4000, seed=1), [0.1, 0.9], axis=0)
    assert ((low < own) & (own < high)).all()


def test_chance_gives_tails_little_weight() -> None:
    """The five of them had nearly half of the weight of a normal belief, after a few choices."""
    weights = []
    for seed in range(4):
        box = Uniform([-2.0, -2.0], [2.0, 2.0])
        asked = ask(lambda x: -1.4 * np.square(x - [0.5, -0.3]).sum(1), box, 50, seed=seed)
        judgments = check_judgments(*asked, None, box)
        data = ChoiceData(judgments.winners, judgments.losers, judgments.weights, judgments.pairs)
        fit = fit_utility(data, Noise(), np.random.default_rng(0), QUICK.utility)
        of_form = fit.diagnostics["weights"]
        weights.append(sum(of_form[form] for form in of_form if "t of" in form or "exp" in form))
    assert np.mean(weights) < 0.2


def test_a_mixture_is_left_out_where_comparisons_are_too_few() -> None:
    winners, losers = _pairs(40)
    judgments = check_judgments(winners, losers, None, Uniform([-1.0, -1.0], [1.0, 1.0]))
    data = ChoiceData(judgments.winners, judgments.losers, judgments.weights, judgments.pairs)
    notes = fit_utility(data, Noise(), np.random.default_rng(0), QUICK.utility).diagnostics
    assert not [part for part in notes["weights"] if part.startswith("mixture")]


def test_a_saved_utility_has_its_warp() -> None:
    utility = Utility(torch.ones(2), -torch.eye(2), warp=_WARP)
    t = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    again = Utility.from_tensors(utility.tensors())
    np.testing.assert_array_equal(again(t), utility(t))
    assert not torch.allclose(again(t), Utility(utility.linear, utility.curvature)(t))
    draws = UtilityDraws(torch.ones(3, 2), -torch.eye(2).expand(3, 2, 2), warp=_WARP)
    for each in (UtilityDraws.from_tensors(draws.tensors()), draws.thin(3), draws.scaled(1.0)):
        np.testing.assert_array_equal(each(t), draws(t))
    np.testing.assert_allclose(next(iter(draws))(t), draws(t)[0], atol=1e-5)


def test_coefficients_of_the_quadratic_are_those_of_its_features(rng: np.random.Generator) -> None:
    t, beta = rng.normal(size=(10, 3)), rng.normal(size=9)
    terms = QuadraticTerms.of(np.full(3, -1))
    np.testing.assert_allclose(terms.columns(t[:1])[0, 3:5], t[0, 0] * t[0, :2])
    utility, expected = terms.utility(beta), terms.columns(t) @ beta
    np.testing.assert_allclose(utility(torch.from_numpy(t)), expected, atol=1e-5)


def test_products_within_one_feature_s_categories_are_left_out() -> None:
    """100 categories and two numbers have 302 terms, not 5252."""
    latent = make_latent(Uniform([0.0] * 3, [99.0, 1.0, 1.0], categorical=[True, False, False]))
    terms = QuadraticTerms.of(latent.category)
    assert len(terms) == 101 + 3 + 2 * 99
    linear, curvature = terms.linear_and_curvature(torch.ones(1, len(terms)))
    assert linear.shape == (1, 101)
    np.testing.assert_array_equal(curvature[0, 2:, 2:], 0.0)
    np.testing.assert_array_equal(curvature[0, :2, 2:], 0.5)


def _fit(winners: Array, losers: Array, weights: Array | None = None, seed: int = 0) -> Utility:
    judgments = check_judgments(winners, losers, weights, Uniform([-1.0, -1.0], [1.0, 1.0]))
    data = ChoiceData(judgments.winners, judgments.losers, judgments.weights, judgments.pairs)
    settings = replace(QUICK.utility, smooth=SmoothSettings(frequencies=0))
    return fit_utility(data, Noise(), np.random.default_rng(seed), settings).utility


def _pairs(n: int = 150) -> tuple[Array, Array]:
    box = Uniform([-1.0, -1.0], [1.0, 1.0])
    return ask(lambda x: -2 * (x**2).sum(1), box, n, seed=8)


def test_a_row_given_twice_equals_weight_two() -> None:
    winners, losers = _pairs()
    twice = _fit(np.vstack([winners, winners[:40]]), np.vstack([losers, losers[:40]]))
    weighted = _fit(winners, losers, np.where(np.arange(150) < 40, 2.0, 1.0))
    t = torch.rand(30, 2, dtype=torch.float64)
    assert torch.equal(twice(t), weighted(t))
    assert not torch.equal(weighted(t), _fit(winners, losers)(t))


def test_soft_judgments_of_probability_one_are_hard_ones() -> None:
    winners, losers = _pairs()
    both = np.vstack([winners, losers]), np.vstack([losers, winners])
    soft = _fit(*both, np.repeat([1.0, 0.0], 150))
    t = torch.rand(30, 2, dtype=torch.float64)
    assert torch.equal(soft(t), _fit(winners, losers)(t))


def test_rows_of_one_pair_share_a_fold() -> None:
    winners, losers = _pairs(60)
    judgments = check_judgments(
        np.vstack([winners, losers]), np.vstack([losers, winners]), None,
        Uniform([-1.0, -1.0], [1.0, 1.0]),
    )  # fmt: skip
    folds = assign_folds(judgments.pairs, 5, np.random.default_rng(0))
    by_pair: dict[tuple[float, ...], set[int]] = {}
    for w, loser, fold in zip(judgments.winners, judgments.losers, folds, strict=True):
        by_pair.setdefault(tuple(sorted([*w, *loser])), set()).add(int(fold))
    assert len(by_pair) == 60
    assert all(len(found) == 1 for found in by_pair.values())
    assert np.bincount(folds).min() >= 22


def test_a_coin_gives_the_flat_belief() -> None:
    """Two independent random bits; a fit that chases noise would move these means and spreads."""
    rng = np.random.default_rng(31)
    box = Uniform([0.0] * 3, [1.0] * 3)
    belief = fit_belief(rng.random((300, 3)), rng.random((300, 3)), sampling=box, method="utility")
    assert belief.diagnostics["utility"]["weights"]["constant"] > 0.2
    x = belief.sample(4000, seed=1)
    np.testing.assert_allclose(x.mean(0), 0.5, atol=0.03)
    np.testing.assert_allclose(x.std(0), 1 / np.sqrt(12), atol=0.02)
    assert belief.log_prob(x).std() < 0.1


def test_one_surprising_answer_does_not_flatten_a_belief() -> None:
    """29 of 30 answers follow one preference; the last goes against it by 3.4 nats."""
    rng = np.random.default_rng(7)
    a, b = rng.uniform(0, 10, (2, 30, 2))

    def log_density(x: Array) -> Array:
        return -0.5 * np.square(x - [7.0, 4.0]).sum(1)

    gap = log_density(a) - log_density(b)
    wins = gap > 0
    wins[np.argsort(np.abs(gap))[2]] ^= True
    winners, losers = np.where(wins[:, None], a, b), np.where(wins[:, None], b, a)
    box = Uniform([0.0, 0.0], [10.0, 10.0])
    plain = replace(QUICK.utility, mixture=MixtureSettings(counts=()))
    settings = replace(QUICK, utility=plain)
    belief = fit_belief(winners, losers, sampling=box, method="utility", settings=settings)
    assert belief.mean()[0] == pytest.approx(7.0, abs=1.2)
    assert (belief.sd() < 2.5).all(), "λ has 2.9"


@pytest.mark.parametrize("seed", range(6))
def test_a_belief_of_few_choices_lies_within_its_bands(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = (20, 30, 45)[seed % 3], 1 + seed % 3
    a, b = rng.random((2, n, d))
    wins = simulate_choices(*(4.0 * x[:, 0] - 2.0 * x[:, -1] for x in (a, b)), Noise(), rng)
    winners, losers = np.where(wins[:, None], a, b), np.where(wins[:, None], b, a)
    box = Uniform([0.0] * d, [1.0] * d)
    drawn = replace(QUICK.utility, posterior=PosteriorSettings(draws=64))
    belief = fit_belief(
        winners, losers, sampling=box, method="utility", settings=replace(QUICK, utility=drawn)
    )
    low, high = band(belief.draws().mean())
    assert ((low <= belief.mean()) & (belief.mean() <= high)).all()


def test_a_belief_too_steep_for_choices_it_has_not_seen_is_flattened() -> None:
    """20 choices that a plane separates, though the judge's noise is as large as the preference."""
    rng = np.random.default_rng(1003)
    a, b = rng.random((2, 20, 3))
    slope = np.array([4.0, -2.0, 0.0])
    wins = (a - b) @ slope + rng.logistic(0, Noise().level, 20) > 0
    winners, losers = np.where(wins[:, None], a, b), np.where(wins[:, None], b, a)
    belief = fit_belief(winners, losers, sampling=Uniform([0.0] * 3, [1.0] * 3), method="utility")
    assert belief.diagnostics["utility"]["factor"] < 0.5
    assert belief.log_prob(rng.random((2000, 3))).std() < 4.0


def test_one_pair_of_two_values_is_described_though_it_cannot_be_held_out() -> None:
    ones, zeros = np.ones((9, 1)), np.zeros((9, 1))
    box = Uniform([0.0], [1.0], integer=[True])
    belief = fit_belief(ones, zeros, sampling=box, method="utility", settings=QUICK)
    assert belief.diagnostics["utility"]["weights"] == {"quadratic": 1.0}
    assert belief.mean()[0] > 0.8


@pytest.mark.parametrize("noise", [Noise("exponential", 1.0), Noise("normal", 0.8)])
def test_other_noise_families_recover_a_normal_belief(noise: Noise) -> None:
    box = Uniform([-3.0], [3.0])
    winners, losers = ask(lambda x: -0.5 * ((x[:, 0] - 0.5) / 0.6) ** 2, box, 1500, 13, noise)
    belief = fit_belief(
        winners, losers, sampling=box, method="utility", noise=noise, settings=QUICK
    )
    x = belief.sample(4000, seed=1)
    assert x.mean() == pytest.approx(0.5, abs=0.1)
    assert x.std() == pytest.approx(0.6, abs=0.09)


def test_annealing_keeps_the_weights_of_separated_modes() -> None:
    """From N(0, 9I) to 0.8 N(−4, 0.3²) + 0.2 N(4, 0.3²) in two dimensions; Z known."""
    found = anneal_two_modes(6000, seed=0, rise=1.5)
    assert (found.draws.points[:, 0] < 0).double().mean().item() == pytest.approx(0.8, abs=0.03)
    expected = 1.5 + np.log(2 * np.pi * 0.09)
    assert found.log_normalizer == pytest.approx(expected, abs=0.1)
    left = found.draws.points[found.draws.points[:, 0] < 0]
    assert left.std(0).numpy() == pytest.approx([0.3, 0.3], abs=0.02)


def test_a_belief_wider_than_an_unbounded_sampling_density_stays_proper() -> None:
    """A judge who prefers the outskirts: exp(f) alone would not be integrable."""
    sampling = GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(2)])
    winners, losers = ask(lambda x: 0.5 * (x**2).sum(1), sampling, 600, seed=3)
    belief = fit_belief(winners, losers, sampling=sampling, method="utility", settings=QUICK)
    x = belief.sample(4000, seed=1)
    assert np.linalg.norm(x, axis=1).max() < 12
    grid = np.linspace(-12, 12, 401)
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    total = np.exp(belief.log_prob(points)).sum() * (grid[1] - grid[0]) ** 2
    assert total == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PosteriorSettings(draws=-3), "draws = -3"),
        (lambda: MixtureSettings(starts=0), "starts = 0"),
        (lambda: MixtureSettings(counts=(1,)), "counts = 1"),
        (lambda: SmoothSettings(frequencies=-1), "frequencies = -1"),
        (lambda: UtilitySettings(folds=1), "folds = 1"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DensityError, match=message):
        make()


def test_the_score_of_the_weighted_sum_is_of_rows_that_did_not_choose_its_weights() -> None:
    """One fold is predicted well, the others are not: their choices alone set its weight."""
    rng = np.random.default_rng(0)
    data = ChoiceData(*rng.normal(size=(2, 600, 1)), np.ones(600), np.arange(600))
    validation = CrossValidation(data, Response(Noise()), 3, rng)
    assert len(validation.rows) == 600
    random = HeldOutPredictions(rng.normal(size=600), np.zeros(600))
    first = validation.fold_of[validation.rows].numpy() == 0
    known = HeldOutPredictions(np.where(first, 3.0, random.difference), np.zeros(600))
    nothing = HeldOutPredictions(np.zeros(600), np.zeros(600))
    weighed = fit_form_weights(validation, {"constant": nothing, "known": known})
    weight = weighed.factor * weighed.weights["known"]
    assert weighed.held_out.difference[first].max() < 0.5 * 3.0 * weight


@pytest.mark.parametrize(
    ("form", "times", "spread", "lowest", "highest"),
    [
        ("mixture of 2", 2.0, 4.0, 1.0, 1.0),  # steep, and in doubt
        ("mixture of 2", 2.0, 0.0, 0.4, 0.6),  # steep, and sure of it
        ("quadratic", 2.0, 4.0, 0.4, 0.6),  # Laplace's spread of a linear predictor says nothing
        ("smooth", 0.4, 0.0, 1.0, 1.0),  # flat
    ],
)
def test_the_factor_of_forms_is_at_most_one_and_knows_what_they_leave_in_doubt(
    form: str, times: float, spread: float, lowest: float, highest: float
) -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(0.0, 2.0, 600)
    wins = simulate_choices(truth, np.zeros(600), Noise(), rng)
    points = rng.normal(size=(2, 600, 1))
    data = ChoiceData(points[0], points[1], np.ones(600), np.arange(600))
    validation = CrossValidation(data, Response(Noise()), 4, rng)
    rows = validation.rows.numpy()
    predicted = times * np.where(wins, truth, -truth)[rows]
    weighed = fit_form_weights(
        validation, {form: HeldOutPredictions(predicted, np.full(len(rows), spread))}
    )
    assert lowest <= weighed.factor <= highest


def test_the_smooth_remainder_finds_what_is_no_quadratic_form() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-2.0, 2.0, (2, 1500, 1))

    def utility(x: Array) -> Array:
        return 4.0 * np.sin(2.0 * x[:, 0])

    wins = simulate_choices(utility(a), utility(b), Noise(), rng)[:, None]
    data = ChoiceData(np.where(wins, a, b), np.where(wins, b, a), np.ones(1500), np.arange(1500))
    validation = CrossValidation(data, Response(Noise()), 4, rng)
    quadratic = QuadraticFit(validation)
    smooth = fit_smooth(quadratic, Ridges(1.0, 1.0, 1.0), SmoothSettings(frequencies=32))
    assert smooth is not None
    of_quadratic = quadratic.cross_validate(Ridges(1.0, 1.0, 1.0))
    assert validation.score(smooth.held_out) > validation.score(of_quadratic) + 0.1
    coefficients, process = smooth.split(smooth.mode[None])
    x = np.linspace(-1.8, 1.8, 50)[:, None]
    t = torch.from_numpy(x).float()
    found = process(t)[0].numpy() + quadratic.terms.columns(x) @ coefficients[0].numpy()
    gap = found - utility(x)
    assert np.std(gap) < 0.8
    assert fit_smooth(quadratic, Ridges(1.0, 1.0, 1.0), SmoothSettings(frequencies=0)) is None


def test_a_process_has_the_covariance_of_its_length_scale() -> None:
    """Not that of a few random frequencies: its differences vary as they should, pair by pair."""
    rng = np.random.default_rng(0)
    winners, losers = rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), (2, 1500, 2))
    data = ChoiceData(winners, losers, np.ones(1500), np.arange(1500))
    validation = CrossValidation(data, Response(Noise()), 4, rng)
    frequencies, spectra = process_spectra(validation, SmoothSettings())
    gap = torch.from_numpy(winners - losers)
    # The long process also has opposite ends of the range apart.
    for name, longest in (("0.3", 1.5), ("0.6", 1.5), ("1.0", 4.9)):
        spectrum = spectra[f"length scale {name}"]
        assert float(spectrum.sum()) == pytest.approx(1.0)
        near = gap[(gap.norm(dim=1) > 0.2) & (gap.norm(dim=1) < longest)]
        apart = 1.0 - torch.cos(near @ frequencies) @ spectrum
        expected = 1.0 - torch.exp(-0.25 * (near.norm(dim=1) / float(name)).square())
        ratio = apart / expected
        assert float(ratio.std() / ratio.mean()) < 0.06


def _skewed_choices(columns: list[int], n: int = 3000) -> CrossValidation:
    """Choices by a belief that is log-normal, mirrored log-normal, logit-normal and normal."""
    rng = np.random.default_rng(3)
    u = rng.uniform(0.0, 1.0, (2, n, 4))
    z = np.stack([
        (np.log(u[..., 0]) + 3.0) / 0.7, (np.log(1.0 - u[..., 1]) + 3.0) / 0.7,
        np.log(u[..., 2] / (1.0 - u[..., 2])) / 2.0, (u[..., 3] - 0.5) / 0.2,
    ], axis=-1)  # fmt: skip
    a, b = -0.5 * np.square(z).sum(-1)
    wins = simulate_choices(a, b, Noise(), rng)[:, None]
    t = np.sqrt(12.0) * (u[..., columns] - 0.5)
    data = ChoiceData(
        np.where(wins, t[0], t[1]), np.where(wins, t[1], t[0]), np.ones(n), np.arange(n)
    )
    return CrossValidation(data, Response(Noise()), 4, rng)


@pytest.mark.parametrize("columns", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_features_are_warped_where_the_belief_is_skewed(columns: list[int]) -> None:
    """Whatever their order."""
    quadratic = QuadraticFit(_skewed_choices(columns))
    warp = choose_warp(quadratic, quadratic.fit_multiples()[0].ridges)
    assert warp is not None
    low, high = (strengths[np.argsort(columns)] for strengths in warp.parameters[2:4].numpy())
    np.testing.assert_array_equal(low > 0.0, [True, False, True, False])
    np.testing.assert_array_equal(high > 0.0, [False, True, True, False])
    assert low[0] > 30.0 < high[1]


@pytest.mark.parametrize("columns", [[0, 1], [1, 3, 0]])
def test_a_warp_of_few_choices_is_no_weaker_than_the_belief_needs(columns: list[int]) -> None:
    """With the weakest that helps, the belief would be too wide, and outside its bands."""
    quadratic = QuadraticFit(_skewed_choices(columns, 300))
    warp = choose_warp(quadratic, quadratic.fit_multiples()[0].ridges)
    assert warp is not None
    strengths = warp.parameters[2:4].sum(0).numpy()
    assert (strengths[[c < 2 for c in columns]] > 300.0).all(), strengths


def test_a_belief_that_is_normal_has_no_warp() -> None:
    quadratic = QuadraticFit(_skewed_choices([3]))
    assert choose_warp(quadratic, quadratic.fit_multiples()[0].ridges) is None


def test_a_log_normal_belief_in_natural_units_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forms are of warped features, fitted once, and so are the draws of its posterior."""
    calls = []

    def count_calls(*args: Any) -> list[MixtureFit]:
        calls.append(args)
        return fit_mixtures(*args)

    monkeypatch.setattr("llm_elicit.density.utility.fit.fit_mixtures", count_calls)
    rng, box = np.random.default_rng(5), Uniform([0.01, -3.0], [12.0, 3.0])

    def log_density(x: Array) -> Array:
        z = np.log(x[:, 0])
        return -0.5 * np.square(z / 0.5) - z - 0.5 * np.square(x[:, 1] - z)

    a, b = box.sample(1000, rng), box.sample(1000, rng)
    wins = simulate_choices(log_density(a), log_density(b), Noise(), rng)[:, None]
    settings = replace(QUICK, utility=replace(QUICK.utility, posterior=PosteriorSettings(draws=32)))
    pairs = np.where(wins, a, b), np.where(wins, b, a)
    belief = fit_belief(*pairs, sampling=box, method="utility", settings=settings)
    assert np.array(belief.diagnostics["utility"]["warp"]).shape == (2, 2)
    assert len(calls) == 1
    first = np.log(belief.sample(4000, seed=1)[:, 0])
    assert abs(first.mean()) < 0.15
    assert abs(first.std() - 0.5) < 0.1
    means = belief.draws().mean()[:, 0]
    assert abs(means.mean() / belief.mean()[0] - 1.0) < 0.1


def test_columns_of_categories_alone_have_no_smooth_remainder() -> None:
    box = Uniform([0.0], [8.0], categorical=[True])
    winners, losers = np.arange(9.0)[1:, None], np.arange(9.0)[:-1, None]
    settings = replace(QUICK, utility=replace(QUICK.utility, mixture=MixtureSettings(counts=())))
    belief = fit_belief(winners, losers, sampling=box, method="utility", settings=settings)
    assert set(belief.diagnostics["utility"]["weights"]) == {"constant", "quadratic"}
