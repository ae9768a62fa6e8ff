"""The belief density: what a fit returns and everything downstream uses."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_elicit.density.belief_draws import (
    BeliefDraws,
    Candidates,
    make_candidates,
    make_draws,
    utilities_at,
)
from llm_elicit.density.density_model import DensityModel
from llm_elicit.density.diagnostics import self_report
from llm_elicit.density.empirical import Empirical
from llm_elicit.density.errors import (
    DensityError,
    callback,
    fraction,
    integer,
    levels_of,
    number,
    points_of,
    seed_of,
)
from llm_elicit.density.gaussian_mixture import GaussianMixture
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.methods import external_method
from llm_elicit.density.prior import Prior
from llm_elicit.density.sampling import SamplingDensity, Uniform
from llm_elicit.density.score.density import ScoreDensity
from llm_elicit.density.settings import Progress
from llm_elicit.density.summaries import CredibleRegion, Marginal, find_mode
from llm_elicit.density.torch_utils import one_thread
from llm_elicit.density.transforms import Latent, make_latent
from llm_elicit.density.utility_density import (
    UtilityDensity,
    estimate_log_normalizer,
    sample_given,
    utility_at,
)
from llm_elicit.density.utility_draws import UtilityDraws

Array = npt.NDArray[np.float64]
_FORMAT = 1
_UNIT_POINTS = 4096
_LEAST_POWER = 1e-9
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_RESTORE: dict[str, Callable[[Latent, dict[str, Tensor], dict[str, Any]], DensityModel]] = {
    "utility": UtilityDensity.restore,
    "score": ScoreDensity.restore,
    "score-constant": ScoreDensity.restore,
}


@runtime_checkable
class Scale(Protocol):
    """A power with its uncertainty, as `llm_elicit.density.Power` is."""

    @property
    def value(self) -> float:
        """The power."""
        ...

    @property
    def log_sd(self) -> float:
        """Standard deviation of its logarithm."""
        ...


class BeliefDensity:
    """A judge's belief as a probability density over the features, in natural units.

    Made by `llm_elicit.density.fit_belief`, or read back by `load`. ``diagnostics`` is a JSON-able
    dict that says how the fit went. Whatever the method it has

    * ``held_out_log_likelihood``, nats a comparison, beside ``coin_log_likelihood`` = −log 2. The
      score methods state that of the utility they start from, or, with ``control=None``, of the
      learned score itself; the flow that of its members;
    * ``sampler``: how many ``draws`` the fit made, of how many ``genealogies`` (initial particles),
      the number of independent draws they are worth (``effective``) and the
      ``effective_share``, which `sample` has too;
    * ``bounds``: the shares of the belief within 1 % of a feature's range of its bounds and beyond
      the compared points, see `llm_elicit.density.diagnostics.bound_facts`;
    * ``log_prob_error``, nats: the standard error of log Z (``log_normalizer``, also
      ``log_normalizer_se``), the measured errors of ``evaluation`` and of the ``path``, and their
      ``total``.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from llm_elicit.density import fit_belief
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.uniform(-1, 1, (2, 40, 1))
    >>> nearer = abs(a) < abs(b)                      # this judge prefers values near zero
    >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
    ...                     sampling=Uniform([-1.0], [1.0]), method="utility")
    >>> x = belief.sample(100, seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     belief.save(folder)
    ...     same = BeliefDensity.load(folder)
    >>> bool((same.sample(100, seed=1) == x).all())
    True
    """

    def __init__(
        self,
        latent: Latent,
        model: DensityModel,
        reference: Tensor,
        diagnostics: dict[str, Any],
        draws: UtilityDraws | None = None,
    ) -> None:
        self._latent = latent
        self._model = model
        self._reference = reference
        self._draws = draws
        self.diagnostics = diagnostics

    def __repr__(self) -> str:
        return f"BeliefDensity(method={self._model.name!r}, sampling={self.sampling!r})"

    @property
    def sampling(self) -> SamplingDensity:
        """The sampling density λ the belief was fitted under."""
        return self._latent.sampling

    @property
    def noise(self) -> Noise:
        """The judge's noise as the fit was told."""
        return Noise(**self.diagnostics["noise"])

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return self.sampling.dimension

    @property
    def _kept(self) -> Array:
        """Draws (m, d) kept with the fit, natural units."""
        return self._latent.from_latent(self._reference.numpy())

    @property
    def marginals(self) -> tuple[Marginal, ...]:
        """Each feature's mean, standard deviation and quantiles, from draws kept with the fit."""
        x = self._kept
        levels = np.quantile(x, _LEVELS, axis=0)
        return tuple(
            Marginal(
                float(x[:, i].mean()),
                float(x[:, i].std()),
                {q: float(levels[k, i]) for k, q in enumerate(_LEVELS)},
            )
            for i in range(self.dimension)
        )

    def mean(self) -> Array:
        """The features' means (d,), from draws kept with the fit."""
        return np.array([each.mean for each in self.marginals])

    def quantile(self, levels: npt.ArrayLike) -> Array:
        """Quantiles (L, d) of every feature at levels (L,), from draws kept with the fit."""
        wanted = levels_of("quantile: levels", levels)
        return np.asarray(np.quantile(self._kept, wanted, axis=0))

    def mode(self) -> Array:
        """The point (d,) of highest density per natural unit; see `find_mode`."""
        return find_mode(self.log_prob, self._kept)

    def credible_region(self, level: float = 0.9) -> CredibleRegion:
        """The smallest region that holds a share ``level`` of the belief.

        Raises
        ------
        DensityError : a level that is not between 0 and 1.

        Examples
        --------
        >>> import numpy as np
        >>> from llm_elicit.density import fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
        >>> nearer = abs(a - 1) < abs(b - 1)
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
        >>> belief.credible_region(0.5).contains([[1.0], [-3.0]]).tolist()
        [True, False]
        """
        fraction("credible_region: level", level)
        threshold = float(np.quantile(self.log_prob(self._kept), 1.0 - level))
        return CredibleRegion(level, threshold, self.log_prob)

    def sample_given(self, given: Mapping[int, float], n: int, *, seed: int = 0) -> Array:
        """Draw (n, d) points given the values of some features, by number, natural units.

        Raises
        ------
        DensityError : a method other than "utility" and "auto", and as
            `llm_elicit.density.utility_density.sample_given`.
        """
        model = self.utility_model("sample_given")
        integer("sample_given: n", n)
        with one_thread():
            generator = _generator(seed)
            return sample_given(model, given, n, generator)

    def sample(self, n: int, *, seed: int = 0) -> Array:
        """Draw (n, d) points in natural units, inside the support; the same for the same seed.

        Raises
        ------
        DensityError : n is negative.
        """
        generator = _generator(seed)
        if integer("sample: n", n) == 0:
            return np.empty((0, self.dimension))
        with one_thread():
            points = self._model.sample_latent(n, generator).points
        return self._latent.from_latent(points.numpy())

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Log density (n,) at points (n, d), nats per natural unit; −inf outside the support.

        Raises
        ------
        DensityError : points of another shape than (n, d).
        """
        points = points_of("log_prob: x", x, self.dimension, infinite=True)
        inside = self.sampling.contains(points)
        result = np.full(len(points), -np.inf)
        if inside.any():
            kept = points[inside]
            g = torch.from_numpy(self._latent.to_latent(kept))
            with one_thread():
                per_scale = self._model.log_density(g).numpy()
            result[inside] = per_scale + self.sampling.log_scale_slope(kept)
        return result

    def utility(self, x: npt.ArrayLike) -> Array:
        """The utility f (n,) at points (n, d) of the support, up to a constant, nats.

        It is the log-density per unit of every feature's scale. What is said by f but for a factor,
        as an ordering of points, does not depend on the power.

        Raises
        ------
        DensityError : a method other than "utility" and "auto", or points outside the support.
        """
        model, points = self.utility_model("utility"), self._inside("utility: x", x)
        with one_thread():
            g = torch.from_numpy(self._latent.to_latent(points))
            return np.asarray(utility_at(self._latent, model.utility, g).numpy())

    def utilities(self, x: npt.ArrayLike) -> Array:
        """The utility (S, n) at points (n, d) of the support by draws of its posterior.

        Each is known up to a constant of its own, as `utility` is.

        Raises
        ------
        DensityError : a belief without draws.
        """
        g = torch.from_numpy(self._latent.to_latent(self._inside("utilities: x", x)))
        with one_thread():
            return np.asarray(utilities_at(self._latent, self.utility_draws(), g).numpy())

    def _inside(self, where: str, x: npt.ArrayLike) -> Array:
        """Points (n, d) of the support."""
        found = points_of(where, x, self.dimension)
        outside = np.flatnonzero(~self.sampling.contains(found))
        if outside.size:
            raise DensityError(
                f"{where}: point {outside[0]}, {found[outside[0]].tolist()}, lies outside the "
                "support; the utility is known inside alone."
            )
        return found

    @property
    def power(self) -> float:
        """The power of the fitted utility that this density is: 1 but for `tempered` beliefs."""
        return float(self.diagnostics.get("power", {}).get("value", 1.0))

    def unit_power(self) -> float:
        """The power at which the log-density has a standard deviation of one nat over λ.

        A convention for a belief whose power nothing tells: it does not change when all log-odds
        are multiplied by a constant. Infinite for a flat belief.

        Raises
        ------
        DensityError : a method other than "utility" and "auto".
        """
        at = self.sampling.sample(_UNIT_POINTS, np.random.default_rng(_UNIT_POINTS))
        spread = float(self.utility(at).std())
        return 1.0 / spread if spread > 0.0 else math.inf

    def tempered(self, power: float | Scale, *, seed: int = 0) -> BeliefDensity:
        """The belief ∝ exp(power · f), normalized, inside λ's support.

        Comparisons tell f up to a factor; `llm_elicit.density.fit_power` finds it. Given its
        `Power`, `draws` carry its uncertainty too.

        Parameters
        ----------
        power : a number > 0, or a `Power`; relative to this belief's f.
        seed : of the normalizing constant and the draws kept.

        Raises
        ------
        DensityError : a power that is not finite and > 0, or a method other than "utility" and
            "auto".

        Examples
        --------
        >>> import numpy as np
        >>> from llm_elicit.density import fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
        >>> log_odds = 0.1 * (abs(b) - abs(a))[:, 0]               # faint: prefers values near zero
        >>> belief = fit_belief(a, b, log_odds=log_odds, sampling=Uniform([-3.0], [3.0]))
        >>> sharper = belief.tempered(10.0)
        >>> bool(sharper.sample(1000).std() < belief.sample(1000).std()), sharper.power
        (True, 10.0)
        """
        value, log_sd = (
            (power.value, power.log_sd)
            if isinstance(power, Scale)
            else (number("tempered: power", power, _LEAST_POWER, 1.0 / _LEAST_POWER), 0.0)
        )
        before = self.diagnostics.get("power", {}).get("log_sd", 0.0)
        stated = {"value": self.power * value, "log_sd": math.hypot(before, log_sd)}
        return self._scaled(value, {"power": stated}, "tempered", seed)

    def as_prior(self) -> Prior:
        """The belief with the names of SciPy's frozen distributions; see `Prior`."""

        def sample(n: int, seed: int) -> Array:
            return self.sample(n, seed=seed)

        model = self._model if isinstance(self._model, UtilityDensity) else None
        return Prior(sample, self.log_prob, self._kept, self.sampling, model)

    @property
    def has_draws(self) -> bool:
        """Whether `draws` has any to give."""
        return self._draws is not None and len(self._draws) > 0

    def draws(
        self, *, seed: int = 0, log_level_sd: float | None = None, progress: Progress | None = None
    ) -> BeliefDraws:
        """Beliefs that the same choices allow, equally likely: what credible bands are made of.

        They are draws of the posterior over utilities (see
        `llm_elicit.density.utility.posterior`) at the noise the fit was told, whatever method
        made the belief itself; the same for the same seed. Takes seconds, of which ``progress``
        is told as that of `fit_belief` is. ``log_level_sd`` is how well the level is known: every
        draw is taken to another one, log-normal about it with this standard deviation of its
        logarithm. The choices do not narrow it (see `at_noise`), so that prior is posterior. Where
        it is left out it is that of the `Power` the belief was `tempered` by, or 0.

        Raises
        ------
        DensityError : ``log_level_sd`` is negative, or the belief has no draws: a flow, or a fit
            with ``PosteriorSettings(draws=0)``.
        """
        if log_level_sd is None:
            log_level_sd = float(self.diagnostics.get("power", {}).get("log_sd", 0.0))
        if number("draws: log_level_sd", log_level_sd) < 0.0:
            raise DensityError(
                f"draws: log_level_sd = {log_level_sd}; a standard deviation is finite and >= 0; "
                "0 takes the noise level for known."
            )
        callback("draws: progress", progress)
        generator = _generator(seed)
        model = self._model if isinstance(self._model, UtilityDensity) else None
        with one_thread():
            return make_draws(
                self._latent, self.utility_draws(), model, generator, progress, log_level_sd
            )

    @property
    def has_noise_levels(self) -> bool:
        """Whether `at_noise` can take it to other levels."""
        return isinstance(self._model, UtilityDensity)

    def at_noise(self, level: float, *, seed: int = 0) -> BeliefDensity:
        """The belief that the same answers imply if the judge's noise has another level.

        Choices depend on the utility divided by the noise's scale alone, so nothing is fitted
        again: p becomes p^c, c the ratio of the new scale to the old (`Noise.scale`), and so do
        the `draws`. What was chosen by held-out choices stays as it was chosen.

        Raises
        ------
        DensityError : a level that is no positive finite number, or a method other than
            "utility" and "auto".

        Examples
        --------
        >>> import numpy as np
        >>> from llm_elicit.density import fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
        >>> nearer = abs(a - 1) < abs(b - 1)
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
        >>> noisier = belief.at_noise(2 * belief.noise.level)   # so its answers say more
        >>> bool(noisier.sample(1000).std() < belief.sample(1000).std())
        True
        """
        noise = replace(self.noise, level=level)
        return self._scaled(
            noise.scale / self.noise.scale, {"noise": asdict(noise)}, "at_noise", seed
        )

    def _scaled(
        self, factor: float, stated: dict[str, Any], wanted: str, seed: int
    ) -> BeliefDensity:
        """The belief with its utility and draws times a factor."""
        was = self.utility_model(wanted)
        utility, annealing = was.utility.scaled(factor), was.annealing
        generator = _generator(seed)
        with one_thread():
            found = estimate_log_normalizer(self._latent, utility, generator, annealing)
            model = UtilityDensity(self._latent, utility, found.value, annealing, found.start)
            report = self_report(self._latent, model, found)
        reference = found.draws.points[: len(self._reference)].clone()
        draws = None if self._draws is None else self._draws.scaled(factor)
        diagnostics = {**self.diagnostics, **report, **stated}
        return BeliefDensity(self._latent, model, reference, diagnostics, draws)

    def candidates(self, count: int, temperature: float, *, seed: int = 0) -> Candidates:
        """Points that pairs to ask next may be made of; see `llm_elicit.density.design`.

        Raises
        ------
        DensityError : the method is neither "utility" nor "auto", or there are no `draws`.
        """
        model, draws = self.utility_model("candidates"), self.utility_draws()
        integer("candidates: count", count, least=1)
        number("candidates: temperature", temperature, 0.0)
        generator = _generator(seed)
        with one_thread():
            return make_candidates(model, draws, count, temperature, generator)

    def utility_model(self, wanted: str) -> UtilityDensity:
        """The fitted utility with its normalizing constant, for what the core itself computes.

        Raises
        ------
        DensityError : a method other than "utility" and "auto"; ``wanted`` names what needs it.
        """
        if not isinstance(self._model, UtilityDensity):
            raise DensityError(
                f"{wanted}: the belief's method is {self._model.name}; this needs the utility "
                'itself; fit by "utility" or "auto".'
            )
        return self._model

    def utility_draws(self) -> UtilityDraws:
        """Draws of the posterior over utilities.

        Raises
        ------
        DensityError : the belief was fitted without.
        """
        if self._draws is None or not len(self._draws):
            raise DensityError(
                f"draws: this belief ({self._model.name}) was fitted without draws of the "
                "posterior; fit it by another method than flow, with PosteriorSettings(draws=64)."
            )
        return self._draws

    def save(self, folder: str | Path) -> None:
        """Write ``belief.safetensors`` and ``belief.json`` into ``folder`` (made if missing)."""
        target = _folder("save", folder)
        target.mkdir(parents=True, exist_ok=True)
        tensors = {**self._model.tensors(), "reference": self._reference}
        if self._draws is not None:
            tensors |= self._draws.tensors()
        # Draws and utility may share a tensor, which the format does not keep apart.
        own = {k: v.contiguous().clone() for k, v in tensors.items()}
        save_file(own, target / "belief.safetensors")
        radius = self._latent.radius
        text = {
            "format": _FORMAT,
            "model": self._model.name,
            "config": self._model.config(),
            "sampling": self.sampling.to_dict(),
            "radius": radius if math.isfinite(radius) else None,
            "diagnostics": self.diagnostics,
        }
        text["digest"] = _digest(text, target / "belief.safetensors")
        (target / "belief.json").write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> BeliefDensity:
        """Read what `save` wrote: the same samples and log-densities, bit for bit.

        Raises
        ------
        DensityError : the folder holds no belief, one of another format, one that was changed
            since `save` wrote it, or one of a method that is not installed.
        """
        source = _folder("load", folder)
        try:
            text = json.loads((source / "belief.json").read_text(encoding="utf-8"))
            tensors = load_file(source / "belief.safetensors")
        except (OSError, ValueError) as error:
            raise DensityError(
                f"load: {source} holds no readable belief ({error}); a belief is the two files "
                "belief.json and belief.safetensors; point at the folder that save wrote."
            ) from error
        if text.get("format") != _FORMAT:
            raise DensityError(
                f"load: {source} is of format {text.get('format')!r}; this version reads format "
                f"{_FORMAT}; fit again, or read it with the version that wrote it."
            )
        if "digest" in text and text.pop("digest") != _digest(text, source / "belief.safetensors"):
            raise DensityError(
                f"load: {source} was changed since save wrote it (its digest differs); put it back "
                "or fit again."
            )
        latent = make_latent(sampling_from_dict(text["sampling"]))
        latent.radius = math.inf if text["radius"] is None else text["radius"]
        reference = tensors.pop("reference")
        name = text["model"]
        restore = _RESTORE[name] if name in _RESTORE else external_method(name).restore
        model = restore(latent, tensors, text["config"])
        draws = UtilityDraws.from_tensors(tensors) if "draws.linear" in tensors else None
        return cls(latent, model, reference, text["diagnostics"], draws)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of("seed", seed))


def _folder(where: str, folder: object) -> Path:
    if not isinstance(folder, str | Path):
        raise DensityError(f"{where}: folder = {folder!r}; it must be a path.")
    return Path(folder)


def _digest(text: dict[str, Any], tensors: Path) -> str:
    """SHA-256 over what a belief's two files hold."""
    digest = hashlib.sha256(tensors.read_bytes())
    as_read = json.loads(json.dumps(text))  # keys are texts there
    digest.update(json.dumps(as_read, sort_keys=True).encode())
    return digest.hexdigest()


def sampling_from_dict(text: dict[str, Any]) -> SamplingDensity:
    """Read a sampling density back from its ``to_dict``."""
    fields = {k: v for k, v in text.items() if k != "kind"}
    kinds: dict[str, Callable[..., SamplingDensity]] = {
        "uniform": Uniform,
        "gaussian_mixture": GaussianMixture,
        "empirical": Empirical.from_tables,
    }
    return kinds[text["kind"]](**fields)
