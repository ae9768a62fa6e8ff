"""Quasi-random points of a belief and of its posterior's draws, and bands by several seeds."""

from __future__ import annotations

import numpy as np
import torch

from llm_elicit.density import BeliefDensity, Evidence, Uniform, band, fit_evidence
from llm_elicit.density.latent import make_latent
from llm_elicit.density.smc import sample_evenly, sample_shared_points
from tests.density.targets import assert_close

BOX = Uniform([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
CENTRES = torch.tensor([[-0.5, 0.0, 0.5], [0.5, 0.0, -0.5]], dtype=torch.float64)


def _normals(g: torch.Tensor) -> torch.Tensor:
    """Unnormalized log-densities (2, n): N(c, 0.25 I) in latent coordinates."""
    return -2.0 * (g - CENTRES[:, None]).square().sum(-1)


def test_points_of_all_draws_give_each_ones_mean_and_mass() -> None:
    latent = make_latent(BOX)
    found = sample_shared_points(
        latent, lambda g: _normals(g) - latent.log_volume(g), None, torch.Generator().manual_seed(0)
    )
    means = found.weights @ found.points
    assert_close(means, CENTRES, atol=0.01, rtol=0.0)
    exact = 1.5 * np.log(2.0 * np.pi * 0.25)
    np.testing.assert_allclose(found.log_normalizers, exact, atol=0.02)
    assert (found.effective_size > 4000).all()


def test_even_points_have_a_third_of_the_error_of_independent_ones() -> None:
    latent = make_latent(BOX)
    errors = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        points = sample_evenly(
            latent, lambda g: _normals(g)[0] - latent.log_volume(g), None, 1024, generator
        )
        assert points is not None
        errors.append((points.mean(0) - CENTRES[0]).numpy())
    assert np.sqrt(np.square(errors).mean()) < 0.5 / np.sqrt(1024) / 3.0


def test_few_points_that_count_are_not_even() -> None:
    latent, generator = make_latent(BOX), torch.Generator().manual_seed(0)
    narrow = sample_evenly(latent, lambda g: -1e4 * g.square().sum(1), None, 1024, generator)
    assert narrow is None


def _precise() -> BeliefDensity:
    """The belief of a judge whose log-odds are known to a tenth or two."""
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 150, 3))

    def utility(x: np.ndarray) -> np.ndarray:
        return -2.0 * np.square(x - [0.3, 0.5, 0.8]).sum(1)

    log_odds = utility(a) - utility(b) + rng.normal(0.0, 0.15, 150)
    return fit_evidence(Evidence.log_odds(a, b, log_odds), sampling=BOX)


def test_bands_of_a_precise_judge_depend_on_no_seed_and_hold_the_mean() -> None:
    """With 8192 particles of their own, ends moved by a fifth of the width between seeds."""
    belief = _precise()
    ends = np.array([band(belief.draws(seed=seed).mean()) for seed in range(6)])
    width = (ends[:, 1] - ends[:, 0]).mean(0)
    assert (ends.std(axis=0, ddof=1) / width < 0.05).all()
    low, high = ends.mean(0)
    assert ((low < belief.mean()) & (belief.mean() < high)).all()
