"""Jinja2's sandbox, and the rendering of new templates in a separate process with limits.

A template can run for ever or fill the memory in many ways: nested loops, recursive macros, a
string of a billion blanks. A process can be stopped in any case, on every system and from every
thread, so each template is first compiled and rendered in a child process. This file is the child's
program too, so it imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

import jinja2
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SECONDS = 2
"""The limit on the processor time of a trial, in seconds."""

MAX_CHARACTERS = 1_000_000
"""The limit on the characters of a rendered template."""

_TIMEOUT = 60.0
"""Seconds to wait for a trial: processor time may be unlimited, or the machine may be busy."""

_BYTES = 1 << 30
"""The limit on the memory of a trial, in bytes."""

_COUNTERS = frozenset({"index", "index0", "first", "last", "length"})


class TrialError(Exception):
    """A template is invalid, fails, or exceeds a limit; the message is a short phrase."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox without its check of a loop's counters, which are safe.

    That check takes most of the time of rendering a question.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is LoopContext and attribute in _COUNTERS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def sandbox() -> jinja2.Environment:
    """Return the environment in which templates are compiled."""
    return _Sandbox(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=False)


def fill_in(parts: Sequence[str], samples: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Render the parts of a template for each sample of its variables.

    This is done by a child process with limits on time, memory and length.

    Raises:
        TrialError: the template is invalid, fails, or exceeds a limit.
    """
    return _render_in_child(json.dumps({"parts": parts, "samples": samples}))


@lru_cache(maxsize=64)
def _render_in_child(request: str) -> list[list[str]]:
    try:
        process = subprocess.run(
            # -P: modules in this folder have the same names as some of the standard library.
            [sys.executable, "-P", __file__],
            input=request.encode(),
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            # Ctrl-C must reach the parent only.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise TrialError(
            f"rendering the template takes more than {_TIMEOUT:.0f} s; check its loops"
        ) from None
    if process.returncode or not process.stdout:
        raise TrialError(
            f"rendering the template takes more than {MAX_SECONDS} s or 1 GB; check its loops"
        )
    answer = json.loads(process.stdout)
    if "error" in answer:
        raise TrialError(answer["error"])
    texts: list[list[str]] = answer["texts"]
    return texts


def _serve() -> None:
    """Render the templates given on standard input; runs in the child process."""
    _limit()
    request = json.load(sys.stdin)
    try:
        environment = sandbox()
        sources = [environment.from_string(part) for part in request["parts"]]
        texts = [[_text(source, sample) for source in sources] for sample in request["samples"]]
        answer: dict[str, Any] = {"texts": texts}
    except Exception as error:
        answer = {"error": describe_error(error)}
    json.dump(answer, sys.stdout)


def _text(source: jinja2.Template, sample: Mapping[str, Any]) -> str:
    pieces, length = [], 0
    for piece in source.generate(sample):
        length += len(piece)
        if length > MAX_CHARACTERS:
            raise ValueError(
                f"the question has more than {MAX_CHARACTERS:,} characters; shorten it"
            )
        pieces.append(piece)
    return "".join(pieces).strip()


def describe_error(error: Exception) -> str:
    """Return an error in a template as a short phrase."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"not valid Jinja2: {error.message}"
    if isinstance(error, RecursionError):
        return "the template is recursive or nested too deeply"
    if isinstance(error, MemoryError):
        return "rendering the template takes too much memory"
    return str(error) or type(error).__name__


def _limit() -> None:
    """Limit this process's time and memory, if the system supports that."""
    with suppress(ImportError, ValueError, OSError):
        resource = import_module("resource")
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    _serve()
