"""The tables and the figure of docs/study.md, from the runs of a campaign.

    python examples/study_tables.py study study.png

The campaign is run first, or resumed; with no argument it is a quick one of simulated judges.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import llm_elicit as le

RESAMPLES = 2000


def log_density(space, points):
    """Of the reference table, smoothed on the features' scales (Scott's rule): (n,), nats."""
    smooth = stats.gaussian_kde(space.to_scale(space.table_points()).T)
    return smooth.logpdf(space.to_scale(points).T)


def rank_correlation(x, y, rng):
    """Spearman's, with a 95 % interval by resampling pairs; None where all of x are alike."""
    if np.ptp(x) < 1e-12:
        return None
    drawn = rng.integers(len(x), size=(RESAMPLES, len(x)))
    again = [stats.spearmanr(x[rows], y[rows]).statistic for rows in drawn]
    return stats.spearmanr(x, y).statistic, *np.nanquantile(again, [0.025, 0.975])


def show(found):
    return "none" if found is None else "{:.2f} [{:.2f}, {:.2f}]".format(*found)


def interval(found):
    return show(found and (found.value, found.low, found.high))


def leanings(run, judge):
    """Its preference for the first point of each pair, and by how much that point is denser."""
    choices = run.comparisons.choices(judge)
    denser = log_density(run.space, choices.a) - log_density(run.space, choices.b)
    return choices, choices.preference - 0.5, denser


def drawn_to(judge):
    """The features that drive it (Holm, 5 %), each with its effect in log-odds."""
    clear = [effect for effect in judge.effects if effect.p_holm < 0.05]
    told = [
        f"{each.name} {each.direction or ''} {each.value or float('nan'):+.2f}" for each in clear
    ]
    return ", ".join(told) or "none"


def row(*cells):
    print("|", " | ".join(cells), "|")


def header(*cells):
    row(*cells)
    row(*["---"] * len(cells))


def judging(runs):
    header(
        "space", "judge", "verdict", "order bias", "soft order bias", "both orders agree", "p",
        "driven by",
    )  # fmt: skip
    for run in runs:
        for judge in run.audit.judges:
            said = judge.consistency
            told = map(interval, (said.order_bias, said.soft_order_bias, said.agreement))
            p = f"{judge.preference.p_value:.4f}"
            row(run.space.name, judge.name, judge.verdict, *told, p, drawn_to(judge))


def against_the_data(runs):
    header("space", "judge", "W1", "sliced W1", "its 90 % interval", "preference and log-density")
    found = {}
    for run in runs:
        space = run.space.name
        for judge in run.audit.judges:
            _, preference, denser = leanings(run, judge.name)
            rho = rank_correlation(preference, denser, np.random.default_rng(0))
            found.setdefault(judge.name, {})[space] = rho
            away = judge.belief_data
            ends = "{:.2f} to {:.2f}".format(*away.bands.sliced) if away.bands else ""
            row(space, judge.name, *apart(away), ends, show(rho))
        row(space, "*λ*", *apart(run.audit.reference.sampling_data), "", "")
        row(space, "*half of the data*", *apart(run.audit.reference.data_floor), "", "")
    return found


def apart(distance):
    return f"{distance.wasserstein.mean:.2f}", f"{distance.joint.sliced.mean:.2f}"


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
judging(runs)
print()
draw(against_the_data(runs), path)
