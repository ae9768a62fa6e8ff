"""`llm-elicit cache`: the answers that runs share."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_elicit._util.text import visible
from llm_elicit.cli.options import AsJson, argument, option, out, print_json, show, table_of
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import cache as answer_cache
from llm_elicit.orchestrator.cache import Cache

cache_app = typer.Typer(
    add_completion=False,
    help="List, compare, verify or delete cached answers.",
    no_args_is_help=True,
)

Runs = Annotated[Path, option("Folder of the runs, which holds the cache.")]
Key = Annotated[str, argument("Key or unique prefix.")]
RUNS = Path("runs")
_MODEL_COLUMNS = ("model", "endpoint", "answers", "first", "last")
_KEY_COLUMNS = ("key", "replicate", "saved at", "end of the question")


@contextmanager
def _opened(runs: Path) -> Iterator[Cache]:
    if not (runs / answer_cache.FILE).is_file():
        raise InputError(
            f"{runs / answer_cache.FILE}: no saved answers here; name the runs folder with --runs"
        )
    with closing(answer_cache.Cache(runs / answer_cache.FILE)) as cache:
        yield cache


@cache_app.command("list")
def list_command(
    model: Annotated[str, option("Model whose entries are listed, newest last.")] = "",
    last: Annotated[int, option("With --model: number of entries to list.", min=1)] = 20,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Count the answers of every model; with --model, list its entries."""
    with _opened(runs) as cache:
        entries = _keys(cache, model, last) if model else _models(cache)
    rows = [
        [f"{v:,}" if isinstance(v, int) else visible(v) for v in entry.values()]
        for entry in entries
    ]
    show(entries, [table_of(_KEY_COLUMNS if model else _MODEL_COLUMNS, rows)], as_json)


def _models(cache: Cache) -> list[dict[str, Any]]:
    """Return the number of answers of each model and endpoint, and their first and last day."""
    days: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in cache.entries():
        days[entry.request["model"], entry.request["endpoint"]].append(entry.kept_at[:10])
    rows = ((*key, len(dates), min(dates), max(dates)) for key, dates in sorted(days.items()))
    return [dict(zip(_MODEL_COLUMNS, row, strict=True)) for row in rows]


def _keys(cache: Cache, model: str, last: int) -> list[dict[str, Any]]:
    """Return the key, replicate, time and question of a model's `last` entries."""
    records = []
    for entry in deque((e for e in cache.entries() if e.request["model"] == model), last):
        question = " ".join(str((entry.request["body"].get("messages") or [""])[-1]).split())
        replicate, saved_at = entry.request["replicate"], entry.kept_at[:19]
        record = {"key": entry.key[:16], "replicate": replicate, "kept": saved_at}
        records.append(record | {"question": question[-60:]})
    return records


@cache_app.command("explain")
def explain_command(first: Key, second: Key, runs: Runs = RUNS, as_json: AsJson = False) -> None:
    """Show the fields in which two cached requests differ."""
    with _opened(runs) as cache:
        requests = cache.find(first).request, cache.find(second).request
        differences = answer_cache.differences(*requests)
    records = [{"field": path, "first": a, "second": b} for path, a, b in differences]
    lines = [f"{path}: {_short(a)} | {_short(b)}" for path, a, b in differences]
    show(records, lines or ["the same request"], as_json)


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 200 else f"{text[:97]} ... {text[-97:]}"


@cache_app.command("prune")
def prune_command(
    days: Annotated[int | None, option("Delete answers older than this number of days.")] = None,
    model: Annotated[str, option("Delete answers of this model only.")] = "",
    key: Annotated[str, option("Delete the entry with this key or unique prefix.")] = "",
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Delete cached answers; a run that needs them asks and pays again."""
    if days is None and not model and not key:
        raise InputError("cache prune: say what to delete with --days, --model or --key")
    with _opened(runs) as cache:
        before = None if days is None else (datetime.now(UTC) - timedelta(days=days)).isoformat()
        exact = cache.find(key).key if key else ""
        keys = [
            entry.key
            for entry in cache.entries(exact)
            if (before is None or entry.kept_at < before)
            and (not model or entry.request["model"] == model)
        ]
        count = cache.remove(keys)
    show({"deleted": count}, [f"{count:,} answers deleted"], as_json)


@cache_app.command("verify")
def verify_command(runs: Runs = RUNS, as_json: AsJson = False) -> None:
    """Verify the digests of all requests and answers."""
    with _opened(runs) as cache:
        damage = cache.integrity_error()
        if damage is not None:
            raise InputError(
                f"{cache.path}: {damage}; move the file away: only saved answers are lost"
            )
        count, faults = 0, {}
        for entry in cache.entries():
            count += 1
            fault = entry.fault()
            if fault is not None:
                faults[entry.key] = fault
                if not as_json:
                    out.print(f"{entry.key[:16]}: {fault}")
    if as_json:
        print_json({"answers": count, "faults": faults})
    if faults:
        raise InputError(
            f"{cache.path}: {len(faults)} of {count} entries fail verification; delete each with "
            f"`llm-elicit cache prune --key {next(iter(faults))[:16]}`"
        )
    if not as_json:
        out.print(f"{count:,} answers; all digests are correct")
