"""What requests to the API and its answers hold, for the service and its client.

Both ends import these classes: models that are generated from the OpenAPI document would be a
second definition of the same. None of it needs a web framework. The states, lists, questions and
answers of runs are those of `llm_elicit.pipeline`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from llm_elicit._util.settings import StrictModel
from llm_elicit.orchestrator.estimates import JudgeEstimate
from llm_elicit.orchestrator.journal.people import ExpertCounts
from llm_elicit.orchestrator.people import PeopleProgress
from llm_elicit.pipeline.answers import Agreement
from llm_elicit.questions.template import Message
from llm_elicit.service.settings import AllowedJudge, Bounds
from llm_elicit.spaces.naming import ColumnReport

_MAX_POINTS = 50_000

MAX_DAYS = 366.0
"""Longest validity of a link, in days."""


@dataclass(frozen=True)
class Health:
    """Whether the service works."""

    status: Literal["ok", "closing"]


class Token(StrictModel):
    """A token to sign in with."""

    token: str


@dataclass(frozen=True)
class SignedIn:
    """The scope of a session, and the token that its requests repeat in `X-CSRF-Token`."""

    scope: Literal["admin", "read"]
    csrf: str


@dataclass(frozen=True)
class TemplateSummary:
    """A question template that a campaign can name."""

    name: str
    wording: str
    answer: str


@dataclass(frozen=True)
class Models:
    """The judges that a campaign may have, and the models that can run on the server."""

    judges: list[AllowedJudge]
    local: list[str]
    bounds: Bounds


@dataclass(frozen=True)
class DryRun:
    """What a campaign would ask: some of its prompts, and the costs. Nothing is sent."""

    name: str
    pairs: int
    judges: list[JudgeEstimate]
    examples: list[tuple[Message, ...]]


class Limits(StrictModel):
    """New limits of a run; limits that are left out are unchanged."""

    concurrency: Annotated[int, Field(ge=1)] | None = None
    max_cost: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.concurrency is None and self.max_cost is None:
            raise ValueError("nothing to change; give concurrency, max_cost, or both")
        return self


@dataclass(frozen=True)
class CampaignYaml:
    """A campaign as YAML."""

    name: str
    yaml: str


@dataclass(frozen=True)
class SpaceSummary:
    """A feature space that a campaign can name."""

    name: str
    uploaded: bool


@dataclass(frozen=True)
class SpaceYaml:
    """A feature space as YAML."""

    name: str
    yaml: str


@dataclass(frozen=True)
class SpaceDraft(SpaceYaml):
    """A drafted feature space: its YAML to edit, its columns, and which rows are used.

    Attributes:
        notes: remarks on the file, such as its encoding.
    """

    columns: tuple[ColumnReport, ...]
    rows: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class BeliefSummary:
    """A belief that was fitted."""

    judge: str


@dataclass(frozen=True)
class Marginal:
    """A feature under a belief: mean, deviation and quantiles, or the shares of categories.

    The mean and the quantiles of dates are dates, and their deviation is in days.
    """

    feature: str
    label: str
    unit: str
    kind: str
    mean: float | str | None = None
    sd: float | None = None
    quantiles: dict[str, float | str] | None = None
    shares: dict[str, float] | None = None


class Points(StrictModel):
    """Points to evaluate: lists in the order of the features, or values by feature."""

    points: Annotated[
        list[list[float | str] | dict[str, float | str]],
        Field(min_length=1, max_length=_MAX_POINTS),
    ]


@dataclass(frozen=True)
class LogProb:
    """Log densities, nats per natural unit; null outside the support."""

    log_prob: list[float | None]


@dataclass(frozen=True)
class ComparisonPage:
    """Some of a run's judgments: a row has the same values as a row of an export."""

    total: int
    offset: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Samples:
    """Points drawn from a belief, natural units: features, and values with words of categories."""

    columns: list[str]
    data: list[list[float | str | None]]


@dataclass(frozen=True)
class Link:
    """A personal link.

    Attributes:
        id: identifies it, such as to revoke it.
        campaign, judge, expert: for whom its holder may answer.
        issued, expires: seconds since 1970.
        revoked: when it was revoked; None if it was not.
    """

    id: str
    campaign: str
    judge: str
    expert: str
    issued: float
    expires: float
    revoked: float | None = None


class Invitation(StrictModel):
    """The expert who gets a link, and the days that it is valid."""

    judge: Annotated[str, Field(max_length=80)]
    expert: Annotated[str, Field(max_length=80)] = ""
    days: Annotated[float, Field(gt=0, le=MAX_DAYS)] = 30.0


@dataclass(frozen=True)
class IssuedLink:
    """A new link, with its address, which cannot be shown again."""

    link: Link
    url: str


class NewExperts(StrictModel):
    """Experts to add to a judge with backend human."""

    judge: Annotated[str, Field(max_length=80)]
    experts: Annotated[list[Annotated[str, Field(max_length=80)]], Field(min_length=1)]


@dataclass(frozen=True)
class Person:
    """An expert.

    Attributes:
        judge, expert: the judge and the expert.
        progress: what they have answered; None before the run asks, and for removed experts.
        checks: their repeats, attention questions and mean confidence; None before an answer.
        people, models: their agreement with other experts and with models; None without a pair
            that both have judged.
        links: their links.
        removed: whether they were removed after they had answered.
    """

    judge: str
    expert: str
    progress: PeopleProgress | None
    checks: ExpertCounts | None
    people: Agreement | None
    models: Agreement | None
    links: list[Link]
    removed: bool
