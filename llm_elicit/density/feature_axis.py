"""Data of a belief's figures: samples, bands, and axes with histogram densities over their bins.

Bins are equal on the feature's scale. Those of whole numbers consist of whole cells, from k − ½ to
k + ½, and every category has its own. Densities are per unit of the scale, and shares where each
value is shown by itself. `llm_elicit.density.plots` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.ndimage import gaussian_filter1d

from llm_elicit.density.errors import Array
from llm_elicit.density.feature_names import FeatureNames
from llm_elicit.density.sampling import SamplingDensity, Uniform

BINS = 60
"""Bins of a marginal."""
MAX_SINGLE_VALUES = 24
"""Largest number of values of a whole-number feature that are shown one by one."""
_TAIL = 0.001  # beyond either end of an axis that does not show the whole support
_MARGIN = 0.06  # relative to the central range
_SMOOTHING = 1.5  # bins
_ONE_SD = (0.16, 0.84)
_MAX_WIDTHS = 5.0  # central ranges of two standard deviations on an axis of usual bins
_MAX_REFINEMENT = 10  # finer bins, at most, where there are more of them


@dataclass(frozen=True)
class FeatureAxis:
    """The axis of one feature.

    Attributes:
        label: its name, with the unit if it has one.
        low, high: the lowest and the highest value shown, natural units.
        log: whether the scale is logarithmic.
        whole: whether the values are whole numbers; codes of categories are.
        periodic: whether high, or the number after it, is low again.
        categories: the words of the codes low, low + 1, ...
        factor: by which natural units are multiplied for tick labels.
        date: whether values are days since 1 January 1970.
        refinement: the number of bins of the belief for each bin of data; more than one if the
            belief is narrow.

    Examples:
        >>> FeatureAxis("rooms", 1.0, 4.0, whole=True).edges(BINS).tolist()
        [0.5, 1.5, 2.5, 3.5, 4.5]
    """

    label: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    periodic: bool = False
    categories: tuple[str, ...] = ()
    factor: float = 1.0
    date: bool = False
    refinement: int = 1

    @property
    def is_discrete(self) -> bool:
        """Whether values are so few that each has its own share.

        These are categories, and whole numbers of which there are at most `MAX_SINGLE_VALUES`.
        """
        return bool(self.categories) or (self.whole and self.high - self.low < MAX_SINGLE_VALUES)

    @property
    def limits(self) -> tuple[float, float]:
        """The ends of the axis: half a cell beyond the first and the last whole number."""
        cell = 0.5 if self.whole or self.categories else 0.0
        return self.low - cell, self.high + cell

    def edges(self, bins: int) -> Array:
        """Return the edges of about ``bins`` bins, natural units.

        On a linear scale each bin of a whole feature holds the same number of values.
        """
        low, high = self.limits
        if self.categories:
            return np.arange(low, high + 1.0)
        if self.log and self.whole:
            edges = np.rint(np.geomspace(low, high, bins + 1) - 0.5) + 0.5
            return np.unique(np.clip(edges, low, high))
        if self.log:
            return np.geomspace(low, high, bins + 1)
        if self.whole:
            width = max(1.0, np.ceil((high - low) / bins))
            return np.asarray(low + width * np.arange(np.ceil((high - low) / width) + 1))
        return np.linspace(low, high, bins + 1)

    def widths(self, edges: Array) -> Array:
        """Return widths of bins between edges, in units of the scale.

        For whole numbers on a linear scale, a width is the number of values in the bin; the last
        bin may hold fewer.
        """
        if self.whole:
            edges = np.minimum(edges, self.limits[1])
        return np.asarray(np.diff(np.log(edges) if self.log else edges))

    @property
    def centres(self) -> Array:
        """The middles of the bins of a belief, natural units."""
        edges = self.edges(self.refinement * BINS)
        return np.asarray((edges[:-1] + edges[1:]) / 2)

    def data_histogram(self, values: Array) -> Array:
        """Return the histogram of data (n,), natural units; those off the axis are not shown."""
        return self._histogram(values, self.edges(BINS), None)

    def density_line(self, values: Array, weights: Array | None = None) -> Array:
        """Return the histogram of a belief (n,), smoothed unless each value has its own share.

        Args:
            values: (n,) of the feature, draws of the belief.
            weights: (n,) that sum to one; equal ones by default.
        """
        return self.smooth(self._histogram(values, self.edges(self.refinement * BINS), weights))

    def _histogram(self, values: Array, edges: Array, weights: Array | None) -> Array:
        mass = np.histogram(values, edges, weights=weights)[0].astype(np.float64)
        if weights is None:
            mass /= max(len(values), 1)
        return mass if self.is_discrete else mass / self.widths(edges)

    def smooth(self, densities: Array) -> Array:
        """Return histogram densities (..., bins) smoothed, unless each value has its own share.

        They are reflected at the ends, or go on around a circle.
        """
        if self.is_discrete:
            return densities
        mode: Literal["wrap", "reflect"] = "wrap" if self.periodic else "reflect"
        return np.asarray(gaussian_filter1d(densities, _SMOOTHING, mode=mode))


def feature_axes(
    sampling: SamplingDensity, names: FeatureNames, indices: Sequence[int], samples: Sequence[Array]
) -> tuple[FeatureAxis, ...]:
    """Return the axes of the features at ``indices``, by their numbers.

    Categories and circles are shown whole. An axis of numbers leaves out a thousandth of the points
    at either end of each of the ``samples``, (n, k) with a column for each index.
    """
    axes = []
    for column, index in enumerate(indices):
        values = [points[:, column] for points in samples]
        words = category_names(sampling, names, index)
        low, high = float(sampling.low[index]), float(sampling.high[index])
        log, periodic = bool(sampling.log[index]), bool(sampling.periodic[index])
        is_discrete = bool(sampling.categorical[index] | sampling.integer[index])
        if not words and not periodic:
            visible = [points[points > 0.0] if log else points for points in values]
            quantiles = np.array(
                [np.quantile(points, [_TAIL, 1.0 - _TAIL]) for points in visible if len(points)]
            )
            first, last = float(quantiles[:, 0].min()), float(quantiles[:, 1].max())
            # Data beyond the support are shown, but a margin does not reach there.
            if not first < last:  # one value: the support, if it has ends
                margin = max(abs(first), 1.0)
                low = low if math.isfinite(low) else first - margin
                high = high if math.isfinite(high) else first + margin
            else:
                if log:
                    factor = (last / first) ** _MARGIN
                    start, end = first / factor, last * factor
                else:
                    margin = _MARGIN * (last - first)
                    start, end = first - margin, last + margin
                low, high = min(first, max(start, low)), max(last, min(end, high))
        if is_discrete:
            low, high = float(np.floor(low)), float(np.ceil(high))
        refinement = 1
        if not words:
            # Bins so narrow that smoothing does not widen the belief, which is the first sample.
            ends = low, high, *np.quantile(values[0], _ONE_SD)
            start, end, first, last = np.log(ends) if log else np.asarray(ends)
            widths = (end - start) / max(last - first, 1e-300)
            refinement = int(np.clip(np.ceil(widths / _MAX_WIDTHS), 1, _MAX_REFINEMENT))
        date, label = index in names.dates, names.names[index]
        kinds = (log, is_discrete, periodic, words)
        axes.append(FeatureAxis(label, low, high, *kinds, date=date, refinement=refinement))
    return tuple(axes)


def category_names(sampling: SamplingDensity, names: FeatureNames, index: int) -> tuple[str, ...]:
    """Return the words of a feature's categories, or codes if it has no words; () for a number.

    Whole numbers with words are ordered categories.
    """
    words = names.categories.get(index, ())
    if not isinstance(sampling, Uniform) or not (sampling.categorical[index] or words):
        return ()
    codes = range(round(sampling.low[index]), round(sampling.high[index]) + 1)
    return tuple(words[code] if 0 <= code < len(words) else str(code) for code in codes)


def mask_codes(
    values: Array, sampling: SamplingDensity, names: FeatureNames, *, ordered: bool = True
) -> Array:
    """Return values (..., d) of features with the codes of categories replaced by not-a-number.

    Args:
        values: (..., d).
        sampling: the sampling density, which knows the categories.
        names: the names and categories of the features.
        ordered: whether to replace the codes of ordered categories, too, which have quantiles but
            no mean.
    """
    indices = range(sampling.dimension)
    is_category = [
        bool(sampling.categorical[index])
        or (ordered and bool(category_names(sampling, names, index)))
        for index in indices
    ]
    return np.where(is_category, np.nan, values)


def truncate(text: str, max_length: int) -> str:
    """Return a text cut at its end where it has more letters than ``max_length``."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


@dataclass(frozen=True)
class Band:
    """The band of one feature's density, per unit of its scale, or of its shares.

    Attributes:
        centres: (B,) middles of the bins, natural units.
        low, high: (B,) ends of the band there.
    """

    centres: Sequence[float] | Array
    low: Sequence[float] | Array
    high: Sequence[float] | Array


@dataclass(frozen=True)
class PlotData:
    """A belief beside λ and data; columns are features.

    Attributes:
        axes: one for each of d features.
        belief, sampling: (n, d) points of the belief and of λ.
        data: (m, d) points drawn beside them, or None.
        bands: one for each feature, or None.
        draws: (S, k, d) points of S draws of the posterior, or None.
    """

    axes: tuple[FeatureAxis, ...]
    belief: Array
    sampling: Array
    data: Array | None = None
    bands: Sequence[Band] | None = None
    draws: Array | None = None

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return len(self.axes)
