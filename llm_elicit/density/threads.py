"""How many threads PyTorch uses while a belief is fitted or evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside, the caller's number again afterwards.

    The networks and forms fitted here are so small that handing an operation to a second
    thread costs more than the operation: the housing fit took 50 s with two threads and 7 s
    with one. The number belongs to the process, so fits in several threads of one process
    share it; run them in several processes.

    Examples
    --------
    >>> import torch
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
