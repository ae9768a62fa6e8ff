"""What a run says of itself: its log, its spans, and never a key."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.warm import WarmPopen
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from llm_elicit.orchestrator.progress import LOG, log_event, logging_to
from llm_elicit.testing.provider import Action, Answer, Error, Provider, Resets, Sends
from orchestrator.conftest import EXPERT, KEY, claude, gpt
from orchestrator.running import campaign, run


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def _echoing(number: int, body: dict[str, Any]) -> Action:
    """A provider that repeats the key wherever it can."""
    faults = (
        Error(500, f"cannot serve {KEY}"),
        Error(429, f"{KEY} is too fast", headers=(("retry-after", "0"), ("x-key", KEY))),
        Sends(f'{{"key": "{KEY}"}}'.encode()),
        Sends(KEY.encode(), "text/plain"),
        Resets(),
        Answer(f"A, said {KEY}"),
    )
    return faults[number % 12] if number % 12 < len(faults) else Answer("A")


def test_a_log_tells_what_happened(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        return Error(503, "out of order") if number == 3 else Answer("A")

    with Provider(behave) as provider:
        study = campaign([claude(provider.url), EXPERT])
        run(study, tmp_path / "try")
    events = _events(tmp_path / "try")
    assert [e["event"] for e in events if not e["event"].startswith("counts")] == [
        "run began",
        "request failed",
        "run ended",
    ]
    assert all(e["time"].endswith("+00:00") and e["level"] for e in events)
    (failed,) = (e for e in events if e["event"] == "request failed")
    assert (failed["judge"], failed["level"], failed["kind"]) == ("claude", "warning", "transient")
    assert "503" in failed["reason"]
    last = {e["judge"]: e for e in events if e["event"] == "counts"}
    assert {name: e["done"] for name, e in last.items()} == {"claude": 20, "expert": 20}
    assert last["claude"]["errors"] == 1
    assert events[-1]["complete"] is True
    run(study, tmp_path / "try")
    assert _events(tmp_path / "try")[: len(events)] == events, "a resumed run adds to the log"


def test_two_runs_in_one_process_have_a_log_each(tmp_path: Path) -> None:
    study = campaign([EXPERT])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with logging_to(tmp_path / "one", study):
        log_event("outer")
        with logging_to(tmp_path / "two", study):
            log_event("inner")
        log_event("outer again")
    assert [e["event"] for e in _events(tmp_path / "one")] == ["outer", "outer again"]
    assert [e["event"] for e in _events(tmp_path / "two")] == ["inner"]


def test_a_traceback_is_in_the_log_without_the_key(tmp_path: Path) -> None:
    study = campaign([claude("http://127.0.0.1:9")])
    with pytest.raises(ZeroDivisionError), logging_to(tmp_path, study):
        raise ZeroDivisionError(f"a defect that shows {KEY}")
    (failed,) = _events(tmp_path)
    assert failed["event"] == "run failed"
    assert "Traceback" in failed["traceback"]
    assert "[key]" in failed["traceback"]
    assert KEY not in (tmp_path / LOG).read_text()


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """The SDK is set up once a process, so it is here for all tests of this module."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    return kept


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def _ours(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [
        span
        for span in spans.get_finished_spans()
        if span.instrumentation_scope is not None
        and span.instrumentation_scope.name == "llm_elicit"
    ]


def test_each_request_is_a_span_below_the_run_s(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        return Error(500) if number == 2 else Answer("A", prompt_tokens=77)

    with Provider(behave) as provider:
        run(campaign([gpt(provider.url)], pairs=5), tmp_path / "try")
        sent = len(provider.seen)
    *requests, whole = _ours(spans)
    assert whole.name == "ask"
    assert whole.attributes is not None
    assert whole.attributes["elicit.campaign"] == "try"
    assert len(requests) == sent == 11
    assert {span.name for span in requests} == {"chat gpt-4o-mini"}
    assert all(span.parent.span_id == whole.context.span_id for span in requests if span.parent)
    failed = [span for span in requests if not span.status.is_ok and span.status.description]
    assert [span.status.description for span in failed] == ["status 500"]
    answered = [span.attributes for span in requests if span not in failed]
    assert {a["gen_ai.usage.input_tokens"] for a in answered if a is not None} == {77}


def test_a_key_is_nowhere(
    tmp_path: Path, spans: InMemorySpanExporter, capfd: pytest.CaptureFixture[str]
) -> None:
    """Through faults that echo it, in every file of a run, what it printed, its log and spans."""
    with Provider(_echoing) as provider:
        study = campaign([claude(provider.url), gpt(provider.url)], pairs=20)
        run(study, tmp_path / "runs" / "try")
        assert all(KEY in str(request.headers) for request in provider.seen), "it was sent"
    printed = "".join(capfd.readouterr())
    events = "".join(span.to_json() for span in spans.get_finished_spans())
    assert KEY not in printed + events
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"log.jsonl", "journal.sqlite", "cache.sqlite"} <= {path.name for path in files}
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


CRASH = """
import sys
from pathlib import Path
from llm_elicit.orchestrator import engine
from orchestrator.conftest import claude
from orchestrator.running import campaign, run
engine.JudgeRunner.run = lambda *arguments: 1 / 0
run(campaign([claude(sys.argv[1])]), Path(sys.argv[2]))
"""


def test_a_key_is_not_in_the_traceback_of_a_defect(tmp_path: Path) -> None:
    paths = os.pathsep.join(path or "." for path in sys.path)
    command = [sys.executable, "-c", CRASH, "http://127.0.0.1:9", str(tmp_path / "try")]
    environment = {**os.environ, "PYTHONPATH": paths}
    pipe = subprocess.PIPE
    with WarmPopen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as crashing:
        out, error = crashing.communicate()
    assert crashing.returncode == 1
    assert "ZeroDivisionError" in error
    assert KEY not in out + error + (tmp_path / "try" / LOG).read_text()
    assert "ZeroDivisionError" in (tmp_path / "try" / LOG).read_text()
