"""A figure of the page as SVG layers: shapes of the data and λ, and of the belief at every power.

Artists are drawn with Matplotlib as in the saved figures and converted to paths, in CSS pixels. The
page styles them, so that one drawing serves both themes, and shows one power at a time. Whole
figures are rendered as image files in the light and the dark theme of the density core.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.text import Text
from PIL import Image, ImageColor

from llm_elicit.density.plot_style import DARK, LIGHT, Theme

_DARK_COLOURS = {
    getattr(LIGHT, part.name).encode(): getattr(DARK, part.name).encode()
    for part in fields(Theme)
    if part.name != "name"
}
_DPI = 130
"""Resolution of PNG files."""
_COMPRESSION = 6
"""Compression level of PNG files; the highest takes six times as long and saves a tenth."""
_COLOUR = re.compile(rb"(?<=: )#[0-9a-f]{6}")


def darken(svg: bytes) -> bytes:
    """Return an SVG of the light theme with the colours of the dark theme.

    Examples:
        >>> darken(b'<path style="fill: #0072b2"/>')
        b'<path style="fill: #56b4e9"/>'
    """
    return _COLOUR.sub(lambda match: _DARK_COLOURS.get(match[0], match[0]), svg)


@contextmanager
def svg_settings() -> Iterator[None]:
    """Keep text in SVG as text, and make files reproducible, within the context."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "llm-elicit", "font.size": 9}):
        yield


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
    return Picture(title, alt, "image/svg+xml", *css_size(figure), light, darken(light))


def paint_picture(light: Figure, dark: Figure, title: str, alt: str) -> Picture:
    """Render a figure of many points as PNG, from its drawings in both themes."""
    images = render(light, "png"), render(dark, "png")
    return Picture(title, alt, "image/png", *css_size(light), *images)


def paint_grey(light: Figure, title: str, alt: str) -> Picture:
    """Render a figure between the light theme's background and ink as PNG for both themes."""
    png = render(light, "png")
    # In the dark theme, greys go from its background to its ink.
    paper, ink, dark_paper, dark_ink = (
        np.array(ImageColor.getrgb(colour), dtype=np.float64)
        for colour in (LIGHT.background, LIGHT.ink, DARK.background, DARK.ink)
    )
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        colours = np.array(image.getpalette(), dtype=np.float64).reshape(-1, 3)
        share = (paper - colours) / (paper - ink)
        dark = np.clip(dark_paper + share * (dark_ink - dark_paper), 0, 255)
        image.putpalette(np.rint(dark).astype(np.uint8).tobytes())
        image.save(buffer, "png", compress_level=_COMPRESSION)
    return Picture(title, alt, "image/png", *css_size(light), png, buffer.getvalue())


def render(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """Return a figure as the bytes of an image file, reproducibly.

    The layout is computed at the first rendering and kept for later ones.
    """
    buffer = io.BytesIO()
    with svg_settings():
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            # With any layout engine, even "none", Matplotlib draws every rendering twice.
            figure.set_layout_engine(None)
        if kind == "svg":
            figure.savefig(buffer, format="svg", metadata={"Date": None})
            return buffer.getvalue()
        figure.savefig(buffer, format="rgba", dpi=_DPI)
    wide, high = (int(_DPI * inches) for inches in figure.get_size_inches())
    image, small = Image.frombytes("RGBA", (wide, high), buffer.getvalue()), io.BytesIO()
    # A palette takes a third of the size; maximum coverage keeps rare colours (thin lines).
    palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    palette.save(small, "png", compress_level=_COMPRESSION)
    return small.getvalue()


Kind = Literal["data", "sampling", "band", "belief", "axis"]
_PIXELS, _POINTS = 96, 72
"""CSS pixels and points in an inch."""
_TICK_LENGTH, _LABEL_OFFSET = 3.0, 15.0
"""Length of ticks, and distance of labels from the axis, in CSS pixels."""


@dataclass(frozen=True)
class Shape:
    """An SVG path, or a text.

    Attributes:
        kind: what the shape shows; determines its colour.
        path: the SVG outline; empty for a text.
        width: line width; 0 if the shape is filled.
        step: index of the power at which it is shown; None for all.
        text, x, y, angle: the text and the position of its middle (of its end, if rotated).
    """

    kind: Kind
    path: str = ""
    width: float = 0.0
    step: int | None = None
    text: str = ""
    x: float = 0.0
    y: float = 0.0
    angle: float = 0.0


@dataclass(frozen=True)
class RescaledShapes:
    """Shapes that are rescaled with the density axis.

    Attributes:
        shapes: at the saved power.
        transforms: an SVG transform for every power.
    """

    shapes: tuple[Shape, ...]
    transforms: tuple[str, ...]


@dataclass(frozen=True)
class LayeredFigure:
    """A figure of one judge.

    Attributes:
        title: a short description.
        alt: the alternative text.
        width, height: in CSS pixels.
        shapes: shapes that are not rescaled.
        rescaled: shapes that are rescaled with the density axis, by panel.
        backdrop: the image under the shapes.
        flat_steps: the powers at which a panel is labelled flat.
    """

    title: str
    alt: str
    width: int
    height: int
    shapes: tuple[Shape, ...]
    rescaled: tuple[RescaledShapes, ...] = ()
    backdrop: Picture | None = None
    flat_steps: tuple[int, ...] = ()

    @property
    def shapes_by_step(self) -> list[tuple[int | None, list[Shape]]]:
        """The shapes shown at all powers, then those of each power; paths of a kind are joined."""
        steps = {shape.step for shape in self.shapes}
        groups = []
        for step in sorted(steps, key=lambda step: -1 if step is None else step):
            shapes = [shape for shape in self.shapes if shape.step == step]
            paths: dict[tuple[Kind, float], list[str]] = {}
            for shape in shapes:
                if not shape.text:
                    paths.setdefault((shape.kind, shape.width), []).append(shape.path)
            joined = [
                Shape(kind, "".join(group), step=step, width=width)
                for (kind, width), group in paths.items()
            ]
            groups.append((step, [*joined, *(shape for shape in shapes if shape.text)]))
        return groups


@dataclass(frozen=True)
class _PixelTransform:
    """Converts display units of a figure to CSS pixels, downwards."""

    scale: float
    height: float

    @classmethod
    def of(cls, artist: Artist) -> _PixelTransform:
        figure = artist.get_figure(root=True)
        assert isinstance(figure, Figure)
        return cls(_PIXELS / figure.dpi, _PIXELS * float(figure.get_size_inches()[1]))

    def __call__(self, x: float, y: float) -> tuple[float, float]:
        return self.scale * float(x), self.height - self.scale * float(y)


def extract_shapes(artists: Iterable[Artist], kind: Kind, step: int | None = None) -> list[Shape]:
    """Convert artists to shapes, without empty ones, and remove them from their figure."""
    shapes = []
    for artist in artists:
        if isinstance(artist, Text):
            at = artist.get_transform().transform(artist.get_position())
            x, y = _PixelTransform.of(artist)(*at)
            text = artist.get_text()
            shapes.append(Shape(kind, step=step, text=text, x=round(x, 1), y=round(y, 1)))
        else:
            shapes.extend(_trace_paths(artist, kind, step))
        artist.remove()
    return [shape for shape in shapes if shape.path or shape.text]


def axis_shapes(axes: Axes) -> list[Shape]:
    """Return the line, ticks and labels of the axis below a panel."""
    screen, low, high = _PixelTransform.of(axes), *axes.get_xlim()
    start, base = screen(*axes.transAxes.transform((0, 0)))
    end, _ = screen(*axes.transAxes.transform((1, 0)))
    lines, labels = f"M{start:.1f} {base:.1f}H{end:.1f}", []
    for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        if low <= tick <= high:
            x, _ = screen(*axes.transData.transform((tick, axes.get_ylim()[0])))
            lines += f"M{x:.1f} {base:.1f}v{_TICK_LENGTH:g}"
            angle = -float(label.get_rotation())
            x, y = round(x, 1), round(base + _LABEL_OFFSET, 1)
            labels.append(Shape("axis", text=label.get_text(), x=x, y=y, angle=angle))
    return [Shape("axis", lines, width=0.7), *labels]


def axis_transforms(axes: Axes, tops: Iterable[float], saved_top: float) -> tuple[str, ...]:
    """Return SVG transforms from an axis that ends at `saved_top` to axes that end at `tops`."""
    _, base = _PixelTransform.of(axes)(*axes.transAxes.transform((0, 0)))
    factors = [saved_top / top for top in tops]
    return tuple(f"matrix(1 0 0 {f:.4g} 0 {base * (1 - f):.4g})" for f in factors)


def css_size(figure: Figure) -> tuple[int, int]:
    """Return width and height in CSS pixels."""
    width, height = (round(_PIXELS * inches) for inches in figure.get_size_inches())
    return width, height


def _trace_paths(artist: Artist, kind: Kind, step: int | None) -> list[Shape]:
    """Return one shape for each path of a line, a patch or a collection."""
    filled = False
    if isinstance(artist, Line2D):
        paths, widths = [artist.get_path()], [artist.get_linewidth()]
    elif isinstance(artist, Patch):
        paths, widths, filled = [artist.get_path()], [0.0], artist.get_fill()
    else:
        assert isinstance(artist, Collection)
        paths, widths = list(artist.get_paths()), np.atleast_1d(artist.get_linewidth()).tolist()
        filled = kind == "band"
    screen, transform = _PixelTransform.of(artist), artist.get_transform()

    def outline(path: Path) -> str:
        """Return a path as an SVG path, without redundant points."""
        parts = []
        segments = transform.transform_path(path).iter_segments(simplify=True, curves=False)
        for vertex, code in segments:
            x, y = screen(*vertex)
            letter = "M" if code == Path.MOVETO else "L"
            parts.append("Z" if code == Path.CLOSEPOLY else f"{letter}{x:.1f} {y:.1f}")
        return "".join(parts)

    widths = [0.0 if filled else round(float(width) * _PIXELS / _POINTS, 2) for width in widths]
    return [
        Shape(kind, outline(path), width, step)
        for path, width in zip(paths, itertools.cycle(widths), strict=False)
    ]
