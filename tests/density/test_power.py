"""The scale of a belief: masses along powers, each source of a power, and tempered beliefs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp

from llm_elicit.density import (
    AnnealingSettings,
    BeliefDensity,
    DensityError,
    Empirical,
    GaussianMixture,
    Power,
    Ranges,
    Uniform,
    fit_belief,
    fit_power,
)
from llm_elicit.density.latent import make_latent
from llm_elicit.density.methods import PotentialDensity
from llm_elicit.density.ranges import TruncatedNormal, anneal_powers, whole_space
from llm_elicit.density.utility_function import Utility
from tests.density.targets import FEW_DRAWS, Array

INF = math.inf
LINE = Uniform([-3.0], [3.0])
POWER = 10.0
CENTRE, WIDTH = 0.7, 0.8


def log_p(x: Array) -> Array:
    """log of N(0.7, 0.8²), without its constant."""
    return -0.5 * ((x[..., 0] - CENTRE) / WIDTH) ** 2


def faint_belief(sampling=LINE, n: int = 150, noise: float = 0.005, seed: int = 0) -> BeliefDensity:
    """Fitted to log-odds a tenth of the differences of log p."""
    rng = np.random.default_rng(seed)
    a, b = sampling.sample(n, rng), sampling.sample(n, rng)
    heard = (log_p(a) - log_p(b)) / POWER + rng.normal(0, noise, n)
    return fit_belief(a, b, log_odds=heard, sampling=sampling, settings=FEW_DRAWS)


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    return faint_belief()


def truth(n: int, seed: int) -> Array:
    """Exact draws (n, 1) of the belief within the box."""
    law = stats.truncnorm((-3 - CENTRE) / WIDTH, (3 - CENTRE) / WIDTH, CENTRE, WIDTH)
    return np.asarray(law.rvs((n, 1), random_state=seed))


def log_masses(boxes: Array, power: float = 1.0) -> Array:
    """log ∫ exp(power · log p) over ranges (n, 1, 2)."""
    scale = WIDTH / math.sqrt(power)
    edges = (np.clip(boxes[:, 0], -3, 3) - CENTRE) / scale
    return np.log(np.diff(stats.norm.cdf(edges))[:, 0])


def ranges_of(n: int, seed: int, *, response: float = 1 / POWER, noise: float = 0.01) -> Ranges:
    rng = np.random.default_rng(seed)
    wide = np.exp(rng.uniform(math.log(0.1), math.log(2.5), (2, n)))
    low = rng.uniform(-2.5, 1.5, (2, n))
    first, second = np.stack([low, np.minimum(low + wide, 3.0)], -1)[:, :, None]
    apart = response * (log_masses(first) - log_masses(second))
    both = np.concatenate([apart, -apart]) + 0.1 + rng.normal(0, noise, 2 * n)
    return Ranges(np.concatenate([first, second]), np.concatenate([second, first]), both)


DATA = np.random.default_rng(0).multivariate_normal([0, 0], [[0.3, 0.2], [0.2, 0.5]], 400)
KINDS = {
    "uniform": Uniform([0.0, 1.0], [2.0, 1000.0], log=[False, True]),
    "normal": GaussianMixture([1.0], [[1.0, 2.0]], [[[1.0, 0.8], [0.8, 2.0]]]),
    "mixture": GaussianMixture([0.5, 0.5], [[0, 0], [3.0, 4.0]], [np.eye(2)] * 2),
    "empirical": Empirical(np.exp(DATA), low=[0.0, 0.0]),
}


class TestTruncatedNormal:
    BOXES = np.array([
        [[0.5, 0.9], [1.5, 4.0]],
        [[-INF, INF], [1.5, 2.0]],
        [[0.9, INF], [-INF, 3.0]],
        [[-INF, INF], [-INF, INF]],
    ])  # fmt: skip

    @pytest.mark.parametrize("kind", KINDS)
    def test_draws_lie_within_their_boxes(self, kind):
        latent = make_latent(KINDS[kind])
        law = TruncatedNormal.from_boxes(latent, self.BOXES)
        g = law.draw(500, torch.Generator().manual_seed(0))
        x = latent.from_latent(g.reshape(-1, 2).numpy()).reshape(4, 500, 2)
        low, high = self.BOXES[:, None, :, 0], self.BOXES[:, None, :, 1]
        assert ((x >= low - 1e-9) & (x <= high + 1e-9)).all()
        assert law.log_density(g).isfinite().all()

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_density_integrates_to_one(self, kind):
        # E_q[r / q] = ∫ r = 1 for the normal density r of a square that every box holds.
        latent = make_latent(KINDS[kind])
        law = TruncatedNormal.from_boxes(latent, self.BOXES)
        g = law.draw(200_000, torch.Generator().manual_seed(1))
        inner = torch.from_numpy(latent.to_latent(np.array([[0.901, 1.6], [0.9, 1.999]])))
        place, scale = inner.mean(0), 0.02 * torch.ones(2, dtype=torch.float64)
        for box in range(1, 4):
            white = (g[box] - place) / scale
            inside = -0.5 * white.square().sum(1) - torch.log(scale).sum() - math.log(2 * math.pi)
            weight = torch.exp(inside - law.log_density(g)[box])
            if box == 2:
                continue  # its edge cuts the square
            error = float(weight.std()) / math.sqrt(len(weight))
            assert float(weight.mean()) == pytest.approx(1.0, abs=5 * error + 1e-3)

    def test_far_ranges_are_drawn_without_overflow(self):
        latent = make_latent(GaussianMixture([1.0], [[0.0]], [[[1.0]]]))
        boxes = np.array([[[12.0, 12.5]], [[-20.0, -19.0]]])
        law = TruncatedNormal.from_boxes(latent, boxes)
        g = law.draw(100, torch.Generator().manual_seed(2))
        assert law.log_density(g).isfinite().all()
        assert (
            (g[..., 0].numpy() >= boxes[:, 0, :1]) & (g[..., 0].numpy() <= boxes[:, 0, 1:])
        ).all()

    def test_boxes_outside_the_support_are_refused(self):
        latent = make_latent(GaussianMixture([1.0], [[0.0]], [[[1.0]]]))
        with pytest.raises(DensityError, match="has no mass under the sampling density"):
            TruncatedNormal.from_boxes(latent, np.array([[[50.0, 60.0]]]))

    def test_bounds_on_categories_are_refused(self):
        sampling = Uniform([0.0, 0.0], [1.0, 3.0], categorical=[False, True])
        with pytest.raises(DensityError, match="categories without an order"):
            TruncatedNormal.from_boxes(make_latent(sampling), np.array([[[0.1, 0.2], [0.0, 1.0]]]))


class TestPath:
    QUADRATIC = Utility(torch.tensor([0.3, -0.2]), torch.tensor([[-0.4, 0.1], [0.1, -0.6]]))

    @pytest.mark.parametrize(
        "sampling",
        [
            Uniform([0.0, 1.0], [2.0, 1000.0], log=[False, True]),
            GaussianMixture([0.4, 0.6], [[0, 0], [1.0, 4.0]], [np.eye(2)] * 2),
            KINDS["empirical"],
        ],
    )
    def test_masses_are_those_of_quadrature(self, sampling):
        boxes = np.array([[[0.2, 0.5], [1.5, 4.0]], [[0.4, 1.9], [1.5, 1.7]]])
        latent = make_latent(sampling)
        powers = np.geomspace(0.1, 8.0, 12)
        model = PotentialDensity(latent, self.QUADRATIC, AnnealingSettings())
        path = anneal_powers(model, boxes, powers, 8192, torch.Generator().manual_seed(3))
        for at, box in enumerate(boxes):
            edges = [np.linspace(*side, 101) for side in box]
            axes = [0.5 * (edge[1:] + edge[:-1]) for edge in edges]
            x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
            g = torch.from_numpy(latent.to_latent(x))
            # dz = |dz/dx| dx, the features being on their scales.
            log_unit = (
                sampling.log_scale_derivative(x)
                + np.log([np.diff(side) / 100 for side in box]).sum()
            )
            f = self.QUADRATIC(latent.features(g)).double().numpy()
            for k, power in enumerate(powers):
                want = logsumexp(power * f + log_unit)
                assert path.log_mass[at, k] == pytest.approx(want, abs=0.05)

    def test_the_whole_space_has_the_belief_s_normalizing_constant(self, belief):
        model = belief.utility_model("test")
        generator = torch.Generator().manual_seed(4)
        path = anneal_powers(model, whole_space(1), np.array([1.0]), 4096, generator)
        assert path.log_mass[0, 0] == pytest.approx(model.log_normalizer, abs=0.02)


class TestSources:
    def test_points(self, belief):
        found = [fit_power(belief, points=truth(400, seed)) for seed in range(4)]
        assert sum(power.low < POWER < power.high for power in found) >= 3
        assert abs(np.log([power.value / POWER for power in found]).mean()) < 0.1
        power = found[0]
        assert power.source == "points"
        # Information about log k of n normal points is n/2: the standard deviation √(2/n).
        assert power.log_sd == pytest.approx(math.sqrt(2 / 400), rel=0.4)

    def test_points_have_their_mode_where_moments_match(self, belief):
        x = truth(300, 2)
        power = fit_power(belief, points=x)
        f = belief.utility(x).mean()

        def mean_utility(k: float) -> float:
            at = np.linspace(-3, 3, 2001)[:, None]
            values = belief.utility(at)
            weight = np.exp(k * (values - values.max()))
            return float(weight @ values / weight.sum())

        grid = np.exp(np.linspace(math.log(3), math.log(30), 200))
        matched = grid[np.argmin([abs(mean_utility(k) - f) for k in grid])]
        assert power.value == pytest.approx(matched, rel=0.1)

    def test_quantiles(self, belief):
        law = stats.truncnorm((-3 - CENTRE) / WIDTH, (3 - CENTRE) / WIDTH, CENTRE, WIDTH)
        stated = {level: float(law.ppf(level)) for level in (0.1, 0.5, 0.9)}
        power = fit_power(belief, quantiles={0: stated})
        assert power.low < POWER < power.high
        assert power.value == pytest.approx(POWER, rel=0.35)

    def test_ratios(self, belief):
        rng = np.random.default_rng(3)
        a, b = LINE.sample(20, rng), LINE.sample(20, rng)
        stated = log_p(a) - log_p(b) + rng.normal(0, 0.3, 20)
        power = fit_power(belief, ratios=(a, b, stated))
        assert power.value == pytest.approx(POWER, rel=0.15)
        assert power.low < POWER < power.high

    def test_ranges(self, belief):
        power = fit_power(belief, ranges=ranges_of(40, 4))
        assert power.low < POWER < power.high
        assert power.value == pytest.approx(POWER, rel=0.3)
        assert power.coherence is not None
        assert power.coherence.coherent

    def test_ranges_do_not_need_the_response_of_points(self, belief):
        """A judge who answers ranges more faintly than points has the same density."""
        power = fit_power(belief, ranges=ranges_of(60, 5, response=0.5 / POWER, noise=0.003))
        assert power.low < POWER < power.high

    def test_ranges_judged_without_regard_to_width_are_incoherent(self, belief):
        first_and_second = ranges_of(40, 6)
        sides = [first_and_second.first, first_and_second.second]
        middles = [log_p(side.mean(-1)) for side in sides]
        rng = np.random.default_rng(6)
        heard = (middles[0] - middles[1]) / POWER + rng.normal(0, 0.01, 80)
        power = fit_power(belief, ranges=replace_log_odds(first_and_second, heard))
        assert power.coherence is not None
        assert not power.coherence.coherent
        low, high = power.coherence.width[1:]
        assert low < 0.02
        assert high < power.coherence.expected

    def test_sources_are_combined_and_compared(self, belief):
        x = truth(100, 7)
        rng = np.random.default_rng(8)
        a, b = LINE.sample(30, rng), LINE.sample(30, rng)
        ratios = a, b, log_p(a) - log_p(b) + rng.normal(0, 0.3, 30)
        power = fit_power(belief, points=x, ratios=ratios)
        assert power.source == "points + ratios"
        assert [each.source for each in power.sources] == ["points", "ratios"]
        assert power.log_sd < min(each.log_sd for each in power.sources)
        assert power.agreement is not None
        assert power.agreement > 0.01
        apart = fit_power(belief, points=x, ratios=(a, b, 4 * ratios[2]))
        assert apart.agreement is not None
        assert apart.agreement < 1e-3

    def test_a_factor_of_all_log_odds_divides_the_power_alone(self):
        rng = np.random.default_rng(13)
        a, b = LINE.sample(40, rng), LINE.sample(40, rng)
        heard = (log_p(a) - log_p(b)) / POWER + rng.normal(0, 0.03, 40)
        ranges = ranges_of(30, 14)
        found = []
        for factor in (1.0, 7.0):
            fitted = fit_belief(a, b, log_odds=factor * heard, sampling=LINE, settings=FEW_DRAWS)
            scaled = replace_log_odds(ranges, factor * ranges.log_odds)
            found.append(fit_power(fitted, ranges=scaled))
        assert found[1].value == pytest.approx(found[0].value / 7.0, rel=0.02)
        assert found[1].high / found[1].low == pytest.approx(found[0].high / found[0].low, rel=0.02)

    def test_the_same_seed_gives_the_same_power(self, belief):
        one, other = (fit_power(belief, points=truth(20, 9), seed=3) for _ in range(2))
        assert one == other


def replace_log_odds(ranges: Ranges, value: Array) -> Ranges:
    return Ranges(ranges.first, ranges.second, value)


class TestTempered:
    @pytest.mark.parametrize("power", [0.5, POWER, 40.0])
    def test_the_density_is_the_power_of_the_utility_and_normalized(self, belief, power):
        sharper = belief.tempered(power)

        def density(x: float) -> float:
            return float(np.exp(sharper.log_prob([[x]])[0]))

        assert quad(density, -3, 3, limit=200)[0] == pytest.approx(1.0, abs=0.03)
        x = np.array([[-1.0], [0.5], [2.0]])
        gaps = np.diff(sharper.log_prob(x)), np.diff(belief.log_prob(x))
        assert gaps[0] == pytest.approx(power * gaps[1], rel=1e-4)
        assert np.isneginf(sharper.log_prob([[3.5]])).all()
        drawn = sharper.sample(4000, seed=1)
        assert (abs(drawn) <= 3).all()

    def test_at_the_true_power_it_is_the_judge_s_density(self, belief):
        drawn = belief.tempered(POWER).sample(8000, seed=2)
        assert stats.wasserstein_distance(drawn[:, 0], truth(8000, 10)[:, 0]) < 0.06

    def test_two_features_are_normalized_too(self):
        square = Uniform([-3.0, -3.0], [3.0, 3.0])
        sharper = faint_belief(square, n=120).tempered(POWER)
        at = np.linspace(-3, 3, 301)
        grid = np.stack(np.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2)
        total = logsumexp(sharper.log_prob(grid)) + 2 * math.log(6 / 300)
        assert total == pytest.approx(0.0, abs=0.05)

    def test_it_is_saved_and_read_back_with_its_draws(self, belief, tmp_path):
        sharper = belief.tempered(Power(POWER, 8.0, 12.0, "points", 0.2))
        sharper.save(tmp_path)
        same = BeliefDensity.load(tmp_path)
        x = sharper.sample(50, seed=3)
        assert (same.sample(50, seed=3) == x).all()
        assert (same.log_prob(x) == sharper.log_prob(x)).all()
        assert same.power == POWER
        assert (same.utility(x) == sharper.utility(x)).all()
        assert (same.draws(seed=1).log_prob(x) == sharper.draws(seed=1).log_prob(x)).all()

    def test_the_power_s_uncertainty_widens_the_bands(self, belief):
        known = belief.tempered(POWER).draws(seed=1)
        unsure = belief.tempered(Power(POWER, 5.0, 20.0, "ranges", 0.4)).draws(seed=1)

        def spread_of_sd(draws) -> float:
            return float(np.ptp(draws.quantile([0.1, 0.9]), axis=1).std())

        assert spread_of_sd(unsure) > 2 * spread_of_sd(known)

    def test_powers_multiply(self, belief):
        twice = belief.tempered(4.0).tempered(2.5)
        assert twice.power == pytest.approx(POWER)
        once = belief.tempered(POWER)
        x = np.linspace(-2, 2, 9)[:, None]
        gap = twice.log_prob(x) - once.log_prob(x)
        assert np.ptp(gap) < 1e-3

    @pytest.mark.parametrize("power", [0.0, -1.0, math.nan, math.inf])
    def test_powers_are_positive_and_finite(self, belief, power):
        with pytest.raises(DensityError, match="must be a"):
            belief.tempered(power)


class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({}, "no source was given"),
            ({"points": [[5.0]]}, "outside the support"),
            ({"points": [[0.0, 1.0]]}, r"points has shape \(1, 2\)"),
            ({"quantiles": {}}, r"quantiles = \{\}; pass"),
            ({"quantiles": {1: {0.5: 0.0}}}, "number = 1; it must lie between 0 and 0"),
            ({"quantiles": {0: {0.1: 1.0, 0.9: 0.0}}}, "increase with their levels"),
            ({"quantiles": {0: {0.0: 1.0}}}, "strictly between 0 and 1"),
            ({"quantiles": {0: {0.5: 7.0}}}, "outside the support"),
            ({"ratios": ([[0.0]], [[1.0]])}, "the three arrays"),
            ({"ratios": ([[0.0]], [[1.0]], [np.nan])}, "finite"),
            ({"ratios": ([[0.0]], [[9.0]], [1.0])}, "outside the support"),
        ],
    )
    def test_errors_are_one_line(self, belief, given, said):
        with pytest.raises(DensityError, match=said) as caught:
            fit_power(belief, **given)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("first", "second", "value", "said"),
        [
            ([[(1, 0)]], [[(0, 1)]], [0.1], "lower bound comes first"),
            ([[(0, 1)]], [[(0, 1)]], [np.nan], r"log_odds\[0\] is nan"),
            ([[(0, 1)]], [[(0, 1)]], [0.1, 0.2], "one number per question"),
            ([(0, 1)], [(0, 1)], [0.1], "both are"),
            ([[(0, "x")]], [[(0, 1)]], [0.1], "cannot be read"),
        ],
    )
    def test_ranges_are_checked_when_they_are_made(self, first, second, value, said):
        with pytest.raises(DensityError, match=said):
            Ranges(first, second, value)

    def test_ranges_lie_within_the_box(self, belief):
        good = ranges_of(5, 11)
        first = good.first.copy()
        first[2, 0, 1] = 9.0
        with pytest.raises(DensityError, match="outside the range asked about"):
            fit_power(belief, ranges=Ranges(first, good.second, good.log_odds))
        with pytest.raises(DensityError, match="at least three"):
            fit_power(belief, ranges=Ranges(good.first[:2], good.second[:2], good.log_odds[:2]))
        two = np.repeat(good.first, 2, axis=1)
        with pytest.raises(DensityError, match="ranges of 2 features"):
            fit_power(belief, ranges=Ranges(two, two, good.log_odds))

    def test_a_flat_belief_has_no_scale(self):
        rng = np.random.default_rng(12)
        a, b = rng.uniform(-3, 3, (2, 20, 1))
        flat = fit_belief(a, b, log_odds=np.zeros(20), sampling=LINE)
        with pytest.raises(DensityError, match="flat"):
            fit_power(flat, points=[[0.0]])

    def test_the_utility_is_defined_only_inside_the_support(self, belief):
        with pytest.raises(DensityError, match="lies outside the support"):
            belief.utility([[0.0], [3.5]])

    def test_a_power_is_positive(self):
        with pytest.raises(DensityError, match="a power is a finite number"):
            Power(-1.0, -2.0, 0.0, "points", 0.1)
