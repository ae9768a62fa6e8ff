"""`llm-elicit run`, the stages that it consists of, and `estimate`: what it would ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.rule import Rule

from llm_elicit._util.text import visible
from llm_elicit.cli import options as cli
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import batches as batch_mode
from llm_elicit.orchestrator import engine, estimates, rate_sharing
from llm_elicit.orchestrator import progress as displays
from llm_elicit.orchestrator.budget import Amount, check_cap, price_of
from llm_elicit.orchestrator.journal.questions import spent_in
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.pipeline import registration, repeats, run_folder, runtime, stages
from llm_elicit.pipeline.ask import with_cap
from llm_elicit.pipeline.cluster import make_beforehand, workers_at
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.planning import pairs, presentations


def run_command(
    campaign: cli.CampaignName,
    *,
    dry_run: Annotated[bool, cli.flag("--dry-run", "Only show the questions and cost.")] = False,
    max_cost: cli.MaxCost = None,
    cache: cli.CacheUse = "reuse",
    retry_failed: cli.RetryFailed = False,
    strict_version: cli.StrictVersion = False,
    cluster: cli.Cluster = None,
    service: cli.ServiceAddress = None,
    as_json: cli.AsJson = False,
) -> None:
    """Plan, ask, fit, audit and report. Run it again to resume."""
    if service is not None:
        if dry_run or max_cost is not None or cache != "reuse" or strict_version or cluster:
            raise InputError(
                "--service cannot be combined with --dry-run, --max-cost, --cache, "
                "--strict-version and --cluster; write a cap into the campaign"
            )
        from llm_elicit.cli.remote import run_there  # with the client

        run_there(service, campaign, retry_failed, as_json)
        return
    if dry_run:
        print_estimate(campaign, as_json, max_cost, with_examples=True)
        return

    asking = _asking(max_cost, retry_failed, strict_version) | {"cache": cache}
    cells = stages.plan_grid(campaign)
    runtime.ask_beforehand(cells, cluster=cluster, **asking)

    def work(cell: Run) -> cli.Outcome:
        return _run_outcome(runtime.run(cell, **asking))

    cli.for_each(cells, work, as_json, _condition_pages)


def _asking(max_cost: float | None, retry_failed: bool, strict_version: bool) -> dict[str, Any]:
    """Return how all cells of a grid are asked, with the rate limiters that they share."""
    limits = {"max_cost": max_cost, "limiters": rate_sharing.RateLimiters()}
    return limits | {"retry_failed": retry_failed, "strict_version": strict_version}


def repeat_command(
    run: cli.RunName,
    name: Annotated[
        str | None, cli.option("Name of the repeat; default: RUN.repeat-N.", None, "--as")
    ] = None,
    max_cost: cli.MaxCost = None,
    retry_failed: cli.RetryFailed = False,
    strict_version: cli.StrictVersion = False,
    as_json: cli.AsJson = False,
) -> None:
    """Ask the same judges the same questions again, in a new run."""
    asking = _asking(max_cost, retry_failed, strict_version)

    def work(cell: Run) -> cli.Outcome:
        return _run_outcome(runtime.ask_repeat(cell, **asking))

    cli.for_each(repeats.plan_repeats(run, name), work, as_json)


def _run_outcome(result: Run) -> cli.Outcome:
    """Return what a whole run prints."""
    facts = _report_facts(result)
    lines = [*_verdict_lines(result), f"report: {result.report_path}", *result.remarks]
    return cli.Outcome(lines, facts | {"remarks": result.remarks}, result.problems)


def _note(cell: Run) -> str:
    """Return notes on presentations, detectable effects, few rows and an unedited subject."""
    campaign = cell.campaign
    lines = [presentations.presentation_note(campaign.design, cell.space, campaign.seed)]
    lines += [pairs.detectable_note(campaign, cell.space)]
    with suppress(InputError):  # of a table that cannot be read
        rows = cell.space.table_rows()
        lines += [f"{rows}; {rows.scarce}"] if rows.scarce else []
    return "\n".join(filter(None, [*lines, cell.space.note]))


def plan_command(campaign: cli.CampaignName, as_json: cli.AsJson = False) -> None:
    """Validate a campaign and draw its pairs."""

    def work(cell: Run) -> cli.Outcome:
        design, direct = cell.campaign.design, len(cell.plan.direct)
        questions = f"{design.questions} questions per judge" + (
            f", {direct} direct" if direct else ""
        )
        facts = {"pairs": design.pairs, "questions": design.questions, "direct": direct}
        note = _note(cell)
        text = [f"{cell.folder}: {design.pairs} pairs, {questions}", *([note] if note else [])]
        return cli.Outcome(text, facts | ({"note": note} if note else {}))

    cli.for_each(stages.plan_grid(campaign), work, as_json)


def import_command(
    file: Annotated[Path, cli.argument("Table of judgments or rankings, or a PrefLib file.")],
    space: Annotated[str, cli.argument("The feature space of the items.")],
    id_column: Annotated[
        str | None, cli.option("Column of the space's table with the item names.", None, "--id")
    ] = None,
    judge: Annotated[str, cli.option("Name of the judge.")] = "imported",
    judge_column: Annotated[
        str | None, cli.option("Column of the file with the judges' names, if several.")
    ] = None,
    name: Annotated[str | None, cli.option("Name of the run; default: that of the file.")] = None,
    as_json: cli.AsJson = False,
) -> None:
    """Import judgments from a file into a run, to fit and report them."""
    from llm_elicit.pipeline.imports import import_judgments  # imports pandas

    run, notes = import_judgments(
        file, space, id_column=id_column, judge=judge, judge_column=judge_column, name=name
    )
    counts = ", ".join(f"{count:,} of {name}" for name, count in run.judgments.items())
    lines = [*notes, f"{run.folder}: {counts}; `llm-elicit run {run.folder}` fits and reports"]
    cli.show(cli.run_facts(run) | {"judgments": run.judgments, "notes": notes}, lines, as_json)


def ask_command(
    run: cli.RunName,
    *,
    max_cost: cli.MaxCost = None,
    cache: cli.CacheUse = "reuse",
    batch: Annotated[
        Literal["submit", "status", "collect", "wait"] | None,
        cli.option("Batches, at half the price: submit, status, collect or wait.", "STEP"),
    ] = None,
    every: Annotated[float, cli.option("Time between two polls.", "SECONDS", min=0.01)] = 60.0,
    resend: Annotated[bool, cli.flag("--resend", "Resubmit batches that got lost.")] = False,
    retry_failed: cli.RetryFailed = False,
    strict_version: cli.StrictVersion = False,
    as_json: cli.AsJson = False,
) -> None:
    """Ask the questions that have no answer yet."""
    if resend and batch not in ("submit", "wait"):
        raise InputError("--resend needs --batch submit or --batch wait")
    if batch == "status":
        cli.for_each(run_folder.open_runs(run), batches, as_json)
        return
    cells, options = stages.plan_grid(run), _asking(max_cost, retry_failed, strict_version)
    if batch == "wait" and len(cells) > 1:
        raise InputError(
            f"{run} is a grid, and its cells would wait for each other; use --batch submit now "
            "and --batch collect later"
        )

    def work(cell: Run) -> cli.Outcome:
        with displays.Display() as progress:
            asking = (
                stages.ask(cell, progress=progress, cache=cache, **options)
                if batch is None
                else stages.ask_in_batches(
                    cell, batch, every=every, resend=resend, progress=progress, **options
                )
            )
            result = asyncio.run(asking)
        if batch == "submit":
            return replace(batches(result), problems=result.problems)
        table = result.folder / run_folder.COMPARISONS
        text = f"{table}: {sum(result.judgments.values())} judgments"
        facts = {"table": table, "judgments": result.judgments, "remarks": result.remarks}
        return cli.Outcome([text, *result.remarks], facts, result.problems)

    cli.for_each(cells, work, as_json)


def fit_command(run: cli.RunName, cluster: cli.Cluster = None, as_json: cli.AsJson = False) -> None:
    """Estimate every judge's belief from its answers."""

    def outcome(cell: Run) -> cli.Outcome:
        beliefs = cell.beliefs
        facts = {judge: belief.diagnostics for judge, belief in beliefs.items()}
        return cli.Outcome(
            [f"{judge}: {belief}" for judge, belief in beliefs.items()], {"fits": facts}
        )

    _make("fit", run, cluster, as_json, outcome)


def audit_command(
    run: cli.RunName, cluster: cli.Cluster = None, as_json: cli.AsJson = False
) -> None:
    """Compare the beliefs with the data."""

    def outcome(cell: Run) -> cli.Outcome:
        return cli.Outcome(_verdict_lines(cell), {"audit": cell.audit})

    _make("audit", run, cluster, as_json, outcome)


def report_command(
    run: cli.RunName, cluster: cli.Cluster = None, as_json: cli.AsJson = False
) -> None:
    """Write the report, its figures and its tables."""

    def outcome(cell: Run) -> cli.Outcome:
        lines = [str(cell.report_path), *registration.notes_of(cell)]
        return cli.Outcome(lines, _report_facts(cell))

    _make("report", run, cluster, as_json, outcome, _condition_pages)


def _make(
    stage: str,
    run: str,
    cluster: str | None,
    as_json: bool,
    outcome: Callable[[Run], cli.Outcome],
    last: Callable[[Sequence[Run]], cli.Outcome] = lambda _: cli.Outcome(),
) -> None:
    """Make the files of a stage, of every cell of a grid, and print the outcomes."""

    def work(cell: Run) -> cli.Outcome:
        with displays.Display() as progress:
            stages.make(cell, stage, progress, force=stage == "report" or not is_made)
        return outcome(cell)

    cells = run_folder.open_runs(run)
    with displays.Display() as progress, workers_at(cluster) as workers:
        is_made = make_beforehand(cells, stage, workers, progress)
    cli.for_each(cells, work, as_json, last)


def _condition_pages(cells: Sequence[Run]) -> cli.Outcome:
    """Write the pages that compare the conditions of a grid, if it has any."""
    from llm_elicit.pipeline.results import write_conditions  # as above

    paths = write_conditions(cells)
    return cli.Outcome([f"conditions: {path}" for path in paths], {"conditions": paths})


def _verdict_lines(result: Run) -> list[str]:
    from llm_elicit.report import sentences  # with PyTorch, which asking needs not

    lines, audit = [], result.audit
    for judge in audit.judges:
        clause = sentences.no_answers_clause(judge)
        lines.append(f"{judge.name}: {judge.verdict}{clause}")
        steps = sentences.next_steps(judge, audit, result.campaign)
        if steps and not clause:
            lines.append(f"  next: {steps[0]}")
    return [*lines, *registration.notes_of(result)]


def _report_facts(result: Run) -> dict[str, Any]:
    verdicts = {judge.name: judge.verdict for judge in result.audit.judges}
    return {"verdicts": verdicts, "report": result.report_path}


def batches(result: Run) -> cli.Outcome:
    """Return the state of every batch of a run."""
    statuses, rows = asyncio.run(batch_mode.batch_statuses(result.study)), []
    for status in statuses:
        counts = ["-" if n is None else f"{n:,}" for n in (status.total, status.done)]
        rows.append([status.judge, status.batch, status.state, *counts])
    table = cli.table_of(("judge", "batch", "state", "questions", "done"), rows)
    return cli.Outcome([table], {"batches": statuses})


def estimate_command(
    campaign: cli.CampaignName, max_cost: cli.MaxCost = None, as_json: cli.AsJson = False
) -> None:
    """Estimate questions, tokens and cost; send nothing."""
    print_estimate(campaign, as_json, max_cost)


def print_estimate(
    campaign: str, as_json: bool, max_cost: float | None, *, with_examples: bool = False
) -> None:
    """Print questions, tokens and cost of the questions that have no answer yet.

    Args:
        campaign: the campaign; of a grid, all cells are estimated.
        as_json: print one JSON object instead of a table.
        max_cost: the cap that replaces the campaign's own.
        with_examples: whether some questions are printed as they would be sent.

    Raises:
        InputError: the campaign could not be run.
    """
    cells = run_folder.open_runs(campaign)
    for cell in cells:
        stages.check_run(cell)
    records: list[dict[str, Any]] = []
    for cell in cells:
        answered, arguments = cell.answered, (cell.campaign, cell.space, cell.plan)
        judges = estimates.estimate(*arguments, answered, cell.measured_tokens)
        prompts = estimates.example_prompts(*arguments) if with_examples else []
        record = cli.run_facts(cell) | {
            "judges": judges,
            "replicates": cell.replicates,
            "answered": sum(sum(counts.values()) for counts in answered.values()),
            "note": _note(cell),
        }
        examples = {"examples": [prompt.messages for prompt in prompts]} if prompts else {}
        records.append(record | examples)
    lines = [line for record in records for line in record["judges"]]
    limits = with_cap(cells[0].campaign, max_cost).limits  # of a grid's cells together
    spent = [spent_in(cell.location) for cell in cells]
    amount = Amount(sum(usd for usd, _ in spent), sum(tokens for _, tokens in spent))
    cap = estimates.cap_note(lines, limits, amount)
    studies = [replace(cell.study, campaign=with_cap(cell.campaign, max_cost)) for cell in cells]
    refusals = list(dict.fromkeys(filter(None, map(_refusal, studies if with_examples else ()))))
    if as_json:
        cli.print_json({"runs": records, "cap": cap, "refusals": refusals})
        return _check_caps(studies)
    for messages in (messages for record in records for messages in record.get("examples", ())):
        for message in messages:
            cli.out.print(f"[{message.role}]", style="bold")
            cli.out.print(visible(message.content, 9999))
        cli.out.print(Rule(), width=80)
    columns = ("judge", "model", "questions", "prompt tokens", "cached", "answer tokens",
               "USD", "at most", "in batch mode")  # fmt: skip
    cells_by_record = zip(cells, records, strict=True)
    rows = [(cell, _row(line)) for cell, record in cells_by_record for line in record["judges"]]
    cli.out.print(cli.cell_table(columns, rows))
    priced = [line for line in lines if line.cost is not None]
    total, most = (sum(getattr(line, key) for line in priced) for key in ("cost", "most"))
    unknown = "" if len(priced) == len(lines) else ", excluding models of unknown price"
    cli.out.print(f"Total: {_usd(total)} USD, at most {_usd(most)}{unknown}. Nothing was sent.")
    cli.print_lines([] if cap is None else [f"C{cap[1:]}."])
    for line in lines:
        if line.cost and line.low is not None and line.high is not None:
            cli.out.print(_basis(line))
    for record in records:
        cli.print_lines([f"{judge}: {why}" for judge, why in record["replicates"].items()])
    cli.print_lines(list(dict.fromkeys(filter(None, (record["note"] for record in records)))))
    if done := sum(record["answered"] for record in records):
        cli.out.print(f"{done:,} questions already have an answer and are not counted.")
    cli.print_lines([f"`llm-elicit run` would refuse: {line}" for line in refusals])
    return _check_caps(studies)


def _refusal(study: Study) -> str:
    """Return why a run could not be asked now, such as a missing key; empty if it could."""
    try:
        engine.check(study)
    except InputError as error:
        return visible(str(error), 9999)
    return ""


def _check_caps(studies: Sequence[Study]) -> None:
    """Check that the caps can be held, which no key and no package changes.

    Raises:
        InputError: the price of a judge is unknown.
    """
    for campaign in (study.campaign for study in studies):
        check_cap(campaign.limits, {judge.name: price_of(judge) for judge in campaign.judges})


def _row(judge: estimates.JudgeEstimate) -> list[str]:
    about = "" if judge.exact else "~"
    counts = [f"{about}{judge.prompt_tokens:,}", f"~{judge.cached_tokens:,}"]
    answers = f"~{judge.completion_tokens:,}"
    prices = [_usd(judge.cost), _usd(judge.most), _usd(judge.batch) if judge.batch else "-"]
    return [judge.judge, judge.model, f"{judge.requests:,}", *counts, answers, *prices]


def _basis(judge: estimates.JudgeEstimate) -> str:
    """Return the range of a judge's cost, and what it was estimated from."""
    low, high = _usd(judge.low), _usd(judge.high)
    ends = f"{judge.judge}: {low if low == high else f'{low} to {high}'} USD"
    if judge.measured:
        return f"{ends}, estimated from the tokens of {judge.measured:,} answers (95 % interval)."
    return f"{ends}, estimated from assumed answer lengths; `llm-elicit pilot` measures them."


def _usd(amount: float | None) -> str:
    return "unknown price" if amount is None else f"{amount:.4f}"
