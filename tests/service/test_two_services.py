"""Two services work on one campaign, or one takes over the campaigns of the other."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from orchestrator.postgres import server

from llm_elicit.testing.provider import Provider, Says
from tests.service.serving import serving, start
from tests.service.test_campaigns import read_events, slow, wait_for

QUESTIONS = 240


def test_two_services_share_a_campaign_and_follow_one_pause(tmp_path: Path) -> None:
    with server() as journal, Provider(lambda _n, _b: Says("A", delay=0.1)) as provider:
        judge = {"backend": "openai", "base_url": f"{provider.url}/v1", "api_key_env": None}
        free = {"input": 0, "output": 0}
        settings = {"judges": [judge | {"price": free}], "bounds": {"max_cost": 5}}
        campaign = {
            "name": "shared", "space": "penguins", "design": {"pairs": QUESTIONS // 2},
            "judges": [judge | {"name": "gpt", "model": "m", "concurrency": 4, "logprobs": False}],
            "limits": {"max_cost": 5},
        }  # fmt: skip
        with (
            serving(tmp_path / "a", "--journal", journal, settings=settings) as one,
            serving(tmp_path / "b", "--journal", journal, settings=settings) as other,
            one.client() as here,
            other.client() as there,
        ):
            for client in (here, there):
                made = client.post("/api/campaigns", json=campaign)
                assert made.status_code == 201, made.text
            _until(lambda: len(provider.seen) > 40)
            assert here.post("/api/campaigns/shared/pause?wait=20").is_success
            _until(lambda: there.get("/api/campaigns/shared").json()["state"] == "paused")
            seen = len(provider.seen)
            time.sleep(0.5)
            assert len(provider.seen) == seen < QUESTIONS
            assert there.post("/api/campaigns/shared/resume").is_success
            _until(lambda: sum(one.answered for one in provider.seen) >= QUESTIONS)
            for client in (here, there):
                client.post("/api/campaigns/shared/cancel?wait=20")
    assert len(provider.seen) == QUESTIONS


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_service_takes_over_the_runs_of_one_that_was_killed(
    tmp_path: Path, database: str
) -> None:
    """While it serves: nothing is lost, nothing is asked twice, and what waited still waits."""
    with ExitStack() as stack:
        shared = database == "postgresql"
        options = ["--journal", stack.enter_context(server())] if shared else []
        one = start(tmp_path, *options)
        stack.callback(one.stop, signal.SIGKILL)
        other = stack.enter_context(serving(tmp_path, *options))
        here, there = (stack.enter_context(each.client()) for each in (one, other))
        here.post("/api/campaigns", json=slow("asks"))
        here.post("/api/campaigns?start=false", json=slow("waits"))
        wait_for(here, "asks", lambda now: now["judges"]["expert"]["done"] > 5)
        wait_for(there, "waits", lambda now: now["state"] == "paused")
        one.stop(signal.SIGKILL)
        killed = time.monotonic()
        done = there.get("/api/campaigns/asks").json()["judges"]["expert"]["done"]
        wait_for(there, "asks", lambda now: now["state"] == "interrupted")
        wait_for(there, "asks", lambda now: now["judges"]["expert"]["done"] > done + 5)
        assert time.monotonic() - killed < 40.0  # six seconds until it counts as dead
        wait_for(there, "waits", lambda now: now["state"] == "paused")
        assert there.get("/api/campaigns/waits").json()["judges"]["expert"]["done"] == 0
        assert there.post("/api/campaigns/asks/pause?wait=20").json()["state"] == "paused"
        assert "llm_elicit_campaigns{" in there.get("/metrics").text
        events = read_events(there, "asks", {"last-event-id": "0"}, until="paused")
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        for name in ("asks", "waits"):
            there.post(f"/api/campaigns/{name}/cancel?wait=20")


def _until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.05)
