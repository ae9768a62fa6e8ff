"""Rate sharing: limiters shared by the runs of a process, and limits shared by workers.

Runs with the same `RateLimiters` share one limiter for each endpoint, account and model, even in
different threads or event loops. A limiter is kept for a minute after its last run, so that the
next run starts at the measured rate. If runs have different fixed limits, the strictest applies to
all. Runs with different `RateLimiters` are independent: each keeps within its limits, but together
they may exceed them.

Workers that share a journal divide every limit evenly. They read the number of live workers from
the journal every other second. If there is a fixed limit, a worker that joins sends nothing until
the others have had time to notice it. A dead worker keeps its share until its lease expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from llm_elicit.backends import Backend
from llm_elicit.backends.base import is_local
from llm_elicit.config.judges import Judge
from llm_elicit.orchestrator.rate_limiter import RateLimiter
from llm_elicit.orchestrator.writer import Writer

LOW_START, START = 8.0, 32.0
"""Initial requests in flight: LOW_START for a server on this machine or network, else START."""

UNUSED_SECONDS = 60.0
"""Seconds for which an unused limiter is kept."""

COUNT_WORKERS_SECONDS = 2.0
"""Seconds between two counts of the workers."""

Key = tuple[str, str, str]
"""Endpoint, account and model."""


class _Queue:
    """The waiting requests of one event loop.

    Runs take turns, however many requests each of them has waiting. The requests of one run are
    sent in order of arrival.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._head = asyncio.Lock()
        self._run_locks: WeakKeyDictionary[asyncio.Event, asyncio.Lock] = WeakKeyDictionary()
        self.changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def turn(self, halt: asyncio.Event) -> AsyncIterator[None]:
        """Wait until a request of a run, known by its `halt` event, is at the head of the queue."""
        async with self._run_locks.setdefault(halt, asyncio.Lock()), self._head:
            yield

    def wake(self) -> None:
        """Let the first request check again; may be called in any thread."""
        try:
            in_loop = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            in_loop = False
        if in_loop:
            self.changed.set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.changed.set)


class SharedLimiter:
    """A thread-safe rate limiter for the requests of several runs.

    Args:
        limiter: computes how long to wait; it is not thread-safe itself.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._lock = threading.Lock()
        self._queues: dict[asyncio.AbstractEventLoop, _Queue] = {}
        self._fixed: dict[object, tuple[float | None, float | None]] = {}
        self.unused_since: float | None = None

    @property
    def unused(self) -> bool:
        """Whether no run uses the limiter."""
        return not self._fixed

    async def enter(self, halt: asyncio.Event, tokens: float) -> float | None:
        """Wait until a request may be sent, or until `halt` is set.

        Args:
            halt: the run's event that stops waiting; call `wake` after setting it.
            tokens: an estimate of the tokens of the request.

        Returns:
            The time at which the request may be sent, after which one of the
            `record_` methods must be called; None if `halt` was set.
        """
        queue = self._queue()
        async with queue.turn(halt):
            while not halt.is_set():
                queue.changed.clear()
                with self._lock:
                    now = time.monotonic()
                    delay = self._limiter.delay(now)
                    if delay <= 0.0:
                        self._limiter.record_sent(now, tokens)
                        return now
                with contextlib.suppress(TimeoutError):
                    seconds = delay if math.isfinite(delay) else None
                    await asyncio.wait_for(queue.changed.wait(), seconds)
        return None

    def _queue(self) -> _Queue:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._queues:
                self._queues[loop] = _Queue()
            return self._queues[loop]

    def record_answer(self, sent_at: float, **outcome: Any) -> None:
        """Count an answer, see `RateLimiter.record_answer`."""
        with self._lock:
            self._limiter.record_answer(time.monotonic(), sent_at, **outcome)
        self.wake()

    def record_refusal(self, sent_at: float, **outcome: Any) -> None:
        """Count a refusal, see `RateLimiter.record_refusal`."""
        with self._lock:
            self._limiter.record_refusal(time.monotonic(), sent_at, **outcome)
        self.wake()

    def record_failure(self) -> None:
        """Count a request that failed for reasons other than the rate."""
        with self._lock:
            self._limiter.record_failure()
        self.wake()

    def wake(self) -> None:
        """Let waiting requests check again: one ended, or they should stop."""
        with self._lock:
            queues = list(self._queues.values())
        for queue in queues:
            queue.wake()

    def register(
        self, run: object, requests: float | None, tokens: float | None, hold: float = 0.0
    ) -> None:
        """Register a run that uses this limiter, and its fixed limits per second.

        Args:
            run: identifies the run.
            requests, tokens: its limits; None for none.
            hold: if there is a fixed limit, seconds for which nothing is sent.
        """
        with self._lock:
            self._fixed[run] = (requests, tokens)
            self._apply_strictest()
            if hold and (requests or tokens):
                self._limiter.pause_until(time.monotonic() + hold)
        self.wake()

    def scale(self, factor: float) -> None:
        """Scale the measured rate, when workers join or leave."""
        with self._lock:
            self._limiter.scale(factor)

    def leave(self, run: object) -> None:
        """Unregister a run."""
        with self._lock:
            self._fixed.pop(run, None)
            self._apply_strictest()
            self._queues = {loop: q for loop, q in self._queues.items() if not loop.is_closed()}
            self.unused_since = time.monotonic()
        self.wake()

    def _apply_strictest(self) -> None:
        limits = zip((None, None), *self._fixed.values(), strict=True)
        self._limiter.set_limits(*map(_strictest, limits))


class RateLimiters:
    """The rate limiters that runs share, by endpoint, account and model.

    They may be used from any number of threads and event loops at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limiters: dict[Key, SharedLimiter] = {}

    def of(
        self, key: Key, run: object, requests: float | None, tokens: float | None, hold: float
    ) -> SharedLimiter:
        """Return the limiter of an endpoint, account and model, and register the run."""
        now = time.monotonic()
        with self._lock:
            self._limiters = {
                endpoint: limiter
                for endpoint, limiter in self._limiters.items()
                if not limiter.unused or now - (limiter.unused_since or now) <= UNUSED_SECONDS
            }
            if key not in self._limiters:
                window = LOW_START if is_local(key[0]) else START
                self._limiters[key] = SharedLimiter(RateLimiter(now, window))
            self._limiters[key].register(run, requests, tokens, hold)
            return self._limiters[key]


class RunLimiters:
    """The limiters of one run; call `close` when it ends.

    Args:
        limiters: the limiters shared with other runs; by default new ones.
    """

    def __init__(self, limiters: RateLimiters | None = None) -> None:
        self._shared_limiters = limiters or RateLimiters()
        self._workers = 1
        self._paused_until = -math.inf
        self._used: dict[Key, tuple[SharedLimiter, float | None, float | None]] = {}

    def of(self, judge: Judge, backend: Backend) -> SharedLimiter:
        """Return the limiter of a judge's endpoint, account and model."""
        key = (backend.endpoint, backend.account, backend.model)
        own = (_per_second(judge, "requests_per_minute"), _per_second(judge, "tokens_per_minute"))
        # The strictest limit of an account's judges applies to all of them.
        previous = self._used[key][1:] if key in self._used else (None, None)
        requests, tokens = map(_strictest, zip(own, previous, strict=True))
        hold = max(self._paused_until - time.monotonic(), 0.0)
        limiter = self._shared_limiters.of(
            key, self, self._per_worker(requests), self._per_worker(tokens), hold
        )
        self._used[key] = (limiter, requests, tokens)
        return limiter

    def divide(self, workers: int) -> None:
        """Divide the limits by the number of workers that share them."""
        if workers == self._workers:
            return
        previous, self._workers = self._workers, workers
        for limiter, requests, tokens in self._used.values():
            limiter.scale(previous / workers)
            limiter.register(self, self._per_worker(requests), self._per_worker(tokens))

    def pause(self, seconds: float) -> None:
        """Send nothing for some seconds if there is a fixed limit."""
        self._paused_until = time.monotonic() + seconds

    def _per_worker(self, limit: float | None) -> float | None:
        return None if limit is None else limit / self._workers

    def close(self) -> None:
        """Unregister the run from all limiters."""
        for limiter, _, _ in self._used.values():
            limiter.leave(self)


def _strictest(limits: Iterable[float | None]) -> float | None:
    return min((limit for limit in limits if limit), default=None)


def _per_second(judge: Judge, name: str) -> float | None:
    per_minute = getattr(judge, name, None)
    return per_minute / 60.0 if per_minute else None


@contextlib.asynccontextmanager
async def sharing_limits(writer: Writer, limiters: RunLimiters) -> AsyncIterator[None]:
    """Keep this worker's share of every limit up to date inside the `async with` block."""

    async def update_share() -> None:
        while True:
            await asyncio.sleep(COUNT_WORKERS_SECONDS)
            limiters.divide(await writer.workers())

    task: asyncio.Task[None] | None = None
    try:
        if writer.shared:
            workers = await writer.workers()
            limiters.divide(workers)
            if workers > 1:
                limiters.pause(2.0 * COUNT_WORKERS_SECONDS)
            task = asyncio.create_task(update_share())
        yield
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        limiters.close()
