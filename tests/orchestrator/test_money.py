"""A cap that holds."""

from pathlib import Path
from typing import Any

import pytest
from fakes.provider import Action, Hangs, Provider, Says

from llm_elicit.errors import CapError, InputError
from llm_elicit.orchestrator import status
from orchestrator.conftest import EXPERT, claude, gpt
from orchestrator.running import campaign, run, table


def test_a_cap_with_an_unknown_price_is_refused(tmp_path: Path) -> None:
    study = campaign([gpt("http://127.0.0.1:9")], limits={"max_cost": 1.0})
    with pytest.raises(InputError, match=r"max_cost: no price is known .*'gpt'"):
        run(study, tmp_path / "try")


def test_the_cap_is_never_passed_and_what_was_paid_is_kept(tmp_path: Path) -> None:
    with Provider(lambda n, body: Says("A")) as provider:
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
        return Hangs() if number == 1 else Says()

    with Provider(behave) as provider:
        study = campaign([claude(provider.url, timeout=0.3, concurrency=1)], pairs=4)
        summary = run(study, tmp_path / "try")
    paid = table(study, tmp_path / "try").frame["cost"].sum()
    line = status(tmp_path / "try", study)["claude"]
    assert line.lost > 0
    assert summary.spent == pytest.approx(paid + line.lost)
