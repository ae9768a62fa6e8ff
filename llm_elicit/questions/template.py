"""Question templates: files in prompts/ that render a pair of points as a prompt.

A template is a Markdown file with YAML front matter (its id, its wording in a sentence, the
letters of the answer, the tokens an answer needs) and parts under the headings `# system`,
`# user` and `# assistant`, in the order in which they are sent. Parts are Jinja2 text with the
variables `title`, `subject`, `setting`, `option_a` and `option_b`; an option is a list of
(label, value as text), and `text_a` and `text_b` are the same as one line. A template that shows
`label_a` and `label_b` lets a campaign choose what the options are called, and one that names
`examples` (their number) takes worked examples: the last part is asked of each of them first.
`answer: probability` and `answer: ratio` ask for a number instead of a
letter; `answer: text` is for direct questions (`questions.direct`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from llm_elicit._util import files
from llm_elicit._util.packages import LazyModule
from llm_elicit._util.settings import StrictModel, parse_yaml, validate
from llm_elicit._util.text import not_utf8, visible
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import jinja2

    from llm_elicit.questions import sandbox
else:
    sandbox = LazyModule("llm_elicit.questions.sandbox")  # Jinja2, which `status` does without

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

Role = Literal["system", "user", "assistant"]
Answer = Literal["letter", "probability", "ratio", "text"]
"""The answer format: an option's letter, the probability that the first is the more plausible one,
the ratio of its plausibility to the second's, or free text."""

PAIR_ANSWERS: tuple[Answer, ...] = ("letter", "probability", "ratio")
"""The answer formats of questions about two options."""

_HEADING = re.compile(r"^# (system|user|assistant)[ \t]*$", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---\n(.*?)^---\n(.*)\Z", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Message:
    """One turn of a prompt."""

    role: Role
    content: str


@dataclass(frozen=True)
class Prompt:
    """A rendered question.

    Attributes:
        messages: the turns, in the order they are sent.
    """

    messages: tuple[Message, ...]

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of the roles and texts, as hexadecimal."""
        turns = [[message.role, message.content] for message in self.messages]
        return hashlib.sha256(_encode(turns).encode()).hexdigest()

    @cached_property
    def byte_count(self) -> int:
        """The bytes of the texts."""
        return sum(len(message.content.encode()) for message in self.messages)

    @property
    def text(self) -> str:
        """The texts of all turns."""
        return "\n\n".join(message.content for message in self.messages)

    @property
    def system(self) -> str:
        """The system turns' text, joined; empty where there is none."""
        return "\n\n".join(m.content for m in self.messages if m.role == "system")

    @property
    def turns(self) -> tuple[Message, ...]:
        """The turns other than the system's."""
        return tuple(m for m in self.messages if m.role != "system")


@dataclass
class _Compiled:
    """A compiled turn, with the names of its variables.

    The last rendered text is cached, since turns without options are the same in every question.
    """

    role: Role
    source: jinja2.Template
    names: tuple[str, ...]
    _last_rendered: tuple[object, str] | None = None

    def __post_init__(self) -> None:
        # A plain dictionary: Jinja2's chain of dictionaries takes a tenth of the rendering time.
        self.source.globals = dict(self.source.globals)

    def render(self, variables: dict[str, Any]) -> str:
        """Render the turn's text."""
        values = [variables.get(name) for name in self.names]
        if self._last_rendered is None or self._last_rendered[0] != values:
            self._last_rendered = values, self.source.render(variables).strip()
        return self._last_rendered[1]


_Letter = Annotated[str, Field(pattern=r"^[A-Z]$")]


class Template(StrictModel):
    """A wording of the question, with its answer format: the front matter of a file, and its parts.

    Attributes:
        id: the name it is recorded under, such as "v1/zero-shot".
        wording: a description in a sentence.
        answer: the answer format.
        options: the letters of the first and the second option shown.
        max_tokens: number of tokens that an answer needs.
        language: the language of the question, ISO 639-1, which its worked examples share.
        back_translation: the question translated back into English.
        question: the question in a line, which people are asked; empty for the usual one.
        parts: the turns as Jinja2 source.
        where: the file, for messages.

    Examples:
        >>> template = Template.load("v1/zero-shot")
        >>> template.id, template.options
        ('v1/zero-shot', ('A', 'B'))
    """

    id: Annotated[str, Field(min_length=1)]
    wording: Annotated[str, Field(min_length=1)]
    answer: Answer = "letter"
    options: tuple[_Letter, _Letter] = ("A", "B")
    max_tokens: Annotated[int, Field(ge=1, le=100_000)] = 8
    language: str = "en"
    back_translation: str = ""
    question: str = ""
    parts: tuple[tuple[Role, str], ...]
    where: str

    @model_validator(mode="after")
    def _letters_differ(self) -> Template:
        if self.options[0] == self.options[1]:
            raise ValueError(
                f"options: the letter {self.options[0]!r} appears twice; use two different letters"
            )
        return self

    @classmethod
    def load(cls, name: str, answers: Sequence[Answer] = PAIR_ANSWERS) -> Template:
        """Read a template by name (from prompts/) or by path.

        Args:
            name: the name or path.
            answers: the allowed answer formats.

        Raises:
            InputError: the file does not exist, is no valid template, or asks for another answer.
        """
        path = files.find("prompts", name, ".md")
        template = cls.read(path)
        if template.answer not in answers:
            raise InputError(
                f"{path}: the template asks for a {template.answer}, but a {' or '.join(answers)} "
                "is needed here; name another template"
            )
        template.check()
        return template

    @classmethod
    def read(cls, path: Path) -> Template:
        """Read a template's file without rendering it.

        Raises:
            InputError: it cannot be read, or breaks a rule.
        """
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: {not_utf8(error)}") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read as text ({error}); check the file") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> Template:
        """Read a template from its text; `where` names it in messages.

        Raises:
            InputError: the front matter or the parts break a rule.
        """
        match = _FRONT_MATTER.match(text.replace("\r\n", "\n"))
        if match is None:
            raise InputError(f"{where}: no front matter; start the file with --- id: ... ---")
        data = parse_yaml(match[1], f"{where}: front matter")
        if not isinstance(data, dict):
            raise InputError(
                f"{where}: front matter must be a mapping; write id and wording as `key: value`"
            )
        for key in data.keys() & {"parts", "where"}:
            raise InputError(f"{where}: {key}: unknown key; remove it")
        sections = _HEADING.split(match[2])
        if sections[0].strip():
            raise InputError(
                f"{where}: there is text before the first heading; put it under # user"
            )
        parts = tuple(zip(sections[1::2], sections[2::2], strict=True))
        if not parts or parts[-1][0] == "system":
            raise InputError(f"{where}: the last part must be # user (or # assistant, to prefill)")
        return validate(cls, {**data, "parts": parts, "where": where}, where)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all that changes a question or the reading of its answer."""
        content: list[Any] = [self.id, self.options, self.max_tokens, self.parts]
        if self.answer in ("probability", "ratio"):
            content.append(self.answer)  # digests of the other formats were defined without it
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @cached_property
    def _compiled(self) -> tuple[_Compiled, ...]:
        try:
            return tuple(_Compiled(role, *sandbox.compiled(source)) for role, source in self.parts)
        except Exception as error:  # templates can raise any exception
            raise InputError(f"{self.where}: {_message_of(error)}") from None

    def check(self) -> None:
        """Render the template with sample values, and check the result.

        Raises:
            InputError: it fails, has an empty part, or does not show both options.
        """
        first, *others = (self.render(values).messages for values in _samples(self.answer))
        for message in first:
            if not message.content:
                raise InputError(
                    f"{self.where}: # {message.role} is empty; write its text, or remove it"
                )
        hidden = [
            f"option_{letter}"
            for letter, messages in zip("ab", others, strict=False)
            if messages == first
        ]
        if hidden:
            raise InputError(
                f"{self.where}: does not show {' and '.join(hidden)}; show both options, each once"
            )

    @property
    def names(self) -> frozenset[str]:
        """The variables that the template uses."""
        return frozenset(name for part in self._compiled for name in part.names)

    def render(
        self, variables: dict[str, Any], examples: Sequence[tuple[dict[str, str], str]] = ()
    ) -> Prompt:
        """Render the parts.

        Args:
            variables: the values.
            examples: for each worked example, the variables that differ and its answer.

        Raises:
            InputError: the template names a variable that does not exist, or fails otherwise.
        """
        *first_turns, last_turn = self._compiled
        try:
            turns = [Message(part.role, part.render(variables)) for part in first_turns]
            for differing, answer in examples:
                turns.append(Message(last_turn.role, last_turn.render(variables | differing)))
                turns.append(Message("assistant", answer))
            return Prompt((*turns, Message(last_turn.role, last_turn.render(variables))))
        except Exception as error:  # templates can raise any exception
            names = ", ".join(variables)
            line = _message_of(error)
            raise InputError(f"{self.where}: {line}; a template may use {names}") from None


def _message_of(error: Exception) -> str:
    return visible(sandbox.describe_error(error), 300)


def _samples(answer: Answer) -> list[dict[str, Any]]:
    """Return sample values: two options, then each of them replaced by a third option."""
    about = {"title": "Houses of a town", "subject": "a house", "setting": "It is for sale."}
    if answer == "text":
        number, words = {"date": False, "categories": []}, ["flat", "villa"]
        area = {"label": "area", "unit": "m²", "low": "20 m²", "high": "900 m²", **number}
        kind = {"label": "kind", "unit": "", "low": "", "high": "", **number, "categories": words}
        ends = {"low": "1 May 1900", "high": "1 May 2020"}
        built = {"label": "day", "unit": "", **ends, **number, "date": True}
        row = {"features": [area, kind, built], "header": "area,rooms,age", "beginning": "81,3"}
        return [{**about, **area, **row}]
    first, second, third = (
        [("area", f"{n}1 m²"), ("number of rooms", f"{n}"), ("age", f"{n}7 years")]
        for n in (2, 5, 8)
    )
    return [
        {**about, **options_as_variables(a, b)}
        for a, b in ((first, second), (third, second), (first, third))
    ]


Option = Sequence[tuple[str, str]]
"""A point as it is shown: labels and values as text."""


def options_as_variables(
    first: Option, second: Option, labels: tuple[str, str] = ("A", "B"), examples: int = 0
) -> dict[str, Any]:
    """Return the variables of a template that shows two options.

    Examples:
        >>> options_as_variables([("age", "3 years"), ("mass", "2 g")], [])["text_a"]
        'age 3 years; mass 2 g'
    """
    texts = ["; ".join(f"{label} {value}" for label, value in option) for option in (first, second)]
    return {
        "option_a": first, "option_b": second, "label_a": labels[0], "label_b": labels[1],
        "text_a": texts[0], "text_b": texts[1], "examples": examples,
    }  # fmt: skip
