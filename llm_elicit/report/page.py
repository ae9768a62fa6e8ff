"""The report as one self-contained HTML page, which loads nothing and escapes all replies.

Another page compares conditions: how beliefs and data depend on the given features.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import pandas as pd
import yaml
from markupsafe import Markup
from matplotlib.axes import Axes

from llm_elicit._util.text import visible
from llm_elicit.audit.hypotheses import RegisteredResults
from llm_elicit.audit.panel import Panel
from llm_elicit.audit.record import Audit, is_cross_check
from llm_elicit.audit.reference import axis_label, feature_axis, has_few_values
from llm_elicit.audit.repeats import RepeatComparison
from llm_elicit.audit.summaries import (
    Bands,
    CategoryBands,
    CategorySummary,
    FeatureBands,
    FeatureSummary,
    Summary,
)
from llm_elicit.comparisons.table import (
    Comparisons,
    VersionLog,
    VersionSpan,
    follows_table,
    version_of,
)
from llm_elicit.comparisons.table_files import VERDICTS
from llm_elicit.config.campaign import Campaign
from llm_elicit.density.plot_style import LIGHT, empty_figure, set_axis, style_axes
from llm_elicit.report.answers import ORDERS, build_filters, sample_answers
from llm_elicit.report.figures import (
    Portrait,
    Samples,
    draw_curves,
    draw_portrait,
    marginal_layers,
    save_figures,
)
from llm_elicit.report.formatting import NULL_NAMES, power_labels
from llm_elicit.report.layers import Picture, draw_picture, svg_settings
from llm_elicit.report.sentences import text_environment
from llm_elicit.spaces.features import Feature


@dataclass(frozen=True)
class GlossaryEntry:
    """One term of the glossary.

    Attributes:
        term: the term as the page prints it.
        definition: its meaning, for a reader who knows none of the methods.
        references: the publications that introduce it, in full.
    """

    term: str
    definition: str
    references: tuple[str, ...] = ()


def _read_glossary() -> Mapping[str, GlossaryEntry]:
    """Return the entries of `glossary.yaml` by their key, in the order of the file."""
    text = (resources.files("llm_elicit.report") / "glossary.yaml").read_text(encoding="utf-8")
    stored = yaml.safe_load(text)
    entries = {}
    for key, entry in stored["terms"].items():
        references = tuple(stored["references"][name] for name in entry.get("references", ()))
        entries[key] = GlossaryEntry(entry["term"], entry["definition"], references)
    return MappingProxyType(entries)


GLOSSARY: Mapping[str, GlossaryEntry] = _read_glossary()
"""Every term by its key, in the order in which the page lists them."""


@dataclass(frozen=True)
class Study:
    """The inputs of a report.

    Attributes:
        audit: the numbers.
        campaign: the questions and the judges.
        comparisons: the judgments.
        samples: points for the figures: data, λ, and each judge's belief.
        versions: software versions by name.
        prompts: rendered questions by hash, of those that can be shown.
        created: the time of creation, as text.
        missing: number of unanswered questions, for judges with any.
        questions: total number of questions of each judge in `missing`.
        log_odds: one line for each judge: whether it gives log-odds or choices.
        registered: the registered results; None for a run that is not registered.
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
    log_odds: Mapping[str, str] = field(default_factory=dict)
    registered: RegisteredResults | None = None


def write_report(study: Study, folder: Path) -> Path:
    """Write `report.html` and `figures/` into `folder`.

    Args:
        study: the inputs of the report.
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
    """Return the page as HTML; all external text is escaped."""
    judges: list[dict[str, Any]] = []
    for number, audited in enumerate(study.audit.judges, start=1):
        rows, portrait = study.comparisons.of(audited.name), portraits.get(audited.name)
        prompts = (study.prompts[h] for h in rows["prompt_hash"] if h in study.prompts)
        factors = () if portrait is None else portrait.factors
        settings = "not in the campaign"
        for judge in study.campaign.judges:
            if judge.name == audited.name:  # without addresses, which may be secret
                identity = {"backend": judge.backend, **judge.identity()}.items()
                parts = {k: v for k, v in identity if v is not None and k != "base_url"}
                settings = _setting_text(parts)[1:-1]
        judges.append(
            {
                "audit": audited,
                "anchor": f"judge-{number}",
                "settings": settings,
                "log_odds": study.log_odds.get(audited.name),
                "power_labels": power_labels(audited.powers, factors),
                "portrait": portrait,
                "curves": draw_curves(audited),
                "sample": sample_answers(rows, study.audit.space),
                "prompt": next(prompts, None),
                "usage": _summarize_usage(rows),
            }
        )
    has_slider = any(len(portrait.factors) > 1 for portrait in portraits.values())
    page = template_environment().get_template("page.html.jinja")
    return page.render(
        study=study,
        audit=study.audit,
        reference=study.audit.reference,
        space=study.audit.space,
        judges=judges,
        labels={feature.name: feature.label for feature in study.audit.space.features},
        null_names=NULL_NAMES,
        glossary=GLOSSARY,
        filters=build_filters([(judge["audit"].name, judge["sample"]) for judge in judges]),
        verdicts=VERDICTS,
        orders=ORDERS,
        **_script_variables("slider.js" if has_slider else ""),
        caveats=caveats(study.audit, study.campaign, study.missing, study.questions),
        version_lines=version_lines(study.comparisons.frame, study.campaign),
    )


def _script_variables(name: str) -> dict[str, str]:
    """Return a page's only script, free of external text, and its hash for the CSP header."""
    folder = resources.files("llm_elicit.report") / "templates"
    script = (folder / name).read_text(encoding="utf-8") if name else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"script": Markup(script), "script_hash": f"sha256-{digest}"}


def render_panel(panel: Panel, samples: Sequence[Samples]) -> str:
    """Return the page of a panel as HTML, with the marginals of its judges by space."""
    figures = [
        {
            judge: [marginal_layers(sample, judge, i) for i in range(sample.space.dimension)]
            for judge in sample.beliefs
        }
        for sample in samples
    ]
    names = list(dict.fromkeys(space.title for space in panel.spaces))
    page = template_environment().get_template("panel.html.jinja")
    return page.render(panel=panel, figures=figures, names=names, **_script_variables("sort.js"))


def render_repeats(comparison: RepeatComparison) -> str:
    """Return the page that compares a run with its repeats as HTML."""
    return template_environment().get_template("repeats.html.jinja").render(comparison=comparison)


def version_lines(rows: pd.DataFrame, campaign: Campaign) -> list[str]:
    """Return a line for each model whose version changed, over all judges that share it."""
    prints = rows["fingerprint"].fillna("") if "fingerprint" in rows else ""
    answers = rows[["judge", "model_answered", "asked_at"]].fillna("").assign(fingerprint=prints)
    groups = answers.groupby(["judge", "model_answered", "fingerprint"])["asked_at"]
    spans = []
    for (judge, model, print_), times in groups:
        version = version_of(str(model), str(print_))
        spans.append((str(judge), VersionSpan(version, len(times), min(times), max(times))))
    changes = VersionLog(campaign.aliases, spans).changes
    return [f"{', '.join(change.judges)}: {change.line}" for change in changes]


def caveats(
    audit: Audit, campaign: Campaign, missing: Mapping[str, int], questions: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Return the methods and caveats of a run as (heading, paragraph), from `caveats.jinja`.

    Args:
        audit: the numbers.
        campaign: the questions.
        missing: number of unanswered questions, for judges with any.
        questions: total number of questions of each of those judges; fewer than planned if a
            stopping rule ended the rounds.
    """
    method_of_belief, *other_methods = campaign.fit.methods
    diagnostics = next((judge.diagnostics for judge in audit.judges if judge.diagnostics), {})
    checks = [
        method for method in other_methods if is_cross_check(method_of_belief, method, diagnostics)
    ]
    # The page escapes it.
    text = text_environment().get_template("caveats.jinja").render(
        audit=audit, campaign=campaign, missing=missing, questions=questions, checks=checks,
        dependent=[method for method in other_methods if method not in checks],
        follows_table=follows_table(audit.space),
    )  # fmt: skip
    _, *parts = re.split(r"^# (.+)\n", text, flags=re.MULTILINE)
    texts = [" ".join(paragraph.split()) for paragraph in parts[1::2]]
    return [(heading, text) for heading, text in zip(parts[::2], texts, strict=True) if text]


@functools.cache  # a page's templates are compiled once
def template_environment() -> jinja2.Environment:
    """Return the Jinja2 environment of pages; its filters are the functions that format values."""
    environment = text_environment().overlay(autoescape=True)
    environment.filters |= {"axis_label": axis_label, "data_uri": data_uri, "visible": visible}
    environment.tests["by_value"] = has_few_values
    return environment


def data_uri(content: bytes, media: str) -> str:
    """Return bytes as a `data:` URI."""
    return f"data:{media};base64,{base64.b64encode(content).decode('ascii')}"


def _setting_text(value: object) -> str:
    """Return a setting's value; a group's values in brackets."""
    if not isinstance(value, Mapping):
        return str(value)
    parts = (f"{key.replace('_', ' ')} {_setting_text(part)}" for key, part in value.items())
    return f"({', '.join(parts)})"


def _summarize_usage(rows: pd.DataFrame) -> dict[str, Any]:
    """Return a judge's requests, tokens, cost (None if a price is unknown) and median latency.

    `models` are the names that the provider reported, with the number of answers of each; `oldest`
    and `newest` are the days of the answers.
    """
    all_known = bool(rows["cost"].notna().all())
    # For people this column holds their names, which are not shown here.
    names = rows["model_answered"].mask(rows["model_asked"] == "human", "people")
    if "fingerprint" in rows:
        names = names + rows["fingerprint"].fillna("").map(
            lambda text: f" ({text})" if text else ""
        )
    models = sorted(names.value_counts().items())
    days = sorted(rows["asked_at"].str[:10])
    return {
        "requests": len(rows),
        **rows[["cached", "prompt_tokens", "completion_tokens"]].sum().astype(int),
        "cost": float(rows["cost"].sum()) if all_known else None,
        "latency": float(rows["latency"].median()),
        "models": ", ".join(f"{model} ({count:,})" for model, count in models if model),
        "oldest": days[0] if days else "",
        "newest": days[-1] if days else "",
    }


Summaries = tuple[Summary | None, Bands | None, Summary | None]

_DATA_OFFSET = -0.14
"""Horizontal offset of the data from the tick of a condition; the belief has the opposite."""


@dataclass(frozen=True)
class Condition:
    """One condition.

    Attributes:
        label: the given features, with their values.
        value: the given values alone.
        audit: the audit of its run.
        report: the address of its report, relative to the page.
    """

    label: str
    value: str
    audit: Audit
    report: str


@dataclass(frozen=True)
class Cell:
    """A mean or share in the belief, its 90 % band, and the same in the data; None if unknown."""

    belief: float | None
    band: tuple[float, float] | None
    data: float | None


@dataclass(frozen=True)
class Row:
    """A feature's mean, or the share of one of its categories, by condition.

    Attributes:
        feature: the feature.
        category: the category; None for a mean.
        cells: one per condition.
        same_direction: number of the `disjoint` pairs whose difference has the same sign in the
            belief and in the data.
        disjoint: number of pairs of conditions whose bands do not overlap.
    """

    feature: Feature
    category: str | None
    cells: tuple[Cell, ...]
    same_direction: int
    disjoint: int


def write_conditions(title: str, conditions: Sequence[Condition], path: Path) -> Path:
    """Write the page of the conditions of one feature space.

    Args:
        title: title of the feature space.
        conditions: two or more, over the same features and judges.
        path: the page's path.
    """
    features, labels = conditions[0].audit.space.features, [item.value for item in conditions]
    data_summaries = [condition.audit.reference.data_summary for condition in conditions]
    views = []
    for judge in [audited.name for audited in conditions[0].audit.judges]:
        audits = [condition.audit.of(judge) for condition in conditions]
        rows, pictures = [], []
        for index, feature in enumerate(features):
            summaries: list[Summaries] = [
                (
                    None if audit.belief_summary is None else audit.belief_summary[index],
                    None if audit.bands is None else audit.bands[index],
                    None if data is None else data[index],
                )
                for audit, data in zip(audits, data_summaries, strict=True)
            ]
            for category in feature.categories or (None,):
                cells = tuple(
                    Cell(*(_mean_or_share(side, category) for side in sides)) for sides in summaries
                )
                # A periodic feature, such as the hour, has no direction.
                direction = (0, 0) if feature.periodic else _count_same_direction(cells)
                rows.append(Row(feature, category, cells, *direction))
            if not feature.categories and not feature.periodic:
                pictures.append(_draw_feature(feature, judge, summaries, labels))
        views.append({"name": judge, "rows": rows, "pictures": pictures})
    page = template_environment().get_template("conditions.html.jinja")
    text = page.render(title=title, conditions=conditions, judges=views)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _mean_or_share(summary: Summary | Bands | None, category: str | None) -> Any:
    if isinstance(summary, CategorySummary | CategoryBands):
        return summary.shares[category or ""]
    return None if summary is None else summary.mean


def _count_same_direction(cells: Sequence[Cell]) -> tuple[int, int]:
    """Return how many differences agree in sign with the data, and how many bands are disjoint.

    Examples:
        >>> light, heavy = Cell(3.0, (2.0, 4.0), 3.7), Cell(6.0, (5.0, 7.0), 5.1)
        >>> _count_same_direction([light, heavy, Cell(4.5, (3.5, 5.5), 4.0)])
        (1, 1)
    """
    same_order = disjoint = 0
    for first, second in combinations(cells, 2):
        if first.band is None or second.band is None or first.data is None or second.data is None:
            continue
        if first.band[1] < second.band[0] or second.band[1] < first.band[0]:
            disjoint += 1
            same_order += (first.band[0] < second.band[0]) == (first.data < second.data)
    return same_order, disjoint


def _draw_feature(
    feature: Feature, judge: str, summaries: Sequence[Summaries], labels: list[str]
) -> Picture:
    """Draw a feature's distribution under every condition, in the belief and in the data."""
    with svg_settings():
        figure = empty_figure(3.6, 2.5, LIGHT)
        axes = figure.add_subplot()
        style_axes(axes, LIGHT)
        for x, (belief, bands, data) in enumerate(summaries):
            if isinstance(data, FeatureSummary):
                _draw_summary(axes, x + _DATA_OFFSET, data, LIGHT.data)
            if isinstance(belief, FeatureSummary):
                _draw_summary(axes, x - _DATA_OFFSET, belief, LIGHT.belief)
            if isinstance(bands, FeatureBands):
                at, shade = [x - _DATA_OFFSET] * 2, LIGHT.belief
                axes.plot(at, bands.mean, color=shade, lw=7, alpha=0.3, solid_capstyle="butt")
        set_axis(axes, "y", feature_axis(feature))
        axes.set_xlim(-0.5, len(labels) - 0.5)
        crowded = sum(map(len, labels)) > 30
        axes.set_xticks(range(len(labels)), labels, parse_math=False)
        for label in axes.get_xticklabels() if crowded else ():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
        alt = f"{axis_label(feature)} under each condition: the belief of {judge} and the data."
        return draw_picture(figure, axis_label(feature), alt)


def _draw_summary(axes: Axes, x: float, summary: FeatureSummary, colour: str) -> None:
    """Draw a mean as a point, with lines between the 5 and 95 % and the 25 and 75 % quantiles."""
    axes.plot([x, x], [summary.q05, summary.q95], color=colour, lw=1, solid_capstyle="butt")
    axes.plot([x, x], [summary.q25, summary.q75], color=colour, lw=2.5, solid_capstyle="butt")
    axes.plot([x], [summary.mean], "o", color=colour, ms=5)
