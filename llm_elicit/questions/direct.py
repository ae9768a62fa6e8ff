"""Direct questions as prompts: quantiles, points, row completions, ranges, ratios, likelihoods.

The question of a query follows from the campaign's settings, its seed and the feature space, so
that a resumed run asks the same questions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_elicit.config.design import Direct
from llm_elicit.planning.direct_questions import RowCompletion, likelihood_rows, range_pairs
from llm_elicit.planning.pairs import DirectKind, Plan, Query
from llm_elicit.questions.template import Answer, Message, Prompt, Template
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

TEMPLATES: Mapping[DirectKind, str] = {
    "quantiles": "v1/quantiles", "sample": "v1/sample", "row": "v1/row", "range": "v1/range",
    "ratio": "v1/ratio", "likelihood": "v1/likelihood",
}  # fmt: skip
"""The templates of the kinds of direct questions."""

_WITH_CATEGORIES: Mapping[DirectKind, str] = {"sample": "v1/sample-categories"}
"""The templates that differ for spaces with categorical features."""

_WITH_DATES: Mapping[DirectKind, str] = {
    "quantiles": "v1/quantiles-dates", "sample": "v1/sample-dates"
}  # fmt: skip
"""The templates that differ for spaces with dates."""

_WITH_NUMBERS: Mapping[DirectKind, str] = {"range": "v1/range-probability"}
"""The templates that differ for campaigns that ask for numbers in place of letters."""

_ANSWERS: Mapping[DirectKind, tuple[Answer, ...]] = {
    "range": ("letter", "probability"), "ratio": ("ratio",)
}  # fmt: skip
"""The answer formats that templates of a kind may have; text by default."""


@dataclass(frozen=True)
class RowValue:
    """A value in the text of a row whose probability is asked for.

    Attributes:
        label: the text before it.
        text: the value as it is worded, with a space before it and a mark after it, so that 3 is
            not read as the beginning of 35.
        form: the text with `ANY_DIGIT` for each digit that rounding replaced by a 0.
        alternatives: the texts of the other categories.
    """

    label: str
    text: str
    form: str
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class DirectQuestion:
    """A direct question with its prompt.

    Attributes:
        kind: the kind of question.
        template: the template.
        prompt: the rendered question.
        feature: the feature of quantiles or of the hidden value of a row; None otherwise.
        points: the two points of a ratio, in the order in which they are shown; of a likelihood,
            its point.
        ranges: the two boxes of a question about ranges, in the order in which they are shown,
            `(d, 2)` each.
        row: the values of a row whose probability is asked for, in the order of its text.
    """

    kind: DirectKind
    template: Template
    prompt: Prompt
    feature: int | None = None
    points: tuple[Floats, ...] = ()
    ranges: tuple[Floats, ...] = ()
    row: tuple[RowValue, ...] = ()


@dataclass(frozen=True)
class DirectWording:
    """The templates and subjects of a campaign's direct questions.

    Attributes:
        space: the feature space.
        templates: the templates by kind, for the kinds that are asked.
        completion: the rows to complete, if any.
        ranges: the pairs of ranges, `(n, d, 2)` each, if any.
        plan: the campaign's pairs, for ratios and likelihoods.
        rows: the rows of the table whose likelihood is asked for, `(n, d)`, if any.

    Examples:
        >>> space = FeatureSpace.load("penguins")
        >>> wording = DirectWording.of(Direct(quantiles=1), space, seed=1)
        >>> wording.question(Query(3, "quantiles", 0)).prompt.turns[0].content[:50]
        'Of all cases with a body mass between 2,900 g and '
    """

    space: FeatureSpace
    templates: Mapping[DirectKind, Template]
    completion: RowCompletion | None = None
    ranges: tuple[Floats, Floats] | None = None
    plan: Plan | None = None
    rows: Floats | None = None

    @classmethod
    def of(
        cls,
        direct: Direct | None,
        space: FeatureSpace,
        seed: int,
        plan: Plan | None = None,
        answer: Answer = "letter",
    ) -> DirectWording:
        """Prepare the direct questions of a campaign.

        Args:
            direct: the campaign's section; None for no questions.
            space: the feature space.
            seed: the campaign's.
            plan: the plan of the campaign, whose pairs are used for ratios and likelihoods.
            answer: the answer format of the campaign's template for pairs, which ranges share.

        Raises:
            InputError: a template cannot be read, or rows are asked for where there are none.
        """
        if direct is None:
            return cls(space, {})
        counts: dict[DirectKind, int] = {
            "quantiles": direct.quantiles, "sample": direct.samples, "row": direct.rows,
            "range": direct.ranges, "ratio": direct.ratios, "likelihood": direct.likelihood,
        }  # fmt: skip
        names = dict(TEMPLATES)
        names |= _WITH_CATEGORIES if len(space.numeric) < space.dimension else {}
        names |= _WITH_DATES if any(feature.kind == "date" for feature in space.features) else {}
        names |= _WITH_NUMBERS if answer != "letter" else {}
        templates = {
            kind: Template.load(name, _ANSWERS.get(kind, ("text",)))
            for kind, name in names.items()
            if counts[kind]
        }
        ranges = range_pairs(space, direct.ranges, seed) if direct.ranges else None
        completion = RowCompletion.of(space, seed) if direct.rows else None
        scored = likelihood_rows(space, seed) if direct.likelihood and space.table else None
        return cls(space, templates, completion, ranges, plan, scored)

    @property
    def identity(self) -> dict[str, str]:
        """Digests of what must not change between resumes, for the kinds that are asked."""
        identity = {
            f"{kind} template": template.digest for kind, template in self.templates.items()
        }
        if self.completion is not None:
            identity["rows"] = self.completion.digest
        if self.ranges is not None:
            # A larger number of ranges starts with the same ones, so the first pair suffices.
            bounds = b"".join(side[0].tobytes() for side in self.ranges)
            identity["ranges"] = hashlib.sha256(bounds).hexdigest()
        if self.rows is not None:
            identity["likelihood rows"] = hashlib.sha256(self.rows.tobytes()).hexdigest()
        return identity

    def question(self, query: Query) -> DirectQuestion:
        """Return the question of a query.

        Raises:
            InputError: the template cannot be filled in.
        """
        kind, variables = query.kind, self._about
        assert kind is not None
        content: dict[str, Any] = {}
        if kind == "quantiles":
            content["feature"] = query.pair
            variables |= _worded(self.space.features[query.pair])
        elif kind == "sample":
            variables["features"] = [_worded(feature) for feature in self.space.features]
        elif kind == "row":
            assert self.completion is not None
            content["feature"] = self.completion.feature
            variables["header"] = self.completion.header
            variables["beginning"] = self.completion.beginnings[query.pair]
        elif kind == "range":
            assert self.ranges is not None
            boxes = tuple(side[query.pair] for side in self.ranges)
            content["ranges"] = boxes[::-1] if query.order == "range-ba" else boxes
            options = [self.space.word_box(box) for box in content["ranges"]]
            variables |= {"option_a": options[0], "option_b": options[1]}
        elif kind == "ratio":
            assert self.plan is not None
            content["points"] = a, b = self.plan.a[query.pair], self.plan.b[query.pair]
            variables |= {"option_a": self.space.word(a), "option_b": self.space.word(b)}
        else:
            assert self.plan is not None
            rows = {"a": self.plan.a, "b": self.plan.b, "row": self.rows}
            points = rows[query.order.removeprefix("likelihood-")]
            assert points is not None
            values = list(zip(self.space.features, points[query.pair].tolist(), strict=True))
            values = values[::-1] if query.replicate else values
            content |= {"points": (points[query.pair],), "row": _row_values(values)}
            variables["features"] = [_worded(feature) for feature, _ in values]
        template = self.templates[kind]
        prompt = template.render(variables)
        if row := content.get("row"):  # whose text is the last message
            text = "".join(value.label + value.text for value in row)
            prompt = Prompt((*prompt.messages, Message("assistant", text)))
        return DirectQuestion(kind, template, prompt, **content)

    @property
    def _about(self) -> dict[str, Any]:
        """The variables that every template has."""
        space = self.space
        return {"title": space.title, "subject": space.subject, "setting": space.setting}


def _worded(feature: Feature) -> dict[str, Any]:
    """Return the variables of a template that describe a feature."""
    return {
        "label": feature.label, "unit": feature.unit,
        "low": feature.word(feature.low), "high": feature.word(feature.high),
        "categories": feature.categories, "date": feature.kind == "date",
    }  # fmt: skip


def _row_values(values: Sequence[tuple[Feature, float]]) -> tuple[RowValue, ...]:
    """Return the values of features as the text of a row shows them."""
    row = []
    for number, (feature, value) in enumerate(values, 1):
        end, word = "\n" if number == len(values) else ";", feature.word(value)
        row.append(
            RowValue(
                feature.label if number == 1 else f" {feature.label}",
                f" {word}{end}",
                f" {feature.form(value)}{end}",
                tuple(f" {category}{end}" for category in feature.categories if category != word),
            )
        )
    return tuple(row)
