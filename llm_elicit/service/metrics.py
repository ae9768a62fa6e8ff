"""What Prometheus reads at `/metrics`: requests, watchers, and the campaigns at work."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from llm_elicit.pipeline.campaign_run import CampaignRun

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Runs = Callable[[], Mapping[str, "CampaignRun"]]

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics:
    """The counts of one service.

    Args:
        runs: returns the runs of this process.
        watching: returns the number of event streams that are open.

    Example:
        >>> metrics = Metrics(dict, lambda: 0)
        >>> metrics.observe("GET", "/health", 200, 0.001)
        >>> 'llm_elicit_http_requests_total{method="GET",route="/health"' in metrics.text().decode()
        True
    """

    def __init__(self, runs: _Runs, watching: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "llm_elicit_http_requests",
            "Requests by method, route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "llm_elicit_http_request_seconds",
            "Seconds from a request to the end of its answer, by route.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        watchers = Gauge(
            "llm_elicit_watchers", "Event streams that are open.", registry=self._registry
        )
        watchers.set_function(watching)
        self._registry.register(_Campaigns(runs))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all counts in Prometheus' text format."""
        return generate_latest(self._registry)


class _Campaigns:
    """Counts of the campaigns of this process, read from their snapshots when asked for."""

    def __init__(self, runs: _Runs) -> None:
        self._runs = runs

    def collect(self) -> Iterable[Metric]:
        """Return the present counts."""
        by_state = Tally(run.state for run in self._runs().values())
        states = GaugeMetricFamily("llm_elicit_campaigns", "Campaigns by state.", labels=["state"])
        for state, count in by_state.items():
            states.add_metric([state], count)
        yield states
        yield from self._judges()

    def _judges(self) -> Iterable[Metric]:
        labels = ["campaign", "judge"]
        answers = GaugeMetricFamily(
            "llm_elicit_questions", "Questions by state.", labels=[*labels, "state"]
        )
        requests = CounterMetricFamily(
            "llm_elicit_requests", "Requests to providers.", labels=labels
        )
        errors = CounterMetricFamily("llm_elicit_errors", "Requests that failed.", labels=labels)
        cost = CounterMetricFamily("llm_elicit_cost_usd", "USD spent.", labels=labels)
        for name, run in self._runs().items():
            for judge, line in run.snapshot().judges.items():
                at = [name, judge]
                for state in ("total", "done", "failed"):
                    answers.add_metric([*at, state], getattr(line, state))
                requests.add_metric(at, line.requests)
                errors.add_metric(at, line.errors)
                if line.cost is not None:
                    cost.add_metric(at, line.cost)
        yield from (answers, requests, errors, cost)
