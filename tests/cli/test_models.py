"""`llm-elicit models check` and `profiles`, in this process against a loopback provider."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from llm_elicit.cli.models import check_command, profiles_command
from llm_elicit.config.profiles import PROFILES_VARIABLE, profiles
from llm_elicit.errors import InputError, JudgeError
from llm_elicit.testing.provider import Action, Answer, Error, Provider

KEY = "sk-canary-0123456789"
LIMITS = (
    ("x-ratelimit-limit-requests", "600"), ("x-ratelimit-remaining-requests", "599"),
    ("x-ratelimit-reset-requests", "100ms"),
)  # fmt: skip
USAGE = {
    "prompt_tokens": 400, "completion_tokens": 52,
    "completion_tokens_details": {"reasoning_tokens": 50},
    "prompt_tokens_details": {"cached_tokens": 128},
}  # fmt: skip
SOFT = Answer("B", logprobs={"B": math.log(0.75), "A": math.log(0.25)}, headers=LIMITS, usage=USAGE)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GROQ_API_KEY"):
        monkeypatch.setenv(name, KEY)


def _check(judge: str, action: Action, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    with Provider(lambda n, body: action) as provider:
        check_command(judge, base_url=f"{provider.url}/v1", **options)
    return capsys.readouterr().out


def test_one_question_shows_what_a_model_gives(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _check("vllm/Qwen/Qwen3-8B", SOFT, capsys)
    for fact in (
        "Qwen/Qwen3-8B-2026-01-01", "yes, 20 alternatives", "http://127.0.0.1:",
        "400 prompt (128 cached), 50 thinking, 2 answer", "599 of 600 requests left",
        "unknown; give the judge a price",
    ):  # fmt: skip
        assert fact in shown
    assert KEY not in shown


def test_what_it_shows_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(_check("openai/gpt-4.1-mini", SOFT, capsys, as_json=True))
    assert (shown["verdict"], shown["log_odds"]) == ("B", "log-odds: yes, 20 alternatives")
    assert shown["limits"][0]["remaining"] == 599
    assert shown["thinking_tokens"], shown["answer_tokens"] == (50, 2)


def test_a_setting_that_is_refused_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def behave(_number: int, body: dict[str, Any]) -> Action:
        return Error(400, "logprobs is not supported") if body.get("logprobs") else SOFT

    with Provider(behave) as provider:
        check_command("vllm/m", base_url=f"{provider.url}/v1")
    shown = capsys.readouterr().out
    assert "none, because the server refuses logprobs" in shown
    assert "m: the server returns no log-probabilities; answers count as choices" in shown


def test_an_answer_that_is_no_choice(capsys: pytest.CaptureFixture[str]) -> None:
    says = Answer("", stop="length", thinking="Let me see", logprobs=None)
    shown = _check("vllm/m", says, capsys)
    assert "truncated" in shown
    assert "unknown: the answer chooses no option" in shown


FAILURES: list[tuple[Error, type[Exception], str]] = [
    (Error(401, f"no such key {KEY}"), InputError, "the key is not accepted: .*no such key .key."),
    (Error(404, "no model m"), InputError, "no such model or address: .*no model m"),
    (Error(503, "loading"), JudgeError, "server error 503: .*loading"),
    (Error(400, "bad", "content_filter"), JudgeError, "prompt refused: .*bad"),
]


@pytest.mark.parametrize(("fails", "error", "message"), FAILURES)
def test_a_failure_is_one_line(
    fails: Error, error: type[Exception], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error, match=f"judge 'groq': {message}") as raised:
        _check("groq/m", fails, capsys)
    assert KEY not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("judge", "campaign", "message"),
    [
        ("grok/m", "", "no profile 'grok'; known: anthropic, azure"),
        ("m", "", "'m' is no PROFILE/MODEL, such as groq/openai/gpt-oss-20b"),
        ("groq/", "", "'groq/' is no PROFILE/MODEL"),
        ("gpt", "simulated", "simulated: no judge 'gpt'; its judges are"),
        ("vllm/m", "", "connection failed"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_said(judge: str, campaign: str, message: str) -> None:
    with pytest.raises((InputError, JudgeError), match=message):
        check_command(judge, campaign, base_url="http://127.0.0.1:9/v1" if "/m" in judge else "")


def test_a_judge_of_a_campaign_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    check_command("expert", "simulated", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["endpoint"], shown["log_odds"], shown["cost"]) == ("simulated", "", 0.0)


def test_profiles_are_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text('lab: {base_url: "http://lab:8000/v1"}', "utf-8")
    monkeypatch.setenv(PROFILES_VARIABLE, str(tmp_path / "mine.yaml"))
    profiles_command()
    assert "http://lab:8000/v1" in capsys.readouterr().out
    profiles_command(as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["profile"] for row in rows] == list(profiles())


def test_an_answer_is_read_as_the_template_of_its_campaign_asks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Provider(lambda n, body: Answer("27 %", logprobs=None)) as provider:
        judge = {"name": "m", "backend": "openai", "model": "m", "base_url": f"{provider.url}/v1"}
        study = {"name": "x", "space": "penguins", "judges": [judge]}
        path = tmp_path / "x.yaml"
        path.write_text(
            json.dumps({**study, "design": {"pairs": 10, "template": "v1/probability"}})
        )
        check_command("m", str(path), as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["verdict"], shown["log_odds"]) == ("B", "")
