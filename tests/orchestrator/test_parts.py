"""The orchestrator's parts by themselves: cache keys, failures, waits, migrations, display."""

import io
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from llm_elicit.backends.failures import read_failure
from llm_elicit.orchestrator.progress import Display, Tally
from llm_elicit.orchestrator.rate_limiter import retry_after
from llm_elicit.orchestrator.retries import Decision, RetryPolicy

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:35 GMT"}, 30.0),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Fri, 99 Jan 2026"}, None),
    ],
)
def test_how_long_a_response_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@given(st.text(max_size=40))
def test_no_header_can_break_the_reading(text: str) -> None:
    wait = retry_after({"retry-after": text, "retry-after-ms": text}, NOW)
    assert wait is None or wait >= 0


@given(st.integers(1, 2000), st.none() | st.floats(0, 1e9), st.integers(0, 2**32))
def test_no_wait_is_without_end(attempt: int, wait: float | None, seed: int) -> None:
    patience = RetryPolicy(base=0.5, longest=30, provider=120)
    decision = Decision("rate limited", "x", wait)
    pause = patience.pause(decision, attempt, random.Random(seed))
    assert 0 < pause <= 120.5
    if wait is not None:
        assert pause >= min(wait, 120)


def test_a_defect_is_not_taken_for_a_failure() -> None:
    assert read_failure(KeyError("x")) is None


def _shown(terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=160)
    with Display(console) as display:
        tally = Tally(total=100, done=0, cost=0.0)
        for done in range(0, 101, 2):
            tally.done, tally.prompt_tokens = done, 230 * done
            display.tally("claude", tally)
        display.tally("odd", Tally(total=3, done=1, failed=2, errors=7, cost=None))
        display.stage("claude: fit", "draws", 5, 10)
        display.note("claude", "a [bold]word[/bold]")
    return out.getvalue()


def test_lines_are_sparse_where_there_is_no_terminal() -> None:
    lines = _shown(terminal=False).splitlines()
    assert lines[0].startswith("claude: 0/100")
    assert lines[1].startswith("claude: 100/100")
    assert "23k tokens" in lines[1]
    assert "$0.0000" in lines[1]
    assert lines[2] == "odd: 1/3, 0.0/s, 7 errors, 2 failed, 0 tokens, price unknown"
    assert lines[3] == "claude: fit: sampling the beliefs that the answers allow, 5 of 10 done"
    assert lines[4] == "claude: a [bold]word[/bold]"
    assert len(lines) == 5


def test_a_terminal_shows_a_bar_a_judge() -> None:
    shown = _shown(terminal=True)
    assert "100/100" in shown
    assert "price unknown" in shown
    assert "a [bold]word[/bold]" in shown
