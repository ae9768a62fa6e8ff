"""The look of figures: one palette in a light and a dark theme, axes and their ticks.

The palette is Okabe and Ito's, distinguishable with common colour vision deficiencies: data are
grey, the belief is blue, the sampling density λ orange and dashed.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter, num2date
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Formatter, MaxNLocator, NullLocator

from llm_elicit.density.feature_axis import FeatureAxis, truncate


@dataclass(frozen=True)
class Theme:
    """The colours of one rendering."""

    name: Literal["light", "dark"]
    background: str
    ink: str
    faint: str
    data: str
    belief: str
    sampling: str


LIGHT = Theme("light", "#ffffff", "#30343a", "#c9cdd3", "#b9bdc4", "#0072b2", "#d55e00")
DARK = Theme("dark", "#191d23", "#d5d9df", "#3c434d", "#59616d", "#56b4e9", "#e69f00")
_MAX_LETTERS, _MAX_WORD_LETTERS = 30, 14  # letters on an axis, and in one of its words
_MAX_LABELS = 12
_LETTER_WIDTH = 0.0085  # inches, the mean width of a letter per point of the font's size
_MAX_LINES = 3
_DIGITS = range(4, 17)  # significant digits of a tick label


class NotebookFigure(Figure):
    """A figure that Jupyter shows though nothing was imported from pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def empty_figure(width: float, height: float, theme: Theme) -> Figure:
    """Return an empty figure of ``width`` by ``height`` inches, without global state."""
    return NotebookFigure(figsize=(width, height), facecolor=theme.background, layout="constrained")


def style_axes(axes: Axes, theme: Theme) -> None:
    """Style axes: no box, thin lines, the theme's colours."""
    axes.set_facecolor(theme.background)
    axes.tick_params(colors=theme.ink, labelsize=8, length=3, width=0.7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    axes.title.set_color(theme.ink)


def set_axis(
    axes: Axes, direction: Literal["x", "y"], axis: FeatureAxis, max_ticks: int = 5
) -> None:
    """Set an axis to a feature's range and scale, with at most ``max_ticks`` ticks."""
    matplotlib_axis = axes.xaxis if direction == "x" else axes.yaxis
    scale = "log" if axis.log else "linear"
    axes.set(**{f"{direction}scale": scale, f"{direction}lim": axis.limits})
    if axis.categories:
        # With many categories only some are labelled; tables list all.
        labelled = range(0, len(axis.categories), -(-len(axis.categories) // _MAX_LABELS))
        full = [axis.categories[at] for at in labelled]
        words = [truncate(word, _MAX_WORD_LETTERS) for word in full]
        if len(set(words)) < len(set(full)):
            # Words that are alike at their beginning are shortened inside.
            half = _MAX_WORD_LETTERS // 2
            words = [
                w if len(w) <= _MAX_WORD_LETTERS else f"{w[: half - 1]}…{w[-half:]}" for w in full
            ]
        # The names of categories are not parsed as mathematics.
        matplotlib_axis.set_ticks([axis.low + at for at in labelled], words, parse_math=False)
        if direction == "x" and len(words) * max(map(len, words)) > _MAX_LETTERS:
            for label in axes.get_xticklabels():
                label.set(rotation=30, ha="right", rotation_mode="anchor")
        return
    matplotlib_axis.set_minor_locator(NullLocator())
    if axis.date:
        # Ticks at round dates; Matplotlib counts days from the same origin.
        low, high = axis.low, axis.high
        style = "%Y" if high - low > 3 * 365 else "%b %Y" if high - low > 90 else "%d %b"
        locator, formatter = cast("Any", AutoDateLocator), cast("Any", DateFormatter)  # untyped
        ticks = locator(minticks=2, maxticks=max_ticks).tick_values(*map(num2date, (low, high)))
        first, last = low + 0.06 * (high - low), high - 0.06 * (high - low)
        # A label nearer to an end would leave the figure.
        inside = [tick for tick in ticks if first <= tick <= last and tick == round(tick)]
        matplotlib_axis.set_major_locator(FixedLocator(inside or [round(0.5 * (low + high))]))
        matplotlib_axis.set_major_formatter(formatter(style))
        return
    if axis.log:
        matplotlib_axis.set_major_locator(FixedLocator(log_ticks(axis, max_ticks)))
    else:
        matplotlib_axis.set_major_locator(MaxNLocator(max_ticks - 1, integer=axis.whole))
    matplotlib_axis.set_major_formatter(_ShortLabels(axis.factor))


class _ShortLabels(Formatter):
    """Tick labels of `format_number`, with as many digits as tell ticks apart."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, x: float, pos: int | None = None) -> str:  # noqa: ARG002 - Matplotlib's
        return format_number(x * self._factor)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return a label for each tick."""
        return format_tick_labels([value * self._factor for value in values])


def log_ticks(axis: FeatureAxis, max_ticks: int) -> list[float]:
    """Return ticks at 1, 2 and 5 times powers of ten in the units of labels, in natural units.

    Examples:
        >>> log_ticks(FeatureAxis("x", 3.0, 60.0, log=True), 5)
        [5.0, 10.0, 20.0, 50.0]
    """
    low, high = axis.low * axis.factor, axis.high * axis.factor
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [
            digit * 10.0**power
            for power in decades
            for digit in digits
            if low <= digit * 10.0**power <= high
        ]
        if len(ticks) <= max_ticks:
            break
    if len(ticks) < 2:
        ticks = [low, high]
    return [tick / axis.factor for tick in ticks[:: -(-len(ticks) // max_ticks)]]


def format_tick_labels(values: Sequence[float]) -> list[str]:
    """Return `format_number` labels with as few digits as tell the values apart, four or more.

    Examples:
        >>> format_tick_labels([20231.2, 20231.4])
        ['20.2312k', '20.2314k']
    """
    for digits in _DIGITS:
        labels = [format_number(value, digits) for value in values]
        if len(set(labels)) == len(set(values)):
            break
    return labels


def format_number(value: float, digits: int = 4) -> str:
    """Return a tick label: thousands as k, millions as M, no trailing zeros.

    Examples:
        >>> [format_number(value) for value in (50_000, 1_500_000, -122.0, 0.5)]
        ['50k', '1.5M', '−122', '0.5']
    """
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            divisor = 1e3 if suffix == "k" else size
            return f"{value / divisor:.{digits}g}{suffix}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def wrap_label(label: str, inches: float, size: float) -> str:
    """Return a label in lines that fit a width at a font size, cut after the third.

    Examples:
        >>> wrap_label("median income of a block group", 1.3, 8).splitlines()
        ['median income of a', 'block group']
    """
    letters = max(int(inches / (_LETTER_WIDTH * size)), 6)
    lines = textwrap.wrap(label, letters) or [""]
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], truncate(" ".join(lines[_MAX_LINES - 1 :]), letters)]
    return "\n".join(lines)
