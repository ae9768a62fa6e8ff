"""A cap that holds."""

from pathlib import Path
from typing import Any

import pytest

from llm_elicit.errors import CapError, InputError
from llm_elicit.orchestrator.judgments import status
from llm_elicit.testing.provider import Action, Answer, Error, Hangs, Provider, Sends
from orchestrator.conftest import EXPERT, claude, gpt
from orchestrator.running import campaign, run, table


def test_a_cap_with_an_unknown_price_is_refused(tmp_path: Path) -> None:
    study = campaign([gpt("http://127.0.0.1:9")], limits={"max_cost": 1.0})
    with pytest.raises(InputError, match=r"max_cost: no price is known .*'gpt'"):
        run(study, tmp_path / "try")


def test_the_cap_is_never_passed_and_what_was_paid_is_kept(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("A")) as provider:
        free = campaign([claude(provider.url, max_tokens=8)], pairs=30)
        whole = run(free, tmp_path / "whole").spent
        cap = whole / 2
        (tmp_path / "cache.sqlite").unlink()
        capped = campaign(
            [claude(provider.url, max_tokens=8), EXPERT], pairs=30, limits={"max_cost": cap}
        )
        summary = run(capped, tmp_path / "capped")
        assert 0 < summary.spent <= cap
        (problem,) = summary.problems
        assert isinstance(problem, CapError)
        assert "max_cost" in str(problem)
        assert summary.judges["expert"].complete
        kept = table(capped, tmp_path / "capped").of("claude")
        assert kept["cost"].sum() == pytest.approx(summary.spent)
        # Raising the cap goes on from there.
        more = campaign(
            [claude(provider.url, max_tokens=8), EXPERT], pairs=30, limits={"max_cost": 2 * whole}
        )
        again = run(more, tmp_path / "capped")
        assert again.complete
        assert again.spent == pytest.approx(whole)


def test_a_request_that_may_have_been_charged_counts(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        return Hangs() if number == 1 else Answer()

    with Provider(behave) as provider:
        study = campaign([claude(provider.url, timeout=0.3, concurrency=1)], pairs=4)
        summary = run(study, tmp_path / "try")
    paid = table(study, tmp_path / "try").frame["cost"].sum()
    line = status(tmp_path / "try", study)["claude"]
    assert line.lost > 0
    assert summary.spent == pytest.approx(paid + line.lost)


def test_a_rate_limit_that_speaks_of_billing_stops_nobody(tmp_path: Path) -> None:
    said = (
        "Rate limit reached for gpt-4o-mini in organization o on requests per min (RPM): Limit 3. "
        "Please try again in 1s. Visit https://platform.openai.com/account/billing to add a "
        "payment method."
    )

    def behave(number: int, body: dict[str, Any]) -> Action:
        return Error(429, said, "rate_limit_exceeded") if number == 2 else Answer()

    with Provider(behave) as provider:
        assert run(campaign([gpt(provider.url)], pairs=5), tmp_path / "try").complete


@pytest.mark.parametrize(
    ("make", "fails", "stop"),
    [
        (claude, Error(400, "Your credit balance is too low to access the API."), "credit balance"),
        (claude, Error(402, "Pay first."), "no credit left"),
        (gpt, Error(429, "You exceeded your quota", code="insufficient_quota"), "no credit left"),
        (gpt, Sends(b"", status=302, headers=(("location", "/v2"),)), "redirects are not followed"),
    ],
)
def test_what_no_waiting_mends_ends_with_one_line_soon(
    make: Any, fails: Action, stop: str, tmp_path: Path
) -> None:
    """From the start, and in the middle of a run."""
    for answered in (0, 8):
        with Provider(lambda n, body, a=answered: Answer() if n <= a else fails) as provider:
            study = campaign([make(provider.url, concurrency=2)], pairs=20)
            summary = run(study, tmp_path / f"try-{answered}")
            assert len(provider.seen) <= answered + 8
        (problem,) = summary.problems
        assert stop in str(problem)
        assert "\n" not in str(problem)
        (tmp_path / "cache.sqlite").unlink()
