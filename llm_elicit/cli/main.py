"""The command line: its commands, each one call of the Python API, and how they end.

A command ends with an exit code, one line on standard error if anything went wrong, and at the
signals that stop it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llm_elicit._util.packages import package_version
from llm_elicit._util.text import visible
from llm_elicit.errors import STOPPED, ElicitError, InputError

COMMANDS = {
    "run.run": "Plan, ask, fit, audit and report. Run it again to resume.",
    "run.repeat": "Ask the same judges the same questions again, in a new run.",
    "run.estimate": "Estimate questions, tokens and cost; send nothing.",
    "run.plan": "Validate a campaign and draw its pairs.",
    "run.ask": "Ask the questions that have no answer yet.",
    "run.fit": "Estimate every judge's belief from its answers.",
    "run.audit": "Compare the beliefs with the data.",
    "run.report": "Write the report, its figures and its tables.",
    "status.status": "Show the progress of each judge, even while the run works.",
    "status.pause": "Pause a run of another process, after the answers in flight.",
    "status.resume": "Resume a paused run of another process, or change its limits.",
    "status.cancel": "End a run of another process; every answer received is kept.",
    "status.export": "Export the answers as a table, or the run for Inspect and others.",
    "run.import": "Import judgments from a file into a run, to fit and report them.",
    "compare.compare": "Compare judges with each other and the data, or repeats.",
    "compare.panel": "Compare judges over many spaces, and pool their beliefs.",
    "pilot.pilot": "Ask a few pairs with every template; compare reliability and cost.",
    "pilot.power": "Simulate how many pairs answer a question, and their cost.",
    "pilot.register": "Register a study before asking, or check a registered one.",
    "status.bundle": "Write the live page of a run, finished or not, as one HTML file.",
    "status.serve": "Serve campaigns over HTTP; Ctrl-C waits for answers in flight.",
    "models.backends": "List the backends that a campaign can name.",
    "models.models": "List or download local models, list providers, check a judge.",
    "models.space": "Draft feature spaces from tables.",
    "cache.cache": "List, compare, verify or delete cached answers.",
}
"""The first line of every command's help, by its module and its name."""

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


def load(name: str) -> Any:
    """Import a command, or a group of commands, and return it as Typer calls it."""
    path = next(path for path in COMMANDS if path.endswith(f".{name}"))
    module = import_module(f"llm_elicit.cli.{path.removesuffix(f'.{name}')}")
    group = getattr(module, f"{name}_app", None)
    if group is None:
        group = typer.Typer(add_completion=False)
        group.command(name)(getattr(module, f"{name}_command"))
    return typer.main.get_command(group)


class _Commands(CommandGroup):
    """The commands; the module of one is imported when it is called, so that `--help` is fast."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and the arguments that are left."""
        name, command, remaining = super().resolve_command(ctx, args)
        return name, command and load(str(name)), remaining


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"llm-elicit {package_version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """What does a language model believe, as a probability density?"""
    del version  # its callback has printed it


for _path, _help in COMMANDS.items():
    app.command(_path.rpartition(".")[2], help=_help)(lambda: None)


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


def main() -> None:
    """Run the command line: one clear line and an exit code for every error."""
    # Figures are drawn to files only. With a backend that does not exist, Matplotlib cannot be
    # imported.
    os.environ["MPLBACKEND"] = "agg"
    sys.exit(run_app(app))
