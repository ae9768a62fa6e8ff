"""Posterior draws, figures, tables and exports of a belief."""

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

from llm_elicit.density import errors, feature_axis
from llm_elicit.density.belief_draws import BeliefDraws, make_draws
from llm_elicit.density.distribution import LEVELS, Distribution, band
from llm_elicit.density.errors import Array, DensityError
from llm_elicit.density.feature_axis import FeatureAxis
from llm_elicit.density.methods import PotentialDensity, fit_warnings
from llm_elicit.density.sampling import Uniform
from llm_elicit.density.settings import AnnealingSettings, Progress
from llm_elicit.density.torch_utils import make_generator, one_thread
from llm_elicit.density.utility_function import Utility, UtilityDraws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Features = int | str | Sequence[int | str] | None
_POINTS, _POINTS_PER_DRAW = 100_000, 1000  # of λ, and of each draw of the posterior
_FIGURES, _EXPORTERS = "llm_elicit.density.plots", ("arviz", "xarray")
_QUANTILES = (0.05, 0.5, 0.95)
_HEADINGS = ("", "mean", "sd", "5 %", "50 %", "95 %")
_MAX_ROWS, _MAX_CATEGORIES = 40, 8
_MAX_LETTERS = 60
_RIGHT, _LEFT = ' style="text-align:right"', ' style="text-align:left"'
_SMALL = ' style="opacity:.75;white-space:nowrap"'


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
    posterior_draws, notes, bands = None if isinstance(draws, bool) else draws, [], None
    if posterior_draws is not None:
        notes = [
            f"Below each number: its 90 % band over {len(posterior_draws)} draws of the posterior."
        ]
        means, quantiles_of_draws = posterior_draws.mean(), posterior_draws.quantile(_QUANTILES)
        summaries = np.concatenate([means[:, None], quantiles_of_draws], axis=1)
        bands = np.stack(band(summaries))  # (2, 1 + L, d)
    elif draws:
        notes = ["For 90 % bands call draws() first; it takes seconds."]
    notes += [f"{line[0].upper()}{line[1:]}." for line in fit_warnings(diagnostics)]
    if any(axis.periodic for axis in axes):
        notes.append("For periodic features: circular mean and standard deviation.")
    rows = ""
    for j, axis in enumerate(axes[:_MAX_ROWS]):
        if axis.categories:
            rows += _html_row(axis.label, _format_shares(axis, points[:, j], posterior_draws, j))
        elif axis.periodic:
            rows += _html_row(axis.label, _periodic_cells(axis, points[:, j], posterior_draws, j))
        else:
            sd = float(points[:, j].std())
            numbers = [float(points[:, j].mean()), *np.quantile(points[:, j], _QUANTILES).tolist()]
            texts = [_format_value(axis, number, sd) for number in numbers]
            band_texts = [""] * len(texts)
            if bands is not None:
                band_texts = [
                    " to ".join(_format_value(axis, float(end), sd) for end in ends)
                    for ends in bands[..., j].T
                ]
            mean, *quantiles = zip(texts, band_texts, strict=True)
            width = _format_number(axis, sd, sd) + (" days" if axis.date else "")
            rows += _html_row(axis.label, [mean, (width, ""), *quantiles])
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
    for text, band_text in cells:
        band_html = f"<br><small{_SMALL}>{escape(band_text)}</small>" if band_text else ""
        row += f"<td{_RIGHT}>{escape(text)}{band_html}</td>"
    return row + "</tr>"


def _periodic_cells(
    axis: FeatureAxis, values: Array, posterior_draws: BeliefDraws | None, index: int
) -> list[tuple[str, str]]:
    """Return a periodic feature's mean direction and spread; a circle has no quantiles."""
    period = axis.high - axis.low + axis.whole
    radians_per_unit, band_text = 2.0 * math.pi / period, ""

    def text(angle: float) -> str:
        return _format_number(axis, axis.low + (angle / radians_per_unit) % period, sd)

    resultant = complex(np.exp(1j * radians_per_unit * (values - axis.low)).mean())
    sd = math.sqrt(max(0.0, 1.0 - abs(resultant) ** 2)) / radians_per_unit
    angle = float(np.angle(resultant))
    if posterior_draws is not None:
        points_and_weights = zip(posterior_draws.points, posterior_draws.weights, strict=True)
        resultants = [
            weights @ np.exp(1j * radians_per_unit * (points[:, index] - axis.low))
            for points, weights in points_and_weights
        ]
        # Measured from the mean, a band may go over the end of the range.
        band_angles = band(np.angle(np.array(resultants) * np.exp(-1j * angle)))
        band_text = " to ".join(text(angle + float(end)) for end in band_angles)
    width = _format_number(axis, sd, sd)
    return [(text(angle), band_text), (width, ""), *[("–", "")] * len(_QUANTILES)]


def _format_shares(
    axis: FeatureAxis, values: Array, posterior_draws: BeliefDraws | None, index: int
) -> str:
    """Return the shares of categories, the largest first."""
    share = axis.data_histogram(values)
    bands = None if posterior_draws is None else band(posterior_draws.shares(index))
    order = np.argsort(-share, kind="stable")
    largest, others = order[:_MAX_CATEGORIES], order[_MAX_CATEGORIES:]
    parts = []
    for code in largest.tolist():
        band_text = "" if bands is None else f" ({bands[0][code]:.0%} to {bands[1][code]:.0%})"
        category = feature_axis.truncate(axis.categories[code], _MAX_LETTERS)
        parts.append(f"{category} {share[code]:.0%}{band_text}")
    if len(others):
        parts.append(f"{len(others)} others {share[others].sum():.0%}")
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


class BeliefPresentation(Distribution):
    """What a `BeliefDensity` shows of itself: draws of its posterior, figures and tables."""

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
        """Return posterior draws of the belief, for credible bands.

        Each is a belief density that agrees with the answers, at the noise level that the fit
        assumed; see `llm_elicit.density.utility.posterior`. Drawing takes seconds. Equal seeds give
        equal draws; those of seed 0 and of the last other seed are cached.

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
        is_default_level = log_level_sd is None
        errors.check_callback("draws: progress", progress)
        generator = make_generator(seed)
        if is_default_level and seed in self._draws_by_seed and progress is None:
            return replace(self._draws_by_seed[seed], _feature_names=self._features)
        if log_level_sd is None:
            log_level_sd = float(self.diagnostics.get("power", {}).get("log_sd", 0.0))
        belief = PotentialDensity(self._latent, Utility.flat(1), AnnealingSettings())
        if isinstance(self._model, PotentialDensity):
            belief = self._model
        utilities = self.utility_draws()
        with one_thread():
            draws = make_draws(belief, utilities, generator, progress, log_level_sd)
        if is_default_level:
            # Figures use seed 0; an audit asks for the draws of another seed several times.
            of_seed_0 = {k: v for k, v in self._draws_by_seed.items() if k == 0}
            self._draws_by_seed = of_seed_0 | {seed: draws}
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
        """Return the data of a figure of some features."""
        indices = self._features.indices(label, features)
        errors.check_integer(f"{label}: n", n, minimum=1)
        errors.check_seed(f"{label}: seed", seed)
        points = None
        if data is not None:
            name = f"{label}: data"
            selected = self._features.select(indices).to_array(name, data)
            has_all_features = selected is data  # an array with all features
            dimension = self.dimension if has_all_features else len(indices)
            points = errors.check_points(name, selected, dimension)
            points = points[:, indices] if has_all_features else points
        belief, sampling_density = self.sample(n, seed=seed)[:, indices], self.sampling
        rng = np.random.default_rng(seed)
        if isinstance(sampling_density, Uniform) and not sampling_density.constraints:
            # Exact marginals: lines without noise.
            cube = qmc.LatinHypercube(sampling_density.dimension, rng=rng).random(_POINTS)
            sampling = sampling_density.from_cube(cube)
        else:
            sampling = sampling_density.sample(_POINTS, rng)
        sampling = sampling[:, indices]
        limits = [belief] if points is None else [belief, points]
        axes = feature_axis.feature_axes(self.sampling, self._features, indices, limits)
        if not bands or not self.has_draws:
            return feature_axis.PlotData(axes, belief, sampling, points)
        posterior_draws = self.draws()
        points_and_weights = list(zip(posterior_draws.points, posterior_draws.weights, strict=True))
        bands_of_features = []
        for axis, index in zip(axes, indices, strict=True):
            lines = np.stack([axis.density_line(x[:, index], w) for x, w in points_and_weights])
            bands_of_features.append(feature_axis.Band(axis.centres, *band(lines)))
        draws = posterior_draws.sample(_POINTS_PER_DRAW)[..., indices]
        return feature_axis.PlotData(axes, belief, sampling, points, bands_of_features, draws)

    def _repr_html_(self) -> str:
        """Return a table of the features, which notebooks show."""
        indices, points = list(range(self.dimension)), self._reference_points
        axes = feature_axis.feature_axes(self.sampling, self._features, indices, [points])
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
        rows = self.sample(n, seed=seed) if points is None else self.check_inside("points", points)
        return pandas.DataFrame(self._features.to_columns(rows))

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
          sizes treat them as independent; the attribute ``effective_share`` is their effective
          sample size divided by their number.
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
            seed: seed of the points and of the posterior draws.
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
        errors.check_integer("to_arviz: chains", chains, minimum=1)
        errors.check_integer("to_arviz: draws", draws, minimum=1)
        errors.check_seed("to_arviz: seed", seed)
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
        categories_of = (
            feature_axis.category_names(self.sampling, self._features, j)
            for j in range(self.dimension)
        )
        categories = {j: codes for j, codes in enumerate(categories_of) if codes}
        numeric = [j for j in range(self.dimension) if j not in categories]
        diagnostics, noise = self.diagnostics, self.diagnostics.get("noise", {})
        attributes = {
            "method": diagnostics["method"],
            **{f"noise_{key}": noise[key] for key in ("family", "level") if key in noise},
            "effective_share": diagnostics["sampler"]["effective_share"],
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
                **{f"{names[j]}_category": list(codes) for j, codes in categories.items()},
                "chain": np.arange(size[0]),
                "draw": np.arange(size[1]),
            }
            levels = {"level": list(LEVELS)} if "quantile" in data else {}
            return xarray.Dataset(data, coordinates | levels, attributes)

        seeds = np.random.SeedSequence(seed).generate_state(chains)
        points = np.stack([self.sample(draws, seed=int(s)) for s in seeds])
        one_hot = {
            j: (points[..., j, None] - low[j] == np.arange(len(codes))).astype(float)
            for j, codes in categories.items()
        }
        groups = {"posterior": dataset({"x": points}, one_hot)}
        if self.has_draws:
            posterior_draws = self.draws(seed=seed)
            summaries = {
                "mean": posterior_draws.mean()[None],
                "quantile": posterior_draws.quantile(LEVELS)[None],
            }
            shares = {j: posterior_draws.shares(j)[None] for j in categories}
            groups["beliefs"] = dataset(summaries, shares)
        if arviz.__version__.startswith("0."):
            return arviz.InferenceData(**groups)
        return xarray.DataTree.from_dict(groups)


def _import_optional(label: str, name: str, package: str = "") -> Any:
    """Import a module; the error for a missing package names the package to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise DensityError(
            f"{label}: {missing} is not installed; run: pip install {package or missing}"
        ) from None
