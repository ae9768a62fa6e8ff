"""Beliefs for other statistical software: arviz data, and priors of PyMC and NumPyro models.

As a prior, a belief is sampled with its own gradient.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.packages import LazyModule
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit import density
    from llm_elicit.density import BeliefDensity
    from llm_elicit.spaces.features import Feature, FeatureSpace, Floats
else:
    density = LazyModule("llm_elicit.density")


def to_arviz(
    belief: BeliefDensity,
    space: FeatureSpace | None = None,
    *,
    chains: int = 4,
    draws: int = 1000,
    seed: int = 0,
) -> Any:
    """Return a belief as arviz data, with the names, units and categories of its feature space.

    It is `llm_elicit.density.BeliefDensity.to_arviz`, which describes the groups and variables.

    Args:
        belief: the belief.
        space: the feature space it was asked in; the belief's own names without it.
        chains: number of chains of points.
        draws: points per chain.
        seed: seed of the points and of the posterior draws.

    Returns:
        `arviz.InferenceData`, or `xarray.DataTree` for arviz 1.0 and later.

    Raises:
        InputError: arviz is not installed, the space has other features than the belief, or
            there is not at least one chain and one point.

    Example (`tests/comparisons/test_exports.py` runs one)::

        run = le.Run.open("simulated")
        tree = le.to_arviz(run.beliefs["expert"], run.space)
        az.summary(tree)                       # the belief
        az.summary(tree, group="beliefs")      # its uncertainty given the answers
    """
    units = None
    if space is not None:
        if space.dimension != belief.dimension:
            raise InputError(
                f"to_arviz: the belief has {belief.dimension} features and the space "
                f"{space.name!r} has {space.dimension}; pass the feature space of the belief"
            )
        words = {j: feature.categories for j, feature in enumerate(space.features)}
        categories = {j: names for j, names in words.items() if names}
        belief = belief.named(space.names, categories)
        units = [_unit(feature) for feature in space.features]
    try:
        return belief.to_arviz(chains=chains, draws=draws, seed=seed, units=units)
    except density.DensityError as error:
        raise InputError(str(error)) from None


def _unit(feature: Feature) -> str:
    """Return the unit of the stored values, such as "10,000 USD" if questions are in USD."""
    unit = feature.unit or feature.prefix.strip()
    return unit if feature.factor == 1.0 else f"{feature.factor:,g} {unit}".rstrip()


def to_pymc(belief: BeliefDensity, name: str = "x") -> Any:
    """Return a variable of the present PyMC model whose prior is a belief.

    The variable is uniform on the belief's support, and the potential ``NAME_belief`` makes it the
    belief. It has one entry per feature, in their order.

    Args:
        belief: a belief about numbers on a bounded support, by method auto or utility.
        name: the variable's name.

    Raises:
        InputError: PyMC is not installed, or the belief has no gradient or no bounds.

    Example (`examples/prior_pymc.py` is one)::

        with pm.Model():
            x = le.to_pymc(belief)
            pm.Normal("measured", x[0], x[1], observed=measured)
            found = pm.sample()
    """
    low, high = _bounds("to_pymc", belief)
    pymc = _imported("pymc")
    x = pymc.Uniform(name, low, high, shape=belief.dimension)
    pymc.Potential(f"{name}_belief", _operation()(belief.as_prior())(x)[0])
    return x


def _operation() -> Any:
    """Return PyTensor's operation of a log density and its gradient, which PyTorch computes."""
    basic, operations = import_module("pytensor.graph.basic"), import_module("pytensor.graph.op")
    tensor = import_module("pytensor.tensor")

    class LogPrior(operations.Op):  # type: ignore[misc, name-defined]
        """log p and its gradient (d,) at a point (d,)."""

        __props__ = ("prior",)

        def __init__(self, prior: Any) -> None:
            self.prior = prior

        def make_node(self, x: Any) -> Any:
            outputs = [tensor.dscalar(), tensor.dvector()]
            return basic.Apply(self, [tensor.as_tensor_variable(x)], outputs)

        def perform(self, _node: Any, inputs: Any, outputs: Any) -> None:
            value, gradient = self.prior.logpdf_and_gradient(inputs[0])
            outputs[0][0], outputs[1][0] = np.asarray(value), gradient

        def L_op(self, _inputs: Any, outputs: Any, gradients: Any) -> list[Any]:  # noqa: N802 - PyTensor's name
            return [gradients[0] * outputs[1]]

    return LogPrior


def to_numpyro(belief: BeliefDensity) -> Any:
    """Return a NumPyro distribution of d numbers that is a belief.

    Args:
        belief: a belief about numbers on a bounded support, by method auto or utility.

    Raises:
        InputError: NumPyro is not installed, JAX is not in double precision, or the belief has no
            gradient or no bounds.

    Example (`examples/prior_numpyro.py` is one)::

        def model():
            x = numpyro.sample("x", le.to_numpyro(belief))
            numpyro.sample("measured", dist.Normal(x[0], x[1]), obs=measured)
    """
    low, high = _bounds("to_numpyro", belief)
    distributions = _imported("numpyro.distributions")
    jax, constraints = import_module("jax"), distributions.constraints
    if not jax.config.jax_enable_x64:
        raise InputError(
            "to_numpyro: beliefs are in double precision; call "
            'jax.config.update("jax_enable_x64", True) first'
        )
    log_prior, shape = _differentiable(belief.as_prior()), (belief.dimension,)

    class Belief(distributions.Distribution):  # type: ignore[misc, name-defined]
        """The belief, evaluated and sampled outside of JAX."""

        def __init__(self) -> None:
            super().__init__(batch_shape=(), event_shape=shape, validate_args=False)

        @property
        def support(self) -> Any:
            return constraints.independent(constraints.interval(low, high), 1)

        def log_prob(self, value: Any) -> Any:
            return log_prior(value)

        def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
            count = int(np.prod(sample_shape, dtype=int))

            def drawn(bits: Any) -> Floats:
                return belief.sample(count, seed=int(np.asarray(bits)))

            seed = jax.random.randint(key, (), 0, 2**31 - 1)
            output = jax.ShapeDtypeStruct((count, *shape), low.dtype)
            return jax.pure_callback(drawn, output, seed).reshape(*sample_shape, *shape)

    return Belief()


def _differentiable(prior: Any) -> Any:
    """Return log p as a function that JAX can call and differentiate."""
    jax = import_module("jax")

    def outside(x: Any) -> Any:
        shapes = jax.ShapeDtypeStruct(x.shape[:-1], x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = prior.logpdf_and_gradient
        return jax.pure_callback(call, shapes, x, vmap_method="broadcast_all")

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def log_prior(x: Any) -> Any:
        return outside(x)[0]

    log_prior.defvjp(outside, lambda gradient, cotangent: (cotangent[..., None] * gradient,))
    return log_prior


def _bounds(function: str, belief: BeliefDensity) -> tuple[Floats, Floats]:
    """Return the bounds (d,) of a belief with a gradient on a bounded support."""
    low, high = belief.as_prior().support()
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InputError(
            f"{function}: the belief has no bounds; fit it with a sampling density that has them, "
            "such as Uniform"
        )
    try:
        belief.as_prior().logpdf_and_gradient(belief.sample(1))
    except ValueError as error:
        raise InputError(f"{function}: {error}") from None
    return low, high


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        extra = package.split(".", maxsplit=1)[0]
        raise InputError(
            f"{extra} is not installed; run: pip install 'llm-elicit[{extra}]'"
        ) from None
