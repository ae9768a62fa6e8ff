"""The tempering field against the theorems' formulas, by quadrature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_elicit.density import Noise
from llm_elicit.density.score import Tempering, optimal_constant

GRID = np.linspace(-3, 3, 2001)
STEP = GRID[1] - GRID[0]
U = np.log(0.7 * np.exp(-0.5 * ((GRID + 1) / 0.5) ** 2) + 0.3 * np.exp(-0.5 * (GRID - 1.4) ** 2))
PLACES = [350, 666, 900, 1300]


def _field(noise: Noise) -> Tempering:
    return Tempering.tabulate(U, noise)


FIELD = _field(Noise())


def test_gumbel_field_is_theorem_3_1() -> None:
    s = 0.9
    ratio = np.exp((U[None, :] - U[PLACES, None]) / s)
    expected = s * (1 / (1 + ratio)).sum(1) / (ratio / (1 + ratio) ** 2).sum(1)
    found = _field(Noise("gumbel", s)).tau(torch.from_numpy(U[PLACES]))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_exponential_field_is_theorem_a_1() -> None:
    s = 1.2  # a rate, as in the paper
    expected = []
    for place in PLACES:
        below = U[place] >= U
        up = np.exp(s * U[place]) * np.exp(-s * U[~below]).sum()
        down = np.exp(-s * U[place]) * np.exp(s * U[below]).sum()
        expected.append(((2 * below.sum() + 2 * up) / (up + down) - 1) / s)
    found = _field(Noise("exponential", s)).tau(torch.from_numpy(U[PLACES]))
    np.testing.assert_allclose(found, expected, rtol=2e-3)


@pytest.mark.parametrize("noise", [Noise(), Noise("exponential", 1.0), Noise("normal", 0.8)])
def test_scores_of_winners_and_losers_give_the_score_of_the_belief(noise: Noise) -> None:
    """∇u = τ ∇log w and ∇u = ω ∇log(w/(1 − w)), derivatives taken along x by differences."""
    gap = torch.from_numpy(U[:, None] - U[None, :])
    win = noise.log_cdf(gap).exp().mean(1).numpy()
    field, u = _field(noise), torch.from_numpy(U)
    slope = np.gradient(U, STEP)
    from_winners = field.tau(u).numpy() * np.gradient(np.log(win), STEP)
    from_odds = field.omega(u).numpy() * np.gradient(np.log(win / (1 - win)), STEP)
    inner = slice(50, -50)
    np.testing.assert_allclose(from_winners[inner], slope[inner], atol=0.02)
    np.testing.assert_allclose(from_odds[inner], slope[inner], atol=0.02)


@pytest.mark.parametrize("noise", [Noise(), Noise("normal", 0.8)])
def test_the_relation_holds_in_two_dimensions_under_a_normal_sampling_density(
    noise: Noise,
) -> None:
    """The *excess* score: ∇u = τ (∇log p_w − ∇log λ), λ = N(0, I)."""
    rng = np.random.default_rng(0)
    others = rng.standard_normal((4000, 2))

    def u(x: np.ndarray) -> np.ndarray:
        return -((x[:, 0] - 0.5 * x[:, 1] ** 2) ** 2) - 0.5 * x[:, 1]

    def log_winner(x: np.ndarray) -> np.ndarray:
        gap = torch.from_numpy(u(x)[:, None] - u(others)[None, :])
        return np.log(2 * noise.log_cdf(gap).exp().mean(1).numpy()) - 0.5 * (x**2).sum(1)

    x = np.array([[0.3, -0.7], [-1.2, 0.4]])
    h = 1e-4
    steps = [np.array([h, 0.0]), np.array([0.0, h])]
    score = np.stack([(log_winner(x + e) - log_winner(x - e)) / (2 * h) for e in steps], 1)
    slope = np.stack([(u(x + e) - u(x - e)) / (2 * h) for e in steps], 1)
    tau = Tempering.tabulate(u(others), noise).tau(torch.from_numpy(u(x))).numpy()
    np.testing.assert_allclose(tau[:, None] * (score + x), slope, rtol=2e-3)


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=30), st.floats(0.2, 3.0))
@settings(max_examples=50, deadline=None)
def test_gumbel_bounds_and_monotony(utilities: list[float], s: float) -> None:
    field = Tempering.tabulate(np.array(utilities), Noise("gumbel", s))
    u = torch.tensor(utilities, dtype=torch.float64)
    tau, omega = field.tau(u), field.omega(u)
    assert (omega >= s * (1 - 1e-3)).all()
    assert (tau >= omega * (1 - 1e-9)).all()
    assert (field.log_win.diff() >= 0).all()


@given(st.floats(-6.0, 5.5))  # the table ends 8 noise scales beyond the utilities
@settings(max_examples=40, deadline=None)
def test_inverses_undo_the_table(u: float) -> None:
    field = FIELD
    value = torch.tensor([u], dtype=torch.float64)
    assert field.utility_from_log_win(field.log_win_at(value)).item() == pytest.approx(u, abs=2e-3)


def test_optimal_constant_minimizes_the_fisher_divergence() -> None:
    """τ* by its formula against a direct search over F(p, q^τ) by quadrature."""
    field, u = _field(Noise()), torch.from_numpy(U)
    p = np.exp(U) / np.exp(U).sum()
    tau = field.tau(u)
    slope = np.gradient(U, STEP)
    score = torch.from_numpy(slope / tau.numpy())[:, None]
    rows = torch.multinomial(torch.from_numpy(p), 200_000, replacement=True,
                             generator=torch.Generator().manual_seed(0))  # fmt: skip
    found = optimal_constant(tau[rows], score[rows])
    candidates = np.linspace(0.5, 12, 2301)
    divergence = [(p * (slope - c * score[:, 0].numpy()) ** 2).sum() for c in candidates]
    assert found == pytest.approx(candidates[int(np.argmin(divergence))], rel=0.02)
    assert optimal_constant(torch.tensor([2.0, 4.0]), torch.zeros(2, 1)) == 3.0
