"""The orchestrator's bars in a short form: what holds on any machine is asserted."""

from pathlib import Path

import pytest

from llm_elicit.benchmarks.asking.bars import run_client
from llm_elicit.benchmarks.asking.client import Job
from llm_elicit.benchmarks.asking.loopback import Loopback


# Each client is a process of its own, which takes its time where others work too.
@pytest.mark.timeout(600)
def test_a_campaign_beside_the_bare_sdk_and_then_from_the_cache(tmp_path: Path) -> None:
    with Loopback(0.05) as server:
        bare = run_client(Job("sdk", server.url, 400, 100))
        assert (bare.answered, server.seen()) == (400, (400, 400))
        first = run_client(Job("campaign", server.url, 400, 100, str(tmp_path / "a")))
        assert first.answered == 400
        # No less than the bare loop's 90 % is the bar of the full form, on a machine at rest.
        assert first.answered / first.seconds > 0.3 * bare.answered / bare.seconds
        sent = server.seen()[0]
        cached = run_client(Job("campaign", server.url, 400, 100, str(tmp_path / "b")))
        assert cached.answered == 400
        assert server.seen()[0] == sent == 800
        assert cached.seconds < first.seconds
