"""Beliefs that earlier versions saved load, with the same density.

``saved/`` holds beliefs written by the version of commit 230161c, of every method, and
``expected.json`` what that version said of them.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_elicit.density import BeliefDensity, DensityError
from llm_elicit.density.belief_files import read_belief
from llm_elicit.density.stacks import ComponentStack

SAVED = Path(__file__).parent / "saved"
EXPECTED: dict[str, dict[str, Any]] = json.loads((SAVED / "expected.json").read_text())


def test_every_saved_belief_has_its_expected_values() -> None:
    assert set(EXPECTED) == {folder.name for folder in SAVED.iterdir() if folder.is_dir()}


@pytest.fixture(scope="module", params=sorted(EXPECTED))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def belief(name: str) -> BeliefDensity:
    return BeliefDensity.load(SAVED / name)


def test_log_density_is_unchanged(name: str, belief: BeliefDensity) -> None:
    """But for single precision, which processors round differently; the belief states by how much.

    One belief of the first version has an evaluation error of .01 nats, all others below 3e-6.
    """
    expected = EXPECTED[name]
    rounding = max(1e-5, belief.diagnostics["log_prob_error"]["evaluation"])
    found = belief.log_prob(expected["points"])
    np.testing.assert_allclose(found, expected["log_prob"], rtol=1e-6, atol=rounding)


def test_moments_of_the_kept_draws_are_unchanged(name: str, belief: BeliefDensity) -> None:
    expected = EXPECTED[name]
    mean, sd = belief.mean(), np.array([m.sd for m in belief.marginals])
    categories = np.flatnonzero(getattr(belief.sampling, "categorical", ()))
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(mean)), categories)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(sd)), categories)
    for place in categories.tolist():  # the moments of the codes are those of the shares
        shares = np.array(list(belief.shares(place).values()))
        codes = np.arange(len(shares))
        mean[place] = shares @ codes
        sd[place] = np.sqrt(shares @ (codes - mean[place]) ** 2)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-6)
    np.testing.assert_allclose(sd, expected["sd"], rtol=1e-6)


def test_samples_have_the_same_moments(name: str, belief: BeliefDensity) -> None:
    """Within Monte Carlo error: a sampler may draw other numbers than it did."""
    expected = EXPECTED[name]
    x = belief.sample(2000, seed=1)
    sd = np.array(expected["sample_sd"])
    assert belief.sampling.contains(x).all()
    np.testing.assert_allclose((x.mean(0) - expected["sample_mean"]) / sd, 0.0, atol=0.2)
    np.testing.assert_allclose(x.std(0) / sd, 1.0, atol=0.25)


def test_a_loaded_belief_saves_and_loads_again(
    name: str, belief: BeliefDensity, tmp_path: Path
) -> None:
    belief.save(tmp_path)
    points = EXPECTED[name]["points"]
    again = BeliefDensity.load(tmp_path)
    np.testing.assert_array_equal(again.log_prob(points), belief.log_prob(points))


@pytest.mark.parametrize("name", [name for name in EXPECTED if "draws" in EXPECTED[name]])
def test_draws_of_the_posterior_are_unchanged(name: str) -> None:
    expected = EXPECTED[name]
    belief = BeliefDensity.load(SAVED / name)
    points = expected["points"][:2]
    np.testing.assert_allclose(belief.utilities(points), expected["utilities"], rtol=1e-5)
    draws = belief.draws(seed=2)
    assert len(draws) == expected["draws"]
    # Their normalizing constants are Monte Carlo estimates.
    np.testing.assert_allclose(draws.log_prob(points), expected["draws_log_prob"], atol=0.3)


def test_a_tempered_mixture_is_read_back_exactly(tmp_path: Path) -> None:
    """Its share, 0.6 times the power, is not a number of single precision."""
    parts = vars(read_belief(SAVED / "utility-1d"))
    whiten, offset = torch.tensor([[[[2.0]], [[3.0]]]]), torch.tensor([[[-1.0], [2.0]]])
    mixture = ComponentStack(whiten, offset, torch.zeros(1, 2), 0.6)
    utility = replace(parts["model"].utility, components=(mixture,))
    belief = BeliefDensity(**{**parts, "model": replace(parts["model"], utility=utility)})
    tempered = belief.tempered(1.1)
    tempered.save(tmp_path)
    points = EXPECTED["utility-1d"]["points"]
    again = BeliefDensity.load(tmp_path)
    np.testing.assert_array_equal(again.log_prob(points), tempered.log_prob(points))


def test_a_truncated_file_is_an_error_of_the_core(tmp_path: Path) -> None:
    shutil.copytree(SAVED / "utility-1d", tmp_path, dirs_exist_ok=True)
    tensors = tmp_path / "belief.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:500])
    with pytest.raises(DensityError, match="holds no readable belief"):
        BeliefDensity.load(tmp_path)
