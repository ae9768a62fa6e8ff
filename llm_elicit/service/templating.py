"""The environment in which the service's pages are rendered: everything is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2

_FOLDER = Path(__file__).parent / "templates"


@cache
def environment() -> jinja2.Environment:
    """Return the environment of the templates in `service/templates/`."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
