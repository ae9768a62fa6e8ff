"""The probability of a row by a model of numbers that is known, in every form servers have."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.number_model import (
    GRID,
    NumberModel,
    TownModel,
    joint,
    log_density,
    town_space,
    write_space,
)

from llm_elicit.audit.utility import auc
from llm_elicit.backends import Request, open_backend
from llm_elicit.backends.base import SettingDroppedError
from llm_elicit.backends.failures import MalformedReplyError
from llm_elicit.config.design import Direct
from llm_elicit.config.judges import OpenAIJudge
from llm_elicit.planning.pairs import Plan, Query
from llm_elicit.questions.direct import DirectQuestion, DirectWording, RowValue
from llm_elicit.questions.numbers import RowLikelihood
from llm_elicit.spaces.features import FeatureSpace, Floats
from llm_elicit.testing.provider import Error, Provider, Sends

POINTS = np.array([[3.0, 4.1], [6.4, 6.0], [0.0, 9.9]])


@pytest.fixture(scope="module")
def sticks(tmp_path_factory: pytest.TempPathFactory) -> FeatureSpace:
    return write_space(tmp_path_factory.mktemp("sticks"))


def _questions(
    space: FeatureSpace, points: Floats = POINTS, orders: int = 2
) -> list[DirectQuestion]:
    plan = Plan(points, points, ("ab",), 1)
    wording = DirectWording.of(Direct(likelihood=3), space, 1, plan)
    queries = [
        Query(n, "likelihood-a", order) for n in range(len(points)) for order in range(orders)
    ]
    return [wording.question(query) for query in queries]


def _ask(
    space: FeatureSpace, url: str, questions: list[DirectQuestion]
) -> tuple[list[RowLikelihood], list[str]]:
    judge = OpenAIJudge(name="m", backend="openai", model="numbers", base_url=f"{url}/v1")

    async def go() -> tuple[list[RowLikelihood], list[str]]:
        replies, changes = [], []
        async with open_backend(judge, space) as backend:
            for question in questions:
                request = Request(question.prompt, (), direct=question, answer="text")
                while True:
                    try:
                        replies.append(await backend.ask(request))
                        break
                    except SettingDroppedError as change:
                        changes.append(str(change))
        read = [RowLikelihood.read(reply.text) for reply in replies]
        return [likelihood for likelihood in read if likelihood], changes

    return asyncio.run(go())


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")


@pytest.mark.parametrize("mode", ["echo", "next", "refused"])
def test_the_probability_of_a_row_is_exact_in_both_orders(sticks: FeatureSpace, mode: Any) -> None:
    model = NumberModel(mode=mode)
    with Provider(model.behave) as provider:
        read, changes = _ask(sticks, provider.url, _questions(sticks))
    exact = np.repeat(log_density(POINTS), 2)
    volume = np.repeat(sticks.log_cells(POINTS), 2)
    assert [r.log_prob for r in read] == pytest.approx(exact + volume)
    assert not any(r.is_bound for r in read)
    assert max(r.others for r in read) < 1e-9
    noted = ["token by token" in change for change in changes]
    assert noted == ([] if mode == "echo" else [True])
    if mode == "echo":
        assert len(model.prompts) == 6
        assert model.prompts[0].endswith("\nlength 3.0 cm; width 4.1 °\n")
        assert model.prompts[1].endswith("\nwidth 4.1 °; length 3.0 cm\n")


@pytest.mark.parametrize("mode", ["echo", "next"])
def test_other_tokenizations_are_bounded(sticks: FeatureSpace, mode: Any) -> None:
    with Provider(NumberModel(mode=mode, merged=0.05).behave) as provider:
        read, _ = _ask(sticks, provider.url, _questions(sticks))
    exact = np.repeat(log_density(POINTS) + sticks.log_cells(POINTS), 2)
    lower = np.array([r.log_prob for r in read])
    upper = lower + np.array([r.others for r in read])
    assert (lower <= exact).all()
    assert (exact <= upper).all()
    assert (lower >= exact - 1.5).all()


def test_a_digit_that_is_not_listed_is_a_bound_and_no_zero(sticks: FeatureSpace) -> None:
    model = NumberModel(mode="next", most=4)
    with Provider(model.behave) as provider:
        read, changes = _ask(sticks, provider.url, _questions(sticks))
    exact = np.repeat(log_density(POINTS) + sticks.log_cells(POINTS), 2)
    assert changes[0] == "numbers: the server lists 4 alternatives of a token, not 20"
    assert read[0].is_bound is False
    bounded = [(r.log_prob, e) for r, e in zip(read, exact, strict=True) if r.is_bound]
    assert len(bounded) >= 2
    assert all(math.isfinite(value) and value >= e for value, e in bounded)


@pytest.mark.parametrize("mode", ["echo", "next"])
def test_a_model_that_does_not_round_has_the_auc_of_its_density(mode: Any) -> None:
    # By its zeros alone, 1,200 has a hundredth of its probability and 120 a tenth: an AUC of .50.
    towns, model, rng = town_space(), TownModel(mode), np.random.default_rng(0)
    rows, draws = rng.choice(model.values, 20, p=model.mass), towns.sample(20, rng)[:, 0]
    points = towns.round(np.concatenate([rows, draws])[:, None])
    with Provider(model.behave) as provider:
        read, _ = _ask(towns, provider.url, _questions(towns, points, orders=1))
    own = np.array([r.log_prob for r in read]) - towns.log_cells(points)
    exact = model.log_density(points[:, 0])
    assert own == pytest.approx(exact, abs=0.15)
    assert auc(own[:20], own[20:]) == pytest.approx(auc(exact[:20], exact[20:]), abs=0.01)


def test_a_number_has_to_end(sticks: FeatureSpace) -> None:
    # " 3" begins every value from 3.0 to 3.9, and is none of them.
    (question, *_) = _questions(sticks)
    texts = (("length", " 3.0 cm;"), (" width", " 4.1 °\n"))
    assert question.row == tuple(RowValue(label, text, text) for label, text in texts)
    cut = replace(question, row=(RowValue("length", " 3", " 3"),))
    with Provider(NumberModel(mode="next").behave) as provider:
        (read,), _ = _ask(sticks, provider.url, [cut])
    masses = joint().sum(1)[(GRID >= 3.0) & (GRID < 3.95)].sum()
    assert read.log_prob == pytest.approx(math.log(masses))


@pytest.mark.parametrize("mode", ["echo", "next"])
def test_categories_are_normalized_over_their_words(sticks: FeatureSpace, mode: Any) -> None:
    (question, *_) = _questions(sticks)
    chosen = RowValue("length", " 3.0 cm;", " 3.0 cm;", (" 5.0 cm;", " 6.0 cm;"))
    with Provider(NumberModel(mode=mode).behave) as provider:
        asked = replace(question, row=(chosen, *question.row[1:]))
        (read,), _ = _ask(sticks, provider.url, [asked])
    masses = joint().sum(1)[[30, 50, 60]]
    share, given = masses[0] / masses.sum(), joint()[30, 41] / masses[0]
    assert read.log_probs == pytest.approx((math.log(share), math.log(given)))


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"choices": [{"text": "x", "logprobs": None}]}, "has no log-probabilities; leave out"),
        ({"choices": []}, "has no log-probabilities; leave out"),
        (
            {"choices": [{"text": "x", "logprobs": {"tokens": [" "], "token_logprobs": [None]}}]},
            "a token has no log-probability",
        ),
    ],
)
def test_a_server_without_probabilities_is_named(
    sticks: FeatureSpace, answer: dict[str, Any], line: str
) -> None:
    def behave(number: int, _body: dict[str, Any]) -> Any:
        return Error(400, "no echo") if number == 1 else Sends(json.dumps(answer).encode())

    with Provider(behave) as provider, pytest.raises(MalformedReplyError, match=line):
        _ask(sticks, provider.url, _questions(sticks)[:1])


def test_two_tokens_of_one_text_are_added(sticks: FeatureSpace) -> None:
    shares = [(" 3", 0.2), (" 3", 0.1), ("x", 0.05)]
    listed = [{"token": text, "logprob": math.log(share)} for text, share in shares]
    choice = {"text": " 3", "logprobs": {"content": [{**listed[0], "top_logprobs": listed}]}}

    def behave(number: int, _body: dict[str, Any]) -> Any:
        answer = json.dumps({"choices": [choice]}).encode()
        return Error(400, "no echo") if number == 1 else Sends(answer)

    question = replace(_questions(sticks)[0], row=(RowValue("length", " 3", " 3"),))
    with Provider(behave) as provider:
        (read,), _ = _ask(sticks, provider.url, [question])
    assert read.log_prob == pytest.approx(math.log(0.3))
