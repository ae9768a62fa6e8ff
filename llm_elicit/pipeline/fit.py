"""The stage that fits: every judge's belief by every method, with samples, bands and draws.

A belief is not fitted again unless its answers, its settings or its files were changed.

Runs of one grid that differ only in the condition are fitted together. The answers of all
conditions are one table over the whole feature space, in which both points of a pair have the
condition's values. One utility is fitted to them, and each run's belief is that of its condition:
the conditions share what they have in common, and need fewer questions each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from llm_elicit import density
from llm_elicit._util.packages import package_version
from llm_elicit._util.settings import read_yaml
from llm_elicit.audit import summaries
from llm_elicit.comparisons.table import Comparisons, evidence_of, noise_of, sampling_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.progress import Progress
from llm_elicit.pipeline import run_folder
from llm_elicit.pipeline.manifest import digest_of
from llm_elicit.pipeline.power_sources import (
    PowerSources,
    estimate_power,
    read_sources,
    scale_to_power,
)
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.spaces.features import FeatureSpace

_LONG = 60.0  # seconds of a fit that is announced


def make(run: Run, progress: Progress, goal: str) -> None:
    """Estimate every judge's belief by every method of the campaign and draw its samples.

    A judge with fewer answered pairs than features gets no belief, which the audit reports. Methods
    that use only winners and losers are left out if answers are log-odds. A belief is scaled to the
    power that direct answers imply, or to one by convention; its diagnostics name the source.

    Args:
        run: the run.
        progress: receives every change.
        goal: the stage that is wanted; beliefs that were never fitted are for "fit" alone.
    """
    beliefs = reads(run)
    due = beliefs if goal == "fit" else run.manifest.stale(beliefs)
    groups: dict[int, _Group] = {}  # by the number of runs: this one, or its conditions together
    for runs, judge, methods in parts(run, due):
        if len(runs) not in groups:
            groups[len(runs)] = _Group.of(runs, space_of(runs))
        _fit_group(run, groups[len(runs)], judge, methods, goal, progress)


def reads(run: Run) -> dict[str, dict[str, str]]:
    """Return digests of what all beliefs of a run depend on, by the manifest's entry of each."""
    names, shared = [judge.name for judge in run.campaign.judges], _shared(run)
    entries = product(names, run.campaign.fit.methods)
    return {run_folder.fit_of(name, method): shared for name, method in entries}


def _shared(result: Run) -> dict[str, str]:
    """Return digests of what all beliefs of a run depend on: answers, settings and λ."""
    fit, space = result.campaign.fit, result.space
    box = [space.names, *(side.tolist() for side in (space.low, space.high, space.log))]
    settings = [fit.model_dump(mode="json", exclude={"methods"}), result.campaign.seed, box]
    return {"tables": result.tables_digest, "settings": digest_of(settings)}


@dataclass(frozen=True)
class _Group:
    """Runs that are fitted together, with the data that all judges and methods share.

    Attributes:
        runs: the runs.
        space: the feature space of the fit: of several runs, without their conditions.
        comparisons: the judgments of all runs.
        reads: digests of the inputs that every belief of a run shares, by run.
    """

    runs: tuple[Run, ...]
    space: FeatureSpace
    comparisons: Comparisons
    reads: tuple[dict[str, str], ...]

    @classmethod
    def of(cls, runs: tuple[Run, ...], space: FeatureSpace) -> _Group:
        """Read the tables of some runs."""
        reads = tuple(_shared(run) | {"version": package_version()} for run in runs)
        is_single = len(runs) == 1
        comparisons = runs[0].comparisons if is_single else joint_table(runs, space.names)
        return cls(runs, space, comparisons, reads)

    def belief_of(self, run: Run, belief: density.BeliefDensity) -> density.BeliefDensity:
        """Return one run's belief: that of several runs under the run's condition."""
        if len(self.runs) == 1:
            return belief
        return belief.named(self.space.names).given(run.space.given)


def parts(
    result: Run, due: Collection[str]
) -> Iterator[tuple[tuple[Run, ...], str, Sequence[str]]]:
    """Yield runs that are fitted together, a judge and its methods, by their manifest entries.

    Runs that differ only in their condition are fitted together by the methods that can.
    """
    together, comparisons = conditions_of(result), result.comparisons
    for judge in (judge.name for judge in result.campaign.judges):
        all_methods = result.campaign.fit.methods
        methods = [name for name in all_methods if run_folder.fit_of(judge, name) in due]
        if not methods or not len(comparisons.choices(judge)):
            continue
        shared = [name for name in methods if name in density.JUDGE_METHODS]
        groups = [(together, shared), ((result,), [n for n in methods if n not in shared])]
        if len(together) == 1:
            groups = [(together, methods)]
        yield from ((runs, judge, chosen) for runs, chosen in groups if chosen)


def space_of(runs: Sequence[Run]) -> FeatureSpace:
    """Return the feature space of a fit: of several runs, without their conditions."""
    return runs[0].space if len(runs) == 1 else FeatureSpace.load(runs[0].campaign.space)


def fit_together(
    progress: Progress,
    runs: tuple[Run, ...],
    space: FeatureSpace,
    judge: str,
    method: str,
    due: int,
) -> None:
    """Fit a judge's belief in runs that `parts` names together, if that of run number `due` is due.

    `space` is that of `space_of`.
    """
    _fit_group(runs[due], _Group.of(runs, space), judge, [method], "fit", progress)


def _fit_group(
    result: Run, group: _Group, judge: str, methods: Sequence[str], stage: str, progress: Progress
) -> None:
    """Fit a judge's beliefs in a group of runs, unless those of ``result`` are fitted already."""
    evidence = evidence_of(group.comparisons, judge, result.campaign.fit)
    if evidence.pairs < result.space.dimension:
        return
    sampling, measured = sampling_of(group.space), len(evidence.measurements) > 0
    seconds = density.estimate_seconds(len(evidence), sampling)
    inputs = []
    for run, read in zip(group.runs, group.reads, strict=True):
        first = run.first_round  # ratios are asked of its pairs, which need no journal
        sources = read_sources(run.direct, judge, run.space, run.campaign.seed, first)
        answers = hashlib.sha256()
        for array in (*evidence.arrays(), *sources.arrays()):
            answers.update(np.ascontiguousarray(array).tobytes())
        inputs.append((run, sources, {**read, "answers": answers.hexdigest()}))
    for method in methods:
        if measured and method not in density.JUDGE_METHODS:
            progress.note(judge, f"fit: {method} does not support log-odds and is left out")
            continue
        fits = [_Fit(run, judge, method, sources, read) for run, sources, read in inputs]
        if fits[group.runs.index(result)].is_done(stage, progress):
            continue
        if seconds > _LONG and not measured:
            line = f"this takes about {seconds / 60:,.0f} minutes or more"
            progress.note(judge, f"fit {method}: {line}")
        belief = density.fit_evidence(
            evidence, sampling=sampling, method=method, noise=noise_of(result.campaign.fit),
            seed=result.campaign.seed, progress=partial(progress.stage, f"{judge}: fit {method}"),
        )  # fmt: skip
        for fit in fits:
            fit.write(group.belief_of(fit.run, belief), measured, progress)
            fit.record()


@dataclass(frozen=True)
class _Fit:
    """The fit of one judge's belief by one method, and its files in a run.

    Attributes:
        run, judge, method: what is fitted.
        sources: direct answers, from which the power of the belief is estimated.
        read: digests of all that the belief depends on.
    """

    run: Run
    judge: str
    method: str
    sources: PowerSources
    read: dict[str, str]

    @property
    def folder(self) -> Path:
        """The folder of the belief."""
        return self.run.belief_folder(self.judge, self.method)

    def record(self) -> None:
        """Record the inputs of the belief and its files."""
        files = [self.folder / name for name in run_folder.BELIEF]
        self.run.manifest.record(run_folder.fit_of(self.judge, self.method), self.read, files)

    def is_done(self, stage: str, progress: Progress) -> bool:
        """Return whether the belief was made from these inputs and its files are unchanged."""
        name, manifest = run_folder.fit_of(self.judge, self.method), self.run.manifest
        entry = manifest.entry(name)
        if entry is None:
            return False
        changed = manifest.changed(name)
        # The tables hold other judges' answers, too.
        of_same = entry.read | {"tables": ""} == self.read | {"tables": ""}
        if of_same and not changed:
            if entry.read != self.read:
                self.record()
            return True
        if changed:
            files = ", ".join(changed)
            progress.note(self.judge, f"{stage}: {files} is missing or changed; fitted again")
        elif stage != "fit":
            progress.note(self.judge, f"{stage}: answers or settings changed; fitted again")
        return False

    def write(self, belief: density.BeliefDensity, measured: bool, progress: Progress) -> None:
        """Scale a belief to its power and write its files; `measured` if answers are log-odds."""
        judge, folder, space = self.judge, self.folder, self.run.space
        settings, seed = self.run.campaign.fit, self.run.campaign.seed
        show = partial(progress.stage, f"{judge}: fit {self.method}")
        samples = folder / run_folder.SAMPLES
        samples.unlink(missing_ok=True)
        show("power", 0, 1)
        pinned = estimate_power(belief, self.sources, seed)
        for line in pinned.notes:
            progress.note(judge, f"fit: no power from {line}")
        for warning in density.fit_warnings(belief.diagnostics, quality=False):
            progress.note(judge, f"fit: {warning}")
        belief = scale_to_power(belief, pinned, measured=measured, seed=seed)
        words = {j: f.categories for j, f in enumerate(space.features) if f.categories}
        dates = [j for j, f in enumerate(space.features) if f.kind == "date"]
        belief = belief.named(space.names, words, dates)
        points = belief.sample(settings.samples, seed=seed)
        belief.save(folder)
        for name in (run_folder.BANDS, run_folder.DRAWS, run_folder.POWER):
            (folder / name).unlink(missing_ok=True)
        if pinned.power is not None:
            text = json.dumps(asdict(pinned.power), indent=2)
            (folder / run_folder.POWER).write_text(text + "\n", encoding="utf-8")
        if belief.has_draws:
            draws = belief.draws(seed=seed, progress=show)
            bands = summaries.measure_bands(draws, space)
            (folder / run_folder.BANDS).write_text(bands.model_dump_json() + "\n", encoding="utf-8")
            summaries.write_draws(draws, space, folder / run_folder.DRAWS)
        show("done", 1, 1)
        space.table_of(points).to_parquet(samples)


_OWN = {"name", "given", "grid", "limits", "runs"}
"""The settings that may differ between runs that are fitted together."""


def conditions_of(run: Run) -> tuple[Run, ...]:
    """Return the runs that are fitted together with a run, itself among them, in order of folders.

    They are the answered cells of its grid with the same settings but for the values given. Points
    that are drawn from the table have no density over all conditions, so each is fitted alone.
    """
    campaign = run.campaign
    if not campaign.given or campaign.part_of is None or campaign.design.sampling != "uniform":
        return (run,)
    runs = {run.folder: run}  # the run itself, not a second reading of it
    for path in sorted(run.folder.parent.glob(f"{campaign.part_of}.*/{run_folder.CAMPAIGN}")):
        folder = path.parent
        if folder in runs or not (folder / run_folder.COMPARISONS).is_file():
            continue
        cell = Campaign.model_validate(read_yaml(path))
        alike = cell.given.keys() == campaign.given.keys()
        if alike and cell.model_dump(exclude=_OWN) == campaign.model_dump(exclude=_OWN):
            runs[folder] = Run(folder, cell, cell.load_space())
    return tuple(runs[folder] for folder in sorted(runs))


def joint_table(runs: Sequence[Run], names: list[str]) -> Comparisons:
    """Return the judgments of all runs over the features of the whole space, by their names."""
    frames, offset = [], 0
    for run in runs:
        frame = run.comparisons.frame
        fixed_columns = {
            f"{side}_{fixed.feature.name}": fixed.feature.column(np.full(len(frame), fixed.value))
            for fixed in run.space.fixed
            for side in "ab"
        }
        frames.append(frame.assign(pair=frame["pair"] + offset, **fixed_columns))
        offset += int(frame["pair"].max()) + 1 if len(frame) else 0
    return Comparisons(pd.concat(frames), names)
