"""Conditional beliefs: substitution in closed form, against the joint belief."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    FitSettings,
    MixtureSettings,
    PosteriorSettings,
    SmoothSettings,
    Uniform,
    UtilitySettings,
    band,
    fit_belief,
)
from llm_elicit.density.belief import Substitution
from llm_elicit.density.utility_function import (
    ComponentStack,
    FourierStack,
    Tail,
    Utility,
    UtilityDraws,
    Warp,
    draw_frequencies,
)

D, K, S = 4, 3, 2
SPACE = Uniform([-4.0, 0.0, 1.0], [4.0, 2.0, 100.0], log=[0, 0, 1], categorical=[0, 1, 0])
CENTRES = np.array([-2.0, 0.0, 2.0])


GRID = np.linspace([-2.0] * 4, [2.0] * 4, 99)
_GAUSSIAN = Tail()
WARP = Warp.of(GRID, np.array([9.0, 0.0, 50.0, 0.0]), np.array([0.0, 9.0, 50.0, 0.0]))


def _components(generator: torch.Generator, tail: Tail = _GAUSSIAN) -> ComponentStack:
    whiten = torch.eye(D) + 0.4 * torch.randn(S, K, D, D, generator=generator)
    offset = torch.randn(S, K, D, generator=generator)
    return ComponentStack(whiten, offset, torch.randn(S, K, generator=generator), 0.7, tail)


def _fourier(generator: torch.Generator) -> FourierStack:
    frequencies = draw_frequencies(8, D, generator).float()
    return FourierStack(frequencies, torch.randn(S, 16, generator=generator))


def _everything() -> Utility:
    generator = torch.Generator().manual_seed(3)
    square = torch.randn(D, D, generator=generator)
    return Utility(
        torch.randn(D, generator=generator), square + square.T,
        (_components(generator), _components(generator, Tail(2.0, 0.3))), _fourier(generator), WARP,
    )  # fmt: skip


def _whole(substitution: Substitution, t: torch.Tensor) -> torch.Tensor:
    whole = torch.empty(len(t), D)
    whole[:, substitution.free], whole[:, substitution.fixed] = t, substitution.values
    return whole


SUBSTITUTION = Substitution(torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([0.8, -1.1]))


def test_a_conditional_utility_is_the_utility_up_to_a_constant() -> None:
    utility, t = _everything(), torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    gap = SUBSTITUTION(utility)(t) - utility(_whole(SUBSTITUTION, t))
    assert float(gap.std()) < 1e-4 * float(utility(_whole(SUBSTITUTION, t)).std())


def test_conditional_draws_are_the_draws_up_to_a_constant_each() -> None:
    generator = torch.Generator().manual_seed(5)
    linear, square = torch.randn(3 * S, D, generator=generator), torch.randn(3 * S, D, D)
    stacks = (_components(generator), _components(generator, Tail(5.0, 0.0)))
    draws = UtilityDraws(linear, square + square.mT, stacks, _fourier(generator), WARP)
    t = torch.randn(50, 2, generator=generator)
    gap = SUBSTITUTION(draws)(t) - draws(_whole(SUBSTITUTION, t))
    assert gap.shape == (3 * S, 50)
    assert float(gap.std(1).max()) < 1e-4


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    """Points of a pair share their category, whose centre the judge knows."""
    rng = np.random.default_rng(0)
    a, b = SPACE.sample(450, rng), SPACE.sample(450, rng)
    b[:, 1] = a[:, 1]

    def utility(x: np.ndarray) -> np.ndarray:
        near = x[:, 0] - CENTRES[x[:, 1].astype(int)]
        return np.asarray(-0.5 * near**2 - (np.log(x[:, 2]) - 2) ** 2)

    first = utility(a) - utility(b) + rng.logistic(size=450) > 0
    winners, losers = np.where(first[:, None], a, b), np.where(first[:, None], b, a)
    mixture = MixtureSettings(counts=(2,), starts=4)
    every_form = UtilitySettings(
        mixture=mixture,
        smooth=SmoothSettings(frequencies=32),
        posterior=PosteriorSettings(draws=48),
    )
    return fit_belief(winners, losers, sampling=SPACE, settings=FitSettings(utility=every_form))


@pytest.mark.parametrize("category", [0, 1, 2])
def test_a_conditional_belief_is_normalized_and_finds_the_judge(
    belief: BeliefDensity, category: int
) -> None:
    conditional = belief.given({1: float(category)})
    grid = np.stack(np.meshgrid(np.linspace(-4, 4, 81), np.geomspace(1, 100, 81)), -1)
    points = grid.reshape(-1, 2)
    per_scale = np.exp(conditional.log_prob(points) + np.log(points[:, 1]))
    assert per_scale.sum() * 0.1 * (np.log(100) / 80) == pytest.approx(1.0, abs=0.03)
    joint = belief.log_prob(np.insert(points, 1, category, axis=1))
    assert np.std(conditional.log_prob(points) - joint) < 1e-4
    assert abs(conditional.mean()[0] - CENTRES[category]) < 0.35
    low, high = band(conditional.draws().mean())
    assert low[0] < conditional.sample(4000)[:, 0].mean() < high[0]


def test_a_conditional_belief_can_be_saved_and_conditioned_again(
    belief: BeliefDensity, tmp_path: Path
) -> None:
    conditional = belief.given({1: 2.0})
    conditional.save(tmp_path)
    same = BeliefDensity.load(tmp_path)
    np.testing.assert_array_equal(same.sample(50, seed=1), conditional.sample(50, seed=1))
    assert same.diagnostics["given"] == {"1": 2.0}
    twice, once = conditional.given({1: 10.0}), belief.given({1: 2.0, 2: 10.0})
    x = np.linspace(-4, 4, 9)[:, None]
    np.testing.assert_allclose(twice.log_prob(x), once.log_prob(x), atol=0.05)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "one value or more"), ({3: 0.0}, "number"), ({1: 0.5}, "outside the support"),
        ({0: np.nan}, "value of feature 0"), ({0: 0.0, 1: 0.0, 2: 1.0}, "at least one free"),
    ],
)  # fmt: skip
def test_what_cannot_be_given_is_refused(
    belief: BeliefDensity, given: dict[int, float], said: str
) -> None:
    with pytest.raises(DensityError, match=said):
        belief.given(given)
