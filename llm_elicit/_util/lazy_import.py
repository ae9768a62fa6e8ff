"""Modules that are imported when they are first used: `--help` waits for no SDK and no PyTorch."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module, and imports it when something of it is first asked for.

    Type checkers are shown the module itself, by an import under `TYPE_CHECKING`.

    Args:
        name: the module's full name.

    Example:
        >>> statistics = Later("statistics")
        >>> statistics.mean([1.0, 2.0])
        1.5
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
