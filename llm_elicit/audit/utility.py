"""Effects of features on a belief's utility, and agreement of the utility with the data.

The utility is the logarithm of the density per unit of every feature's scale, up to a constant and
a power. Here it is in log-odds: the difference between the utilities of two points is the log-odds
that the judge prefers the first one.

*Effects.* The utility averaged over λ in all other features is a curve over one feature's range.
The feature's effect, in log-odds, is the difference between the quartiles of the range if the curve
mainly rises or falls, and between the median and the quartiles if it has a maximum or minimum in
the middle. The test of a feature is a randomization test given the other features, Holm-adjusted
over features. A test of one feature alone would count the effects of the others as noise.

*Discrimination* is whether a judge's preference agrees with the data. The utility orders points in
the same way at every power. The *ceiling* is what the data's own density reaches, estimated by
normal kernels from the other rows (Parzen 1962) with the bandwidth that best predicts left-out
rows. Intervals are over draws of the utility's posterior, each with the rows of the data and the
draws from λ resampled (bootstrap).

*Misfit.* The fit may not explain all of the variation that answers to the same pair have in common
(`Preference.explained_share`). The unexplained part of the utility is unknown, but its standard
deviation over λ is known, so it is simulated with every draw of the posterior. Its correlation with
the rank of the data's density is drawn at random. The remainder is independent noise at the draws
from λ; it is one common number at all rows of the data, because the unexplained part may be the
same for all of them: a judge may, for example, prefer real rows for a reason that no feature
states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import AdjustedTest, Interval, adjust_tests, posterior_interval
from llm_elicit.audit.randomization import RandomizationTest
from llm_elicit.audit.reference import AuditSettings, KernelDensity, Reference
from llm_elicit.audit.responses import Response
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

GRID = np.array([0.05, 0.15, 0.25, 0.35, 0.45, 0.5, 0.55, 0.65, 0.75, 0.85, 0.95])
"""Positions in a number's range, on its scale from 0 to 1, at which its effect is evaluated."""

Direction = Literal["higher", "lower", "middle", "ends", "category"]

_GRID_WEIGHTS = np.diff(np.concatenate([[0.0], 0.5 * (GRID[1:] + GRID[:-1]), [1.0]]))
"""The share of the range that each point of `GRID` represents."""

_NORMAL_QUANTILES = ndtri((np.arange(200) + 0.5) / 200)
"""Quantiles that represent a normal distribution when an error is added to posterior draws."""
_PERIODIC_VALUES = 12
"""Number of values of a periodic feature at which its effect is evaluated."""

MAX_ROWS = 1000
"""Largest number of rows of the data at which the utility is evaluated."""

_SAMPLING_POINTS = 2000
"""Number of draws from λ at which the utility is evaluated."""

_EFFECT_POINTS = 200
"""Number of draws from λ that an effect is averaged over."""

_LEVEL_SET_VOLUME = 0.1
"""Share of λ in the level set, the region of highest utility."""

_MIN_DRAWS = 100
"""Smallest number of bootstrap resamples, if the posterior has fewer draws."""

_TIE_TOLERANCE = 1e-9
"""Relative difference up to which two values count as equal."""

EQUIVALENCE_MARGIN = 0.15
"""Margin within which a preference is practically unrelated to the data, as a share of what the
data's own density reaches. If the ceiling of the AUC is .83, this is a difference of .05 from
one half. With the rows and draws used, 95 % intervals of a rank correlation are about ±.08, so a
much smaller share could never be shown.
"""

_MIN_CEILING = 0.55
"""Ceiling of the AUC below which the data cannot be distinguished from λ, so that no preference can
be said to follow them. With the 1000 rows and 2000 draws used, the error of an AUC of one half is
.01.
"""

Relation = Literal[
    "follows", "opposite", "partly", "practically unrelated", "not shown", "not measurable"
]


@dataclass(frozen=True)
class UtilityDraws:
    """S posterior draws of a utility at n points, `(S, n)` in log-odds; S = 1 without a posterior.

    Attributes:
        at_rows: utilities of rows of the data; None without a table.
        at_sampling: utilities of draws from λ.
        row_points, sampling_points: these rows and draws, natural units.
        effect_curves: for each feature the utility averaged over λ in the other features, at `GRID`
            over the feature's range or at `discrete_values`.
        explained_share: the share of the reproducible variation that the fit explains.
    """

    at_rows: Floats | None
    at_sampling: Floats
    row_points: Floats | None
    sampling_points: Floats
    effect_curves: tuple[Floats, ...]
    explained_share: float = 1.0

    @property
    def unexplained_sd(self) -> float:
        """The standard deviation over λ of the variation that the fit does not explain."""
        if self.explained_share <= 0.0:
            return math.inf
        explained_sd = float(np.median(self.at_sampling, axis=0).std())
        return explained_sd * math.sqrt(1.0 / self.explained_share - 1.0)


def evaluate_utility(
    belief: density.BeliefDensity, space: FeatureSpace, data: Floats | None, seed: int
) -> UtilityDraws:
    """Evaluate a belief's utility; data `(n, d)` in natural units, at most 1000 rows of them."""
    rng = np.random.default_rng([seed, 0x071])
    sampling = space.round(space.sample(_SAMPLING_POINTS, rng))
    rows = None if data is None else data[rng.permutation(len(data))[:MAX_ROWS]]
    fitted_response = belief.diagnostics.get("response") or {}
    is_log_odds = fitted_response.get("scale") == "log-odds"
    # Nats of log density per nat of log-odds: the power, and for choices the noise level.
    unit = belief.power * (1.0 if is_log_odds else belief.noise.scale)

    def evaluate(points: Floats, tapered: bool = True) -> Floats:
        if belief.has_draws:
            return belief.utilities(points, tapered=tapered) / unit
        if belief.has_noise_levels:
            return belief.utility(points, tapered=tapered)[None] / unit
        return (belief.log_prob(points) - belief.sampling.log_scale_derivative(points))[None] / unit

    # Effects describe the answers, so they are measured without the taper, a factor that lowers the
    # belief beyond the compared points.
    untapered = partial(evaluate, tapered=False)

    base_points = space.sample(_EFFECT_POINTS, rng)
    # An integer k stands for the interval from k − ½ to k + ½; a position between two integers is
    # rounded to the one nearer to the end of the range.
    low, high = space.scale_ends
    grid_points = space.from_scale(low + GRID[:, None] * (high - low))
    below, above = np.ceil(grid_points - 0.5), np.floor(grid_points + 0.5)
    outward = np.where(GRID[:, None] <= 0.5, below, above)
    grid_points = np.clip(np.where(space.integer, outward, grid_points), space.low, space.high)
    grids = [
        discrete_values(feature) if has_discrete_values(feature) else grid_points[:, j]
        for j, feature in enumerate(space.features)
    ]
    return UtilityDraws(
        at_rows=None if rows is None else evaluate(rows),
        at_sampling=evaluate(sampling),
        row_points=rows,
        sampling_points=sampling,
        effect_curves=tuple(
            _average_other_features(untapered, space, base_points, feature, grid)
            for feature, grid in enumerate(grids)
        ),
    )


def has_discrete_values(feature: Feature) -> bool:
    """Return whether a feature is categorical or periodic, so that single values are compared."""
    return bool(feature.categories) or feature.periodic


def discrete_values(feature: Feature) -> Floats:
    """Return the codes of all categories, or values over the period, natural units.

    Examples:
        >>> month = Feature(name="m", label="m", kind="integer", low=1, high=12, periodic=True)
        >>> discrete_values(month).tolist()[-2:]
        [11.0, 12.0]
    """
    if feature.categories or (feature.whole and feature.period <= _PERIODIC_VALUES):
        return np.arange(feature.lowest, feature.highest + 1.0)
    around = feature.lowest + feature.period * np.arange(_PERIODIC_VALUES) / _PERIODIC_VALUES
    return feature.round(around)


def _average_other_features(
    evaluate: Callable[[Floats], Floats],
    space: FeatureSpace,
    base_points: Floats,
    feature: int,
    grid: Floats,
) -> Floats:
    """Return the means `(S, T)` over base points `(m, d)` with one feature set to each of T values.

    The mean is over the points that satisfy the space's constraints. If no point does at a value,
    the mean at the nearest value is returned.
    """
    points = np.repeat(base_points[None], len(grid), axis=0)
    points[:, :, feature] = grid[:, None]
    flat_points = points.reshape(-1, base_points.shape[1])
    is_inside = np.ones(len(flat_points), dtype=bool)
    if space.constraints:
        is_inside = space.contains(flat_points)
    averages = evaluate(flat_points[is_inside])
    counts = is_inside.reshape(len(grid), -1).sum(axis=1)
    grid_index = np.repeat(np.arange(len(grid)), len(base_points))[is_inside]
    occupied = np.flatnonzero(counts)
    nearest = occupied[np.abs(occupied - np.arange(len(grid))[:, None]).argmin(axis=1)]

    def means(row: Floats) -> Floats:
        totals = np.bincount(grid_index, weights=row, minlength=len(grid))
        return np.asarray((totals / np.maximum(counts, 1))[nearest])

    return np.stack([means(draw) for draw in averages])


class Effect(AdjustedTest):
    """One feature's effect on the utility, averaged over the other features.

    The randomization test is of the feature given the other features (of the feature alone with
    several rounds or few pairs); p-values are adjusted over all features.

    Attributes:
        name: the feature.
        value: log-odds over the middle half of the range: of the upper quartile against the lower
            if higher or lower values are preferred, of the median against the quartiles if the
            middle or the ends are, of the best category or periodic value against the worst.
            The median over posterior draws; None without a belief.
        low, high: 95 % interval of the value over posterior draws and over the variation that the
            fit does not explain; None if the fit explains none of the reproducible variation.
        open_ended: whether the choices bound effects from below only, because no answer contradicts
            a rule; then the value and the end of the interval farther from 0 are unknown.
        direction: what is preferred: "higher" or "lower" values, those in the "middle" or at the
            "ends" of the range, or a "category".
        categories: the best and the worst category, or value of a periodic feature; None for other
            features.
        sd: standard deviation of the averaged utility over λ, log-odds.
        loo_r2: leave-one-out R² of the responses on this feature alone, by linear and square terms,
            or by category; at or below 0 if it predicts nothing.
    """

    name: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    open_ended: bool = False
    direction: Direction | None = None
    categories: tuple[str, str] | None = None
    sd: float | None = None
    loo_r2: float

    @property
    def has_direction(self) -> bool:
        """Whether the interval excludes 0, so that the direction of the effect is known."""
        above = self.low is not None and self.low > 0.0
        return above or (self.high is not None and self.high < 0.0)


def measure_effects(
    response: Response,
    space: FeatureSpace,
    settings: AuditSettings,
    rng: np.random.Generator,
    schedule: Schedule | None = None,
    utility: UtilityDraws | None = None,
    open_ended: bool = False,
) -> tuple[Effect, ...]:
    """Measure every feature's effect, in the order of the space; empty with fewer than two pairs.

    Args:
        response: the judge's answers.
        space: the feature space.
        settings: the number of random sign flips.
        rng: generator of the sign flips.
        schedule: the pairs of each round.
        utility: posterior draws of the belief's utility, if there is a belief.
        open_ended: whether the choices bound the belief's sharpness from below only.

    Examples:
        >>> from llm_elicit.comparisons.table import Choices
        >>> space = FeatureSpace.load("penguins")
        >>> rng = np.random.default_rng(0)
        >>> a, b = space.sample(80, rng), space.sample(80, rng)
        >>> heavier = (a[:, 3] > b[:, 3]).astype(float)         # a judge by weight alone
        >>> response = Response.from_choices(Choices(a, b, heavier, np.arange(80)))
        >>> effects = measure_effects(response, space, AuditSettings(flips=199), rng)
        >>> [effect.name for effect in effects if effect.p_holm < 0.05]
        ['body_mass_g']
    """
    if len(response) < 2:
        return ()
    test = RandomizationTest(response, space, schedule)
    effects = []
    for j, feature in enumerate(space.features):
        result = test.run_partial(settings.flips, rng, j)
        curve_fields = {} if utility is None else _curve_fields(utility, j, feature, open_ended)
        effect = Effect(
            name=feature.name,
            p_value=result.p_value,
            p_is_bound=result.p_is_bound,
            loo_r2=result.loo_r2,
            **curve_fields,
        )
        effects.append(effect)
    return tuple(effect for effect in adjust_tests(effects) if effect is not None)


def _curve_fields(
    utility: UtilityDraws, column: int, feature: Feature, open_ended: bool
) -> dict[str, Any]:
    """Return the fields of `Effect` that follow from draws of the averaged utility."""
    draws = utility.effect_curves[column]
    mean = np.median(draws, axis=0)
    if has_discrete_values(feature):
        direction, contrast = "category", contrast_of(mean, feature)
        best, worst = int(mean.argmax()), int(mean.argmin())
        weights = np.full(len(mean), 1.0 / len(mean))
        values = discrete_values(feature)
        categories = feature.word(float(values[best])), feature.word(float(values[worst]))
    else:
        direction, contrast = _choose_contrast(mean)
        weights, categories = _GRID_WEIGHTS, None
    centred = mean - weights @ mean
    effects, unexplained_sd, interval = draws @ contrast, utility.unexplained_sd, {}
    if not math.isinf(unexplained_sd):
        if unexplained_sd > 0.0:
            error = unexplained_sd * float(np.linalg.norm(contrast))
            effects = np.add.outer(effects, error * _NORMAL_QUANTILES).ravel()
        interval = posterior_interval(effects, 0.95).model_dump()
        if open_ended:
            low, high = interval["low"], interval["high"]
            interval = {"low": low if low > 0.0 else None, "high": high if high < 0.0 else None}
    return {
        **interval,
        "open_ended": open_ended,
        "direction": direction,
        "categories": categories,
        "sd": float(np.sqrt(weights @ centred**2)),
    }


def contrast_of(curve: Floats, feature: Feature) -> Floats:
    """Return the contrast of a feature's values that its curve suggests; see `Effect.value`."""
    if not has_discrete_values(feature):
        return _choose_contrast(curve)[1]
    contrast = np.zeros(len(curve))
    contrast[int(curve.argmax())] += 1.0
    contrast[int(curve.argmin())] -= 1.0
    return contrast


def _choose_contrast(curve: Floats) -> tuple[Direction, Floats]:
    """Return whether a curve over `GRID` has more slope or more curvature, and its contrast."""
    line = GRID - 0.5
    bend = line**2 - _GRID_WEIGHTS @ line**2
    slope, curvature = (
        (_GRID_WEIGHTS * column) @ curve / np.sqrt(_GRID_WEIGHTS @ column**2)
        for column in (line, bend)
    )
    contrast = np.zeros(len(GRID))
    lower, median, upper = (int(np.abs(GRID - at).argmin()) for at in (0.25, 0.5, 0.75))
    if abs(slope) >= abs(curvature):
        contrast[upper], contrast[lower] = 1.0, -1.0
        return ("higher" if slope >= 0 else "lower"), contrast
    contrast[median], contrast[lower], contrast[upper] = 1.0, -0.5, -0.5
    return ("middle" if curvature <= 0 else "ends"), contrast


class Discrimination(StrictModel):
    """The agreement of a judge's utility with the data; 95 % intervals over rows and draws.

    Attributes:
        rows: number of rows of the data used.
        auc: probability that the utility of a row of the data is higher than that of a draw from
            λ (area under the ROC curve); 1/2 if the utility does not separate them.
        ceiling: the AUC of the data's own density.
        rank_correlation: Spearman's correlation of the utility with the logarithm of the data's
            density, over draws from λ.
        level_set: the share of the data within the tenth of λ with the highest utility.
        level_set_ceiling: this share for the data's own density.
    """

    rows: int
    auc: Interval
    ceiling: float
    rank_correlation: Interval
    level_set: Interval
    level_set_ceiling: float

    @property
    def relative_auc(self) -> float:
        """The AUC rescaled: 0 at one half, 1 at its ceiling."""
        return (self.auc.value - 0.5) / (self.ceiling - 0.5)

    @property
    def signs(self) -> tuple[int, int]:
        """The signs of AUC − 1/2 and of the rank correlation; 0 if the interval includes 0."""
        return _sign(self.auc, 0.5), _sign(self.rank_correlation, 0.0)

    @property
    def relation(self) -> Relation:
        """The relation of the preference to the data.

        "follows": both intervals are above no relation; "opposite": both below; "partly": one of
        them, or one above and one below. "practically unrelated": both lie within
        `EQUIVALENCE_MARGIN` of what the data's own density reaches, two one-sided tests of
        equivalence at 2.5 % each. "not shown": none of these. "not measurable": the data's own
        density hardly separates the data from λ.
        """
        if self.ceiling < _MIN_CEILING:
            return "not measurable"
        margin = EQUIVALENCE_MARGIN * (self.ceiling - 0.5)
        if _is_within(self.auc, 0.5, margin) and _is_within(
            self.rank_correlation, 0.0, EQUIVALENCE_MARGIN
        ):
            return "practically unrelated"
        if self.signs == (0, 0):
            return "not shown"
        related: dict[tuple[int, int], Relation] = {(1, 1): "follows", (-1, -1): "opposite"}
        return related.get(self.signs, "partly")


def _sign(interval: Interval, null: float) -> int:
    return int(interval.low > null) - int(interval.high < null)


def _is_within(interval: Interval, null: float, margin: float) -> bool:
    return null - margin < interval.low and interval.high < null + margin


def measure_discrimination(
    utility: UtilityDraws, reference: Reference, rng: np.random.Generator
) -> Discrimination | None:
    """Compare a utility with the data, at rows of the data and draws from λ.

    Returns None without a table, or if the fit explains none of the reproducible variation.
    """
    if utility.at_rows is None or utility.row_points is None or utility.explained_share <= 0.0:
        return None
    at_rows, at_sampling = utility.at_rows, utility.at_sampling
    kernels = KernelDensity(reference.standardizer, utility.row_points, utility.sampling_points)
    sizes, count = (at_rows.shape[1], at_sampling.shape[1]), max(_MIN_DRAWS, len(at_rows))
    resamples = [[rng.integers(n, size=n) for n in sizes] for _ in range(count)]
    weights = np.array([np.bincount(row_index, minlength=sizes[0]) for row_index, _ in resamples])
    densities = kernels.evaluate_at_sampling(weights * 1.0)  # one matrix product for all
    unexplained_sd, ranks = utility.unexplained_sd, kernels.standardized_ranks()
    results = np.empty((count, 3))
    for i, (row_index, sampling_index) in enumerate(resamples):
        draw = i % len(at_rows)
        rows, sampling = at_rows[draw, row_index], at_sampling[draw, sampling_index]
        if unexplained_sd > 0.0:
            angle = math.asin(rng.uniform(-1.0, 1.0))
            rank_part, remainder = (
                unexplained_sd * math.sin(angle),
                unexplained_sd * math.cos(angle),
            )
            rows = rows + rank_part * ranks[0][row_index] + remainder * rng.standard_normal()
            noise = remainder * rng.standard_normal(len(sampling))
            sampling = sampling + rank_part * ranks[1][sampling_index] + noise
        correlation = spearman(sampling, densities[i, sampling_index])
        results[i] = auc(rows, sampling), correlation, level_set_share(rows, sampling)
    area, rank_correlation, share = (posterior_interval(column, 0.95) for column in results.T)
    own = kernels.log_density_at_rows, kernels.log_density_at_sampling
    return Discrimination(
        rows=at_rows.shape[1],
        auc=area,
        ceiling=auc(*own),
        rank_correlation=rank_correlation,
        level_set=share,
        level_set_ceiling=level_set_share(*own),
    )


def measure_auc(
    belief: density.BeliefDensity, space: FeatureSpace, data: Floats, rng: np.random.Generator
) -> Interval:
    """Return the AUC of `measure_discrimination` if the utility has no unexplained part.

    Args:
        belief: the belief.
        space: its feature space.
        data: rows of the table `(n, d)`, natural units, of which at most 1000 are used.
        rng: generator of the draws from λ and of the bootstrap.
    """
    sampling = space.round(space.sample(_SAMPLING_POINTS, rng))
    rows = data[rng.permutation(len(data))[:MAX_ROWS]]
    utilities = belief.utilities(np.concatenate([rows, sampling]))
    at_rows, at_sampling = np.split(utilities, [len(rows)], axis=1)
    areas = []
    for draw in np.arange(max(_MIN_DRAWS, len(utilities))) % len(utilities):
        of_rows = rng.choice(at_rows[draw], len(rows))
        areas.append(auc(of_rows, rng.choice(at_sampling[draw], len(sampling))))
    return posterior_interval(np.array(areas), 0.95)


def auc(rows: Floats, sampling: Floats) -> float:
    """Return P(row > draw) + P(row = draw) / 2: Mann and Whitney's (1947) U as a share.

    Examples:
        >>> auc(np.array([1.0, 3.0]), np.array([0.0, 1.0]))
        0.875
    """
    # SciPy's mannwhitneyu and spearmanr spend most of their time on p-values.
    n, ranks = len(rows), _rank(_round_to_steps(np.concatenate([rows, sampling])))
    return float((ranks[:n].sum() - 0.5 * n * (n + 1)) / (n * len(sampling)))


def spearman(x: Floats, y: Floats) -> float:
    """Return Spearman's rank correlation; 0 if either does not vary.

    Examples:
        >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([0.0, 10.0, 11.0])), 6)
        1.0
    """
    x, y = _round_to_steps(x), _round_to_steps(y)
    if not x.any() or not y.any():
        return 0.0
    return float(np.corrcoef(_rank(x), _rank(y))[0, 1])


def _rank(values: Floats) -> Floats:
    """Return the ranks of values from 1; equal ones have the mean of theirs.

    SciPy's `rankdata` returns the same in three times as long.
    """
    order = np.argsort(values)
    firsts = np.flatnonzero(np.diff(values[order], prepend=-np.inf))
    sizes = np.diff(firsts, append=len(values))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(firsts + 0.5 * (sizes + 1), sizes)
    return ranks


def level_set_share(rows: Floats, sampling: Floats, volume: float = _LEVEL_SET_VOLUME) -> float:
    """Return the share of rows in the part of λ of this volume with the highest values.

    Rows with the lowest value in the region count in part, so that its volume is exact.

    Examples:
        >>> level_set_share(np.array([9.0, 0.0]), np.arange(10.0))
        0.5
        >>> level_set_share(np.zeros(4), np.zeros(9))
        0.1
    """
    values = _round_to_steps(np.concatenate([rows, sampling]))
    rows, sampling = values[: len(rows)], values[len(rows) :]
    edge = np.sort(sampling)[::-1][max(int(np.ceil(volume * len(sampling))) - 1, 0)]
    above, tied = float((sampling > edge).mean()), float((sampling == edge).mean())
    part = (volume - above) / tied
    return float((rows > edge).mean() + part * (rows == edge).mean())


def _round_to_steps(values: Floats) -> Floats:
    """Return values rounded to whole steps from 0 up, so that rounding errors break no ties."""
    extent = float(np.ptp(values))
    if extent <= _TIE_TOLERANCE * max(1.0, float(np.abs(values).max())):
        return np.zeros(len(values))
    return np.asarray(np.round((values - values.min()) / extent / _TIE_TOLERANCE))
