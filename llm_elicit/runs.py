"""A run: a folder, and what its stages left there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from llm_elicit import orchestrator
from llm_elicit.campaign import Campaign
from llm_elicit.comparisons import Comparisons
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.features import FeatureSpace
from llm_elicit.grid import cells
from llm_elicit.later import Later
from llm_elicit.plan import Plan, direct_queries, make_plan
from llm_elicit.rounds import questions_of, with_rounds
from llm_elicit.strict import read_yaml, validated

FROZEN = "campaign.yaml"
"""The file of a run's campaign as it was validated."""

if TYPE_CHECKING:
    from llm_elicit import audit as auditing
    from llm_elicit import density
else:
    auditing, density = Later("llm_elicit.audit"), Later("llm_elicit.density")

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
        return with_rounds(first, self.campaign, orchestrator.planned_rounds(self.place))

    @property
    def place(self) -> orchestrator.Place:
        """Where the journal is."""
        return orchestrator.Place(self.folder, self.campaign.journal)

    def write_pairs(self) -> None:
        """Write the pairs down, a row each."""
        columns = [f"{side}_{name}" for side in "ab" for name in self.space.names]
        pairs = np.hstack([self.plan.a, self.plan.b])
        pd.DataFrame(pairs, columns=columns).to_parquet(self.folder / "plan.parquet")

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
        return Comparisons.read(self.folder / "comparisons.parquet")

    @property
    def direct(self) -> pd.DataFrame | None:
        """The answers to direct questions, as they came; None where none were asked."""
        path = self.folder / "direct.parquet"
        return pd.read_parquet(path) if path.is_file() else None

    @property
    def missing(self) -> dict[str, int]:
        """How many questions of the plan have no answer in the table, for judges with any."""
        counts = self.comparisons.frame["judge"].value_counts()
        asked = self.questions
        gaps = {judge: total - int(counts.get(judge, 0)) for judge, total in asked.items()}
        return {judge: gap for judge, gap in gaps.items() if gap}

    @property
    def questions(self) -> dict[str, int]:
        """How many questions about pairs each judge is asked; fewer where a rule had enough."""
        rounds = self.campaign.design.rounds
        known = {} if rounds is None else orchestrator.planned_rounds(self.place)
        names = [judge.name for judge in self.campaign.judges]
        return {name: questions_of(name, self.campaign, known) for name in names}

    @property
    def beliefs(self) -> Mapping[str, density.BeliefDensity]:
        """Each judge's belief, by the campaign's first method; judges without one are left out."""
        return Beliefs(self, self.campaign.fit.methods[0])

    @property
    def audit(self) -> auditing.Audit:
        """The numbers of the report."""
        return auditing.Audit.load(self.folder / "audit.json")

    @property
    def report_path(self) -> Path:
        """The self-contained page."""
        return self.folder / "report.html"

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
            return validated(Campaign, read_yaml(frozen), str(frozen)), folder
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


class Beliefs(Mapping[str, "density.BeliefDensity"]):
    """The beliefs of a run by judge, loaded when looked at."""

    def __init__(self, run: Run, method: str) -> None:
        self._folders = {
            judge.name: run.belief_folder(judge.name, method)
            for judge in run.campaign.judges
            if (run.belief_folder(judge.name, method) / SAMPLES).is_file()
        }

    def __getitem__(self, judge: str) -> density.BeliefDensity:
        return density.BeliefDensity.load(self._folders[judge])

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)
