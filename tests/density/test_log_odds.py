"""Measured log-odds: contrasts of pairs, the regression on them, and the judge's parameters."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from llm_elicit.density import (
    AnnealingSettings,
    BeliefDensity,
    DensityError,
    Evidence,
    FitSettings,
    Noise,
    Uniform,
    UtilitySettings,
    fit_belief,
    fit_evidence,
)
from llm_elicit.density.contrasts import pair_contrasts
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.density.utility.gaussian_process import stationary_terms
from tests.density.targets import Array

pytestmark = pytest.mark.usefixtures("few_particles")

BOX = Uniform([-3.0], [3.0])
SQUARE = Uniform([-3.0, -3.0], [3.0, 3.0])
# No draws of the belief are used.
ONE_MOVE = AnnealingSettings(moves=1, final_moves=1)
SMALL = FitSettings(
    utility=UtilitySettings(process=GaussianProcessSettings(frequencies=64, draws=16)),
    annealing=ONE_MOVE,
)


def hill(x: Array) -> Array:
    """log p of N(1, 1), without its constant."""
    return -0.5 * (x[:, 0] - 1.0) ** 2


def both_orders(
    n: int, seed: int, *, gain: float = 0.1, noise: float = 0.0, position: float = 0.0,
    position_sd: float = 0.0, box: Uniform = BOX,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Rows of n pairs in both orders: first, second, log-odds (2n)."""
    rng = np.random.default_rng(seed)
    a, b = box.sample(n, rng), box.sample(n, rng)
    apart = gain * (hill(a) - hill(b))
    m = rng.normal(position, position_sd, n)
    heard = np.concatenate([m + apart, m - apart]) + rng.normal(0.0, noise, 2 * n)
    return np.concatenate([a, b]), np.concatenate([b, a]), heard


def fitted(evidence: Evidence, box: Uniform = BOX) -> BeliefDensity:
    return fit_evidence(evidence, sampling=box, settings=SMALL)


def evaluate_utility(belief: BeliefDensity, x: Array) -> Array:
    f = belief.utility(x)
    return np.asarray(f - f.mean())


GRID = np.linspace(-2.9, 2.9, 59)[:, None]


class TestContrasts:
    def rows(self, first, second, value, **changes):
        evidence = Evidence.log_odds(first, second, value)
        for name, new in changes.items():
            getattr(evidence.measurements, name)[:] = new
        return pair_contrasts(evidence.measurements)

    def test_half_difference_and_half_sum(self):
        found = self.rows([[0.0], [1.0]], [[1.0], [0.0]], [0.5, 0.1])
        assert found.value == pytest.approx([0.2])
        assert found.half_sum == pytest.approx([0.3])
        assert found.dispersion_share.tolist() == [0.5]
        assert found.position_coefficient.tolist() == [0.0]

    def test_repeated_questions_are_averaged_within_an_order(self):
        found = self.rows([[0.0], [0.0], [1.0]], [[1.0], [1.0], [0.0]], [0.4, 0.6, 0.1])
        assert found.value == pytest.approx([0.2])

    def test_a_single_order_less_the_mean_position_effect(self):
        # Two pairs in both orders tell a mean effect of 0.3 and its variance; the third is single.
        first = [[0.0], [1.0], [0.2], [1.2], [0.5]]
        second = [[1.0], [0.0], [1.2], [0.2], [2.0]]
        found = self.rows(first, second, [0.5, 0.1, 0.4, 0.2, 1.0])
        single = found.position_coefficient != 0
        assert found.value[single] == pytest.approx([0.7])
        assert np.isnan(found.half_sum[single]).all()
        assert found.extra_variance[single] == pytest.approx(np.var([0.3, 0.3], ddof=1))

    def test_a_single_order_alone_keeps_its_value_and_its_whole_variance(self):
        found = self.rows([[1.0]], [[0.0]], [0.7])
        assert found.a.tolist() == [[0.0]], "pairs are kept in lexical order"
        assert found.value.tolist() == [-0.7]
        assert found.dispersion_share.tolist() == [1.0]

    @pytest.mark.parametrize(
        ("censored", "expected", "useless"),
        [([1, 0], 1, False), ([0, 1], -1, False), ([1, -1], 1, False), ([1, 1], 0, True)],
    )
    def test_bounds_of_either_order_bound_the_pair(self, censored, expected, useless):
        found = self.rows([[0.0], [1.0]], [[1.0], [0.0]], [3.0, 3.0], censored=censored)
        assert found.censored.tolist() == [expected]
        assert bool(np.isinf(found.extra_variance[0])) == useless

    def test_judges_keep_their_own_pairs(self):
        one = Evidence.log_odds([[0.0]], [[1.0]], [0.5], judge="one")
        two = Evidence.log_odds([[0.0]], [[1.0]], [0.1], judge="two")
        assert len(pair_contrasts((one + two).measurements)) == 2


class TestFit:
    def test_a_utility_without_noise_is_found_exactly(self):
        belief = fitted(Evidence.log_odds(*both_orders(40, 0, noise=1e-4)))
        truth = 0.1 * hill(GRID)
        assert evaluate_utility(belief, GRID) == pytest.approx(truth - truth.mean(), abs=2e-3)
        assert belief.diagnostics["response"]["held_out_r2"] > 0.999
        assert belief.diagnostics["response"]["scale"] == "log-odds"

    def test_dispersion_and_position_effect_are_those_of_the_judge(self):
        rows = both_orders(300, 1, noise=0.07, position=0.1, position_sd=0.05)
        found = fitted(Evidence.log_odds(*rows)).diagnostics["response"]
        assert found["dispersion"] == pytest.approx(0.07, rel=0.15)
        assert found["position"]["mean"] == pytest.approx(0.1, abs=4 * 0.07 / 600**0.5)
        assert found["position"]["sd"] == pytest.approx(0.05, rel=0.35)
        assert (found["pairs"], found["both_orders"]) == (300, 300)

    @settings(max_examples=5, deadline=None)
    @given(log_factor=st.floats(-4.0, 4.0), seed=st.integers(0, 100))
    def test_a_factor_of_all_log_odds_is_one_of_the_utility_alone(self, log_factor, seed):
        first, second, value = both_orders(25, seed, noise=0.05, position=0.1)
        factor = float(np.exp(log_factor))
        plain = fitted(Evidence.log_odds(first, second, value))
        scaled = fitted(Evidence.log_odds(first, second, factor * value))
        size = np.ptp(plain.utility(GRID))
        assert evaluate_utility(scaled, GRID) / factor == pytest.approx(
            evaluate_utility(plain, GRID), abs=2e-3 * size
        )
        before, after = (each.diagnostics["response"] for each in (plain, scaled))
        assert after["held_out_r2"] == pytest.approx(before["held_out_r2"], abs=2e-3)
        assert after["dispersion"] == pytest.approx(factor * before["dispersion"], rel=1e-2)

    @settings(max_examples=5, deadline=None)
    @given(seed=st.integers(0, 1000))
    def test_which_point_comes_first_in_a_row_is_a_matter_of_sign(self, seed):
        first, second, value = both_orders(20, seed, noise=0.05)
        turned = np.random.default_rng(seed).permutation(len(first))  # nor does the rows' order
        one = fitted(Evidence.log_odds(first, second, value))
        other = fitted(Evidence.log_odds(first[turned], second[turned], value[turned]))
        assert (one.utility(GRID) == other.utility(GRID)).all()
        # Without a position effect, an order's answer is minus the other's.
        half = len(first) // 2
        swapped = fitted(Evidence.log_odds(second[:half], first[:half], -value[:half]))
        single = fitted(Evidence.log_odds(first[:half], second[:half], value[:half]))
        assert evaluate_utility(swapped, GRID) == pytest.approx(
            evaluate_utility(single, GRID), abs=0.1
        )

    def test_one_order_gives_the_same_with_the_position_effect_estimated(self):
        first, second, value = both_orders(150, 3, noise=0.03, position=0.4)
        single = fitted(Evidence.log_odds(first[:150], second[:150], value[:150]))
        both = fitted(Evidence.log_odds(first, second, value))
        assert single.diagnostics["response"]["position"]["mean"] == pytest.approx(0.4, abs=0.02)
        assert single.diagnostics["response"]["position"]["sd"] is None
        assert evaluate_utility(single, GRID) == pytest.approx(
            evaluate_utility(both, GRID), abs=0.05
        )

    def test_fit_belief_takes_the_same(self):
        first, second, value = both_orders(20, 4, noise=0.05)
        one = fit_belief(first, second, log_odds=value, sampling=BOX, settings=SMALL)
        other = fitted(Evidence.log_odds(first, second, value))
        assert (one.utility(GRID) == other.utility(GRID)).all()

    def test_a_judge_without_a_preference_explains_nothing(self):
        rng = np.random.default_rng(5)
        a, b = rng.uniform(-3, 3, (2, 60, 1))
        belief = fitted(Evidence.log_odds(a, b, rng.normal(0.0, 0.1, 60)))
        assert belief.diagnostics["response"]["held_out_r2"] < 0.15

    def test_constant_answers_are_a_position_effect(self):
        rng = np.random.default_rng(6)
        a, b = rng.uniform(-3, 3, (2, 30, 1))
        both = np.concatenate([a, b]), np.concatenate([b, a])
        found = fitted(Evidence.log_odds(*both, np.full(60, 0.7))).diagnostics["response"]
        assert found["position"] == {"mean": pytest.approx(0.7), "sd": pytest.approx(0.0)}
        assert found["held_out_r2"] is None

    def test_one_order_does_not_count_the_position_effect(self):
        """R² was .97 of a judge who ignores the points, and 1 of equal answers."""
        rng = np.random.default_rng(7)
        a, b = rng.uniform(-3, 3, (2, 40, 1))
        noise = fitted(Evidence.log_odds(a, b, rng.normal(0.5, 0.1, 40))).diagnostics["response"]
        assert noise["held_out_r2"] < 0.15
        assert noise["held_out_r2_interval"][0] < noise["held_out_r2"]
        equal = fitted(Evidence.log_odds(a, b, np.full(40, 0.5))).diagnostics["response"]
        assert equal["held_out_r2"] is None
        content = fitted(Evidence.log_odds(a, b, 0.5 + 0.1 * (hill(a) - hill(b))))
        assert content.diagnostics["response"]["held_out_r2"] > 0.99

    @pytest.mark.parametrize("pairs", [2, 9])
    def test_of_a_few_pairs_no_share_is_given(self, pairs):
        found = fitted(Evidence.log_odds(*both_orders(pairs, 8, noise=0.05)))
        assert found.diagnostics["response"]["held_out_r2"] is None
        assert found.diagnostics["response"]["held_out_r2_interval"] is None

    def test_bands_have_about_their_nominal_coverage(self):
        held = []
        more_draws = FitSettings(
            utility=UtilitySettings(process=GaussianProcessSettings(frequencies=64, draws=128)),
            annealing=ONE_MOVE,
        )
        for seed in range(20):
            rows = both_orders(30, 100 + seed, noise=0.07)
            belief = fit_evidence(Evidence.log_odds(*rows), sampling=BOX, settings=more_draws)
            f = belief.utility_draws()
            g = belief.utility_model("test").latent
            values = f(g.features(torch.from_numpy(g.to_latent(GRID)))).numpy()
            values = values - values.mean(1, keepdims=True)
            low, high = np.quantile(values, [0.05, 0.95], axis=0)
            truth = 0.1 * hill(GRID)
            truth = truth - truth.mean()
            held.append(((low <= truth) & (truth <= high)).mean())
        assert 0.75 < np.mean(held) <= 1.0


@pytest.mark.parametrize(("features", "length"), [(2, 0.57), (3, 1.21), (4, 1.4)])
def test_the_process_has_the_covariance_of_its_length_scale(features: int, length: float) -> None:
    """Random frequencies are off by .08 to .13, so that which they were moved a belief."""
    first, second = torch.from_numpy(
        np.random.default_rng(0).uniform(-np.sqrt(3.0), np.sqrt(3.0), (2, 200, features))
    )
    frequencies, spectrum = stationary_terms(torch.cat([first, second]), length, 256)
    cosines = torch.cos((first - second) @ frequencies)
    apart = (1.0 - cosines) @ spectrum[: len(spectrum) // 2] / frequencies.shape[1]
    expected = 1.0 - torch.exp(-0.5 * (first - second).square().sum(1) / length**2)
    assert float((apart - expected).abs().max()) < 0.05


@cache
def faint_and_votes(votes: int, seed: int) -> tuple[BeliefDensity, Array]:
    """The belief of faint log-odds and votes; of the votes, utilities of winner minus loser."""
    rng = np.random.default_rng(seed)
    a, b = BOX.sample(votes, rng), BOX.sample(votes, rng)
    wins = rng.random(votes) < 1 / (1 + np.exp(-(hill(a) - hill(b)) / Noise().scale))
    evidence = Evidence.comparisons(a, b, wins, judge="votes")
    faint = Evidence.log_odds(*both_orders(60, 10, gain=0.05, noise=0.02), judge="faint")
    belief = fitted(faint + evidence)
    return belief, np.where(wins, 1.0, -1.0) * (belief.utility(a) - belief.utility(b))


class TestJudges:
    def test_each_has_a_gain_and_a_dispersion(self):
        one = Evidence.log_odds(*both_orders(120, 7, gain=0.1, noise=0.03), judge="one")
        two = Evidence.log_odds(*both_orders(120, 8, gain=0.3, noise=0.2), judge="two")
        judges = fitted(one + two).diagnostics["response"]["judges"]
        assert judges["one"]["gain"] == 1.0
        assert judges["two"]["gain"] == pytest.approx(3.0, rel=0.15)
        assert judges["one"]["dispersion"] == pytest.approx(0.03, rel=0.3)
        assert judges["two"]["dispersion"] == pytest.approx(0.2, rel=0.3)

    def test_a_few_log_odds_of_the_first_set_the_unit_beside_many_of_another(self):
        """Of both, one order only, so that little tells the few apart from noise."""

        def asked_once(judge: str, n: int, seed: int, gain: float) -> Evidence:
            rows = both_orders(n, seed, gain=gain, noise=0.1 * gain, box=SQUARE)
            return Evidence.log_odds(*(side[:n] for side in rows), judge=judge)

        belief = fitted(asked_once("few", 3, 1, 0.1) + asked_once("many", 60, 51, 2.0), SQUARE)
        x = SQUARE.sample(200, np.random.default_rng(0))
        slopes = [np.polyfit(hill(x), f, 1)[0] for f in belief.utilities(x)]
        low, high = np.quantile(slopes, [0.025, 0.975])
        assert low < 0.1 < high < 1.5 * low
        judges = belief.diagnostics["response"]["judges"]
        assert judges["many"]["gain"] == pytest.approx(20.0, rel=0.2)

    def test_hard_choices_beside_log_odds_set_the_unit(self):
        belief, _ = faint_and_votes(150, 9)
        assert belief.diagnostics["response"]["scale"] == "choices"
        truth = hill(GRID)
        slope = np.polyfit(truth, belief.utility(GRID), 1)[0]
        assert slope == pytest.approx(1.0, rel=0.3), "the utility is in nats of the choices"
        assert belief.diagnostics["response"]["judges"]["faint"]["gain"] == pytest.approx(
            0.05, rel=0.35
        )

    @pytest.mark.parametrize(("votes", "seed"), [(10, 3), (150, 9)])
    def test_the_unit_is_the_most_likely_one(self, votes: int, seed: int):
        """A weak prior leaves a few votes alone: it doubled the unit once."""
        _, apart = faint_and_votes(votes, seed)
        assert apart.min() < -0.1, "some votes contradict the utility: the best factor is finite"

        def loss(factor: float) -> float:
            return float(np.logaddexp(0.0, -factor * apart / Noise().scale).sum())

        best = minimize_scalar(loss, bounds=(0.1, 10.0), method="bounded").x
        assert best == pytest.approx(1.0, abs=0.07)

    @pytest.mark.parametrize(("votes", "seed"), [(10, 3), (150, 9)])
    def test_draws_differ_in_the_unit_as_the_choices_leave_it_open(self, votes: int, seed: int):
        belief, apart = faint_and_votes(votes, seed)
        u = apart / Noise().scale
        information = float((u**2 / (2.0 + 2.0 * np.cosh(u))).sum())
        slopes = [np.polyfit(hill(GRID), f, 1)[0] for f in belief.utilities(GRID)]
        assert np.log(slopes).std() == pytest.approx(information**-0.5, rel=0.25)


class TestBounds:
    def test_bounds_recover_a_belief_that_values_at_the_bounds_flatten(self):
        first, second, value = both_orders(80, 1, gain=1.0, noise=0.2, position=0.3)
        most = 2.0
        low, high = (np.where(sign * value > most, sign * most, value) for sign in (1.0, -1.0))
        low = np.where(value < -most, -np.inf, low)
        high = np.where(value > most, np.inf, high)
        assert (low != high).mean() > 0.3
        bounded = fitted(Evidence.log_odds(first, second, lower=low, upper=high))
        as_values = fitted(Evidence.log_odds(first, second, np.clip(value, -most, most)))
        slope, flat = (
            float(np.polyfit(hill(GRID), belief.utility(GRID), 1)[0])
            for belief in (bounded, as_values)
        )
        assert slope == pytest.approx(1.0, abs=0.1)
        assert flat < 0.6
        response = bounded.diagnostics["response"]
        assert response["position"]["mean"] == pytest.approx(0.3, abs=0.1)
        assert response["dispersion"] == pytest.approx(0.2, abs=0.06)
        assert response["both_orders"] == 80

    def test_equal_bounds_are_values_and_finite_ones_an_interval(self):
        sides = np.zeros((4, 1)), np.ones((4, 1))
        lower, upper = [1.0, 2.0, -np.inf, -1.0], [1.0, np.inf, -3.0, 5.0]
        rows = Evidence.log_odds(*sides, lower=lower, upper=upper).measurements
        assert rows.value.tolist() == [1.0, 2.0, -3.0, 2.0]
        assert rows.censored.tolist() == [0, 1, -1, 0]
        assert rows.rounding_sd.tolist() == pytest.approx([0.0, 0.0, 0.0, 6.0 / np.sqrt(12.0)])
        exact = Evidence.log_odds(*sides, lower=upper[:1] * 4, upper=upper[:1] * 4).measurements
        plain = Evidence.log_odds(*sides, upper[:1] * 4).measurements
        for name in ("value", "rounding_sd", "censored"):
            np.testing.assert_array_equal(getattr(exact, name), getattr(plain, name))
        assert (Evidence.log_odds(*sides, upper=0.5).measurements.censored == -1).all()

    @pytest.mark.parametrize(
        ("bounds", "said"),
        [
            ({}, "log_odds is None"),
            ({"log_odds": [1.0], "lower": [0.0]}, "together with its bounds"),
            ({"lower": [2.0], "upper": [1.0]}, r"lower\[0\] is 2.0 and upper\[0\] 1.0"),
            ({"lower": [-np.inf]}, r"lower\[0\] is -inf and upper\[0\] inf"),
            ({"lower": [np.inf]}, r"lower\[0\] is inf"),
            ({"upper": [np.nan]}, r"upper\[0\] is nan"),
            ({"upper": [1.0, 2.0]}, r"upper has shape \(2,\)"),
        ],
    )
    def test_bounds_that_are_none_are_refused(self, bounds, said):
        with pytest.raises(DensityError, match=said):
            Evidence.log_odds([[0.0]], [[1.0]], **bounds)


class TestProbabilities:
    def test_rounded_ones_determine_the_utility(self):
        first, second, value = both_orders(100, 11, gain=1.0)
        stated = np.round(1 / (1 + np.exp(-value)), 2)
        belief = fitted(Evidence.probabilities(first, second, stated))
        truth = hill(GRID)
        middle = abs(GRID[:, 0]) < 2.5
        error = evaluate_utility(belief, GRID[middle]) - (truth[middle] - truth[middle].mean())
        assert abs(error).max() < 0.25

    def test_censored_ones_are_bounds_and_not_values(self):
        first, second, value = both_orders(150, 12, gain=1.0)
        stated = np.clip(np.round(1 / (1 + np.exp(-value)), 1), 0.0, 1.0)
        evidence = Evidence.probabilities(first, second, stated, rounding=0.1)
        assert (evidence.measurements.censored != 0).mean() > 0.2
        bounded = fitted(evidence)
        taken = evidence.measurements.value
        as_values = fitted(Evidence.log_odds(first, second, taken))
        truth = hill(GRID)

        def slope(belief: BeliefDensity) -> float:
            return float(np.polyfit(truth, belief.utility(GRID), 1)[0])

        assert abs(slope(bounded) - 1.0) < abs(slope(as_values) - 1.0)
        assert slope(bounded) == pytest.approx(1.0, abs=0.25)

    @pytest.mark.parametrize("stated", [-0.1, 1.1, np.nan])
    def test_others_are_refused(self, stated):
        with pytest.raises(DensityError, match=r"probability\[0\]"):
            Evidence.probabilities([[0.0]], [[1.0]], [stated])


class TestBadInput:
    @pytest.mark.parametrize(
        ("value", "said"),
        [
            ([0.1, np.nan], r"log_odds\[1\] is nan"),
            ([np.inf, 0.1], r"log_odds\[0\] is inf"),
            ([0.1], "log_odds has shape"),
            ([[0.1, 0.2]], "log_odds has shape"),
        ],
    )
    def test_log_odds_are_finite_and_one_per_question(self, value, said):
        with pytest.raises(DensityError, match=said) as caught:
            Evidence.log_odds([[0.0], [1.0]], [[1.0], [2.0]], value)
        assert "\n" not in str(caught.value)

    def test_points_lie_within_the_support(self):
        with pytest.raises(DensityError, match="outside the support"):
            fitted(Evidence.log_odds([[5.0]], [[0.0]], [0.1]))

    def test_weights_do_not_go_with_log_odds(self):
        with pytest.raises(DensityError, match="log_odds take no weights"):
            fit_belief([[0.0]], [[1.0]], log_odds=[0.1], weights=[2.0], sampling=BOX)

    @pytest.mark.parametrize("method", ["score", "score-constant", "flow"])
    def test_methods_for_choices_alone_refuse_log_odds(self, method):
        rows = both_orders(10, 13)
        with pytest.raises(DensityError, match="takes only winners and losers"):
            fit_evidence(Evidence.log_odds(*rows), sampling=BOX, method=method)
