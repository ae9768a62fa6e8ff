"""Thin ridges in several features, from measured log-odds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime

from llm_elicit.density import (
    Evidence,
    GaussianMixture,
    Noise,
    fit_warnings,
)
from llm_elicit.density.latent import make_latent
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.density.utility.gaussian_process import (
    GaussianProcessFit,
    _GaussianProcess,
)
from llm_elicit.density.utility.marginal_likelihood import Observations
from llm_elicit.density.utility.quadratic import QuadraticTerms
from llm_elicit.report.sentences import fit_sentences
from tests.density.targets import Array, check_evidence

if TYPE_CHECKING:
    from llm_elicit.audit.record import JudgeAudit

SMALL = GaussianProcessSettings(frequencies=32, draws=128)
GAIN = 0.02


def precision(features: int, along: float, seed: int) -> Array:
    """That of a belief with unit precision but along one direction, which is no axis."""
    u = np.linalg.qr(np.random.default_rng(seed).normal(size=(features, 1)))[0]
    return np.eye(features) + (along - 1.0) * u @ u.T


def answers(form: Array, pairs: int, seed: int, *, noise: float = 0.25) -> Evidence:
    """Log-odds in both orders by a judge who believes in N(0, form⁻¹); noise in units of theirs."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, pairs, len(form)))
    apart = -0.5 * GAIN * np.einsum("ni,ij,nj->n", a - b, form, a + b)
    error = rng.normal(0.0, 2.0**0.5 * noise * apart.std(), 2 * pairs)
    sides = np.concatenate([a, b]), np.concatenate([b, a])
    return Evidence.log_odds(*sides, np.concatenate([apart, -apart]) + error)


def standard(features: int) -> GaussianMixture:
    return GaussianMixture([1.0], np.zeros((1, features)), np.eye(features)[None])


def process(evidence: Evidence) -> _GaussianProcess:
    sampling = standard(evidence.dimension)
    judgments = check_evidence(evidence, sampling)
    rows = Observations.of(judgments, make_latent(sampling, judgments.points), Noise())
    return _GaussianProcess(rows, Noise(), torch.Generator().manual_seed(0), SMALL)


def fitted(evidence: Evidence, *, ridges: bool = True) -> GaussianProcessFit:
    model = process(evidence)
    model.maximize()
    if ridges:
        model.add_ridge()
    return model.result()


def share_inside(fit: GaussianProcessFit, form: Array) -> float:
    """The share of eigenvalues' and features' bands of 90 % that hold the true precision."""
    draws = -2.0 / GAIN * fit.draws.curvature.double().numpy()
    axes = np.linalg.eigh(form)[1]
    low, high = np.quantile(np.einsum("ji,sjk,ki->si", axes, draws, axes), [0.05, 0.95], axis=0)
    true = np.linalg.eigvalsh(form)
    return float(np.mean((low <= true) & (true <= high)))


@pytest.mark.parametrize("along", [0.02, 30.0])
def test_bands_hold_the_truth_along_a_thin_ridge(along):
    form = precision(8, along, 1)
    evidence = answers(form, 240, 1)
    without, fit = fitted(evidence, ridges=False), fitted(evidence)
    error, before = (
        np.abs(-2.0 / GAIN * f.utility.curvature.numpy() - form).max() for f in (fit, without)
    )
    assert fit.log_evidence > without.log_evidence + 10.0
    assert error < 0.8 * before
    assert share_inside(fit, form) >= 7 / 8 > share_inside(without, form)


def test_round_beliefs_have_no_ridge():
    evidence = answers(np.eye(8), 120, 2)
    without, fit = fitted(evidence, ridges=False), fitted(evidence)
    assert fit.utility.linear.tolist() == without.utility.linear.tolist()
    assert fit.draws.curvature.tolist() == without.draws.curvature.tolist()
    assert fit.extension_report is None


def test_the_length_of_a_ridge_that_few_noisy_answers_leave_to_the_prior_is_said():
    fit = fitted(answers(precision(8, 0.02, 1), 80, 1, noise=0.5))
    diagnostics = {"extent": fit.extension_report, "separation": None}
    assert "how far the belief extends" in fit_warnings(diagnostics)[0]
    judge = SimpleNamespace(method="auto", diagnostics={"auto": diagnostics})
    sentences = fit_sentences(cast("JudgeAudit", judge))
    assert sentences[0].startswith("The answers hardly determine")
    assert sentences[0].endswith("times as long.")


def test_the_gradient_of_the_evidence_is_that_of_differences():
    """With two judges, choices, position effects and a ridge."""
    evidence = answers(precision(3, 9.0, 0), 12, 0)
    first, second = np.random.default_rng(0).normal(size=(2, 9, 3))
    evidence += Evidence.log_odds(first, second, first[:, 0] - second[:, 1], judge="other")
    evidence += Evidence.comparisons(second, first)
    model = process(evidence)
    direction = torch.tensor([0.6, 0.8, 0.0], dtype=torch.float64)
    model.rows = replace(model.rows, ridge_direction=direction)
    model.maximize()
    model.theta += 0.1
    value, slope = model.likelihood.loss_and_gradient(model.theta)
    by_differences = approx_fprime(
        model.theta, lambda theta: model.likelihood.loss_and_gradient(theta)[0], 1e-6
    )
    assert np.isfinite(value)
    assert slope == pytest.approx(by_differences, abs=1e-3)


def test_products_with_a_direction_are_those_of_its_terms():
    terms = QuadraticTerms.of(np.array([-1, -1, 2, 2]))
    t = np.random.default_rng(0).normal(size=(5, 4))
    along = torch.tensor([0.3, -0.4, 0.5, 0.6], dtype=torch.float64)
    found = terms.columns(t) @ terms.products(along).numpy()
    numbers, everything = t[:, :2] @ along[:2].numpy(), t @ along.numpy()
    # Two categories of one feature have no products.
    expected = np.concatenate([t[:, :2] * everything[:, None], t[:, 2:] * numbers[:, None]], axis=1)
    assert found == pytest.approx(expected)
