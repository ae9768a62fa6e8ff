"""A pilot: which protocol is most reliable for its cost, measured on a few pairs.

A *protocol* is a template, with its answer format, and the orders in which a pair is shown. Each
template is asked about the first pairs of the campaign, in both orders. After the mean position
effect is subtracted, the two answers to a pair are parallel measurements of the preference for one
point over the other. Their correlation r is the reliability of one answer, and 2r / (1 + r)
(Spearman, 1910; Brown, 1910) that of both together. Variation of the position effect between pairs
counts as noise, so this is a lower bound for both orders. If the position effect of a judge varies
more than its preference, r cannot be used; half the difference of the two answers may then still be
predicted from the features of left-out pairs.

Protocols of different prices are compared by ρ / (1 − ρ) per unit of cost, where ρ is the
reliability. By the Spearman–Brown formula this ratio is proportional to the number of questions, so
it is the same for one order and for both. Both orders are recommended in that case, because half
the difference of the two answers does not contain the position effect of the pair. Agreement with
the data is not considered.

A template is recommended only if its answers are shown to be reliable, with an error of 5 % over
all templates of a judge together (Holm, 1979): its interval excludes zero, and so does a test that
is exact for few pairs. Of r, it exchanges the second answers among pairs; of the prediction, the
points within pairs (`llm_elicit.audit.randomization`).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import compress
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from llm_elicit._util.files import available, find
from llm_elicit._util.settings import StrictModel, validate
from llm_elicit.audit.inference import (
    Interval,
    estimate_explained_share,
    fisher_interval,
    holm_adjust,
)
from llm_elicit.audit.randomization import (
    RandomizationTest,
    feature_differences,
    leave_one_out_residuals,
)
from llm_elicit.audit.responses import Response, ResponseKind, build_response
from llm_elicit.config.campaign import Campaign, axis_word
from llm_elicit.config.design import Design, Presentations
from llm_elicit.config.judges import Judge
from llm_elicit.errors import ElicitError, InputError, UnusableError
from llm_elicit.orchestrator.budget import price_of
from llm_elicit.orchestrator.progress import SILENT, Progress
from llm_elicit.orchestrator.rate_sharing import RateLimiters
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.run_folder import Run, run_folders
from llm_elicit.questions.template import PAIR_ANSWERS, Template
from llm_elicit.spaces.features import FeatureSpace, Floats

MIN_PAIRS = 10
"""The least number of pairs of a pilot; correlations of fewer are too uncertain."""

_CEILING = 0.999
"""Largest correlation; 1 would be an infinite ratio of signal to noise."""

_ROUNDING = 1e-9
"""Correlations this small are rounding error."""

MAX_RELIABILITY = 0.99
"""Largest reliability that is assumed of a judge."""

_GRID = np.linspace(-6.0, 6.0, 2401)
_NORMAL = np.exp(-0.5 * _GRID**2) / np.exp(-0.5 * _GRID**2).sum()
"""Shares of a standard normal distribution at `_GRID`."""

_ALPHA = 0.05
_DRAWS = 1999
"""Random exchanges of each test."""


class Protocol(StrictModel):
    """One judge's answers to one template.

    Attributes:
        judge, template: names of the judge and of the template.
        answer: the template's answer format.
        response: whether its answers are measured log-odds or choices; None without answers.
        pairs: number of pairs with an answer in both orders.
        reliability: share of the variance of one answer that repeats; a negative correlation counts
            as 0; None if the answers in one order are all the same, or fewer than four pairs have
            both.
        p_value: p-value that the two answers to a pair are unrelated, by random exchanges; None
            likewise.
        both_orders: reliability of the two orders together, by the Spearman-Brown formula.
        predicted: the share of the mean square of half the difference between a pair's two answers
            that a quadratic rule on the features predicts for left-out pairs.
        p_predicted: p-value that answers do not depend on the points, by random exchanges.
        position: the mean position effect, log-odds (choices: P(first shown) − 1/2).
        position_sd: the standard deviation of half the sum of a pair's two answers.
        refused, unparsable, unanswered: questions without a usable answer, by reason.
        tokens: mean tokens per question, without those that the provider read from its cache.
        cost: USD per question; None if the price is unknown.
        rate: ρ / (1 − ρ) of questions with a usable answer, per USD; per thousand tokens if the
            judge is free or its price unknown; per question if it uses no tokens.
    """

    judge: str
    template: str
    answer: str
    response: ResponseKind | None
    refused: int
    unparsable: int
    unanswered: int
    tokens: float
    cost: float | None
    rate: float
    pairs: int = 0
    reliability: Interval | None = None
    p_value: float | None = None
    both_orders: Interval | None = None
    predicted: Interval | None = None
    p_predicted: float | None = None
    position: float | None = None
    position_sd: float | None = None


class Recommendation(StrictModel):
    """The protocol to use for a judge.

    Attributes:
        judge: the judge's name.
        template: the one with the highest rate; None if none is shown to differ from noise.
        both_orders: whether to show each pair in both orders.
        reason: the reason in one sentence.
    """

    judge: str
    template: str | None
    both_orders: bool = True
    reason: str


class Pilot(StrictModel):
    """The result of a pilot.

    Attributes:
        campaign: the name of the campaign whose first pairs were asked.
        pairs: number of pairs.
        protocols: the protocols, sorted by judge, then by template.
        recommended: one per judge.
        spent: USD paid for these answers; answers from the cache cost nothing.
    """

    campaign: str
    pairs: int
    protocols: tuple[Protocol, ...]
    recommended: tuple[Recommendation, ...]
    spent: float


def candidates(campaign: Campaign) -> tuple[str, ...]:
    """Return the templates to try: those the campaign names under `pilot`, else its wordings.

    For a campaign with one template, these are all templates for pairs except the wordings of v2.

    Raises:
        InputError: a template does not exist, or does not ask about a pair.

    Examples:
        >>> names = candidates(Campaign.load("simulated"))
        >>> "v1/few-shot" in names, "v1/quantiles" in names
        (True, False)
    """
    if campaign.pilot:
        return campaign.pilot
    if len(campaign.design.templates) > 1:
        return campaign.design.templates
    names = [name for name in available("prompts", ".md") if not name.startswith("v2/")]
    return tuple(
        name for name in names if Template.read(find("prompts", name, ".md")).answer in PAIR_ANSWERS
    )


def pilot_runs(campaign: Campaign, pairs: int) -> tuple[Run, ...]:
    """Return the pilot's runs, one per template, in folders beside the campaign's own.

    They share the campaign's cache and its first pairs, so that the campaign does not ask again
    what the pilot asked with the same template.

    Raises:
        InputError: too few pairs, more than the campaign asks, a grid, or only people are judges.
    """
    campaign = _of_models(campaign)
    max_pairs = campaign.design.sizes[0] - 3 * campaign.design.triads
    if campaign.grid is not None:
        raise InputError(f"pilot: {campaign.name} is a grid; name one of its cells")
    if not MIN_PAIRS <= pairs <= max_pairs:
        raise InputError(
            f"pilot: {pairs} pairs; give {MIN_PAIRS} to {max_pairs}; a pilot asks the campaign's "
            "first pairs"
        )
    return tuple(_run(campaign, pairs, template) for template in candidates(campaign))


def _of_models(campaign: Campaign) -> Campaign:
    """Return the campaign without its people, who see no template."""
    models = tuple(judge for judge in campaign.judges if judge.name not in campaign.people)
    if not models:
        raise InputError(
            f"pilot: {campaign.name} only asks people, who see no template; add models"
        )
    return campaign.model_copy(update={"judges": models})


def _run(campaign: Campaign, pairs: int, template: str) -> Run:
    """Return the run of one template; all runs of a pilot share one cap."""
    pilot_name = f"{campaign.name}.pilot"
    data = campaign.model_dump(mode="json", exclude={"design", "direct", "pilot", "part_of"})
    data["name"] = f"{pilot_name}.{pairs}.{axis_word(template)}"
    data["part_of"] = pilot_name
    data["limits"] |= {"unusable": None}  # a pilot counts them
    facets = campaign.design.presentations
    if facets is not None:  # the first level of every facet that the template takes
        takes = Template.load(template).names
        facets = Presentations(
            examples=facets.example_sets()[:1] if "examples" in takes else (),
            example_file=facets.example_file,
            labels=facets.labels[:1] if "label_a" in takes else (),
            digits=tuple(sorted(facets.digits)[-1:]),
        )
    design = Design(pairs=pairs, template=template, presentations=facets)
    data["design"] = design.model_dump(mode="json")
    cell = validate(Campaign, data, pilot_name)
    return Run(cell.folder, cell, cell.load_space())


def run_pilot(
    campaign: Campaign, pairs: int, *, max_cost: float | None = None, progress: Progress = SILENT
) -> tuple[Pilot, list[ElicitError]]:
    """Ask about the campaign's first pairs with every template, or resume, and compare them.

    Args:
        campaign: the campaign.
        pairs: number of pairs.
        max_cost: a cap in USD on the whole pilot, instead of the campaign's own.
        progress: receives every change.

    Returns:
        The result, and the errors that stopped judges or left questions without an answer.

    Raises:
        CapError: the cap is reached; the answers received are kept.
        JudgeError, InputError: no judge could be asked, or nothing could be sent.
    """
    campaign, limiters = _of_models(campaign), RateLimiters()
    runs = []
    for run in [stages.plan_run(planned) for planned in pilot_runs(campaign, pairs)]:
        asking = stages.ask(run, max_cost=max_cost, progress=progress, limiters=limiters)
        try:
            runs.append(asyncio.run(asking))
        except UnusableError:  # of all judges with this template; others may be answered
            runs.append(run)
    measured = [[measure(judge, run) for run in runs] for judge in campaign.judges]
    costs = [run.comparisons.frame["cost"].fillna(0.0).sum() for run in runs]
    pilot = Pilot(
        campaign=campaign.name,
        pairs=pairs,
        protocols=tuple(protocol for protocols in measured for protocol in protocols),
        recommended=tuple(map(recommend, measured)),
        spent=float(sum(costs)),
    )
    problems = [problem for run in runs for problem in run.problems]
    return pilot, [problem for problem in problems if not isinstance(problem, UnusableError)]


def measure(judge: Judge, run: Run) -> Protocol:
    """Measure one protocol of a judge by the pilot's run with its template."""
    table, design = run.comparisons, run.campaign.design
    rows = table.answers_of(judge.name)
    usable = int(rows["probability"].notna().sum())
    refused = int((rows["verdict"] == "refusal").sum())
    response = build_response(table, judge.name) if usable else None
    orders = {} if response is None else measure_orders(response, run.space)
    tokens, cost = 0.0, None  # of a question, as if no answer came from the cache
    if len(rows):
        new_tokens = rows["prompt_tokens"] - rows["cached_tokens"] + rows["completion_tokens"]
        tokens, price = float(new_tokens.mean()), price_of(judge)
        if price is not None:
            counts = rows[["prompt_tokens", "completion_tokens", "cached_tokens"]].astype(int)
            cost = float(np.mean([price.cost(*row) for row in counts.itertuples(index=False)]))
    return Protocol(
        judge=judge.name,
        template=design.template,
        answer=Template.load(design.template).answer,
        response=None if response is None else response.kind,
        refused=refused,
        unparsable=len(rows) - usable - refused,
        unanswered=design.questions - len(rows),
        tokens=tokens,
        cost=cost,
        rate=rate_of(orders.get("reliability"), usable / design.questions, tokens, cost),
        **orders,
    )


def measure_orders(response: Response, space: FeatureSpace) -> dict[str, Any]:
    """Return the fields of a protocol that follow from pairs answered in both orders."""
    is_known = np.isfinite(response.position)
    if is_known.sum() < 2:
        return {}
    value, position = response.value[is_known], response.position[is_known]
    apart = position - position.mean()
    first, second = value + apart, value - apart
    reliability = split_half(first, second, hard=response.kind == "choices")
    predicted, rng = None, np.random.default_rng(len(value))
    if len(response) >= MIN_PAIRS and response.value.any():
        design, side = feature_differences(response, space)[0], response.estimated_side
        residual = leave_one_out_residuals(design, response.value, side)
        predicted = estimate_explained_share(np.square(residual), response.squares)
    return {
        "pairs": int(is_known.sum()),
        "reliability": reliability,
        "p_value": None if reliability is None else _p_unrelated(first, second, rng),
        "both_orders": None if reliability is None else spearman_brown(reliability, 2),
        "predicted": predicted,
        "p_predicted": None
        if predicted is None
        else RandomizationTest(response, space).run(_DRAWS, rng).p_value,
        "position": float(position.mean()),
        "position_sd": float(position.std(ddof=1)),
    }


def _p_unrelated(first: Floats, second: Floats, rng: np.random.Generator) -> float:
    """Return p of the correlation of measurements `(n,)` under exchanges of the second ones."""
    centred = first - first.mean()
    exchanged = rng.permuted(np.tile(second, (_DRAWS, 1)), axis=1) @ centred
    observed = float(second @ centred)
    reached = exchanged >= observed - _ROUNDING * max(1.0, abs(observed))
    return float((1 + reached.sum()) / (1 + _DRAWS))


def split_half(first: Floats, second: Floats, *, hard: bool = False) -> Interval | None:
    """Return the reliability of parallel measurements `(n,)`, with Fisher's z 95 % interval.

    It is their correlation, or 0 if that is negative: a share of variance. Returns None if one of
    them never varies or there are fewer than four. `hard` choices may agree in every pair by
    chance; their correlation is limited to that with one more pair that disagrees.

    Examples:
        >>> x = np.array([0.1, -0.2, 0.4, 0.3, -0.5, 0.0])
        >>> reliability = split_half(x, x + 0.1)
        >>> round(reliability.value, 3), split_half(x, np.zeros(6)) is None
        (0.999, True)
    """
    if len(first) < 4 or min(np.ptp(first), np.ptp(second)) < 1e-9:
        return None
    limit = 1.0 - 2.0 / (len(first) + 1) if hard else _CEILING
    r = float(np.clip(np.corrcoef(first, second)[0, 1], -limit, limit))
    interval = fisher_interval(r, len(first))
    value, low, high = (end if end > _ROUNDING else 0.0 for end in (r, interval.low, interval.high))
    return Interval(value=value, low=low, high=high)


def spearman_brown(single: Interval, times: int) -> Interval:
    """Return the reliability of the mean of `times` measurements of this reliability.

    Examples:
        >>> spearman_brown(Interval(value=0.5, low=0.0, high=0.8), 2).value
        0.6666666666666666
    """
    value, low, high = (
        times * r / (1.0 + (times - 1) * r) for r in (single.value, single.low, single.high)
    )
    return Interval(value=value, low=low, high=high)


def rate_of(interval: Interval | None, usable: float, tokens: float, cost: float | None) -> float:
    """Return ρ / (1 − ρ) of one answer per cost of a question; 0 if there is no signal."""
    if interval is None or interval.value <= 0.0:
        return 0.0
    signal = usable * interval.value / (1.0 - interval.value)
    if cost:
        return signal / cost
    return signal / (tokens / 1000.0) if tokens else signal


def recommend(protocols: Sequence[Protocol]) -> Recommendation:
    """Return the protocol to use for a judge: the one with the highest rate.

    A protocol whose reliability is not shown to differ from zero is recommended only if the
    features are shown to predict its answers, and no other protocol's reliability differs from
    zero. The reason names protocols whose rate may be as high as the best.
    """
    judge = protocols[0].judge
    ranked = sorted(protocols, key=lambda x: -x.rate)
    # The reliable and the predictable protocols; the error of both tests together is at most 5 %.
    tests = [(protocol.reliability, protocol.p_value) for protocol in ranked]
    tests += [(protocol.predicted, protocol.p_predicted) for protocol in ranked]
    adjusted = holm_adjust(np.array([1.0 if p is None else p for _, p in tests]))
    is_shown = [
        interval is not None and interval.low > 0.0 and bool(p < _ALPHA)
        for (interval, _), p in zip(tests, adjusted, strict=True)
    ]
    reliable = list(compress(ranked, is_shown[: len(ranked)]))
    predictable = list(compress(ranked, is_shown[len(ranked) :]))
    if not reliable:
        shares = {x.template: x.predicted.value for x in predictable if x.predicted is not None}
        template = max(shares, key=lambda name: shares[name], default=None)
        if template is None:
            pairs = max(protocol.pairs for protocol in protocols)
            reason = (
                f"no template gives consistent answers with {pairs} pairs: in none do the two "
                "orders of a pair agree more than by chance (5 % level over all templates); ask "
                "more pairs, or try other templates"
            )
        else:
            reason = (
                "the position effect varies more than the preference, but the features predict "
                f"{shares[template]:.0%} of the differences between the two orders"
            )
        return Recommendation(judge=judge, template=template, reason=reason)
    best = reliable[0]
    assert best.reliability is not None
    worst = best.rate * _odds(best.reliability.low) / _odds(best.reliability.value)
    tied = [rival.template for rival in ranked if rival is not best and _highest(rival) > worst]
    reason = "most reliable for its cost"
    if tied:
        reason += f"; with these pairs it cannot be distinguished from {', '.join(tied)}"
    return Recommendation(judge=judge, template=best.template, reason=reason)


def _odds(reliability: float) -> float:
    return max(reliability, 0.0) / (1.0 - reliability)


def _highest(protocol: Protocol) -> float:
    """Return the upper end of the interval of a protocol's rate."""
    if protocol.reliability is None or protocol.reliability.value <= 0.0:
        return 0.0
    return protocol.rate * _odds(protocol.reliability.high) / _odds(protocol.reliability.value)


@dataclass(frozen=True)
class AssumedJudge:
    """Assumptions about a judge.

    Attributes:
        name: the judge's name.
        answers: whether it answers with log-odds or choices.
        reliability: correlation of the two answers to a pair, as in a pilot; from 0 to .99.
        position: mean position effect: of choices P(first shown) − 1/2; of log-odds in standard
            deviations of an answer.
        wording: share of the preference's variance that is particular to one presentation.
        described: share of the preference's variance that a rule on the features describes.
        source: where the numbers come from.
        interval: 95 % interval of the pilot's reliability; None if it is stated.
    """

    name: str
    answers: ResponseKind
    reliability: float
    position: float = 0.0
    wording: float = 0.0
    described: float = 0.8
    source: str = "stated"
    interval: Interval | None = None

    def __post_init__(self) -> None:
        limits = {"reliability": (0.0, MAX_RELIABILITY), "wording": (0.0, 1.0),
                  "described": (0.0, 1.0), "position": (-0.49, 0.49)}  # fmt: skip
        if self.answers == "log-odds":
            del limits["position"]
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"power: {name} {value:g}; give a number from {low:g} to {high:g}")
        _ = self.scale

    @cached_property
    def scale(self) -> tuple[float, float]:
        """The standard deviation of d and the position effect m, in log-odds.

        If log-odds are measured, the unit is the sd of an answer without its position effect.
        """
        if self.answers == "log-odds":
            return math.sqrt(self.reliability), self.position
        return _choice_scale(self.reliability, self.position)


@lru_cache(maxsize=64)
def _choice_scale(reliability: float, position: float) -> tuple[float, float]:
    """Return the sd of d and the position effect, log-odds, of choices with this correlation.

    Raises:
        InputError: the position effect leaves too few pairs in which the preference decides.
    """
    share = 0.5 + position

    def offset(sd: float) -> float:
        """Return m at which the first option is chosen in this share of questions."""
        end = 10.0 * (sd + 1.0) + 10.0
        return float(brentq(lambda m: _NORMAL @ expit(sd * _GRID + m) - share, -end, end))

    def correlation(sd: float) -> float:
        m = offset(sd)
        joint = float(_NORMAL @ (expit(m + sd * _GRID) * expit(m - sd * _GRID)))
        return (share**2 - joint) / (share * (1.0 - share))

    if not reliability:
        return 0.0, offset(0.0)
    if correlation(50.0) < reliability:
        raise InputError(
            f"power: reliability {reliability:g} is impossible with a position effect of "
            f"{position:g}: choices then have at most {correlation(50.0):.2f}; give a smaller one"
        )
    sd = float(brentq(lambda value: correlation(value) - reliability, 1e-6, 50.0))
    return sd, offset(sd)


def assumed_of(campaign: Campaign, judge: str, described: float) -> AssumedJudge | None:
    """Return a judge's results in the largest pilot with each of the campaign's templates.

    None if there is no pilot, or its two answers to a pair are not correlated.
    """
    protocols: list[tuple[Protocol, Response]] = []
    for template in campaign.design.templates:
        name = rf"{re.escape(campaign.name)}\.pilot\.(\d+)\.{re.escape(axis_word(template))}"
        matches = ((re.fullmatch(name, x.name), x) for x in run_folders(campaign.folder.parent))
        by_pairs = {int(match[1]): path for match, path in matches if match}
        if not by_pairs:
            continue
        run = Run.open(by_pairs[max(by_pairs)])
        settings = next((item for item in run.campaign.judges if item.name == judge), None)
        if settings is None or not len(run.comparisons.answers_of(judge)):
            continue
        protocol = measure(settings, run)
        if protocol.reliability is not None and protocol.reliability.value > 0.0:
            protocols.append((protocol, build_response(run.comparisons, judge)))
    if not protocols:
        return None
    values = [protocol.reliability for protocol, _ in protocols if protocol.reliability is not None]
    mean = {
        end: min(float(np.mean([getattr(value, end) for value in values])), MAX_RELIABILITY)
        for end in ("value", "low", "high")
    }
    kind = protocols[0][1].kind
    position = float(np.mean([protocol.position or 0.0 for protocol, _ in protocols]))
    if kind == "log-odds":
        spread = [
            math.sqrt(max(float(np.nanvar(r.value) + np.nanvar(r.position)), 1e-300))
            for _, r in protocols
        ]
        position /= float(np.mean(spread))
    pairs = min(protocol.pairs for protocol, _ in protocols)
    return AssumedJudge(
        judge,
        kind,
        mean["value"],
        position=position if kind == "log-odds" else float(np.clip(position, -0.49, 0.49)),
        wording=_wording_share(protocols),
        described=described,
        source=f"pilot of {pairs} pairs",
        interval=Interval(**mean),
    )


def _wording_share(protocols: Sequence[tuple[Protocol, Response]]) -> float:
    """Return 1 − the mean correlation of preferences in two templates, without their noise."""
    shares = []
    for i, (first, a) in enumerate(protocols):
        for second, b in protocols[:i]:
            _, in_a, in_b = np.intersect1d(a.pair, b.pair, return_indices=True)
            if len(in_a) > 3 and first.both_orders is not None and second.both_orders is not None:
                raw = np.corrcoef(a.value[in_a], b.value[in_b])[0, 1]
                shares.append(raw / math.sqrt(first.both_orders.value * second.both_orders.value))
    return float(np.clip(1.0 - np.mean(shares), 0.0, 1.0)) if shares else 0.0
