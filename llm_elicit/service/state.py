"""What the routes of one service share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from starlette.requests import Request

from llm_elicit.pipeline.runtime import Runtime
from llm_elicit.service.attempts import Attempts
from llm_elicit.service.experts import Experts
from llm_elicit.service.keys import Keys
from llm_elicit.service.links import Links
from llm_elicit.service.metrics import Metrics
from llm_elicit.service.sessions import Sessions
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.workers import Workers


@dataclass
class Service:
    """What the routes of one service share.

    Attributes:
        settings: its settings.
        keys: its secrets.
        runtime: its runs.
        sessions: the sessions of browsers.
        links: the links of people who judge.
        experts: the runs that people judge.
        attempts: the wrong tokens of the last minute.
        metrics: its counts.
        watching: the number of event streams that are open.
        workers: the processes that work for requests.
        examples: the text of the examples that campaigns may begin with, once they are read.
        closing: set when the service stops, so that streams end.
    """

    settings: ServerSettings
    keys: Keys
    runtime: Runtime
    sessions: Sessions = field(init=False)
    links: Links = field(init=False)
    experts: Experts = field(default_factory=Experts)
    attempts: Attempts = field(default_factory=Attempts)
    metrics: Metrics = field(init=False)
    workers: Workers = field(init=False)
    watching: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        settings = self.settings
        self.sessions = Sessions(self.keys, settings.session, https=settings.https)
        self.links = Links(settings.own_folder, self.keys.secret)
        self.workers = Workers(2, settings.bounds.seconds)
        self.metrics = Metrics(self.runtime.runs, lambda: self.watching)


def service_of(request: Request) -> Service:
    """Return the service that a request came to."""
    service: Service = request.app.state.service
    return service
