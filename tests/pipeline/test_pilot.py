"""The pilot: reliability measured rightly, answers paid once, caps held, costs weighed."""

import asyncio
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

import llm_elicit as le
from llm_elicit._util.settings import validate
from llm_elicit.audit.responses import Response
from llm_elicit.cli import main as cli
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.pipeline import pilot, stages
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import Answer, Provider

TEMPLATES = ["v1/zero-shot", "v1/few-shot"]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-b")


def _data(url: str = "http://127.0.0.1:9", **rest: Any) -> dict[str, Any]:
    judge = {"name": "gpt", "backend": "openai", "model": "m", "base_url": f"{url}/v1"}
    judge |= {"price": {"input": 1.0, "output": 1.0}, "max_tokens": 4}
    return {
        "name": "study", "space": "penguins", "design": {"pairs": 30, "template": "v1/few-shot"},
        "pilot": TEMPLATES, "judges": [judge], "fit": {"method": "utility", "samples": 500}, **rest,
    }  # fmt: skip


def _campaign(url: str = "http://127.0.0.1:9", **rest: Any) -> Campaign:
    return validate(Campaign, _data(url, **rest), "study.yaml")


def _call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> SimpleNamespace:
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    return SimpleNamespace(code=int(ended.value.code or 0), out=shown.out, err=shown.err)


def _mass(body: dict[str, Any]) -> float:
    """By how much the first option's body mass is the larger, in kilograms."""
    first, second = re.findall(r"body mass ([\d,]+) g", body["messages"][-1]["content"])
    return (int(first.replace(",", "")) - int(second.replace(",", ""))) / 1000.0


def _few_shot(body: dict[str, Any]) -> bool:
    return len(body["messages"]) > 2


def _letters(log_odds: float, **rest: Any) -> Answer:
    p = 1.0 / (1.0 + math.exp(-log_odds))
    logprobs = {"A": math.log(p), "B": math.log(1.0 - p)}
    likelier = sorted(logprobs, key=lambda letter: -logprobs[letter])
    # Providers list the answered letter first, whose token is the answer's.
    return Answer(likelier[0], logprobs={letter: logprobs[letter] for letter in likelier}, **rest)


def test_what_a_pilot_asked_the_campaign_does_not_ask_again(quick_fits: None) -> None:
    with Provider(lambda _n, body: _letters(_mass(body))) as provider:
        campaign = _campaign(provider.url)
        pilot.run_pilot(campaign, 12)
        asked = {seen.question for seen in provider.seen if _few_shot(seen.body)}
        assert len(asked) == 24
        before = len(provider.seen)
        Path("study.yaml").write_text(yaml.safe_dump(_data(provider.url)))
        run = le.run("study.yaml")
        later = [seen.question for seen in provider.seen[before:]]
        assert len(run.comparisons) == 60
        assert len(later) == 36
        assert not asked & set(later)
        pilot.run_pilot(campaign, 12)
        assert len(provider.seen) == before + 36, "a pilot is resumed, too"


@pytest.mark.parametrize("readable", TEMPLATES)
def test_the_template_that_is_answered_by_content_is_recommended(readable: str) -> None:
    """By the other one the model names the first option, with noise that follows no order."""
    rng = np.random.default_rng(0)

    def behave(_number: int, body: dict[str, Any]) -> Answer:
        if _few_shot(body) == (readable == "v1/few-shot"):
            return _letters(0.3 + 0.05 * _mass(body) + rng.normal(0.0, 0.01))
        return _letters(2.0 + rng.normal(0.0, 0.05))

    with Provider(behave) as provider:
        found, problems = pilot.run_pilot(_campaign(provider.url), 20)
    assert not problems
    (best,) = found.recommended
    assert (best.template, best.both_orders) == (readable, True)
    one = next(one for one in found.protocols if one.template == readable)
    assert one.reliability is not None
    assert one.reliability.low > 0.9
    assert one.position == pytest.approx(0.3, abs=0.01)
    assert one.response == "log-odds"


def test_of_two_equally_reliable_the_cheaper_is_recommended() -> None:
    def behave(_number: int, body: dict[str, Any]) -> Answer:
        # What answers is a function of the points alone, with noise of its own for each order.
        noise = np.random.default_rng([int(abs(_mass(body)) * 1e6), _mass(body) > 0]).normal()
        return _letters(
            0.3 * _mass(body) + 0.1 * noise, prompt_tokens=900 if _few_shot(body) else 90
        )

    with Provider(behave) as provider:
        found, _ = pilot.run_pilot(_campaign(provider.url), 15)
    dear = next(one for one in found.protocols if one.template == "v1/few-shot")
    cheap = next(one for one in found.protocols if one.template == "v1/zero-shot")
    assert cheap.reliability == dear.reliability
    assert cheap.cost == pytest.approx(92e-6)
    assert dear.cost == pytest.approx(902e-6)
    assert cheap.rate == pytest.approx(dear.rate * 902 / 92)
    assert found.recommended[0].template == "v1/zero-shot"
    assert found.spent == pytest.approx(30 * (92e-6 + 902e-6))


def test_no_template_is_recommended_where_only_the_position_counts() -> None:
    with Provider(lambda _n, _body: Answer("A")) as provider:
        found, _ = pilot.run_pilot(_campaign(provider.url), 10)
    assert [one.reliability for one in found.protocols] == [None, None]
    assert [one.position for one in found.protocols] == [0.5, 0.5]
    assert found.recommended[0].template is None
    assert "try other templates" in found.recommended[0].reason


def test_a_position_effect_that_varies_hides_no_preference() -> None:
    """Its spread over pairs is twice the preference's, so that the two orders disagree."""

    def behave(_number: int, body: dict[str, Any]) -> Answer:
        mass = _mass(body)
        position = 0.8 * np.random.default_rng(int(abs(mass) * 1e6)).normal()
        return _letters(position + (0.3 * mass if _few_shot(body) else 0.0))

    with Provider(behave) as provider:
        found, _ = pilot.run_pilot(_campaign(provider.url), 20)
    (best,) = found.recommended
    one = next(one for one in found.protocols if one.template == "v1/few-shot")
    assert one.reliability is not None
    assert one.reliability.value == 0.0, "negative correlations are no reliability"
    assert one.predicted is not None
    assert one.predicted.low > 0.9
    assert (best.template, best.both_orders) == ("v1/few-shot", True)
    assert "position effect varies more than the preference" in best.reason


def test_answers_that_are_no_choice_are_counted_by_reason() -> None:
    def behave(number: int, body: dict[str, Any]) -> Answer:
        if not _few_shot(body):
            return Answer("A" if _mass(body) > 0 else "B")
        if number % 3 == 0:
            return Answer("I cannot help with that.", refusal="I cannot help with that.")
        return Answer("Plausibility is hard to judge, honestly")

    with Provider(behave) as provider:
        found, _ = pilot.run_pilot(_campaign(provider.url), 12)
    clear = next(one for one in found.protocols if one.template == "v1/zero-shot")
    muddled = next(one for one in found.protocols if one.template == "v1/few-shot")
    assert (clear.refused, clear.unparsable, clear.unanswered, clear.pairs) == (0, 0, 0, 12)
    assert (muddled.refused, muddled.unparsable) == (8, 16)
    assert (muddled.pairs, muddled.reliability, muddled.rate) == (0, None, 0.0)


def test_a_cap_holds_over_all_templates_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty questions a template at 102 microdollars: the cap is in the second template."""
    with Provider(lambda _n, body: _letters(_mass(body), prompt_tokens=100)) as provider:
        Path("study.yaml").write_text(yaml.safe_dump(_data(provider.url)))
        done = _call(
            monkeypatch, capsys, "pilot", "study.yaml", "--pairs", "10", "--max-cost", "0.004"
        )
        assert done.code == 4, done.err
        assert 20 < len(provider.seen) < 40
        assert len(provider.seen) * 102e-6 <= 0.004
        done = _call(monkeypatch, capsys, "pilot", "study.yaml", "--pairs", "10")
        assert done.code == 0, done.err
        assert len(provider.seen) == 40


def test_the_record_and_the_table_of_a_simulated_judge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expert = {
        "name": "expert",
        "backend": "simulated",
        "seed": 0,
        "log_odds": {"gain": 1.0, "noise": 0.1, "position_mean": 0.2},
    }
    data = _data(judges=[expert], pilot=["v1/zero-shot"])
    Path("study.yaml").write_text(yaml.safe_dump(data))
    done = _call(monkeypatch, capsys, "pilot", "study.yaml", "--json")
    record = json.loads(done.out)
    (one,) = record["protocols"]
    assert record["pairs"] == one["pairs"] == 20
    assert one["both_orders"]["value"] > 0.95
    assert one["position"] == pytest.approx(0.2, abs=0.06)
    shown = _call(monkeypatch, capsys, "pilot", "study.yaml")
    assert f"{one['reliability']['value']:.2f} [" in shown.out
    assert "expert: v1/zero-shot, both orders; most reliable for its cost" in shown.out


@pytest.mark.parametrize("space", ["penguins", "penguins_kinds"])
@pytest.mark.parametrize("design", [{"pairs": 40}, {"pairs": 40, "triads": 3}, {"pairs": 60,
                                    "rounds": {"count": 3}}])  # fmt: skip
def test_the_pairs_are_the_campaigns_first(space: str, design: dict[str, Any]) -> None:
    campaign = _campaign(space=space, design=design)
    plan = Run(campaign.folder, campaign, campaign.load_space()).plan
    for run in pilot.pilot_runs(campaign, 15):
        assert np.array_equal(run.plan.a, plan.a[:15])
        assert np.array_equal(run.plan.b, plan.b[:15])


@pytest.mark.parametrize(
    ("change", "pairs", "said"),
    [
        ({}, 9, "9 pairs; give 10 to 30"),
        ({}, 31, "31 pairs; give 10 to 30"),
        ({"design": {"pairs": 40, "triads": 5}}, 26, "give 10 to 25"),
        ({"pilot": ["v1/none"]}, 10, "no template 'v1/none'"),
        ({"pilot": ["v1/quantiles"]}, 10, "the template asks for a text"),
        ({"judges": [{"name": "ada", "backend": "human"}]}, 10, "only asks people"),
        ({"grid": {"templates": ["v1/few-shot"]}}, 10, "is a grid; name one of its cells"),
    ],
)
def test_what_cannot_be_is_one_line(change: dict[str, Any], pairs: int, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        pilot.run_pilot(_campaign(**change), pairs)
    assert "\n" not in str(caught.value)


def test_the_interval_of_the_reliability_covers() -> None:
    """Of 1,000 pilots of 20 pairs: utility, position effect and noise of known variance."""
    rng = np.random.default_rng(0)
    truth, held = 0.7**2 / (0.7**2 + 0.4**2), 0
    for _ in range(1000):
        utility = rng.normal(0.0, 0.7, 20)
        first, second = utility + rng.normal(0.0, 0.4, (2, 20))
        found = pilot.split_half(first, second)
        assert found is not None
        held += found.low <= truth <= found.high
    assert 0.93 <= held / 1000 <= 0.97


def test_reliability_does_not_depend_on_the_scale_of_log_odds() -> None:
    rng = np.random.default_rng(1)
    utility = rng.normal(size=25)
    first, second = utility + rng.normal(0.0, 0.5, (2, 25))
    found = pilot.split_half(first, second)
    assert found is not None
    for scale in (0.1, 10.0):
        again = pilot.split_half(scale * first, scale * second)
        assert again is not None
        assert again.value == pytest.approx(found.value)


def test_hard_choices_that_all_agree_are_not_beyond_doubt() -> None:
    choices = np.where(np.arange(20) % 2, 0.5, -0.5)
    found = pilot.split_half(choices, choices, hard=True)
    assert found is not None
    assert found.value == pytest.approx(1.0 - 2.0 / 21.0)
    assert 0.7 < found.low < found.value


def test_two_orders_are_as_spearman_and_brown_have_it() -> None:
    """Against the reliability of the mean, by simulation."""
    rng = np.random.default_rng(2)
    utility = rng.normal(size=200_000)
    first, second = utility + rng.normal(0.0, 1.5, (2, 200_000))
    one = pilot.split_half(first, second)
    assert one is not None
    mean = 0.5 * (first + second)
    truth = np.corrcoef(mean, utility)[0, 1] ** 2
    assert pilot.spearman_brown(one, 2).value == pytest.approx(truth, abs=0.01)


def test_two_orders_that_disagree_have_no_reliability() -> None:
    x = np.array([0.4, -0.3, 0.5, -0.6, 0.2, -0.1])
    found = pilot.split_half(x, -x)
    assert found is not None
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert pilot.spearman_brown(found, 2) == found
    unrelated = pilot.split_half(np.array([1.0, 1.0, -1.0, -1.0]), np.array([1.0, -1.0, 1.0, -1.0]))
    assert unrelated is not None
    assert unrelated.value == 0.0, "and not 2e-17"


@pytest.mark.parametrize("soft", [False, True])
def test_random_choices_are_recommended_no_template(soft: bool) -> None:
    """Of 100 judges with five templates of ten pairs each, at most 5 % would be."""
    space = FeatureSpace.load("penguins")
    rng = np.random.default_rng(3)
    recommended = 0
    for _ in range(100):
        protocols = []
        for number in range(5):
            a, b = space.sample(10, rng), space.sample(10, rng)
            ab, ba = rng.normal(0.2, 0.1, (2, 10)) if soft else rng.choice((-0.5, 0.5), (2, 10))
            response = Response(
                "log-odds" if soft else "choices", a, b, 0.5 * (ab - ba), np.arange(10),
                0.5 * (ab + ba), single_order=np.full(10, np.nan), noise=np.full(10, np.nan),
                robust_value=np.zeros(10), is_censored=np.zeros(10, dtype=bool), side=np.zeros(10),
                agreement=np.full(10, np.nan), agreement_control=np.full(10, np.nan),
            )  # fmt: skip
            measured = pilot.measure_orders(response, space)
            protocols.append(
                pilot.Protocol(
                    judge="random", template=str(number), answer="letter", response=response.kind,
                    refused=0, unparsable=0, unanswered=0, tokens=0.0, cost=None,
                    rate=pilot.rate_of(measured["reliability"], 1.0, 0.0, None),
                    **measured,
                )
            )  # fmt: skip
        best = pilot.recommend(protocols)
        recommended += best.template is not None
        assert best.template or "consistent answers with 10 pairs" in best.reason
    assert recommended <= 8, "5 in 100, with the spread of a hundred"


def test_an_estimate_rests_on_the_tokens_that_a_pilot_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thinking takes 200 to 4,000 tokens, log-normally, as in reasoning models."""
    rng = np.random.default_rng(5)
    thinking = np.clip(rng.lognormal(np.log(900.0), 0.75, 200), 200, 4000).astype(int)

    def think(n: int, _body: dict[str, Any]) -> Answer:
        return Answer("AB"[n % 2], completion_tokens=int(thinking[n]), prompt_tokens=500)

    def estimate() -> dict[str, Any]:
        facts = json.loads(_call(monkeypatch, capsys, "estimate", "study.yaml", "--json").out)
        (line,) = facts["runs"][0]["judges"]
        return line  # type: ignore[no-any-return]

    def basis() -> str:
        return " ".join(_call(monkeypatch, capsys, "estimate", "study.yaml").out.split())

    with Provider(think) as provider:
        data = _data(provider.url)
        data["design"] |= {"pairs": 60}
        data["judges"][0] |= {"max_tokens": None, "logprobs": False, "effort": "low"}
        Path("study.yaml").write_text(yaml.safe_dump(data))
        before = estimate()
        assert "estimated from assumed answer lengths" in basis()
        pilot.run_pilot(validate(Campaign, data, "study.yaml"), 20)
        after = estimate()
        assert "from the tokens of 80 answers (95 % interval)" in basis()
        run = asyncio.run(stages.ask(stages.plan("study.yaml")))
    paid = run.comparisons.frame["cost"].sum()
    assert (before["measured"], before["requests"]) == (0, 120)
    assert before["low"] < before["cost"] < before["high"] < before["most"]
    assert (after["measured"], after["requests"]) == (80, 80)
    assert after["low"] <= paid <= after["high"]
    assert after["cost"] == pytest.approx(paid, rel=0.3)
    assert estimate()["requests"] == 0
