"""Jinja2's sandbox, and the trial of a template in a process of its own, with limits.

A template can run for ever, or fill the memory, in many ways: nested loops, macros that call
themselves, a text of a billion blanks. A process can be stopped whatever it does, on every system
and from every thread, so that is where a template is first compiled and filled in.
This file is that process's program, too: it imports nothing of the package.
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

SECONDS = 2
"""Seconds of processor time that a trial may take."""

LONGEST = 1_000_000
"""Characters that a filled-in template may have."""

_PATIENCE = 60.0
"""Seconds to wait for a trial, where the processor's time cannot be limited or is others'."""

_BYTES = 1 << 30
"""Memory that a trial may take."""

_COUNTERS = frozenset({"index", "index0", "first", "last", "length"})


class TrialError(Exception):
    """What a template does wrong, in a few words."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox, which takes a loop's own counters for safe without looking them up.

    The look is most of what wording a question takes.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is LoopContext and attribute in _COUNTERS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def sandbox() -> jinja2.Environment:
    """Return the environment in which templates are compiled."""
    return _Sandbox(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=False)


def fill_in(parts: Sequence[str], samples: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the parts of a template as text, for each sample of its variables.

    They are filled in by another process, within limits of time, memory and length.

    Raises:
        TrialError: the template is not valid, fails, or goes beyond a limit.
    """
    return _tried(json.dumps({"parts": parts, "samples": samples}))


@lru_cache(maxsize=64)
def _tried(given: str) -> list[list[str]]:
    try:
        done = subprocess.run(
            # -P: the folder of this file has modules with names of the standard library's.
            [sys.executable, "-P", __file__],
            input=given.encode(),
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            # Ctrl-C is for the parent.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise TrialError(
            f"it takes more than {_PATIENCE:.0f} s to fill in; see its loops"
        ) from None
    if done.returncode or not done.stdout:
        raise TrialError(f"it takes more than {SECONDS} s or 1 GB to fill in; see its loops")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise TrialError(answer["error"])
    texts: list[list[str]] = answer["texts"]
    return texts


def _serve() -> None:
    """In the process of its own: fill in what is given on standard input."""
    _limit()
    given = json.load(sys.stdin)
    try:
        environment = sandbox()
        sources = [environment.from_string(part) for part in given["parts"]]
        texts = [[_text(source, sample) for source in sources] for sample in given["samples"]]
        answer: dict[str, Any] = {"texts": texts}
    except Exception as error:
        answer = {"error": explained(error)}
    json.dump(answer, sys.stdout)


def _text(source: jinja2.Template, sample: Mapping[str, Any]) -> str:
    pieces, length = [], 0
    for piece in source.generate(sample):
        length += len(piece)
        if length > LONGEST:
            raise ValueError(f"the question has more than {LONGEST:,} characters")
        pieces.append(piece)
    return "".join(pieces).strip()


def explained(error: Exception) -> str:
    """Return what went wrong in a template, in a few words."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"not valid Jinja2: {error.message}"
    if isinstance(error, RecursionError):
        return "it calls itself, or is nested, too deep"
    if isinstance(error, MemoryError):
        return "it takes too much memory to fill in"
    return str(error) or type(error).__name__


def _limit() -> None:
    """Limit this process's time and memory, where the system can."""
    with suppress(ImportError, ValueError, OSError):
        resource = import_module("resource")
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    _serve()
