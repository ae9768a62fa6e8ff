"""Modules that are imported at first use, so that `--help` waits for no SDK and no PyTorch."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when one of its attributes is first read.

    `importlib.util.LazyLoader` would put an unloaded module into `sys.modules`, where libraries
    that look for PyTorch or pandas find it and load it. Type checkers see the module itself, from
    an import under `TYPE_CHECKING`.

    Args:
        name: the module's full name.

    Example:
        >>> statistics = LazyModule("statistics")
        >>> statistics.mean([1.0, 2.0])
        1.5
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
