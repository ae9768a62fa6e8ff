"""Test whether a judge prefers the content of the options or the surface of their text.

Characters, digits, words, leading digits and trailing zeros of a point's text are functions of its
features: a judge that prefers the longer text, say, prefers large values. The differences of these
measures between the two options, and their signs, are nuisance covariates of the responses.

Three randomization tests: of the surface alone (`sign_flip_test`), of the content's linear and
square columns given the surface, and of the surface given these (`partial_sign_flip_test`). The
result is *surface* if the surface predicts beyond the content, and the content nothing beyond the
surface. If neither predicts beyond the other, this design cannot tell them apart; a design with
units and numbers of digits that vary can, because it shows the same content by other text.

Responses of a presentation are divided by their root mean square, which no exchange of a pair's
points changes. With several rounds, only the pairs of the first round are used: later pairs depend
on earlier answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import (
    AdjustedTest,
    Interval,
    adjust_fields,
    estimate_explained_share,
)
from llm_elicit.audit.preference import MIN_PAIRS
from llm_elicit.audit.presentations import PresentedResponse
from llm_elicit.audit.randomization import (
    Responses,
    feature_differences,
    leave_one_out_residuals,
    partial_sign_flip_test,
    sign_flip_test,
)
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.spaces.features import FeatureSpace, Floats

Wording = Callable[[Floats], Sequence[tuple[str, str]]]
"""Returns the labels and texts of a point's values, as a judge is shown them."""

Relation = Literal["content", "surface", "both", "not told apart", "not shown"]

MEASURES = ("characters", "digits", "words", "leading digits", "trailing zeros")

_NUMBER = re.compile(r"\d[\d.,  ]*")
_PAIRS_PER_COLUMN = 2
# From this R² of a measure by the content on, the two are hardly distinguishable.
_MIN_CONFOUNDED_R2 = 0.8
# The part of the level at which the surface is tested, so that a judge of the content is rarely
# said to prefer the surface.
_SURFACE_LEVEL_SHARE = 0.2


def measures_of(values: Sequence[tuple[str, str]]) -> list[float]:
    """Return the `MEASURES` of a point's text, summed over its values.

    Examples:
        >>> measures_of([("area", "1,200 km²"), ("kind", "island")])
        [15.0, 4.0, 3.0, 1.0, 2.0]
    """
    texts = [text for _, text in values]
    numbers = ["".join(filter(str.isdigit, run)) for text in texts for run in _NUMBER.findall(text)]
    significant = [number.lstrip("0") for number in numbers]
    return [
        float(sum(map(len, texts))),
        float(sum(map(len, numbers))),
        float(sum(len(text.split()) for text in texts)),
        float(sum(int(number[0]) for number in significant if number)),
        float(sum(len(number) - len(number.rstrip("0")) for number in significant)),
    ]


class SurfaceAudit(StrictModel):
    """How well the surface of the text and the content predict a judge's answers.

    Attributes:
        version: version of the keys.
        pairs: number of responses, one per pair and presentation.
        relation: "content" if the content predicts beyond the surface, "surface" if only the
            surface predicts, "both", "not told apart" in this design, or "not shown" if neither is
            shown to predict the answers.
        surface, content: the share of the responses' mean square that either predicts for left-out
            pairs, with 95 % interval.
        surface_alone: the test that the surface predicts; adjusted over the judges.
        surface_beyond: the test that the surface predicts beyond the content; adjusted over the
            judges.
        content_beyond: the test that the content predicts beyond the surface.
        explained: R² of every measure's differences by the content's columns; 1 where the design
            cannot tell them apart.
        facets: which of `units` and `digits` do not vary, and would tell surface and content apart.
    """

    version: Literal[1] = 1
    pairs: int
    relation: Relation = "not shown"
    surface: Interval
    content: Interval
    surface_alone: AdjustedTest
    surface_beyond: AdjustedTest
    content_beyond: AdjustedTest
    explained: dict[str, float]
    facets: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of the predictable variation that the surface predicts."""
        larger = max(self.surface.value, self.content.value)
        return min(max(self.surface.value, 0.0) / larger, 1.0) if larger > 0.0 else 0.0

    @property
    def confounded_measures(self) -> list[str]:
        """The measures of the text that the content determines in this design."""
        return [name for name, share in self.explained.items() if share >= _MIN_CONFOUNDED_R2]

    @property
    def doubt(self) -> AdjustedTest | None:
        """The test of the surface, if the content is not shown to predict beyond it."""
        return self.surface_beyond if self.relation == "surface" else None

    def with_relation(self, level: float) -> SurfaceAudit:
        """Return the audit with its relation at this level of the tests."""
        depends_on_text = self.surface_alone.p_holm < _SURFACE_LEVEL_SHARE * level
        beyond = self.surface_beyond.p_holm < _SURFACE_LEVEL_SHARE * level
        content = self.content_beyond.p_value < level
        relation: Relation = "not shown"
        if content:
            relation = "both" if beyond and depends_on_text else "content"
        elif depends_on_text:
            relation = "surface" if beyond else "not told apart"
        return self.model_copy(update={"relation": relation})


@dataclass(frozen=True)
class ShownText:
    """How the points of a campaign's pairs are shown.

    Attributes:
        words: by presentation; the space's own words for others.
        varied: which of `units` and `digits` vary between presentations.
    """

    words: Mapping[str, Wording]
    varied: frozenset[str] = frozenset()


def measure_surface(
    response: PresentedResponse,
    space: FeatureSpace,
    shown: ShownText,
    settings: AuditSettings,
    rng: np.random.Generator,
    pairs: int | None = None,
) -> SurfaceAudit | None:
    """Measure what the surface predicts; None with too few pairs for a test, or without numbers.

    Args:
        response: a judge's.
        space: the feature space.
        shown: how its points were shown.
        settings: number of randomizations.
        rng: draws them.
        pairs: the number of pairs of the first round; None if there is one round.
    """
    used = np.ones(len(response.label), dtype=bool)
    if pairs is not None:
        used = response.column("pair") < pairs
    wordings = [shown.words.get(name, space.word) for name in response.names]

    def measure(side: str) -> Floats:
        worded = zip(wordings, response.parts, strict=True)
        texts = [words(point) for words, part in worded for point in getattr(part, side)]
        return np.array([measures_of(text) for text in texts])

    differences = (measure("a") - measure("b"))[used]
    # The measures and their signs, those that vary, in units of their root mean square.
    columns = np.concatenate([differences, np.sign(differences)], axis=1)
    size = np.sqrt(np.square(columns).mean(axis=0))
    columns = columns[:, size > 0.0] / size[size > 0.0]
    joined = response.as_one_response().rows(used)
    content, owners = feature_differences(joined, space)
    content = content[:, owners >= 0]
    n = len(joined)
    if not columns.shape[1] or n < max(MIN_PAIRS, _PAIRS_PER_COLUMN * sum(content.shape[1:])):
        return None
    # The responses, and robust ones if known, over each presentation's root mean square.
    value, robust = response.column("value")[used], response.column("robust_value")[used]
    if not value.any():
        return None
    label = response.label[used]
    squares = np.bincount(label, value**2) / np.maximum(np.bincount(label), 1)
    size = np.sqrt(np.where(squares > 0.0, squares, 1.0))[label]
    responses: Responses = [value / size, robust / size] if robust.any() else [value / size]

    def share(design: Floats) -> Interval:
        residual = leave_one_out_residuals(design, responses[0], np.zeros(n))
        return estimate_explained_share(np.square(residual), np.square(responses[0]))

    def test(columns: Floats, other_columns: Floats | None = None) -> AdjustedTest:
        if other_columns is None:
            result = sign_flip_test(columns, responses, settings.flips, rng)
        else:
            result = partial_sign_flip_test(columns, other_columns, responses, settings.flips, rng)
        return AdjustedTest.unadjusted(result.p_value, 1.0 / (1 + settings.flips))

    explained = {}  # adjusted R² of each measure's differences on the content
    for name, column in zip(MEASURES, differences.T, strict=True):
        if column.any():
            residual = column - content @ np.linalg.lstsq(content, column, rcond=None)[0]
            lost = float(residual @ residual) / float(column @ column)
            explained[name] = max(1.0 - lost * n / max(n - content.shape[1], 1), 0.0)
    facets = tuple(facet for facet in ("units", "digits") if facet not in shown.varied)
    audit = SurfaceAudit(
        pairs=n,
        surface=share(columns),
        content=share(content),
        surface_alone=test(columns),
        surface_beyond=test(columns, content),
        content_beyond=test(content, columns),
        explained=explained,
        facets=facets,
    )
    return audit.with_relation(settings.level)


def adjust_surfaces(
    audits: Sequence[SurfaceAudit | None], controls: Sequence[bool], level: float
) -> list[SurfaceAudit | None]:
    """Return the audits with p-values of the surface, Holm-adjusted over the judges."""
    pairs = zip(audits, controls, strict=True)
    family = [audit is not None and not control for audit, control in pairs]
    adjusted = adjust_fields(audits, ["surface_alone", "surface_beyond"], family)
    return [None if audit is None else audit.with_relation(level) for audit in adjusted]
