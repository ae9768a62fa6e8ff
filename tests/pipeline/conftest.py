"""A provider whose answers take a while, for runs that are stopped meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llm_elicit.testing.provider import Answer, Provider

LATENCY = 0.05


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """A provider whose answers take `LATENCY` seconds, and a key for it."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with Provider(lambda _n, _body: Answer("A", delay=LATENCY)) as provider:
        yield provider
