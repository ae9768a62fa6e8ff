"""A belief with draws of its posterior, as others see it: figures, notebooks, frames, arviz."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.stats import qmc

from llm_elicit.density import feature_axis
from llm_elicit.density.belief_draws import BeliefDraws, make_draws
from llm_elicit.density.distribution import Distribution, band
from llm_elicit.density.errors import (
    Array,
    DensityError,
    check_callback,
    check_integer,
    check_points,
    check_seed,
)
from llm_elicit.density.feature_axis import FeatureAxis
from llm_elicit.density.methods import PotentialDensity, fit_warnings
from llm_elicit.density.sampling import Uniform
from llm_elicit.density.settings import AnnealingSettings, Progress
from llm_elicit.density.torch_utils import make_generator, one_thread
from llm_elicit.density.utility_function import Utility, UtilityDraws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Features = int | str | Sequence[int | str] | None
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_POINTS, _POINTS_PER_DRAW = 100_000, 1000  # of λ, and of each draw of the posterior
_FIGURES, _EXPORTERS = "llm_elicit.density.plots", ("arviz", "xarray")
_QUANTILES = (0.05, 0.5, 0.95)
_HEADINGS = ("", "mean", "sd", "5 %", "50 %", "95 %")
_MAX_ROWS, _MAX_CATEGORIES = 40, 8
_MAX_LETTERS = 60
_RIGHT, _LEFT, _SMALL = (
    ' style="text-align:right"',
    ' style="text-align:left"',
    ' style="opacity:.75;white-space:nowrap"',
)


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
    drawn, notes, bands = None if isinstance(draws, bool) else draws, [], None
    if drawn is not None:
        notes = [f"Below each number: its 90 % band over {len(drawn)} draws of the posterior."]
        numbers = np.concatenate([drawn.mean()[:, None], drawn.quantile(_QUANTILES)], axis=1)
        bands = np.stack(band(numbers))  # (2, 1 + L, d)
    elif draws:
        notes = ["For 90 % bands call draws() first; it takes seconds."]
    notes += [f"{line[0].upper()}{line[1:]}." for line in fit_warnings(diagnostics)]
    if any(axis.periodic for axis in axes):
        notes.append("Of a periodic feature: circular mean and standard deviation.")
    rows = ""
    for j, axis in enumerate(axes[:_MAX_ROWS]):
        if axis.categories:
            rows += _html_row(axis.label, _format_shares(axis, points[:, j], drawn, j))
        elif axis.periodic:
            rows += _html_row(axis.label, _periodic_cells(axis, points[:, j], drawn, j))
        else:
            ends = None if bands is None else bands[..., j].T
            rows += _html_row(axis.label, _number_cells(axis, points[:, j], ends))
    if len(axes) > _MAX_ROWS:
        rows += _html_row("…", f"{len(axes) - _MAX_ROWS} more features")
    head = "".join(f"<th{_RIGHT}>{heading}</th>" for heading in _HEADINGS)
    return (
        f"<div><p><b>Belief density</b>: {escape('; '.join(_summarize_fit(diagnostics)))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p><small>{escape(' '.join(notes))}</small></p></div>"
    )


def _html_row(label: str, cells: str | list[tuple[str, str]]) -> str:
    """Return a row: a text across all columns, or for each a text with its band."""
    row = f"<tr><th{_LEFT}>{escape(feature_axis.truncate(label, _MAX_LETTERS))}</th>"
    if isinstance(cells, str):
        return row + f'<td{_LEFT} colspan="{len(_HEADINGS) - 1}">{escape(cells)}</td></tr>'
    for text, ends in cells:
        below = f"<br><small{_SMALL}>{escape(ends)}</small>" if ends else ""
        row += f"<td{_RIGHT}>{escape(text)}{below}</td>"
    return row + "</tr>"


def _number_cells(axis: FeatureAxis, values: Array, ends: Array | None) -> list[tuple[str, str]]:
    """Return mean, standard deviation and quantiles of values (m,), with bands (1 + L, 2)."""
    sd = float(values.std())
    at = [float(values.mean()), *np.quantile(values, _QUANTILES).tolist()]
    bands = [""] * len(at)
    if ends is not None:
        bands = [" to ".join(_format_value(axis, float(end), sd) for end in pair) for pair in ends]
    mean, *quantiles = zip((_format_value(axis, value, sd) for value in at), bands, strict=True)
    width = f"{_format_number(axis, sd, sd)} days" if axis.date else _format_number(axis, sd, sd)
    return [mean, (width, ""), *quantiles]


def _periodic_cells(
    axis: FeatureAxis, values: Array, drawn: BeliefDraws | None, place: int
) -> list[tuple[str, str]]:
    """Return a periodic feature's mean direction and spread; a circle has no quantiles."""
    period = axis.high - axis.low + axis.whole
    turn, ends = 2.0 * math.pi / period, ""

    def text(angle: float) -> str:
        return _format_number(axis, axis.low + (angle / turn) % period, sd)

    middle = complex(np.exp(1j * turn * (values - axis.low)).mean())
    sd, angle = math.sqrt(max(0.0, 1.0 - abs(middle) ** 2)) / turn, float(np.angle(middle))
    if drawn is not None:
        weighted = zip(drawn.points, drawn.weights, strict=True)
        means = np.array([w @ np.exp(1j * turn * (x[:, place] - axis.low)) for x, w in weighted])
        # Measured from the mean, a band may go over the end of the range.
        around = band(np.angle(means * np.exp(-1j * angle)))
        ends = " to ".join(text(angle + float(end)) for end in around)
    return [(text(angle), ends), (_format_number(axis, sd, sd), ""), *[("–", "")] * len(_QUANTILES)]


def _format_shares(axis: FeatureAxis, values: Array, drawn: BeliefDraws | None, place: int) -> str:
    """Return the shares of categories, the largest first."""
    share = axis.data_histogram(values)
    ends = None if drawn is None else np.stack(band(drawn.shares(place)))
    order = np.argsort(-share, kind="stable")
    top, tail = order[:_MAX_CATEGORIES], order[_MAX_CATEGORIES:]
    parts = []
    for code in top.tolist():
        between = "" if ends is None else f" ({ends[0, code]:.0%} to {ends[1, code]:.0%})"
        category = feature_axis.truncate(axis.categories[code], _MAX_LETTERS)
        parts.append(f"{category} {share[code]:.0%}{between}")
    if len(tail):
        parts.append(f"{len(tail)} others {share[tail].sum():.0%}")
    return ", ".join(parts)


def _format_value(axis: FeatureAxis, value: float, sd: float) -> str:
    """Return a value of a feature: a number, or a date."""
    return str(np.datetime64(round(value), "D")) if axis.date else _format_number(axis, value, sd)


def _format_number(axis: FeatureAxis, value: float, sd: float) -> str:
    """Return a number with two digits of the standard deviation; on a log scale, three of its own.

    Examples:
        >>> age = FeatureAxis("age", 0.0, 90.0)
        >>> _format_number(age, 41.5678, 12.3), _format_number(age, -41567.8, 1234.5)
        ('42', '−41,568')
    """
    if axis.log or not 1e-6 < sd < 1e12:
        text = f"{value:,.0f}" if 100.0 <= abs(value) < 1e12 else f"{value:.3g}"
    else:
        text = f"{value:,.{max(0, 1 - math.floor(math.log10(sd)))}f}"
    return text.replace("-", "−")


def _summarize_fit(diagnostics: Mapping[str, Any]) -> list[str]:
    """Return how the belief was made and how well it predicts, as short phrases."""
    facts, held_out = [], diagnostics.get("held_out_log_likelihood")
    if "method" in diagnostics:
        facts.append(f"method {diagnostics['method']}")
    if "n" in diagnostics:
        facts.append(f"{diagnostics['n']:,} judgments")
    if held_out is not None:
        scores = f"{held_out:.3f} per comparison (random choices {math.log(0.5):.3f})"
        facts.append(f"held-out log-likelihood {scores.replace('-', '−')}")
    explained = (diagnostics.get("response") or {}).get("held_out_r2")
    if explained is not None:
        facts.append(f"held-out R² {f'{explained:.2f}'.replace('-', '−')}")
    if "power" in diagnostics:
        facts.append(f"power {diagnostics['power']['value']:.3g}")
    if "given" in diagnostics:
        fixed = (f"feature {number} = {value:g}" for number, value in diagnostics["given"].items())
        facts.append(f"given {', '.join(fixed)}")
    return facts


class DensityWithPosterior(Distribution):
    """A density with draws of its posterior, and with figures and tables."""

    @cached_property
    def _draws_by_seed(self) -> dict[int, BeliefDraws]:
        """Draws that were asked for, by seed."""
        return {}

    @property
    def has_draws(self) -> bool:
        """Whether `draws` are available."""
        return self._draws is not None and len(self._draws) > 0

    def draws(
        self, *, seed: int = 0, log_level_sd: float | None = None, progress: Progress | None = None
    ) -> BeliefDraws:
        """Return beliefs that agree with the same choices, equally likely: for credible bands.

        They are draws of the posterior over utilities at the noise level that the fit assumed (see
        `llm_elicit.density.utility.posterior`). They take seconds, and are equal for equal seeds.
        Those of seed 0 and of the last other seed are kept, at the default level.

        Args:
            seed: seed of the draws.
            log_level_sd: standard deviation of the logarithm of the noise level. Each draw gets a
                level of its own, log-normal about the assumed one. Choices do not determine the
                level (see `at_noise`), so that this prior is the posterior. The default is that of
                the `Power` by which the belief was `tempered`, or else 0.
            progress: called as progress("draws", done, total).

        Raises:
            DensityError: ``log_level_sd`` is negative, or the belief has no draws, because of its
                method or because it was fitted with ``PosteriorSettings(draws=0)``.
        """
        by_default = log_level_sd is None
        check_callback("draws: progress", progress)
        generator = make_generator(seed)
        if by_default and seed in self._draws_by_seed and progress is None:
            return replace(self._draws_by_seed[seed], _feature_names=self._features)
        if log_level_sd is None:
            log_level_sd = float(self.diagnostics.get("power", {}).get("log_sd", 0.0))
        belief = PotentialDensity(self._latent, Utility.flat(1), AnnealingSettings())
        if isinstance(self._model, PotentialDensity):
            belief = self._model
        utilities = self.utility_draws()
        with one_thread():
            draws = make_draws(belief, utilities, generator, progress, log_level_sd)
        if by_default:
            # Of seed 0 for figures; of another for who asks for the same again, as an audit does.
            self._draws_by_seed = {k: v for k, v in self._draws_by_seed.items() if k == 0} | {
                seed: draws
            }
        return replace(draws, _feature_names=self._features)

    def utility_draws(self) -> UtilityDraws:
        """Return draws of the posterior over utilities, for use in the core."""
        if self._draws is None or not len(self._draws):
            raise DensityError(
                f"draws: this belief ({self._model.name}) was fitted without draws of the "
                'posterior; fit it by "auto" or "utility", with PosteriorSettings(draws=64).'
            )
        return self._draws.get()

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
            n: number of points that the figure is made from.
            seed: seed of these points.

        Returns:
            A `matplotlib.figure.Figure`, without pyplot's state: notebooks show it, and ``savefig``
            writes it.

        Raises:
            DensityError: an unknown feature, points that cannot be used, or Matplotlib is missing.

        Examples:
            >>> import numpy as np
            >>> from llm_elicit.density import Uniform, fit_belief
            >>> a, b = np.random.default_rng(0).uniform(-3, 3, (2, 40, 2))
            >>> nearer = (abs(a) < abs(b)).all(1, keepdims=True)
            >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
            ...                     sampling=Uniform([-3.0, -3.0], [3.0, 3.0]), method="utility")
            >>> len(belief.named(["age", "income"]).plot(bands=False).axes)
            3
        """
        plot = self._plot_data("plot", features, data, bands=bands, n=n, seed=seed)
        figure: Figure = _import_optional("plot", _FIGURES).corner_figure(plot)
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
        plot = self._plot_data("plot_marginals", features, data, bands=bands, n=n, seed=seed)
        figure: Figure = _import_optional("plot_marginals", _FIGURES).marginals_figure(plot)
        return figure

    def _plot_data(
        self, label: str, features: Features, data: Any, *, bands: bool, n: int, seed: int
    ) -> feature_axis.PlotData:
        """Return what a figure of some features shows."""
        places = self._features.indices(label, features)
        check_integer(f"{label}: n", n, minimum=1)
        check_seed(f"{label}: seed", seed)
        points = None
        if data is not None:
            name = f"{label}: data"
            selected = self._features.select(places).to_array(name, data)
            own = selected is data  # an array with all features
            points = check_points(name, selected, self.dimension if own else len(places))
            points = points[:, places] if own else points
        belief, law = self.sample(n, seed=seed)[:, places], self.sampling
        rng = np.random.default_rng(seed)
        if isinstance(law, Uniform) and not law.constraints:
            # Exact marginals: lines without noise.
            sampling = law.from_cube(qmc.LatinHypercube(law.dimension, rng=rng).random(_POINTS))
        else:
            sampling = law.sample(_POINTS, rng)
        sampling = sampling[:, places]
        limits = [belief] if points is None else [belief, points]
        axes = feature_axis.feature_axes(self.sampling, self._features, places, limits)
        if not bands or not self.has_draws:
            return feature_axis.PlotData(axes, belief, sampling, points)
        drawn = self.draws()
        weighted, bounds = list(zip(drawn.points, drawn.weights, strict=True)), []
        for axis, place in zip(axes, places, strict=True):
            lines = np.stack([axis.density_line(x[:, place], w) for x, w in weighted])
            bounds.append(feature_axis.Band(axis.centres, *band(lines)))
        return feature_axis.PlotData(
            axes, belief, sampling, points, bounds, drawn.sample(_POINTS_PER_DRAW)[..., places]
        )

    def _repr_html_(self) -> str:
        """Return a table of the features, which notebooks show."""
        places, points = list(range(self.dimension)), self._reference_points
        axes = feature_axis.feature_axes(self.sampling, self._features, places, [points])
        draws = self.draws() if 0 in self._draws_by_seed else self.has_draws
        return belief_html(axes, points, draws, self.diagnostics)

    def to_pandas(
        self, n: int = 10_000, *, seed: int = 0, points: npt.ArrayLike | None = None
    ) -> Any:
        """Return n points of the belief as a `pandas.DataFrame`, with categories and dates.

        Args:
            n: number of points.
            seed: seed of the points.
            points: (n, d), such as pairs of `llm_elicit.density.suggest_pairs`, instead of points
                of the belief.

        Examples:
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
        drawn = self.sample(n, seed=seed) if points is None else self.check_inside("points", points)
        return pandas.DataFrame(self._features.to_columns(drawn))

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
            chains: number of chains of points.
            draws: number of points in each chain.
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
        check_integer("to_arviz: chains", chains, minimum=1)
        check_integer("to_arviz: draws", draws, minimum=1)
        check_seed("to_arviz: seed", seed)
        if units is not None and len(units) != self.dimension:
            raise DensityError(
                f"to_arviz: {len(units)} units for {self.dimension} features; give one unit for "
                "each."
            )
        arviz, xarray = (
            _import_optional("to_arviz", name, "'llm-elicit[arviz]'") for name in _EXPORTERS
        )
        try:
            version = metadata.version("llm-elicit")
        except metadata.PackageNotFoundError:
            version = "unknown"
        names, low = self.feature_names, self.as_prior().support()[0]
        every = (
            feature_axis.category_names(self.sampling, self._features, j)
            for j in range(self.dimension)
        )
        words = {j: codes for j, codes in enumerate(every) if codes}
        numeric = [j for j in range(self.dimension) if j not in words]
        facts = self.diagnostics
        attributes = {
            "method": facts["method"],
            "noise_family": facts["noise"]["family"],
            "noise_level": facts["noise"]["level"],
            "effective_share": facts["sampler"]["effective_share"],
            "seed": seed,
            "creation_library": "llm_elicit",
            "creation_library_version": version,
        }

        def dataset(numbers: Mapping[str, Array], shares: Mapping[int, Array]) -> Any:
            """Return values (chain, draw, ..., feature), and shares (chain, draw, category)."""
            data: dict[str, tuple[tuple[str, ...], Array]] = {}
            for name, values in numbers.items() if numeric else ():
                axes = ("level", "feature") if values.ndim == 4 else ("feature",)
                data[name] = (("chain", "draw", *axes), values[..., numeric])
            for j, share in shares.items():
                data[f"share_{names[j]}"] = (("chain", "draw", f"{names[j]}_category"), share)
            size = next(iter(data.values()))[1].shape
            coordinates: dict[str, Any] = {
                "feature": [names[j] for j in numeric],
                "unit": ("feature", [units[j] if units else "" for j in numeric]),
                **{f"{names[j]}_category": list(codes) for j, codes in words.items()},
                "chain": np.arange(size[0]),
                "draw": np.arange(size[1]),
            }
            levels = {"level": list(LEVELS)} if "quantile" in data else {}
            return xarray.Dataset(data, coordinates | levels, attributes)

        seeds = np.random.SeedSequence(seed).generate_state(chains)
        points = np.stack([self.sample(draws, seed=int(s)) for s in seeds])
        one_hot = {
            j: (points[..., j, None] - low[j] == np.arange(len(codes))).astype(float)
            for j, codes in words.items()
        }
        groups = {"posterior": dataset({"x": points}, one_hot)}
        if self.has_draws:
            drawn = self.draws(seed=seed)
            summaries = {"mean": drawn.mean()[None], "quantile": drawn.quantile(LEVELS)[None]}
            groups["beliefs"] = dataset(summaries, {j: drawn.shares(j)[None] for j in words})
        if arviz.__version__.startswith("0."):
            return arviz.InferenceData(**groups)
        return xarray.DataTree.from_dict(groups)


def _import_optional(label: str, name: str, package: str = "") -> Any:
    """Return a module of, or one that needs, a package that may be missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise DensityError(
            f"{label}: {missing} is not installed; run: pip install {package or missing}"
        ) from None
