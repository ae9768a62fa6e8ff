"""A run: a folder, and what its stages left there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from llm_elicit import orchestrator
from llm_elicit.campaign import Campaign
from llm_elicit.comparisons import Comparisons
from llm_elicit.errors import ElicitError
from llm_elicit.features import FeatureSpace, read_yaml, validated
from llm_elicit.later import Later
from llm_elicit.plan import Plan, make_plan

if TYPE_CHECKING:
    from llm_elicit import audit as auditing
    from llm_elicit import density
else:
    auditing, density = Later("llm_elicit.audit"), Later("llm_elicit.density")

SAMPLES = "samples.parquet"
"""The file of a belief's samples, in its folder."""


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
            InputError: none of the three exists.
        """
        for folder in (Path(where), Path("runs") / where):
            if (folder / "campaign.yaml").is_file():
                frozen = folder / "campaign.yaml"
                campaign = validated(Campaign, read_yaml(frozen), str(frozen))
                return cls(folder, campaign, campaign.load_space())
        campaign = Campaign.load(where)
        return cls(campaign.folder, campaign, campaign.load_space())

    @cached_property
    def plan(self) -> Plan:
        """The pairs, drawn anew from the seed: the same every time."""
        return make_plan(self.space, self.campaign.design, self.campaign.seed)

    @property
    def answered(self) -> dict[str, int]:
        """How many questions each judge has answered; empty before the first is asked."""
        if not (self.folder / orchestrator.JOURNAL).is_file():
            return {}
        return {
            judge: t.done for judge, t in orchestrator.status(self.folder, self.campaign).items()
        }

    @property
    def comparisons(self) -> Comparisons:
        """The table of judgments."""
        return Comparisons.read(self.folder / "comparisons.parquet")

    @property
    def missing(self) -> dict[str, int]:
        """How many questions of the plan have no answer in the table, for judges with any."""
        counts = self.comparisons.frame["judge"].value_counts()
        gaps = {j.name: len(self.plan) - int(counts.get(j.name, 0)) for j in self.campaign.judges}
        return {judge: gap for judge, gap in gaps.items() if gap}

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
