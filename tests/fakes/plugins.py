"""Packages with backends in a folder of their own, found by entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "backend"


def install(source: Path, target: Path) -> Path:
    """Install a package's source by pip, from this disk alone; returns `target`."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(target), "."]
    subprocess.run(command, cwd=source, check=True)
    return target


def place(site: Path, name: str, code: str, module: str = "") -> Path:
    """Write a package with one module, whose backend is called `name`, as pip would; its folder."""
    module = module or f"module_{name}"
    package = f"p-{module}".replace("_", "-")
    about = site / f"{package.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[llm_elicit.backends]\n{name} = {module}:Mine\n")
    (site / f"{module}.py").write_text(code)
    return site
