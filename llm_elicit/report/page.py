"""One self-contained HTML page from a study: no network, no script, nothing run from a reply."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from llm_elicit.audit.record import Audit, JudgeAudit
from llm_elicit.campaign import Campaign, Judge
from llm_elicit.comparisons import Comparisons
from llm_elicit.features import FeatureSpace
from llm_elicit.report import words
from llm_elicit.report.caveats import caveats
from llm_elicit.report.curves import draw_curves
from llm_elicit.report.figures import Portrait, Samples, draw_portrait, save_figures
from llm_elicit.report.picture import Picture
from llm_elicit.report.style import axis_label

_SHOWN_ANSWERS = 6


@dataclass(frozen=True)
class Study:
    """All that a report is made from.

    Attributes:
        audit: the numbers.
        campaign: what was asked, of whom.
        comparisons: the judgments.
        samples: points to draw: data, λ, and each judge's belief.
        versions: software versions by name.
        prompts: rendered questions by their hash, for those that can be shown.
        created: when, as text.
        missing: how many questions have no answer, for judges with any.
        questions: how many questions each judge is asked in all; those in `missing` are here.
    """

    audit: Audit
    campaign: Campaign
    comparisons: Comparisons
    samples: Samples
    versions: Mapping[str, str] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    missing: Mapping[str, int] = field(default_factory=dict)
    questions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """One question and what came back, for showing."""

    pair: int
    rows: list[tuple[str, str, str]]
    reply: str
    verdict: str
    probability: float | None


@dataclass(frozen=True)
class Usage:
    """What a judge's answers took. `cost` is None where a price is unknown."""

    requests: int
    cached: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    latency: float


@dataclass(frozen=True)
class JudgeView:
    """One judge as the page shows it."""

    audit: JudgeAudit
    anchor: str
    settings: str
    sentence: str
    order_note: str
    portrait: Portrait | None
    curves: Picture | None
    answers: list[Answer]
    prompt: str | None
    usage: Usage


def write_report(study: Study, folder: Path) -> Path:
    """Write `report.html` and `figures/` into `folder`.

    Args:
        study: what to report on.
        folder: an existing folder.

    Returns:
        The page's path.
    """
    portraits = {judge: draw_portrait(study.samples, judge) for judge in study.samples.beliefs}
    save_figures(portraits, folder / "figures")
    path = folder / "report.html"
    path.write_text(render_page(study, portraits), encoding="utf-8")
    return path


def render_page(study: Study, portraits: Mapping[str, Portrait]) -> str:
    """The page as HTML; everything from outside is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llm_elicit.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (
        words.number,
        words.estimate,
        words.interval,
        words.share,
        words.p_value,
        words.visible,
        words.worded,
        words.between,
        axis_label,
        data_uri,
    ):
        environment.filters[function.__name__] = function
    judges = [
        _judge_view(study, place, item, portraits.get(item.name))
        for place, item in enumerate(study.audit.judges, start=1)
    ]
    page = environment.get_template("page.html.jinja")
    return page.render(
        study=study,
        audit=study.audit,
        reference=study.audit.reference,
        space=study.audit.space,
        judges=judges,
        null_names=words.NULL_NAMES,
        caveats=caveats(study.audit, study.campaign, study.missing, study.questions),
    )


def data_uri(content: bytes, media: str) -> str:
    """Bytes as a `data:` address."""
    return f"data:{media};base64,{base64.b64encode(content).decode('ascii')}"


def _judge_view(
    study: Study, place: int, audited: JudgeAudit, portrait: Portrait | None
) -> JudgeView:
    rows = study.comparisons.of(audited.name)
    shown = pick_answers(rows, _SHOWN_ANSWERS)
    prompts = [study.prompts[h] for h in shown["prompt_hash"] if h in study.prompts]
    return JudgeView(
        audit=audited,
        anchor=f"judge-{place}",
        settings=_settings(study.campaign, audited.name),
        sentence=words.verdict_sentence(audited, study.audit),
        order_note=words.order_sentence(audited),
        portrait=portrait,
        curves=draw_curves(audited),
        answers=[_answer(row, study.audit.space) for _, row in shown.iterrows()],
        prompt=prompts[0] if prompts else None,
        usage=_usage(rows),
    )


def pick_answers(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Answers worth showing: one of every verdict there is, then evenly through the run."""
    firsts = list(rows.drop_duplicates("verdict").index[:count])
    others = [index for index in rows.index if index not in set(firsts)]
    wanted = count - len(firsts)
    step = max(1, len(others) // max(wanted, 1))
    return rows.loc[sorted(firsts + others[::step][:wanted])]


def _answer(row: pd.Series[Any], space: FeatureSpace) -> Answer:
    """The options as they were shown: in order "ba" point b was option A."""
    sides = ("a", "b") if row["order"] == "ab" else ("b", "a")
    first, second = (space.word([row[f"{side}_{name}"] for name in space.names]) for side in sides)
    rows = [(label, a, b) for (label, a), (_, b) in zip(first, second, strict=True)]
    probability = None
    if pd.notna(row["probability"]):
        p = float(row["probability"])
        probability = p if row["order"] == "ab" else 1.0 - p
    verdict = str(row["verdict"])
    return Answer(int(row["pair"]), rows, str(row["reply"]), verdict, probability)


def _settings(campaign: Campaign, judge: str) -> str:
    """The judge's settings that shape its answers; no address, which may hold a secret."""
    chosen: list[Judge] = [item for item in campaign.judges if item.name == judge]
    if not chosen:
        return "not in the campaign"
    settings = {"backend": chosen[0].backend, **chosen[0].identity()}
    shown = {k: v for k, v in settings.items() if v is not None and k != "base_url"}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shown.items())


def _usage(rows: pd.DataFrame) -> Usage:
    known = bool(rows["cost"].notna().all())
    return Usage(
        requests=len(rows),
        cached=int(rows["cached"].sum()),
        prompt_tokens=int(rows["prompt_tokens"].sum()),
        completion_tokens=int(rows["completion_tokens"].sum()),
        cost=float(rows["cost"].sum()) if known else None,
        latency=float(rows["latency"].median()),
    )
