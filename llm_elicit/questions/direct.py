"""Direct questions: quantiles to state, a point to write down, a row to go on with; as prompts.

Which one a query stands for follows from the campaign's section, its seed and the feature space
alone, so that a resumed run asks what it would have asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_elicit.design import Direct
from llm_elicit.features import Feature, FeatureSpace
from llm_elicit.plan import DirectKind, Query
from llm_elicit.questions.template import Prompt, Template
from llm_elicit.recital import Recital

TEMPLATES: Mapping[DirectKind, str] = {
    "quantiles": "v1/quantiles", "sample": "v1/sample", "row": "v1/row",
}  # fmt: skip
"""The wordings."""

_WITH_WORDS: Mapping[DirectKind, str] = {**TEMPLATES, "sample": "v1/sample-categories"}
"""Those of spaces with categorical features."""


@dataclass(frozen=True)
class DirectQuestion:
    """A direct question, ready to be put.

    Attributes:
        kind: what is asked for.
        feature: whose quantiles, or whose value in a row; None for a sample.
        template: its wording.
        prompt: it, worded.
    """

    kind: DirectKind
    feature: int | None
    template: Template
    prompt: Prompt


@dataclass(frozen=True)
class DirectWording:
    """Words the direct questions of a campaign.

    Attributes:
        space: what they are about.
        templates: by kind, of the kinds that are asked.
        recital: the rows to recite, if any are.

    Example:
        >>> space = FeatureSpace.load("penguins")
        >>> wording = DirectWording.of(Direct(quantiles=1), space, seed=1)
        >>> wording.question(Query(3, "quantiles", 0)).prompt.turns[0].content[:50]
        'Of all cases with a body mass between 2,900 g and '
    """

    space: FeatureSpace
    templates: Mapping[DirectKind, Template]
    recital: Recital | None = None

    @classmethod
    def of(cls, direct: Direct | None, space: FeatureSpace, seed: int) -> DirectWording:
        """The wording of a campaign's section; of none, one that is asked nothing.

        Raises:
            InputError: a template cannot be read, or rows are asked for where there are none.
        """
        if direct is None:
            return cls(space, {})
        asked = {"quantiles": direct.quantiles, "sample": direct.samples, "row": direct.rows}
        names = _WITH_WORDS if space.categorical.any() else TEMPLATES
        templates = {k: Template.load(name, ("text",)) for k, name in names.items() if asked[k]}
        return cls(space, templates, Recital.of(space, seed) if direct.rows else None)

    @property
    def identity(self) -> dict[str, str]:
        """What must be the same whenever the run goes on, for the kinds that are asked."""
        templates = {f"{kind} template": one.digest for kind, one in self.templates.items()}
        return templates | ({"rows": self.recital.digest} if self.recital else {})

    def question(self, query: Query) -> DirectQuestion:
        """The question that a query stands for.

        Raises:
            InputError: the template cannot be filled in.
        """
        space, kind = self.space, query.order
        variables: dict[str, Any] = {
            "title": space.title, "subject": space.subject, "setting": space.setting,
        }  # fmt: skip
        feature: int | None = None
        if kind == "quantiles":
            feature = query.pair
            variables |= _worded(space.features[feature])
        elif kind == "sample":
            variables["features"] = [_worded(one) for one in space.features]
        else:
            assert kind == "row"
            assert self.recital is not None
            feature = self.recital.feature
            variables["header"] = self.recital.header
            variables["beginning"] = self.recital.beginnings[query.pair]
        template = self.templates[kind]
        return DirectQuestion(kind, feature, template, template.render(variables))


def _worded(feature: Feature) -> dict[str, Any]:
    return {
        "label": feature.label, "unit": feature.unit,
        "low": feature.word(feature.low), "high": feature.word(feature.high),
        "categories": feature.categories,
    }  # fmt: skip
