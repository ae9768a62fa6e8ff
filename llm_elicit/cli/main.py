"""The command line: every command is one call of the Python API."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from llm_elicit._util.packages import package_version
from llm_elicit.cli.exit_codes import CommandGroup, run_app

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
    "status.pause": "Pause a run of another process once answers in flight have arrived.",
    "status.resume": "Resume a paused run of another process, or change its limits.",
    "status.cancel": "End a run of another process; every answer received is kept.",
    "status.export": "Export the answers as a table, or the run for Inspect and others.",
    "run.import": "Import judgments from a file into a run, to fit and report them.",
    "compare.compare": "Compare judges with each other and the data, or a run with its repeats.",
    "compare.panel": "Show judges over many spaces: what beliefs are worth in rows, and pools.",
    "pilot.pilot": "Ask a few pairs with every template; compare reliability and cost.",
    "pilot.power": "Simulate campaigns: how many pairs answer a question, and what they cost.",
    "pilot.register": "Freeze a study before asking; or check it, with its registered results.",
    "status.bundle": "Write the live page of a run, finished or not, as one HTML file.",
    "status.serve": "Serve campaigns over HTTP; Ctrl-C waits for answers in flight.",
    "models.backends": "List the backends that a campaign can name.",
    "models.models": "List the local models, download one, list providers, or check a judge.",
    "models.space": "Draft feature spaces from tables.",
    "cache.cache": "List, compare, verify or delete cached answers.",
}
"""The first line of every command's help, by its module and its name."""


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


def main() -> None:
    """Run the command line: one clear line and an exit code for every error."""
    # Figures are drawn to files only. With a backend that does not exist, Matplotlib cannot be
    # imported.
    os.environ["MPLBACKEND"] = "agg"
    sys.exit(run_app(app))
