"""Packages with backends, really installed: into a folder of their own, found by entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "backend"

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{package}"
version = "1.0"
[project.entry-points."llm_elicit.backends"]
{name} = "{module}:{attribute}"
[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]
"""


def install(source: Path, target: Path) -> Path:
    """Install a package's source by pip, from this disk alone; returns `target`."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(target), "."]
    subprocess.run(command, cwd=source, check=True)
    return target


def write(folder: Path, name: str, code: str, attribute: str = "Mine", module: str = "") -> Path:
    """The source of a package with one module, whose backend is called `name`."""
    module = module or f"module_{name}"
    folder.mkdir(parents=True)
    package = f"p-{module}".replace("_", "-")
    text = PROJECT.format(package=package, name=name, module=module, attribute=attribute)
    (folder / "pyproject.toml").write_text(text)
    (folder / f"{module}.py").write_text(code)
    return folder
