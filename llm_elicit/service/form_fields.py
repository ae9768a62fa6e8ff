"""The fields of the form that makes a campaign, which show parts of two YAML texts and edit them.

A field that was changed is written into the text of the campaign, or into that of the feature space
drafted from an uploaded table. Everything else in a text stays as it was: comments, the order, and
keys without a field.

Names of fields differ within the page, also those of boxes: `label:NAME` belongs to a feature.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.settings import StrictModel, as_mapping, parse_yaml, validate
from llm_elicit._util.text import names_in
from llm_elicit.backends import provider_of
from llm_elicit.backends.local import MODELS, downloaded_weights
from llm_elicit.config.judges import Judge
from llm_elicit.errors import InputError
from llm_elicit.service import spaces
from llm_elicit.service.settings import AllowedJudge, ServerSettings
from llm_elicit.service.spaces import TableReading
from llm_elicit.spaces.feature import NOT_STATED

if TYPE_CHECKING:
    from ruamel import yaml as round_trip
else:
    round_trip = LazyModule("ruamel.yaml")

NUMBERS, WORDS = ("continuous", "integer"), ("categorical", "ordered")
"""The kinds of features that are numbers, and of those that are words."""

READING = ("encoding", "sep", "decimal", "not_stated")
"""The fields about how a table's file is read."""

_NUMBER_KEYS = ("low", "high", "unit", "prefix", "scale", "digits", "factor", "periodic", "units")
_MAX_WORDS = 60


class FieldError(InputError):
    """A field has a value that cannot be used.

    Attributes:
        name: the field.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Document:
    """A YAML mapping that is edited within its text.

    Args:
        text: the text.
        source: its name, for messages.

    Raises:
        InputError: the text is not a YAML mapping.

    Examples:
        >>> document = Document("name: a  # mine\\nextra: [1, 2]\\n", "campaign")
        >>> document.tree["name"] = "b"
        >>> print(document.text, end="")
        name: b  # mine
        extra: [1, 2]
    """

    def __init__(self, text: str, source: str) -> None:
        self.data = as_mapping(parse_yaml(text, source), source)
        self._yaml = round_trip.YAML()
        self._yaml.preserve_quotes, self._yaml.width = True, 4096
        try:
            self.tree: Any = self._yaml.load(text)
        except round_trip.error.YAMLError as error:
            line = " ".join(str(error).split())[:300]
            raise InputError(f"{source}: cannot be edited by the form: {line}") from None

    @property
    def text(self) -> str:
        """The text with all changes."""
        written = io.StringIO()
        self._yaml.dump(self.tree, written)
        return written.getvalue()

    def part(self, key: str) -> Any:
        """Return the mapping under a key, which is added if there is none."""
        if not isinstance(self.tree.get(key), dict):
            self.tree[key] = {}
        return self.tree[key]


def scalar(text: str) -> Any:
    """Return a text as a value of a document, in quotes if it would be read as something else."""
    with suppress(InputError):
        if parse_yaml(text, "") == text:
            return text
    return round_trip.scalarstring.SingleQuotedScalarString(text)


def number(name: str, text: str) -> int | float:
    """Return the number in a field.

    Raises:
        FieldError: it is none.
    """
    value: object = None
    with suppress(InputError):
        value = parse_yaml(text, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(name, f"{text[:40]!r} is not a number; write one such as 12.5")
    return value


def value_at(data: Any, *keys: str) -> Any:
    """Return a value within mappings; None without one."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def mappings_in(data: Any, key: str) -> list[dict[str, Any]]:
    """Return the mappings with a name in the list under a key."""
    items = value_at(data, key)
    return [
        item for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and isinstance(item.get("name"), str)
    ]  # fmt: skip


def free_name(stem: str, names: Container[str], separator: str = "-") -> str:
    """Return a name that is not among others: the stem, or else the stem with a number."""
    numbered = (f"{stem}{separator}{count}" for count in itertools.count(2))
    return next(name for name in itertools.chain([stem], numbered) if name not in names)


def space_fields(data: Any) -> dict[str, str]:
    """Return the fields of a feature space.

    Examples:
        >>> space_fields({"subject": "a bird", "features": [
        ...     {"name": "sex", "label": "sex", "kind": "categorical", "categories": ["f", "m"]}]})
        {'subject': 'a bird', 'use:sex': 'on', 'kind:sex': 'categorical', 'label:sex': 'sex', \
'words:sex': 'f\\nm'}
    """
    fields = {"subject": str(value_at(data, "subject") or "")}
    for feature in mappings_in(data, "features"):
        name, kind = feature["name"], str(feature.get("kind", "continuous"))
        values = {"use": "on", "kind": kind, "label": feature.get("label", "")}
        if kind in WORDS:
            words = feature.get("categories")
            values["words"] = "\n".join(map(str, words if isinstance(words, list) else ()))
        else:
            values |= {"low": feature.get("low", ""), "high": feature.get("high", "")}
            if kind != "date":
                values |= {"unit": feature.get("unit", ""), "scale": feature.get("scale", "linear")}
        fields |= {f"{key}:{name}": str(value) for key, value in values.items()}
    dialect = value_at(data, "table", "dialect")
    stated = {"encoding": "utf-8", "sep": ",", "decimal": "."} | (dialect or {})
    if str(value_at(data, "table", "file") or "").endswith(".csv"):
        cuts = value_at(data, "table", "cuts") or {}
        ranges = [
            heading_of(data, feature["name"]) for feature in mappings_in(data, "features")
            if feature["name"] in cuts and NOT_STATED in (feature.get("categories") or ())
        ]  # fmt: skip
        fields |= {key: str(stated[key]) for key in READING[:3]} | {"not_stated": ", ".join(ranges)}
    return fields


def edit_space(document: Document, changes: Mapping[str, str], folder: Path) -> None:
    """Write changed fields into a feature space.

    Raises:
        FieldError: a field has a value that cannot be used.
    """
    features = {feature["name"]: feature for feature in mappings_in(document.tree, "features")}
    if "subject" in changes:
        document.tree["subject"] = scalar(changes["subject"])
    # A kind first: it decides what other fields mean.
    for key in sorted(changes, key=lambda key: not key.startswith("kind:")):
        part, _, name = key.partition(":")
        text = changes[key]
        if part == "take":
            _take_column(document, int(name), folder)
        if name not in features:
            continue
        feature = features[name]
        if part == "use" and not text:
            _leave_out(document, name)
        elif part == "kind":
            _change_kind(document, feature, text, folder)
        elif part == "words" and "categories" in feature:
            _reword(document, feature, text)
        elif part in ("low", "high") and feature.get("kind") not in WORDS:
            is_date = feature.get("kind") == "date"
            feature[part] = scalar(text) if is_date else number(key, text)
        elif part in ("label", "scale") or (part == "unit" and text):
            feature[part] = scalar(text)
        elif part == "unit":
            feature.pop("unit", None)
        _forget_guess(feature, part)


def _comment_on(feature: Any, key: str) -> tuple[str, str]:
    """Return the comment beside the value of a key, and the lines of comment below."""
    tokens = feature.ca.items.get(key) or ()
    flat = [part for token in tokens for part in (token if isinstance(token, list) else [token])]
    text = "".join(token.value for token in flat if token is not None)
    line, _, below = text.partition("\n")
    return line.removeprefix("#").strip(), below.strip().removeprefix("#").strip()


def _forget_guess(feature: Any, key: str) -> None:
    """Remove the comment which says that a value was guessed."""
    key = "categories" if key == "words" else key
    below = _comment_on(feature, key)[1]
    feature.ca.items.pop(key, None)
    if below:
        feature.yaml_add_eol_comment(below, key)


def guesses_of(document: Document) -> dict[str, str]:
    """Return the comments on values of features, which say how these were guessed, by field."""
    guesses = {}
    for feature in mappings_in(document.tree, "features"):
        for key in feature:
            line = _comment_on(feature, key)[0]
            if "guess" in line or "scale" in line:
                guesses[f"{'words' if key == 'categories' else key}:{feature['name']}"] = line
    return guesses


def _leave_out(document: Document, name: str) -> None:
    """Leave out a feature with the constraints that name it.

    Raises:
        FieldError: no other feature is left.
    """
    tree = document.tree
    if len(mappings_in(tree, "features")) == 1:
        raise FieldError(f"use:{name}", "a campaign needs a column to ask about; keep one")
    places = [value_at(part, "name") for part in tree["features"]]
    del tree["features"][places.index(name)]
    if tree.get("constraints"):
        left = [rule for rule in tree["constraints"] if not re.search(rf"\b{name}\b", str(rule))]
        tree["constraints"] = left
        if not left:
            del tree["constraints"]


def _take_column(document: Document, place: int, folder: Path) -> None:
    """Add the feature of a column that was left out, as it is drafted.

    Raises:
        FieldError: it cannot be a feature.
    """
    data, key = document.data, f"take:{place}"
    headings = [report["column"] for report in spaces.read_report(folder)["columns"]]
    if place >= len(headings) or not value_at(data, "table", "file"):
        raise FieldError(key, "the table has no such column; load the page again")
    present = [heading_of(data, feature["name"]) for feature in mappings_in(data, "features")]
    fields = space_fields(data)
    stated = {part: fields.get(part, "") for part in READING[:3]}
    reading = TableReading([*present, headings[place]], **stated)
    table = folder / data["table"]["file"]
    try:
        drafted = reading.space_of(table).draft
    except InputError as error:
        raise FieldError(key, str(error).replace(str(table), table.name)) from None
    assert drafted is not None
    for feature in drafted.data["features"]:
        if heading_of(drafted.data, feature["name"]) == headings[place]:
            document.tree["features"].append(feature)
            name, about = feature["name"], document.part("table")
            for part in ("columns", "words", "dates", "cuts"):
                if name in drafted.data["table"].get(part, {}):
                    about.setdefault(part, {})[name] = drafted.data["table"][part][name]
            return
    raise FieldError(key, "the others determine this column; leave out one of them first")


def heading_of(data: Any, name: str) -> str:
    """Return the heading of a feature's column."""
    return str(value_at(data, "table", "columns", name) or name)


def _change_kind(document: Document, feature: Any, kind: str, folder: Path) -> None:
    """Change the kind of a feature; numbers become the words of the column, and words numbers.

    Raises:
        FieldError: the column has no such values.
    """
    name, before = feature["name"], feature.get("kind", "continuous")
    key = f"kind:{name}"
    if kind not in (*NUMBERS, *WORDS) or before == "date":
        raise FieldError(key, "a column cannot become one of this kind; choose another")
    if (kind in WORDS) != (before in WORDS):
        text = document.text
        space = spaces.validate_space(text, folder.name, folder)
        rows = space.printed_rows()
        place = rows[0].index(heading_of(document.data, name))
        cells = sorted({row[place].strip() for row in rows[1:]} - {""})
        try:
            cells.sort(key=float)
            numbers = [number(key, cell) for cell in cells]
        except (ValueError, FieldError):
            numbers = []
        if kind in NUMBERS and len(numbers) < 2:
            raise FieldError(key, "the column holds words; choose categorical or ordered")
        if kind in WORDS and not 2 <= len(cells) <= _MAX_WORDS:
            raise FieldError(
                key, f"{len(cells)} different values; words are for 2 to {_MAX_WORDS} of them"
            )
        for part in (*_NUMBER_KEYS, "categories"):
            feature.pop(part, None)
        for part in ("words", "cuts"):
            if name in (value_at(document.tree, "table", part) or {}):
                del document.tree["table"][part][name]
        if kind in WORDS:
            feature["categories"] = [round_trip.scalarstring.SingleQuotedScalarString(cell)
                                     for cell in cells]  # fmt: skip
        else:
            feature["low"], feature["high"] = numbers[0], numbers[-1]
    feature["kind"] = kind


def _reword(document: Document, feature: Any, text: str) -> None:
    """Change the words of categories; cells of the table keep their meaning.

    Raises:
        FieldError: there are not as many words as categories.
    """
    name, before = feature["name"], [str(word) for word in feature["categories"]]
    words = [line.strip() for line in text.split("\n") if line.strip()]
    if len(words) != len(before):
        raise FieldError(
            f"words:{name}", f"{len(words)} words for {len(before)} categories; give one a line"
        )
    renamed = {old: new for old, new in zip(before, words, strict=True) if old != new}
    feature["categories"] = [scalar(word) for word in words]
    cells = document.part("table").setdefault("words", {}).setdefault(name, {})
    stated = {str(cell): str(word) for cell, word in cells.items()}
    for cell, word in ({old: old for old in renamed} | stated).items():
        if word in renamed:
            cells[scalar(cell)] = scalar(renamed[word])


def campaign_fields(data: Any) -> dict[str, str]:
    """Return the fields of a campaign.

    Examples:
        >>> campaign_fields({"name": "a", "space": "penguins", "design": {"pairs": 50},
        ...                  "judges": [{"name": "expert", "backend": "simulated"}]})
        {'called': 'a', 'space': 'penguins', 'pairs': '50', 'wording': 'v1/zero-shot', \
'max_cost': '', 'judge:expert': 'on'}
    """
    design, cost = value_at(data, "design"), value_at(data, "limits", "max_cost")
    return {
        "called": str(value_at(data, "name") or ""),
        "space": str(value_at(data, "space") or ""),
        "pairs": str(value_at(design, "pairs") or 200),
        "wording": _wording_of(design),
        "max_cost": "" if cost is None else str(cost),
        **{f"judge:{judge['name']}": "on" for judge in mappings_in(data, "judges")},
    }


def _wording_of(design: Any) -> str:
    """Return the template of a design, or the pattern of several; empty if it lists others."""
    wordings = value_at(design, "presentations", "wordings")
    if wordings is None:
        return str(value_at(design, "template") or "v1/zero-shot")
    listed = wordings if isinstance(wordings, list) else [wordings]
    return str(listed[0]) if len(listed) == 1 else ""


def edit_campaign(
    document: Document, changes: Mapping[str, str], options: Sequence[JudgeOption]
) -> None:
    """Write changed fields into a campaign.

    Raises:
        FieldError: a field has a value that cannot be used.
    """
    tree = document.tree
    for key, part in (("called", "name"), ("space", "space")):
        if key in changes:
            tree[part] = scalar(changes[key])
    if {"pairs", "wording"} & set(changes) and tree.get("design") == "adaptive":
        tree["design"] = {"rounds": {"count": 5}}
    if "pairs" in changes:
        document.part("design")["pairs"] = number("pairs", changes["pairs"])
    if changes.get("wording"):
        _change_wording(document, changes["wording"])
    if "max_cost" in changes:
        if changes["max_cost"]:
            document.part("limits")["max_cost"] = number("max_cost", changes["max_cost"])
        elif isinstance(tree.get("limits"), dict):
            tree["limits"].pop("max_cost", None)
            if not tree["limits"]:
                del tree["limits"]
    _change_judges(tree, changes, options)


def _change_wording(document: Document, wording: str) -> None:
    design = document.part("design")
    facets = design.get("presentations")
    if "*" in wording:
        design.pop("template", None)
        if facets is None:
            design["presentations"] = {"wordings": wording, "examples": "*", "features": "shuffled"}
        else:
            facets["wordings"] = wording
        return
    if facets is not None:  # those of a wording that is asked alone stay
        facets.pop("wordings", None)
        if set(facets) <= {"examples", "features"}:
            del design["presentations"]
    design["template"] = scalar(wording)


def _change_judges(tree: Any, changes: Mapping[str, str], options: Sequence[JudgeOption]) -> None:
    judges = tree.get("judges")
    judges = judges if isinstance(judges, list) else []
    removed = {key.partition(":")[2] for key in changes if key.startswith("judge:")}
    if removed:  # what is changed of a judge's box is that it is not ticked any more
        judges[:] = [judge for judge in judges if value_at(judge, "name") not in removed]
    for option in options:
        if f"add:{option.key}" in changes:
            settings = option.judge(changes.get(f"about:{option.key}", ""))
            names = [value_at(judge, "name") for judge in judges]
            judges.append({**settings, "name": free_name(settings["name"], names)})
    if judges or "judges" in tree:
        tree["judges"] = judges


@dataclass(frozen=True)
class JudgeOption:
    """A judge that the server allows.

    Attributes:
        key: what stands for it in the names of fields.
        settings: its settings, without a name.
        label: what it is.
        facts: its key, whether it gives log-odds, and its costs, in words.
        asks: the label of a text that it needs: a model, or the names of people; empty if none.
        problem: why it cannot be chosen; empty if it can.
    """

    key: str
    settings: dict[str, Any]
    label: str
    facts: tuple[str, ...] = ()
    asks: str = ""
    problem: str = ""

    def judge(self, text: str) -> dict[str, Any]:
        """Return the settings of the judge with a name.

        Raises:
            FieldError: the text that it needs is missing.
        """
        if self.asks and not text:
            raise FieldError(f"add:{self.key}", f"{self.asks.lower()} is missing; fill it in")
        settings = dict(self.settings)
        if settings["backend"] == "human":
            return {"name": "people", **settings, "experts": names_in(text)}
        if self.asks:
            settings["model"] = text
        model = str(settings.get("model") or settings["backend"])
        return {
            "name": re.sub(r"[^A-Za-z0-9._-]+", "-", model.rpartition("/")[2]).strip("-._")[:60],
            **settings,
        }


def judge_options(settings: ServerSettings) -> list[JudgeOption]:
    """Return the judges that a server allows, by backend and model."""
    options = []
    for number, entry in enumerate(settings.judges):
        models: Sequence[str] = entry.models
        if entry.backend == "local" and not models:
            models = sorted(MODELS)
        for place, model in enumerate(models or [""]):
            options.append(_option(f"{number}-{place}", entry, model))
    return options


def _option(key: str, entry: AllowedJudge, model: str) -> JudgeOption:
    settings: dict[str, Any] = {"backend": entry.backend}
    stated = {"profile": entry.profile, "base_url": entry.base_url}
    settings |= {name: value for name, value in stated.items() if value is not None}
    if entry.extra_headers:
        settings["extra_headers"] = dict(entry.extra_headers)
    asks = ""
    if entry.backend == "human":
        asks = "Names, separated by commas"
    elif entry.backend != "simulated" and not model:
        asks = "Model"
    full = {**settings, **({"model": model or "model"} if model or asks == "Model" else {})}
    where = entry.profile or entry.base_url or entry.backend
    label = {"simulated": "simulated judge, which knows the table", "human": "people, by a link"}
    words = label.get(entry.backend) or f"{model or 'any model'} ({where})"
    try:
        default = judge_of({"name": "x", **full})
        if getattr(default, "api_key_env", None) != entry.api_key_env:
            full["api_key_env"] = settings["api_key_env"] = entry.api_key_env
        judge = judge_of({"name": "x", **full})
    except InputError as error:
        return JudgeOption(key, settings, words, problem=str(error))
    if model:
        settings["model"] = model
    return JudgeOption(key, settings, words, judge_facts(judge), asks)


class _Named(StrictModel):
    """One judge."""

    judge: Judge


def judge_of(settings: dict[str, Any]) -> Any:
    return validate(_Named, {"judge": settings}, "judge").judge


def judge_facts(judge: Any) -> tuple[str, ...]:
    """Return whether a judge's key is there, whether it gives log-odds, and whether it is paid.

    Examples:
        >>> judge_facts(judge_of({"name": "a", "backend": "simulated"}))
        ('choices only: a simulated judge gives log-odds only with `log_odds`', 'free')
    """
    facts = []
    variable = getattr(judge, "api_key_env", None)
    if variable:
        there = "is set" if os.environ.get(variable) else "is not set on the server"
        facts.append(f"its key {variable} {there}")
    if judge.backend == "local" and judge.model in MODELS and not downloaded_weights(judge.model):
        size = MODELS[judge.model].megabytes
        facts.append(f"its weights ({size:,} MB) are missing: llm-elicit models pull {judge.model}")
    facts.append(f"choices only: {judge.choices_only}" if judge.choices_only else "gives log-odds")
    if judge.backend != "human":
        facts.append("free" if provider_of(judge).free else "costs money: needs a cap")
    return tuple(facts)
