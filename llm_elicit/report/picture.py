"""A figure as a page shows it: rendered for light and for dark, with words for those who listen."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure
from PIL import Image

from llm_elicit.report.style import darkened, drawing


@dataclass(frozen=True)
class Picture:
    """A figure rendered for light and dark pages.

    Attributes:
        title: what it shows, in a few words.
        alt: what it shows, for those who do not see it.
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
    """A figure drawn for a light page, as SVG: dark, it is the same file in other colours."""
    light = render(figure, "svg")
    return Picture(title, alt, "image/svg+xml", *_pixels(figure), light, darkened(light))


def paint_picture(light: Figure, dark: Figure, title: str, alt: str) -> Picture:
    """A figure of many points, painted as PNG from its drawing for light pages and for dark."""
    images = render(light, "png"), render(dark, "png")
    return Picture(title, alt, "image/png", *_pixels(light), *images)


def _pixels(figure: Figure) -> tuple[int, int]:
    """Width and height in CSS pixels."""
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return width, height


def render(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a file, "svg" or "png"; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with drawing():
        stamp = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=130, metadata=stamp)
    return _fewer_colours(buffer) if kind == "png" else buffer.getvalue()


def _fewer_colours(buffer: io.BytesIO) -> bytes:
    """The same PNG with a palette: a figure of few colours takes a third of the room."""
    small = io.BytesIO()
    with Image.open(buffer) as image:
        # Maximum coverage keeps rare colours, a thin line's, as they are.
        palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
        palette.save(small, "png", optimize=True)
    return small.getvalue()
