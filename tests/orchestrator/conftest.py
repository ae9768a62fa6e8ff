from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.retries import RetryPolicy
from orchestrator.postgres import server

KEY = "sk-canary-0123456789"
SWIFT = RetryPolicy(base=0.01, longest=0.05, provider=0.5)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server, or a skip with the reason."""
    with server() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> JournalLocation:
    """A location for a journal, in either database."""
    if request.param == "sqlite":
        return JournalLocation(tmp_path)
    return JournalLocation(tmp_path, request.getfixturevalue("postgres"))


def claude(url: str, **settings: Any) -> dict[str, Any]:
    return {
        "name": "claude",
        "backend": "anthropic",
        "model": "claude-haiku-4-5",
        "base_url": url,
        **settings,
    }


def gpt(url: str, **settings: Any) -> dict[str, Any]:
    return {
        "name": "gpt",
        "backend": "openai",
        "model": "gpt-4o-mini",
        "base_url": f"{url}/v1",
        **settings,
    }


EXPERT = {"name": "expert", "backend": "simulated"}
