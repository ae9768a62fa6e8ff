"""A campaign's page, for the service and as one static file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_elicit.pipeline.live_view import LiveView
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.service.rendering import render, stylesheet

_ACTIONS: dict[str, tuple[str, ...]] = {
    "planned": ("resume", "cancel"),
    "running": ("pause", "cancel"),
    "pausing": ("resume", "cancel"),
    "paused": ("resume", "cancel"),
    "cancelling": (),
    "cancelled": ("start",),
    "failed": ("start",),
    "done": (),
}
"""What can be done with a run, by its state."""

_WORDS = {
    "planned": "waiting to start",
    "running": "running",
    "pausing": "pausing: answers in flight are awaited",
    "paused": "paused",
    "cancelling": "stopping: answers in flight are awaited",
    "cancelled": "cancelled",
    "done": "done",
    "failed": "failed",
}
_STAGES = {
    "plan": "planning the questions",
    "ask": "asking",
    "fit": "estimating beliefs",
    "audit": "comparing beliefs with the data",
    "report": "writing the report",
    "live": "drawing the beliefs",
}


def state_words(found: RunSnapshot) -> str:
    """Return what a run does, in a few words."""
    if found.state == "running":
        return _STAGES.get(found.stage, found.stage)
    return _WORDS[found.state]


def part(name: str, found: RunSnapshot, live: LiveView | None, **more: Any) -> str:
    """Return one part of a campaign's page: "status", "controls" or "belief"."""
    return render(name, **_context(found, live), **more)


def campaign_page(found: RunSnapshot, live: LiveView | None, **more: Any) -> str:
    """Return a campaign's page as the service shows it."""
    return render("campaign", **_context(found, live), bundle=False, **more)


def write_bundle(
    found: RunSnapshot, live: LiveView | None, path: Path, title: str, about: str
) -> None:
    """Write a campaign's page as one file, which needs no server and no network.

    Args:
        found: the state of the run.
        live: its beliefs.
        path: the file.
        title: of the feature space.
        about: the campaign as YAML.
    """
    text = render(
        "bundle",
        **_context(found, live),
        bundle=True,
        style=stylesheet(),
        title=title,
        about=about,
    )
    path.write_text(text, encoding="utf-8")


def _context(found: RunSnapshot, live: LiveView | None) -> dict[str, Any]:
    return {
        "run": found,
        "words": state_words(found),
        "actions": _ACTIONS[found.state],
        "live": live,
        "done": sum(judge.done for judge in found.judges.values()),
        "total": sum(judge.total for judge in found.judges.values()),
    }
