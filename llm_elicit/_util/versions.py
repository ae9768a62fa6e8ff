"""Versions of this package and its dependencies, for reports and for finding stale results."""

from __future__ import annotations

import platform
from importlib import metadata

_SHOWN = ("llm-elicit", "torch", "numpy", "scipy", "pandas", "anthropic", "openai", "xllamacpp")


def package_version() -> str:
    """Return this package's version, or "unknown" if it is not installed."""
    return installed_versions().get("llm-elicit", "unknown")


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect results.

    Example:
        >>> sorted(installed_versions())[0]
        'Python'
    """
    found = {"Python": platform.python_version()}
    for name in _SHOWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
