"""The audit of a run: one entry point that measures every judge, and the record it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import ValidationError

from llm_elicit.audit.distances import Distance, DistanceEstimator, common_size
from llm_elicit.audit.judge_audit import JudgeAudit, JudgeAuditor, JudgeEvidence
from llm_elicit.audit.people import PeopleAudit, PeopleEvidence, audit_people
from llm_elicit.audit.preference import decide_verdicts
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.summaries import Summary, summarize, summary_table
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError, UnknownNameError
from llm_elicit.spaces.features import FeatureSpace, TableRows

Progress = Callable[[int, int], None]


class ReferenceAudit(StrictModel):
    """What every judge is compared with.

    Attributes:
        rows: points of the reference table in the range asked; None without a table.
        table: how many rows the table has, and why others are not used; None if not counted.
        half_split: whether the table was too small for the size asked for, so that distances
            are measured on half of it.
        data, sampling: marginal summaries of the data and of λ.
        sampling_data: distance of λ from the data.
        data_floor, sampling_floor: distance between disjoint samples of the data, and of λ.
    """

    rows: int | None
    table: TableRows | None = None
    half_split: bool
    data: list[Summary] | None
    sampling: list[Summary]
    sampling_data: Distance | None
    data_floor: Distance | None
    sampling_floor: Distance


class Audit(StrictModel):
    """The audit of a run, as kept in audit.json.

    Attributes:
        version: of the keys.
        space: the feature space.
        settings, seed: sizes and repeats, and the seed of all that is random.
        reference: what every judge is compared with.
        judges: one record a judge.
        people: people as judges; None in runs without people.
    """

    version: Literal[1] = 1
    space: FeatureSpace
    settings: AuditSettings
    seed: int
    reference: ReferenceAudit
    judges: list[JudgeAudit]
    people: PeopleAudit | None = None

    def of(self, judge: str) -> JudgeAudit:
        """Return one judge's audit.

        Raises:
            UnknownNameError: if there is none.
        """
        by_name = {audited.name: audited for audited in self.judges}
        if judge not in by_name:
            raise UnknownNameError.of("audit", "judge", judge, by_name)
        return by_name[judge]

    def summary(self, judge: str) -> pd.DataFrame:
        """Return summaries of data, belief and λ, a row per feature and sample, natural units."""
        belief = self.of(judge).belief
        samples = {"data": self.reference.data, "belief": belief, "λ": self.reference.sampling}
        return summary_table({name: rows for name, rows in samples.items() if rows is not None})

    def save(self, path: Path) -> Path:
        """Write as JSON."""
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Audit:
        """Read what `save` wrote.

        Raises:
            InputError: if the file is missing or is not an audit.
        """
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); run the audit") from None
        except (ValidationError, UnicodeDecodeError):
            raise InputError(f"{path}: not an audit of this version; run the audit again") from None


def audit_run(
    evidence: Sequence[JudgeEvidence],
    reference: Reference,
    seed: int = 0,
    progress: Progress | None = None,
    settings: AuditSettings | None = None,
    people: PeopleEvidence | None = None,
) -> Audit:
    """Audit every judge of a run against the data and λ.

    A judge's numbers depend on its own evidence, the reference and the seed, not on the other
    judges, except for Holm-adjusted p-values and the verdicts based on them.

    Args:
        evidence: one record a judge, with unique names.
        reference: the feature space, λ and the data.
        seed: of all subsamples and randomization tests.
        progress: called with (steps done, total steps).
        settings: sizes and repeats.
        people: the answers of people, if any.

    Raises:
        InputError: if samples have a wrong shape or are not finite.

    Example:
        >>> import numpy as np
        >>> space = FeatureSpace.load("california_housing")
        >>> rng = np.random.default_rng(0)
        >>> reference = Reference(space, sampling=space.sample(500, rng))
        >>> audit = audit_run([], reference, settings=AuditSettings(size=100))
        >>> audit.reference.sampling_floor.size
        100
    """
    settings = settings or AuditSettings()
    estimator = _estimator(evidence, reference, settings)
    steps = 1 + len(evidence)
    shared = _audit_reference(reference, estimator, np.random.default_rng([seed, 1]))
    judges = []
    for done, item in enumerate(evidence, start=1):
        if progress is not None:
            progress(done, steps)
        judges.append(JudgeAuditor(item, reference, estimator, seed).audit())
    if progress is not None:
        progress(steps, steps)
    return Audit(
        space=reference.space,
        settings=settings,
        seed=seed,
        reference=shared,
        judges=_with_verdicts(judges, settings),
        people=None if people is None else audit_people(people, seed),
    )


def _with_verdicts(judges: Sequence[JudgeAudit], settings: AuditSettings) -> list[JudgeAudit]:
    """Return the judges with verdicts that account for their number."""
    scales = [None if judge.powers is None else judge.powers.scale for judge in judges]
    decided = decide_verdicts([judge.preference for judge in judges], scales, settings.level)
    return [
        judge.model_copy(update={"preference": one})
        for judge, one in zip(judges, decided, strict=True)
    ]


def _estimator(
    evidence: Sequence[JudgeEvidence], reference: Reference, settings: AuditSettings
) -> DistanceEstimator:
    """Return an estimator with one size for all distances of the run, so that they compare."""
    samples = [reference.sampling]
    if reference.data is not None:
        samples.append(reference.data)
    for item in evidence:
        samples.extend(item.belief_samples(reference.space).values())
    return DistanceEstimator(
        reference.standardizer,
        settings,
        size=common_size(settings.size, *samples),
        marginal_size=common_size(settings.marginal_size, *samples),
    )


def _audit_reference(
    reference: Reference, estimator: DistanceEstimator, rng: np.random.Generator
) -> ReferenceAudit:
    data, sampling, space = reference.data, reference.sampling, reference.space
    return ReferenceAudit(
        rows=None if data is None else len(data),
        table=reference.rows,
        half_split=data is not None and len(data) < 2 * estimator.settings.size,
        data=None if data is None else summarize(data, space),
        sampling=summarize(sampling, space),
        sampling_data=None if data is None else estimator.between(sampling, data, rng),
        data_floor=None if data is None else estimator.floor(data, rng),
        sampling_floor=estimator.floor(sampling, rng),
    )
