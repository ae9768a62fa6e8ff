"""What comes before a campaign is paid for.

`llm-elicit pilot` finds the most reliable template for each judge, `llm-elicit power` the number of
pairs, and `llm-elicit register` freezes a study.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import RenderableType

from llm_elicit._util.text import visible
from llm_elicit.cli import options as cli
from llm_elicit.config import campaign as campaign_settings
from llm_elicit.orchestrator import progress as displays
from llm_elicit.pipeline import pilot, stages
from llm_elicit.pipeline.registration import Registered
from llm_elicit.planning.pairs import smallest_p

if TYPE_CHECKING:
    from llm_elicit.audit.hypotheses import RegisteredResults
    from llm_elicit.pipeline.statistical_power import StatisticalPower

Pairs = Annotated[int, cli.option("Pairs to ask: the first N of the campaign.", "N")]


def pilot_command(
    campaign: cli.CampaignName,
    pairs: Pairs = 20,
    max_cost: cli.MaxCost = None,
    as_json: cli.AsJson = False,
) -> None:
    """Ask a few pairs with every template; compare reliability and cost."""
    plan = campaign_settings.Campaign.load(campaign)
    with displays.Display() as progress:
        result, problems = pilot.run_pilot(plan, pairs, max_cost=max_cost, progress=progress)
    cli.show(result, _pilot_lines(result), as_json)
    if problems:
        raise problems[0]


def power_command(  # noqa: PLR0913, PLR0917 - an option each
    campaign: cli.CampaignName,
    questions: Annotated[
        str, cli.option("Of verdict, effect, difference, auc (minutes).", "A,B")
    ] = "verdict,effect,difference",
    effect: Annotated[float, cli.option("A feature's share of preference.", "SHARE")] = 0.25,
    difference: Annotated[float, cli.option("1 - correlation of the two judges.", "D")] = 0.5,
    auc: Annotated[float, cli.option("Half-width of the AUC's interval.", "X")] = 0.1,
    judge: Annotated[str | None, cli.option("Judge; default: least reliable.", "NAME")] = None,
    reliability: Annotated[
        float | None,
        cli.option("Correlation of a pair's answers.", "R"),
    ] = None,
    position: Annotated[
        float | None,
        cli.option("Position effect. Choices: P(first shown) - 1/2; log-odds: mean / sd.", "P"),
    ] = None,
    wording: Annotated[float | None, cli.option("Share that depends on wording.", "SHARE")] = None,
    described: Annotated[float, cli.option("The share that features describe.", "SHARE")] = 0.8,
    answers: Annotated[
        Literal["log-odds", "choices"] | None,
        cli.option("Form of the answers."),
    ] = None,
    power: Annotated[float, cli.option("Power to reach.", "P")] = 0.8,
    simulations: Annotated[int, cli.option("Simulated campaigns of each size.", "N")] = 200,
    seed: Annotated[int, cli.option("Seed of the simulations.", "N", min=0)] = 0,
    as_json: cli.AsJson = False,
) -> None:
    """Simulate how many pairs answer a question, and their cost.

    A judge answers as the pilot measured it, unless options say otherwise.
    """
    # It imports PyTorch, which a pilot does not need.
    from llm_elicit.pipeline import statistical_power  # noqa: PLC0415

    with displays.Display() as progress:
        result = statistical_power.power(
            campaign, questions=questions.split(","),
            sizes={"effect": effect, "difference": difference, "auc": auc},
            judge=judge, reliability=reliability, position=position, wording=wording,
            described=described, answers=answers, power=power, simulations=simulations, seed=seed,
            progress=progress,
        )  # fmt: skip
    cli.show(result, _power_lines(result), as_json)


def _power_lines(result: StatisticalPower) -> Iterator[RenderableType]:
    judge, has_several = result.judge, result.presentations > 1
    reliability = cli.interval(judge.interval) if judge.interval else f"{judge.reliability:.2f}"
    yield (
        f"{judge.name}: {judge.answers}, reliability {reliability} ({judge.source}), "
        f"position effect {judge.position:+.2f}, share of the wording {judge.wording:.2f}"
    )
    columns = f"power with {result.pairs:,} pairs", f"pairs for {result.power:.0%}"
    rows, curves = [], []
    for question in result.questions:
        needed, cost = f"more than {question.most:,}", "-"
        if question.pairs is not None:
            needed = f"{question.pairs:,} [{question.low:,}, {question.high:,}]"
            cost = "unknown" if question.cost is None else f"{question.cost:.4g}"
        rows.append([question.label, cli.interval(question.own.power), needed, cost])
        for point in question.curve:
            remark = "the campaign's" if point.pairs == question.own.pairs else ""
            counts = f"{point.pairs:,}", str(point.campaigns)
            curves.append([question.question, *counts, cli.interval(point.power), remark])
    yield cli.table_of(("question", *columns, "USD"), rows)
    yield cli.table_of(("question", "pairs", "campaigns", "power", ""), curves)
    if has_several and result.presentations_needed is not None:
        yield (
            f"{result.presentations_needed} presentations would make the preference generalize "
            f"(.8); the campaign has {result.presentations}."
        )
    yield (
        "Power: share of simulated campaigns in which the audit's own test is significant. 95 % "
        "intervals account for the number of simulations, not for errors of the assumptions."
    )
    yield from result.notes


def _pilot_lines(result: pilot.Pilot) -> Iterator[RenderableType]:
    names = (
        "judge", "template", "answer", "pairs", "one order", "both orders", "predicted",
        "position", "sd", "refused", "unparsable", "unanswered", "tokens", "USD per question",
        "ρ/(1−ρ) per cost",
    )  # fmt: skip
    rows = [
        [
            protocol.judge, protocol.template, protocol.answer, str(protocol.pairs),
            cli.interval(protocol.reliability), cli.interval(protocol.both_orders),
            cli.interval(protocol.predicted),
            _number(protocol.position), _number(protocol.position_sd),
            str(protocol.refused), str(protocol.unparsable), str(protocol.unanswered),
            f"{protocol.tokens:.0f}",
            "unknown" if protocol.cost is None else f"{protocol.cost:.6f}", f"{protocol.rate:.3g}",
        ]
        for protocol in result.protocols
    ]  # fmt: skip
    yield cli.table_of(names, rows)
    yield (
        "Reliability of one order: correlation of a pair's two answers without the mean "
        "position effect; 0 if negative. Reliability of both orders: by the Spearman-Brown "
        "formula; a lower bound if the position effect varies. Predicted: share of the differences "
        "between the two orders "
        "that the features predict for held-out pairs; negative if they predict worse than no "
        "rule. Intervals are 95 %. Position effect: log-odds; for choices, P(first shown) - "
        "1/2. Cost: USD; for free judges, thousands of tokens, or questions if tokens are not "
        "counted."
    )
    for best in result.recommended:
        if best.template is None:
            yield f"{best.judge}: {best.reason}"
        else:
            yield (f"{best.judge}: {best.template}, both orders; {visible(best.reason, 9999)}")
    if result.protocols:
        pairs = max(protocol.pairs for protocol in result.protocols)
        yield (
            f"A pilot compares templates and tests no preference; with {pairs} pairs p-values "
            f"could not be below {smallest_p(pairs):.2g}."
        )
    yield f"{result.spent:.4f} USD spent; the campaign reuses these answers."


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


Study = Annotated[Path, cli.argument("YAML file of the study.", "STUDY")]


def register_command(
    study: Study,
    check: Annotated[
        bool, cli.flag("--check", "Print results and deviations; change no registration.")
    ] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Register a study before asking, or check a registered one.

    Registering plans the runs, and writes STUDY.registration.json and STUDY.registration.md.
    Deposit the latter, a page for readers. See docs/how-to/register.md.
    """
    opened_study = Registered.open(study)
    if check:
        _check(opened_study, as_json)
        return
    for campaign in opened_study.campaigns:
        stages.plan_grid(campaign)
    registered = opened_study.register()
    answers = sum(
        j.answers + j.direct_answers for r in registered.runs.values() for j in r.judges.values()
    )
    runs = f"{len(registered.runs)} run{'' if len(registered.runs) == 1 else 's'}"
    hypotheses = f"hypothes{'is' if len(registered.hypotheses) == 1 else 'es'}"
    lines = [
        f"{opened_study.record}: {len(registered.hypotheses)} {hypotheses}, {runs}, "
        f"{answers:,} answers to collect",
        f"{opened_study.page}: the page to deposit",
        f"digest {registered.digest}, registered {registered.created}",
    ]
    cli.show(registered, lines, as_json)


def _check(study: Registered, as_json: bool) -> None:
    """Print the registered results, exploratory ones, and the deviations."""
    from llm_elicit.pipeline.results import compare_runs  # noqa: PLC0415 - with PyTorch

    with displays.Display() as progress:
        results = study.check(lambda run: compare_runs([run], progress))
    cli.show(results, _result_lines(results), as_json)


def _result_lines(results: RegisteredResults) -> Iterator[RenderableType]:
    rows = []
    for test in results.hypotheses:
        numbers = ("-", "-")
        if test.test:
            numbers = f"{test.p_value:.2g}", f"{test.p_holm:.2g}"
        outcome = f"{test.outcome} ({test.obstacle})" if test.obstacle else test.outcome
        cells = test.run, test.text, test.test or "-", test.estimate or "-", *numbers, outcome
        rows.append([visible(cell, 9999) for cell in cells])
    yield cli.table_of(("run", "hypothesis", "test", "estimate", "p", "adjusted p", "result"), rows)
    if results.exploratory:
        rows = [
            [visible(cell, 9999) for cell in (test.run, test.text, test.estimate)]
            + [f"{test.p_holm:.2g}"]
            for test in results.exploratory
        ]
        columns = ("run", "exploratory, not registered", "estimate", "adjusted p")
        yield cli.table_of(columns, rows)
    yield f"{results.summary[0].upper()}{results.summary[1:]}."
    yield from (f"deviation: {visible(line, 9999)}" for line in results.deviations)
