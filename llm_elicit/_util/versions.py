"""What a result was made with: versions, for the report and for deciding what is stale."""

from __future__ import annotations

import platform
from importlib import metadata

_SHOWN = ("llm-elicit", "torch", "numpy", "scipy", "pandas", "anthropic", "openai", "xllamacpp")


def package_version() -> str:
    """This package's version, or "unknown" from a bare checkout."""
    return installed_versions().get("llm-elicit", "unknown")


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that shape a number, those that are installed.

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
