"""The loopback providers that writers of backends use too, and what is run where and when."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["llm_elicit.testing.plugin"]

# How long an example takes says what else the machine does, not whether it is right.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A defect in a command is a traceback in tests, and in the processes that they start.
os.environ["LLM_ELICIT_DEBUG"] = "1"

# What one worker runs: a file, or the files that share what takes long to make.
TOGETHER = {"report": "the study"}

# The last group's worker works alone: let it be a short one.
LONG = (
    "test_docs.py", "test_belief.py", "test_main_job.py", "test_cap.py", "test_score_options.py",
    "test_report_answers.py", "test_examples.py", "test_survival.py", "test_pace.py",
    "test_asking.py", "test_flow.py", "test_outcomes.py", "test_plugins.py", "test_rounds.py",
    "test_sizes.py", "test_retries.py", "test_chaos.py", "test_batches.py", "test_utility.py",
    "test_audit_preference.py", "test_audit_rankings.py", "test_grid.py", "test_cli.py",
    "test_compare.py", "test_draws.py", "test_diagnostics.py", "test_log.py", "test_local.py",
    "test_run.py", "test_workers.py", "test_categories.py",
)  # fmt: skip


def group(path: Path) -> str:
    """The group that a file belongs to."""
    return TOGETHER.get(path.parent.name, path.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups first; xdist would begin with those of many tests, however short."""
    place = {name: number for number, name in enumerate(LONG)}
    first: dict[str, int] = {}
    for item in items:
        at = place.get(item.path.name, len(LONG))
        first[group(item.path)] = min(at, first.get(group(item.path), at))
    items.sort(key=lambda item: first[group(item.path)])


# Not by marks and `--dist loadgroup`: xdist 3.8 marks nothing under pytest 9.2.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile` by groups of files."""
    from xdist.scheduler import LoadFileScheduling

    class LoadGroups(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(Path(super()._split_scope(nodeid)))

    return LoadGroups(config, log) if config.getvalue("dist") == "loadfile" else None
