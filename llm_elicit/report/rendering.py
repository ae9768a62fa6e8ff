"""Rendering of figures: one palette in a light and a dark theme, axes, and image files.

The palette is Okabe and Ito's, distinguishable with common colour vision deficiencies: data are
grey, the belief is blue, the sampling density λ orange and dashed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, DateFormatter, num2date
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from PIL import Image, ImageColor

from llm_elicit.spaces.features import Feature


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
_IN_DARK = {
    getattr(LIGHT, part.name).encode(): getattr(DARK, part.name).encode()
    for part in fields(Theme)
    if part.name != "name"
}
_ROOM, _LONGEST = 30, 14  # letters on an axis, and in one of its words
_MOST_WORDS = 12
_COLOUR = re.compile(rb"(?<=: )#[0-9a-f]{6}")


def darkened(svg: bytes) -> bytes:
    """Return an SVG of the light theme with the colours of the dark theme.

    Example:
        >>> darkened(b'<path style="fill: #0072b2"/>')
        b'<path style="fill: #56b4e9"/>'
    """
    return _COLOUR.sub(lambda found: _IN_DARK.get(found[0], found[0]), svg)


@contextmanager
def drawing() -> Iterator[None]:
    """Keep text in SVG as text, and make files reproducible, within the context."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "llm-elicit", "font.size": 9}):
        yield


def blank(width: float, height: float, theme: Theme) -> Figure:
    """Return an empty figure of `width` by `height` inches, without global state."""
    return Figure(figsize=(width, height), facecolor=theme.background, layout="constrained")


def dress(axes: Axes, theme: Theme) -> None:
    """Style axes: no box, thin lines, the theme's colours."""
    axes.set_facecolor(theme.background)
    axes.tick_params(colors=theme.ink, labelsize=8, length=3, width=0.7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    axes.title.set_color(theme.ink)


def set_axis(axes: Axes, which: Literal["x", "y"], feature: Feature, most: int = 5) -> None:
    """Set an axis to a feature's range and scale, with ticks in the units of questions."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if feature.categories:
        _set_words(axes, which, feature)
        return
    cell = 0.5 if feature.whole else 0.0
    ends = feature.lowest - cell, feature.highest + cell
    if which == "x":
        axes.set_xscale(feature.scale)
        axes.set_xlim(ends)
    else:
        axes.set_yscale(feature.scale)
        axes.set_ylim(ends)
    axis.set_minor_locator(NullLocator())
    if feature.kind == "date":
        _set_dates(axis, feature, most)
        return
    if feature.scale == "log":
        axis.set_major_locator(FixedLocator(log_ticks(feature, most)))
    else:
        axis.set_major_locator(MaxNLocator(most - 1, integer=feature.whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value * feature.factor)))


def _set_dates(axis: Axis, feature: Feature, most: int) -> None:
    """Set ticks at round dates; Matplotlib counts days from the same origin."""
    low, high = feature.lowest, feature.highest
    style = "%Y" if high - low > 3 * 365 else "%b %Y" if high - low > 90 else "%d %b"
    locator, formatter = cast("Any", AutoDateLocator), cast("Any", DateFormatter)  # untyped
    ticks = locator(minticks=2, maxticks=most).tick_values(*map(num2date, (low, high)))
    room = 0.06 * (high - low)  # a label there would leave the figure
    inside = [tick for tick in ticks if low + room <= tick <= high - room]
    axis.set_major_locator(FixedLocator(inside))
    axis.set_major_formatter(formatter(style))


def _set_words(axes: Axes, which: Literal["x", "y"], feature: Feature) -> None:
    """Set an axis to a feature's categories; their names are not parsed as mathematics."""
    ends = -0.5, len(feature.categories) - 0.5
    # With many categories only some are labelled; tables list all.
    places = range(0, len(feature.categories), -(-len(feature.categories) // _MOST_WORDS))
    words = [_cut(feature.categories[place]) for place in places]
    if which == "x":
        axes.set_xlim(ends)
        crowded = len(words) * max(map(len, words)) > _ROOM
        axes.set_xticks(places, words, parse_math=False)
        if crowded:
            for label in axes.get_xticklabels():
                label.set(rotation=30, ha="right", rotation_mode="anchor")
    else:
        axes.set_ylim(ends)
        axes.set_yticks(places, words, parse_math=False)


def _cut(word: str) -> str:
    """Return a name shortened to the room on an axis."""
    return word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…"


def log_ticks(feature: Feature, most: int) -> list[float]:
    """Return ticks at 1, 2 and 5 times powers of ten in the units of questions, in natural units.

    Example:
        >>> log_ticks(Feature(name="x", label="x", scale="log", low=3, high=60), 5)
        [5.0, 10.0, 20.0, 50.0]
    """
    low, high = feature.low * feature.factor, feature.high * feature.factor
    for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [
            digit * 10.0**power
            for power in range(-12, 16)
            for digit in digits
            if low <= digit * 10.0**power <= high
        ]
        if len(ticks) <= most:
            break
    if len(ticks) < 2:
        ticks = [low, high]
    return [tick / feature.factor for tick in ticks]


def short(value: float) -> str:
    """Return a tick label: thousands as k, millions as M, no trailing zeros.

    Example:
        >>> short(50_000), short(1_500_000), short(-122.0), short(0.5)
        ('50k', '1.5M', '−122', '0.5')
    """
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            divisor = 1e3 if suffix == "k" else size
            return f"{value / divisor:.4g}{suffix}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def axis_label(feature: Feature) -> str:
    """Return the feature's label with its unit."""
    unit = feature.unit or feature.prefix.strip()
    return f"{feature.label} ({unit})" if unit else feature.label


@dataclass(frozen=True)
class Picture:
    """A figure rendered for light and dark pages.

    Attributes:
        title: a short description.
        alt: the alternative text.
        media: the images' media type.
        width, height: in CSS pixels.
        light, dark: the two renderings.
    """

    title: str
    alt: str
    media: Literal["image/svg+xml", "image/png"]
    width: int
    height: int
    light: bytes
    dark: bytes


def draw_picture(figure: Figure, title: str, alt: str) -> Picture:
    """Render a figure of the light theme as SVG for both themes."""
    light = render(figure, "svg")
    return Picture(title, alt, "image/svg+xml", *_pixels(figure), light, darkened(light))


def paint_picture(light: Figure, dark: Figure, title: str, alt: str) -> Picture:
    """Render a figure of many points as PNG, from its drawings in both themes."""
    images = render(light, "png"), render(dark, "png")
    return Picture(title, alt, "image/png", *_pixels(light), *images)


def paint_grey(light: Figure, title: str, alt: str) -> Picture:
    """Render a figure between the light theme's background and ink as PNG for both themes."""
    image = render(light, "png")
    return Picture(title, alt, "image/png", *_pixels(light), image, _inverted(image))


def _inverted(png: bytes) -> bytes:
    """Return a PNG with a palette, with its greys from background to ink in the dark theme."""
    paper, ink, dark_paper, dark_ink = (
        np.array(ImageColor.getrgb(colour), dtype=np.float64)
        for colour in (LIGHT.background, LIGHT.ink, DARK.background, DARK.ink)
    )
    turned = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        colours = np.array(image.getpalette(), dtype=np.float64).reshape(-1, 3)
        share = (paper - colours) / (paper - ink)
        dark = np.clip(dark_paper + share * (dark_ink - dark_paper), 0, 255)
        image.putpalette(np.rint(dark).astype(np.uint8).tobytes())
        image.save(turned, "png", optimize=True)
    return turned.getvalue()


def _pixels(figure: Figure) -> tuple[int, int]:
    """Return width and height in CSS pixels."""
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return width, height


def render(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of an "svg" or "png" file, reproducibly."""
    buffer = io.BytesIO()
    with drawing():
        options: dict[str, Any] = {"metadata": {"Date": None}}
        if kind == "png":  # it is compressed when its colours are reduced
            options = {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 0}}
        figure.savefig(buffer, format=kind, dpi=130, **options)
    return _fewer_colours(buffer) if kind == "png" else buffer.getvalue()


def _fewer_colours(buffer: io.BytesIO) -> bytes:
    """Return a PNG with a palette, which has a third of the size."""
    small = io.BytesIO()
    with Image.open(buffer) as image:
        # Maximum coverage keeps rare colours, such as a thin line's.
        palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
        palette.save(small, "png", optimize=True)
    return small.getvalue()
