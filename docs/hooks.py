"""What MkDocs fills in: the version, reference pages and the report's terms, made from the package.

A page names a generated part by a comment, such as `<!-- commands -->`, alone on its line. Every
page is also written as Markdown beside its HTML, the Python reference included.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import griffe
from pydantic import BaseModel

from llm_elicit.cli.main import COMMANDS, load
from llm_elicit.config import campaign, design, judges
from llm_elicit.report.page import GLOSSARY
from llm_elicit.spaces import features

PYTHON = re.compile(r"^::: (\S+)\n((?: +\S.*\n)*)", re.M)
SKIPPED = re.compile(r"!\^\(([\w|]+)\)\$")  # the names that a page's filter leaves out
pages: dict[str, str] = {}


def on_config(config: Any) -> Any:
    """Show the version beside the name of the site."""
    config.site_name = f"llm_elicit {version('llm-elicit')}"
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the comments that name a generated part."""
    for name, part in PARTS.items():
        mark = f"<!-- {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, part())
    pages[page.file.src_uri] = markdown
    return markdown


def on_post_build(config: Any) -> None:
    """Write every page as Markdown."""
    package = griffe.load("llm_elicit", search_paths=["."], resolve_aliases=True)
    for name, markdown in pages.items():
        text = PYTHON.sub(lambda match: "\n\n".join(_python(package, match)) + "\n", markdown)
        Path(config.site_dir, name).write_text(text, encoding="utf-8")


def _python(package: Any, match: re.Match[str]) -> Iterator[str]:
    """What mkdocstrings shows at a `:::` line, as Markdown."""
    path = match[1].removeprefix("llm_elicit").lstrip(".")
    target = package[path] if path else package
    if target.kind is not griffe.Kind.MODULE:
        yield from _documented(target, 2)
        return
    yield from _docstring_parts(target)
    skipped = SKIPPED.search(match[2])
    left_out = set(skipped[1].split("|")) if skipped else set()
    members = target.exports or [n for n, member in target.members.items() if not member.is_alias]
    for name in map(str, members):
        member = target.members[name]
        if name not in left_out and not name.startswith("_") and member.has_docstring:
            yield from _documented(member, 2)


def _documented(target: Any, level: int) -> Iterator[str]:
    """A function or a class with its methods: heading, signature and docstring."""
    target = target.final_target if target.is_alias else target
    yield f"{'#' * level} {target.name}"
    if target.kind is griffe.Kind.FUNCTION:
        yield f"```python\n{target.signature(return_type=True)}\n```"
    yield from _docstring_parts(target)
    if target.kind is griffe.Kind.CLASS:
        for name, member in target.all_members.items():
            if not name.startswith("_") and member.has_docstring:
                yield from _documented(member, level + 1)


def _docstring_parts(target: Any) -> Iterator[str]:
    if target.docstring is None:
        return
    for section in target.docstring.parse("google", warnings=False):
        kind, value = section.kind.value, section.value
        if kind == "text":
            yield value
        elif kind == "admonition":
            yield f"**{value.annotation.capitalize()}.** {value.contents}"
        elif kind == "examples":
            parts = ((part.value, text) for part, text in value)
            yield from (f"```pycon\n{t}\n```" if p == "examples" else t for p, t in parts)
        else:
            entries = (
                f"- `{getattr(entry, 'name', '') or entry.annotation}`: {_cell(entry.description)}"
                for entry in value
            )
            yield f"**{kind.capitalize()}**\n\n" + "\n".join(entries)


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
    nested = [part for name in names for part in _nested(load(name), f"llm-elicit {name}")]
    return "\n\n".join(_command(command, name) for command, name in nested)


def _nested(command: Any, name: str) -> Iterator[tuple[Any, str]]:
    nested = getattr(command, "commands", {})
    if not nested or command.invoke_without_command:
        yield command, name
    for key, subcommand in nested.items():
        yield from _nested(subcommand, f"{name} {key}")


def _command(command: Any, name: str) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    metavars = [param.metavar or param.name.upper() for param in arguments]
    usage = " ".join([name, *metavars, *["[OPTIONS]"] * (len(command.params) > len(arguments))])
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    rows = []
    for param in command.params:
        if "--help" in param.opts:
            continue
        option = param.param_type_name == "option"
        spellings = ", ".join(f"`{o}`" for o in param.opts + param.secondary_opts)
        spellings = spellings if option else f"`{param.metavar or param.name.upper()}`"
        default = param.default if option and not param.is_flag else None
        rows.append([spellings, _code(default), _cell(param.help or "")])
    return "\n\n".join(filter(None, [f"## {name}", text, f"    {usage}", _table(
        ["argument or option", "default", "meaning"], rows
    )]))  # fmt: skip


def campaign_keys() -> str:
    """The keys of a campaign, model by model, as pydantic checks them."""
    return _keys(campaign.Campaign, design.Design, design.Direct, campaign.Limits, campaign.Fit,
                 campaign.Grid, campaign.RepeatOf, judges.AnthropicJudge, judges.OpenAIJudge,
                 judges.LocalJudge, judges.SimulatedJudge, judges.HumanJudge, judges.ImportedJudge,
                 judges.PluginJudge)  # fmt: skip


def space_keys() -> str:
    """The keys of a feature space."""
    return _keys(features.FeatureSpace, features.Feature, features.Table)


def _keys(*models: type[BaseModel]) -> str:
    """A table for each model and for those nested in it."""
    tables: dict[str, str] = {}
    for model in models:
        schema = model.model_json_schema(ref_template="{model}")
        nested = {k: v for k, v in schema.pop("$defs", {}).items() if k not in _named(models)}
        nested = nested if model is not campaign.Campaign else {}
        for name, keys in {model.__name__: schema, **nested}.items():
            if keys.get("properties"):
                tables.setdefault(name, _model(name, keys, model if keys is schema else None))
    return "\n\n".join(tables.values())


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
            _values(values),
            "required" if key in required else _code(values.get("default")),
            _cell(described.get(key, "")),
        ]
        for key, values in schema.get("properties", {}).items()
    ]
    heads = ["key", "values", "default", "meaning"]
    if not any(row[3] for row in rows):
        heads, rows = heads[:3], [row[:3] for row in rows]
    return f"### {name}\n\n{text}\n\n{_table(heads, rows)}"


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """The prose of a docstring, and what it says of each attribute."""
    sections = griffe.Docstring(inspect.cleandoc(text)).parse("google")
    prose = [section.value for section in sections if section.kind.value == "text"]
    described = {
        name: item.description
        for section in sections
        if section.kind.value in ("attributes", "parameters")
        for item in section.value
        for name in item.name.split(", ")
    }
    return "\n\n".join(prose), described


def _values(schema: dict[str, Any]) -> str:
    """The values that a key takes, in a few words."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = [_values(kind) for kind in schema[key] if kind.get("type") != "null"]
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
    bounds = [f"{sign}{schema[key]:,}" for key, sign in signs.items() if key in schema]
    bounds = [bound.replace(f"{2**63:,}", "2⁶³") for bound in bounds]
    return f", {', '.join(bounds)}" if bounds else ""


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
