"""Where requests wait for their turn: one turnstile an endpoint, account and model."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

from llm_elicit.backends import Backend
from llm_elicit.backends.base import is_local
from llm_elicit.campaign import Judge
from llm_elicit.orchestrator.pace import Pace, PaceSettings

LOW_START = 8.0
"""Requests in flight at first at a server on this machine or network, which may be a small one."""


class Turnstile:
    """Lets requests through at a pace; those that wait do so in the order they came.

    Judges that share an account at a model share its turnstile, and so a cool-down.

    Args:
        pace: decides how long to wait.
        clock: monotonic seconds; the one that `pace` was made with.
    """

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self.pace = pace
        self._clock = clock
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def enter(self, halt: asyncio.Event, tokens: float) -> float | None:
        """Wait for a turn; None if `halt` was set first.

        Args:
            halt: whoever sets it calls `wake` as well.
            tokens: what the request may take, by a guess.

        Returns:
            The clock when the request may leave; whoever gets it must tell `pace` how it ended.
        """
        async with self._turn:
            while not halt.is_set():
                now = self._clock()
                delay = self.pace.delay(now)
                if delay <= 0.0:
                    self.pace.sent(now, tokens)
                    return now
                await self._sleep(delay)
        return None

    async def _sleep(self, delay: float) -> None:
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), delay if math.isfinite(delay) else None)
        except TimeoutError:
            return

    def wake(self) -> None:
        """Look again: a request ended, or whoever waits should stop."""
        self._changed.set()


class Turnstiles:
    """The turnstiles of a run, made when first asked for.

    Args:
        clock: monotonic seconds.
        longest: the ceiling of every wait, in seconds.
    """

    def __init__(self, clock: Callable[[], float], longest: float) -> None:
        self._clock = clock
        self._longest = longest
        self._made: dict[tuple[str, str, str], Turnstile] = {}
        self._workers = 1
        self._from = clock()

    def of(self, judge: Judge, backend: Backend) -> Turnstile:
        """The turnstile of a judge's endpoint, account and model."""
        key = (backend.endpoint, backend.account, backend.model)
        if key not in self._made:
            pace = Pace(self._settings(judge, backend), self._clock(), random.Random())
            pace.share(self._workers)
            pace.hold(self._from)
            self._made[key] = Turnstile(pace, self._clock)
        return self._made[key]

    def share(self, workers: int) -> None:
        """So many workers keep to the fixed limits together."""
        self._workers = workers
        for turnstile in self._made.values():
            turnstile.pace.share(workers)
            turnstile.wake()

    def hold(self, seconds: float) -> None:
        """Nothing leaves for so long, at a fixed limit."""
        self._from = self._clock() + seconds
        for turnstile in self._made.values():
            turnstile.pace.hold(self._from)

    def _settings(self, judge: Judge, backend: Backend) -> PaceSettings:
        requests = getattr(judge, "requests_per_minute", None)
        tokens = getattr(judge, "tokens_per_minute", None)
        return PaceSettings(
            window=LOW_START if is_local(backend.endpoint) else PaceSettings.window,
            requests=requests / 60.0 if requests else None,
            tokens=tokens / 60.0 if tokens else None,
            longest=self._longest,
        )
