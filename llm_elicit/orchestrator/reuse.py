"""What the judges of a run share, and which answers of the cache a judge may reuse.

A provider may change the version of a model behind its name. Which one answers now is known after
the first reply; from then on, the cache is read for that version only. Before that, the cache
answers only if it has an answer to every open question by one version, so that a complete rerun
sends nothing. Otherwise the version is not known yet: the questions without a cached answer are
asked first, and if there are none, one question with a cached answer is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from llm_elicit._util.text import visible
from llm_elicit.backends import Reply
from llm_elicit.comparisons.table import VersionLog, to_the_second
from llm_elicit.errors import JudgeError
from llm_elicit.orchestrator import retries
from llm_elicit.orchestrator.budget import Budget
from llm_elicit.orchestrator.cache import Identity, RunCache
from llm_elicit.orchestrator.journal.schema import Question
from llm_elicit.orchestrator.progress import Progress
from llm_elicit.orchestrator.rate_sharing import RunLimiters
from llm_elicit.orchestrator.request_builder import PreparedQuestion, RequestBuilder
from llm_elicit.orchestrator.writer import Writer

FIRST_ANSWER_TIMEOUT = 5.0
"""Seconds for which other requests wait for the first, which shows what settings are accepted."""

_MAX_PREPARED = 10_000
"""Largest number of prepared requests kept in memory, about 3 KB each."""


@dataclass
class SharedRequest:
    """A request in flight, whose reply answers equal questions, too; no reply if it fails."""

    reply: Reply | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class RunContext:
    """What the judges of a run share.

    Attributes:
        deadline: a time of `clock`.
        unusable: number of answers after which a judge stops if hardly any is usable.
        require: "log_odds" if every answer must have log-odds.
        versions: the versions that have answered, earlier runs included.
        live: the version that answered last in this process, by alias; only its answers in the
            cache are used.
        cached: the versions with answers in the cache, by alias, found while `live` was unknown.
    """

    writer: Writer
    cache: RunCache
    budget: Budget
    progress: Progress
    retry_policy: retries.RetryPolicy
    stopping: asyncio.Event
    limiters: RunLimiters
    deadline: float
    unusable: int | None
    versions: VersionLog
    require: Literal["log_odds"] | None = None
    clock: Callable[[], float] = time.monotonic
    live: dict[str, str] = field(default_factory=dict)
    cached: dict[str, set[str]] = field(default_factory=dict)
    in_flight: dict[Identity, SharedRequest] = field(default_factory=dict)

    def deadline_error(self, judge: str) -> JudgeError | None:
        """Return the error that stops a judge at the deadline; None before it."""
        if self.clock() < self.deadline:
            return None
        return JudgeError(
            f"judge {judge!r}: limits.deadline has passed; its answers so far are kept: run again "
            "to continue"
        )

    async def wait_for_stop(self, seconds: float) -> None:
        """Wait until the run is stopped, for so long or until the deadline."""
        with contextlib.suppress(TimeoutError):
            timeout = min(seconds, self.deadline - self.clock())
            await asyncio.wait_for(self.stopping.wait(), timeout)

    @contextlib.contextmanager
    def sharing(self, key: Identity | None) -> Iterator[SharedRequest]:
        """Yield a request whose reply equal ones may use; without a key, none can find it."""
        request = SharedRequest()
        if key is not None:
            self.in_flight[key] = request
        try:
            yield request
        finally:
            if key is not None:
                del self.in_flight[key]
            request.done.set()


class CacheReader:
    """Reads the cache for one judge.

    Args:
        builder: builds the judge's requests.
        context: what the judges of the run share.
        answered: an event that is set once the first request has ended.

    Attributes:
        has_sent: whether a request has been sent.
    """

    def __init__(
        self, builder: RequestBuilder, context: RunContext, answered: asyncio.Event
    ) -> None:
        self._builder = builder
        self._judge = builder.judge
        self._alias = builder.judge.alias
        self._context = context
        self._answered = answered
        self._common_version: str | None = None
        self._prepared: dict[int, PreparedQuestion] = {}
        self._cache_note = ""
        self.has_sent = False

    def prepare(self, question: Question) -> PreparedQuestion:
        """Return a question with its request, which may have been prepared already."""
        item = self._prepared.pop(question.id, None)
        return self._builder.prepare(question) if item is None else replace(item, question=question)

    async def replies(
        self, page: list[PreparedQuestion]
    ) -> tuple[list[PreparedQuestion], dict[str, Reply]]:
        """Return the questions in the order to ask them, and the cached replies by key."""
        live = self._context.live.get(self._alias)
        if live is None and self._common_version is None and not self.has_sent and page:
            self._common_version = await self._find_common_version(page)
        version = self._common_version if live is None else live
        if version is not None:
            keys = [item.key for item in page if item.key]
            replies = self._context.cache.get_all(keys, version)
            if live is not None or all(item.key and item.key.key in replies for item in page):
                if replies and self._cache_note:
                    self._context.progress.note(self._judge.name, self._cache_note)
                    self._cache_note = ""
                return page, replies
            self._common_version = None  # a question was planned or reopened meanwhile
            self._prepared.clear()
        stored = self._cached_versions(page)
        self._context.cached.setdefault(self._alias, set()).update(*stored)
        order = sorted(range(len(page)), key=lambda number: bool(stored[number]))
        return [page[number] for number in order], {}

    async def _find_common_version(self, page: list[PreparedQuestion]) -> str | None:
        """Return a version with a cached answer to every open question; None if there is none.

        If there are several, it is the one that answered in this run before, else the newest.
        """
        context, name, count = self._context, self._judge.name, 0
        spans: dict[str, tuple[str, str]] | None = None
        while page:
            count += len(page)
            for versions in self._cached_versions(page):
                previous = {v: (at, at) for v, at in versions.items()} if spans is None else spans
                spans = {
                    version: (min(at, previous[version][0]), max(at, previous[version][1]))
                    for version, at in versions.items()
                    if version in previous
                }
                if not spans:
                    self._prepared.clear()
                    return None
            journal, last = context.writer.journal, page[-1].question.id
            others = await context.writer.call(journal.open_after, name, last)
            page = [self._builder.prepare(question) for question in others]
            if len(self._prepared) < _MAX_PREPARED:
                self._prepared |= {item.question.id: item for item in page}
        assert spans
        version = max(spans, key=lambda v: (context.versions.has(name, v), spans[v][1]))
        first, final = map(to_the_second, spans[version])
        self._cache_note = (
            f"all {count:,} open questions are answered from the cache, by {visible(version, 80)}, "
            f"asked {first} to {final}, so nothing is sent; to ask the judge again: llm-elicit "
            "repeat "
            f"{self._builder.study.folder}"
        )
        return version

    def _cached_versions(self, page: list[PreparedQuestion]) -> list[dict[str, str]]:
        """Return, for each question, the versions with a cached answer and when it was stored."""
        stored = self._context.cache.versions([item.key for item in page if item.key])
        return [stored.get(item.key.key, {}) if item.key else {} for item in page]

    async def reply(self, key: Identity) -> Reply | None:
        """Return the cached answer to a request by the version that answers now, if any.

        As long as that version is not known, one question with a cached answer is asked, and the
        others wait for its reply.
        """
        cache, live, alias = self._context.cache, self._context.live, self._alias
        if alias not in live:
            if cache.get(key) is None:
                return None
            if self.has_sent:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._answered.wait(), FIRST_ANSWER_TIMEOUT)
        return cache.get(key, live[alias]) if alias in live else None

    def learn(self, version: str) -> None:
        """Record which version answers now; note if the cached answers are of other versions."""
        context, alias = self._context, self._alias
        older = context.cached.get(alias, set())
        if alias not in context.live and older and version not in older:
            names = ", ".join(visible(name, 80) for name in sorted(older))
            context.progress.note(
                self._judge.name,
                f"{visible(version, 80) or 'a model without a name'} answers now; cached answers "
                f"of {names} are not used",
            )
        context.live[alias] = version
