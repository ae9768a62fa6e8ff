"""A provider's key that the provider echoes leaves the service by no answer, event or log.

By raw HTTP, but for the waiting: it is about the text of all answers.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from llm_elicit.testing.provider import Action, Answer, Error, Provider, Sends, completion
from tests.service.serving import Served, is_in, serving, until
from tests.service.test_campaigns import campaign

KEY = "sk-canary/of+the tests".replace(" ", "-")
FORMS = (KEY, quote(KEY, safe=""), base64.b64encode(f"user:{KEY}".encode()).decode())
PATHS = (
    "", "/campaign", "/comparisons", "/comparisons?format=csv", "/beliefs", "/audit", "/report",
    "/estimate", "/links", "/events",
)  # fmt: skip


def echo(number: int, body: dict[str, Any]) -> Action:
    """Answer with the key in every text, and every third time by an error that holds it."""
    form = FORMS[number % 3]
    if number % 3 == 0:
        return Error(500, f"no access for {KEY} or {form}")
    whole = completion(Answer(form if number % 5 == 0 else "A", thinking=form), body)
    whole["choices"][0]["finish_reason"] = form
    return Sends(json.dumps({**whole, "model": f"m {form}"}).encode())


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider(echo) as one:
        yield one


@pytest.fixture(scope="module")
def served(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that knows the key."""
    allowed = {
        "backend": "openai", "base_url": provider.url, "api_key_env": "CANARY_KEY",
        "price": {"input": 1, "output": 1},
    }  # fmt: skip
    settings = {"judges": [allowed, {"backend": "simulated"}], "bounds": {"max_cost": 5}}
    folder = tmp_path_factory.mktemp("service")
    with serving(folder, settings=settings, CANARY_KEY=KEY, OPENAI_API_KEY=KEY) as one:
        yield one


def test_a_providers_key_leaves_by_nothing(provider: Provider, served: Served) -> None:
    judge = {"name": "gpt", "backend": "openai", "model": "m", "attempts": 3,
             "base_url": provider.url, "api_key_env": "CANARY_KEY"}  # fmt: skip
    with served.client() as client, served.api() as api:
        data = campaign("canary", judges=[judge], limits={"max_cost": 1}, design={"pairs": 12},
                        space="penguins")  # fmt: skip
        sent = client.post("/api/v1/campaigns", json=data)
        assert sent.status_code == 201, sent.text
        ended = until(api.run("canary"), is_in("done", "failed"))
        assert ended.judges["gpt"].errors > 0
        said = [sent.text, *(client.get(f"/api/v1/campaigns/canary{path}").text for path in PATHS)]
        said += [client.get(path).text for path in ("/metrics", "/api/v1/models", f"/{KEY}")]
        said.append(client.post("/api/v1/campaigns", json=data | {"name": KEY}).text)
        said.append(served.whole_log())
    for form in FORMS:
        assert not [text for text in said if form in text]


def test_a_failure_says_nothing_to_the_caller_and_all_to_the_log(served: Served) -> None:
    """A run's folder that is broken on purpose: the answer has no detail, the log no key."""
    with served.client() as client, served.api() as api:
        until(api.start(campaign("broken"), paused=True), is_in("paused"))
        report = served.runs / "broken" / "report.html"
        while not report.with_name("campaign.yaml").is_file():  # it waits before it is planned
            time.sleep(0.05)
        report.write_bytes(b"\xff\xfe" + KEY.encode())
        answer = client.get("/api/v1/campaigns/broken/report")
        assert answer.status_code == 500
        assert answer.json()["detail"] == "the service failed; its log says why"
        log = served.whole_log()
        assert "UnicodeDecodeError" in log
        assert KEY not in log
