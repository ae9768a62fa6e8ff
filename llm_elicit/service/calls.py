"""The requests of a client of the service, and the two ways to send them.

Each request is defined once, by a method that returns a `Call`: what is sent, and how the answer is
read. A `Blocking` object sends it and returns the result; an `Asynchronous` one returns an
awaitable of it.

A request that the service refuses for now (429 or 503), or that did not reach it, is sent again
after the time that the service names. A request that was interrupted is sent again if that has no
other effect than to send it once. A campaign is therefore created with an `Idempotency-Key`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from io import BytesIO
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload
from urllib.parse import quote
from uuid import uuid4

import httpx2
from pydantic import TypeAdapter
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from llm_elicit._util import files
from llm_elicit._util.packages import pd
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import ConflictError, InputError
from llm_elicit.pipeline.answers import AnswerPage
from llm_elicit.pipeline.run_index import Labels, RunPage
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.service import schemas

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_RETRY_SECONDS = 60.0
"""Seconds after which a request is not sent again."""

_MEDIA_TYPES = {
    ".csv": "text/csv",
    ".parquet": "application/vnd.apache.parquet",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

Stated = str | Path | Campaign | Mapping[str, Any]
"""A campaign: a path, a name in examples/, an object, or the data of its YAML file."""


class ServiceError(InputError):
    """A service refused a request, or cannot be reached.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
        retry_after: seconds after which the request may be repeated; None if that will not help.
    """

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class ServiceConflictError(ServiceError, ConflictError):
    """What was asked of a service is not possible now, such as to pause a run that has ended."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and how its answer is read.

    Attributes:
        method, path: method and path of the request; the path is below that of the API, unless it
            begins with /.
        read: returns the result of the body of an answer.
        params: parameters of the address; those that are None are not sent.
        json: the body as data.
        content: the body as bytes.
        headers: further headers.
        repeatable: whether to send it twice has no other effect than to send it once.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False

    def request(self, http: httpx2.Client | httpx2.AsyncClient) -> httpx2.Request:
        """Return the request of an HTTP client."""
        return http.build_request(
            self.method,
            self.path[1:] if self.path.startswith("/") else f"api/v1/{self.path}",
            params={name: value for name, value in self.params.items() if value is not None},
            json=self.json,
            content=self.content,
            headers=dict(self.headers),
        )

    def is_worth_repeating(self, error: BaseException) -> bool:
        """Return whether the request may be sent again after an error."""
        if isinstance(error, ServiceError):
            return error.retry_after is not None
        is_safe = self.method != "POST" or self.repeatable
        return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout) or (
            is_safe and isinstance(error, httpx2.TransportError)
        )


def _json(kind: type[T]) -> Callable[[bytes], T]:
    """Return what reads a body as a type; fields that a later service adds are left out."""
    return partial(TypeAdapter(kind).validate_json, extra="ignore")


def read_nothing(_: bytes) -> None:
    """Read a body without content."""


def _frame(content: bytes) -> pd.DataFrame:
    return pd.read_parquet(BytesIO(content))


def body_of(response: httpx2.Response) -> bytes:
    """Return the body of an answer that was read.

    Raises:
        ServiceError: the request was refused.
    """
    if response.is_success:
        return response.content
    try:
        detail = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):  # of a proxy
        detail = f"{response.url}: HTTP status {response.status_code}; is this the service?"
    kind = ServiceConflictError if response.status_code == 409 else ServiceError
    retry_after = None
    if response.status_code in (429, 503):
        stated = response.headers.get("retry-after", "")
        retry_after = float(stated) if stated.isdigit() else 1.0
    raise kind(response.status_code, detail, retry_after)


def _pause(state: RetryCallState) -> float:
    """Return the seconds until a request is sent again."""
    error = state.outcome.exception() if state.outcome else None
    stated = error.retry_after if isinstance(error, ServiceError) else None
    return wait_random_exponential(0.2, max=5.0)(state) if stated is None else stated


def _retry_settings(call: Call[Any]) -> dict[str, Any]:
    return {
        "retry": retry_if_exception(call.is_worth_repeating),
        "stop": stop_after_delay(_RETRY_SECONDS),
        "wait": _pause,
        "reraise": True,
    }


def _unreachable(address: object, error: httpx2.HTTPError | httpx2.InvalidURL) -> ServiceError:
    return ServiceError(
        0,
        f"{address}: no service answers ({error or type(error).__name__}); start one with "
        "`llm-elicit serve`, or check the address",
    )


class Blocking:
    """Sends calls, and returns their results.

    Args:
        http: the HTTP client.
        path: the path of what the calls are about, if they are about a part of the service.
    """

    def __init__(self, http: httpx2.Client, path: str = "") -> None:
        self._http, self._path = http, path

    def _send(self, call: Call[T]) -> T:
        def attempt() -> T:
            return call.read(body_of(self._http.send(call.request(self._http))))

        try:
            return Retrying(**_retry_settings(call))(attempt)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _unreachable(self._http.base_url, error) from None


class Asynchronous:
    """Sends calls, and returns awaitables of their results; its arguments are as of `Blocking`."""

    def __init__(self, http: httpx2.AsyncClient, path: str = "") -> None:
        self._http, self._path = http, path

    async def _send(self, call: Call[T]) -> T:
        async def attempt() -> T:
            return call.read(body_of(await self._http.send(call.request(self._http))))

        try:
            return await AsyncRetrying(**_retry_settings(call))(attempt)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _unreachable(self._http.base_url, error) from None


class endpoint(Generic[S, P, T]):  # noqa: N801 - a decorator
    """A method that returns a `Call`: it sends the call, in the way of its object."""

    def __init__(self, call: Callable[Concatenate[S, P], Call[T]]) -> None:
        self._call = call
        update_wrapper(cast(Any, self), call)

    @overload
    def __get__(self, owner: Blocking, kind: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Asynchronous, kind: object = None) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, owner: None, kind: object = None) -> Self: ...

    def __get__(self, owner: Any, kind: object = None) -> Any:
        """Return the method of an object."""
        if owner is None:
            return self

        def send(*args: P.args, **named: P.kwargs) -> Any:
            return owner._send(self._call(owner, *args, **named))

        return update_wrapper(send, self._call)


class BeliefCalls:
    """The belief of a judge of a run."""

    _path: str

    @endpoint
    def marginals(self) -> Call[list[schemas.Marginal]]:
        """Return the marginal of each feature, natural units."""
        return Call("GET", self._path, _json(list[schemas.Marginal]))

    @endpoint
    def sample(self, n: int = 1_000, seed: int = 0) -> Call[pd.DataFrame]:
        """Return points, natural units, with the words of categories; equal for equal seeds."""
        sent = {"n": n, "seed": seed, "format": "parquet"}
        return Call("GET", f"{self._path}/samples", _frame, sent)

    @endpoint
    def log_prob(self, points: Sequence[Any] | pd.DataFrame) -> Call[list[float | None]]:
        """Return the log density of points, nats per natural unit; None outside the support.

        Args:
            points: a table such as `sample` returns, lists in the order of the features, or values
                by feature.
        """
        rows = points if isinstance(points, Sequence) else points.to_dict("records")
        stated = [dict(row) if isinstance(row, Mapping) else list(row) for row in rows]
        read = _json(schemas.LogProb)
        return Call(
            "POST", f"{self._path}/log-prob", lambda content: read(content).log_prob,
            json={"points": stated}, repeatable=True,
        )  # fmt: skip


class RunCalls:
    """A run on the service."""

    name: str
    _path: str

    @endpoint
    def snapshot(self) -> Call[RunSnapshot]:
        """Return the state, the counts and the costs."""
        return Call("GET", self._path, _json(RunSnapshot))

    @endpoint
    def start(self, *, retry_failed: bool = False) -> Call[RunSnapshot]:
        """Start or continue the run.

        Args:
            retry_failed: whether to ask again questions that were given up or set aside.
        """
        sent = {"retry_failed": retry_failed}
        return Call("POST", f"{self._path}/start", _json(RunSnapshot), sent)

    @endpoint
    def resume(self) -> Call[RunSnapshot]:
        """Go on with the run, which is paused."""
        return Call("POST", f"{self._path}/resume", _json(RunSnapshot))

    @endpoint
    def pause(self, *, wait: float = 60.0) -> Call[RunSnapshot]:
        """Send nothing more, and wait some seconds for the answers in flight."""
        return Call("POST", f"{self._path}/pause", _json(RunSnapshot), {"wait": wait})

    @endpoint
    def cancel(self, *, drain: bool = True, wait: float = 60.0) -> Call[RunSnapshot]:
        """End the run; every answer received is kept.

        Args:
            drain: whether answers in flight, which are paid, are waited for.
            wait: seconds to wait for its end.
        """
        sent = {"drain": drain, "wait": wait}
        return Call("POST", f"{self._path}/cancel", _json(RunSnapshot), sent)

    @endpoint
    def retune(
        self, *, concurrency: int | None = None, max_cost: float | None = None
    ) -> Call[RunSnapshot]:
        """Change the concurrent requests of each judge, or the cap in USD."""
        limits = {"concurrency": concurrency, "max_cost": max_cost}
        return Call("POST", f"{self._path}/retune", _json(RunSnapshot), json=limits)

    @endpoint
    def delete(self, *, purge: bool = False, wait: float = 60.0) -> Call[None]:
        """Delete the run; `restore` brings it back, unless it is purged."""
        return Call("DELETE", self._path, read_nothing, {"purge": purge, "wait": wait})

    @endpoint
    def restore(self) -> Call[None]:
        """Bring the run back after its deletion."""
        return Call("POST", f"{self._path}/restore", read_nothing)

    @endpoint
    def label(self, *tags: str, archived: bool = False) -> Call[Labels]:
        """Replace the tags, and say whether the run is archived."""
        labels = {"tags": tags, "archived": archived}
        return Call("PUT", f"{self._path}/labels", _json(Labels), json=labels)

    @endpoint
    def campaign(self) -> Call[str]:
        """Return the campaign as YAML."""
        read = _json(schemas.CampaignYaml)
        return Call("GET", f"{self._path}/campaign", lambda content: read(content).yaml)

    @endpoint
    def estimate(self) -> Call[schemas.DryRun]:
        """Return the estimated cost of the questions without an answer."""
        return Call("GET", f"{self._path}/estimate", _json(schemas.DryRun))

    @endpoint
    def comparisons(self) -> Call[pd.DataFrame]:
        """Return the judgments so far as a table."""
        return Call("GET", f"{self._path}/comparisons", _frame, {"format": "parquet"})

    @endpoint
    def comparison_page(self, offset: int = 0, limit: int = 1_000) -> Call[schemas.ComparisonPage]:
        """Return some of the judgments, and how many there are."""
        sent = {"offset": offset, "limit": limit}
        return Call("GET", f"{self._path}/comparisons", _json(schemas.ComparisonPage), sent)

    @endpoint
    def export(self, form: Literal["parquet", "csv", "jsonl"] = "parquet") -> Call[bytes]:
        """Return the file of the judgments so far."""
        return Call("GET", f"{self._path}/comparisons", bytes, {"format": form})

    @endpoint
    def answers(self, /, *, limit: int = 20, **filters: str | int) -> Call[AnswerPage]:
        """Return a page of questions and answers as sent.

        Args:
            limit: the largest number of questions.
            filters: `judge`, `verdict`, `orders`, `pair`, `feature`, `low`, `high`, `sort`, and
                `after`, the `following` of a page, as of the service's route.
        """
        return Call("GET", f"{self._path}/answers", _json(AnswerPage), {"limit": limit, **filters})

    @endpoint
    def beliefs(self) -> Call[list[str]]:
        """Return the judges whose beliefs are fitted."""
        read = _json(list[schemas.BeliefSummary])
        return Call(
            "GET", f"{self._path}/beliefs", lambda content: [line.judge for line in read(content)]
        )

    @endpoint
    def audit(self) -> Call[dict[str, Any]]:
        """Return the numbers of the report; docs/audit.schema.json describes them."""
        return Call("GET", f"{self._path}/audit", _json(dict[str, Any]))

    @endpoint
    def report(self) -> Call[str]:
        """Return the report as one HTML page."""
        return Call("GET", f"{self._path}/report", lambda content: content.decode())

    @endpoint
    def links(self) -> Call[list[schemas.Link]]:
        """Return the personal links that were issued, without their addresses."""
        return Call("GET", f"{self._path}/links", _json(list[schemas.Link]))

    @endpoint
    def issue_link(
        self, judge: str, expert: str = "", days: float = 30.0
    ) -> Call[schemas.IssuedLink]:
        """Issue a personal link; its `url` cannot be read again.

        Args:
            judge: a judge with backend human.
            expert: one of its experts; that of the judge's name by default.
            days: how long the link is valid.
        """
        sent = {"judge": judge, "expert": expert, "days": days}
        return Call("POST", f"{self._path}/links", _json(schemas.IssuedLink), json=sent)

    @endpoint
    def revoke_link(self, link: str) -> Call[None]:
        """Revoke the link with this `id`, at once and for good; answers given by it stay."""
        return Call("DELETE", f"{self._path}/links/{quoted(link)}", read_nothing)

    @endpoint
    def experts(self) -> Call[list[schemas.Person]]:
        """Return the experts with their progress, agreement and links."""
        return Call("GET", f"{self._path}/experts", _json(list[schemas.Person]))

    @endpoint
    def add_experts(self, judge: str, *experts: str) -> Call[list[str]]:
        """Add experts to a judge, also during the run, and return all that it has."""
        sent = {"judge": judge, "experts": experts}
        return Call("POST", f"{self._path}/experts", _json(list[str]), json=sent)

    @endpoint
    def remove_expert(self, judge: str, expert: str) -> Call[None]:
        """Remove an expert and revoke their links; their answers stay."""
        path = f"{self._path}/experts/{quoted(judge)}/{quoted(expert)}"
        return Call("DELETE", path, read_nothing)

    def _repeat(self, name: str | None) -> Call[RunSnapshot]:
        return Call("POST", f"{self._path}/repeat", _json(RunSnapshot), {"as": name})


class ServiceCalls:
    """What can be asked of a service."""

    @endpoint
    def runs(self, /, **filters: str | int | bool) -> Call[RunPage]:
        """Return a page of the list of runs.

        Args:
            filters: `q` (words), `state`, `tag`, `since`, `until`, `archived`, `sort`, `offset` and
                `limit`, as of the service's route.
        """
        return Call("GET", "campaigns", _json(RunPage), filters)

    @endpoint
    def dry_run(self, campaign: Stated) -> Call[schemas.DryRun]:
        """Return some prompts and the estimated costs of a campaign; nothing is sent to judges."""
        content, kind = _body(campaign)
        headers = {"content-type": kind}
        return Call(
            "POST", "campaigns/dry-run", _json(schemas.DryRun), content=content, headers=headers,
            repeatable=True,
        )  # fmt: skip

    @endpoint
    def compare(self, *names: str) -> Call[dict[str, Any]]:
        """Return the judges of some runs side by side."""
        return Call("GET", "compare", _json(dict[str, Any]), {"run": list(names)})

    @endpoint
    def health(self) -> Call[schemas.Health]:
        """Return whether the service works; no token is needed."""
        return Call("GET", "/health", _json(schemas.Health))

    @endpoint
    def models(self) -> Call[schemas.Models]:
        """Return the judges and the limits that a campaign may have."""
        return Call("GET", "models", _json(schemas.Models))

    @endpoint
    def templates(self) -> Call[list[schemas.TemplateSummary]]:
        """Return the question templates that a campaign can name."""
        return Call("GET", "templates", _json(list[schemas.TemplateSummary]))

    @endpoint
    def spaces(self) -> Call[list[schemas.SpaceSummary]]:
        """Return the feature spaces that a campaign can name."""
        return Call("GET", "spaces", _json(list[schemas.SpaceSummary]))

    @endpoint
    def space(self, name: str) -> Call[schemas.SpaceYaml]:
        """Return a feature space as YAML."""
        return Call("GET", f"spaces/{quoted(name)}", _json(schemas.SpaceYaml))

    @endpoint
    def upload(
        self,
        name: str,
        table: Path,
        *,
        columns: Sequence[str] = (),
        not_stated: Sequence[str] = (),
        encoding: str = "",
        sep: str = "",
        decimal: str = "",
    ) -> Call[schemas.SpaceDraft]:
        """Upload a CSV, Parquet or Excel file, and return the space that is drafted from it.

        Args:
            name: the name of the space.
            table: the file.
            columns: the columns to use; all by default.
            not_stated: numeric columns where a missing cell means "not stated".
            encoding, sep, decimal: the encoding, the separator and the decimal mark of a CSV file;
                detected by default.
        """
        sent = {"name": name, "columns": ",".join(columns), "not_stated": ",".join(not_stated)}
        sent |= {"encoding": encoding, "sep": sep, "decimal": decimal}
        kind = _MEDIA_TYPES.get(table.suffix, "application/octet-stream")
        return Call(
            "POST", "spaces", _json(schemas.SpaceDraft), sent, content=table.read_bytes(),
            headers={"content-type": kind},
        )  # fmt: skip

    @endpoint
    def edit_space(self, name: str, yaml: str) -> Call[schemas.SpaceYaml]:
        """Replace the YAML of an uploaded space."""
        return Call(
            "PUT", f"spaces/{quoted(name)}", _json(schemas.SpaceYaml), content=yaml.encode()
        )

    @endpoint
    def delete_space(self, name: str) -> Call[None]:
        """Remove an uploaded space with its table."""
        return Call("DELETE", f"spaces/{quoted(name)}", read_nothing)

    def _create(self, campaign: Stated, paused: bool) -> Call[RunSnapshot]:
        content, kind = _body(campaign)
        return Call(
            "POST", "campaigns", _json(RunSnapshot), {"start": not paused}, content=content,
            headers={"content-type": kind, "Idempotency-Key": uuid4().hex}, repeatable=True,
        )  # fmt: skip


def quoted(name: str) -> str:
    return quote(name, safe="")


def _body(campaign: Stated) -> tuple[bytes, str]:
    """Return a campaign as the body of a request, and its media type.

    Raises:
        InputError: there is no such file.
    """
    if isinstance(campaign, str | Path):
        path = files.find("examples", str(campaign), ".yaml")
        return path.read_bytes(), "application/yaml"
    if isinstance(campaign, Campaign):
        campaign = campaign.model_dump(mode="json", exclude_unset=True)
    return TypeAdapter(dict[str, Any]).dump_json(dict(campaign)), "application/json"
