"""Beliefs as priors of PyMC and NumPyro models; `test_exports` runs the examples with both."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import llm_elicit as le
from llm_elicit.density import BeliefDensity, GaussianMixture, Uniform, fit_belief

BOX = Uniform([-2.0, 1.0], [2.0, 5.0])


def _fit(sampling: Uniform | GaussianMixture, **settings: str) -> BeliefDensity:
    rng = np.random.default_rng(0)
    a, b = sampling.sample(60, rng), sampling.sample(60, rng)
    nearer = (np.abs(a - 1.5).sum(1) < np.abs(b - 1.5).sum(1))[:, None]
    return fit_belief(np.where(nearer, a, b), np.where(nearer, b, a), sampling=sampling, **settings)


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    return _fit(BOX)


@pytest.mark.parametrize(("call", "package"), [(le.to_pymc, "pymc"), (le.to_numpyro, "numpyro")])
def test_a_missing_package_is_named_with_its_extra(call, package, belief, monkeypatch) -> None:
    for name in (package, f"{package}.distributions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(le.InputError, match=rf"pip install 'llm-elicit\[{package}\]'"):
        call(belief)


@pytest.mark.parametrize("call", [le.to_pymc, le.to_numpyro])
def test_beliefs_without_a_gradient_or_bounds_are_refused(call) -> None:
    unbounded = _fit(GaussianMixture([1.0], [[0.0, 3.0]], [np.eye(2)]))
    with pytest.raises(le.InputError, match="has no bounds"):
        call(unbounded)
    whole = _fit(Uniform([-2.0, 1.0], [2.0, 5.0], integer=[False, True]))
    with pytest.raises(le.InputError, match="whole numbers"):
        call(whole)


def test_a_numpyro_distribution_draws_the_belief(
    belief: BeliefDensity, request: pytest.FixtureRequest
) -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("numpyro")
    with pytest.raises(le.InputError, match="jax_enable_x64"):
        le.to_numpyro(belief)
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    request.addfinalizer(lambda: jax.config.update("jax_enable_x64", before))
    prior = le.to_numpyro(belief)
    drawn = np.asarray(prior.sample(jax.random.PRNGKey(0), (2000,)))
    assert drawn.shape == (2000, 2)
    np.testing.assert_allclose(drawn.mean(0), belief.mean(), atol=0.15)
    values = np.asarray(prior.log_prob(drawn[:5].astype(np.float64)))
    np.testing.assert_allclose(values, belief.log_prob(drawn[:5]), atol=1e-3)


def test_a_pymc_variable_has_the_belief_as_its_prior(belief: BeliefDensity) -> None:
    pymc = pytest.importorskip("pymc")
    with pymc.Model() as model:
        le.to_pymc(belief, "x")
    at = belief.sample(2, seed=1)
    compiled = model.compile_fn(
        model.logp(jacobian=False), inputs=model.value_vars, on_unused_input="ignore"
    )
    found = [
        compiled(
            {
                model.value_vars[0].name: model.rvs_to_transforms[model["x"]]
                .forward(row, *model["x"].owner.inputs)
                .eval()
            }
        )
        for row in at
    ]
    assert float(found[0] - found[1]) == pytest.approx(
        float(np.diff(-belief.log_prob(at))[0]), abs=1e-3
    )
