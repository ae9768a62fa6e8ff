"""Settings files: YAML is parsed strictly into frozen models, with errors of one line.

Addresses of servers in settings are checked, too.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args
from urllib.parse import SplitResult, parse_qs, urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from yaml.composer import Composer
from yaml.constructor import SafeConstructor

from llm_elicit._util.text import not_utf8, visible
from llm_elicit.errors import InputError

Model = TypeVar("Model", bound=BaseModel)

_MAX_BYTES = 5_000_000
"""Largest size of a settings file, bytes."""

_MAX_REPR = 300
"""Largest length of a model's `repr`, characters."""

_MAX_FINDINGS = 5
"""Largest number of broken rules in one message."""

_MAX_DEPTH, _MAX_VALUES = 40, 100_000
"""Largest depth of nesting and largest number of values of a settings file."""

_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_WHOLE = re.compile(r"[-+]?[0-9][0-9_]*$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NUMBER = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$"
    r"|\.(nan|NaN|NAN)$"
)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Sampling = Literal["uniform", "empirical"]
"""The sampling density λ: uniform on the features' scales, or a kernel density of the table."""
NoiseLevel = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A noise level within the range in which differences of utilities can be computed."""


class StrictModel(BaseModel):
    """A frozen model that refuses keys it does not know."""

    # Without "strings" an infinite end of an interval is written as null, which is no number.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def __repr__(self) -> str:
        """Return the settings as text, shortened if there are many."""
        text = super().__repr__()
        return text if len(text) <= _MAX_REPR else f"{text[: _MAX_REPR - 5]} ...)"

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with `update`, without the values that cached properties have computed."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a list after checking that they differ.

    Raises:
        ValueError: a value appears twice.
    """
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"{value!r} appears twice; remove one")
    return values


_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader, with the parser of libyaml if it is there, which takes a fifth of the time."""


def increasing(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the numbers of a list after checking that they increase.

    Raises:
        ValueError: a number is not above the one before.
    """
    if any(later <= value for value, later in pairwise(values)):
        raise ValueError("the numbers must increase; sort them")
    return values


class _Strict(Composer, SafeConstructor):
    """Refuses duplicate keys, non-finite numbers and unbounded nesting; a parser is added."""

    peek_event: Any
    check_event: Any
    _depth = 0

    def __init__(self, text: str) -> None:
        _Parser.__init__(self, text)
        Composer.__init__(self)
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node within the limits of nesting and of size, aliases included."""
        event = self.peek_event()
        alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _broken_rule("nested too deeply; use fewer levels", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if alias and node not in self._sizes:
            raise _broken_rule("recursive alias", event)
        size = self._sizes.setdefault(node, 1 + sum(self._sizes[part] for part in _parts(node)))
        if size > _MAX_VALUES:
            raise _broken_rule(
                f"more than {_MAX_VALUES:,} values, where every use of an alias counts; shorten it",
                event,
            )
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping without duplicate keys."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            tagged_key, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if tagged_key in lines:
                raise _broken_rule(
                    f"duplicate key {key.value!r}, first in line {lines[tagged_key]}; remove one",
                    key,
                )
            lines[tagged_key] = line
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Construct a finite number, an integer if it is written without a point and is whole."""
        text = self.construct_scalar(node).replace("_", "")
        if node.tag == _INT:
            return int(text)
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        if not math.isfinite(value):
            raise _broken_rule(f"{node.value!r} is not a finite number; give one", node)
        return int(value) if "." not in text and value == int(value) else value


class _Loader(_Strict, _Parser):  # type: ignore[misc]
    """The YAML loader."""


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes texts which `_Loader` would read as numbers."""


def _parts(node: yaml.Node) -> list[yaml.Node]:
    """Return the direct children of a node, including keys."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _broken_rule(rule: str, at: Any) -> yaml.MarkedYAMLError:
    """Return the error of a node or an event that breaks a rule, with its line."""
    return yaml.MarkedYAMLError(problem=rule, problem_mark=at.start_mark)


_kind: Any
for _kind in (_Loader, _Dumper):
    # Numbers as in YAML 1.2: 1e3 is a number, 010 is ten, and 1:30 is a text.
    _kind.yaml_implicit_resolvers = {
        first: [(tag, text) for tag, text in resolvers if tag not in (_INT, _FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _kind.add_implicit_resolver(_INT, _WHOLE, list("-+0123456789"))
    _kind.add_implicit_resolver(_FLOAT, _NUMBER, list("-+.0123456789"))
_kind = _Loader
for _tag in (_INT, _FLOAT):
    _kind.add_constructor(_tag, _kind.construct_number)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        InputError: the file cannot be read or is far too large for settings, is not YAML, gives a
            key twice, holds a number that is not finite, or is not a mapping.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(
                f"{path}: {path.stat().st_size:,} bytes are too many for a settings file; check "
                "the path"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {not_utf8(error)}") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid YAML: {_one_line(error)}") from None
    return as_mapping(parse_yaml(text, str(path)), str(path))


def as_mapping(data: Any, source: str) -> dict[str, Any]:
    """Return data that must be a mapping.

    Raises:
        InputError: they are none.

    Examples:
        >>> as_mapping(None, "mine.yaml")
        Traceback (most recent call last):
        ...
        llm_elicit.errors.InputError: mine.yaml: expected a mapping (key: value), got nothing
    """
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        raise InputError(f"{source}: expected a mapping (key: value), got {kind}")
    return data


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML; keys must differ and numbers must be finite.

    Args:
        text: the YAML text.
        source: its source, for messages.

    Raises:
        InputError: the text is not such YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        prefix = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        line = visible(" ".join(f"{error.context or ''} {error.problem}".split()), 300)
        raise InputError(f"{source}: not valid YAML: {prefix}{line}") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        # PyYAML passes invalid dates and numbers on to Python's constructors.
        raise InputError(f"{source}: not valid YAML: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return visible(" ".join(str(error).split()), 300)


def to_yaml(data: Any) -> str:
    """Return the YAML text of data, which `read_yaml` reads back."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def validate(model: type[Model], data: dict[str, Any], source: str) -> Model:
    """Return settings as a model; the error for broken rules has one line.

    Args:
        model: the model.
        data: the settings.
        source: the file, for messages.

    Raises:
        InputError: the broken rules with their keys and values, unknown keys first.
    """
    try:
        instance = model.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{source}: {_findings(model, data, error)}") from None
    _check_kinds(data, instance, source, ())
    return instance


def _check_kinds(data: Any, parsed: Any, source: str, loc: tuple[str, ...]) -> None:
    """Check that no value was converted between text, number and truth value.

    Raises:
        InputError: a value was converted; the message names its key.
    """
    if isinstance(data, dict):
        for key, value in data.items():
            field = parsed.get(key) if isinstance(parsed, dict) else getattr(parsed, str(key), None)
            _check_kinds(value, field, source, (*loc, str(key)))
    elif isinstance(data, list | tuple) and isinstance(parsed, list | tuple):
        for number, (value, field) in enumerate(zip(data, parsed, strict=False)):
            _check_kinds(value, field, source, (*loc, str(number)))
    elif isinstance(parsed, int | float) and _kind_of(data) != _kind_of(parsed):
        raise InputError(
            f"{source}: {'.'.join(loc)}: must be a {_kind_of(parsed)}, got the "
            f"{_kind_of(data)} {visible(repr(data), 100)}"
        )


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "truth value"
    # A date, in quotes or not, is kept as its number of days.
    date = isinstance(value, datetime.date) or (isinstance(value, str) and _DATE.fullmatch(value))
    return "number" if date or isinstance(value, int | float) else "text"


def _findings(model: type[BaseModel], data: Any, error: ValidationError) -> str:
    """Return the broken rules in one line; a misspelt key is not also reported as missing."""
    findings = error.errors(include_url=False)
    lines, misspelt = [], set()
    for finding in findings:
        if finding["type"] == "extra_forbidden":
            loc = finding["loc"]
            names, names_of_others = _keys(model, loc[:-1])
            matches = get_close_matches(str(loc[-1]), names, n=1)
            if loc[-1] in names_of_others:
                hint = f"backend {loc[-2]!r} does not have it; remove it"
            elif matches:
                misspelt.add((*loc[:-1], matches[0]))
                hint = f"did you mean {matches[0]!r}?"
            else:
                listed = f"; known: {', '.join(names)}" if len(loc) == 1 else ""
                hint = f"remove it or correct its spelling{listed}"
            lines.append(f"{_location(data, loc)}: unknown key; {hint}")
    for finding in findings:
        loc, kind = finding["loc"], finding["type"]
        if kind in ("extra_forbidden", "default_factory_not_called") or loc in misspelt:
            continue
        # A list whose bad items were removed may be too short, which is no fault of its own.
        nested = (item for item in findings if item["loc"][: len(loc)] == loc)
        if kind == "too_short" and any(len(item["loc"]) > len(loc) for item in nested):
            continue
        rule = visible(finding["msg"].removeprefix("Value error, "))
        if kind == "too_short":
            rule = "needs at least {min_length}, got {actual_length}".format(**finding["ctx"])
        if not isinstance(finding["input"], dict | list | BaseModel) and kind not in (
            "missing",
            "value_error",
        ):
            rule += f", got {visible(repr(finding['input']), 100)}"
        lines.append(f"{_location(data, loc)}: {rule}")
    more = f" (and {len(lines) - _MAX_FINDINGS} more)" if len(lines) > _MAX_FINDINGS else ""
    return "; ".join(lines[:_MAX_FINDINGS]) + more


def _location(data: Any, loc: tuple[int | str, ...]) -> str:
    """Return a key's place in the file, without the tags of kinds that pydantic adds."""
    parts: list[str] = []
    for number, part in enumerate(loc):
        is_tag = number and isinstance(loc[number - 1], int) and isinstance(data, dict)
        if is_tag and part in (data.get("backend"), "plug-in") and part not in data:
            parts += ["backend"] if part == loc[-1] else []
            continue
        parts.append(str(part))
        has_part = isinstance(data, dict) or (isinstance(data, list | tuple) and part != loc[-1])
        data = data.get(part) if isinstance(data, dict) else data[part] if has_part else None
    return visible(".".join(parts), 200) or "(top level)"


def _keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], set[str]]:
    """Return the keys that a place of the file may have, and those that other backends have."""
    models, others = [model], list[type[BaseModel]]()
    for part in loc:
        fields = [kind.model_fields[part] for kind in models if part in kind.model_fields]
        if fields:
            inner = [inner for field in fields for inner in _models(field.annotation)]
            models, others = inner or models, []
        elif isinstance(part, str):  # the tag of one of several kinds
            tagged = [kind for kind in models if _has_tag(kind, part)]
            models, others = (tagged, models) if tagged else (models, [])
    names = dict.fromkeys(name for kind in models for name in kind.model_fields)
    return list(names), {name for kind in others for name in kind.model_fields} - set(names)


def _has_tag(model: type[BaseModel], tag: str) -> bool:
    return any(tag in get_args(field.annotation) for field in model.model_fields.values())


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models within a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+(%\w+)?")
_SECRETS = ("password", "sslpassword")


def http_address(address: str) -> str:
    """Return the address of an HTTP server after checking it.

    Raises:
        ValueError: it is no such address, or may hold a secret; the message does not repeat it.

    Examples:
        >>> http_address("http://localhost:8000/v1")
        'http://localhost:8000/v1'
        >>> http_address("localhost:8000/v1")
        Traceback (most recent call last):
        ...
        ValueError: must be an address http://HOST:PORT/PATH or https://HOST/PATH
    """
    parts = _split_address(address)
    host = "" if parts is None else parts.hostname or ""
    try:
        host = host if ":" in host else host.encode("idna").decode("ascii")
    except ValueError:
        host = ""
    if parts is None or parts.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise ValueError("must be an address http://HOST:PORT/PATH or https://HOST/PATH")
    if "@" in parts.netloc:
        raise ValueError(
            "contains a user name or password, which would be stored in the run folder; put the "
            "key in an environment variable and name the variable in api_key_env"
        )
    if parts.query or parts.fragment or address.endswith(("?", "#")):
        raise ValueError(
            "contains a query or a fragment, which is not sent but would be stored in the run "
            "folder; put a key in an environment variable and name the variable in api_key_env"
        )
    return address


def database_address(address: str) -> str:
    """Return the address of a PostgreSQL database after checking it.

    Raises:
        ValueError: it is no such address, or holds a password; the message does not repeat it.

    Examples:
        >>> database_address("postgresql://me@host.example/elicit")
        'postgresql://me@host.example/elicit'
    """
    parts = _split_address(address)
    if parts is None:
        raise ValueError("must be an address postgresql://USER@HOST:PORT/DATABASE")
    if parts.scheme != "postgresql":
        raise ValueError(
            "must start with postgresql://; leave it out to use a file in the run folder"
        )
    if parts.password is not None or any(name in parse_qs(parts.query) for name in _SECRETS):
        raise ValueError(
            "contains a password, which would be stored in the run folder; set PGPASSWORD instead"
        )
    return address


HttpAddress = Annotated[str, AfterValidator(http_address)]
DatabaseAddress = Annotated[str, AfterValidator(database_address)]


def _split_address(address: str) -> SplitResult | None:
    """Return the parts of an address; None if it is invalid."""
    if not address.isprintable() or " " in address:
        return None
    try:
        parts = urlsplit(address)
        return None if parts.port == 0 else parts
    except ValueError:
        return None
