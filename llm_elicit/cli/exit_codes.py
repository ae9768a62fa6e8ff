"""How a command ends: its exit code, one line on standard error, and the signals that stop it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from llm_elicit._util.text import visible
from llm_elicit.errors import STOPPED, ElicitError, InputError

DEBUG = "LLM_ELICIT_DEBUG"
"""The environment variable that shows tracebacks."""

_LIKE_CTRL_C = ("SIGTERM", "SIGHUP")


class _StoppedError(Exception):
    """The user stopped the command; Typer would end on a KeyboardInterrupt without a message."""


class CommandGroup(TyperGroup):
    """The group of commands; it passes interruptions on to `run_app`."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Call the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _StoppedError from None
        except EOFError as error:
            raise InputError(f"a file is truncated ({error})") from None


def run_app(commands: Callable[[], object]) -> int:
    """Call the commands and return the exit code; print one line if anything goes wrong."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are printed as their code points.
        with suppress(AttributeError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with _interruptions() as received:
        try:
            commands()
        except _StoppedError:
            _say("stopped; every answer received is kept: run again to resume")
            return 128 + received[0] if received else STOPPED
        except OSError as error:
            # Libraries in C have messages of their own.
            file = error.filename and visible(str(error.filename), 200)
            problem = f"{file}: {error.strerror}" if file else error
            _say(f"error: {problem}; check the path, its permissions and the disk's space")
            return InputError.exit_code
        except Exception as error:
            core = sys.modules.get("llm_elicit.density.errors")
            if isinstance(error, ElicitError) or (core and isinstance(error, core.DensityError)):
                _say(f"error: {error}")
                return getattr(error, "exit_code", InputError.exit_code)
            if os.environ.get(DEBUG):
                raise
            _say(
                f"internal error: {type(error).__name__}: {error}; this is a defect of "
                f"llm-elicit, please report it; {DEBUG}=1 shows where it happened"
            )
            return ElicitError.exit_code
    return 0


def _say(line: str) -> None:
    sys.stderr.write(visible(line, 9999) + "\n")


@contextmanager
def _interruptions() -> Iterator[list[int]]:
    """Treat SIGTERM and SIGHUP as Ctrl-C within the block; yield the list of those received.

    While questions are asked, the first one stops sending and waits for the answers in flight.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        # In an event loop this is the loop's handler, which cancels the task.
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(number, frame)

    before: dict[int, Any] = {}
    try:
        # Shells start background jobs with SIGINT ignored, but asyncio needs Python's handler.
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in _LIKE_CTRL_C:
            number = getattr(signal, name, None)
            # With `nohup`, SIGHUP is ignored and stays so.
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, interrupt)
    except ValueError:
        pass  # only the main thread can handle signals
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
