"""Prices, token counts and estimates: known before anything is sent."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.config.campaign import identity_of
from llm_elicit.config.judges import AnthropicJudge, OpenAIJudge
from llm_elicit.orchestrator.budget import (
    Price,
    cached_prefix_tokens,
    counter,
    max_prompt_tokens,
    price_of,
)
from llm_elicit.orchestrator.estimates import estimate
from llm_elicit.orchestrator.judgments import AnswerTokens, MeasuredTokens
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Message, Prompt, Template
from llm_elicit.testing.provider import Provider
from orchestrator.conftest import EXPERT, claude, gpt
from orchestrator.running import campaign, plan_of, run, table

LISTED = [
    (provider.id, model.id)
    for provider in get_snapshot().providers
    if provider.id in ("anthropic", "openai")
    for model in provider.models
    if not model.id.startswith("ft:")
]


def _judge(provider: str, model: str) -> AnthropicJudge | OpenAIJudge:
    kind = AnthropicJudge if provider == "anthropic" else OpenAIJudge
    return kind(name="j", backend=provider, model=model)


def test_prices_are_known_for_hosted_models_and_none_is_paid_here() -> None:
    study = campaign([claude("http://127.0.0.1:9"), gpt("http://127.0.0.1:9"), EXPERT])
    claude_, gpt_, expert = (price_of(judge) for judge in study.judges)
    assert claude_ is not None
    assert claude_.cost(1_000_000, 0) == pytest.approx(1.0)
    assert claude_.cost(1_000_000, 0, cached=1_000_000) == pytest.approx(0.1)
    assert gpt_ is None, "a server of one's own has no known price"
    assert expert is not None
    assert expert.cost(10**9, 10**9) == 0.0


@given(
    st.sampled_from(LISTED),
    st.integers(0, 400_000),
    st.integers(0, 100_000),
    st.floats(0, 1),
    st.booleans(),
)
def test_a_price_is_the_list_s_own(
    model: tuple[str, str], prompt: int, completion: int, share: float, batch: bool
) -> None:
    """Looked up once, it gives what the list gives for each request, tiers included."""
    provider, name = model
    cached = int(prompt * share)
    usage = Usage(input_tokens=prompt, output_tokens=completion, cache_read_tokens=cached)
    context = {"processing": "batch"} if batch else None
    listed = calc_price(usage, name, provider_id=provider, price_context=context).total_price
    price = price_of(_judge(provider, name), batch)
    assert price is not None
    assert price.cost(prompt, completion, cached) == pytest.approx(float(listed), abs=1e-12)
    if price.tiers[0].cached <= price.tiers[0].input:
        assert price.max_cost(prompt, completion) >= price.cost(prompt, completion, cached) - 1e-12


def test_a_batch_costs_half() -> None:
    for provider, model in (("anthropic", "claude-haiku-4-5"), ("openai", "gpt-4.1-mini")):
        judge = _judge(provider, model)
        plain, batch = price_of(judge), price_of(judge, batch=True)
        assert plain is not None
        assert batch is not None
        assert batch.cost(10_000, 500) == pytest.approx(plain.cost(10_000, 500) / 2)


def test_a_price_in_the_campaign_comes_before_the_list_s() -> None:
    own = {"input": 3.0, "output": 6.0, "cached": 0.3, "batch": 0.5}
    study = campaign([gpt("http://127.0.0.1:9", price=own), claude("http://x.example", price=own)])
    for judge in study.judges:
        price, batch = price_of(judge), price_of(judge, batch=True)
        assert price is not None
        assert batch is not None
        assert price.cost(10**6, 10**6) == 9.0
        assert price.cost(10**6, 0, cached=10**6) == 0.3
        assert batch.cost(10**6, 10**6) == 4.5
    plain = campaign([gpt("http://127.0.0.1:9"), claude("http://x.example")])
    space = plain.load_space()
    assert identity_of(plain, space) == identity_of(study, space), "a price changes no answer"
    with pytest.raises(ValueError, match="price"):
        campaign([gpt("http://127.0.0.1:9", price={"input": -1, "output": 1})])


def test_the_worst_case_is_above_what_is_paid(tmp_path: Path) -> None:
    with Provider() as provider:
        study = campaign([claude(provider.url)], pairs=5)
        run(study, tmp_path / "try")
    frame = table(study, tmp_path / "try").frame
    price = price_of(study.judges[0])
    space, plan = study.load_space(), plan_of(study)
    template = Template.load("v1/zero-shot")
    prompts = [render(space, *plan.points_in_order(query), template) for query in plan]
    for prompt, cost in zip(prompts, frame["cost"], strict=True):
        assert price is not None
        assert price.max_cost(max_prompt_tokens(prompt), 2048) > cost > 0


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
    # Rather too much than too little: the provider here counts four characters a token.
    assert 1 <= claude_.prompt_tokens / paid["prompt_tokens"].sum() <= 2
    assert claude_.cost is not None
    assert claude_.most is not None
    assert 1 <= claude_.cost / paid["cost"].sum() <= 2
    assert claude_.most > claude_.cost


def test_an_estimate_leaves_out_what_is_answered() -> None:
    study = campaign([claude("http://127.0.0.1:9"), EXPERT], pairs=20)
    space, plan = study.load_space(), plan_of(study)
    whole, _ = estimate(study, space, plan)
    half, _ = estimate(study, space, plan, {"claude": {"ab": 20}})
    none, _ = estimate(study, space, plan, {"claude": {"ab": 20, "ba": 20}})
    assert (whole.requests, half.requests, none.requests) == (40, 20, 0)
    assert whole.cost is not None
    assert half.cost == pytest.approx(whole.cost / 2)
    assert (none.cost, none.most, none.prompt_tokens) == (0.0, 0.0, 0)
    assert whole.batch == pytest.approx(whole.cost / 2)


def test_openai_s_prompts_are_counted_by_its_own_tokenizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("bpe_openai", reason="the extra `tokens` is not installed")
    # OpenAI's own example of counting tokens, of which its API answered 129 for gpt-4 and 124 for
    # gpt-4o; four of the turns have names there, which no question here has: 14 tokens less.
    said = (
        "You are a helpful, pattern-following assistant that translates corporate jargon into "
        "plain English.",
        "New synergies will help drive top-line growth.",
        "Things working well together will increase revenue.",
        "Let's circle back when we have more bandwidth to touch base on opportunities for "
        "increased leverage.",
        "Let's talk later when we're less busy about how to do better.",
    )
    last = "This late pivot means we don't have time to boil the ocean for the client deliverable."
    prompt = Prompt((*(Message("system", text) for text in said), Message("user", last)))
    for model, answered in (("gpt-4", 129), ("gpt-4o-mini", 124)):
        count, exact = counter(_judge("openai", model))
        assert exact
        assert count(prompt) == answered - 14
    estimated, rough = counter(_judge("openai", "another-model"))
    assert not rough
    assert count(prompt) < estimated(prompt) < max_prompt_tokens(prompt)
    judge = OpenAIJudge(name="j", backend="openai", model="gpt-4o")
    assert counter(judge.model_copy(update={"base_url": "http://x.example"}))[1] is False
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    assert counter(judge)[1] is False


@given(st.text(max_size=300))
def test_no_tokenizer_makes_more_tokens_than_the_bound(text: str) -> None:
    pytest.importorskip("bpe_openai", reason="the extra `tokens` is not installed")
    prompt = Prompt((Message("system", "x"), Message("user", text)))
    for model in ("gpt-4", "gpt-5-mini"):
        count, exact = counter(_judge("openai", model))
        assert exact
        assert count(prompt) <= max_prompt_tokens(prompt)


def test_a_long_beginning_that_prompts_share_is_cached_by_openai() -> None:
    words = random.Random(1).choices(("one", "two", "three", "four"), k=3000)
    shared = Message("system", " ".join(words))
    some = [Prompt((shared, Message("user", f"question {n}"))) for n in range(3)]
    judge = _judge("openai", "gpt-4o-mini")
    count, _ = counter(judge)
    cached = cached_prefix_tokens(some, judge, count)
    assert 1024 <= cached <= count(some[0])
    assert cached % 128 == 0
    assert cached_prefix_tokens(some, _judge("anthropic", "claude-haiku-4-5"), count) == 0
    short = [Prompt((Message("system", "short"), Message("user", str(n)))) for n in range(3)]
    assert cached_prefix_tokens(short, judge, count) == 0


def test_a_price_without_a_model_is_free() -> None:
    assert Price().cost(10**6, 10**6) == 0.0


@pytest.mark.parametrize(
    ("templates", "between", "least_close"),
    [(1, 0.0, 0.5), (6, 0.0, 0.8), (6, 0.3, 0.55), (6, 1.0, 0.5)],
)
def test_the_range_of_an_estimate_holds_for_thinking_of_very_different_lengths(
    templates: int, between: float, least_close: float
) -> None:
    """Ten pairs by each template of a pilot, then 190 others by the first template.

    Thinking takes 200 to 4,000 tokens (the central 95 %). By twenty answers, 55 % of estimates are
    within 15 %; by 120 to templates that are alike, at most 89 % can be.
    """
    rng, answers, requests = np.random.default_rng(0), 20, 380
    spread = np.log(4000 / 200) / (2 * 1.96)
    inside = close = 0
    for _ in range(400):
        middle = np.log(np.sqrt(200 * 4000)) + rng.normal(0.0, between, templates)
        counts = [np.rint(np.exp(rng.normal(mean, spread, answers))) for mean in middle]
        own, *others = [AnswerTokens(500.0, 0.0, count) for count in counts]
        measured = MeasuredTokens.of([own], others)
        used = np.exp(rng.normal(middle[0], spread, requests)).sum()
        ratio, factor = used / (measured.completion * requests), measured.factor(requests)
        inside += 1.0 / factor <= ratio <= factor
        close += abs(1.0 / ratio - 1.0) < 0.15
    assert 0.92 < inside / 400 < 0.995
    assert close / 400 > least_close


def test_answers_to_other_templates_count_only_as_far_as_they_are_alike() -> None:
    def tokens(*counts: float) -> AnswerTokens:
        return AnswerTokens(500.0, 0.0, np.array(counts))

    one = MeasuredTokens.of([tokens(900.0)])
    assert (one.completion, one.factor(10)) == (pytest.approx(900.0), 1.0)
    # A letter takes one token, a probability two: the two templates differ beyond doubt.
    letters = MeasuredTokens.of([tokens(*[1.0] * 20)], [tokens(*[2.0] * 20)])
    assert letters.completion == pytest.approx(1.0)
    assert (letters.questions, letters.answers) == (20, 40)
    assert letters.factor(10) == pytest.approx(1.0, abs=1e-3)
    # Thought about or answered at once: the mean is right though nothing is lognormal.
    mixed = MeasuredTokens.of([tokens(*[10.0, 2000.0] * 10)])
    assert mixed.completion == pytest.approx(1005.0)
    unasked = MeasuredTokens.of([], [tokens(400.0, 500.0, 600.0), tokens(450.0, 550.0)])
    assert unasked.questions == 0
    assert unasked.completion == pytest.approx(500.0, rel=0.05)
    assert unasked.factor(100) > 1.5, "the run's own template may differ"
