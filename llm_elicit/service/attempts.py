"""A limit on the rate of wrong tokens and links from one address."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llm_elicit.errors import InputError
from llm_elicit.service.problems import ProblemError

_MOST_ADDRESSES = 10_000


class Attempts:
    """The wrong tokens of the last minute, by address.

    Args:
        most: how many an address may send in that time.
        seconds: the time.
        clock: returns the time in seconds.

    Example:
        >>> attempts = Attempts(most=1)
        >>> for _ in range(2):
        ...     try:
        ...         with attempts.of("192.0.2.1"):
        ...             raise ProblemError(401, "the token is wrong")
        ...     except ProblemError as error:
        ...         print(error.status_code)
        401
        429
    """

    def __init__(
        self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    @contextmanager
    def of(self, address: str) -> Iterator[None]:
        """Count an attempt inside if it fails.

        Raises:
            ProblemError: too many failed; the caller has to wait.
        """
        now = self._clock()
        wrong = self._wrong.get(address, deque())
        while wrong and wrong[0] <= now - self._seconds:
            wrong.popleft()
        if len(wrong) >= self._most:
            wait = int(wrong[0] + self._seconds - now) + 1
            raise ProblemError(
                429, f"too many wrong tokens; try again in {wait} s", {"retry-after": str(wait)}
            )
        try:
            yield
        except (ProblemError, InputError):
            wrong.append(now)
            self._wrong[address] = wrong
            self._wrong.move_to_end(address)
            if len(self._wrong) > _MOST_ADDRESSES:
                self._wrong.popitem(last=False)
            raise
