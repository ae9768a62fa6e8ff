"""What every file of settings passes: YAML, strict models, one line where a rule is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from llm_elicit.errors import InputError
from llm_elicit.text import visible

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """A frozen model that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping.

    Raises:
        InputError: the file cannot be read, is not YAML, or is not a mapping.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except RecursionError:
        raise InputError(f"{path}: not valid YAML: nested too deep") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        # The parser lets dates and numbers that are none through to Python's own errors.
        line = visible(" ".join(str(error).split()), 300)
        raise InputError(f"{path}: not valid YAML: {line}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: a mapping of keys is expected, got {type(data).__name__}")
    return data


def validated(model: type[Model], data: dict[str, Any], where: str) -> Model:
    """`data` as `model`, with pydantic's findings folded into one line.

    Raises:
        InputError: the first broken rule, with its key and value, and how many more there are.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        findings = error.errors(include_url=False)
        first = findings[0]
        key = visible(".".join(str(part) for part in first["loc"]), 200) or "(top level)"
        if first["type"] == "extra_forbidden":
            rule = f"unknown key; remove it or correct its spelling{_known(model, first['loc'])}"
        else:
            rule = visible(first["msg"].removeprefix("Value error, "))
            if not isinstance(first["input"], dict | list | BaseModel) and first["type"] not in (
                "missing",
                "value_error",
            ):
                rule += f", got {visible(repr(first['input']), 100)}"
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise InputError(f"{where}: {key}: {rule}{more}") from None


def _known(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """The keys known at the top level, where that is where the unknown one stands."""
    return f"; known: {', '.join(model.model_fields)}" if len(loc) == 1 else ""
