"""What a belief shows of itself: figures, a table in notebooks, frames and arviz data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.stats import qmc

from llm_elicit.density.belief_draws import BeliefDraws
from llm_elicit.density.distribution import Distribution, band
from llm_elicit.density.errors import DensityError, integer, points_of, seed_of
from llm_elicit.density.feature_axis import Band, FeatureAxis, PlotData, feature_axes, words_of
from llm_elicit.density.sampling import SamplingDensity, Uniform

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import math
from html import escape

Array = npt.NDArray[np.float64]
_LEVELS = (0.05, 0.5, 0.95)
_HEADINGS = ("", "mean", "sd", "5 %", "50 %", "95 %")
_MOST_ROWS, _MOST_CATEGORIES = 40, 8
_LONGEST = 60
_RIGHT, _LEFT, _SMALL = (
    ' style="text-align:right"',
    ' style="text-align:left"',
    ' style="opacity:.75;white-space:nowrap"',
)
_NONE = "–"


def belief_html(
    axes: Sequence[FeatureAxis],
    points: Array,
    draws: BeliefDraws | bool,
    diagnostics: Mapping[str, Any],
) -> str:
    """Return the table of a belief as HTML, without scripts and without colours.

    Args:
        axes: one for each feature.
        points: (m, d) points of the belief.
        draws: those of the posterior, for 90 % bands; or whether it has some, if none were made
            yet.
        diagnostics: the report of the fit.
    """
    bands = None if isinstance(draws, bool) else _Bands.of(draws)
    rows = [_row(axis, points[:, j], j, bands) for j, axis in enumerate(axes[:_MOST_ROWS])]
    if len(axes) > _MOST_ROWS:
        rows.append(_wide("…", f"{len(axes) - _MOST_ROWS} more features"))
    head = "".join(f"<th{_RIGHT}>{heading}</th>" for heading in _HEADINGS)
    return (
        f"<div><p><b>Belief density</b>: {escape('; '.join(_facts(diagnostics)))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<p><small>{escape(' '.join(_notes(axes, draws)))}</small></p></div>"
    )


@dataclass(frozen=True)
class _Bands:
    """Draws with the ends of 90 % bands: of means (2, d) and of quantiles (2, L, d)."""

    drawn: BeliefDraws
    means: Array
    quantiles: Array

    @classmethod
    def of(cls, drawn: BeliefDraws) -> _Bands:
        return cls(drawn, np.stack(band(drawn.mean())), np.stack(band(drawn.quantile(_LEVELS))))


def _row(axis: FeatureAxis, values: Array, place: int, bands: _Bands | None) -> str:
    """Return the row of one feature, by its values (m,)."""
    if axis.categories:
        return _wide(axis.label, _shares(axis, values, place, bands))
    if axis.periodic:
        return _circle(axis, values, place, bands)
    sd = float(values.std())
    at = [float(values.mean()), *np.quantile(values, _LEVELS).tolist()]
    ends: list[Array | None] = [None] * len(at)
    if bands is not None:
        ends = [bands.means[:, place], *bands.quantiles[:, :, place].T]
    mean, *quantiles = [
        _cell(_value(value, axis, sd), _between(axis, sd, end))
        for value, end in zip(at, ends, strict=True)
    ]
    width = f"{_number(sd, axis, sd)} days" if axis.date else _number(sd, axis, sd)
    return _cells(axis.label, [mean, _cell(width), *quantiles])


def _circle(axis: FeatureAxis, values: Array, place: int, bands: _Bands | None) -> str:
    """Return the row of a periodic feature: a circle has a mean direction and no quantiles."""
    period = axis.high - axis.low + axis.whole
    turn = 2.0 * math.pi / period

    def resultant(x: Array, weights: Array | None = None) -> complex:
        return complex(np.average(np.exp(1j * turn * (x - axis.low)), weights=weights))

    def value(angle: float) -> float:
        return axis.low + (angle / turn) % period

    middle = resultant(values)
    sd = math.sqrt(max(0.0, 1.0 - abs(middle) ** 2)) / turn
    angle, end = float(np.angle(middle)), None
    if bands is not None:
        weighted = zip(bands.drawn.points, bands.drawn.weights, strict=True)
        means = np.array([resultant(x[:, place], w) for x, w in weighted])
        # Measured from the mean, a band may go over the end of the range.
        end = [value(angle + float(part)) for part in band(np.angle(means * np.exp(-1j * angle)))]
    mean = _cell(_number(value(angle), axis, sd), _between(axis, sd, end))
    return _cells(axis.label, [mean, _cell(_number(sd, axis, sd)), *[_cell(_NONE)] * len(_LEVELS)])


def _shares(axis: FeatureAxis, values: Array, place: int, bands: _Bands | None) -> str:
    """Return the shares of categories, the largest first."""
    share = axis.bars(values)
    ends = None if bands is None else np.stack(band(bands.drawn.shares(place)))
    order = np.argsort(-share, kind="stable")
    top, tail = order[:_MOST_CATEGORIES], order[_MOST_CATEGORIES:]
    parts = []
    for code in top.tolist():
        between = "" if ends is None else f" ({ends[0, code]:.0%} to {ends[1, code]:.0%})"
        parts.append(f"{_cut(axis.categories[code])} {share[code]:.0%}{between}")
    if len(tail):
        parts.append(f"{len(tail)} others {share[tail].sum():.0%}")
    return ", ".join(parts)


def _between(axis: FeatureAxis, sd: float, end: Sequence[float] | Array | None) -> str:
    return "" if end is None else " to ".join(_value(float(x), axis, sd) for x in end)


def _cell(text: str, under: str = "") -> str:
    below = f"<br><small{_SMALL}>{escape(under)}</small>" if under else ""
    return f"<td{_RIGHT}>{escape(text)}{below}</td>"


def _cells(label: str, cells: Sequence[str]) -> str:
    return f"<tr><th{_LEFT}>{escape(_cut(label))}</th>{''.join(cells)}</tr>"


def _wide(label: str, text: str) -> str:
    """Return a row with one cell."""
    return _cells(label, [f'<td{_LEFT} colspan="{len(_HEADINGS) - 1}">{escape(text)}</td>'])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _value(value: float, axis: FeatureAxis, sd: float) -> str:
    """Return a value of a feature: a number, or a date."""
    return str(np.datetime64(round(value), "D")) if axis.date else _number(value, axis, sd)


def _number(value: float, axis: FeatureAxis, sd: float) -> str:
    """Return a number with two digits of the standard deviation; on a log scale, three of its own.

    Example:
        >>> age = FeatureAxis("age", 0.0, 90.0)
        >>> _number(41.5678, age, 12.3), _number(-41567.8, age, 1234.5)
        ('42', '−41,568')
    """
    if axis.log or not 1e-6 < sd < 1e12:
        text = f"{value:,.0f}" if 100.0 <= abs(value) < 1e12 else f"{value:.3g}"
    else:
        text = f"{value:,.{max(0, 1 - math.floor(math.log10(sd)))}f}"
    return _signed(text)


def _signed(text: str) -> str:
    """Return a number with a typographic minus sign."""
    return text.replace("-", "−")


def _facts(diagnostics: Mapping[str, Any]) -> list[str]:
    """Return how the belief was made and how well it predicts, as short phrases."""
    facts = []
    if "method" in diagnostics:
        facts.append(f"method {diagnostics['method']}")
    if "n" in diagnostics:
        facts.append(f"{diagnostics['n']:,} judgments")
    held_out = diagnostics.get("held_out_log_likelihood")
    chance = diagnostics.get("coin_log_likelihood")
    if held_out is not None and chance is not None:
        facts.append(
            f"held-out log-likelihood {_signed(f'{held_out:.3f}')} per comparison "
            f"(random choices {_signed(f'{chance:.3f}')})"
        )
    if "power" in diagnostics:
        facts.append(f"power {diagnostics['power']['value']:.3g}")
    if "given" in diagnostics:
        fixed = (f"feature {number} = {value:g}" for number, value in diagnostics["given"].items())
        facts.append(f"given {', '.join(fixed)}")
    return facts


def _notes(axes: Sequence[FeatureAxis], draws: BeliefDraws | bool) -> list[str]:
    """Return what the numbers are."""
    notes = []
    if not isinstance(draws, bool):
        notes.append(f"Below each number: its 90 % band over {len(draws)} draws of the posterior.")
    elif draws:
        notes.append("For 90 % bands call draws() first; it takes seconds.")
    if any(axis.periodic for axis in axes):
        notes.append("Of a periodic feature: circular mean and standard deviation.")
    return notes


Features = int | str | Sequence[int | str] | None
_POINTS, _OF_DRAW = 100_000, 1000  # of λ, and of each draw of the posterior


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
Variables = dict[str, tuple[tuple[str, ...], Array]]
"""Dimensions and values by name, as xarray takes them."""


@dataclass(frozen=True)
class ExportedFeatures:
    """The features of a belief.

    Args:
        names, units: one for each feature; a unit may be empty.
        categories: the words of categories, by the feature's number.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    categories: Mapping[int, tuple[str, ...]]

    @property
    def numeric(self) -> list[int]:
        """The numbers of the features that have no categories."""
        return [j for j in range(len(self.names)) if j not in self.categories]

    def coordinates(self) -> dict[str, Any]:
        """Return the coordinates of the numeric features and of the categories."""
        categories = {f"{self.names[j]}_category": list(w) for j, w in self.categories.items()}
        return {
            "feature": [self.names[j] for j in self.numeric],
            "unit": ("feature", [self.units[j] for j in self.numeric]),
            **categories,
        }

    def shares(self, values: Mapping[int, Array]) -> Variables:
        """Return variables of shares (chain, draw, category), by the feature's number."""
        return {
            f"share_{self.names[j]}": (("chain", "draw", f"{self.names[j]}_category"), share)
            for j, share in values.items()
        }


def arviz_data(
    points: Array,
    drawn: BeliefDraws | None,
    features: ExportedFeatures,
    attributes: Mapping[str, Any],
) -> Any:
    """Return chains of points and the posterior's draws; see `BeliefDensity.to_arviz`.

    Args:
        points: (chain, draw, d), natural units; codes of categories count from 0.
        drawn: the posterior's draws, or None.
        features: their names, units and categories.
        attributes: of every group.

    Raises:
        DensityError: arviz is not installed.
    """
    arviz, xarray = _imported("arviz"), _imported("xarray")
    variables = {"posterior": _points(points, features)}
    if drawn is not None:
        variables["beliefs"] = _posterior_draws(drawn, features)
    coordinates = features.coordinates()
    stated = {**attributes, **_origin()}
    groups = {
        name: xarray.Dataset(data, {**coordinates, **_indices(data)}, stated)
        for name, data in variables.items()
    }
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def _points(points: Array, features: ExportedFeatures) -> Variables:
    """Return the points, categories one-hot."""
    one_hot = {
        j: (points[..., j, None] == np.arange(len(words))).astype(float)
        for j, words in features.categories.items()
    }
    numeric = {"x": (("chain", "draw", "feature"), points[..., features.numeric])}
    return (numeric if features.numeric else {}) | features.shares(one_hot)


def _posterior_draws(drawn: BeliefDraws, features: ExportedFeatures) -> Variables:
    """Return the means, quantiles and shares of the posterior's draws, as one chain."""
    means, quantiles = drawn.mean()[None], drawn.quantile(LEVELS)[None]
    numeric = {
        "mean": (("chain", "draw", "feature"), means[..., features.numeric]),
        "quantile": (("chain", "draw", "level", "feature"), quantiles[..., features.numeric]),
    }
    shares = features.shares({j: drawn.shares(j)[None] for j in features.categories})
    return (numeric if features.numeric else {}) | shares


def _indices(variables: Variables) -> dict[str, Any]:
    """Return the coordinates of the chains, the draws and, if there are any, the levels."""
    chains, draws = next(iter(variables.values()))[1].shape[:2]
    coordinates: dict[str, Any] = {"chain": np.arange(chains), "draw": np.arange(draws)}
    if any("level" in dimensions for dimensions, _ in variables.values()):
        coordinates["level"] = list(LEVELS)
    return coordinates


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise DensityError(
            f"to_arviz: {error.name} is not installed; run: pip install 'llm-elicit[arviz]'"
        ) from None


def _origin() -> dict[str, str]:
    """Return this package's name and version, under arviz's names."""
    try:
        version = metadata.version("llm-elicit")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {"creation_library": "llm_elicit", "creation_library_version": version}


class PresentedDensity(Distribution, ABC):
    """A density with figures and tables; `diagnostics` reports its fit."""

    diagnostics: dict[str, Any]
    _cached: Mapping[int, BeliefDraws] = MappingProxyType({})  # draws that were asked for, by seed

    @property
    @abstractmethod
    def has_draws(self) -> bool:
        """Whether `draws` are available."""

    @abstractmethod
    def draws(self, *, seed: int = 0) -> BeliefDraws:
        """Return equally likely densities, for credible bands."""

    def plot(
        self,
        features: Features = None,
        *,
        data: Any = None,
        bands: bool = True,
        n: int = 10_000,
        seed: int = 0,
    ) -> Figure:
        """Draw a corner plot: a panel for every pair of features, marginals on the diagonal.

        Lines are around the highest-density regions with 50 and 90 % of the belief; a panel says
        "flat" where the belief and λ cannot be told apart. Axes have the features' scales and show
        the central 99.8 % of the belief, and of the data if there are any.

        Args:
            features: numbers or names of those that are shown, in this order; all by default.
            data: points (m, d) that are drawn beside the belief, in grey: an array with all
                features, or a data frame with those shown.
            bands: whether marginals have 90 % bands, if the belief has `draws`. The first time
                these take seconds.
            n, seed: number and seed of the points that the figure is made from.

        Returns:
            A `matplotlib.figure.Figure`, without pyplot's state: notebooks show it, and ``savefig``
            writes it.

        Raises:
            DensityError: an unknown feature, points that cannot be used, or Matplotlib is missing.

        Example:
            >>> import numpy as np
            >>> from llm_elicit.density import Uniform, fit_belief
            >>> a, b = np.random.default_rng(0).uniform(-3, 3, (2, 40, 2))
            >>> nearer = (abs(a) < abs(b)).all(1, keepdims=True)
            >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
            ...                     sampling=Uniform([-3.0, -3.0], [3.0, 3.0]), method="utility")
            >>> len(belief.named(["age", "income"]).plot(bands=False).axes)
            3
        """
        plot = self._shown("plot", features, data, bands=bands, n=n, seed=seed)
        figure: Figure = _figures("plot").corner_figure(plot)
        return figure

    def plot_marginals(
        self,
        features: Features = None,
        *,
        data: Any = None,
        bands: bool = True,
        n: int = 10_000,
        seed: int = 0,
    ) -> Figure:
        """Draw the density of every feature, or the shares of its values; arguments as in `plot`.

        Raises:
            DensityError: as `plot`.
        """
        plot = self._shown("plot_marginals", features, data, bands=bands, n=n, seed=seed)
        figure: Figure = _figures("plot_marginals").marginals_figure(plot)
        return figure

    def _shown(
        self, label: str, features: Features, data: Any, *, bands: bool, n: int, seed: int
    ) -> PlotData:
        """Return what a figure of some features shows."""
        places = self._features.places(label, features)
        integer(f"{label}: n", n, least=1)
        seed_of(f"{label}: seed", seed)
        points = None if data is None else self._data(label, data, places)
        belief = self.sample(n, seed=seed)[:, places]
        sampling = _points_of(self.sampling, seed)[:, places]
        limits = [belief] if points is None else [belief, points]
        axes = feature_axes(self.sampling, self._features, places, limits)
        if not bands or not self.has_draws:
            return PlotData(axes, belief, sampling, points)
        drawn = self.draws()
        bounds = [_band(axis, drawn, place) for axis, place in zip(axes, places, strict=True)]
        return PlotData(axes, belief, sampling, points, bounds, drawn.sample(_OF_DRAW)[..., places])

    def _data(self, label: str, data: Any, places: list[int]) -> Array:
        """Return points (m, k) of k features."""
        name = f"{label}: data"
        selected = self._features.only(places).points(name, data)
        if selected is data:
            return points_of(name, data, self.dimension)[:, places]
        return points_of(name, selected, len(places))

    def _repr_html_(self) -> str:
        """Return a table of the features, which notebooks show."""
        places = list(range(self.dimension))
        axes = feature_axes(self.sampling, self._features, places, [self._kept])
        draws = self.draws() if 0 in self._cached else self.has_draws
        return belief_html(axes, self._kept, draws, self.diagnostics)

    def to_pandas(
        self, n: int = 10_000, *, seed: int = 0, points: npt.ArrayLike | None = None
    ) -> Any:
        """Return n draws as a `pandas.DataFrame`, codes as their words and days as dates.

        Args:
            points: (n, d), such as pairs of `llm_elicit.density.suggest_pairs`, in place of draws.

        Example:
            >>> import numpy as np
            >>> from llm_elicit.density import Uniform, fit_belief
            >>> a, b = np.random.default_rng(0).uniform(-3, 3, (2, 40, 1))
            >>> nearer = abs(a - 1) < abs(b - 1)
            >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
            ...                     sampling=Uniform([-3.0], [3.0]))
            >>> belief.named(["age"]).to_pandas(5).columns.to_list()
            ['age']
        """
        # Not imported above: the core works without pandas.
        pandas = import_module("pandas")
        drawn = self.sample(n, seed=seed) if points is None else self.inside("points", points)
        return pandas.DataFrame(self._features.columns(drawn))

    def _attributes(self, seed: int) -> dict[str, Any]:
        """Return the origin of the belief."""
        noise = self.diagnostics["noise"]
        return {
            "method": self.diagnostics["method"],
            "noise_family": noise["family"],
            "noise_level": noise["level"],
            "effective_share": self.diagnostics["sampler"]["effective_share"],
            "seed": seed,
        }

    def _exported(self, units: Sequence[str] | None) -> ExportedFeatures:
        """Return the features as they are exported."""
        if units is not None and len(units) != self.dimension:
            raise DensityError(
                f"to_arviz: {len(units)} units for {self.dimension} features; give one each."
            )
        places = range(self.dimension)
        words = {j: words_of(self.sampling, self._features, j) for j in places}
        return ExportedFeatures(
            self.feature_names,
            tuple(units or [""] * self.dimension),
            {j: w for j, w in words.items() if w},
        )

    def to_arviz(
        self,
        *,
        chains: int = 4,
        draws: int = 1000,
        seed: int = 0,
        units: Sequence[str] | None = None,
    ) -> Any:
        """Return arviz data, for `az.summary`, `az.plot_forest` and other functions.

        There are two groups, whose variables begin with the dimensions chain and draw:

        * ``posterior``: ``x`` (chain, draw, feature), points of the belief, natural units. Each
          chain is sampled separately, so r_hat shows whether the sampler finds the same belief
          every time. The points of a chain are in no particular order, so arviz's effective sample
          sizes treat them as independent; the attribute ``effective_share`` is the share that they
          are worth.
        * ``beliefs``: the `draws` of the posterior, in one chain: the ``mean`` (chain, draw,
          feature) and ``quantile`` (chain, draw, level, feature) of each. An interval of a mean is
          its uncertainty given the answers. Omitted if the belief has no draws.

        These variables have the numeric features. A categorical feature NAME is the variable
        ``share_NAME`` (chain, draw, category) in both groups: one-hot categories of the points,
        whose mean is the share of each category, and the shares of each posterior draw.

        The coordinate ``unit`` belongs to ``feature``. The attributes hold the method, the noise,
        the seed and the version of this package.

        Args:
            chains, draws: number of chains of points, and of points in each.
            seed: of the points and of the posterior draws.
            units: one for each feature.

        Returns:
            `arviz.InferenceData`, or `xarray.DataTree` for arviz 1.0 and later.

        Raises:
            DensityError: arviz is not installed, there is not at least one chain and one point, or
                not one unit for each feature.

        References:
            Kumar, Carroll, Hartikainen and Martin (2019). ArviZ, a unified library for exploratory
            analysis of Bayesian models in Python. *Journal of Open Source Software* 4(33).
        """
        integer("to_arviz: chains", chains, least=1)
        integer("to_arviz: draws", draws, least=1)
        seed_of("to_arviz: seed", seed)
        features = self._exported(units)
        seeds = np.random.SeedSequence(seed).generate_state(chains)
        points = np.stack([self.sample(draws, seed=int(s)) for s in seeds])
        for j in features.categories:
            points[..., j] -= self.as_prior().support()[0][j]
        drawn = self.draws(seed=seed) if self.has_draws else None
        return arviz_data(points, drawn, features, self._attributes(seed))


def _band(axis: FeatureAxis, drawn: BeliefDraws, place: int) -> Band:
    """Return the 90 % band of one feature's density."""
    weighted = zip(drawn.points, drawn.weights, strict=True)
    low, high = band(np.stack([axis.line(x[:, place], w) for x, w in weighted]))
    return Band(axis.centres, low, high)


def _points_of(sampling: SamplingDensity, seed: int) -> Array:
    """Return points of λ, if possible with exact marginals: lines without noise."""
    rng = np.random.default_rng(seed)
    if isinstance(sampling, Uniform) and not sampling.constraints:
        return sampling.from_cube(qmc.LatinHypercube(sampling.dimension, rng=rng).random(_POINTS))
    return sampling.sample(_POINTS, rng)


def _figures(label: str) -> Any:
    """Return the module that draws, which needs Matplotlib."""
    try:
        return import_module("llm_elicit.density.plots.figures")
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise DensityError(
            f"{label}: {missing} is not installed; run: pip install {missing}"
        ) from None
