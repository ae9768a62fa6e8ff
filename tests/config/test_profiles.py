"""Profiles of providers: what a judge takes from one, the user's own file, and its messages."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from llm_elicit.backends.providers import PROVIDERS, unsupported_settings
from llm_elicit.config.judges import AnthropicJudge, OpenAIJudge
from llm_elicit.config.profiles import PROFILES_VARIABLE, Profile, profile_named, profiles
from llm_elicit.errors import InputError


def _judge(profile: str | None, **settings: Any) -> OpenAIJudge:
    return OpenAIJudge(name="j", backend="openai", model="m", profile=profile, **settings)


def test_a_profile_states_address_and_key_unless_the_judge_does() -> None:
    groq, own = _judge("groq"), _judge("groq", base_url="http://localhost:1/v1", api_key_env="MINE")
    assert (groq.base_url, groq.api_key_env) == ("https://api.groq.com/openai/v1", "GROQ_API_KEY")
    assert (own.base_url, own.api_key_env) == ("http://localhost:1/v1", "MINE")
    assert groq.secret_variables == ["GROQ_API_KEY"]
    assert not groq.logprobs
    assert groq.choices_only == "groq returns no log-probabilities"
    assert _judge("groq", logprobs=True).logprobs


def test_a_judge_without_a_profile_has_the_settings_it_had() -> None:
    plain = OpenAIJudge(name="j", backend="openai", model="m")
    assert (plain.base_url, plain.api_key_env, plain.logprobs) == (None, "OPENAI_API_KEY", True)
    assert "profile" not in plain.identity()
    assert _judge("vllm").identity()["profile"] == "vllm"


def test_a_judge_is_the_same_when_it_is_read_again() -> None:
    for name, profile in profiles().items():
        kind: Any = OpenAIJudge if profile.backend == "openai" else AnthropicJudge
        url = None if profile.base_url else "http://localhost:1"
        judge = kind(name="j", backend=profile.backend, model="m", profile=name, base_url=url)
        assert kind.model_validate(judge.model_dump(mode="json")) == judge
        assert judge.wire_format is profile


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profile": "grok"}, r"no profile 'grok'; known: azure, .*vllm; LLM_ELICIT_PROFILES"),
        ({"profile": "bedrock"}, "'bedrock' belongs to backend anthropic; use that backend"),
        ({"profile": "compatible"}, "profile compatible has no base_url; give the server's"),
        ({"profile": "deepseek", "structured": True}, "deepseek accepts no JSON schema; remove"),
        ({"profile": "lmstudio", "effort": "low"}, "profile lmstudio has no such setting; remove"),
        ({"profile": 7}, "valid string"),
    ],
)  # fmt: skip
def test_a_profile_that_does_not_fit_is_one_line(
    settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ValidationError, match=message) as raised:
        OpenAIJudge.model_validate({"name": "j", "backend": "openai", "model": "m", **settings})
    assert raised.value.error_count() == 1


def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    monkeypatch.setenv(PROFILES_VARIABLE, str(path))


def test_users_add_profiles_and_change_those_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own(tmp_path, monkeypatch, """
        lab: {like: vllm, base_url: "http://lab:8000/v1", system_role: user}
        gateway: {base_url: "https://llm.example.org/v1", api_key_env: GATEWAY_KEY}
        vllm: {logprobs: 5}
        nearby: {like: lab, base_url: "http://localhost:9/v1"}
    """)  # fmt: skip
    lab, near, vllm = (profile_named(name) for name in ("lab", "nearby", "vllm"))
    assert (lab.effort, lab.logprobs, lab.system_role) == (vllm.effort, 20, "user")
    assert (near.base_url, near.system_role) == ("http://localhost:9/v1", "user")
    assert (vllm.base_url, vllm.logprobs) == ("http://localhost:8000/v1", 5)
    assert _judge("gateway").api_key_env == "GATEWAY_KEY"
    assert _judge("gateway").has_batches
    monkeypatch.delenv(PROFILES_VARIABLE)
    assert profile_named("vllm").logprobs == 20
    with pytest.raises(InputError, match="no profile 'lab'"):
        profile_named("lab")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lab: {like: vlm}", r"lab: like: profile 'vlm' is not defined above it; known: anthropic"),
        ("lab: {key: secret}", r"mine.yaml: lab: key: unknown key"),
        ("lab: 7", r"mine.yaml: lab: a mapping of fields is expected"),
        ("lab: {base_url: 'http://u:p@h/v1'}", "mine.yaml: lab: base_url: contains a user name"),
        ("lab: {effort: {huge: {}}}", "mine.yaml: lab: effort.huge"),
        ("[]", r"mine.yaml: expected a mapping \(key: value\)"),
    ],
)  # fmt: skip
def test_a_broken_file_of_profiles_is_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own(tmp_path, monkeypatch, text)
    with pytest.raises(InputError, match=message) as raised:
        profiles()
    assert "\n" not in str(raised.value)


def test_every_field_of_a_profile_is_used() -> None:
    """A field that no profile of the package sets would be an option that nobody sets."""
    of_users = {"system_role"}
    distinct = {
        name
        for name in Profile.model_fields
        if len({repr(getattr(profile, name)) for profile in profiles().values()}) > 1
    }
    assert distinct | of_users == set(Profile.model_fields)


@pytest.mark.parametrize(
    ("profile", "settings", "expected"),
    [
        ("openai", {"effort": "high"}, {"reasoning_effort": "high"}),
        ("deepseek", {"effort": "none"}, {"thinking": {"type": "disabled"}}),
        ("deepseek", {"effort": "max"},
         {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
        ("openrouter", {"effort": "low"}, {"reasoning": {"effort": "low"}}),
        ("openrouter", {"effort": "low", "tokens": 2000}, {"reasoning": {"max_tokens": 2000}}),
        ("together", {"effort": "none"}, {"reasoning": {"enabled": False}}),
        ("vllm", {"effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("vllm", {"effort": "low", "tokens": 100},
         {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True},
          "thinking_token_budget": 100}),
        ("groq", {"tokens": 100}, {}),
        ("anthropic", {"effort": "low", "tokens": 1024},
         {"thinking": {"type": "enabled", "budget_tokens": 1024},
          "output_config": {"effort": "low"}}),
        ("ollama", {}, {}),
    ],
)  # fmt: skip
def test_thinking_is_asked_for_in_the_words_of_the_provider(
    profile: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    fields = profile_named(profile).thinking(settings.get("effort"), settings.get("tokens"))
    assert fields == expected


@pytest.mark.parametrize(
    ("profile", "model"),
    [
        ("anthropic", "claude-opus-4-7"), ("vertex", "claude-opus-4-7@20260416"),
        ("bedrock", "anthropic.claude-opus-4-7-v1:0"),
        ("bedrock", "us.anthropic.claude-opus-4-7-v1:0"),
    ],
)  # fmt: skip
def test_models_are_known_by_the_names_that_other_providers_give_them(
    profile: str, model: str
) -> None:
    settings = {"name": "j", "backend": "anthropic", "profile": profile, "model": model}
    judge = AnthropicJudge.model_validate(settings | {"temperature": 0.0})
    assert unsupported_settings(judge) == ["temperature"]


def test_the_same_model_at_two_providers_may_have_two_versions() -> None:
    plain, azure = OpenAIJudge(name="j", backend="openai", model="m"), _judge("azure")
    assert (plain.alias, azure.alias) == ("openai m", "openai azure m")


def test_models_of_other_servers_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    official = OpenAIJudge(name="j", backend="openai", model="o3", temperature=0.0)
    assert unsupported_settings(official) == ["temperature"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    assert unsupported_settings(official) == []


@pytest.mark.parametrize(
    ("profile", "settings", "expected"),
    [
        ("groq", {}, {"provider_id": "groq"}),
        ("azure", {"base_url": "https://x.openai.azure.com"}, {"provider_id": "azure"}),
        ("compatible", {"base_url": "https://api.groq.com/openai/v1"},
         {"provider_api_url": "https://api.groq.com/openai/v1"}),
        ("vllm", {}, {"provider_api_url": "http://localhost:8000/v1"}),
        (None, {}, {"provider_id": "openai"}),
    ],
)  # fmt: skip
def test_prices_are_those_of_the_provider(
    profile: str | None, settings: dict[str, Any], expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert PROVIDERS["openai"].price_list(_judge(profile, **settings)) == expected
