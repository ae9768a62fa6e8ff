"""Whole fits: beliefs recovered, densities proper, files exact, bad input named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import stats

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    FitSettings,
    GaussianMixture,
    Noise,
    Uniform,
    fit_belief,
)
from llm_elicit.density.score import Tempering
from llm_elicit.density.utility_function import ComponentStack, Tail
from tests.density.conftest import BRIEF, QUICK
from tests.density.targets import Array, ask, draw_on_grid, onemoon, wasserstein

METHODS = ["utility", "score", "score-constant"]
LINE = Uniform([-1.0], [1.0])


def _fit_line(
    judge: tuple[Array, Array], method: str, settings: FitSettings = QUICK
) -> BeliefDensity:
    return fit_belief(*judge, sampling=LINE, method=method, seed=3, settings=settings)


@pytest.fixture(scope="module")
def line_beliefs(line_judge: tuple[Array, Array]) -> Callable[[str], BeliefDensity]:
    """The belief by each method, fitted once."""
    return cache(lambda method: _fit_line(line_judge, method))


@pytest.fixture(params=METHODS)
def line_belief(
    request: pytest.FixtureRequest, line_beliefs: Callable[[str], BeliefDensity]
) -> BeliefDensity:
    return line_beliefs(request.param)


def test_a_non_uniform_sampling_density_leaves_no_trace(normal_under_normal: BeliefDensity) -> None:
    """Belief N(0, 1) under λ = N(0, variance 3): p·λ would have standard deviation 0.866."""
    x = normal_under_normal.sample(6000, seed=1)
    assert x.mean() == pytest.approx(0.0, abs=0.12)
    sd = _sd_of_constant_tempering() if "constant" in repr(normal_under_normal) else 1.0
    assert x.std() == pytest.approx(sd, abs=0.09)
    assert normal_under_normal.log_prob([[0.0]])[0] == pytest.approx(-0.919, abs=0.25)


def _sd_of_constant_tempering() -> float:
    """What the best constant gives with perfect scores, by quadrature: p ∝ (w/(1 − w))^ω*."""
    grid = np.linspace(-9, 9, 3001)
    u, sampling = -0.5 * grid**2, np.exp(-(grid**2) / 6)
    field = Tempering.tabulate(u, Noise(), sampling)
    values = torch.from_numpy(u)
    omega, win = field.omega(values), field.log_win_at(values).exp()
    belief = torch.from_numpy(np.exp(u))
    score = torch.from_numpy(-grid) / omega
    weight = belief * score.square()
    log_p = (weight @ omega) / weight.sum() * torch.log(win / (1 - win))
    p = torch.softmax(log_p, 0)
    return float((p * torch.from_numpy(grid**2)).sum().sqrt())


def test_density_integrates_to_one_and_matches_samples(line_belief: BeliefDensity) -> None:
    grid = np.linspace(-1, 1, 801)[:, None]
    density = np.exp(line_belief.log_prob(grid))
    error = line_belief.diagnostics["log_normalizer_se"]
    total = np.trapezoid(density, grid[:, 0])
    assert error < 0.1
    assert abs(np.log(total)) < 4 * error + 0.02
    x = line_belief.sample(4000, seed=2)
    mean = np.trapezoid(grid[:, 0] * density, grid[:, 0]) / total
    assert x.mean() == pytest.approx(mean, abs=0.06)
    assert x.mean() == pytest.approx(0.3, abs=0.12)


def test_samples_are_deterministic_and_inside(line_belief: BeliefDensity) -> None:
    x = line_belief.sample(500, seed=7)
    assert x.shape == (500, 1)
    assert x.dtype == np.float64
    assert LINE.contains(x).all()
    np.testing.assert_array_equal(x, line_belief.sample(500, seed=7))
    assert not np.array_equal(x, line_belief.sample(500, seed=8))
    assert line_belief.sample(0).shape == (0, 1)


def test_log_prob_is_minus_infinity_outside(line_belief: BeliefDensity) -> None:
    found = line_belief.log_prob([[-1.001], [0.0], [5.0]])
    assert np.isneginf(found[[0, 2]]).all()
    assert np.isfinite(found[1])


def test_save_and_load_are_bit_identical(line_belief: BeliefDensity, tmp_path: Path) -> None:
    line_belief.save(tmp_path / "belief")
    again = BeliefDensity.load(tmp_path / "belief")
    x = line_belief.sample(300, seed=4)
    np.testing.assert_array_equal(again.sample(300, seed=4), x)
    np.testing.assert_array_equal(again.log_prob(x), line_belief.log_prob(x))
    assert again.diagnostics == line_belief.diagnostics
    assert again.marginals == line_belief.marginals
    assert {p.name for p in (tmp_path / "belief").iterdir()} == {
        "belief.json", "belief.safetensors",
    }  # fmt: skip


def test_diagnostics_and_marginals_describe_the_fit(line_belief: BeliefDensity) -> None:
    notes = json.loads(json.dumps(line_belief.diagnostics))
    assert notes["method"] in METHODS
    assert notes["n"] == 120
    assert notes["noise"]["family"] == "gumbel"
    assert notes["held_out_log_likelihood"] > notes["coin_log_likelihood"] == np.log(0.5)
    assert notes["seconds"]["total"] > 0
    (marginal,) = line_belief.marginals
    assert line_belief.dimension == 1
    assert marginal.mean == pytest.approx(0.3, abs=0.12)
    assert marginal.quantiles[0.05] < marginal.quantiles[0.5] < marginal.quantiles[0.95]


def test_a_log_normal_belief_is_recovered_on_a_logarithmic_scale() -> None:
    """On the scale z = log x the belief is N(log 30, 0.5²); samples come back in natural units."""
    box = Uniform([1.0], [1000.0], log=[True])
    winners, losers = ask(
        lambda x: -0.5 * ((np.log(x[:, 0]) - np.log(30.0)) / 0.5) ** 2, box, 2000, seed=17
    )
    belief = fit_belief(winners, losers, sampling=box, method="utility", settings=QUICK)
    z = np.log(belief.sample(6000, seed=1))
    assert z.mean() == pytest.approx(np.log(30.0), abs=0.08)
    assert z.std() == pytest.approx(0.5, abs=0.07)
    grid = np.exp(np.linspace(0, np.log(1000), 4001))
    total = np.trapezoid(np.exp(belief.log_prob(grid[:, None])), grid)
    assert total == pytest.approx(1.0, abs=0.05)


def test_a_fit_tells_its_progress_is_the_same_again_and_leaves_global_state_alone(
    line_judge: tuple[Array, Array], line_beliefs: Callable[[str], BeliefDensity]
) -> None:
    line_belief = line_beliefs("score")
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    seen: list[tuple[str, int, int]] = []
    again = fit_belief(
        *line_judge, sampling=LINE, method="score", seed=3, settings=QUICK,
        progress=lambda stage, done, total: seen.append((stage, done, total)),
    )  # fmt: skip
    np.testing.assert_array_equal(again.sample(50, seed=1), line_belief.sample(50, seed=1))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert {stage for stage, _, _ in seen} == {"score"}
    assert all(0 < done <= total for _, done, total in seen)


@pytest.fixture(scope="module")
def moon() -> tuple[Array, float]:
    """Draws of the moon, and how far others lie from them."""
    rng = np.random.default_rng(0)
    truth, again = draw_on_grid(onemoon, 1500, rng), draw_on_grid(onemoon, 1500, rng)
    return truth, wasserstein(again, truth)


@pytest.mark.parametrize("which", ["moon_utility", "moon_score"])
def test_onemoon_is_closer_than_published(
    which: str, moon: tuple[Array, float], request: pytest.FixtureRequest
) -> None:
    """The paper prints 0.37 for 2000 comparisons; a perfect estimate scores about the floor."""
    belief: BeliefDensity = request.getfixturevalue(which)
    truth, floor = moon
    assert 0.8 * floor < wasserstein(belief.sample(1500, seed=1), truth) < 0.37


HOUSING_LOW = [0.5, 1.0, 1.0, 0.3, 3.0, 0.7, 32.0, -124.0]
HOUSING_HIGH = [15.0, 52.0, 15.0, 5.0, 5000.0, 15.0, 42.0, -114.0]


@pytest.mark.parametrize("method", ["utility", "score"])
def test_eight_features_of_very_different_units(method: str) -> None:
    """300 comparisons, belief normal about planted points (cut by the box): means recovered,
    and better than the winners' own means, which are what no model at all would answer."""
    low, high = np.array(HOUSING_LOW), np.array(HOUSING_HIGH)
    place = np.array([0.3, 0.6, 0.4, 0.25, 0.3, 0.25, 0.4, 0.5])
    box = Uniform(low, high)

    def log_density(x: Array) -> Array:
        return -0.5 * (((x - low) / (high - low) - place) ** 2).sum(1) / 0.2**2

    winners, losers = ask(log_density, box, 300, seed=41)
    belief = fit_belief(winners, losers, sampling=box, method=method, settings=QUICK)
    x = (belief.sample(4000, seed=1) - low) / (high - low)
    cube = (winners - low) / (high - low)
    truth = stats.truncnorm(-place / 0.2, (1 - place) / 0.2, place, 0.2)
    error = np.abs(x.mean(0) - truth.mean()).mean()
    assert error < 0.08
    assert error < 0.7 * np.abs(cube.mean(0) - truth.mean()).mean()
    assert np.abs(x.std(0) - truth.std()).max() < 0.1


GOOD = np.linspace(-0.9, 0.9, 8)[:, None]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"losers": GOOD[:5]}, r"winners has shape \(8, 1\) and losers \(5, 1\)"),
        ({"winners": GOOD[:, 0]}, r"must be \(n, d\)"),
        ({"winners": np.where(GOOD > 0.8, np.nan, GOOD)}, r"winners\[7, 0\] is nan"),
        ({"losers": np.where(GOOD > 0.8, np.inf, GOOD)}, r"losers\[7, 0\] is inf"),
        ({"winners": GOOD + 0.5}, "outside the support"),
        ({"weights": -np.ones(8)}, r"weights\[0\] is -1.0"),
        ({"weights": np.ones(3)}, "one weight per comparison"),
        ({"weights": np.zeros(8)}, "weights are all 0"),
        ({"sampling": None}, "sampling is missing"),
        ({"sampling": Uniform([-1.0] * 2, [1.0] * 2)}, "1 features and the sampling density 2"),
        ({"method": "magic"}, "score, score-constant, utility"),
        ({"sampling": "uniform"}, "known here are Uniform, GaussianMixture and Empirical"),
        ({"winners": [["a"]]}, "cannot be read as numbers"),
    ],
)
def test_bad_input_is_named_in_one_line(change: dict[str, object], words: str) -> None:
    given = {"winners": GOOD, "losers": -GOOD, "sampling": LINE, "method": "utility"} | change
    with pytest.raises(DensityError, match=words) as caught:
        fit_belief(given.pop("winners"), given.pop("losers"), **given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_fewer_comparisons_than_features_is_refused() -> None:
    box = Uniform([0.0] * 4, [1.0] * 4)
    points = np.random.default_rng(0).random((3, 4))
    with pytest.raises(DensityError, match=r"3 distinct comparisons .* for 4 features"):
        fit_belief(points, 1 - points, sampling=box)


def test_a_belief_of_log_odds_is_saved_and_loaded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-3, 3, (2, 30, 2))
    log_odds = 0.1 * (np.abs(b) - np.abs(a)).sum(1) + 0.02 * rng.standard_normal(30)
    belief = fit_belief(a, b, log_odds=log_odds, sampling=Uniform([-3.0, -3.0], [3.0, 3.0]))
    belief.save(tmp_path)
    same = BeliefDensity.load(tmp_path)
    assert (same.sample(50, seed=1) == belief.sample(50, seed=1)).all()
    assert (same.log_prob(a) == belief.log_prob(a)).all()


def test_loading_what_is_no_belief_is_named(line_belief: BeliefDensity, tmp_path: Path) -> None:
    with pytest.raises(DensityError, match="holds no readable belief"):
        BeliefDensity.load(tmp_path)
    line_belief.save(tmp_path)
    tensors = tmp_path / "belief.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:500])
    with pytest.raises(DensityError, match="holds no readable belief"):
        BeliefDensity.load(tmp_path)


@pytest.mark.parametrize("version", [None, 1, 99])
def test_a_belief_of_another_format_is_refused_in_one_line(
    line_belief: BeliefDensity, tmp_path: Path, version: int | None
) -> None:
    line_belief.save(tmp_path)
    record = tmp_path / "belief.json"
    text = json.loads(record.read_text())
    record.write_text(json.dumps({**text, "format": version}))
    save_file({"reference": torch.zeros(1, 1)}, tmp_path / "belief.safetensors")
    with pytest.raises(DensityError, match=rf"has format {version}; .* fit again") as caught:
        BeliefDensity.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tail", [Tail(), Tail(1.1, 0.3)])
def test_a_tempered_mixture_is_read_back_exactly(
    line_beliefs: Callable[[str], BeliefDensity], tmp_path: Path, tail: Tail
) -> None:
    """Its share, 0.6 times the power, is not a number of single precision."""
    fitted = line_beliefs("utility")
    whiten, offset = torch.tensor([[[[2.0]], [[3.0]]]]), torch.tensor([[[-1.0], [2.0]]])
    mixture = ComponentStack(whiten, offset, torch.zeros(1, 2), 0.6, tail)
    model = fitted.utility_model("test")
    model = replace(model, utility=replace(model.utility, components=(mixture,)))
    belief = BeliefDensity(fitted._latent, model, fitted._reference, fitted.diagnostics)
    tempered = belief.tempered(1.1)
    tempered.save(tmp_path)
    points = [[-0.4], [0.3]]
    again = BeliefDensity.load(tmp_path)
    np.testing.assert_array_equal(again.log_prob(points), tempered.log_prob(points))


def test_asking_for_a_negative_number_of_points_is_named(line_belief: BeliefDensity) -> None:
    with pytest.raises(DensityError, match="n = -1"):
        line_belief.sample(-1)


def test_other_methods_accept_other_noise(line_judge: tuple[Array, Array]) -> None:
    sampling = GaussianMixture([0.5, 0.5], [[-0.5], [0.5]], [[[0.2]], [[0.2]]])
    belief = fit_belief(
        *line_judge, sampling=sampling, method="score", noise=Noise("normal", 1.0), settings=BRIEF
    )
    assert np.isfinite(belief.log_prob(belief.sample(200, seed=1))).all()


def test_a_belief_that_was_changed_is_named(line_belief: BeliefDensity, tmp_path: Path) -> None:
    line_belief.save(tmp_path)
    record, tensors = tmp_path / "belief.json", tmp_path / "belief.safetensors"
    kept = {path: path.read_bytes() for path in (record, tensors)}
    content = bytearray(kept[tensors])
    content[-5] ^= 64
    level = line_belief.noise.level
    text = json.loads(kept[record])
    del text["digest"]
    for changed in (
        {tensors: bytes(content)},
        {record: json.dumps(text).encode()},
        {record: kept[record].replace(f"{level}".encode(), f"{2 * level}".encode())},
    ):
        for path, there in (kept | changed).items():
            path.write_bytes(there)
        assert changed.items() - kept.items()
        with pytest.raises(DensityError, match=r"was changed since save wrote it .* fit again"):
            BeliefDensity.load(tmp_path)
