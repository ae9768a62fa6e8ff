"""Words of the project's own are gone: code, messages and documents use standard terms.

DESIGN.md has the standard term for each. A word counts only where it is used in the private sense,
so patterns leave ordinary English alone: the stages of the pipeline, a line of a file, a text.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

WORDS = {
    # roles in the orchestrator
    r"\b(?:[Cc]lerk|[Dd]esk|[Ee]rrand|[Tt]urnstile|[Pp]urse)s?\b": "RequestBuilder, ...",
    r"\b(?:class|import|import .*)\s(?:Exchange|Pool|Line|Place|Company)\b": "RequestQueue, ...",
    r"\b[Dd]oors?\b": "interface",
    r"\bcompany\b": "rate sharing",
    r"\b[Dd]roughts?\b": "stall timeout",
    # the density core
    r"\b_?[Bb]umps?\b|\b_?[Bb]umpy\b": "mixture component",
    r"\b\w*_?[Ss]pik(?:ed|es?|y)\b": "factor component",
    r"\b_?[Cc]limb(?:s|ed|ing|er)?\b": "Fisher scoring",
    r"\b_?[Kk]ick(?:s|ed|ing)?\b": "leapfrog step",
    r"(?<!random )(?<!random-)\b_?[Ww]alk(?:s|ed|ers?)?\b": "HMC",
    r"\b_?(?:weakened|freed)\b": "prior scale, correlation prior",
    r"\bjudged[_ ]rows\b": "validation rows",
    r"\b_?[Qq]uarrel\w*": "disagreements",
    r"\bpoison\w*": "set aside",
    # predictions and what a fit is given
    r"(?i)\b\w*foret[eo]l\w*": "predict, predictive check",
    r"\b(?:un)?told\b(?! apart)": "given, assumed, known",
    r"(?i)\breci(?:tal|te|ted|ter|tes|ting)\b": "row completion",
    r"(?i)\bby[ _]heart\b": "memorized",
    r"(?i)\bcoins?\b": "random choices",
    # wordings
    r"(?i)where it did not choose": "non-responses",
    r"(?i)what more pairs would buy": "effect of more pairs",
    r"(?i)lost without it": "drop when removed",
    r"(?i)\bp, corrected": "Holm-adjusted p",
    r"(?i)\bhang together\b": "correlations",
    r"(?i)\bbelief less(?: the)? data\b": "belief minus data",
    r"(?i)\b(?:is|are|was|be) had\b": "is present, is available",
    r"(?i)\banswers leave open\b": "posterior uncertainty",
    r"(?i)\bspend no more\b": "cap on total USD",
    r"(?i)\bnobody knows\b": "unknown",
    r"(?i)\b(?:whoever|whomever|whatsoever)\b": "a plain sentence",
    r"(?i)\b(?:is|was|were|are) begun with\b": "starts with",
}

SUFFIXES = {".py", ".md", ".yaml", ".toml", ".jinja", ".css", ".js"}
FOLDERS = ("llm_elicit", "benchmarks", "docs", "prompts", "datasets", "examples", "tests")
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml", "Makefile")


@cache
def texts() -> list[Path]:
    """Every text of the project, but for this one."""
    found = [path for name in FILES if (path := ROOT / name).is_file()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    left_out = {"__pycache__", "_data"}
    return sorted(p for p in found if not left_out & set(p.parts) and p != Path(__file__))


def faults(path: Path) -> list[str]:
    """The lines of a file that use such words, and what they could say."""
    name, text, found = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"), []
    # Most files have none: to search all of a file takes less than to search its lines.
    used = {word: better for word, better in WORDS.items() if re.search(word, text)}
    for number, line in enumerate(text.splitlines() if used else (), start=1):
        for word, better in used.items():
            match = re.search(word, line)
            if match is not None:
                found.append(f"{name}:{number}: {match[0]!r}; say {better}")
    return found


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_standard_terms_are_used(folder: str) -> None:
    found = []
    for path in texts():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(f"{folder}/" if folder else FILES):
            found += faults(path)
            found += [f"{name}: the file's name" for word in WORDS if re.search(word, path.stem)]
    assert not found, "\n".join(found)


# Names of what was done to a value, or that there is one.
VAGUE = {
    "found", "one", "each", "kept", "shown", "said", "given", "told", "taken", "seen", "put", "got",
    "came", "made", "left", "rest", "other", "both", "thing", "things", "what", "which", "where",
    "here", "there", "so", "now", "then", "it", "that", "this", "these", "those", "begun", "ended",
    "done_so_far", "known", "wanted", "asked", "meant", "tried",
}  # fmt: skip


@pytest.fixture(scope="module")
def nodes() -> dict[Path, list[ast.AST]]:
    """Return all nodes of the syntax tree of every module of the package."""
    return {
        path: list(ast.walk(ast.parse(path.read_text("utf-8"))))
        for path in sorted((ROOT / "llm_elicit").rglob("*.py"))
    }


def names(module_nodes: list[ast.AST]) -> list[str]:
    """Return the names of the variables and parameters of a module."""
    variables = [
        node.id
        for node in module_nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return variables + [node.arg for node in module_nodes if isinstance(node, ast.arg)]


def test_names_say_what_values_are(nodes: dict[Path, list[ast.AST]]) -> None:
    """Of 1,000 variables and parameters at most ten are called by a word that says nothing."""
    vague: Counter[str] = Counter()
    total = 0
    for path, module_nodes in nodes.items():
        of_module = names(module_nodes)
        total += len(of_module)
        vague[path.name] += sum(name.strip("_") in VAGUE for name in of_module)
    assert total > 10_000
    assert 1000 * vague.total() <= 10 * total, vague.most_common(10)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of a function's parameters, but for self and cls."""
    args = node.args
    nodes = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {arg.arg for arg in nodes if arg is not None} - {"self", "cls"}


def fields(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Return what a class has: fields, methods, attributes of self, and those of its bases."""
    members: set[str] = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Name | ast.Attribute) and isinstance(item.ctx, ast.Store):
            members.add(item.id if isinstance(item, ast.Name) else item.attr)
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            members |= {item.name, *(parameters(item) if item.name == "__init__" else ())}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            members |= fields(classes[base.id], classes)
    return members


def documented(node: ast.AST, section: str) -> set[str]:
    """Return the names that a section of a docstring describes."""
    text = ast.get_docstring(node) or ""  # type: ignore[arg-type]
    body = re.search(rf"^{section}:\n((?:    .*(?:\n|$)|\n)+)", text, re.M)
    entries = re.findall(r"^    (\S[^:(]*)(?: \([^)]*\))?:(?: |$)", body[1] if body else "", re.M)
    return {name.strip("*` ") for entry in entries for name in entry.split(",")}


def test_docstrings_describe_the_arguments_that_there_are(
    nodes: dict[Path, list[ast.AST]],
) -> None:
    """No section describes a name that does not exist; a public function's leaves none out."""
    located = [(path, node) for path, module_nodes in nodes.items() for node in module_nodes]
    classes = {node.name: node for _, node in located if isinstance(node, ast.ClassDef)}
    faulty = []
    for path, node in located:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names, expected = documented(node, "Args"), parameters(node)
            missing = expected - names if names and not node.name.startswith("_") else set()
        elif isinstance(node, ast.ClassDef):
            names, missing = documented(node, "Args") | documented(node, "Attributes"), set()
            expected = fields(node, classes) if names else names
        else:
            continue
        if names - expected or missing:
            faulty.append(
                f"{path.name}:{node.lineno} {names - expected} do not exist, {missing} are missing"
            )
    assert not faulty, "\n".join(faulty)
