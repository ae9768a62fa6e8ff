"""A belief as the prior of a NumPyro model, sampled by NUTS with the belief's own gradient.

    pip install 'llm-elicit[numpyro]'
    python examples/prior_numpyro.py

A made-up judge is asked about the mean and the standard deviation of a measurement; eight
measurements follow. The posterior's means and standard deviations are printed beside those of
weighted draws of the prior, which need no sampler where the data are few.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro.infer import MCMC, NUTS
from scipy import stats

from llm_elicit.density import BETWEEN_ROUNDS, Uniform, fit_belief

jax.config.update("jax_enable_x64", True)  # beliefs are in double precision


def log_prior_of(prior):
    """log p as a function JAX can call and differentiate: PyTorch works it out outside of JAX."""

    def outside(x):
        shapes = jax.ShapeDtypeStruct(x.shape[:-1], x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = prior.logpdf_and_gradient
        return jax.pure_callback(call, shapes, x, vmap_method="broadcast_all")

    @jax.custom_vjp
    def log_prior(x):
        return outside(x)[0]

    log_prior.defvjp(outside, lambda gradient, cotangent: (cotangent[..., None] * gradient,))
    return log_prior


def expects(x):
    """The judge's log-density: a mean near 12, a standard deviation near 2."""
    return -0.5 * (((x - [12.0, 2.0]) / [2.5, 0.7]) ** 2).sum(1)


rng = np.random.default_rng(0)
box = Uniform([0.0, 0.2], [20.0, 5.0])  # the mean, the standard deviation
a, b = box.sample(200, rng), box.sample(200, rng)
wins = (expects(a) - expects(b) + rng.logistic(0, 0.78, 200) > 0)[:, None]
winners, losers = np.where(wins, a, b), np.where(wins, b, a)
prior = fit_belief(winners, losers, sampling=box, method="auto", settings=BETWEEN_ROUNDS).as_prior()
measured = rng.normal(9.0, 1.5, 8)
log_prior = log_prior_of(prior)


def model():
    # Flat over the belief's support, which NumPyro then keeps to, and the belief on top of it.
    low, high = (jnp.asarray(side) for side in prior.support())
    x = numpyro.sample("x", dist.Uniform(low, high).to_event(1))
    numpyro.factor("belief", log_prior(x))
    numpyro.sample("measured", dist.Normal(x[0], x[1]), obs=measured)


sampler = MCMC(NUTS(model), num_warmup=500, num_samples=1000, progress_bar=False)
sampler.run(jax.random.PRNGKey(1))
posterior = np.asarray(sampler.get_samples()["x"])
draws = prior.rvs(20_000, random_state=1)
log_weights = stats.norm.logpdf(measured, draws[:, :1], draws[:, 1:]).sum(1)
weights = np.exp(log_weights - log_weights.max())
weights /= weights.sum()
mean = weights @ draws
sd = np.sqrt(weights @ (draws - mean) ** 2)
print("by NUTS          ", posterior.mean(0).round(2), "±", posterior.std(0).round(2))
print("by weighted draws", mean.round(2), "±", sd.round(2))
print("divergences", int(sampler.get_extra_fields()["diverging"].sum()))
