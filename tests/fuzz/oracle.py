"""What may become of an input: success or one clear line, in time. Everything else is a defect."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy
from typer.testing import CliRunner

from llm_elicit.cli import main as cli
from llm_elicit.density.errors import DensityError
from llm_elicit.errors import ElicitError

T = TypeVar("T")
Kind = Literal["success", "clear error", "failure"]

SECONDS = 60.0
"""More than this without an end is a defect."""

MEMORY = 6 * 2**30
"""Bytes: what asks for more is refused by the system, so that the machine lives on."""

INPUTS = {"campaigns": 60, "spaces": 15, "tables": 30, "templates": 20, "replies": 30, "damage": 8}
"""How many of a kind are tried by default. A campaign of replies is ten inputs."""

SHARES = {"campaigns": 0.34, "spaces": 0.08, "tables": 0.16, "templates": 0.16, "replies": 0.2,
          "damage": 0.06}  # fmt: skip
"""Of all inputs, where `FUZZ_INPUTS` says how many there are: damage takes seconds each."""


def inputs(kind: str) -> int:
    """How many inputs of a kind to try."""
    whole = os.environ.get("FUZZ_INPUTS")
    return INPUTS[kind] if whole is None else max(round(SHARES[kind] * int(whole)), 2)


@dataclass(frozen=True)
class Outcome:
    """What became of one input.

    Attributes:
        kind: what it was.
        said: the line, or what was wrong; after success, all that was written.
    """

    kind: Kind
    said: str = ""


TALLY: Counter[tuple[str, Kind]] = Counter()
"""How many inputs of each sort ended how, for the summary."""


class TooLongError(BaseException):
    """An input took more than `SECONDS`. No handler of exceptions must catch it."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Within, time and memory have an end."""

    def ring(*_: object) -> None:
        raise TooLongError

    alone = threading.current_thread() is threading.main_thread()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, hard))
    before = signal.signal(signal.SIGALRM, ring) if alone else None
    if alone:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        if alone:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def attempt(work: Callable[[], object]) -> Outcome:
    """Call something of the package and say what became of it."""
    began = time.monotonic()
    try:
        with limited():
            work()
    except (ElicitError, DensityError) as error:
        return clear(str(error))
    except TooLongError:
        return Outcome("failure", f"no end after {time.monotonic() - began:.0f} s")
    except Exception as error:
        return Outcome("failure", where(error))
    return Outcome("success")


def clear(message: str) -> Outcome:
    """An error on purpose: one line of a length that is read."""
    if not message.strip():
        return Outcome("failure", "an error without a word")
    if "\n" in message or len(message) > 1_500:
        return Outcome("failure", f"not one line ({len(message)} characters): {message[:100]!r}")
    return Outcome("clear error", message)


def where(error: BaseException) -> str:
    """An exception with the line of this package that it came through."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "llm_elicit" in code.co_filename:
            place = f"{code.co_filename.split('llm_elicit/')[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {str(error)[:200]} ({place})"


def command(*arguments: str) -> Outcome:
    """What becomes of a command line, in this process."""
    result = None

    def work() -> None:
        nonlocal result
        result = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200"})

    outcome = attempt(work)
    if outcome.kind != "success":
        return outcome
    assert result is not None
    error = result.exception
    if error is None or (isinstance(error, SystemExit) and result.exit_code == 0):
        traced = "Traceback" in result.output
        said = "a traceback beside success" if traced else result.output
        return Outcome("failure" if traced else "success", said)
    if isinstance(error, SystemExit):
        line = (result.output.strip().splitlines() or [""])[-1]
        return Outcome("clear error", line) if line else Outcome("failure", "no word")
    if isinstance(error, ElicitError | DensityError):
        return clear(str(error))
    return Outcome("failure", where(error))


def fuzz(
    kind: str, strategy: SearchStrategy[T], work: Callable[[T], Outcome], together: int = 1
) -> None:
    """Try inputs of a strategy; a failure is made small and shown.

    One call of `work` may try several inputs together.

    With `FUZZ_INPUTS` set every failure is counted and shown at the end, none made small.
    """
    collected: dict[str, list[str]] = {}
    counting = "FUZZ_INPUTS" in os.environ

    @settings(
        max_examples=max(inputs(kind) // together, 2), deadline=None, derandomize=True,
        database=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def one(value: T) -> None:
        outcome = work(value)
        TALLY[kind, outcome.kind] += together
        if outcome.kind != "failure":
            return
        text = f"{kind}: {' '.join(outcome.said.split())}"
        if not counting:
            raise AssertionError(text)
        sort = _sort(text)
        if sort not in collected:
            sys.stderr.write(f"\n{text}\n    {value!r}\n"[:1_200])
        collected.setdefault(sort, []).append(text)

    one()
    assert not collected, "\n".join(f"{len(all_)} x {all_[0]}" for all_ in collected.values())


def _sort(text: str) -> str:
    """What failures of one sort have in common: their examples, numbers and names differ."""
    said, *place = re.split(r" \(| \[", text, maxsplit=1)
    return re.sub(r"\d+|'[^']*'", "#", said)[:60] + re.sub(r" \[.*", "", place[0] if place else "")
