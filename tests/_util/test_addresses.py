"""Addresses and keys that cannot be used, or would be written down with a secret."""

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest

from llm_elicit._util.settings import validate
from llm_elicit.backends import open_backend
from llm_elicit.backends.base import scrub_secrets
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError

SECRET = "hunter2-hunter2"


def _campaign(**judge: Any) -> Campaign:
    data = {"name": "mine", "backend": "openai", "model": "m", **judge}
    return validate(Campaign, {"name": "try", "space": "penguins", "judges": [data]}, "c.yaml")


@pytest.mark.parametrize("backend", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("url", "rule"),
    [
        (f"https://me:{SECRET}@host.example/v1", "api_key_env"),
        (f"https://{SECRET}@host.example/v1", "api_key_env"),
        (f"https://host.example/v1?key={SECRET}", "api_key_env"),
        (f"https://host.example/v1#{SECRET}", "api_key_env"),
        (f"https://me:{SECRET}@host.example:port/v1", "must be an address"),
        ("host.example/v1", "must be an address"),
        ("localhost:8000/v1", "must be an address"),
        ("ftp://host.example/v1", "must be an address"),
        ("http://", "must be an address"),
        ("http:///v1", "must be an address"),
        ("http://host.example:99999/v1", "must be an address"),
        ("http://host.example:0/v1", "must be an address"),
        ("http://ho st.example/v1", "must be an address"),
        ("http://host.example/v1\nX: y", "must be an address"),
        ("http://[::1/v1", "must be an address"),
        ("http://host..example/v1", "must be an address"),
        ("", "must be an address"),
    ],
)
def test_a_bad_address_is_refused_at_load(backend: str, url: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule) as raised:
        _campaign(backend=backend, base_url=url)
    said = str(raised.value)
    assert said.startswith("c.yaml: judges.0.base_url: ")
    assert "needs at least 1" not in said  # a judge that is refused is not one that is missing
    assert "\n" not in said
    assert SECRET not in said


@pytest.mark.parametrize(
    "url",
    ["http://localhost:8000/v1", "https://host.example", "http://[::1]:8000/v1",
     "http://my_host/v1", "http://bücher.example/v1", "http://10.0.0.1:1/"],
)  # fmt: skip
def test_a_good_address_is_taken(url: str) -> None:
    assert getattr(_campaign(base_url=url).judges[0], "base_url") == url  # noqa: B009


@pytest.mark.parametrize(
    "address",
    [f"postgresql://me:{SECRET}@h/db", f"postgresql://h/db?password={SECRET}",
     f"postgresql://h/db?sslpassword={SECRET}", "postgresql://h:port/db", "postgresql://[h/db",
     "mysql://h/db", "postgresql://h/d b"],
)  # fmt: skip
def test_a_journal_s_address_is_checked_at_load(address: str) -> None:
    data = {
        "name": "try", "space": "penguins", "journal": address,
        "judges": [{"name": "expert", "backend": "simulated"}],
    }  # fmt: skip
    with pytest.raises(InputError, match=r"c.yaml: journal: ") as raised:
        validate(Campaign, data, "c.yaml")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("backend", ["openai", "anthropic"])
@pytest.mark.parametrize("key", ["sk-né", "sk-a\nX-Other: b", "sk a", "sk-\x07", "sk-…"])
def test_a_key_that_no_header_takes_is_refused_when_it_is_read(
    backend: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    campaign = _campaign(backend=backend, api_key_env="MY_KEY", base_url="http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"character \d+ of the key .* MY_KEY") as raised:
        open_backend(campaign.judges[0], campaign.load_space())
    assert key not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OPENAI_BASE_URL", f"https://me:{SECRET}@host.example/v1"),
        ("OPENAI_BASE_URL", "nonsense"),
        ("OPENAI_ORG_ID", "né"),
        ("HTTPS_PROXY", "nonsense://h"),
        ("SSL_CERT_FILE", "/nowhere/at/all.pem"),
    ],
)
def test_what_an_sdk_reads_of_the_environment_is_one_line(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    monkeypatch.setenv(variable, value)
    campaign = _campaign()
    with pytest.raises(InputError, match="judge 'mine'") as raised:
        open_backend(campaign.judges[0], campaign.load_space())
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_key_is_blotted_out_in_every_form() -> None:
    key = 'sk-a/b+c="d\\e'
    for text in (
        key, quote(key, safe=""), quote(key), json.dumps({"said": key}),
        *(base64.b64encode(f"{before}{key}{after}".encode()).decode()
          for before in ("", "u:", "me:", "you:") for after in ("", ":", "xy")),
    ):  # fmt: skip
        assert "[key]" in scrub_secrets(f"before {text} after", key), text
    assert scrub_secrets("A, or B", "A") == "A, or B", "no key is that short, and answers are"
    assert scrub_secrets("text") == "text"
