"""OpenAI's models, and other servers of chat completions, through the openai SDK."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends import wire
from llm_elicit.backends.base import (
    Capabilities,
    Notify,
    Reply,
    Request,
    SettingDroppedError,
    ignore_note,
    limit_headers,
    merge_fields,
)
from llm_elicit.backends.batches import (
    TAG,
    BatchClient,
    BatchLimits,
    BatchRequest,
    BatchResult,
    BatchState,
    Options,
    due_to_request,
)
from llm_elicit.backends.chat_completions import MIN_MASS, letter_ids, read_completion
from llm_elicit.backends.failures import (
    MalformedReplyError,
    UpstreamError,
    error_fields,
    one_line,
    refuses_prompt,
)
from llm_elicit.backends.row_likelihood import NoEchoError, ask_row, row_body
from llm_elicit.backends.sdk import SDKBackend
from llm_elicit.config.judges import OpenAIJudge
from llm_elicit.config.profiles import filled
from llm_elicit.questions.template import Prompt

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")

_TOP_LOGPROBS = 20
"""Number of log-probabilities requested for each token: the API's maximum."""

_FALLBACK_COUNTS = (5, 1, 0)
"""Numbers of log-probabilities to try if a server allows fewer and does not say how many."""

_VOCABULARIES = (
    ("o200k_base", re.compile(r"(gpt-4o|gpt-4\.[15]|gpt-5|o[134]\b|chatgpt-4o)")),
    ("cl100k_base", re.compile(r"(gpt-4|gpt-3\.5)(-|$)")),
)

_SETTING_STATUSES, _DOUBTFUL_STATUSES = (400, 403, 422), (404, 500, 501, 502)
"""Statuses of a refused setting; with the doubtful ones, the message has to say so."""

_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
_LOGPROBS = frozenset({"logprobs", "top_logprobs", "top_n_tokens"})
"""Names of the settings of log-probabilities, the last in the messages of TGI."""

_PARAMETERS = frozenset({
    "model", "messages", "temperature", "top_p", "seed", "stop", "stream", "n", "response_format",
    "presence_penalty", "frequency_penalty", "logit_bias", "reasoning_effort", *_LOGPROBS,
    *_TOKEN_LIMITS,
})  # fmt: skip
_WORDS_FOR = {
    **{name: re.compile(rf"\b{name}\b", re.IGNORECASE) for name in _TOKEN_LIMITS},
    "logprobs": re.compile(r"log[ _-]?prob(?:s|abilit)|\btop_n_tokens\b", re.IGNORECASE),
}
"""How messages name the settings that are optional."""

_ECHO = re.compile(r"\binput(?:_value)?[\\'\"]*\s*[:=]\s*[\[{].*", re.DOTALL)
"""The request as validators repeat it, with every setting and the numbers of the question."""

_UNKNOWN = re.compile(
    r"(?:n't|\bnot|\bnever) (?:\w+ )?(?:support|allow|permit|accept|recogni|available|implement|"
    r"enabled|compatib)|\bunsupported|\bunrecogni|\bunknown|\bunexpected|\bextra|"
    r"\bno endpoints|\bcannot be|\bincompatib|\bdisabled|\bonly (?:support|allow|available)",
    re.IGNORECASE,
)
"""Words for a setting that a server does not take at all."""

_THAN = r"(?:less|lower|fewer|smaller) than"
_NUMBER, _END = r"(?P<most>\d{1,4})", r"(?:\.0+)?(?![\w-]|\.\d)"
_LIMITS = [
    re.compile(words, re.IGNORECASE)
    for words in (
        rf"(?:<=|\u2264|\blt?e\b|\bmost\b|\bmax(?!\w*token)\w*\.?|limit\w*|\bup to\b|exceed\w*|"
        rf"\babove\b|\bover\b|(?:greater|more|higher|larger) than|{_THAN},? or equal|"
        rf"(?<!not )\ballowed\b|\bsupports|\ballows|\baccepts|\bpermits|"
        rf"(?P<below><|\blt\b|\bbelow\b|\bunder\b|{_THAN}))"
        rf"(?:(?!\bthan\b)[^\d.;<]){{,40}}{_NUMBER}{_END}",
        rf"(?<![\w.-])\d+(?:\s*(?:[,\u2013-]|\.\.+|to|through|and|or)\s*{_NUMBER})+{_END}",
        rf"\bonly {_NUMBER}{_END}",
        rf"(?<![\w.-]){_NUMBER}(?: [a-z_]+){{,3}} (?:at most|or (?:fewer|less)|max)",
    )
]
"""Ways to say how many alternatives a server lists: a bound, a range or a list of numbers."""

_BAD_VALUES = ("invalid_value", "integer_above_max_value", "integer_below_min_value")
_FINAL_STATES = frozenset({"completed", "failed", "expired", "cancelled"})


class OpenAIBackend(SDKBackend):
    """A model behind chat completions.

    Three settings are changed for the rest of the run if the server refuses them: fewer
    alternatives of a token are asked for, log-probabilities are dropped (judgments are then hard),
    and the token limit is sent under its other name (`max_completion_tokens` at OpenAI,
    `max_tokens` elsewhere). A temperature or seed that the user set is never dropped.

    Once a letter is not among the alternatives, the log-probabilities of the letters' own tokens
    are asked for where the server offers it: they are exact, not bounds.
    """

    capabilities = Capabilities(
        temperature=True, seed=True, logprobs=True, structured=True, batch=True, text=True,
        likelihood=True,
    )  # fmt: skip
    _judge: OpenAIJudge

    def __init__(self, judge: OpenAIJudge, notify: Notify = ignore_note) -> None:
        super().__init__(judge, openai, "chat/completions")
        self._notify = notify
        self._letter_ids: dict[tuple[str, str], list[int]] = {}
        wire_format = self._wire_format
        self._limit_name: str = wire_format.token_limit
        self._max_logprobs = wire_format.logprobs or _TOP_LOGPROBS
        self._logprob_count = self._max_logprobs if judge.logprobs else 0
        self._takes_ids = bool(wire_format.token_ids)
        self._echo, self._listed = True, _TOP_LOGPROBS

    def body(self, request: Request) -> dict[str, Any]:
        """Return the body that `ask` would send now: of chat completions, or of a row's."""
        if request.direct and request.direct.row:
            body = row_body(request, self.model, echo=self._echo, listed=self._listed)
            return merge_fields(body, self._judge.extra_body)
        body = {
            "model": self.model,
            "messages": _messages(request.prompt, self._wire_format.system_role),
            self._limit_name: request.token_limit(
                self._judge.max_tokens, self._judge.least_tokens, self._judge.thinking_room
            ),
        }
        if self._judge.seed is not None:
            # Replicates with the same seed would be equal.
            body[self._wire_format.seed] = self._judge.seed + request.replicate
        if self._logprob_count and request.answer == "letter":
            body |= filled(self._wire_format.logprobs_fields, self._logprob_count)
            if self._takes_ids and self._letter_ids.get(request.options):
                body[self._wire_format.token_ids] = self._letter_ids[request.options]
        return self._with_settings(body, request)

    def adopt(self, settings: Mapping[str, Any]) -> None:
        """Send later requests with the optional settings of one about a pair that was answered."""
        count = settings.get("top_logprobs", settings.get("logprobs"))
        self._logprob_count = count if type(count) is int else 0
        self._limit_name = next(
            (name for name in _TOKEN_LIMITS if name in settings), self._limit_name
        )

    async def ask(self, request: Request) -> Reply:
        """Ask one question once."""
        body = self.body(request)
        named = self._wire_format.token_ids in body
        read = partial(read_completion, body=body, options=request.options, named=named)
        try:
            if request.direct and request.direct.row:
                return await self._ask_row(request, body)
            reply = await self._send(body, read)
        except UpstreamError as error:
            self._adapt(error.failure.status, error.fields, error.failure.message, body)
            raise
        # Letters that are too unlikely together have no log-odds however they are asked for.
        if reply.censored or (reply.first is None and (reply.letter_mass or 0.0) >= MIN_MASS):
            await self._name_letters(request.options, named=named)
        return reply

    async def _name_letters(self, options: tuple[str, str], *, named: bool) -> None:
        """Ask for the letters' own tokens from now on, after a letter was not listed.

        Args:
            options: the letters.
            named: whether they were asked for already.
        """
        field = self._wire_format.token_ids
        if not self._takes_ids or (not named and options in self._letter_ids):
            return
        self._letter_ids[options] = []
        if not named:
            first, second = options
            text = f"\n{first} {first}\n{second} {second}"
            fields = {"model": self.model, "prompt": text, "add_special_tokens": False}
            with contextlib.suppress(UpstreamError, MalformedReplyError):
                _, content = await self._send_plain(
                    fields | {"return_token_strs": True}, "../tokenize"
                )
                self._letter_ids[options] = letter_ids(wire.parse_json(content), options)
        self._takes_ids = bool(self._letter_ids[options])
        if self._takes_ids:
            change = f"; its token is asked for from now on ({field})"
        else:
            reason = (
                f"not even by {field}" if named else f"and the server names no tokens for {field}"
            )
            change = f", {reason}; its log-probability is taken as a bound"
        self._notify(f"{self.model}: a letter is not among the alternatives{change}")

    async def _ask_row(self, request: Request, body: dict[str, Any]) -> Reply:
        """Return the likelihood of a row; the headers are those of the last request."""
        headers: Mapping[str, str] = {}

        async def complete(body: dict[str, Any]) -> wire.Completion:
            nonlocal headers
            headers, content = await self._send_plain(body, "completions")
            return wire.read_answer(wire.Completion, wire.parse_json(content))

        try:
            reply = await ask_row(complete, request, body)
        except NoEchoError:
            raise self._without_echo() from None
        return replace(reply, headers=limit_headers(headers))

    def _without_echo(self) -> SettingDroppedError:
        self._echo = False
        return SettingDroppedError(
            f"{self.model}: the server does not return the log-probabilities of a prompt; rows are "
            "asked for token by token"
        )

    def _adapt(
        self, status: int | None, error: Mapping[str, Any], text: str, body: dict[str, Any]
    ) -> None:
        """Change the setting that the server refuses, if it is optional.

        Raises:
            SettingDroppedError: the setting was changed, now or by another request meanwhile.
        """
        text = _ECHO.sub("", text)
        if status not in _SETTING_STATUSES and not (
            status in _DOUBTFUL_STATUSES and (_UNKNOWN.search(text) or _limits_in(text))
        ):
            return
        field = self._wire_format.token_ids
        if field and field in body and field in f"{error.get('param')} {text}":
            self._takes_ids = False
            raise SettingDroppedError(
                f"{self.model}: the server refuses {field}; the log-probability of a letter that "
                "is not among the alternatives is taken as a bound"
            ) from None
        if "prompt" in body:
            refused_count = _max_allowed(error, text, body["logprobs"])
            if _WORDS_FOR["logprobs"].search(text) and 0 < refused_count < body["logprobs"]:
                self._listed = min(self._listed, refused_count)
                raise SettingDroppedError(
                    f"{self.model}: the server lists {self._listed} alternatives of a token, not "
                    f"{_TOP_LOGPROBS}"
                ) from None
            if body.get("echo"):
                raise self._without_echo() from None
            return
        # A `param` that names no setting, such as "None", says nothing.
        refused = set(re.findall(r"\w+", str(error.get("param")))) & (body.keys() | _PARAMETERS)
        refused = refused or {name for name, words in _WORDS_FOR.items() if words.search(text)}
        if "logprobs" in body and refused & _LOGPROBS:
            if body.get("top_logprobs", body["logprobs"]) == self._logprob_count:
                self._logprob_count = _max_allowed(error, text, self._logprob_count)
            if self._logprob_count:
                raise SettingDroppedError(
                    f"{self.model}: the server returns {self._logprob_count} log-probabilities per "
                    f"token, not {self._max_logprobs}"
                ) from None
            raise SettingDroppedError(
                f"{self.model}: the server returns no log-probabilities; answers count as choices"
            ) from None
        sent = self._wire_format.token_limit
        # If the code refers to the value, the name is correct and the user must change the value.
        if sent in body and sent in refused and error.get("code") not in _BAD_VALUES:
            self._limit_name = next(name for name in _TOKEN_LIMITS if name != sent)
            raise SettingDroppedError(
                f"{self.model}: the server accepts {self._limit_name}, not {sent}"
            ) from None


def _messages(prompt: Prompt, system_role: str) -> list[dict[str, str]]:
    """Return the messages of a prompt, with the instructions in the role that the server takes."""
    if system_role == "user" and prompt.system and prompt.turns:
        first, *others = prompt.turns
        first = replace(first, content=f"{prompt.system}\n\n{first.content}")
        return [{"role": m.role, "content": m.content} for m in (first, *others)]
    return [
        {"role": system_role if m.role == "system" else m.role, "content": m.content}
        for m in prompt.messages
    ]


def vocabulary(judge: OpenAIJudge) -> str | None:
    """Return the name of the tokenizer of OpenAI's own models; None for others."""
    if judge.profile or judge.base_url:
        return None
    return next((name for name, models in _VOCABULARIES if models.match(judge.model)), None)


def _limits_in(text: str) -> list[int]:
    """Return the most alternatives of a token, as far as a message says.

    Examples:
        >>> _limits_in("expected 0 <= top_logprobs <= 5 at line 1 column 12")
        [5]
        >>> _limits_in("must be less than 6"), _limits_in("one of 0, 1, 2 or 3"), _limits_in("no")
        ([5], [3], [])
    """
    matches = (match for words in _LIMITS for match in words.finditer(text))
    return [int(match["most"]) - bool(match.groupdict().get("below")) for match in matches]


def _max_allowed(error: Mapping[str, Any], text: str, sent: int) -> int:
    """Return how many alternatives a server allows that refused `sent`; 0 for none at all.

    Examples:
        >>> _max_allowed({}, "top_logprobs must be between 0 and 5, got 20", 20)
        5
        >>> _max_allowed({}, "m3 does not support logprobs", 20)
        0
        >>> _max_allowed({}, "bad top_logprobs", 20)
        5
    """
    smaller = [number for number in _limits_in(text) if number < sent]
    if smaller:
        return max(smaller)
    words = f"{error.get('code')} {error.get('type')} {text}".replace("_", " ")
    return (
        0
        if _UNKNOWN.search(words)
        else next((number for number in _FALLBACK_COUNTS if number < sent), 0)
    )


class OpenAIBatchClient(BatchClient):
    """OpenAI's Batch API: a file of requests, and files of answers and errors."""

    limits = BatchLimits(count=50_000, size=200_000_000)
    tagged = True
    _row = wire.OpenAIRow
    _client: openai.AsyncOpenAI

    def __init__(self, judge: OpenAIJudge) -> None:
        super().__init__(judge, openai)

    async def submit(self, requests: Sequence[BatchRequest], tag: str) -> str:
        """Upload the requests, then create the batch. Only the second step costs anything."""
        url: Any = self._path
        rows = (
            {"custom_id": request.custom_id, "method": "POST", "url": url, "body": request.body}
            for request in requests
        )
        content = io.BytesIO("\n".join(json.dumps(row) for row in rows).encode())
        file = wire.validate_answer(
            wire.Created,
            await self._client.files.create(file=(f"{tag}.jsonl", content), purpose="batch"),
        )
        batch = await self._batches.create(
            input_file_id=file.id, endpoint=url, completion_window="24h", metadata={TAG: tag}
        )
        return wire.validate_answer(wire.Created, batch).id

    async def results(self, batch: str, options: Options) -> AsyncIterator[BatchResult]:
        """Yield the results of a batch that ended, including requests that expired."""
        record = wire.validate_answer(wire.OpenAIBatch, await self._batches.retrieve(batch))
        for file in (record.output_file_id, record.error_file_id):
            if file is not None:
                content = self._client.files.with_streaming_response.content(file)
                async for result in self._results(content, options):
                    yield result

    @property
    def _batches(self) -> Any:
        return self._client.batches

    def _state(self, raw: object) -> BatchState:
        batch = wire.validate_answer(wire.OpenAIBatch, raw)
        counts = batch.request_counts or wire.OpenAICounts()
        problems = (batch.errors and batch.errors.data) or []
        return BatchState(
            id=batch.id,
            ended=batch.status in _FINAL_STATES,
            status=self._clean(batch.status),
            total=counts.total,
            done=counts.completed + counts.failed,
            created=batch.created_at,
            tag=(batch.metadata or {}).get(TAG),
            error=self._clean("; ".join(str(p.message) for p in problems[:3])) or None,
        )

    def _outcome(self, row: wire.OpenAIRow, options: Options) -> BatchResult:
        name, response = row.custom_id, row.response
        if response is None:
            error = error_fields(row.error)
            reason = str(error.get("message") or error.get("code") or "no answer")
            return BatchResult(name, reason=one_line(reason))
        if response.status_code == 200:
            return BatchResult(name, reply=read_completion(response.body, {}, options(name)))
        status, fields = response.status_code, error_fields(response.body)
        reason = one_line(f"error {status}: {fields.get('message', 'no message')}")
        code = f"{fields.get('code')} {fields.get('type')}"
        return BatchResult(
            name, reason=reason, refused=due_to_request(status),
            prompt_refused=refuses_prompt(status, code, reason),
        )  # fmt: skip
