"""One service for all tests of a module that change nothing which others see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.serving import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on a loopback address, which needs no token."""
    with serving(tmp_path_factory.mktemp("service")) as one:
        yield one
