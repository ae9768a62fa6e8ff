"""The tutorials as notebooks: each `docs/tutorials/*.md` becomes an `.ipynb` beside it.

    python docs/notebooks.py

Python blocks become cells, a block of text after one its output, YAML a cell that writes the file
named in its first line, and commands a cell that runs them.
"""

import json
import re
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"
PLAIN = "%env FORCE_COLOR="
"""Jupyter has programs write as to a terminal, where the display redraws itself."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n?", re.S | re.M)


def notebook(markdown: str) -> dict[str, Any]:
    """Return the notebook of a tutorial, as the JSON of nbformat 4.5."""
    cells: list[dict[str, Any]] = []
    place, after_code = 0, False
    for block in _BLOCK.finditer(markdown):
        prose = markdown[place : block.start()].strip()
        language, text = block.groups()
        if prose:
            cells.append(_cell("markdown", prose))
        if language == "text" and after_code and not prose:
            output = {"name": "stdout", "output_type": "stream", "text": _lines(text)}
            cells[-1]["outputs"] = [output]
        elif language == "text":
            cells.append(_cell("markdown", block[0].strip()))
        else:
            cells.append(_cell("code", CODE[language](text)))
        after_code = language == "python"
        place = block.end()
    if rest := markdown[place:].strip():
        cells.append(_cell("markdown", rest))
    cells.insert(1, _cell("code", PLAIN))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _written(text: str) -> str:
    name, _, body = text.partition("\n")
    return f"%%writefile {name.removeprefix('# ')}\n{body}"


def _run(text: str) -> str:
    return f"%%bash -e\n{text}"  # `!` would give commands a terminal


CODE = {"python": str, "yaml": _written, "bash": _run}


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": _lines(text.strip("\n"))}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def written(notebook: dict[str, Any]) -> str:
    """Return the text of a notebook's file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for page in sorted(TUTORIALS.glob("*.md")):
        path = page.with_suffix(".ipynb")
        path.write_text(written(notebook(page.read_text(encoding="utf-8"))), encoding="utf-8")
