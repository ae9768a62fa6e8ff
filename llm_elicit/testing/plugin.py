"""Fixtures: `pytest_plugins = ["llm_elicit.testing.plugin"]` in a conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from llm_elicit.testing.provider import Answer, Behaviour, Provider

Loopback = Callable[..., Provider]


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    """Starts loopback providers, which end with the test: `loopback(behave).url`."""
    with ExitStack() as stack:

        def start(behave: Behaviour = lambda _number, _body: Answer()) -> Provider:
            return stack.enter_context(Provider(behave))

        yield start
