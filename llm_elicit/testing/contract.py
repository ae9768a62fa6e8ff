"""Requirements of the orchestrator on backends, as tests to inherit.

A backend that asks a server over one of the two wire formats inherits `ServedContract`, any other
`BackendContract`; both need pytest, and the first the fixture of `llm_elicit.testing.plugin`.
A plug-in inherits `InCampaigns` as well, before the other, and gives its settings alone.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llm_elicit._util.settings import validate
from llm_elicit.backends import Backend, Capabilities, Reply, Request, open_backend, provider_of
from llm_elicit.backends.base import token_limit
from llm_elicit.backends.failures import Failure
from llm_elicit.config.campaign import Campaign, identity_of
from llm_elicit.config.judges import Judge
from llm_elicit.errors import InputError
from llm_elicit.questions.template import Message, Prompt
from llm_elicit.testing.plugin import Loopback
from llm_elicit.testing.provider import Answer, Error, Resets, Sends

KEY = "sk-contract-0123456789"
"""The API key of the backend under test, if it has one."""

NOWHERE = "http://127.0.0.1:9"


def a_request(replicate: int = 0) -> Request:
    """Return a question that any backend can be asked."""
    messages = (
        Message("system", "You compare two descriptions. Answer with one letter, A or B."),
        Message("user", "A: mass 4000 g\n\nB: mass 40 g"),
    )
    points = (np.array([50.0, 15.0, 200.0, 4000.0]), np.array([35.0, 21.0, 180.0, 2800.0]))
    return Request(Prompt(messages), points, replicate)


class BackendContract(ABC):
    """Requirements on every backend."""

    @abstractmethod
    def backend(self, url: str) -> Backend:
        """Return the backend; its server, if any, is at `url` and its key is `KEY`."""

    def ask(self, url: str, request: Request) -> Reply:
        """Ask once, inside `async with`."""

        async def go() -> Reply:
            async with self.backend(url) as backend:
                return await backend.ask(request)

        return asyncio.run(go())

    def test_it_says_what_it_is(self) -> None:
        """Its identity is text without credentials, its capabilities are declared."""
        backend = self.backend(NOWHERE)
        assert isinstance(backend.capabilities, Capabilities)
        for text in (backend.endpoint, backend.model, backend.account):
            assert isinstance(text, str)
            assert KEY not in text
        assert "@" not in backend.endpoint

    def test_a_body_is_a_pure_function_of_the_request(self) -> None:
        """Cache keys are made from it: it is deterministic, JSON, and without the API key."""
        backend, request = self.backend(NOWHERE), a_request()
        body = json.dumps(backend.body(request), sort_keys=True, allow_nan=False)
        assert body == json.dumps(backend.body(request), sort_keys=True)
        assert KEY not in body

    def test_a_defect_is_not_taken_for_a_failure(self) -> None:
        """Only errors of a request are failures, such as a timeout from outside."""
        backend = self.backend(NOWHERE)
        assert backend.failure(KeyError("a bug")) is None
        failure = backend.failure(TimeoutError())
        assert failure is not None
        assert failure.kind == "timeout"


class ServedContract(BackendContract):
    """Further requirements on backends of a server with one of the known wire formats."""

    def failed(self, url: str) -> Failure:
        """Return the failure that the backend reads from a failed request."""

        async def go() -> Failure | None:
            async with self.backend(url) as backend:
                with pytest.raises(Exception, match=r"(?s).*") as raised:
                    await backend.ask(a_request())
                return backend.failure(raised.value)

        failure = asyncio.run(go())
        assert failure is not None, "failure() returned None for a failed request, as for a bug"
        return failure

    def test_what_is_sent_is_the_body(self, loopback: Loopback) -> None:
        """The reply has the body that was sent, and the provider received it once."""
        provider = loopback(lambda _number, _body: Answer("B"))
        reply = self.ask(provider.url, a_request())
        (request,) = provider.seen
        assert request.body == reply.body == self.backend(provider.url).body(a_request())
        assert (reply.text, reply.finish) == ("B", "stop")
        assert reply.prompt_tokens > 0
        assert reply.completion_tokens > 0

    def test_refusals_and_truncations_are_replies(self, loopback: Loopback) -> None:
        """They are verdicts, not failures."""
        stops = {
            "refusal": Answer("", stop="refusal", refusal="no"),
            "length": Answer("", "length"),
        }
        for finish, says in stops.items():
            provider = loopback(lambda _number, _body, says=says: says)
            assert self.ask(provider.url, a_request()).finish == finish

    @pytest.mark.parametrize("status", [302, 400, 401, 404, 429, 500, 503])
    def test_an_error_response_is_read_and_not_retried(
        self, status: int, loopback: Loopback
    ) -> None:
        """The orchestrator retries; it needs the status and the headers."""
        fails = Error(status, f"no, {KEY}", headers=(("Retry-After", "7"),))
        provider = loopback(lambda _number, _body: fails)
        failure = self.failed(provider.url)
        assert (failure.kind, failure.status) == ("status", status)
        assert failure.headers["retry-after"] == "7"
        assert len(provider.seen) == 1
        assert KEY not in self.backend(provider.url).scrub(failure.message)

    @pytest.mark.parametrize(
        ("action", "kind"),
        [(Resets(), "connection"), (Sends(b"{}"), "malformed"), (Sends(b'{"half'), "malformed")],
        ids=["reset", "no answer", "half an answer"],
    )
    def test_what_is_no_answer_is_a_failure(
        self, action: Any, kind: str, loopback: Loopback
    ) -> None:
        """A broken connection, invalid JSON, and JSON of another form."""
        provider = loopback(lambda _number, _body: action)
        assert self.failed(provider.url).kind == kind
        assert len(provider.seen) == 1

    @pytest.mark.parametrize("text", ["", "A"])
    def test_an_interrupted_answer_is_no_answer(self, text: str, loopback: Loopback) -> None:
        """A failure of the server behind the provider may come with status 200, and beside text."""
        provider = loopback(lambda _number, _body: Answer(text, stop="error"))
        failure = self.failed(provider.url)
        assert failure.kind == "status"
        assert (failure.status or 0) >= 500

    def test_usage_that_is_missing_costs_no_answer(self, loopback: Loopback) -> None:
        """The answer is paid; the orchestrator decides what it counts as."""
        provider = loopback(lambda _number, _body: Answer("B", usage=None))
        reply = self.ask(provider.url, a_request())
        assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("B", 0, 0)

    def test_nobody_there_is_told_apart(self) -> None:
        """Nothing can have been charged for such a request."""
        assert self.failed(NOWHERE).kind == "refused"

    def test_what_the_provider_says_of_limits_is_handed_on(self, loopback: Loopback) -> None:
        """The rate limiter uses it."""
        headers = (("X-RateLimit-Remaining-Requests", "9"),)
        provider = loopback(lambda _number, _body: replace(Answer("A"), headers=headers))
        reply = self.ask(provider.url, a_request())
        assert reply.headers["x-ratelimit-remaining-requests"] == "9"


class InCampaigns(BackendContract):
    """Further requirements on plug-ins: campaigns name them, and their settings are checked."""

    @abstractmethod
    def settings(self, url: str) -> dict[str, Any]:
        """Return the settings of the judge without its name: `backend`, `model` and so on."""

    @pytest.fixture(autouse=True)
    def _key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        judge = self.judge()
        variable: str | None = getattr(judge, "api_key_env", None)
        if variable:
            monkeypatch.setenv(variable, KEY)

    def campaign(self, url: str = NOWHERE, **settings: Any) -> Campaign:
        """Return a campaign with this judge only."""
        judge = {"name": "mine", **self.settings(url), **settings}
        data = {"name": "contract", "space": "penguins", "judges": [judge]}
        return validate(Campaign, data, "contract.yaml")

    def judge(self, url: str = NOWHERE, **settings: Any) -> Judge:
        """Return the judge of that campaign."""
        return self.campaign(url, **settings).judges[0]

    def backend(self, url: str) -> Backend:
        """Return the backend of that campaign."""
        return open_backend(self.judge(url), self.campaign(url).load_space())

    def test_a_campaign_with_it_is_written_down_and_read_back(self) -> None:
        """A run resumes from its folder, so no setting may be lost in it."""
        campaign = self.campaign()
        stored = json.loads(json.dumps(campaign.model_dump(mode="json")))
        again = validate(Campaign, stored, "kept.yaml")
        space = campaign.load_space()
        assert again.judges == campaign.judges
        assert identity_of(again, space) == identity_of(campaign, space)

    def test_a_setting_that_it_does_not_know_is_refused(self) -> None:
        """In one line, which names the setting."""
        with pytest.raises(InputError, match="no_such_setting: unknown key"):
            self.judge(no_such_setting=1)

    def test_speed_and_patience_are_not_part_of_its_identity(self) -> None:
        """They may change between two runs of a campaign."""
        changed = self.judge(concurrency=3, timeout=7.0, attempts=2)
        assert changed.identity() == self.judge().identity()

    def test_no_settings_hold_the_key(self) -> None:
        """They are written into the run's folder."""
        assert KEY not in json.dumps(self.campaign().model_dump(mode="json"))

    def test_a_cap_can_be_held(self) -> None:
        """A request limits the length of the answer, unless asking is free."""
        judge = self.judge()
        if not provider_of(judge).free:
            assert token_limit(self.backend(NOWHERE).body(a_request()))
