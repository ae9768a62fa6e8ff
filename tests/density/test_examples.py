"""The examples in the docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from llm_elicit import density

MODULES = [density.__name__] + [
    module.name for module in pkgutil.walk_packages(density.__path__, density.__name__ + ".")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
