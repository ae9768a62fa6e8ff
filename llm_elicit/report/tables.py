"""A run's tables as files: CSV with all digits; Markdown and LaTeX rounded as on the page.

LaTeX needs the package booktabs and compiles with pdfLaTeX: characters without a glyph are written
as code points.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from llm_elicit._util.text import guard, latex, markdown
from llm_elicit.audit.distances import Distance
from llm_elicit.audit.inference import Interval, interval_columns
from llm_elicit.audit.record import Audit, JudgeAudit
from llm_elicit.audit.reference import axis_label
from llm_elicit.audit.summaries import CategoryBands, CategorySummary, Summary
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.report import formatting
from llm_elicit.report.figures import file_stem
from llm_elicit.report.sentences import reaches_ceiling, usable_ceiling
from llm_elicit.spaces.features import Feature

_NAME_COLUMNS = 2
"""First columns of a table, which hold names; the rest are numbers."""


def write_tables(audit: Audit, folder: Path) -> list[Path]:
    """Write `audit.*`, one row per judge, and `JUDGE-features.*`, each as `.csv`, `.md` and `.tex`.

    Categorical features are in `JUDGE-shares.*`, answers to direct questions in `JUDGE-direct.*`.

    Args:
        audit: the numbers.
        folder: created if it does not exist.

    Returns:
        The files written.
    """
    folder.mkdir(exist_ok=True)
    written = _write_formats(folder / "audit", audit_numbers(audit), audit_table(audit))
    for judge in audit.judges:
        name, numbers = file_stem(judge.name), audit.summary(judge.name)
        if "mean" in numbers.columns:
            number_rows = numbers[numbers["mean"].notna()].dropna(axis="columns", how="all")
            stem = folder / f"{name}-features"
            written += _write_formats(stem, number_rows, feature_table(audit, judge))
        if "share" in numbers.columns:
            columns = ["feature", "category", "sample", "share"]
            shares = numbers.loc[numbers["share"].notna(), columns]
            written += _write_formats(folder / f"{name}-shares", shares, share_table(audit, judge))
        if judge.direct is not None:
            stem, table = folder / f"{name}-direct", direct_table(audit, judge)
            written += _write_formats(stem, direct_numbers(audit, judge), table)
    return written


def _write_formats(stem: Path, numbers: pd.DataFrame, table: pd.DataFrame) -> list[Path]:
    csv, md, tex = paths = [stem.parent / f"{stem.name}.{kind}" for kind in ("csv", "md", "tex")]
    guarded = numbers.map(lambda cell: guard(cell) if isinstance(cell, str) else cell)
    guarded.to_csv(csv, index=False)
    md.write_text(as_markdown(table), encoding="utf-8")
    tex.write_text(as_latex(table), encoding="utf-8")
    return paths


def as_markdown(table: pd.DataFrame) -> str:
    """Return a table of text in Markdown, escaped; columns from the third are right-aligned.

    Examples:
        >>> print(as_markdown(pd.DataFrame({"judge": ["a|b"], "of": ["x"], "p": ["0.5"]})), end="")
        | judge | of | p |
        | :--- | :--- | ---: |
        | a\\|b | x | 0.5 |
    """
    rule = [":---" if column < _NAME_COLUMNS else "---:" for column in range(table.shape[1])]
    rows = (map(markdown, row) for row in table.itertuples(index=False))
    lines = [map(markdown, table.columns), rule, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_latex(table: pd.DataFrame) -> str:
    """Return a table of text as a LaTeX tabular, escaped; needs the package booktabs.

    Examples:
        >>> print(as_latex(pd.DataFrame({"judge": ["R&D"], "of": ["x"], "p": ["0.5"]})), end="")
        \\begin{tabular}{llr}
        \\toprule
        judge & of & p \\\\
        \\midrule
        R\\&D & x & 0.5 \\\\
        \\bottomrule
        \\end{tabular}
    """

    escaped = table.map(latex).rename(columns=latex)
    columns = "l" * _NAME_COLUMNS + "r" * (table.shape[1] - _NAME_COLUMNS)
    text: str = escaped.style.hide(axis="index").to_latex(column_format=columns, hrules=True)
    return text


def audit_numbers(audit: Audit) -> pd.DataFrame:
    """Return the audit's main numbers, one row per judge; empty cells if not measurable.

    Distances, of the belief at its saved power, are Wasserstein-1 in standard deviations, with the
    sd over subsamples.
    """
    reference = audit.reference
    rows = []
    for judge in audit.judges:
        discrimination = judge.discrimination
        row = {
            "judge": judge.name,
            "verdict": judge.verdict,
            "pairs": judge.preference.pairs,
            "p_value": judge.preference.p_value,
            "p_holm": judge.preference.p_holm,
            **interval_columns("reliability", judge.preference.reliability),
            **interval_columns("ceiling", judge.preference.ceiling),
            **interval_columns("auc", judge.auc),
            "auc_ceiling": getattr(discrimination, "ceiling", None),
            **interval_columns(
                "rank_correlation", getattr(discrimination, "rank_correlation", None)
            ),
            **interval_columns("level_set", getattr(discrimination, "level_set", None)),
            "position": getattr(judge.preference.position, "explained_share", None),
            **_distance_columns("w1_data", judge.data_distance),
            **_distance_columns("floor_data", reference.data_floor),
            **_distance_columns("w1_sampling", judge.sampling_distance),
            **_distance_columns("floor_sampling", reference.sampling_floor),
            **interval_columns("order_bias", judge.consistency.order_bias),
            **interval_columns("agreement", judge.consistency.agreement),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _distance_columns(name: str, distance: Distance | None) -> dict[str, float | None]:
    w1 = None if distance is None else distance.wasserstein
    return {name: w1.mean if w1 else None, f"{name}_sd": w1.sd if w1 else None}


def audit_table(audit: Audit) -> pd.DataFrame:
    """Return the main numbers as text; distances are from λ if there are no data."""
    reference = audit.reference
    without_data = reference.data_summary is None
    floor = reference.data_floor or reference.sampling_floor
    rows = []
    for judge in audit.judges:
        distance = judge.sampling_distance if without_data else judge.data_distance
        preference = judge.preference
        rows.append(
            {
                "Judge": judge.name,
                "Verdict": judge.verdict,
                "p": formatting.p_value_cell(preference.p_holm, preference.p_is_bound),
                "R²": _share_interval(preference.reliability),
                "Ceiling": _share_interval(usable_ceiling(preference))
                + (", reached" if reaches_ceiling(preference) else ""),
                "AUC": formatting.interval_text(judge.auc, percent=True),
                f"W1 to {'λ' if without_data else 'data'}": formatting.estimate_text(
                    None if distance is None else distance.wasserstein
                ),
                "Floor": formatting.estimate_text(floor.wasserstein),
                "Order bias": formatting.interval_text(judge.consistency.order_bias),
                "Agreement": formatting.interval_text(judge.consistency.agreement, percent=True),
            }
        )
    return pd.DataFrame(rows)


def _share_interval(interval: Interval | None) -> str:
    """Return a share with its interval; below 0 nothing is explained."""
    if interval is None:
        return formatting.interval_text(None)
    ends = {end: max(value, 0.0) for end, value in interval if isinstance(value, float)}
    return formatting.interval_text(interval.model_copy(update=ends), percent=True)


def feature_table(audit: Audit, judge: JudgeAudit) -> pd.DataFrame:
    """Return summaries of data, belief and λ, in the units of the questions.

    The table has the features that are numbers; `share_table` has the categorical ones.
    """
    samples = audit.summaries(judge.name)
    heads = {"mean": "mean", "sd": "sd", "q05": "5 %", "q25": "25 %", "q50": "median"}
    heads |= {"q75": "75 %", "q95": "95 %"}

    def statistic(feature: Feature, summary: Summary, key: str) -> str:
        value, word = getattr(summary, key, None), formatting.value_text
        if value is None:  # a quantile of a periodic feature
            return ""
        return (formatting.sd_text if key == "sd" else word)(feature, value)

    return pd.DataFrame(
        [
            {
                "Feature": "" if position else axis_label(feature),
                "Of": name,
                **{head: statistic(feature, rows[i], key) for key, head in heads.items()},
            }
            for i, feature in enumerate(audit.space.features)
            if not feature.categories
            for position, (name, rows) in enumerate(samples.items())
        ]
    )


def share_table(audit: Audit, judge: JudgeAudit) -> pd.DataFrame:
    """Return each category's share in data, belief (with its band) and λ."""
    rows = []
    for i, feature in enumerate(audit.space.features):
        band = None if judge.bands is None else judge.bands[i]
        for code, word in enumerate(feature.categories):
            row = {"Feature": "" if code else feature.label, "Category": word}
            for name, summaries in audit.summaries(judge.name).items():
                summary = summaries[i]
                assert isinstance(summary, CategorySummary)
                row[name] = formatting.share_text(summary.shares[word], 1)
                if name == "belief" and isinstance(band, CategoryBands):
                    ends = (formatting.share_text(end, 1) for end in band.shares[word])
                    row["90 % band"] = " to ".join(ends)
            rows.append(row)
    return pd.DataFrame(rows)


def direct_numbers(audit: Audit, judge: JudgeAudit) -> pd.DataFrame:
    """Return results of direct questions, one row per feature; joint results are in every row.

    Quantiles are in natural units, distances in standard deviations; for categorical features,
    which have no quantiles, distances are total variations. Empty cells if not measurable.
    """
    direct = judge.direct
    assert direct is not None
    completion = direct.row_completion
    joint_results = {
        **interval_columns("row_completion", getattr(completion, "exact_share", None)),
        "row_completion_chance": getattr(completion, "chance_share", None),
        "row_completion_p": getattr(completion, "p_value", None),
    }
    rows = []
    stated_by_name = {feature.name: feature for feature in direct.stated_quantiles or ()}
    for i, name in enumerate(audit.space.names):
        row: dict[str, object] = {"feature": name}
        answer = stated_by_name.get(name)
        for k, percent in enumerate(LEVELS):
            row[f"q{percent:02d}"] = answer.quantiles[k] if answer and answer.quantiles else None
        for key in ("times", "outside", "spread", "data", "belief", "belief_data", "floor"):
            row[f"stated_{key}"] = getattr(answer, key, None)
        generated = direct.generated_points.features[i] if direct.generated_points else None
        for side in ("data", "belief"):
            for key in ("distance", "floor", "p_value"):
                row[f"generated_{side}_{key}"] = getattr(getattr(generated, side, None), key, None)
        rows.append(row | joint_results)
    return pd.DataFrame(rows)


def direct_table(audit: Audit, judge: JudgeAudit) -> pd.DataFrame:
    """Return stated quantiles, in the units of the questions, and distances as text."""
    numbers = direct_numbers(audit, judge)
    heads = {"q05": "5 %", "q25": "25 %", "q50": "median", "q75": "75 %", "q95": "95 %"}
    distances = {
        "stated_data": "Stated to data", "stated_belief": "Stated to belief",
        "generated_data_distance": "Generated to data",
        "generated_belief_distance": "Generated to belief",
    }  # fmt: skip
    table_rows = []
    for i, feature in enumerate(audit.space.features):
        row = numbers.iloc[i]
        cells = {head: formatting.value_text(feature, row[key]) if pd.notna(row[key]) else ""
                 for key, head in heads.items()}  # fmt: skip
        cells |= {head: f"{row[key]:.2f}" if pd.notna(row[key]) else ""
                  for key, head in distances.items()}  # fmt: skip
        table_rows.append({"Feature": axis_label(feature), "Of": judge.name, **cells})
    return pd.DataFrame(table_rows)
