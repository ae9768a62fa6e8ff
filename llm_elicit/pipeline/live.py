"""The view of a run while it asks: its judges' reliability, and a quick fit of their beliefs.

It is computed from the journal at any time, from at most `MAX_PAIRS` pairs of each judge, in a few
seconds. Once all answers are there and the run has its report, the view shows its own beliefs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd

from llm_elicit import density
from llm_elicit.audit import consistency, summaries
from llm_elicit.comparisons.table import Comparisons, evidence_of, noise_of, sampling_of
from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator.journal.questions import is_begun, stored_answers
from llm_elicit.orchestrator.judgments import comparisons, direct_answers
from llm_elicit.orchestrator.progress import SILENT, Progress
from llm_elicit.pipeline import snapshot
from llm_elicit.pipeline.manifest import write_atomically
from llm_elicit.pipeline.power_sources import read_sources, scale_by_answers
from llm_elicit.pipeline.results import read_samples
from llm_elicit.pipeline.run_folder import ANSWERS, Run
from llm_elicit.report import figures, sentences
from llm_elicit.report.formatting import share_text

MAX_PAIRS = 400
"""The most pairs of a judge that a quick fit uses, spread evenly over those answered."""

_POINTS = 4000
_DRAWS = 32
_BINS = 12
"""Parts of the axis of a feature with many values."""

Shown = Callable[[str, int, int], None]
Pairs = np.ndarray[tuple[int], np.dtype[np.int64]]


def write_live(run: Run, progress: Progress = SILENT) -> None:
    """Write live.json into the run's folder, completely or not at all."""
    write_atomically(run.folder / snapshot.LIVE, live_view(run, progress).model_dump_json() + "\n")


def live_view(run: Run, progress: Progress = SILENT) -> snapshot.LiveView:
    """Compute the view of a run from its journal, at any time.

    Args:
        run: the run.
        progress: receives the progress of the fits.
    """
    space, names = run.space, [judge.name for judge in run.campaign.judges]
    created = datetime.now(UTC).isoformat(timespec="seconds")
    data = space.table_points() if space.table else None
    if not is_begun(run.location):
        none = snapshot.LiveJudge(judgments=0, pairs=0, reason="no answers yet")
        return snapshot.LiveView(
            created=created, data=data is not None, judges=dict.fromkeys(names, none)
        )
    table = comparisons(run.study)
    direct = direct_answers(run.study)
    rng = np.random.default_rng([run.campaign.seed, 0x11FE])
    entry = run.manifest.entry("ask")
    is_whole = entry and entry.read.get(ANSWERS) == str(stored_answers(run.location))
    audit = None
    if is_whole and run.report_path.is_file():
        samples = read_samples(run)  # the beliefs that the run's stages fitted to all answers
        audit = run.audit
    else:
        samples = figures.Samples(space, space.sample(_POINTS, rng), data)
    judges = {}
    for name in names:
        show = partial(progress.stage, f"{name}: live view")
        judge = _judge(run, name, table, direct, samples, show)
        if audit is not None:
            audited = audit.of(name)
            sentence = sentences.verdict_sentence(audited, audit)
            reliability = snapshot.LiveInterval.of(audited.preference.reliability)
            judge = judge.model_copy(update={"verdict": sentence, "reliability": reliability})
        judges[name] = judge
    asked = table.frame["asked_at"].dropna()
    first, last = (str(asked.min()), str(asked.max())) if len(asked) else ("", "")
    return snapshot.LiveView(
        created=created, data=data is not None, judges=judges, first=first, last=last
    )


def _judge(
    run: Run,
    judge: str,
    table: Comparisons,
    direct: pd.DataFrame,
    samples: figures.Samples,
    show: Shown,
) -> snapshot.LiveJudge:
    """Measure one judge and fit its belief."""
    choices = table.choices(judge)
    measures = consistency.measure_consistency(table, judge, choices)
    measured = snapshot.LiveJudge(
        judgments=measures.answers,
        pairs=measures.pairs,
        agreement=snapshot.LiveInterval.of(measures.agreement),
        retest=snapshot.LiveInterval.of(measures.retest_agreement),
        position_effect=snapshot.LiveInterval.of(measures.order_bias or measures.soft_order_bias),
    )
    needed = run.space.dimension
    if measures.pairs < needed:
        reason = f"{measures.pairs} of the {needed} pairs that a belief needs are answered"
        return measured.model_copy(update={"reason": reason})
    used = 0
    points, bands = samples.beliefs.get(judge), samples.bands.get(judge)
    if points is None:
        used = min(measures.pairs, MAX_PAIRS)
        try:
            count, rows = len(choices.pair), table.answers_of(judge)
            evenly = np.linspace(0, count - 1, min(count, MAX_PAIRS)).round().astype(int)
            sample = Comparisons(rows[rows["pair"].isin(choices.pair[evenly])], table.features)
            belief = _belief(run, judge, sample, direct, show)
        except (ElicitError, density.DensityError) as error:
            return measured.model_copy(update={"reason": f"no belief could be fitted yet: {error}"})
        points = belief.sample(_POINTS, seed=run.campaign.seed)
        if belief.has_draws:
            bands = summaries.measure_bands(belief.draws(seed=run.campaign.seed), run.space)
    judge_bands = {} if bands is None else {judge: bands}
    own = figures.Samples(run.space, samples.sampling, samples.data, {judge: points}, judge_bands)
    charts = tuple(_chart(own, judge, j) for j in range(run.space.dimension))
    return measured.model_copy(update={"charts": charts, "used": used})


def _belief(
    run: Run, judge: str, table: Comparisons, direct: pd.DataFrame, show: Shown
) -> density.BeliefDensity:
    """Fit a judge's belief quickly, at the power that its direct answers imply."""
    campaign, space = run.campaign, run.space
    evidence = evidence_of(table, judge, campaign.fit)
    first = campaign.fit.methods[0]
    between = density.BETWEEN_ROUNDS
    utility = replace(between.utility, posterior=density.PosteriorSettings(draws=_DRAWS))
    belief = density.fit_evidence(
        evidence,
        sampling=sampling_of(space),
        method=first if first in density.JUDGE_METHODS else "auto",  # others take minutes
        noise=noise_of(campaign.fit),
        seed=campaign.seed,
        settings=replace(between, utility=utility),
        progress=show,
    )
    sources = read_sources(direct, judge, space, campaign.seed, run.first_round)
    return scale_by_answers(belief, sources, len(evidence.measurements) > 0, campaign.seed)


def _chart(samples: figures.Samples, judge: str, j: int) -> snapshot.LiveChart:
    """Return the chart of one feature of a judge's belief, as in the report, with every shape."""
    chart = figures.marginal_layers(samples, judge, j)
    shapes = [shape for group in chart.rescaled for shape in group.shapes]
    shapes += [shape for _, shapes_of_step in chart.shapes_by_step for shape in shapes_of_step]
    return snapshot.LiveChart(
        title=chart.title,
        words=chart.alt,
        width=chart.width,
        height=chart.height,
        shapes=tuple(
            snapshot.LiveShape.model_validate(shape, from_attributes=True) for shape in shapes
        ),
        feature=samples.space.names[j],
        bins=tuple(_bins(samples, judge, j, chart.width)),
    )


def _bins(samples: figures.Samples, judge: str, j: int, width: int) -> Iterator[snapshot.LiveBin]:
    """Yield the parts of a feature's axis; a category or a number that stands alone is one."""
    axis, feature = samples.plot_data(judge).axes[j], samples.space.features[j]
    edges = axis.edges(_BINS)
    points = {
        "belief": samples.beliefs[judge], "data": samples.data, "questions": samples.sampling,
    }  # fmt: skip
    shares = {
        name: np.histogram(values[:, j], edges)[0] / max(len(values), 1)
        for name, values in points.items() if values is not None
    }  # fmt: skip
    scaled, ends = (np.log(part) if axis.log else part for part in (edges, np.array(axis.limits)))
    left, right = figures.MARGINAL_SIDES
    at = width * (left + (right - left) * (scaled - ends[0]) / (ends[1] - ends[0]))
    for number, (start, end) in enumerate(pairwise(edges.tolist())):
        low, high = start, end
        if axis.is_discrete or axis.whole:  # cells from k - 1/2 to k + 1/2
            low, high = float(math.ceil(low)), float(max(math.ceil(high) - 1, math.ceil(low)))
        ends_in_words = list(dict.fromkeys((feature.word(low), feature.word(high))))
        stated = [repr(low), repr(high)]
        if feature.categories or feature.kind == "date":
            stated = [str(cell) for cell in feature.column(np.array([low, high])).astype(str)]
        yield snapshot.LiveBin(
            x=float(at[number]),
            width=float(at[number + 1] - at[number]),
            values=" to ".join(ends_in_words),
            shares=", ".join(f"{name} {share_text(part[number])}" for name, part in shares.items()),
            low=stated[0],
            high=stated[-1],
        )
