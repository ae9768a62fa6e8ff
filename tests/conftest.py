"""The loopback providers that writers of backends use too, and what is run where and when."""

import gc
import os
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpcore2
import pytest
from fakes import warm
from fakes.fits import fit_quickly, normalize_quickly, report_quickly
from hypothesis import HealthCheck, settings

pytest_plugins = ["llm_elicit.testing.plugin"]

# How long an example takes says what else the machine does, not whether it is right.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Thousands of tests and what they import are no garbage; to look through them again takes seconds.
gc.set_threshold(50_000, 20, 20)

# A defect in a command is a traceback in tests, and in the processes that they start.
os.environ["LLM_ELICIT_DEBUG"] = "1"

# To import this package takes most of these processes longer than what they do.
warm.install()

# What one worker runs: a file, or the files that share what takes long to make.
TOGETHER = {
    "report": "the study", "density/test_belief.py": "the moon",
    "density/test_notebook.py": "the moon", "density/test_pool.py": "the moon",
}  # fmt: skip

# The longest groups, in this order.
LONG = (
    "tests/test_docs.py", "the study", "orchestrator/test_pace.py", "service/test_campaigns.py",
    "service/test_pages_browser.py", "tests/test_gallery.py", "orchestrator/test_chaos.py",
    "backends/test_local.py", "orchestrator/test_people.py", "the moon", "pipeline/test_cluster.py",
    "benchmarks/test_asking.py", "planning/test_rounds.py", "density/test_log_odds.py",
    "audit/test_kinds.py", "density/test_draws.py", "orchestrator/test_batches.py",
    "density/test_plots.py", "pipeline/test_runtime.py", "tests/test_examples.py",
    "audit/test_audit_preference.py", "audit/test_audit_verdicts.py",
    "pipeline/test_stage_inputs.py", "density/test_utility.py", "orchestrator/test_digests.py",
    "cli/test_outcomes.py", "density/test_kinds.py", "cli/test_compare.py",
    "service/test_two_services.py", "pipeline/test_repeats.py", "service/test_deployment.py",
    "audit/test_audit_judge_comparison.py", "baselines/test_flow.py",
    "pipeline/test_statistical_power.py", "pipeline/test_categories.py", "density/test_sizes.py",
    "pipeline/test_power_sources.py", "audit/test_audit_belief_power.py",
    "baselines/test_protocol.py", "orchestrator/test_ask.py", "cli/test_cli.py",
    "benchmarks/test_faults.py", "density/test_power.py", "pipeline/test_rounds_shared.py",
    "orchestrator/test_server.py", "pipeline/test_pilot.py", "spaces/test_layout.py",
    "density/test_power_points.py", "cli/test_messages.py", "cli/test_json.py",
    "config/test_grid.py", "audit/test_audit_rounds.py", "benchmarks/test_run.py",
    "orchestrator/test_cap.py", "spaces/test_drafting.py", "service/test_streams.py",
    "density/test_score.py", "density/test_frames.py", "density/test_categories.py",
    "density/test_evidence.py", "density/test_smc.py", "density/test_diagnostics.py",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="session")
def _certificates_are_read_once() -> Iterator[None]:
    """Reading them takes 30 ms of every client, and providers are asked without TLS here."""
    default = httpcore2.default_ssl_context
    read = cache(lambda _file, _folder, **options: default(**options))

    def context(**options: bool) -> ssl.SSLContext:
        stated = (os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        return read(*stated, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", context)
        yield


@pytest.fixture(scope="module")
def quick_fits() -> Iterator[None]:
    """Let runs here and in processes from here fit little, where a belief only has to be there.

    Their audits are coarse and their reports without corner plots: tests/report and
    tests/test_gallery.py make whole ones.
    """
    with pytest.MonkeyPatch.context() as patch:
        fit_quickly(patch)
        report_quickly(patch)
        patch.setenv(warm.QUICK_FITS, "1")
        yield


@pytest.fixture(scope="module")
def few_particles() -> Iterator[None]:
    """Let fits here normalize by few particles: no bound of a test is wider for their noise.

    density/test_belief.py and density/test_kinds.py, among others, are by all particles.
    """
    with pytest.MonkeyPatch.context() as patch:
        normalize_quickly(patch)
        yield


def _fresh_processes() -> Iterator[None]:
    """Let every process begin as a user's does, for what is said of its start and its memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "enabled", False)
        yield


fresh_processes = pytest.fixture(_fresh_processes, name="fresh_processes")
fresh_processes_of_module = pytest.fixture(
    _fresh_processes, scope="module", name="fresh_processes_of_module"
)


def group(path: Path) -> str:
    """The group that a file belongs to."""
    file = f"{path.parent.name}/{path.name}"
    return TOGETHER.get(path.parent.name, TOGETHER.get(file, file))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups first; xdist would begin with those of many tests, however short."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(group(item.path), len(LONG)))


# Not by marks and `--dist loadgroup`: xdist 3.8 marks nothing under pytest 9.2.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile` by groups of files."""
    from xdist.scheduler import LoadFileScheduling

    class LoadGroups(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(Path(super()._split_scope(nodeid)))

    return LoadGroups(config, log) if config.getvalue("dist") == "loadfile" else None
