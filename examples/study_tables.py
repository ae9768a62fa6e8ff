"""The tables and the figure of docs/study.md, from the runs of a campaign.

    llm-elicit register study/analysis.yaml --check --json > results.json
    python examples/study_tables.py study docs/study-tables docs/study.png results.json

The campaign is run first, or resumed; with no argument it is a quick one of simulated judges.
"""

import json
import sys
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

import llm_elicit as le
from llm_elicit.audit.inference import holm_adjust
from llm_elicit.audit.responses import build_response

LEVEL = 0.05


def text(estimate, digits=2):
    """Return a value with its interval."""
    if estimate is None:
        return "none"
    return "{:.{n}f} [{:.{n}f}, {:.{n}f}]".format(*estimate, n=digits)


def ends(interval):
    return None if interval is None else (interval.value, interval.low, interval.high)


def judges_of(runs):
    return [(run, judge) for run in runs for judge in run.audit.judges]


def preferences(runs):
    """Does a judge have a preference, how reliable is it, and what has position to do with it?"""
    rows = []
    for run, judge in judges_of(runs):
        found, place = judge.preference, judge.preference.position
        rows.append({
            "space": run.space.name, "judge": judge.name, "verdict": judge.verdict,
            "p": f"{found.p_value:.4f}", "p (Holm)": f"{found.p_holm:.4f}",
            "held-out R²": text(ends(found.reliability)), "ceiling": text(ends(found.ceiling)),
            "position effect": "none" if place is None else text(ends(place.mean)),
            "its sd": "none" if place is None or place.sd is None else f"{place.sd:.3f}",
        })  # fmt: skip
    return rows


def effects(runs):
    """What is preferred: every feature's effect over the middle half of its range."""
    return [
        {
            "space": run.space.name, "judge": judge.name, "feature": effect.name,
            "prefers": effect.direction,
            "log-odds over the middle half": text((effect.value, effect.low, effect.high), 3),
            "p (Holm)": f"{effect.p_holm:.4f}",
        }
        for run, judge in judges_of(runs)
        for effect in judge.effects
        if effect.value is not None and effect.low is not None
    ]  # fmt: skip


def wordings(runs):
    """What of a preference do wordings have in common?"""
    return [
        {
            "space": run.space.name, "judge": judge.name,
            "common share": text(ends(judge.presentations.common)),
            "generalizability": text(ends(judge.presentations.generalizability)),
            "p of an interaction": f"{judge.presentations.interaction.p_value:.4f}",
            "gains": "{:.2f} to {:.2f}".format(*gains(judge.presentations)),
            "position effects": "{:.2f} to {:.2f}".format(*positions(judge.presentations)),
        }
        for run, judge in judges_of(runs)
        if judge.presentations is not None
    ]  # fmt: skip


def gains(asked):
    values = [one.gain for one in asked.presentations if one.gain is not None] or [np.nan]
    return min(values), max(values)


def positions(asked):
    values = [one.position.value for one in asked.presentations if one.position] or [np.nan]
    return min(values), max(values)


def against_the_data(runs):
    """Does the preference follow the data?"""
    rows = []
    for run, judge in judges_of(runs):
        data = judge.discrimination
        if data is not None:
            numbers = {"AUC": text(ends(data.auc)), "ceiling": f"{data.ceiling:.2f}"}
            numbers["rank correlation"] = text(ends(data.rank_correlation))
            rows.append({"space": run.space.name, "judge": judge.name, **numbers})
    return rows


def agreement(runs):
    """Do models agree, on pairs answered by both? Holm over all of them."""
    rows, p_values = [], []
    for run in runs:
        models = [judge.name for judge in run.campaign.judges if judge.backend != "simulated"]
        answers = {name: build_response(run.comparisons, name) for name in models}
        for one, other in combinations(answers, 2):
            first, second = answers[one], answers[other]
            _, here, there = np.intersect1d(first.pair, second.pair, return_indices=True)
            test = stats.spearmanr(first.value[here], second.value[there])
            pair = {"space": run.space.name, "judge": one, "other": other}
            rows.append({**pair, "Spearman": f"{test.statistic:.2f}", "p": f"{test.pvalue:.4f}"})
            p_values.append(test.pvalue)
    adjusted = holm_adjust(np.nan_to_num(p_values, nan=1.0))
    return [{**row, "p (Holm)": f"{p:.4f}"} for row, p in zip(rows, adjusted, strict=True)]


def hypotheses(path):
    """The registered hypotheses, from `llm-elicit register STUDY --check --json`."""
    keys = ("run", "family", "text", "test", "estimate", "p_value", "p_holm", "outcome")
    results = json.loads(Path(path).read_text(encoding="utf-8"))
    return [{key: test[key] for key in keys} for test in results["hypotheses"]]


def first_effects(folder):
    """Effects of the first study by space and feature, of the judge in the figure."""
    path = folder / "first-effects.csv"
    if not path.is_file():
        return {}
    table = pd.read_csv(path)
    numbers = table["log-odds over the middle half"].str.findall(r"-?\d+\.\d+")
    keys = zip(table["judge"], table["space"], table["feature"], strict=True)
    return {key: [float(number) for number in row] for key, row in zip(keys, numbers, strict=True)}


def draw(runs, path, first):
    """Draw the effects of the first judge in each space, beside those of the first study."""
    sizes = [run.space.dimension for run in runs]
    figure, axes = plt.subplots(
        len(runs), 1, figsize=(7.5, 0.9 + 0.3 * sum(sizes) + 0.3 * len(runs)), sharex=True,
        squeeze=False, layout="constrained", height_ratios=sizes,
    )  # fmt: skip
    for axis, run in zip(axes[:, 0], runs, strict=True):
        judge = run.audit.judges[0]
        names = [effect.name for effect in judge.effects]
        for place, effect in enumerate(judge.effects):
            if effect.value is not None and effect.low is not None:
                label = "this study" if place == 0 else None
                interval = (effect.value, effect.low, effect.high)
                mark(axis, place + 0.15, interval, "#0072b2", "o", label)
            before = first.get((judge.name, run.space.name, effect.name))
            if before is not None:
                mark(axis, place - 0.2, before, "#d55e00", "D", None)
        axis.axvline(0.0, color="#b9bdc4", zorder=0)
        axis.set(yticks=range(len(names)), ylim=(len(names) - 0.4, -0.6))
        labels = [feature.label.partition(" (")[0] for feature in run.space.features]
        axis.set_yticklabels([label if len(label) < 34 else f"{label[:32]}…" for label in labels])
        axis.set_title(run.space.title, loc="left", fontsize="medium")
        axis.spines[["top", "right"]].set_visible(False)
    if first:
        axes[-1, 0].plot([], [], "D-", color="#d55e00", label="first study, where significant")
        axes[-1, 0].legend(frameon=False, fontsize="small", loc="lower right")
    axes[-1, 0].set_xlabel(
        f"Log-odds of {runs[0].audit.judges[0].name} over the middle half of the range"
    )
    figure.savefig(path, dpi=150)


def mark(axis, height, interval, colour, marker, label):
    value, low, high = interval
    axis.plot([low, high], [height, height], color=colour, linewidth=2)
    axis.plot(value, height, f"{marker}-", color=colour, label=label)


arguments = sys.argv[1:] or ["grid", "study-tables", "study.png"]
folder = Path(arguments[1])
folder.mkdir(exist_ok=True)
runs = [run for run in le.run_grid(arguments[0]).values() if run.audit.judges]
tables = {
    "preference": preferences(runs),
    "effects": effects(runs),
    "wordings": wordings(runs),
    "data": against_the_data(runs),
    "agreement": agreement(runs),
}
if len(arguments) > 3:
    tables["hypotheses"] = hypotheses(arguments[3])
for name, rows in tables.items():
    if rows:
        pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)
        print(f"{folder / name}.csv: {len(rows)} rows")
draw(runs, arguments[2], first_effects(folder))
