"""The examples in the docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import llm_elicit

MODULES = [
    module.name
    for module in pkgutil.walk_packages(llm_elicit.__path__, "llm_elicit.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str, quick_fits: None) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_public_modules_have_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in MODULES]
    examples = sum(len(t.examples) for module in modules for t in finder.find(module))
    assert examples > 100
