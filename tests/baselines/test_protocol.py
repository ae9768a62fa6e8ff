"""The options of the published score method, each against a closed form or a known effect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from llm_elicit.baselines.protocol import (
    CORRECTIONS,
    HeunSettings,
    LangevinSettings,
    LikelihoodSettings,
    ProtocolSettings,
    TrainingSettings,
    paper_protocol,
)
from llm_elicit.baselines.protocol.density import CubeLatent, Mode, ScoreParts, finer, path_integral
from llm_elicit.baselines.protocol.fit import (
    ChoiceJudge,
    clip_weights,
    defensive_mixture,
    winner_weights,
)
from llm_elicit.baselines.protocol.network import PairData, ScoreNetwork, _Trainer, train_score
from llm_elicit.baselines.protocol.samplers import (
    FlowPrior,
    Resampler,
    edm_steps,
    flow_log_prob,
    sample_heun,
    sample_langevin,
)
from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    FitSettings,
    GaussianMixture,
    MixtureSettings,
    Noise,
    PosteriorSettings,
    SmoothSettings,
    Uniform,
    UtilitySettings,
    fit_belief,
)
from llm_elicit.density.latent import make_latent
from llm_elicit.density.score import Tempering
from llm_elicit.density.utility_function import Utility
from tests.density.targets import Array, ask

LINE = Uniform([-1.0], [1.0])
# The beliefs of these tests are normal.
QUADRATIC = UtilitySettings(
    folds=4,
    mixture=MixtureSettings(counts=()),
    smooth=SmoothSettings(frequencies=0),
    posterior=PosteriorSettings(draws=0),
)
TINY = TrainingSettings(steps=40, width=16, batch=128, check_every=20)
SHORT = LangevinSettings(levels=4, steps=3, final_steps=4)


# What held-out choices decide


@dataclass(frozen=True)
class _KnownField(ScoreParts):
    """Learned field = ∇ of −g²/2, right at σ = 0.1 and five times too steep elsewhere."""

    def field_times_score(
        self, g: torch.Tensor, masked: torch.Tensor, sigma: float
    ) -> torch.Tensor:
        return -g * (1.0 if sigma == 0.1 else 5.0)


def test_held_out_choices_find_the_noise_level() -> None:
    sampling = GaussianMixture([1.0], [[0.0]], [[[1.0]]])
    latent = make_latent(sampling)
    winners, losers = ask(lambda x: -0.5 * x[:, 0] ** 2, sampling, 800, seed=3)
    flat = Utility(torch.zeros(1), torch.zeros(1, 1))
    network = ScoreNetwork(1, 4, 1.0, torch.Generator())
    mode = Mode("both", 9.0, 0.0, None, sigma=0.05, jacobian=True)
    prior = FlowPrior.at_zero(1)
    field = Tempering.tabulate(np.zeros(3), Noise())
    parts = _KnownField(latent, flat, network, field, (prior, prior), mode)
    points = (torch.from_numpy(latent.to_latent(x)) for x in (winners, losers))
    held = PairData(*points, torch.ones(800, dtype=torch.float64), np.arange(800))
    choice = ChoiceJudge(parts, held, Noise(), (0.05, 0.1, 0.2))(network)
    assert choice.sigma == 0.1
    assert choice.score > np.log(0.5) + 0.02


def test_a_path_integral_of_a_gradient_is_the_difference_of_its_potential() -> None:
    start = torch.tensor([[0.0, 1.0], [2.0, -1.0]], dtype=torch.float64)
    end = torch.tensor([[1.5, 0.5], [-1.0, 0.0]], dtype=torch.float64)

    def slope(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.cos(x[:, 0]) * x[:, 1], torch.sin(x[:, 0])], 1)

    expected = [np.sin(1.5) * 0.5, np.sin(-1.0) * 0.0 - np.sin(2.0) * -1.0]
    np.testing.assert_allclose(path_integral(slope, start, end), expected, atol=1e-10)


# Training


def _pairs(loser_at: float) -> PairData:
    generator = torch.Generator().manual_seed(1)
    winners = torch.randn(300, 1, generator=generator, dtype=torch.float64)
    losers = torch.full((300, 1), loser_at, dtype=torch.float64)
    losers[::2] = -loser_at  # the same spread of all points for both, so the same σ_data
    return PairData(winners, losers, torch.ones(300, dtype=torch.float64), np.arange(300))


def _weights(fit: object) -> torch.Tensor:
    return torch.cat([p.flatten() for p in fit.network.parameters()])  # type: ignore[attr-defined]


def test_training_on_winners_alone_never_sees_a_loser() -> None:
    alone = replace(TINY, joint=0.0, alone="winner")
    fits = [_weights(train_score(_pairs(at), alone, seed=0)) for at in (1.0, -1.0)]
    assert torch.equal(*fits)
    pairs = replace(TINY, joint=0.5, alone="winner")
    fits = [_weights(train_score(_pairs(at), pairs, seed=0)) for at in (1.0, -1.0)]
    assert not torch.equal(*fits)


@pytest.mark.parametrize(("ema", "same"), [(None, True), (0.1, False)])
def test_without_averaging_the_weights_are_the_last(ema: float | None, same: bool) -> None:
    trainer = _Trainer(_pairs(1.0), replace(TINY, ema=ema), 0)
    for step in range(1, 6):
        trainer.step(step)
    last = torch.cat([p.detach().flatten() for p in trainer.network.parameters()])
    average = torch.cat([p.flatten() for p in trainer.average.parameters()])
    assert torch.equal(last, average) is same


def test_mirrored_noise_makes_the_loss_less_noisy_at_small_sigma() -> None:
    spreads = []
    for mirrored in (True, False):
        settings = replace(TINY, mirrored=mirrored, sigma_min=0.02, sigma_max=0.021, joint=1.0)
        trainer = _Trainer(_pairs(1.0), settings, 0)
        trainer.network.gain.data.fill_(1.0)
        gradients = []
        for k in range(60):
            generator = torch.Generator().manual_seed(k)
            rows = trainer.pairs[:64] if mirrored else trainer.pairs[:64].repeat(2, 1)
            loss = trainer.loss(trainer.network, trainer.add_noise(rows, generator)).mean()
            gradients.append(torch.autograd.grad(loss, trainer.network.gain)[0].item())
        spreads.append(np.std(gradients))
    assert spreads[0] < 0.5 * spreads[1]


# Likelihood


def _gaussian_flow(settings: LikelihoodSettings, sd: float = 0.2) -> float:
    """Largest error of log N(x; 0.3, sd²) by the flow of its exact score."""
    mean, variance = torch.tensor([0.3]).double(), torch.tensor([[sd**2]]).double()
    x = 0.3 + sd * torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    found = flow_log_prob(
        x, lambda y, s: -(y - mean) / (sd**2 + s**2), FlowPrior(mean, variance), settings
    )
    return float(np.abs(found.numpy() - stats.norm.logpdf(x[:, 0], 0.3, sd)).max())


def test_a_fixed_grid_is_coarser_than_adaptive_steps_and_converges() -> None:
    fine = LikelihoodSettings(sigma_min=5e-4, rtol=1e-6, atol=1e-6)
    fixed = replace(fine, solver="implicit_adams")
    assert _gaussian_flow(fine, sd=0.02) < 2e-3
    assert _gaussian_flow(fixed, sd=0.02) > 0.1
    assert _gaussian_flow(replace(fixed, grid=1500), sd=0.02) < 0.01
    assert _gaussian_flow(fixed, sd=0.2) < 2e-3


# The field's integrals


def test_winners_weighted_by_their_density_give_the_field_under_uniform_sampling() -> None:
    """τ at three utilities by draws of p_w against a grid of λ; clipping costs accuracy."""
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    utility = -8.0 * grid.square()
    exact = Tempering.tabulate(utility[::10].numpy(), Noise())
    density = exact.log_win_at(utility).exp()  # p_w = 2λw with λ = 1/2
    chosen = torch.multinomial(
        density, 4000, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    draws, log_winner = grid[chosen][:, None], torch.log(density[chosen])
    flat = torch.full((4000,), -np.log(2.0), dtype=torch.float64)
    u = torch.tensor([-6.0, -2.0, -0.1], dtype=torch.float64)

    def error(points: torch.Tensor, weights: torch.Tensor) -> float:
        utilities = (-8.0 * points[:, 0].square()).numpy()
        found = Tempering.tabulate(utilities, Noise(), weights.numpy()).tau(u)
        return float((found / exact.tau(u) - 1).abs().max())

    plain = error(draws, winner_weights(log_winner, flat, None))
    of_sampling = grid[torch.randint(20_001, (4000,), generator=torch.Generator().manual_seed(1))]
    at_line = (
        lambda g: torch.full_like(g[:, 0], -np.log(2.0)),
        lambda g: exact.log_win_at(-8.0 * g[:, 0].square()),
    )
    mixed, weights = defensive_mixture(of_sampling[:, None], draws, *at_line)
    assert plain < 0.06
    assert error(mixed, weights) < 0.06
    assert weights.max() <= 2.0
    assert error(draws, winner_weights(log_winner, flat, (0.01, 0.6))) > 2 * plain


def test_weights_are_clipped_to_their_quantiles() -> None:
    weights = torch.linspace(0.0, 100.0, 101)
    clipped = clip_weights(weights, (0.01, 0.9))
    assert (clipped.min().item(), clipped.max().item()) == pytest.approx((1.0, 90.0))
    assert clip_weights(weights, None) is weights


# Samplers


@pytest.mark.parametrize(
    ("scaling", "variance"), [("field", 2.0), ("field with drift", 1.0), ("constant", 1.0)]
)
def test_the_paper_s_step_keeps_the_density_times_the_field_unless_its_drift_is_added(
    scaling: str, variance: float
) -> None:
    """π = N(0, 1), τ = 1 + x²: under τ·π the variance is (1 + 3)/(1 + 1) = 2, under π it is 1."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4000, 1, generator=generator, dtype=torch.float64)
    settings = LangevinSettings(levels=1, final_steps=300, step=0.2, scaling=scaling)
    with_drift = scaling == "field with drift"
    x = sample_langevin(
        start,
        lambda x, s: -x,
        settings,
        generator,
        lambda x: (1.0 + x[:, 0].square(), 2.0 * x if with_drift else None),
    )
    assert x.square().mean().item() == pytest.approx(variance, abs=0.25 if variance > 1 else 0.1)


def test_steps_too_long_for_the_score_are_said() -> None:
    start, generator = torch.ones(10, 1, dtype=torch.float64), torch.Generator().manual_seed(0)
    settings = LangevinSettings(levels=1, final_steps=300, step=100.0, scaling="field")
    with pytest.raises(DensityError, match=r"diverged at noise level 0\.05: steps of 100"):
        sample_langevin(
            start, lambda x, s: -(x**3), settings, generator, lambda x: (torch.ones(len(x)), None)
        )


def test_steps_in_units_of_the_field_keep_their_noise_levels_from_a_start_at_the_belief() -> None:
    """From twice the last level on, steps of ε·(σ/σ_start)² would be a thousand times too long."""
    settings = paper_protocol(2, ["start"]).langevin
    assert settings.truncate_at(0.05) == settings
    assert LangevinSettings().truncate_at(0.2).sigma_start == 0.4


def test_the_field_s_gradient_is_its_derivative() -> None:
    """τ = g(u(x)), so ∇τ = g′(u) ∇u."""
    tempering = Tempering.tabulate(np.linspace(-3.0, 1.0, 50), Noise())
    latent = make_latent(Uniform([-1.0, -1.0], [1.0, 1.0]))
    utility = Utility(torch.tensor([1.0, -0.5]), torch.tensor([[-1.0, 0.2], [0.2, -0.4]]))
    mode = Mode("winners", 5.0, 0.0, None, 0.1, True)
    network = ScoreNetwork(2, 1, 1.0, torch.Generator())
    prior = FlowPrior.at_zero(2)
    parts = ScoreParts(latent, utility, network, tempering, (prior, prior), mode)
    g, h = torch.tensor([[0.3, -0.4], [-0.8, 0.1], [2.5, -2.5]], dtype=torch.float64), 1e-3
    field, slope = parts.field_and_slope(g)
    torch.testing.assert_close(field, parts.field(g))
    for axis in range(2):
        step = h * torch.eye(2, dtype=torch.float64)[axis]
        expected = (parts.field(g + step) - parts.field(g - step)) / (2 * h)
        torch.testing.assert_close(slope[:, axis], expected, rtol=0.02, atol=1e-3)


def test_heun_draws_a_correlated_gaussian() -> None:
    covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
    mean = torch.tensor([0.3, -0.5], dtype=torch.float64)

    def score(x: torch.Tensor, sigma: float) -> torch.Tensor:
        total = covariance + sigma**2 * torch.eye(2, dtype=torch.float64)
        return -(x - mean) @ torch.linalg.inv(total)

    generator = torch.Generator().manual_seed(0)
    x = sample_heun(8000, score, FlowPrior(mean, covariance), HeunSettings(), generator)
    np.testing.assert_allclose(x.mean(0), mean, atol=0.03)
    np.testing.assert_allclose(torch.cov(x.T), covariance, atol=0.03)
    levels = edm_steps(HeunSettings(steps=8))
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] == 0.0


def test_the_second_network_draws_and_evaluates_the_same_density() -> None:
    generator = torch.Generator().manual_seed(0)
    side = torch.randint(2, (4000, 1), generator=generator) * 2 - 1
    draws = 0.8 * side + 0.35 * torch.randn(4000, 1, generator=generator, dtype=torch.float64)
    settings = HeunSettings(training=replace(HeunSettings().training, steps=400, width=32))
    second = Resampler.train(draws, settings, LikelihoodSettings(sigma_min=0.02), seed=0)
    x = second.sample(4000, generator)[:, 0]
    grid = torch.linspace(-3, 3, 301, dtype=torch.float64)
    density = second.log_prob(grid[:, None]).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=0.03)
    variance = torch.trapezoid(density * grid.square(), grid).item()
    assert x.square().mean().item() == pytest.approx(variance, rel=0.06)
    assert x.square().mean().item() == pytest.approx(0.8**2 + 0.35**2, rel=0.15)


# The paper's coordinates


def test_the_cube_makes_the_sampling_density_uniform_and_knows_its_jacobian() -> None:
    sampling = GaussianMixture([1.0], [[1.0, -2.0]], [[[2.0, 0.5], [0.5, 1.0]]])
    cube = CubeLatent(make_latent(sampling), side=2.0)
    x = sampling.sample(4000, np.random.default_rng(0))
    y = cube.to_latent(x)
    np.testing.assert_allclose(cube.from_latent(y), x, atol=1e-6)
    assert stats.kstest(y[:, 1], stats.uniform(-1, 2).cdf).pvalue > 0.01
    inner = torch.from_numpy(y[:5])
    np.testing.assert_allclose(cube.from_outer(cube.to_outer(inner)), inner, atol=1e-6)
    # λ = dy/dx on a cube of volume 4, so log|dx/dy| = −log λ − log 4.
    np.testing.assert_allclose(
        cube.log_volume(inner), -sampling.log_prob(x[:5]) - np.log(4.0), atol=1e-6
    )


def test_without_the_jacobian_the_belief_is_multiplied_by_the_sampling_density() -> None:
    """Belief N(0, 1), λ = N(0, variance 3): p·λ has variance 1/(1 + 1/3), so sd 0.866."""
    sampling = GaussianMixture([1.0], [[0.0]], [[[3.0]]])
    winners, losers = ask(lambda x: -0.5 * x[:, 0] ** 2, sampling, 2000, seed=21)
    spreads = []
    for jacobian in (False, True):
        external = ProtocolSettings(training=TINY, jacobian=jacobian, sigmas=None, density="rays")
        settings = FitSettings(utility=QUADRATIC, external=external)
        belief = fit_belief(
            winners, losers, sampling=sampling, method="protocol", settings=settings
        )
        spreads.append(belief.sample(6000, seed=1).var())
    # The learned belief has a variance of its own; multiplied by λ, its precision grows by 1/3.
    assert 1 / spreads[0] - 1 / spreads[1] == pytest.approx(1 / 3, abs=0.15)


# Whole fits

LOOSE = LikelihoodSettings(rtol=1e-2, atol=1e-2)
BRIEF = ProtocolSettings(training=TINY, langevin=SHORT, likelihood=LOOSE)
QUICK_PAPER = replace(
    paper_protocol(1),
    training=replace(paper_protocol(1).training, steps=60, batch=128, width=16),
    langevin=replace(paper_protocol(1).langevin, levels=6, steps=4, final_steps=4),
    winner_draws=200,
)
VARIANTS = {
    "learned": BRIEF,
    "constant": replace(BRIEF, constant=True),
    "flow": replace(BRIEF, likelihood=replace(LOOSE, solver="midpoint")),
    "rays": replace(BRIEF, density="rays"),
    "winners": replace(BRIEF, expectation="winners", winner_draws=300, density="rays"),
    "mixture": replace(BRIEF, expectation="mixture", winner_draws=300, density="rays"),
    "heun": replace(
        BRIEF,
        likelihood=LikelihoodSettings(rtol=1e-3, atol=1e-3),
        resample="heun",
        heun=HeunSettings(draws=1500, training=replace(HeunSettings().training, steps=150)),
    ),
    "paper": QUICK_PAPER,
    "paper, corrected": replace(QUICK_PAPER, jacobian=True, langevin=LangevinSettings()),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_fits_saves_and_loads(
    name: str, line_judge: tuple[Array, Array], tmp_path: Path
) -> None:
    settings = FitSettings(utility=QUADRATIC, external=VARIANTS[name])
    belief = fit_belief(*line_judge, sampling=LINE, method="protocol", settings=settings, seed=3)
    belief.save(tmp_path)
    again = BeliefDensity.load(tmp_path)
    x = belief.sample(200, seed=4)
    assert LINE.contains(x).all()
    np.testing.assert_array_equal(again.sample(200, seed=4), x)
    np.testing.assert_array_equal(again.log_prob(x), belief.log_prob(x))
    grid = np.linspace(-0.999, 0.999, 201)[:, None]
    total = np.trapezoid(np.exp(belief.log_prob(grid)), grid[:, 0])
    assert total == pytest.approx(1.0, abs=4 * belief.diagnostics["log_normalizer_se"] + 0.05)


def test_each_published_choice_is_corrected_alone() -> None:
    published = paper_protocol(6)
    for name in CORRECTIONS:
        corrected = paper_protocol(6, corrected=[name])
        fields = [f for f in vars(published) if getattr(published, f) != getattr(corrected, f)]
        expected = {"training", "side"} if name == "losers" else {_FIELD.get(name, name)}
        assert set(fields) == expected
    with pytest.raises(DensityError, match="jacobian, drift, step"):
        paper_protocol(6, corrected=["everything"])


_FIELD = {
    **dict.fromkeys(("drift", "step", "start"), "langevin"),
    **dict.fromkeys(("solver", "prior"), "likelihood"),
}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ProtocolSettings(side="losers"), "both, winners"),
        (lambda: ProtocolSettings(cap_quantile=0.0), "cap_quantile"),
        (lambda: ProtocolSettings(expectation="losers"), "sampling, winners, mixture"),
        (lambda: ProtocolSettings(density="guess"), "rays, flow"),
        (lambda: ProtocolSettings(resample="euler"), "heun, None"),
        (lambda: ProtocolSettings(clip=(0.9, 0.1)), r"clip = \(0.9, 0.1\)"),
        (lambda: ProtocolSettings(floor=-1.0), "floor = -1.0"),
        (lambda: ProtocolSettings(training=TrainingSettings(alone="winner")), "side='winners'"),
        (lambda: ProtocolSettings(sigmas=(0.1, 0.0)), "sigmas = 0.0"),
        (lambda: TrainingSettings(alone="loser"), "either, winner"),
        (lambda: TrainingSettings(joint=1.5), "joint"),
        (lambda: TrainingSettings(sigma_min=9.0), "sigma_min = 9.0 is not below sigma_max"),
        (lambda: TrainingSettings(ema=0.0), "ema = 0.0"),
        (lambda: LangevinSettings(scaling="tau"), "constant, field"),
        (lambda: LangevinSettings(start="zero"), "utility, noise"),
        (lambda: LikelihoodSettings(solver="magic"), "dopri5"),
        (lambda: LikelihoodSettings(prior="flat"), "matched, noise"),
        (lambda: HeunSettings(rho=float("nan")), "rho = nan"),
        (lambda: paper_protocol(0), "dimension = 0"),
    ],
)
def test_bad_settings_are_named_in_one_line(build: object, words: str) -> None:
    with pytest.raises(DensityError, match=words) as caught:
        build()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_the_stated_error_of_the_flow_likelihood_falls_with_its_tolerance(
    line_judge: tuple[Array, Array],
) -> None:
    errors = []
    for tolerance in (3e-2, 1e-5):
        likelihood = LikelihoodSettings(rtol=tolerance, atol=tolerance)
        external = ProtocolSettings(likelihood=likelihood, training=TINY, langevin=SHORT)
        found = fit_belief(
            *line_judge,
            sampling=LINE,
            method="protocol",
            settings=FitSettings(utility=QUADRATIC, external=external),
        )
        errors.append(found.diagnostics["log_prob_error"]["evaluation"])
    assert errors[1] < 0.1 * errors[0]
    assert finer(LikelihoodSettings(solver="implicit_adams")).solver == "dopri5"
