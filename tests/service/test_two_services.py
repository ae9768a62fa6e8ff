"""Two services work on one campaign, or one takes over the campaigns of the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from orchestrator.postgres import server

from llm_elicit.testing.provider import Answer, Provider
from tests.service.serving import is_in, serving, until
from tests.service.test_campaigns import takes_over

QUESTIONS = 240


@pytest.fixture(scope="module")
def journal() -> Iterator[str]:
    """The address of a database."""
    with server() as address:
        yield address


def test_two_services_share_a_campaign_and_follow_one_pause(journal: str, tmp_path: Path) -> None:
    pace = {"delay": 0.5}
    with Provider(lambda _n, _b: Answer("A", **pace)) as provider:
        judge = {"backend": "openai", "base_url": f"{provider.url}/v1", "api_key_env": None}
        free = {"input": 0, "output": 0}
        allowed = [judge | {"price": free}, {"backend": "human"}]
        settings = {"judges": allowed, "bounds": {"max_cost": 5}}
        campaign = {
            "name": "shared", "space": "penguins", "design": {"pairs": QUESTIONS // 2},
            "judges": [judge | {"name": "gpt", "model": "m", "concurrency": 4, "logprobs": False},
                       {"name": "late", "backend": "human"}],  # and nothing is fitted
            "limits": {"max_cost": 5},
        }  # fmt: skip
        with (
            serving(tmp_path / "a", "--journal", journal, settings=settings) as one,
            serving(tmp_path / "b", "--journal", journal, settings=settings) as other,
            one.api() as here,
            other.api() as there,
        ):
            runs = [client.start(campaign) for client in (here, there)]
            _until(lambda: len(provider.seen) > 24)
            assert runs[0].pause().state == "paused"
            until(runs[1], is_in("paused"))
            _until(lambda: all(one.answered for one in provider.seen))
            seen = len(provider.seen)
            time.sleep(0.5)
            assert len(provider.seen) == seen < QUESTIONS
            pace["delay"] = 0.05
            runs[1].resume()
            _until(lambda: sum(one.answered for one in provider.seen) >= QUESTIONS)
            for run in runs:
                run.cancel()
    assert len(provider.seen) == QUESTIONS


def test_a_service_takes_over_the_runs_of_one_that_was_killed(journal: str, tmp_path: Path) -> None:
    """Over a common database; `test_campaigns` has the same without one."""
    with serving(tmp_path, "--journal", journal) as other:
        takes_over(other, "--journal", journal)


def _until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.05)
