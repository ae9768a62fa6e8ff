"""Python packages: modules that are imported at first use, and installed versions."""

from __future__ import annotations

import platform
from functools import cache
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

_SHOWN = ("llm-elicit", "torch", "numpy", "scipy", "pandas", "anthropic", "openai", "xllamacpp")


class LazyModule:
    """A module that is imported when one of its attributes is first read.

    `llm-elicit --help` and most commands need neither PyTorch nor the providers' SDKs.
    `importlib.util.LazyLoader` would put an unloaded module into `sys.modules`, where libraries
    that look for PyTorch or pandas find it and load it. Type checkers see the module itself, from
    an import under `TYPE_CHECKING`.

    Args:
        name: the module's full name.

    Examples:
        >>> statistics = LazyModule("statistics")
        >>> statistics.mean([1.0, 2.0])
        1.5
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


if TYPE_CHECKING:
    import pandas as pd
else:  # a process that only asks questions does without
    pd = LazyModule("pandas")

__all__ = ["LazyModule", "installed_versions", "package_version", "pd"]


def package_version() -> str:
    """Return this package's version, or "unknown" if it is not installed."""
    try:
        return metadata.version("llm-elicit")
    except metadata.PackageNotFoundError:
        return "unknown"


@cache  # packages do not change while a process runs, and each takes milliseconds to look up
def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect results.

    Examples:
        >>> sorted(installed_versions())[0]
        'Python'
    """
    versions = {"Python": platform.python_version()}
    for name in _SHOWN:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
