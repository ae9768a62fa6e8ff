"""A run: a folder, and what its stages left there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit import orchestrator
from llm_elicit._util.lazy_module import LazyModule
from llm_elicit._util.read_files import read_parquet
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.base_model import read_yaml, validated
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.grid import cells
from llm_elicit.config.provenance import check_same
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.pipeline.manifest import Manifest, digest_of, digest_of_file, replacing
from llm_elicit.planning.pairs import Plan, direct_queries, make_plan
from llm_elicit.planning.rounds import questions_of, with_rounds
from llm_elicit.spaces.features import FeatureSpace

FROZEN = "campaign.yaml"
"""The file of a run's campaign as it was validated."""

if TYPE_CHECKING:
    import pandas as pd

    from llm_elicit import audit as auditing
    from llm_elicit import density
else:
    pd = LazyModule("pandas")
    auditing, density = LazyModule("llm_elicit.audit"), LazyModule("llm_elicit.density")

COMPARISONS, DIRECT = "comparisons.parquet", "direct.parquet"
"""The files of what was answered: about pairs, and to direct questions."""

PLAN = "plan.parquet"
"""The file of the pairs."""

AUDIT = "audit.json"
"""The file of the numbers of the report."""

ANSWERS = "answers"
"""Under which the manifest says how many answers the journal held when its tables were written."""

SAMPLES = "samples.parquet"
"""The file of a belief's samples, in its folder."""

BANDS = "bands.json"
"""The file of a belief's credible bands, in its folder; methods without draws have none."""

DRAWS = "draws.parquet"
"""The file of points of the densities that a belief's answers allow, beside its bands."""

POWER = "power.json"
"""The file of the power that other answers than comparisons of points say, beside the belief."""

POWERS = "powers.parquet"
"""The file of a belief's points at other powers, which the audit makes."""

BELIEF = ("belief.json", "belief.safetensors", SAMPLES, BANDS, DRAWS, POWER)
"""The files that a fit leaves in a belief's folder, those of them that it has."""


_OF_DIRECT = ("judge", "kind", "number", "replicate", "template", "reply", "verdict")
"""The columns of direct answers that later stages look at, in whichever version."""


@dataclass(frozen=True)
class Run:
    """A run's folder and what its stages left there.

    Attributes:
        folder: where everything is kept.
        campaign: what is asked, of whom.
        space: the feature space.
        problems: why questions have no answer: what stopped a judge, the others going on.
    """

    folder: Path
    campaign: Campaign
    space: FeatureSpace
    problems: tuple[ElicitError, ...] = ()

    @classmethod
    def open(cls, where: str | Path) -> Run:
        """A run by its folder, its name under runs/, or its campaign.

        Raises:
            InputError: none of the three exists, or it is a grid of several.
        """
        found = open_runs(where)
        if len(found) > 1:
            names = ", ".join(run.campaign.name for run in found)
            raise InputError(
                f"{where} is a grid, whose cells are {names}; name one, or use run_grid"
            )
        return found[0]

    @cached_property
    def plan(self) -> Plan:
        """The pairs, drawn anew from the seed: the same every time. Later rounds are on record."""
        campaign = self.campaign
        first = make_plan(self.space, campaign.design, campaign.seed)
        direct = direct_queries(campaign.direct, self.space, campaign.seed, len(first.a))
        first = replace(first, direct=direct)
        if self.campaign.design.rounds is None:
            return first
        return with_rounds(first, self.campaign, orchestrator.planned_rounds(self.location))

    @property
    def location(self) -> orchestrator.JournalLocation:
        """Where the journal is."""
        return orchestrator.JournalLocation(self.folder, self.campaign.journal)

    def write_pairs(self) -> None:
        """Write the pairs down, a row each."""
        columns = [f"{side}_{name}" for side in "ab" for name in self.space.names]
        pairs = np.hstack([self.plan.a, self.plan.b])
        with replacing(self.folder / PLAN) as beside:
            pd.DataFrame(pairs, columns=columns).to_parquet(beside)
        self.manifest.record("pairs", {}, [self.folder / PLAN])

    @property
    def answered(self) -> dict[str, dict[str, int]]:
        """How many questions each judge has answered, by presentation; empty before the first."""
        if not (self.folder / orchestrator.JOURNAL).is_file():
            return {}
        return orchestrator.answered(self.folder, self.campaign)

    @property
    def untouched(self) -> dict[str, orchestrator.Totals]:
        """Each judge's counts before the first question is asked."""
        questions = self.campaign.design.questions + len(self.plan.direct)
        total = orchestrator.Totals(total=questions)
        return {judge.name: total for judge in self.campaign.judges}

    @property
    def comparisons(self) -> Comparisons:
        """The table of judgments."""
        return Comparisons.read(self._as_written("ask", COMPARISONS))

    @property
    def direct(self) -> pd.DataFrame | None:
        """The answers to direct questions, as they came; None where none were asked."""
        path = self._as_written("ask", DIRECT)
        return read_parquet(path, _OF_DIRECT) if path.is_file() else None

    @property
    def judgments(self) -> dict[str, int]:
        """How many judgments the table holds, for judges with any."""
        path = self._as_written("ask", COMPARISONS)
        if not path.is_file():
            raise InputError(f"{path}: no such file; run the campaign first")
        judges = read_parquet(path, only=["judge"])["judge"]
        return {str(judge): int(count) for judge, count in judges.value_counts().items()}

    @property
    def missing(self) -> dict[str, int]:
        """How many questions of the plan have no answer in the table, for judges with any."""
        counts = self.judgments
        gaps = {judge: total - counts.get(judge, 0) for judge, total in self.questions.items()}
        return {judge: gap for judge, gap in gaps.items() if gap}

    @property
    def questions(self) -> dict[str, int]:
        """How many questions about pairs each judge is asked; fewer where a rule had enough."""
        rounds = self.campaign.design.rounds
        known = {} if rounds is None else orchestrator.planned_rounds(self.location)
        names = [judge.name for judge in self.campaign.judges]
        return {name: questions_of(name, self.campaign, known) for name in names}

    @property
    def beliefs(self) -> Mapping[str, density.BeliefDensity]:
        """Each judge's belief, by the campaign's first method; judges without one are left out."""
        return Beliefs(self, self.campaign.fit.methods[0])

    @property
    def audit(self) -> auditing.Audit:
        """The numbers of the report."""
        return auditing.Audit.load(self._as_written("audit", AUDIT))

    @property
    def report_path(self) -> Path:
        """The self-contained page."""
        return self.folder / "report.html"

    @property
    def tables_digest(self) -> str:
        """A digest of the tables of answers."""
        return digest_of([digest_of_file(self.folder / name) for name in (COMPARISONS, DIRECT)])

    @property
    def manifest(self) -> Manifest:
        """What the stages read and wrote."""
        return Manifest(self.folder)

    @property
    def identity(self) -> dict[str, str]:
        """What must stay the same while the run goes on; see `llm_elicit.config.provenance`."""
        return orchestrator.worded_identity(self.campaign, self.space)

    @property
    def begun_with(self) -> dict[str, str]:
        """What it was when the run was begun; empty before that, and where nobody knows."""
        kept = self.manifest.identity
        if kept or not (self.folder / orchestrator.JOURNAL).is_file():
            return kept
        return orchestrator.kept_identity(self.location)

    @property
    def begun(self) -> bool:
        """Whether anything was asked."""
        files = (orchestrator.JOURNAL, COMPARISONS)
        return self.location.shared or any((self.folder / name).exists() for name in files)

    def check_identity(self) -> None:
        """Refuse to go on with what was begun as another campaign.

        Raises:
            InputError: the campaign, its feature space or a template was changed.
        """
        check_same(self.begun_with, self.identity, self.folder)

    def check_journal(self) -> None:
        """Refuse to ask again what was answered, where the journal is gone or an older one.

        Raises:
            InputError: it holds fewer answers than were in it before.
        """
        before = self._answers_before()
        if not before:
            return
        kept = orchestrator.kept_answers(self.location)
        if kept < before:
            raise InputError(
                f"{self.folder}: the journal holds {kept:,} of the {before:,} answers that "
                f"{COMPARISONS} was made from, and going on would pay for the others again; put "
                "the journal back, or move the folder away and run again: answers that the cache "
                "has cost nothing"
            )

    def _answers_before(self) -> int:
        """How many answers the journal held when its tables were written."""
        entry = self.manifest.entry("ask")
        if entry is not None:
            return int(entry.read[ANSWERS])
        table = self.folder / COMPARISONS  # of an earlier version
        return len(Comparisons.read(table)) if table.is_file() else 0

    def _as_written(self, stage: str, name: str) -> Path:
        """A file that is as its stage wrote it, if that is known.

        Raises:
            InputError: it was changed.
        """
        path = self.folder / name
        if path.exists() and not self.manifest.as_written(stage, name):
            raise InputError(
                f"{path}: changed since it was written; llm-elicit report {self.folder} makes it "
                "again"
            )
        return path

    def belief_folder(self, judge: str, method: str) -> Path:
        """Where one belief is kept."""
        return self.folder / "beliefs" / judge / method


def find(where: str | Path) -> tuple[Campaign, Path]:
    """The campaign that a folder, a name under runs/ or a file stands for, and where it is kept.

    Raises:
        InputError: none of the three exists.
    """
    for folder in (Path(where), Path("runs") / where):
        frozen = folder / FROZEN
        if frozen.is_file():
            if not Manifest(folder).as_written("plan", FROZEN):
                raise InputError(
                    f"{frozen}: changed since it was written; it is the run's copy: change your "
                    "own file and name that, or put it back"
                )
            data = read_yaml(frozen)
            return validated(Campaign, data, str(frozen), warn=False), folder
    if Path(where).is_dir():
        raise InputError(
            f"{where}: a folder without a run: it has no {FROZEN}; name a run's folder, its name "
            "under runs/, or a campaign's .yaml file"
        )
    campaign = Campaign.load(where)
    return campaign, campaign.folder


def open_runs(where: str | Path) -> tuple[Run, ...]:
    """The run that a folder, a name or a campaign stands for; of a grid, every cell's.

    Raises:
        InputError: there is no such thing.
    """
    campaign, folder = find(where)
    if campaign.grid is None:
        return (Run(folder, campaign, campaign.load_space()),)
    return tuple(
        Run(folder.parent / cell.name, cell, cell.load_space()) for cell in cells(campaign)
    )


def fit_of(judge: str, method: str) -> str:
    """The stage that fits a belief, as the manifest calls it."""
    return f"fit {judge} {method}"


class Beliefs(Mapping[str, "density.BeliefDensity"]):
    """The beliefs of a run by judge, loaded when looked at."""

    def __init__(self, run: Run, method: str) -> None:
        self._run, self._method = run, method
        self._folders = {
            judge.name: run.belief_folder(judge.name, method)
            for judge in run.campaign.judges
            if (run.belief_folder(judge.name, method) / SAMPLES).is_file()
        }

    def __getitem__(self, judge: str) -> density.BeliefDensity:
        folder = self._folders[judge]
        changed = self._run.manifest.changed(fit_of(judge, self._method))
        if changed:
            raise InputError(
                f"{self._run.folder / changed[0]}: changed since it was written; llm-elicit fit "
                f"{self._run.folder} makes it again"
            )
        return density.BeliefDensity.load(folder)

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)
