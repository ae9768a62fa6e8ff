"""A presentation: how a pair is asked, as one combination of the levels of a campaign's facets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from llm_elicit._util.settings import StrictModel, read_yaml, validate
from llm_elicit.config.design import Design, Presentations
from llm_elicit.errors import InputError
from llm_elicit.planning.presentations import facets_of, fraction
from llm_elicit.questions.template import Prompt, Template, options_as_variables
from llm_elicit.spaces.feature import Feature
from llm_elicit.spaces.features import FeatureSpace, Floats, Worded


class WorkedExample(StrictModel):
    """A question about other things than the campaign's, with its answer.

    Attributes:
        a, b: the two options as text.
        answer: the right option.
    """

    a: Annotated[str, Field(min_length=1)]
    b: Annotated[str, Field(min_length=1)]
    answer: Literal["a", "b"]


class _Sets(StrictModel):
    sets: dict[str, dict[str, tuple[WorkedExample, ...]]]


def word_point(features: Sequence[Feature], order: Sequence[int], point: Floats) -> Worded:
    """Return a point `(d,)` as labels and worded values; `order` has the features' numbers."""
    values = point[list(order)].tolist()
    return [(f.label, f.word(v)) for f, v in zip(features, values, strict=True)]


@dataclass(frozen=True, eq=False)
class Presentation:
    """How a pair is asked.

    Attributes:
        label: the levels of the facets that vary; empty in a campaign of one presentation.
        template: the wording.
        space: the feature space.
        features: its features in the order in which they are shown, with their units and digits.
        order: the numbers of these features.
        options: the names of the first and the second option.
        examples: worked examples, asked before the question.

    Examples:
        >>> space = FeatureSpace.load("penguins")
        >>> a, b = space.sample(2, np.random.default_rng(0))
        >>> prompt = Presentation.of(Template.load("v1/zero-shot"), space).render(a, b)
        >>> [message.role for message in prompt.messages]
        ['system', 'user']
    """

    label: str
    template: Template
    space: FeatureSpace
    features: tuple[Feature, ...]
    order: tuple[int, ...]
    options: tuple[str, str]
    examples: tuple[WorkedExample, ...] = ()

    @classmethod
    def of(cls, template: Template, space: FeatureSpace) -> Presentation:
        """Return the only presentation of a campaign of one template."""
        order = tuple(range(space.dimension))
        return cls("", template, space, space.features, order, template.options)

    def word(self, point: Floats) -> Worded:
        """Return a point as labels and worded values."""
        return self._worded(np.asarray(point, dtype=np.float64).tobytes())

    @cached_property
    def _worded(self) -> Callable[[bytes], Worded]:
        """A function that words points, and caches the wording for a pair's other order."""

        def worded(point: bytes) -> Worded:
            return word_point(self.features, self.order, np.frombuffer(point))

        return lru_cache(maxsize=4)(worded)

    def render(self, first: Floats, second: Floats) -> Prompt:
        """Return the question about two points `(d,)`, natural units, in the order shown.

        Raises:
            InputError: the template cannot be filled in.
        """
        options = options_as_variables(
            self.word(first), self.word(second), self.options, len(self.examples)
        )
        about = {"title": self.space.title, "subject": self.space.subject}
        answers = dict(zip("ab", self.options, strict=True))
        examples = [
            ({"text_a": example.a, "text_b": example.b}, answers[example.answer])
            for example in self.examples
        ]
        return self.template.render(about | {"setting": self.space.setting} | options, examples)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all that changes a question or the reading of its answer."""
        features = [
            feature.model_dump(mode="json", exclude={"note", "name", "units"})
            for feature in self.features
        ]
        examples = [example.model_dump() for example in self.examples]
        content = [self.label, self.template.digest, self.order, features, self.options, examples]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def presentations_of(design: Design, space: FeatureSpace, seed: int) -> tuple[Presentation, ...]:
    """Return the presentations of a campaign, as `planning.presentations` numbers them.

    Raises:
        InputError: a template does not exist, or has no place for labels or examples.

    Examples:
        >>> from llm_elicit.config.design import Presentations
        >>> facets = Presentations(wordings=["v2/typical", "v2/common"], labels=["A/B", "1/2"])
        >>> space = FeatureSpace.load("penguins")
        >>> [asked.label for asked in presentations_of(Design(presentations=facets), space, 1)][:2]
        ['v2/typical, labels A/B', 'v2/typical, labels 1/2']
    """
    facets = design.presentations
    if facets is None:
        return (Presentation.of(Template.load(design.template), space),)
    levels = facets_of(design, space)
    rows = fraction(tuple(len(values) for values in levels.values()), seed)
    wordings = {str(name): Template.load(str(name)) for name in levels["wordings"]}
    answers = {template.answer for template in wordings.values()}
    if len(answers) > 1:
        raise InputError(
            "design.presentations: wordings: the templates ask for a "
            f"{' and a '.join(sorted(answers))}; list templates that ask for the same kind of "
            "answer"
        )
    chosen = [
        {name: values[number] for (name, values), number in zip(levels.items(), row, strict=True)}
        for row in rows.tolist()
    ]
    varied = {name for name, values in levels.items() if len(values) > 1}
    return tuple(
        _presentation(facets, level, varied, wordings[str(level["wordings"])], space, seed)
        for level in chosen
    )


def _presentation(
    facets: Presentations,
    level: dict[str, Any],
    several: set[str],
    template: Template,
    space: FeatureSpace,
    seed: int,
) -> Presentation:
    labels, examples = level.get("labels"), level.get("examples", "none")
    if labels and not {"label_a", "label_b"} <= template.names:
        raise InputError(
            f"design.presentations: labels: {template.id} calls its options "
            f"{' and '.join(template.options)}; use templates that show label_a and label_b, such "
            "as v2/*, or remove `labels`"
        )
    if examples != "none" and not {"examples", "text_a", "text_b"} <= template.names:
        raise InputError(
            f"design.presentations: examples: {template.id} takes no worked examples; use "
            "templates that show text_a and text_b and name examples, such as v2/*, or remove "
            "`examples`"
        )
    # The features' own order, its reverse, a random one, and its reverse.
    order, number = np.arange(space.dimension), level.get("features", 0)
    if number >= 2:
        order = np.random.default_rng([seed, 0x0EDE5]).permutation(space.dimension)
    order = order[::-1] if number % 2 else order
    label = [template.id] if "wordings" in several else []
    for name in ("features", "units"):  # levels are counted from 0
        label += [f"{name} {level[name] + 1}"] if name in several else []
    for name in ("labels", "digits", "examples"):
        label += [f"{name} {level[name]}"] if name in several else []
    return Presentation(
        label=", ".join(label),
        template=template,
        space=space,
        features=tuple(
            space.features[j].reworded(level.get("units", 0), level.get("digits"))
            for j in order.tolist()
        ),
        order=tuple(order.tolist()),
        options=(labels[0], labels[2]) if labels else template.options,
        examples=()
        if examples == "none"
        else _worked_examples(facets.example_path(), examples, template),
    )


def _worked_examples(path: Path, name: str, template: Template) -> tuple[WorkedExample, ...]:
    """Return a set of worked examples of a file in the language of a template.

    Raises:
        InputError: there are no worked examples of this name in the template's language.
    """
    sets = validate(_Sets, {"sets": read_yaml(path)}, str(path)).sets[name]
    if template.language not in sets:
        raise InputError(
            f"{template.where}: no worked examples {name!r} in language {template.language!r}; "
            f"languages with examples: {', '.join(sets)}"
        )
    return sets[template.language]


def render(space: FeatureSpace, first: Floats, second: Floats, template: Template) -> Prompt:
    """Return the question about two points `(d,)`, natural units, with a template's own labels.

    Raises:
        InputError: the template cannot be filled in.
    """
    return Presentation.of(template, space).render(first, second)
