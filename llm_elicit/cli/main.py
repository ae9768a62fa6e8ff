"""The command line: every command is one call of the Python API."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from llm_elicit._util.packages import package_version
from llm_elicit.cli import control, estimate, run, status
from llm_elicit.cli.cache import cache_app
from llm_elicit.cli.compare import compare_command
from llm_elicit.cli.exit_codes import CommandGroup, run_app
from llm_elicit.cli.models import backends_command, models_app
from llm_elicit.cli.options import out
from llm_elicit.cli.pilot import pilot_command
from llm_elicit.cli.serve import bundle_command, serve_command
from llm_elicit.cli.space import space_app

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        out.print(f"llm-elicit {package_version()}")
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


app.command("run")(run.run_command)
app.command("estimate")(estimate.estimate_command)
app.command("plan")(run.plan_command)
app.command("ask")(run.ask_command)
app.command("fit")(run.fit_command)
app.command("audit")(run.audit_command)
app.command("report")(run.report_command)
app.command("status")(status.status_command)
app.command("pause")(control.pause_command)
app.command("resume")(control.resume_command)
app.command("cancel")(control.cancel_command)
app.command("export")(status.export_command)
app.command("compare")(compare_command)
app.command("pilot")(pilot_command)
app.command("bundle")(bundle_command)
app.command("serve")(serve_command)
app.command("backends")(backends_command)
app.add_typer(models_app, name="models")
app.add_typer(space_app, name="space")
app.add_typer(cache_app, name="cache")


def main() -> None:
    """Run the command line: one clear line and an exit code for every error."""
    # Figures are drawn to files only. With a backend that does not exist, Matplotlib cannot be
    # imported.
    os.environ["MPLBACKEND"] = "agg"
    sys.exit(run_app(app))
