"""OpenTelemetry spans: the run, its stages and each request, for whoever collects them.

Only OpenTelemetry's interface is used, which does nothing until a program sets up its SDK
(`pip install 'llm-elicit[otel]'`). Attributes follow OpenTelemetry's names for generative models;
neither texts nor keys are among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace

Attributes = Mapping[str, str | int | float | bool]


@contextmanager
def span(name: str, attributes: Attributes | None = None) -> Iterator[trace.Span]:
    """A span around what happens inside; an exception that leaves is recorded by its type alone.

    Args:
        name: what is done.
        attributes: facts about it.

    Example:
        >>> with span("fit", {"elicit.judge": "expert"}) as current:
        ...     isinstance(current, trace.Span)  # whether or not anybody collects it
        True
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield trace.INVALID_SPAN  # nobody collects spans; each request has one, so this is short
        return
    with trace.get_tracer("llm_elicit").start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except BaseException as error:
            # A provider's message may repeat what was sent to it.
            current.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise
