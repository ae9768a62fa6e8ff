"""The loopback providers that writers of backends use too, and the order of the files."""

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["llm_elicit.testing.plugin"]

# How long an example takes says what else the machine does, not whether it is right.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A worker takes a file at a time, and the last one's worker works alone: let it be a short one.
LONG = (
    "test_docs.py", "test_belief.py", "test_main_job.py", "test_cap.py", "test_score_options.py",
    "test_survival.py", "test_pace.py", "test_asking.py", "test_flow.py", "test_outcomes.py",
    "test_sizes.py", "test_retries.py", "test_chaos.py", "test_batches.py", "test_utility.py",
    "test_diagnostics.py", "test_log.py", "test_local.py", "test_run.py", "test_workers.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; xdist would begin with those of many tests, however short."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))
