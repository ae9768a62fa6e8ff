"""`llm-elicit pilot`: the most reliable template for each judge, before a campaign is paid for."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from llm_elicit._util.text import visible
from llm_elicit.cli.options import AsJson, CampaignName, MaxCost, interval, out, print_json
from llm_elicit.config import campaign as campaign_settings
from llm_elicit.orchestrator import progress as displays
from llm_elicit.pipeline import pilot
from llm_elicit.planning import detectable

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
            f"could not be below {detectable.smallest_p(pairs):.2g}."
        )
    out.print(f"{result.spent:.4f} USD spent; the campaign reuses these answers.")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"
