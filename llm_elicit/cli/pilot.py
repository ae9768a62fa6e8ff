"""What comes before a campaign is paid for.

`llm-elicit pilot` finds the most reliable template for each judge, `llm-elicit power` the number of
pairs, and `llm-elicit register` freezes a study.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from llm_elicit._util.text import visible
from llm_elicit.cli.options import AsJson, CampaignName, MaxCost, interval, out, print_json
from llm_elicit.config import campaign as campaign_settings
from llm_elicit.orchestrator import progress as displays
from llm_elicit.pipeline import pilot, stages
from llm_elicit.pipeline.registration import Registered
from llm_elicit.planning.pairs import smallest_p

if TYPE_CHECKING:
    from llm_elicit.pipeline.statistical_power import StatisticalPower

Pairs = Annotated[int, typer.Option(metavar="N", help="Pairs to ask: the first N of the campaign.")]


def pilot_command(
    campaign: CampaignName, pairs: Pairs = 20, max_cost: MaxCost = None, as_json: AsJson = False
) -> None:
    """Ask a few pairs with every template; compare reliability and cost."""
    plan = campaign_settings.Campaign.load(campaign)
    with displays.Display() as progress:
        result, problems = pilot.run_pilot(plan, pairs, max_cost=max_cost, progress=progress)
    if as_json:
        print_json(result)
    else:
        _show(result)
    if problems:
        raise problems[0]


def _option(metavar: str, text: str, **limits: Any) -> Any:
    return typer.Option(metavar=metavar, help=text, **limits)


def power_command(  # noqa: PLR0913, PLR0917 - an option each
    campaign: CampaignName,
    questions: Annotated[
        str, _option("A,B", "Questions: verdict, effect, difference, auc (minutes).")
    ] = "verdict,effect,difference",
    effect: Annotated[
        float, _option("SHARE", "Share of the preference due to the feature.")
    ] = 0.25,
    difference: Annotated[
        float, _option("D", "One minus the correlation of the two judges.")
    ] = 0.5,
    auc: Annotated[float, _option("X", "Half-width of the interval of the AUC.")] = 0.1,
    judge: Annotated[
        str | None, _option("NAME", "Judge; by default the pilot's least reliable.")
    ] = None,
    reliability: Annotated[
        float | None, _option("R", "Correlation of a pair's two answers; default: the pilot's.")
    ] = None,
    position: Annotated[
        float | None,
        _option("P", "Position effect. Choices: P(first shown) - 1/2; log-odds: mean / sd."),
    ] = None,
    wording: Annotated[
        float | None, _option("SHARE", "Share of the preference specific to a wording.")
    ] = None,
    described: Annotated[
        float, _option("SHARE", "Share of the preference that the features describe.")
    ] = 0.8,
    answers: Annotated[
        Literal["log-odds", "choices"] | None,
        typer.Option(help="Form of the answers; default: the pilot's."),
    ] = None,
    power: Annotated[float, _option("P", "Power to reach.")] = 0.8,
    simulations: Annotated[
        int, _option("N", "Simulated campaigns of each size near the result.")
    ] = 200,
    seed: Annotated[int, _option("N", "Seed of the simulations.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Simulate campaigns: how many pairs answer a question, and what they cost."""
    # It imports PyTorch, which a pilot does not need.
    from llm_elicit.pipeline import statistical_power  # noqa: PLC0415

    with displays.Display() as progress:
        result = statistical_power.power(
            campaign,
            questions=questions.split(","),
            sizes={"effect": effect, "difference": difference, "auc": auc},
            judge=judge,
            reliability=reliability,
            position=position,
            wording=wording,
            described=described,
            answers=answers,
            power=power,
            simulations=simulations,
            seed=seed,
            progress=progress,
        )
    if as_json:
        print_json(result)
    else:
        _show_power(result)


def _show_power(result: StatisticalPower) -> None:
    judge, has_several = result.judge, result.presentations > 1
    out.print(
        f"{judge.name}: {judge.answers}, reliability {_reliability(result)} ({judge.source}), "
        f"position effect {judge.position:+.2f}, share of the wording {judge.wording:.2f}"
    )
    table = Table(
        "question", f"power with {result.pairs:,} pairs", f"pairs for {result.power:.0%}",
        "USD", box=None,
    )  # fmt: skip
    for question in result.questions:
        needed, cost = f"more than {question.most:,}", "-"
        if question.pairs is not None:
            needed = f"{question.pairs:,} [{question.low:,}, {question.high:,}]"
            cost = "unknown" if question.cost is None else f"{question.cost:.4g}"
        table.add_row(question.label, interval(question.own.power), needed, cost)
    out.print(table)
    curves = Table("question", "pairs", "campaigns", "power", "", box=None)
    for question in result.questions:
        for point in question.curve:
            remark = "the campaign's" if point.pairs == question.own.pairs else ""
            power = interval(point.power)
            curves.add_row(
                question.question, f"{point.pairs:,}", str(point.campaigns), power, remark
            )
    out.print(curves)
    if has_several and result.presentations_needed is not None:
        out.print(
            f"{result.presentations_needed} presentations would make the preference generalize "
            f"(.8); the campaign has {result.presentations}."
        )
    out.print(
        "Power: share of simulated campaigns in which the audit's own test is significant. 95 % "
        "intervals account for the number of simulations, not for errors of the assumptions."
    )
    for note in result.notes:
        out.print(note)


def _reliability(result: StatisticalPower) -> str:
    judge = result.judge
    return f"{judge.reliability:.2f}" if judge.interval is None else interval(judge.interval)


def _show(result: pilot.Pilot) -> None:
    names = (
        "judge", "template", "answer", "pairs", "one order", "both orders", "predicted",
        "position", "sd", "refused", "unparsable", "unanswered", "tokens", "USD per question",
        "ρ/(1−ρ) per cost",
    )  # fmt: skip
    table = Table(*names, box=None)
    for protocol in result.protocols:
        table.add_row(
            protocol.judge, protocol.template, protocol.answer, str(protocol.pairs),
            interval(protocol.reliability), interval(protocol.both_orders),
            interval(protocol.predicted),
            _number(protocol.position), _number(protocol.position_sd),
            str(protocol.refused), str(protocol.unparsable), str(protocol.unanswered),
            f"{protocol.tokens:.0f}",
            "unknown" if protocol.cost is None else f"{protocol.cost:.6f}", f"{protocol.rate:.3g}",
        )  # fmt: skip
    out.print(table)
    out.print(
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
            out.print(f"{best.judge}: {best.reason}")
        else:
            out.print(f"{best.judge}: {best.template}, both orders; {visible(best.reason, 9999)}")
    if result.protocols:
        pairs = max(protocol.pairs for protocol in result.protocols)
        out.print(
            f"A pilot compares templates and tests no preference; with {pairs} pairs p-values "
            f"could not be below {smallest_p(pairs):.2g}."
        )
    out.print(f"{result.spent:.4f} USD spent; the campaign reuses these answers.")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


Study = Annotated[Path, typer.Argument(metavar="STUDY", help="YAML file of the study.")]


def register_command(
    study: Study,
    check: Annotated[
        bool,
        typer.Option("--check", help="Print results and deviations; change no registration."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Register a study before asking, or check it against its registration.

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
    if as_json:
        print_json(registered)
        return
    answers = sum(
        j.answers + j.direct_answers for r in registered.runs.values() for j in r.judges.values()
    )
    runs = f"{len(registered.runs)} run{'' if len(registered.runs) == 1 else 's'}"
    out.print(
        f"{opened_study.record}: {len(registered.hypotheses)} "
        f"hypothes{'is' if len(registered.hypotheses) == 1 else 'es'}, {runs}, "
        f"{answers:,} answers to collect"
    )
    out.print(f"{opened_study.page}: the page to deposit")
    out.print(f"digest {registered.digest}, registered {registered.created}")


def _check(study: Registered, as_json: bool) -> None:
    """Print the registered results, exploratory ones, and the deviations."""
    from llm_elicit.pipeline.results import compare_runs  # noqa: PLC0415 - with PyTorch

    with displays.Display() as progress:
        results = study.check(lambda run: compare_runs([run], progress))
    if as_json:
        print_json(results)
        return
    table = Table("run", "hypothesis", "test", "estimate", "p", "adjusted p", "result", box=None)
    for test in results.hypotheses:
        numbers = ("-", "-")
        if test.test:
            numbers = f"{test.p_value:.2g}", f"{test.p_holm:.2g}"
        outcome = f"{test.outcome} ({test.obstacle})" if test.obstacle else test.outcome
        cells = test.run, test.text, test.test or "-", test.estimate or "-", *numbers, outcome
        table.add_row(*(visible(cell, 9999) for cell in cells))
    out.print(table)
    if results.exploratory:
        table = Table("run", "exploratory, not registered", "estimate", "adjusted p", box=None)
        for test in results.exploratory:
            row = test.run, test.text, test.estimate, f"{test.p_holm:.2g}"
            table.add_row(*(visible(cell, 9999) for cell in row))
        out.print(table)
    out.print(f"{results.summary[0].upper()}{results.summary[1:]}.")
    for line in results.deviations:
        out.print(f"deviation: {visible(line, 9999)}")
