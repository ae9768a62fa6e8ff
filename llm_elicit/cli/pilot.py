"""`llm-elicit pilot`: which template makes each judge readable, before the campaign is paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from llm_elicit._util.console import console
from llm_elicit._util.lazy_module import LazyModule
from llm_elicit._util.sanitize import visible

if TYPE_CHECKING:
    from llm_elicit import orchestrator
    from llm_elicit.audit.inference import Interval
    from llm_elicit.config import campaign as campaigns
    from llm_elicit.pipeline import pilot
else:
    campaigns = LazyModule("llm_elicit.config.campaign")
    orchestrator = LazyModule("llm_elicit.orchestrator")
    pilot = LazyModule("llm_elicit.pipeline.pilot")

_out = console()

CampaignName = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="A path, or an example.")]
Pairs = Annotated[int, typer.Option(metavar="N", help="The campaign's first N pairs are asked.")]
MaxCost = Annotated[float | None, typer.Option(metavar="USD", min=0.0, help="Spend no more.")]
AsJson = Annotated[bool, typer.Option("--json", help="The whole record, as JSON.")]


def pilot_command(
    campaign: CampaignName, pairs: Pairs = 20, max_cost: MaxCost = None, as_json: AsJson = False
) -> None:
    """Ask each candidate template a few pairs, and compare their reliability and cost."""
    plan = campaigns.Campaign.load(campaign)
    with orchestrator.Display() as progress:
        found, problems = pilot.run_pilot(plan, pairs, max_cost=max_cost, progress=progress)
    if as_json:
        _out.print(found.model_dump_json(indent=1))
    else:
        _show(found)
    if problems:
        raise problems[0]


def _show(found: pilot.Pilot) -> None:
    names = (
        "judge", "template", "answer", "pairs", "one order", "both orders", "predicted",
        "position", "sd", "refused", "unparsable", "unanswered", "tokens", "USD a question",
        "ρ/(1−ρ) per cost",
    )  # fmt: skip
    table = Table(*names, box=None)
    for one in found.protocols:
        table.add_row(
            one.judge, one.template, one.answer, str(one.pairs), _interval(one.reliability),
            _interval(one.both_orders), _interval(one.predicted),
            _number(one.position), _number(one.position_sd),
            str(one.refused), str(one.unparsable), str(one.unanswered), f"{one.tokens:.0f}",
            "unknown" if one.cost is None else f"{one.cost:.6f}", f"{one.rate:.3g}",
        )  # fmt: skip
    _out.print(table)
    _out.print(
        "Reliability of one order is the correlation of a pair's two answers, the mean position "
        "effect taken out; of both, by Spearman-Brown: a lower bound where the position effect "
        "varies. Predicted is the share of half the differences that the features predict of "
        "pairs left out. 95 % intervals. Position effects are log-odds, of choices "
        "P(first shown) - 1/2. Cost is USD, of free judges a thousand tokens, and a question where "
        "there are none."
    )
    for best in found.recommended:
        if best.template is None:
            _out.print(f"{best.judge}: none; {best.reason}")
        else:
            _out.print(f"{best.judge}: {best.template}, both orders; {visible(best.reason, 9999)}")
    _out.print(f"{found.spent:.4f} USD spent; the campaign reuses these answers.")


def _interval(found: Interval | None) -> str:
    return "-" if found is None else f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _number(found: float | None) -> str:
    return "-" if found is None else f"{found:+.3f}"
