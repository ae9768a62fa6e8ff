"""Rendering of figures as image files, in the light and the dark theme of the density core."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageColor

from llm_elicit.density.plots.style import DARK, LIGHT, Theme

_IN_DARK = {
    getattr(LIGHT, part.name).encode(): getattr(DARK, part.name).encode()
    for part in fields(Theme)
    if part.name != "name"
}
_DPI = 130  # of PNG
_COMPRESSION = 6  # to optimize takes six times as long and saves a tenth
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
        image.save(turned, "png", compress_level=_COMPRESSION)
    return turned.getvalue()


def _pixels(figure: Figure) -> tuple[int, int]:
    """Return width and height in CSS pixels."""
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return width, height


def render(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """Return a figure as the bytes of an image file, reproducibly.

    Its parts are laid out once: they stay where the first rendering puts them.
    """
    buffer = io.BytesIO()
    with drawing():
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        if kind == "svg":
            figure.savefig(buffer, format="svg", metadata={"Date": None})
            return buffer.getvalue()
        figure.savefig(buffer, format="rgba", dpi=_DPI)
    wide, high = (int(_DPI * inches) for inches in figure.get_size_inches())
    return _fewer_colours(Image.frombytes("RGBA", (wide, high), buffer.getvalue()))


def _fewer_colours(image: Image.Image) -> bytes:
    """Return an image as a PNG with a palette, which has a third of the size."""
    small = io.BytesIO()
    # Maximum coverage keeps rare colours, such as a thin line's.
    palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    palette.save(small, "png", compress_level=_COMPRESSION)
    return small.getvalue()
