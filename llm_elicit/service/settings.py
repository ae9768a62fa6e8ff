"""The settings of a service: where it listens, and the judges and limits that clients may use.

They are read from a YAML file of the operator (`llm-elicit serve --config server.yaml`). Without
one, clients may use simulated judges and people, and nothing that costs money.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from llm_elicit._util.settings import (
    DatabaseAddress,
    HttpAddress,
    Positive,
    StrictModel,
    read_yaml,
    validate,
)
from llm_elicit.config.judges import Name, TokenPrice
from llm_elicit.config.profiles import with_profile

PATH = r"(/[A-Za-z0-9._~-]+)*"
"""The pattern of a path below which a proxy serves."""

Count = Annotated[int, Field(ge=1)]


class AllowedJudge(StrictModel):
    """One kind of judge that a campaign may have. The judge must have exactly these values.

    An address and the key that is sent to it are allowed only together, so that no campaign can
    send one provider's key to another provider's address.

    Attributes:
        backend: the name of a backend, which may be a plug-in.
        profile: the profile of a provider, which states the address and the key's variable.
        base_url: the server's address; None for the provider's own.
        api_key_env: the environment variable with its key; None if none is sent.
        models: the allowed models; all if empty.
        extra_headers: further headers, as in a campaign; none if empty.
        price: the price of the tokens, if the price list does not have it. A campaign cannot state
            its own, which would make a cap on costs meaningless.

    Examples:
        >>> AllowedJudge(backend="openai", api_key_env="OPENAI_API_KEY").models
        ()
    """

    backend: str
    profile: str | None = None
    base_url: HttpAddress | None = None
    api_key_env: str | None = None
    models: tuple[str, ...] = ()
    extra_headers: dict[str, str] = Field(default={})
    price: TokenPrice | None = None

    _with_its_profile = model_validator(mode="before")(with_profile)


class Bounds(StrictModel):
    """Upper limits of campaigns that are sent over HTTP, and of other requests.

    Attributes:
        max_cost: USD of a campaign; None allows no judge that costs money.
        judges, experts, pairs, rounds, questions, direct, concurrency, attempts, samples: counts
            of a campaign; questions are those of all judges together.
        timeout: seconds that a judge may wait for an answer.
        campaigns: the number of campaigns that run at the same time; others wait for their turn.
        watchers: the number of event streams that are open at the same time.
        upload: bytes of an uploaded table.
        cells: the number of its cells.
        body: bytes of any other request.
        seconds: the time that a draft, an estimate or an evaluation may take.
    """

    max_cost: Positive | None = None
    judges: Count = 20
    experts: Count = 100
    pairs: Count = 20_000
    rounds: Count = 50
    questions: Count = 200_000
    direct: Count = 5_000
    concurrency: Count = 64
    attempts: Count = 20
    samples: Annotated[int, Field(ge=100)] = 100_000
    timeout: Positive = 600.0
    campaigns: Count = 20
    watchers: Count = 400
    upload: Count = 50_000_000
    cells: Count = 5_000_000
    body: Count = 2_000_000
    seconds: Positive = 60.0


class ServerSettings(StrictModel):
    """The settings of a service.

    Attributes:
        host, port: the address on which it listens; port 0 chooses a free port.
        runs: the folder of the runs.
        journal: a PostgreSQL database for all runs, which several services can share.
        hosts: further names under which browsers reach it, such as those of a proxy in front.
        https: whether browsers reach it by HTTPS, through such a proxy.
        proxies: addresses or networks of proxies whose forwarded headers are believed.
        path: the path below which browsers reach it through a proxy, such as `/elicit`.
        token: whether a token is required on a loopback address, too.
        admins: names of administrators, each with a token of their own, which is in the file
            `token-NAME` beside the service's token. Who did what is recorded by these names.
        max_cost: a cap in USD on all campaigns of this process together.
        live: seconds between two live views of the belief of a run that asks.
        fits: the number of beliefs that are fitted at the same time.
        session: seconds that a browser stays signed in.
        judges: the judges that campaigns over HTTP may use.
        bounds: the upper limits of these campaigns.

    Examples:
        >>> ServerSettings().needs_token, ServerSettings(host="0.0.0.0").needs_token
        (False, True)
    """

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8642
    runs: Path = Path("runs")
    journal: DatabaseAddress | None = None
    hosts: tuple[str, ...] = ()
    https: bool = False
    proxies: tuple[str, ...] = ()
    path: str = ""
    token: bool = False
    admins: tuple[Name, ...] = ()
    max_cost: Positive | None = None
    live: Annotated[float, Field(ge=1)] = 3.0
    fits: Annotated[int, Field(ge=1, le=64)] = 1
    session: Positive = 12 * 3600.0
    judges: tuple[AllowedJudge, ...] = (
        AllowedJudge(backend="simulated"),
        AllowedJudge(backend="human"),
    )
    bounds: Bounds = Bounds()

    @field_validator("proxies")
    @classmethod
    def _networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for place in proxies:
            try:
                ipaddress.ip_network(place, strict=False)
            except ValueError:
                raise ValueError(
                    f"{place!r} is not an address or a network; write one such as 127.0.0.1 or "
                    "10.0.0.0/8"
                ) from None
        return proxies

    @field_validator("path")
    @classmethod
    def _below(cls, path: str) -> str:
        path = path.rstrip("/")
        if not re.fullmatch(PATH, path):
            raise ValueError(f"{path!r} is not a path; write one such as /elicit")
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the operator's file.

        Raises:
            InputError: it cannot be read, or breaks a rule.
        """
        return validate(cls, read_yaml(path), str(path))

    def changed(self, values: dict[str, Any]) -> Self:
        """Return a copy of the settings with new values, such as a command's options.

        Raises:
            InputError: a value breaks a rule.
        """
        return validate(type(self), {**self.model_dump(), **values}, "llm-elicit serve")

    @property
    def needs_token(self) -> bool:
        """Whether requests need a token: if others than this machine's users can send them."""
        is_exposed = not is_loopback(self.host) or bool(self.hosts or self.proxies) or self.https
        return self.token or is_exposed or bool(self.admins)

    @property
    def own_folder(self) -> Path:
        """The folder of the service's own files: keys, links, uploaded spaces."""
        return self.runs / ".service"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone.

    Examples:
        >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("192.168.0.2")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
