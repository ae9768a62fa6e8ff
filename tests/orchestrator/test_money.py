"""Prices, estimates and a cap that holds."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.provider import Action, Hangs, Provider, Says
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_elicit.errors import InputError, JudgeError
from llm_elicit.orchestrator import estimate, prompts, status
from llm_elicit.orchestrator.budget import Budget, Price, price_of, worst_case
from llm_elicit.questions import Template
from orchestrator.conftest import EXPERT, claude, gpt
from orchestrator.running import campaign, plan_of, run, table


def test_prices_are_known_for_hosted_models_and_none_is_paid_here() -> None:
    study = campaign([claude("http://127.0.0.1:9"), gpt("http://127.0.0.1:9"), EXPERT])
    claude_, gpt_, expert = (price_of(judge) for judge in study.judges)
    assert claude_ is not None
    assert claude_.cost(1_000_000, 0) == pytest.approx(1.0)
    assert claude_.cost(1_000_000, 0, cached=1_000_000) == pytest.approx(0.1)
    assert gpt_ is None, "a server of one's own has no known price"
    assert expert is not None
    assert expert.cost(10**9, 10**9) == 0.0


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
        assert isinstance(problem, JudgeError)
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


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.1, 10),
    st.lists(st.tuples(st.floats(0.001, 1), st.floats(0, 1)), min_size=1, max_size=30),
)
def test_spending_stays_under_any_cap(cap: float, requests: list[tuple[float, float]]) -> None:
    async def go() -> tuple[float, int]:
        budget = Budget(cap, 0.0)
        refused = 0

        async def one(worst: float, share: float) -> None:
            nonlocal refused
            try:
                await budget.reserve(worst)
            except JudgeError:
                refused += 1
                return
            await asyncio.sleep(0)
            await budget.settle(worst, worst * share)

        await asyncio.gather(*(one(worst, share) for worst, share in requests))
        return budget.spent, refused

    spent, refused = asyncio.run(go())
    assert spent <= cap * (1 + 1e-9)
    if sum(worst for worst, _ in requests) <= cap:
        assert refused == 0


def test_the_worst_case_is_above_what_is_paid(tmp_path: Path) -> None:
    with Provider() as provider:
        study = campaign([claude(provider.url)], pairs=5)
        run(study, tmp_path / "try")
    frame = table(study, tmp_path / "try").frame
    price = price_of(study.judges[0])
    space, plan = study.load_space(), plan_of(study)
    for prompt, cost in zip(
        prompts(space, plan, Template.load("v1/zero-shot"), 10), frame["cost"], strict=True
    ):
        size = sum(len(m.content.encode()) for m in prompt.messages)
        assert worst_case(price, size, len(prompt.messages), 2048) > cost > 0


def test_an_estimate_needs_no_key_and_comes_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Provider() as provider:
        study = campaign([claude(provider.url), gpt(provider.url), EXPERT], pairs=20)
        run(study, tmp_path / "try")
        frame = table(study, tmp_path / "try").frame
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        monkeypatch.delenv("OPENAI_API_KEY")
        claude_, gpt_, expert = estimate(study, study.load_space(), plan_of(study))
    assert (claude_.requests, gpt_.requests, expert.requests) == (40, 40, 40)
    assert (gpt_.cost, gpt_.most, expert.cost) == (None, None, 0.0)
    paid = frame[frame["judge"] == "claude"]
    assert claude_.prompt_tokens == pytest.approx(paid["prompt_tokens"].sum(), rel=0.5)
    assert claude_.cost is not None
    assert claude_.most is not None
    assert claude_.cost == pytest.approx(paid["cost"].sum(), rel=0.5)
    assert claude_.most > claude_.cost


def test_a_price_without_a_model_is_free() -> None:
    assert Price().cost(10**6, 10**6) == 0.0
