"""The tables and the figure of docs/study.md, from the runs of a campaign.

    python examples/study_tables.py study study.png

The campaign is run first, or resumed; with no argument it is a quick one of simulated judges.
"""

import sys
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import llm_elicit as le
from llm_elicit.audit.inference import holm_adjust
from llm_elicit.audit.responses import build_response

RESAMPLES = 10_000
LEVEL = 0.05


def log_density(space, points):
    """Of the reference table, smoothed on the features' scales (Scott's rule): (n,), nats."""
    smooth = stats.gaussian_kde(space.to_scale(space.table_points()).T)
    return smooth.logpdf(space.to_scale(points).T)


def rank_correlation(x, y, rng, level):
    """Spearman's, with an interval by resampling pairs; None where all of x are alike."""
    if np.ptp(x) < 1e-12:
        return None
    drawn = rng.integers(len(x), size=(RESAMPLES, len(x)))
    ranks = stats.rankdata(x[drawn], axis=1), stats.rankdata(y[drawn], axis=1)
    apart = [rank - rank.mean(axis=1, keepdims=True) for rank in ranks]
    sizes = [np.sqrt(np.square(one).sum(axis=1)) for one in apart]
    again = (apart[0] * apart[1]).sum(axis=1) / (sizes[0] * sizes[1])
    return stats.spearmanr(x, y).statistic, *np.nanquantile(again, [level / 2, 1 - level / 2])


def show(found, digits=2):
    if found is None:
        return "none"
    if not isinstance(found, tuple):
        found = found.value, found.low, found.high
    return "{:.{n}f} [{:.{n}f}, {:.{n}f}]".format(*found, n=digits)


def row(*cells):
    print("|", " | ".join(cells), "|")


def header(*cells):
    row(*cells)
    row(*["---"] * len(cells))


def judges_of(runs):
    return [(run, judge) for run in runs for judge in run.audit.judges]


def preferences(runs):
    """Questions 1 and 2: does a judge have a preference, and how reliable is it?"""
    header(
        "space", "judge", "verdict", "p", "p (Holm)", "held-out R²", "ceiling", "position effect",
        "its sd", "its share",
    )  # fmt: skip
    for run, judge in judges_of(runs):
        said, place = judge.preference, judge.preference.position
        position = ("none", "none", "none")
        if place is not None:
            sd = "none" if place.sd is None else f"{place.sd:.3f}"
            position = show(place.mean), sd, f"{place.explained_share:.2f}"
        p = f"{said.p_value:.4f}", f"{said.p_holm:.4f}"
        reliable = show(said.reliability), show(said.ceiling)
        row(run.space.name, judge.name, said.verdict, *p, *reliable, *position)


def effects(runs):
    """Question 3: what is preferred? Features whose test passes after Holm's correction."""
    header("space", "judge", "feature", "prefers", "log-odds over the middle half", "p (Holm)")
    for run, judge in judges_of(runs):
        for one in judge.effects:
            if one.p_holm < LEVEL and one.value is not None:
                size = show((one.value, one.low, one.high), 3)
                row(run.space.name, judge.name, one.name, one.direction, size, f"{one.p_holm:.4f}")


def against_the_data(runs, cells):
    """Question 4: does the preference follow the data?"""
    header(
        "space", "judge", "AUC", "ceiling", "utility and log-density",
        "half differences and log-density", f"at 1 − .05/{cells}",
    )  # fmt: skip
    found = {}
    for run, judge in judges_of(runs):
        said = build_response(run.comparisons, judge.name)
        denser = log_density(run.space, said.a) - log_density(run.space, said.b)
        alone, all_cells = (
            rank_correlation(said.value, denser, np.random.default_rng(0), level)
            for level in (LEVEL, LEVEL / cells)
        )
        found.setdefault(judge.name, {})[run.space.name] = alone
        data, known = judge.discrimination, ("none", "none", "none")
        if data is not None:
            known = show(data.auc), f"{data.ceiling:.2f}", show(data.rank_correlation)
        sure = "none" if all_cells is None else "[{:.2f}, {:.2f}]".format(*all_cells[1:])
        row(run.space.name, judge.name, *known, show(alone), sure)
    return found


def scales(runs):
    """Questions 5 and 6: is the scale known, and do ranges' widths count?"""
    header("space", "judge", "log-width", "of a density", "coherent: p", "power", "source")
    for run, judge in judges_of(runs):
        identified = None if judge.powers is None else judge.powers.identified_power
        if identified is None:
            row(run.space.name, judge.name, *["none"] * 5)
            continue
        width, shown = identified.coherence, ("none", "none", "none")
        if width is not None:
            shown = show(width.width, 3), f"{width.expected:.3f}", f"{width.p_value:.4f}"
        power = show((identified.value, identified.low, identified.high), 1)
        row(run.space.name, judge.name, *shown, power, identified.source)


def agreement(runs):
    """Question 7: do models agree? On pairs answered by both; Holm over all of them."""
    found = []
    for run in runs:
        models = [judge.name for judge in run.campaign.judges if judge.backend != "simulated"]
        said = {name: build_response(run.comparisons, name) for name in models}
        for one, other in combinations(said, 2):
            _, here, there = np.intersect1d(said[one].pair, said[other].pair, return_indices=True)
            test = stats.spearmanr(said[one].value[here], said[other].value[there])
            found.append((run.space.name, one, other, test.statistic, test.pvalue))
    corrected = holm_adjust(np.nan_to_num([test[4] for test in found], nan=1.0))
    header("space", "judge", "judge", "Spearman", "p", "p (Holm)")
    for (space, one, other, rho, p), p_holm in zip(found, corrected, strict=True):
        row(space, one, other, f"{rho:.2f}", f"{p:.4f}", f"{p_holm:.4f}")


def draw(found, path):
    spaces = list(next(iter(found.values())))
    figure, axes = plt.subplots(
        1, len(spaces), figsize=(2.4 * len(spaces) + 1.2, 2.4), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, space in zip(axes[0], spaces, strict=True):
        for place, judge in enumerate(reversed(found)):
            rho = found[judge].get(space)
            if rho is not None:
                axis.plot(rho[1:], [place, place], color="#0072b2", linewidth=2)
                axis.plot(rho[0], place, "o", color="#0072b2")
        axis.axvline(0.0, color="#b9bdc4", zorder=0)
        axis.set(xlim=(-1, 1), title=space, yticks=range(len(found)))
        axis.set_yticklabels(list(reversed(found)))
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("Spearman's correlation of preference and the data's log-density")
    figure.savefig(path, dpi=150)


campaign, path = sys.argv[1:] if len(sys.argv) == 3 else ("grid", "study.png")
runs = list(le.run_grid(campaign).values())
preferences(runs)
print()
effects(runs)
print()
draw(against_the_data(runs, cells=16), path)
print()
scales(runs)
print()
agreement(runs)
