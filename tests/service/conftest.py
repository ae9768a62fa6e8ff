"""Services for the tests that change nothing which others see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.serving import KEYS, Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on a loopback address, which needs no token."""
    with serving(tmp_path_factory.mktemp("service")) as one:
        yield one


@pytest.fixture(scope="package")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with a name of its own and narrow bounds, which needs a token of everybody.

    It believes what a proxy at 127.0.0.9 says.
    """
    settings = {
        "hosts": ["elicit.example"], "token": True, "proxies": ["127.0.0.9"], "admins": ["anna"],
        "bounds": {"upload": 1_000_000},
    }  # fmt: skip
    with serving(tmp_path_factory.mktemp("strict"), settings=settings, **KEYS) as one:
        yield one
