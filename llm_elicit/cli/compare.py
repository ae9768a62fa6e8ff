"""`llm-elicit compare` and `panel`: judges side by side, of one run or of several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

from rich.console import RenderableType
from rich.text import Text

from llm_elicit._util.text import visible
from llm_elicit.audit.judge_comparison import JudgeComparison
from llm_elicit.audit.panel import Panel
from llm_elicit.audit.repeats import RepeatComparison
from llm_elicit.cli.options import AsJson, argument, interval, option, show, table_of
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import progress as displays
from llm_elicit.pipeline import repeats, run_folder, stages

_MAX_PAIRS = 8
"""The largest number of next pairs that are listed."""

Where = Annotated[list[str], argument("Run folders or names.", "RUN...")]


def compare_command(
    where: Where,
    out: Annotated[
        Path | None, option("File for the results: .json, or .html for repeats of a run.")
    ] = None,
    next_file: Annotated[
        Path | None, option("CSV file for the pairs that people should get next.", None, "--next")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare judges with each other and the data, or repeats."""
    _check_out(out, "the results are written as JSON, or for repeats also as a page")
    _check_folder("--next", next_file)
    cells = [cell for name in where for cell in run_folder.open_runs(name)]
    series = repeats.series_of(cells)
    if series is None and out is not None and out.suffix != ".json":
        raise InputError(f"--out {out}: only repeats of a run have a page; name a .json file")
    comparison: JudgeComparison | RepeatComparison
    with displays.Display() as progress:
        if series is None:
            comparison = stages.compare(cells, progress)
        else:
            comparison = stages.compare_repeats(series, progress)
    if next_file is not None:
        if not isinstance(comparison, JudgeComparison):
            raise InputError(
                "--next: the next pairs are for people beside a model, not for repeats"
            )
        from llm_elicit.pipeline.results import next_pairs  # noqa: PLC0415 - with PyTorch

        next_pairs(cells, comparison).to_csv(next_file, index=False)
    if out is not None:
        text = f"{comparison.model_dump_json(indent=1)}\n"
        if isinstance(comparison, RepeatComparison) and out.suffix == ".html":
            from llm_elicit.report.page import render_repeats  # noqa: PLC0415 - with Matplotlib

            text = render_repeats(comparison)
        out.write_text(text, encoding="utf-8")
    lines = (
        _judge_lines(comparison)
        if isinstance(comparison, JudgeComparison)
        else _repeat_lines(comparison)
    )
    written = [] if out is None else [f"record: {out}"]
    show(comparison, chain(lines, written), as_json)


def panel_command(
    where: Where,
    out: Annotated[Path | None, option("File for the panel: .html or .json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare judges over many spaces, and pool their beliefs."""
    _check_out(out, "a panel is written as a page or as JSON")
    runs = [cell for name in where for cell in run_folder.open_runs(name)]
    page = out if out is not None and out.suffix == ".html" else None
    with displays.Display() as progress:
        panel = stages.panel(runs, page, progress)
    if out is not None and page is None:
        out.write_text(panel.model_dump_json(indent=1) + "\n", encoding="utf-8")
    written = [] if out is None else [f"panel: {out}"]
    show(panel, chain(_panel_lines(panel), written), as_json)


def _panel_lines(panel: Panel) -> Iterator[RenderableType]:
    for space in panel.spaces:
        yield Text(space.title, style="bold")
        columns = (
            "judge", "verdict", "reliability", "generalizability", "AUC", "rank by AUC",
            "nats per row", "worth in rows", "rank by nats", "scale",
        )  # fmt: skip
        rows = []
        for entry in space.entries:
            numbers = [interval(e) for e in (entry.reliability, entry.generalizability, entry.auc)]
            worth = interval(entry.log_density), interval(entry.worth), _ranks(entry.worth_ranks)
            ranked = [*numbers, _ranks(entry.auc_ranks), *worth]
            rows.append([entry.judge, entry.verdict, *ranked, entry.scale or "-"])
        yield table_of(columns, rows)
        for entry in space.entries:
            if entry.weights:
                shares = [f"{judge} {share:.0%}" for judge, share in entry.weights.items()]
                yield f"{entry.judge}: {', '.join(shares)}"
    yield (
        "Worth in rows: the number of rows of the table from which a kernel density predicts other "
        "rows as well as the belief does. A belief without a scale has the power by convention. "
        "Intervals are of 95 %. Judges who share ranks do not differ at 5 %, Holm-adjusted, on the "
        "same rows. Pools are scored on rows that were not used to fit their weights. See "
        "docs/how-to/compare.md."
    )


def _ranks(ends: tuple[int | None, int | None] | None) -> str:
    """Return the best and the worst rank of a judge as text."""
    return "-" if ends is None or ends[0] is None else "-".join(dict.fromkeys(map(str, ends)))


def _check_out(out: Path | None, rule: str) -> None:
    """Check that results can be written to a file.

    Raises:
        InputError: another format, or there is no such folder.
    """
    if out is not None and out.suffix not in (".json", ".html"):
        raise InputError(f"--out {out}: {rule}; name a .json or .html file")
    _check_folder("--out", out)


def _check_folder(option: str, path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; create it first")


def _repeat_lines(comparison: RepeatComparison) -> Iterator[RenderableType]:
    for judge in comparison.judges:
        yield Text(judge.judge, style="bold")
        effects = list(dict.fromkeys(name for run in judge.runs for name in run.effects))
        columns, rows = ("run", "from", "version", "verdict", "AUC", "position effect"), []
        for run in judge.runs:
            versions = ", ".join(visible(name, 80) for name in run.versions) or "-"
            numbers = [interval(e) for e in (run.auc, run.position, *map(run.effects.get, effects))]
            rows.append([run.run, run.first[:10], versions, run.verdict, *numbers])
        yield table_of((*columns, *effects), rows)
        yield from judge.sentences
    yield (
        "Effects are log-odds over the middle half of a feature's range, with 95 % intervals. The "
        "tests are exact permutations of the runs within each pair. See docs/how-to/compare.md."
    )


def _judge_lines(comparison: JudgeComparison) -> Iterator[RenderableType]:
    entries = {entry.judge: entry for entry in (comparison.ranking or []) + comparison.unranked}
    verdicts = ((name, entries[name].verdict) for name in comparison.judges)
    yield table_of(("judge", "verdict"), verdicts)
    columns = ("rank correlation", "self-correlation", "pairs", "choose alike", "p alike")
    rows = []
    for pair in comparison.agreements:
        alike = "-" if pair.same_choice_share is None else interval(pair.same_choice_share, 3)
        ranks = interval(pair.rank_correlation, 3), f"{pair.self_correlation:.3f}"
        p_alike = "-" if pair.p_alike is None else f"{pair.p_alike:.2g}"
        rows.append([pair.first, pair.second, *ranks, str(pair.pairs), alike, p_alike])
    yield table_of(("judge", "judge", *columns), rows)
    yield (
        "Rank correlations are of the utilities over λ; two judges who agree completely reach "
        "the self-correlation. p alike: exact p-value, unadjusted, of the hypothesis that both "
        "answer the same questions alike. These numbers do not depend on the sharpness of the "
        "beliefs; the distances below do."
    )
    rows = []
    for difference in comparison.differences:
        features = ", ".join(difference.differing_features) or "no significant difference"
        if facets := difference.asked_in_different:
            features += f" (asked in different {facets}, which may be why)"
        distance, floor = interval(difference.distance, 3), f"{difference.floor:.3f}"
        rows.append([difference.first, difference.second, distance, floor, features])
    yield table_of(("judge", "judge", "distance", "floor", "differ in"), rows)
    yield from _people_lines(comparison)
    if comparison.ranking is None:
        yield "The space has no table, so judges are not ranked by distance from data."
        return
    names, rows = ("rank", "judge", "distance from its data", "λ", "floor", ""), []
    for entry in entries.values():
        numbers = [
            "-" if value is None else f"{value:.3f}"
            for value in (entry.sampling_distance, entry.floor)
        ]
        rank, distance = _ranks((entry.best_rank, entry.worst_rank)), interval(entry.distance, 3)
        rows.append([rank, entry.judge, distance, *numbers, entry.remark])
    yield table_of(names, rows)
    yield (
        "Distances are Wasserstein-1 of the marginals in standard deviations of the data, "
        "averaged over features, with 90 % intervals. The floor is the distance between two "
        "halves of the data. Judges who share ranks are tied (5 %, Holm-adjusted). A judge "
        "without a rank has no preference, or is no nearer to the data than λ. See "
        "docs/how-to/compare.md."
    )


def _people_lines(comparison: JudgeComparison) -> Iterator[RenderableType]:
    """Yield people's preferences, by themselves and with a model's answers."""
    for pair in comparison.people:
        yield (
            f"{pair.people} and {pair.model}: {pair.pairs} pairs answered by both, "
            f"{pair.model_pairs - pair.pairs} by {pair.model} alone"
        )
        if pair.reason:
            yield f"{pair.people} is not corrected by {pair.model}: {pair.reason}."
            continue
        shares = (
            (e.name, *map(interval, (e.own, e.model, e.corrected)), f"{e.width_ratio:.2f}")
            for e in pair.effects
        )
        columns = ("share of choices", pair.people, pair.model, "both", "width")
        yield table_of(columns, shares)
        yield (
            "Numbers: how much more often a point is chosen if the feature rises by half its "
            "range, with 90 % intervals over pairs. The row 'data' has the share of choices for "
            "the point where the data are denser, 0.5 without a relation. The column 'both' has "
            f"the answers of {pair.people}, corrected by those of {pair.model} with the weight "
            f"{pair.effects[0].weight:.2f}; 'width' is that of its interval over the interval of "
            f"{pair.people}. See docs/how-to/people.md."
        )
        if pair.next_pairs:
            first = ", ".join(map(str, pair.next_pairs[:_MAX_PAIRS]))
            more = " ..." if len(pair.next_pairs) > _MAX_PAIRS else ""
            yield (
                f"Next for {pair.people}: pairs {first}{more} of {pair.model}, in the random order "
                "of the plan; --next FILE writes them."
            )
