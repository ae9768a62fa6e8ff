"""A figure as a page shows it: rendered for light and for dark, with words for those who listen."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure
from PIL import Image

from llm_elicit.report.style import drawing


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


def make_picture(
    figures: tuple[Figure, Figure], title: str, alt: str, kind: Literal["svg", "png"]
) -> Picture:
    """A figure from its light and its dark drawing."""
    light, dark = (render(figure, kind) for figure in figures)
    width, height = (round(96 * inches) for inches in figures[0].get_size_inches())
    media: Literal["image/svg+xml", "image/png"] = "image/svg+xml" if kind == "svg" else "image/png"
    return Picture(title, alt, media, width, height, light, dark)


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
