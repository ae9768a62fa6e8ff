"""Jinja2's sandbox, in which the turns of templates are compiled."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

_COUNTERS = frozenset({"index", "index0", "first", "last", "length"})


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox without its check of a loop's counters, which are safe.

    That check takes most of the time of rendering a question.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is LoopContext and attribute in _COUNTERS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


_ENVIRONMENT = _Sandbox(undefined=jinja2.StrictUndefined, autoescape=False)


@lru_cache(maxsize=64)  # every stage opens the templates of the run
def compiled(source: str) -> tuple[jinja2.Template, tuple[str, ...]]:
    """Return a compiled turn, and the names of its variables."""
    names = meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
    return _ENVIRONMENT.from_string(source), tuple(sorted(names))


def describe_error(error: Exception) -> str:
    """Return an error in a template as a short phrase."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"not valid Jinja2: {error.message}"
    if isinstance(error, RecursionError):
        return "the template is recursive or nested too deeply"
    return str(error) or type(error).__name__
