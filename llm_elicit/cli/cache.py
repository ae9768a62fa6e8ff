"""`llm-elicit cache`: the answers that are kept across runs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.cli.options import out
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit.orchestrator import cache as answer_cache
    from llm_elicit.orchestrator import request_identity
    from llm_elicit.orchestrator.cache import Cache
else:
    answer_cache = LazyModule("llm_elicit.orchestrator.cache")
    request_identity = LazyModule("llm_elicit.orchestrator.request_identity")

cache_app = typer.Typer(help="The answers kept across runs.", no_args_is_help=True)

Runs = Annotated[Path, typer.Option(help="The folder of the runs; the cache lies in it.")]
Key = Annotated[str, typer.Argument(help="A key, or as much of its beginning as is unique.")]
RUNS = Path("runs")


@contextmanager
def _opened(runs: Path) -> Iterator[Cache]:
    if not (runs / answer_cache.FILE).is_file():
        raise InputError(
            f"{runs / answer_cache.FILE}: no answers are kept here; name the folder with --runs"
        )
    with closing(answer_cache.Cache(runs / answer_cache.FILE)) as cache:
        yield cache


@cache_app.command("list")
def list_command(
    model: Annotated[str, typer.Option(help="List this model's entries, newest last.")] = "",
    last: Annotated[int, typer.Option(help="So many of them.", min=1)] = 20,
    runs: Runs = RUNS,
) -> None:
    """Count the answers by model; with --model, list their keys."""
    with _opened(runs) as cache:
        out.print(_keys(cache, model, last) if model else _models(cache))


def _models(cache: Cache) -> Table:
    counts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in cache.entries():
        request = entry.request
        counts[request["model"], request["endpoint"]].append(entry.kept_at)
    table = Table("model", "endpoint", "answers", "first", "last", box=None)
    for (model, endpoint), times in sorted(counts.items()):
        table.add_row(model, endpoint, f"{len(times):,}", min(times)[:10], max(times)[:10])
    return table


def _keys(cache: Cache, model: str, last: int) -> Table:
    table = Table("key", "replicate", "kept", "the question's end", box=None)
    for entry in deque((e for e in cache.entries() if e.request["model"] == model), last):
        request = entry.request
        question = " ".join(str((request["body"].get("messages") or [""])[-1]).split())
        row = (
            entry.key[:16],
            str(request["replicate"]),
            entry.kept_at[:19],
            visible(question[-60:]),
        )
        table.add_row(*row)
    return table


@cache_app.command("explain")
def explain_command(one: Key, two: Key, runs: Runs = RUNS) -> None:
    """Name the fields in which two requests differ, so that they do not share an answer."""
    with _opened(runs) as cache:
        found = request_identity.differences(cache.find(one).request, cache.find(two).request)
    for path, a, b in found:
        out.print(f"{path}: {_short(a)} | {_short(b)}")
    if not found:
        out.print("the same request")


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 200 else f"{text[:97]} ... {text[-97:]}"


@cache_app.command("prune")
def prune_command(
    days: Annotated[int | None, typer.Option(help="Delete answers older than this.")] = None,
    model: Annotated[str, typer.Option(help="Delete only this model's answers.")] = "",
    key: Annotated[str, typer.Option(help="Delete the entry with this key.")] = "",
    runs: Runs = RUNS,
) -> None:
    """Delete answers and free their space; they are asked and paid for again when needed."""
    if days is None and not model and not key:
        raise InputError("cache prune: say what to forget with --days, --model or --key")
    with _opened(runs) as cache:
        before = None if days is None else (datetime.now(UTC) - timedelta(days=days)).isoformat()
        exact = cache.find(key).key if key else ""
        gone = [
            entry.key
            for entry in cache.entries(exact)
            if (before is None or entry.kept_at < before)
            and (not model or entry.request["model"] == model)
        ]
        out.print(f"{cache.remove(gone):,} answers forgotten")


@cache_app.command("verify")
def verify_command(runs: Runs = RUNS) -> None:
    """Verify the digest of every request and of every answer."""
    with _opened(runs) as cache:
        damage = cache.damage()
        if damage is not None:
            raise InputError(f"{cache.path}: {damage}; move the file away: only savings are lost")
        count, faults = 0, []
        for entry in cache.entries():
            count += 1
            fault = entry.fault()
            if fault is not None:
                faults.append(entry.key)
                out.print(f"{entry.key[:16]}: {fault}")
    if faults:
        raise InputError(
            f"{cache.path}: {len(faults)} of {count} entries cannot be trusted; forget each with "
            f"`llm-elicit cache prune --key {faults[0][:16]}`"
        )
    out.print(f"{count:,} answers, every one proven")
