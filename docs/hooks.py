"""What MkDocs fills in: reference pages and the report's terms, made from the package itself.

A page says where with a comment, such as `<!-- commands -->`, alone on its line.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import griffe
from pydantic import BaseModel

from llm_elicit.cli.main import COMMANDS, load
from llm_elicit.config import campaign, design, judges
from llm_elicit.report.glossary import GLOSSARY
from llm_elicit.spaces import features


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the comments that name a generated part."""
    for name, part in PARTS.items():
        mark = f"<!-- {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, part())
    return markdown


def report_terms() -> str:
    """The definitions of a report's numbers, with their sources."""
    entries = []
    for entry in GLOSSARY.values():
        sources = "".join(f"\n\n*{reference}*" for reference in entry.references)
        entries.append(f"### {entry.term}\n\n{entry.definition}{sources}")
    return "\n\n".join(entries)


def commands() -> str:
    """Every command of the command line: its help, arguments and options."""
    names = [path.rpartition(".")[2] for path in COMMANDS]
    every = [part for name in names for part in _nested(load(name), f"llm-elicit {name}")]
    return "\n\n".join(_command(*each) for each in every)


def _nested(command: Any, name: str) -> Iterator[tuple[Any, str]]:
    nested = getattr(command, "commands", {})
    if not nested or command.invoke_without_command:
        yield command, name
    for key, each in nested.items():
        yield from _nested(each, f"{name} {key}")


def _command(command: Any, name: str) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = [each.metavar or each.name.upper() for each in arguments]
    usage = " ".join([name, *shown, *["[OPTIONS]"] * (len(command.params) > len(arguments))])
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    rows = []
    for each in command.params:
        if "--help" in each.opts:
            continue
        option = each.param_type_name == "option"
        shown = ", ".join(f"`{o}`" for o in each.opts + each.secondary_opts)
        shown = shown if option else f"`{each.metavar or each.name.upper()}`"
        default = each.default if option and not each.is_flag else None
        rows.append([shown, _code(default), _cell(each.help or "")])
    return "\n\n".join(filter(None, [f"## {name}", text, f"    {usage}", _table(
        ["argument or option", "default", "meaning"], rows
    )]))  # fmt: skip


def campaign_keys() -> str:
    """The keys of a campaign, model by model, as pydantic checks them."""
    return _keys(campaign.Campaign, design.Design, design.Direct, campaign.Limits, campaign.Fit,
                 campaign.Grid, judges.AnthropicJudge, judges.OpenAIJudge, judges.LocalJudge,
                 judges.SimulatedJudge, judges.HumanJudge, judges.PluginJudge)  # fmt: skip


def space_keys() -> str:
    """The keys of a feature space."""
    return _keys(features.FeatureSpace, features.Feature, features.Table)


def _keys(*models: type[BaseModel]) -> str:
    """A table for each model and for those nested in it."""
    shown: dict[str, str] = {}
    for model in models:
        schema = model.model_json_schema(ref_template="{model}")
        nested = {k: v for k, v in schema.pop("$defs", {}).items() if k not in _named(models)}
        nested = nested if model is not campaign.Campaign else {}
        for name, each in {model.__name__: schema, **nested}.items():
            if each.get("properties"):
                shown.setdefault(name, _model(name, each, model if each is schema else None))
    return "\n\n".join(shown.values())


def _named(models: tuple[type[BaseModel], ...]) -> set[str]:
    return {model.__name__ for model in models}


def _model(name: str, schema: dict[str, Any], model: type[BaseModel] | None) -> str:
    text, described = _docstring(schema.get("description", ""))
    for base in model.__mro__[1:] if model else ():
        described = _docstring(base.__doc__ or "")[1] | described
    required = schema.get("required", [])
    rows = [
        [
            f"`{key}`",
            _values(each),
            "required" if key in required else _code(each.get("default")),
            _cell(described.get(key, "")),
        ]
        for key, each in schema.get("properties", {}).items()
    ]
    heads = ["key", "values", "default", "meaning"]
    if not any(row[3] for row in rows):
        heads, rows = heads[:3], [row[:3] for row in rows]
    return f"### {name}\n\n{text}\n\n{_table(heads, rows)}"


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """The prose of a docstring, and what it says of each attribute."""
    sections = griffe.Docstring(inspect.cleandoc(text)).parse("google")
    prose = [each.value for each in sections if each.kind.value == "text"]
    described = {
        item.name: item.description
        for each in sections
        if each.kind.value in ("attributes", "parameters")
        for item in each.value
    }
    return "\n\n".join(prose), described


def _values(schema: dict[str, Any]) -> str:
    """The values that a key takes, in a few words."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = [_values(each) for each in schema[key] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        return f"[{schema['$ref']}](#{schema['$ref'].lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "")
    if kind == "array":
        return f"list of {_values(schema.get('items', {}))}".rstrip()
    words = {"string": "text", "boolean": "true or false", "object": "mapping"}
    return f"{words.get(kind, kind)}{_bounds(schema)}"


def _bounds(schema: dict[str, Any]) -> str:
    signs = {"exclusiveMinimum": "> ", "minimum": "≥ ", "exclusiveMaximum": "< ", "maximum": "≤ "}
    found = [f"{sign}{schema[key]:,}" for key, sign in signs.items() if key in schema]
    found = [each.replace(f"{2**63:,}", "2⁶³") for each in found]
    return f", {', '.join(found)}" if found else ""


def _code(value: Any) -> str:
    if value is None or value in ("", [], {}) or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(heads: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PARTS: dict[str, Callable[[], str]] = {
    "report terms": report_terms,
    "commands": commands,
    "campaign keys": campaign_keys,
    "space keys": space_keys,
}
