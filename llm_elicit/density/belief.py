"""The belief density: the result of a fit, and its files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_elicit.density import methods
from llm_elicit.density.belief_draws import evaluate_utilities
from llm_elicit.density.distribution import Power
from llm_elicit.density.errors import Array, DensityError, check_integer, check_number
from llm_elicit.density.feature_names import FeatureNames
from llm_elicit.density.latent import BoxLatent, make_latent
from llm_elicit.density.methods import UtilityDensity
from llm_elicit.density.pool import PoolDensity, restore_model
from llm_elicit.density.presentation import BeliefPresentation
from llm_elicit.density.sampling import SamplingDensity, Uniform
from llm_elicit.density.torch_utils import make_generator, one_thread
from llm_elicit.density.unbounded import Empirical, GaussianMixture
from llm_elicit.density.utility_function import (
    DeferredDraws,
    FourierStack,
    Utility,
    UtilityDraws,
)

_FORMAT = 5


def read_sampling(description: dict[str, Any]) -> SamplingDensity:
    """Return the sampling density that its ``to_dict`` described."""
    fields = {k: v for k, v in description.items() if k not in ("kind", "names")}
    kinds: dict[str, Callable[..., SamplingDensity]] = {
        "uniform": Uniform,
        "gaussian_mixture": GaussianMixture,
        "empirical": Empirical.from_tables,
    }
    density = kinds[description["kind"]](**fields)
    density.names = tuple(description["names"]) if "names" in description else None
    return density


def _digest(description: dict[str, Any], tensors: Path) -> str:
    """Return SHA-256 of the contents of both files."""
    digest = hashlib.sha256(tensors.read_bytes())
    normalized = json.loads(json.dumps(description))  # JSON turns keys into texts
    digest.update(json.dumps(normalized, sort_keys=True).encode())
    return digest.hexdigest()


_UNIT_POINTS = 4096
_MIN_POWER = 1e-9


AnyUtility = TypeVar("AnyUtility", Utility, UtilityDraws)
TemperingModel = UtilityDensity | PoolDensity
"""Densities that can be raised to a power."""


@dataclass(frozen=True)
class Substitution:
    """Columns ``fixed`` (c,) of the features are held at ``values`` (c,); ``free`` (f,) are not.

    Features of λ's coordinates have columns of their own, so that a utility with some columns held
    is again a utility of the free ones, in closed form: a quadratic form stays one, a mixture of
    forms stays one, and Fourier terms shift their phase. The conditional belief
    p(x_f | x_c) ∝ exp(f(t_f, t_c)) is a belief like any other; constants cancel in its
    normalization.
    """

    free: Tensor
    fixed: Tensor
    values: Tensor

    def __call__(self, f: AnyUtility) -> AnyUtility:
        """Return the utility, or every draw of it, of the free columns, up to a constant."""
        if f.warp is not None:
            # Columns are warped one by one.
            unwarped = replace(self, values=f.warp.select(self.fixed)(self.values[None])[0])
            return replace(unwarped(replace(f, warp=None)), warp=f.warp.select(self.free))
        # b·t + tᵀA t, (..., d) and (..., d, d).
        rows, fourier = f.curvature[..., self.free, :], f.fourier
        linear = f.linear[..., self.free] + 2.0 * (rows[..., self.fixed] @ self.values.to(rows))
        components = []
        for stack in f.components:
            # With W_fᵀ = QR the forms −½|t W − o|² are −½|t_f Rᵀ − oQ|² − constant.
            whiten, offset, height = (p.double() for p in stack.parameters)
            offset = offset - self.values.double() @ whiten[..., self.fixed, :]
            whiten = whiten[..., self.free, :]
            if stack.tail.power == 1.0:  # else the constant within q does not come out of ρ(q)
                q, r = torch.linalg.qr(whiten.mT)
                projected = (offset[..., None, :] @ q).squeeze(-2)
                height = height - 0.5 * (offset.square().sum(-1) - projected.square().sum(-1))
                whiten, offset = r.mT, projected
            whiten, offset, height = (p.to(stack.height) for p in (whiten, offset, height))
            components.append(replace(stack, whiten=whiten, offset=offset, height=height))
        if fourier is not None:
            # a cos θ + b sin θ: the held columns add φ = t_c·ω_c to every angle.
            phase = self.values.to(fourier.frequencies) @ fourier.frequencies[self.fixed]
            cos_weights, sin_weights = fourier.weights.chunk(2, dim=1)
            cos, sin = torch.cos(phase), torch.sin(phase)
            weights = torch.cat(
                [cos_weights * cos + sin_weights * sin, sin_weights * cos - cos_weights * sin], 1
            )
            fourier = FourierStack(fourier.frequencies[self.free], weights)
        curvature, stacks = rows[..., self.free], tuple(components)
        return replace(f, linear=linear, curvature=curvature, components=stacks, fourier=fourier)


class BeliefDensity(BeliefPresentation):
    """A judge's belief as a probability density over the features, in natural units.

    `llm_elicit.density.fit_belief` and `fit_evidence` make one, and `load` reads it back. Notebooks
    show a table of it. What to do with it:

    * look at it: `plot` (every pair of features), `plot_marginals`, either beside ``data``;
    * summarize it: `mean`, `sd`, `quantile`, `marginal`, `covariance`, `mode`, `credible_region`;
    * draw from it and evaluate it: `sample`, `to_pandas`, `log_prob`, `pdf`;
    * how sure it is: ``band(belief.draws().mean())`` is the 90 % band of the mean, given the
      answers; `draws` has such a method for every summary;
    * condition it on values of some features: `given`; evaluate the `utility` of points;
    * change its scale, which choices do not determine: `llm_elicit.density.fit_power`, `tempered`,
      `at_noise`;
    * keep it and hand it on: `save`, `load`, `as_prior`, `to_arviz`.

    Points are arrays (n, d), one column for each feature, or data frames, whose columns are matched
    by name and may have the words of categories. `named` gives the features names.

    Attributes:
        diagnostics: a JSON-able report of the fit. For every method it has

            * ``held_out_log_likelihood``, nats per comparison, unless the fit is of log-odds;
              random choices have ``coin_log_likelihood`` = −log 2;
            * ``sampler``: the number of ``draws`` of the fit and of their ``genealogies`` (initial
              particles), their ``effective`` sample size, and its share of the draws
              (``effective_share``), which is that of `sample`, too;
            * ``bounds``: the shares of the belief within 1 % of a feature's range from its bounds,
              and beyond the compared points; see `llm_elicit.density.methods.common_diagnostics`;
            * ``log_prob_error``, nats: the standard error of log Z (``log_normalizer``, also
              ``log_normalizer_se``), the measured error of ``evaluation``, and their ``total``.

    Examples:
        >>> import numpy as np, tempfile
        >>> from llm_elicit.density import Uniform, fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-1, 1, (2, 40, 1))
        >>> nearer = abs(a) < abs(b)                      # this judge prefers values near zero
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-1.0], [1.0]), method="utility").named(["age"])
        >>> belief
        BeliefDensity('utility', 40 judgments, Uniform of 'age')
        >>> x = belief.sample(100, seed=1)
        >>> float(belief.log_prob([[2.0]])[0])            # outside the support
        -inf
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     belief.save(folder)
        ...     same = BeliefDensity.load(folder)
        >>> bool((same.sample(100, seed=1) == x).all())
        True
        >>> belief.named(["age"]).to_pandas(5).columns.to_list()
        ['age']
    """

    def __repr__(self) -> str:
        method = self.diagnostics.get("method", self._model.name)
        sharpness = "; sharpness open" if methods.leaves_sharpness_open(self.diagnostics) else ""
        return (
            f"BeliefDensity({method!r}, {self.diagnostics.get('n')} judgments, "
            f"{type(self.sampling).__name__} of {self._features}{sharpness})"
        )

    def given(self, values: Mapping[Any, float | str], *, seed: int = 0) -> BeliefDensity:
        """Return the conditional belief of the other features, given values of some.

        It is a belief of its own, over the other features in their order, with draws of the
        posterior if this belief has them; see `Substitution`. Comparisons of
        points that share a value have no information on that value's own probability, which is
        not used here.

        Args:
            values: by the features' names or numbers, natural units; of a category its word or
                code.
            seed: seed of the normalizing constant.

        Raises:
            DensityError: the method is neither "utility" nor "auto", λ is not uniform, every
                feature is given, or values lie outside the support.

        Examples:
            >>> import numpy as np
            >>> from llm_elicit.density import Uniform, fit_belief
            >>> rng = np.random.default_rng(0)
            >>> a, b = rng.uniform(-3, 3, (2, 100, 2))
            >>> nearer = abs(a[:, 0] - a[:, 1]) < abs(b[:, 0] - b[:, 1])     # both alike
            >>> belief = fit_belief(np.where(nearer[:, None], a, b),
            ...                     np.where(nearer[:, None], b, a),
            ...                     sampling=Uniform([-3.0, -3.0], [3.0, 3.0]))
            >>> bool(belief.given({1: 2.0}).mean()[0] > 0.5
            ...      > -0.5 > belief.given({1: -2.0}).mean()[0])
            True
        """
        model, latent, sampling = self.utility_model("given"), self._latent, self.sampling
        values = self._features.parse_values("given", values)
        if not isinstance(latent, BoxLatent) or not isinstance(sampling, Uniform):
            raise DensityError(
                f"given: λ is a {type(sampling).__name__}; beliefs can be conditioned only under "
                "a Uniform λ; fit with sampling=Uniform(low, high)."
            )
        if len(values) == sampling.dimension:
            raise DensityError("given: every feature is given; leave at least one free.")
        point = sampling.from_cube(np.full((1, sampling.dimension), 0.5))
        point[0, list(values)] = list(values.values())
        if not sampling.in_box(point)[0]:
            raise DensityError(
                f"given: {dict(values)} lies outside the support of {sampling!r}; give values "
                "inside it."
            )
        t = latent.features(torch.from_numpy(latent.to_latent(point)))[0]
        is_given = np.isin(latent.feature_of_column, list(values))
        free, fixed = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~is_given, is_given))
        substitution = Substitution(free, fixed, t[fixed])
        draws = self._draws and self._draws.map(substitution)
        given_values = {str(feature): value for feature, value in values.items()}
        latent = BoxLatent(sampling.condition(values))
        return self._with_model(
            UtilityDensity(latent, substitution(model.utility), model.annealing),
            draws,
            {**self.diagnostics, "given": given_values},
            seed,
            self._features.drop(values),
        )

    def sample_given(self, values: Mapping[Any, float | str], n: int, *, seed: int = 0) -> Array:
        """Return n points (n, d) with the values of some features given, natural units.

        Raises:
            DensityError: as `given`.
        """
        check_integer("sample_given: n", n)
        values = self._features.parse_values("sample_given", values)
        points = np.empty((n, self.dimension))
        points[:, list(values)] = list(values.values())
        free = np.setdiff1d(np.arange(self.dimension), list(values))
        points[:, free] = self.given(values, seed=seed).sample(n, seed=seed)
        return points

    def utility(self, x: npt.ArrayLike, *, tapered: bool = True) -> Array:
        """Return the utility f (n,) at points (n, d) of the support, nats, up to a constant.

        It is the log-density per unit of every feature's scale. Conclusions that hold for any
        positive multiple of f, such as an order of points, do not depend on the power. Beyond the
        compared points of a λ that is not uniform the density is tapered regardless of the answers;
        ``tapered=False`` leaves that out.

        Raises:
            DensityError: the method is neither "utility" nor "auto", or points lie outside the
                support.
        """
        model, points = self._tempering_model("utility"), self.check_inside("utility: x", x)
        with one_thread():
            g = torch.from_numpy(self._latent.to_latent(points))
            taper = 0.0 if tapered else self._latent.taper(g)
            return np.asarray(
                (methods.evaluate_utility(self._latent, model.utility, g) - taper).numpy()
            )

    def utilities(self, x: npt.ArrayLike, *, tapered: bool = True) -> Array:
        """Return utilities (S, n) at points (n, d) of the support by draws of the posterior.

        Each is known up to a constant of its own; see `utility`.

        Raises:
            DensityError: the belief has no draws.
        """
        g = torch.from_numpy(self._latent.to_latent(self.check_inside("utilities: x", x)))
        with one_thread():
            taper = 0.0 if tapered else self._latent.taper(g)
            return np.asarray(
                (evaluate_utilities(self._latent, self.utility_draws(), g) - taper).numpy()
            )

    @property
    def power(self) -> float:
        """The power k in p ∝ exp(k f), with f the fitted utility: 1 unless it was `tempered`."""
        return float(self.diagnostics.get("power", {}).get("value", 1.0))

    def unit_power(self) -> float:
        """Return the power at which the log-density has a standard deviation of one nat over λ.

        A convention for a belief whose power is unknown: the resulting density does not change when
        all log-odds are multiplied by a constant. Infinite for a flat belief.

        Raises:
            DensityError: the method is neither "utility" nor "auto".
        """
        points = self.sampling.sample(_UNIT_POINTS, np.random.default_rng(_UNIT_POINTS))
        sd = float(self.utility(points).std())
        return 1.0 / sd if sd > 0.0 else math.inf

    def tempered(self, power: float | Power, *, seed: int = 0) -> BeliefDensity:
        """Return the belief ∝ exp(power · f), normalized, inside λ's support.

        Comparisons determine f up to a factor, which `llm_elicit.density.fit_power` estimates. With
        its `Power`, the `draws` include the power's uncertainty.

        Args:
            power: a number > 0, or a `Power`; relative to this belief's f.
            seed: seed of the normalizing constant and the draws kept.

        Raises:
            DensityError: the power is not finite and > 0, or the method is neither "utility" nor
                "auto".

        Examples:
            >>> import numpy as np
            >>> from llm_elicit.density import Uniform, fit_belief
            >>> rng = np.random.default_rng(0)
            >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
            >>> log_odds = 0.1 * (abs(b) - abs(a))[:, 0]         # weakly prefers values near zero
            >>> belief = fit_belief(a, b, log_odds=log_odds, sampling=Uniform([-3.0], [3.0]))
            >>> sharper = belief.tempered(10.0)
            >>> bool(sharper.sample(1000).std() < belief.sample(1000).std()), sharper.power
            (True, 10.0)
        """
        if isinstance(power, Power):
            value, log_sd = power.value, power.log_sd
        else:
            value = check_number("tempered: power", power, _MIN_POWER, 1.0 / _MIN_POWER)
            log_sd = 0.0
        old_log_sd = self.diagnostics.get("power", {}).get("log_sd", 0.0)
        estimate = {"value": self.power * value, "log_sd": math.hypot(old_log_sd, log_sd)}
        model = self._tempering_model("tempered")
        return self._times(value, model, {**self.diagnostics, "power": estimate}, seed)

    @property
    def has_noise_levels(self) -> bool:
        """Whether `at_noise` is available."""
        return isinstance(self._model, UtilityDensity)

    def at_noise(self, level: float, *, seed: int = 0) -> BeliefDensity:
        """Return the belief that the same answers imply if the judge's noise has another level.

        Choices depend only on the utility divided by the noise's scale, so nothing is fitted again:
        p becomes p^c, with c the ratio of the new scale to the old one (`Noise.scale`), and so do
        the `draws`. The form of the utility, which was chosen on held-out choices, stays.

        Raises:
            DensityError: the level is not a positive finite number, or the method is neither
                "utility" nor "auto".
        """
        model, noise = self.utility_model("at_noise"), replace(self.noise, level=level)
        diagnostics = methods.rescale_level(self.diagnostics, noise, self.noise)
        return self._times(noise.scale / self.noise.scale, model, diagnostics, seed)

    def sample_at_noise(self, n: int, level: float, *, seed: int = 0) -> Array:
        """Return n points (n, d) of the belief `at_noise`, without its normalizing constant.

        This takes less time than ``at_noise(level).sample(n)``.

        Raises:
            DensityError: as `at_noise` and `sample` do.
        """
        model = self.utility_model("sample_at_noise")
        factor = replace(self.noise, level=level).scale / self.noise.scale
        belief = copy(self)
        belief._model = replace(model, utility=model.utility.scaled(factor))
        return belief.sample(n, seed=seed)

    def _times(
        self, factor: float, model: TemperingModel, diagnostics: dict[str, Any], seed: int
    ) -> BeliefDensity:
        """Return the belief with its utility and draws times a factor."""
        draws = self._draws and self._draws.map(lambda terms: terms.scaled(factor))
        density = replace(model, utility=model.utility.scaled(factor))  # type: ignore[arg-type]
        return self._with_model(density, draws, diagnostics, seed)

    def _with_model(
        self,
        density: TemperingModel,
        draws: DeferredDraws | None,
        diagnostics: dict[str, Any],
        seed: int,
        features: FeatureNames | None = None,
    ) -> BeliefDensity:
        """Return the belief of another density, normalized anew, with these diagnostics."""
        with one_thread():
            model, normalizer = density.normalize(make_generator(seed))
            report = methods.common_diagnostics(density.latent, model, normalizer)
        reference = normalizer.points(len(self._reference))
        names, merged = features or self._features, {**diagnostics, **report}
        return BeliefDensity(density.latent, model, reference, merged, draws, names)

    def _tempering_model(self, label: str) -> TemperingModel:
        """Return the density whose log can be evaluated and multiplied by a power."""
        if isinstance(self._model, PoolDensity):
            return self._model
        return self.utility_model(label)

    def utility_model(self, label: str) -> UtilityDensity:
        """Return the fitted utility, for use in the core; ``label`` is named in an error."""
        if not isinstance(self._model, UtilityDensity):
            raise DensityError(
                f"{label}: the belief is by method {self._model.name!r}, which has no utility to "
                'do this with; fit one with method="utility" or "auto".'
            )
        return self._model

    def save(self, folder: str | Path) -> None:
        """Write ``belief.safetensors`` and ``belief.json`` into ``folder`` (made if missing)."""
        target = _path("save", folder)
        target.mkdir(parents=True, exist_ok=True)
        tensors = {**self._model.tensors(), "reference": self._reference}
        if self.has_draws:
            tensors |= self.utility_draws().tensors()
        # Draws and utility may share a tensor, which safetensors refuses.
        copies = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(copies, target / "belief.safetensors")
        radius = self._latent.radius
        description = {
            "format": _FORMAT,
            "model": self._model.name,
            "config": self._model.config(),
            "sampling": self.sampling.to_dict(),
            "radius": radius if math.isfinite(radius) else None,
            "diagnostics": self.diagnostics,
            "features": self._features.to_dict(),
        }
        description["digest"] = _digest(description, target / "belief.safetensors")
        text = json.dumps(description, indent=2) + "\n"
        (target / "belief.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> BeliefDensity:
        """Return the belief that `save` wrote: the same samples and log-densities, bit for bit.

        Raises:
            DensityError: the folder holds no belief, one of another format, one that was changed
                since `save` wrote it, or one of a method that is not installed.
        """
        source = _path("load", folder)
        try:
            description = json.loads((source / "belief.json").read_text(encoding="utf-8"))
            tensors = load_file(source / "belief.safetensors")
            # Copies have memory aligned as at the fit, so that sums are rounded in the same way.
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        except (OSError, ValueError, SafetensorError) as error:
            raise DensityError(
                f"load: {source} holds no readable belief ({error}); a belief is the two files "
                "belief.json and belief.safetensors; give the folder that save wrote."
            ) from error
        if description.get("format") != _FORMAT:
            raise DensityError(
                f"load: {source} has format {description.get('format')!r}; this version reads "
                f"format {_FORMAT}; fit again, or read it with the version that wrote it."
            )
        if description.pop("digest", None) != _digest(description, source / "belief.safetensors"):
            raise DensityError(
                f"load: {source} was changed since save wrote it (its digest differs); restore it "
                "or fit again."
            )
        latent = make_latent(read_sampling(description["sampling"]))
        latent.radius = math.inf if description["radius"] is None else description["radius"]
        return cls(
            latent,
            restore_model(description["model"], latent, tensors, description["config"]),
            tensors["reference"],
            description["diagnostics"],
            DeferredDraws.from_tensors(tensors) if "draws.linear" in tensors else None,
            FeatureNames.from_dict(description["features"]),
        )


def _path(label: str, folder: object) -> Path:
    if not isinstance(folder, str | Path):
        raise DensityError(f"{label}: folder = {folder!r}; it must be a path.")
    return Path(folder)
