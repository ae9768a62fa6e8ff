"""The audit of a run: one entry that measures every judge, and the record it leaves."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import JsonValue, ValidationError
from pydantic_core import to_json

from llm_elicit.audit.belief_power import PowerEvidence, Powers, measure_powers
from llm_elicit.audit.calibration import (
    DataCoverage,
    DataLevels,
    Foretold,
    measure_data_coverage,
    read_foretold,
)
from llm_elicit.audit.consistency import Consistency, measure_consistency
from llm_elicit.audit.direct_answers import DirectAudit, DirectEvidence, measure_direct
from llm_elicit.audit.discrimination import Discrimination, measure_discrimination
from llm_elicit.audit.distances import Distance, Ruler, common_size
from llm_elicit.audit.effects import Effect, measure_effects
from llm_elicit.audit.nonresponse import Unanswered, measure_unanswered
from llm_elicit.audit.preference import Preference, Verdict, measure_preference, settle
from llm_elicit.audit.reference import AuditSettings, Reference, checked_points
from llm_elicit.audit.responses import response_of
from llm_elicit.audit.sample_size import BandPower, measure_band_power
from llm_elicit.audit.shape import Box, Shape, measure_boxes, measure_shape
from llm_elicit.audit.summaries import Bands, BeliefBands, Summary, side_by_side, summarize
from llm_elicit.audit.transitivity import Transitivity, Triads, measure_transitivity
from llm_elicit.audit.utility import Utility
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import FeatureSpace, Floats

Progress = Callable[[int, int], None]


class ReferenceAudit(StrictModel):
    """What every judge is set beside.

    Attributes:
        rows: points of the reference table in the range asked; None without a table.
        half_split: whether the table was too small for the size asked for, so that distances
            are measured on half of it.
        data, sampling: marginal summaries of the data and of λ.
        sampling_data: distance of λ from the data.
        data_floor, sampling_floor: distance between disjoint draws of the data, and of λ.
    """

    rows: int | None
    half_split: bool
    data: list[Summary] | None
    sampling: list[Summary]
    sampling_data: Distance | None
    data_floor: Distance | None
    sampling_floor: Distance


class JudgeAudit(StrictModel):
    """One judge's audit.

    Attributes:
        name: the judge's name.
        method: how its belief was estimated; None when it could not be.
        consistency: how it answers.
        unanswered: where it did not choose; None if it always did, or never.
        transitivity: whether its choices go round in circles, if any pairs make triads.
        preference: whether its answers depend on the points, how reliably, and the verdict.
        discrimination: whether what it prefers follows the data; None without data or a belief.
        effects: what each feature adds, in the order of the space.
        powers: what depends on the power of the utility; None for a belief without one.
        foretold: how well the fit foretells choices it never saw, if it says.
        coverage: how much of the data the belief's densest regions hold, if it was asked.
        direct: what it says of itself, if it was asked directly.
        belief: marginal summaries of the belief.
        bands: 90 % credible bands of the same, where the method has them.
        band_power: how wide these are, and how many more pairs would halve them.
        shape: the belief's correlations and tails beside the data's.
        boxes: where belief and data differ most, if there are enough rows.
        belief_data, belief_sampling: distances of the belief from the data and from λ.
        belief_floor: distance between disjoint draws of the belief.
        cross_checks: distance of each other method's belief from this one, by method.
        diagnostics: what each fit says of itself, by method.
    """

    name: str
    method: str | None
    consistency: Consistency
    unanswered: Unanswered | None = None
    transitivity: Transitivity | None = None
    preference: Preference
    discrimination: Discrimination | None = None
    effects: tuple[Effect, ...] = ()
    powers: Powers | None = None
    foretold: Foretold | None = None
    coverage: DataCoverage | None = None
    direct: DirectAudit | None = None
    belief: list[Summary] | None
    bands: list[Bands] | None = None
    band_power: BandPower | None = None
    shape: Shape | None = None
    boxes: list[Box] | None = None
    belief_data: Distance | None
    belief_sampling: Distance | None
    belief_floor: Distance | None
    cross_checks: dict[str, Distance]
    diagnostics: dict[str, dict[str, JsonValue]]

    @property
    def verdict(self) -> Verdict:
        """What kind of judge it is, see `llm_elicit.audit.preference`."""
        return self.preference.verdict


class Audit(StrictModel):
    """The audit of a run, as kept in audit.json."""

    version: Literal[1] = 1
    space: FeatureSpace
    settings: AuditSettings
    seed: int
    reference: ReferenceAudit
    judges: list[JudgeAudit]

    def of(self, judge: str) -> JudgeAudit:
        """One judge's audit.

        Raises:
            InputError: it has none.
        """
        for audited in self.judges:
            if audited.name == judge:
                return audited
        known = ", ".join(audited.name for audited in self.judges)
        raise InputError(f"audit: no judge {judge!r}; there are: {known}")

    def summary(self, judge: str) -> pd.DataFrame:
        """Data, belief and λ side by side, a row a feature and sample, natural units."""
        belief = self.of(judge).belief
        samples = {"data": self.reference.data, "belief": belief, "λ": self.reference.sampling}
        return side_by_side({name: rows for name, rows in samples.items() if rows is not None})

    def save(self, path: Path) -> Path:
        """Write as JSON."""
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Audit:
        """Read what `save` wrote.

        Raises:
            InputError: the file is missing or is not an audit.
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
) -> Audit:
    """Audit every judge of a run against the data and λ.

    A judge's numbers depend on its own evidence, the reference and the seed, not on which
    other judges there are, but for p-values corrected for their number and so verdicts.

    Args:
        evidence: one record a judge, the names unique.
        reference: the feature space, λ and the data.
        seed: of all subsamples and randomization tests.
        progress: called with (steps done, steps in all).
        settings: sizes and repeats.

    Raises:
        InputError: samples of a wrong shape or not finite, or a judge without judgments.

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
    ruler = _ruler(evidence, reference, settings)
    steps = 1 + len(evidence)
    shared = _audit_reference(reference, ruler, np.random.default_rng([seed, 1]))
    judges = []
    for done, item in enumerate(evidence, start=1):
        if progress is not None:
            progress(done, steps)
        judges.append(audit_judge(item, reference, ruler, seed))
    if progress is not None:
        progress(steps, steps)
    return Audit(
        space=reference.space,
        settings=settings,
        seed=seed,
        reference=shared,
        judges=_settled(judges, settings),
    )


def _settled(judges: Sequence[JudgeAudit], settings: AuditSettings) -> list[JudgeAudit]:
    """The judges with verdicts that allow for how many there are."""
    scales = [None if judge.powers is None else judge.powers.scale for judge in judges]
    found = settle([judge.preference for judge in judges], scales, settings.level)
    return [
        judge.model_copy(update={"preference": one})
        for judge, one in zip(judges, found, strict=True)
    ]


def audit_judge(
    evidence: JudgeEvidence, reference: Reference, ruler: Ruler, seed: int
) -> JudgeAudit:
    """Audit one judge with the run's common `ruler`."""
    rng, own, later, aside = (
        np.random.default_rng([seed, stream, zlib.crc32(evidence.judge.encode())])
        for stream in (2, 3, 4, 5)
    )
    beliefs = evidence.belief_samples(reference.space)
    method = next(iter(beliefs), None)
    belief = None if method is None else beliefs[method]
    comparisons, data = evidence.comparisons, reference.data
    choices = comparisons.choices(evidence.judge)
    first_fit = next(iter(evidence.diagnostics.values()), {})
    response = response_of(comparisons, evidence.judge)
    preference = measure_preference(
        response, reference.space, ruler.settings, rng, evidence.schedule, first_fit
    )
    return JudgeAudit(
        name=evidence.judge,
        method=method,
        consistency=measure_consistency(comparisons, evidence.judge, choices),
        unanswered=measure_unanswered(
            comparisons, evidence.judge, reference.space, ruler.settings.flips, later
        ),
        transitivity=None
        if evidence.triads is None
        else measure_transitivity(evidence.triads, evidence.foretold),
        preference=preference,
        discrimination=None
        if evidence.utility is None
        else measure_discrimination(evidence.utility, reference, aside),
        effects=measure_effects(
            response, reference.space, ruler.settings, own, evidence.schedule, evidence.utility
        ),
        powers=None
        if evidence.powers is None
        else measure_powers(evidence.powers, reference, later),
        foretold=read_foretold(first_fit),
        coverage=None if evidence.levels is None else measure_data_coverage(evidence.levels),
        direct=None
        if evidence.direct is None
        else measure_direct(evidence.direct, reference, belief, ruler.settings, aside),
        belief=None if belief is None else summarize(belief, reference.space),
        bands=None if evidence.bands is None else evidence.bands.features,
        band_power=None
        if belief is None or evidence.bands is None
        else measure_band_power(evidence.bands, belief, reference.space, len(choices)),
        shape=None if belief is None else measure_shape(belief, reference, evidence.bands),
        boxes=None if belief is None else measure_boxes(belief, reference, evidence.draws),
        belief_data=None
        if belief is None or data is None
        else ruler.between(belief, data, rng, evidence.draws),
        belief_sampling=None
        if belief is None
        else ruler.between(belief, reference.sampling, rng, evidence.draws),
        belief_floor=None if belief is None else ruler.floor(belief, rng),
        cross_checks={
            other: ruler.between(belief, points, rng)
            for other, points in beliefs.items()
            if belief is not None and other != method
        },
        diagnostics=_plain(evidence.diagnostics),
    )


def _ruler(
    evidence: Sequence[JudgeEvidence], reference: Reference, settings: AuditSettings
) -> Ruler:
    """One size for all distances of the run, so that they and their floors compare."""
    samples = [reference.sampling]
    if reference.data is not None:
        samples.append(reference.data)
    for item in evidence:
        samples.extend(item.belief_samples(reference.space).values())
    return Ruler(
        reference.standard,
        settings,
        size=common_size(settings.size, *samples),
        marginal_size=common_size(settings.marginal_size, *samples),
    )


def _audit_reference(
    reference: Reference, ruler: Ruler, rng: np.random.Generator
) -> ReferenceAudit:
    data, sampling, space = reference.data, reference.sampling, reference.space
    return ReferenceAudit(
        rows=None if data is None else len(data),
        half_split=data is not None and len(data) < 2 * ruler.settings.size,
        data=None if data is None else summarize(data, space),
        sampling=summarize(sampling, space),
        sampling_data=None if data is None else ruler.between(sampling, data, rng),
        data_floor=None if data is None else ruler.floor(data, rng),
        sampling_floor=ruler.floor(sampling, rng),
    )


def _plain(diagnostics: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, JsonValue]]:
    """Diagnostics as JSON holds them: arrays as lists, not-a-number as null, the rest as text."""

    def unwrap(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    plain = {method: dict(items) for method, items in diagnostics.items()}
    text = to_json(plain, inf_nan_mode="null", fallback=unwrap)
    record: dict[str, dict[str, JsonValue]] = json.loads(text)
    return record


@dataclass(frozen=True)
class JudgeEvidence:
    """One judge's answers and the belief fitted to them.

    Attributes:
        judge: the judge's name in `comparisons`.
        comparisons: the judgments of the run.
        beliefs: samples by method, each `(m, d)` in natural units. The first method is the
            belief, the others cross-check it. Empty where no belief could be fitted.
        diagnostics: what each fit says of itself, by method; kept in the record as it is.
        bands: the belief's own, where its method has them.
        levels: of the data's rows under the belief, `llm_elicit.audit.calibration.data_levels`.
        utility: of the belief, `llm_elicit.audit.utility.utility_of`.
        powers: the belief at other powers, from `at_powers`; None for one by a method that has no
            utility.
        triads: among the answers, `llm_elicit.audit.transitivity.find_triads`.
        foretold: what the belief foretells of them, `foretell_triads` of the same.
        draws: points of the densities that the answers allow, `(S, m, d)`, natural units; see
            `llm_elicit.audit.summaries.read_draws`.
        direct: the answers to direct questions; None where there are none.
        schedule: which pairs belong to which round; None for one round.
    """

    judge: str
    comparisons: Comparisons
    beliefs: Mapping[str, Floats] = field(default_factory=dict)
    diagnostics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bands: BeliefBands | None = None
    levels: DataLevels | None = None
    utility: Utility | None = None
    powers: PowerEvidence | None = None
    triads: Triads | None = None
    foretold: Floats | None = None
    draws: Floats | None = None
    direct: DirectEvidence | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.judge not in self.comparisons.judges:
            known = ", ".join(self.comparisons.judges) or "none"
            raise InputError(f"audit: no judgments by {self.judge!r}; there are those of: {known}")

    def belief_samples(self, space: FeatureSpace) -> dict[str, Floats]:
        """The samples by method, checked."""
        return {
            method: checked_points(points, space, f"{self.judge}: {method} samples")
            for method, points in self.beliefs.items()
        }
