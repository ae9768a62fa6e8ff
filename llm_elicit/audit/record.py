"""The audit of a run: one entry point that measures every judge, and the record it returns."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field, JsonValue, ValidationError
from pydantic_core import to_json

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit import calibration, summaries
from llm_elicit.audit.belief_power import BeliefPowers, PowerEvidence, measure_powers
from llm_elicit.audit.consistency import (
    Consistency,
    Nonresponse,
    Transitivity,
    Triads,
    measure_consistency,
    measure_nonresponse,
    measure_transitivity,
)
from llm_elicit.audit.direct_answers import DirectAudit, DirectEvidence, measure_direct
from llm_elicit.audit.distances import Distance, DistanceEstimator, common_size
from llm_elicit.audit.inference import Interval
from llm_elicit.audit.people import PeopleAudit, PeopleEvidence, audit_people
from llm_elicit.audit.preference import (
    Doubt,
    Preference,
    Verdict,
    decide_verdicts,
    measure_preference,
)
from llm_elicit.audit.presentations import (
    PresentationAudit,
    PresentedResponse,
    adjust_presentations,
    measure_presentations,
)
from llm_elicit.audit.reference import AuditSettings, Reference, validate_points
from llm_elicit.audit.responses import build_response
from llm_elicit.audit.surface import ShownText, SurfaceAudit, adjust_surfaces, measure_surface
from llm_elicit.audit.utility import (
    Discrimination,
    Effect,
    UtilityDraws,
    measure_discrimination,
    measure_effects,
)
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.errors import InputError, UnknownNameError
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import FeatureSpace, Floats, TableRows

_FITTED_PARTS = {
    "auto": "utility", "utility": "utility", "score": "score network",
    "score-constant": "score network",
}  # fmt: skip
"""The part that each method fits to the answers; other methods share no part."""


def fitted_parts(method: str, diagnostics: Mapping[str, Any]) -> set[str]:
    """Return the parts that a method fitted to the answers, with the diagnostics of its fit.

    Score fits that report a `network_share` were added to a fitted utility, so they include it.

    Examples:
        >>> sorted(fitted_parts("score", {"network_share": 0.0}))
        ['score network', 'utility']
    """
    parts = {_FITTED_PARTS.get(method, method)}
    return parts | {"utility"} if "network_share" in diagnostics else parts


def is_cross_check(
    first_method: str, second_method: str, diagnostics: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Return whether two methods share no fitted part, so that one checks the other.

    Args:
        first_method, second_method: names of methods.
        diagnostics: diagnostics of the fits, by method.

    Examples:
        >>> is_cross_check("auto", "score", {}), is_cross_check("auto", "utility", {})
        (True, False)
    """
    methods = first_method, second_method
    first, second = (fitted_parts(name, diagnostics.get(name, {})) for name in methods)
    return first.isdisjoint(second)


@dataclass(frozen=True)
class JudgeEvidence:
    """One judge's answers and the belief fitted to them.

    Attributes:
        judge: the judge's name in `comparisons`.
        comparisons: the judgments of the run.
        beliefs: samples by method, each `(m, d)` in natural units. The first method is the belief.
            Empty if no belief could be fitted.
        diagnostics: diagnostics of each fit, by method; stored in the record unchanged.
        bands: credible bands of the belief, if its method has them.
        data_levels: levels of the data's rows under the belief, from `evaluate_data_levels`.
        utility_draws: posterior draws of the belief's utility, from `evaluate_utility`.
        powers: the belief at other powers, from `evaluate_powers`; None for a method without a
            utility.
        triads: triads among the answers, from `find_triads`.
        triad_predictions: predictions of the belief for these triads, from `predict_triads`.
        draws: points of the posterior draws, `(S, m, d)`, natural units, from `read_draws`.
        direct: the answers to direct questions; None if there are none.
        schedule: the pairs of each round; None for one round.
        control: whether it is a control, whose p-values are not adjusted, see `Campaign.controls`.
        text: the text that showed the points; None for the space's own words.
    """

    judge: str
    comparisons: Comparisons
    beliefs: Mapping[str, Floats] = field(default_factory=dict)
    diagnostics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bands: summaries.BeliefBands | None = None
    data_levels: calibration.DataLevels | None = None
    utility_draws: UtilityDraws | None = None
    powers: PowerEvidence | None = None
    triads: Triads | None = None
    triad_predictions: Floats | None = None
    draws: Floats | None = None
    direct: DirectEvidence | None = None
    schedule: Schedule | None = None
    control: bool = False
    text: ShownText | None = None

    def __post_init__(self) -> None:
        if self.judge not in self.comparisons.judges:
            judges = ", ".join(self.comparisons.judges) or "none"
            raise InputError(
                f"audit: no judgments by {self.judge!r}; judges with judgments: {judges}"
            )

    def validate_beliefs(self, space: FeatureSpace) -> dict[str, Floats]:
        """Return the samples by method, checked."""
        return {
            method: validate_points(points, space, f"{self.judge}: {method} samples")
            for method, points in self.beliefs.items()
        }


class JudgeAudit(StrictModel):
    """One judge's audit.

    Attributes:
        name: the judge's name.
        method: how its belief was estimated; None if it could not be.
        consistency: the consistency of its answers.
        nonresponse: nonresponse by region; None if it always gave a choice, or never.
        transitivity: cycles among its choices, if any pairs form triads.
        preference: whether its answers depend on the points, how reliably, and the verdict.
        discrimination: whether its preference agrees with the data; None without data or a belief.
        effects: effect of each feature, in the order of the space.
        powers: the belief at several powers; None for a belief without a utility.
        predictive_check: predictions of held-out choices, if the fit has them.
        coverage: the share of the data in the belief's highest-density regions.
        direct: its answers to direct questions, if there are any.
        presentations: how far its preference depends on how questions are put; None if in one way.
        surface: whether it prefers the content or the text that shows it; None with few pairs.
        belief_summary: marginal summaries of the belief.
        bands: 90 % credible bands of these summaries, if the method has them.
        band_precision: the width of the bands, and how many more pairs would halve it.
        shape: the belief's correlations and tails against the data's.
        boxes: shares of belief and data in boxes, those that differ most first; None with too few
            rows.
        data_distance, sampling_distance: distances of the belief from the data and from λ.
        belief_floor: distance between disjoint samples of the belief.
        method_distances: distance of each other method's belief from this one, by method.
        diagnostics: diagnostics of each fit, by method.
    """

    name: str
    method: str | None
    consistency: Consistency
    nonresponse: Nonresponse | None = None
    transitivity: Transitivity | None = None
    preference: Preference
    discrimination: Discrimination | None = None
    effects: tuple[Effect, ...] = ()
    powers: BeliefPowers | None = None
    predictive_check: calibration.PredictiveCheck | None = None
    coverage: calibration.DataCoverage | None = None
    direct: DirectAudit | None = None
    presentations: PresentationAudit | None = None
    surface: SurfaceAudit | None = None
    belief_summary: list[summaries.Summary] | None = None
    bands: list[summaries.Bands] | None = None
    band_precision: summaries.BandPrecision | None = None
    shape: summaries.Shape | None = None
    boxes: list[calibration.Box] | None = None
    data_distance: Distance | None = None
    sampling_distance: Distance | None = None
    belief_floor: Distance | None = None
    method_distances: dict[str, Distance] = Field(default_factory=dict)
    diagnostics: dict[str, dict[str, JsonValue]]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the judge, see `llm_elicit.audit.preference`."""
        return self.preference.verdict

    @property
    def auc(self) -> Interval | None:
        """How well its preference tells the data from λ; None without data or a belief."""
        return None if self.discrimination is None else self.discrimination.auc

    @property
    def cross_checks(self) -> tuple[str, ...]:
        """The other methods that share no fitted part with the belief's; see `is_cross_check`."""
        if self.method is None:
            return ()
        return tuple(
            method
            for method in self.method_distances
            if is_cross_check(self.method, method, self.diagnostics)
        )


def audit_judge(
    evidence: JudgeEvidence, reference: Reference, estimator: DistanceEstimator, seed: int
) -> JudgeAudit:
    """Measure everything that a judge's evidence allows.

    Each group of measurements has its own random generator, so that a new measurement does not
    change the numbers of other groups.

    Args:
        evidence: the judge's answers and beliefs.
        reference: the feature space, λ and the data.
        estimator: estimator of distances, which all judges of the run share.
        seed: seed of all random numbers.
    """
    rng, effects_rng, later_rng, data_rng, presentations_rng, surface_rng = (
        np.random.default_rng([seed, stream, zlib.crc32(evidence.judge.encode())])
        for stream in (2, 3, 4, 5, 6, 7)
    )
    settings, space, utility = estimator.settings, reference.space, evidence.utility_draws
    comparisons, judge, schedule = evidence.comparisons, evidence.judge, evidence.schedule
    choices, response = comparisons.choices(judge), build_response(comparisons, judge)
    fit = next(iter(evidence.diagnostics.values()), {})
    preference = measure_preference(response, space, settings, rng, schedule, fit)
    measurements = _measure_beliefs(evidence, reference, estimator, rng, len(choices))
    if utility is not None:
        utility = replace(utility, explained_share=preference.explained_share)
        measurements["discrimination"] = measure_discrimination(utility, reference, data_rng)
    measurements["nonresponse"] = measure_nonresponse(
        comparisons, judge, space, settings.flips, later_rng
    )
    measurements["effects"] = measure_effects(
        response, space, settings, effects_rng, schedule, utility, density.bounded_below(fit)
    )
    presented = PresentedResponse.of(comparisons, judge)
    if len(presented.label):
        measurements["presentations"] = measure_presentations(
            presented, judge, space, settings, presentations_rng, fit
        )
        first = None if schedule is None else schedule.pairs[0].stop
        measurements["surface"] = measure_surface(
            presented, space, evidence.text or ShownText({}), settings, surface_rng, first
        )
    if evidence.triads is not None:
        predictions = evidence.triad_predictions
        measurements["transitivity"] = measure_transitivity(evidence.triads, predictions)
    if evidence.powers is not None:
        measurements["powers"] = measure_powers(evidence.powers, reference, later_rng)
    if evidence.data_levels is not None:
        measurements["coverage"] = calibration.measure_data_coverage(evidence.data_levels)
    if evidence.direct is not None:
        belief = next(iter(evidence.validate_beliefs(space).values()), None)
        measurements["direct"] = measure_direct(
            evidence.direct, reference, belief, settings, data_rng, response
        )
    # As JSON: arrays as lists, not-a-number as null, other objects as text.
    diagnostics = to_json(
        {name: dict(items) for name, items in evidence.diagnostics.items()},
        inf_nan_mode="null",
        fallback=lambda value: value.tolist() if hasattr(value, "tolist") else str(value),
    )
    return JudgeAudit(
        name=judge,
        consistency=measure_consistency(comparisons, judge, choices),
        preference=preference,
        predictive_check=calibration.read_predictive_check(fit),
        diagnostics=json.loads(diagnostics),
        **measurements,
    )


def _measure_beliefs(
    evidence: JudgeEvidence,
    reference: Reference,
    estimator: DistanceEstimator,
    rng: np.random.Generator,
    pairs: int,
) -> dict[str, Any]:
    """Return the measurements of a judge's beliefs, by the field of `JudgeAudit`."""
    space, bands, draws = reference.space, evidence.bands, evidence.draws
    measurements: dict[str, Any] = {
        "method": None, "bands": None if bands is None else bands.features,
    }  # fmt: skip
    samples = evidence.validate_beliefs(space)
    if not samples:
        return measurements
    method, belief = next(iter(samples.items()))
    if bands is not None:
        precision = summaries.measure_band_precision(bands, belief, space, pairs)
        measurements["band_precision"] = precision
    if reference.data is not None:
        distance = estimator.estimate_distance(belief, reference.data, rng, draws)
        measurements["data_distance"] = distance
    return measurements | {
        "method": method,
        "belief_summary": summaries.summarize(belief, space),
        "shape": summaries.measure_shape(belief, reference, bands),
        "boxes": calibration.measure_boxes(belief, reference, draws),
        "sampling_distance": estimator.estimate_distance(belief, reference.sampling, rng, draws),
        "belief_floor": estimator.estimate_floor(belief, rng),
        "method_distances": {
            name: estimator.estimate_distance(belief, points, rng)
            for name, points in samples.items()
            if name != method
        },
    }


Progress = Callable[[int, int], None]


class ReferenceAudit(StrictModel):
    """The summaries and distances of the data and λ, with which every judge is compared.

    Attributes:
        rows: points of the reference table in the range asked; None without a table.
        table_rows: number of rows of the table, and why some are not used; None if not counted.
        half_split: whether the table was too small for the size asked for, so that distances
            are measured on half of it.
        data_summary, sampling_summary: marginal summaries of the data and of λ.
        sampling_data_distance: distance of λ from the data.
        data_floor, sampling_floor: distance between disjoint samples of the data, and of λ.
    """

    rows: int | None
    table_rows: TableRows | None = None
    half_split: bool
    data_summary: list[summaries.Summary] | None
    sampling_summary: list[summaries.Summary]
    sampling_data_distance: Distance | None
    data_floor: Distance | None
    sampling_floor: Distance


class Audit(StrictModel):
    """The audit of a run, as stored in audit.json.

    Attributes:
        version: version of the format; it is raised when a key changes.
        space: the feature space.
        settings, seed: sizes and repeats, and the seed of all random numbers.
        reference: the data and λ, with which every judge is compared.
        judges: one audit for each judge.
        people: the audit of experts; None in runs without human judges.
    """

    version: Literal[5] = 5
    space: FeatureSpace
    settings: AuditSettings
    seed: int
    reference: ReferenceAudit
    judges: list[JudgeAudit]
    people: PeopleAudit | None = None

    def of(self, judge: str) -> JudgeAudit:
        """Return one judge's audit.

        Raises:
            UnknownNameError: if the run has no judge of this name.
        """
        by_name = {audited.name: audited for audited in self.judges}
        if judge not in by_name:
            raise UnknownNameError.of("audit", "judge", judge, by_name)
        return by_name[judge]

    def summary(self, judge: str) -> pd.DataFrame:
        """Return summaries of data, belief and λ, a row per feature and sample, natural units."""
        return summaries.summary_table(self.summaries(judge))

    def summaries(self, judge: str) -> dict[str, list[summaries.Summary]]:
        """Return the available summaries, by the sample's name."""
        belief = self.of(judge).belief_summary
        samples = {
            "data": self.reference.data_summary,
            "belief": belief,
            "λ": self.reference.sampling_summary,
        }
        return {name: rows for name, rows in samples.items() if rows is not None}

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
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); write it with llm-elicit audit RUN"
            ) from None
        except (ValidationError, UnicodeDecodeError):
            raise InputError(
                f"{path}: not an audit of this version; write it anew with llm-elicit audit RUN"
            ) from None


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
        evidence: the evidence of each judge; names are unique.
        reference: the feature space, λ and the data.
        seed: seed of all subsamples and randomization tests.
        progress: called with (steps done, total steps).
        settings: sizes and repeats.
        people: the answers of experts, if any.

    Raises:
        InputError: if samples have a wrong shape or are not finite.

    Examples:
        >>> import numpy as np
        >>> space = FeatureSpace.load("california_housing")
        >>> rng = np.random.default_rng(0)
        >>> reference = Reference(space, sampling=space.sample(500, rng))
        >>> audit = audit_run([], reference, settings=AuditSettings(size=100))
        >>> audit.reference.sampling_floor.size
        100
    """
    settings = settings or AuditSettings()
    space, data = reference.space, reference.data
    tables = [reference.sampling] if data is None else [reference.sampling, data]
    for item in evidence:
        tables.extend(item.validate_beliefs(space).values())
    # All distances of the run are measured with the same size, so that they can be compared.
    size, marginal_size = (
        common_size(max_size, *tables) for max_size in (settings.size, settings.marginal_size)
    )
    estimator = DistanceEstimator(reference.standardizer, settings, size, marginal_size)
    shared = _audit_reference(reference, estimator, np.random.default_rng([seed, 1]))
    steps = 1 + len(evidence)
    judges = []
    for done, item in enumerate(evidence, start=1):
        if progress is not None:
            progress(done, steps)
        judges.append(audit_judge(item, reference, estimator, seed))
    if progress is not None:
        progress(steps, steps)
    return Audit(
        space=space,
        settings=settings,
        seed=seed,
        reference=shared,
        judges=_decide(judges, [item.control for item in evidence], settings.level),
        people=None if people is None else audit_people(people, seed),
    )


def _audit_reference(
    reference: Reference, estimator: DistanceEstimator, rng: np.random.Generator
) -> ReferenceAudit:
    space, data, sampling = reference.space, reference.data, reference.sampling
    sampling_data_distance = data_floor = None
    if data is not None:
        sampling_data_distance = estimator.estimate_distance(sampling, data, rng)
        data_floor = estimator.estimate_floor(data, rng)
    return ReferenceAudit(
        rows=None if data is None else len(data),
        table_rows=reference.table_rows,
        half_split=data is not None and len(data) < 2 * estimator.settings.size,
        data_summary=None if data is None else summaries.summarize(data, space),
        sampling_summary=summaries.summarize(sampling, space),
        sampling_data_distance=sampling_data_distance,
        data_floor=data_floor,
        sampling_floor=estimator.estimate_floor(sampling, rng),
    )


def _decide(
    judges: Sequence[JudgeAudit], controls: Sequence[bool], level: float
) -> list[JudgeAudit]:
    """Return the judges with p-values adjusted over them, and with verdicts."""
    presented = adjust_presentations([judge.presentations for judge in judges], controls)
    surfaces = adjust_surfaces([judge.surface for judge in judges], controls, level)
    doubts = [
        Doubt(
            None if presentation is None else presentation.doubt(level),
            None if surface is None else surface.doubt,
            "" if presentation is None else presentation.facets,
        )
        for presentation, surface in zip(presented, surfaces, strict=True)
    ]
    scales = [None if judge.powers is None else judge.powers.scale_sources for judge in judges]
    preferences = decide_verdicts(
        [judge.preference for judge in judges], scales, level, controls, doubts
    )
    fields = ("preference", "presentations", "surface")
    decided = zip(preferences, presented, surfaces, strict=True)
    return [
        judge.model_copy(update=dict(zip(fields, values, strict=True)))
        for judge, values in zip(judges, decided, strict=True)
    ]
