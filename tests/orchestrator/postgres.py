"""A PostgreSQL server of one's own, where the machine has the programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.faults.postgres import PostgreSQL
from llm_elicit.errors import InputError


@contextmanager
def running() -> Iterator[PostgreSQL]:
    """A running server that is nobody else's; tests are skipped where there is none."""
    try:
        postgres = PostgreSQL()
    except InputError as error:
        pytest.skip(str(error))
    with postgres:
        yield postgres


@contextmanager
def server() -> Iterator[str]:
    """A running server; yields its address."""
    with running() as postgres:
        yield postgres.address
