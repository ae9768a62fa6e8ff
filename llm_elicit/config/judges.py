"""The settings of judges: one class per backend, people, and the backends of other packages.

A package offers a backend by an entry point of the group `llm_elicit.backends`;
docs/how-to/backend.md says how to write one. Nothing of such a package is imported before a
campaign names it.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    Tag,
    field_validator,
    model_validator,
)

from llm_elicit._util.settings import (
    NoiseLevel,
    Positive,
    Seed,
    StrictModel,
    distinct,
    http_address,
)
from llm_elicit.config.profiles import (
    Client,
    Effort,
    Profile,
    default_profile,
    profile_named,
    with_profile,
)
from llm_elicit.errors import InputError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
"""The name of a judge or a campaign, which becomes the name of a folder."""

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TokenPrice(StrictModel):
    """The price of a judge's tokens, in USD per million; it replaces that of the price list.

    Attributes:
        input: the price of prompt tokens.
        output: the price of answer tokens.
        cached: the price of prompt tokens read from the provider's cache; that of `input` by
            default.
        batch: the share of these prices that is paid in batch mode.
    """

    input: NotNegative
    output: NotNegative
    cached: NotNegative | None = None
    batch: Annotated[float, Field(gt=0, le=1)] = 1.0


_PATH = re.compile(r"[/\\~]|\.{1,2}[/\\]|[A-Za-z]:[/\\]|file:")
_WEIGHTS = (".gguf", ".ggml", ".safetensors", ".bin", ".pt", ".pth")


@lru_cache(maxsize=256)  # called for every answer
def without_folders(model: str) -> str:
    """Return a model's name without the folders of a machine.

    A model in the cache of Hugging Face keeps its name at Hugging Face, with its revision.

    Examples:
        >>> [without_folders(path) for path in ("/home/me/qwen.gguf", "C:/me/llama", "org/llama")]
        ['qwen.gguf', 'llama', 'org/llama']
        >>> without_folders("~/hub/models--org--llama/snapshots/0a1b")
        'org/llama@0a1b'
    """
    if not _PATH.match(model) and not model.lower().endswith(_WEIGHTS):
        return model
    folders = [part for part in re.split(r"[/\\]", model) if part]
    hub = next((part for part in folders[:-1] if part.startswith("models--")), None)
    if hub is not None and "snapshots" in folders[:-1]:
        revision = folders[folders.index("snapshots") + 1]
        return f"{hub.removeprefix('models--').replace('--', '/')}@{revision}"
    return folders[-1] if folders else model


class BaseJudge(StrictModel):
    """The settings that every judge has.

    Attributes:
        name: the judge's name in the campaign and in every result.
        concurrency: requests in flight at a time.
        timeout: seconds to wait for an answer.
        attempts: requests sent for a question before it is given up.
    """

    name: Name
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 8
    timeout: Positive = 60.0
    attempts: Annotated[int, Field(ge=1, le=100)] = 6

    @field_validator("base_url", check_fields=False)
    @classmethod
    def _check_settings(cls, url: object) -> object:
        """Check that a `base_url` holds no secret; settings of plug-ins are checked, too."""
        return http_address(url) if isinstance(url, str) else url

    @property
    def model_name(self) -> str:
        """The name of the model, without the folders of this machine; empty if it has none."""
        return without_folders(str(getattr(self, "model", None) or ""))

    @property
    def alias(self) -> str:
        """The name of a model and its server; judges with the same alias have the same model."""
        return self.name

    @property
    def choices_only(self) -> str:
        """Why no answer can have log-odds, as far as the settings tell; empty if it may."""
        return ""

    @property
    def secret_variables(self) -> list[str]:
        """The environment variables whose values must not be shown."""
        name = getattr(self, "api_key_env", None)
        return [name] if name else []

    @property
    def has_batches(self) -> bool:
        """Whether its provider answers batches of questions."""
        return False

    def seeded(self, campaign_seed: int = 0) -> Self:  # noqa: ARG002 - of simulated judges
        """Return the judge with a seed of its own, if it needs one and has none.

        Examples:
            >>> one, two = (SimulatedJudge(name=name, backend="simulated") for name in "ab")
            >>> one.seeded(1).seed == two.seeded(1).seed, one.seeded(1).seed == one.seeded(1).seed
            (False, True)
        """
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that can change an answer, without the judge's name."""
        operational = {"name", "concurrency", "timeout", "attempts", "api_key_env", "price"}
        operational |= {"requests_per_minute", "tokens_per_minute", "latency"}
        settings = self.model_dump(mode="json", exclude=operational)
        # The weights may be in any folder.
        return settings | ({"model": self.model_name} if "model" in settings else {})


class _ModelJudge(BaseJudge):
    """The settings that this package's judges with a language model share.

    Attributes:
        model: the model's name at the provider.
        requests_per_minute: limit on requests of all judges with this account and model.
        tokens_per_minute: limit on tokens of these judges, prompts included.
        temperature: the sampling temperature of answers; None for the provider's default.
        max_tokens: limit on the tokens of an answer, with its thinking where the provider counts
            it; None for a limit that suits the template and the judge.
    """

    model: Annotated[str, Field(min_length=1)]
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=100_000)] | None = None

    @property
    def alias(self) -> str:
        """The backend, its profile and address and the model's name, whatever else is set."""
        names = ("backend", "profile", "base_url")
        server = [str(getattr(self, name, None) or "") for name in names]
        return " ".join(filter(None, [*server, self.model_name]))


THINKING_ROOM = 2048
"""Least token limit of models that think first; their thinking counts towards the limit."""

_JSON_ROOM = 32
"""Tokens of a letter in JSON, with any tokenizer."""

_THINKING_ROOM: dict[Effort | None, int] = {
    "minimal": 2048, "low": 4096, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 65_536,
}  # fmt: skip
"""Tokens reserved for the thinking of a question, by effort; questions about a pair are short."""

_FIXED_FIELDS = frozenset({
    "model", "messages", "system", "stream", "n", "max_tokens", "max_completion_tokens", "seed",
    "temperature", "logprobs", "top_logprobs", "reasoning_effort",
})  # fmt: skip
"""Fields of a request body that this package fills in, or that have a setting of their own."""

_FIXED_HEADERS = frozenset({"content-type", "content-length", "host", "accept-encoding"})
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""An environment variable in the value of a header."""


class HostedJudge(_ModelJudge):
    """The settings of models behind a provider's API, or a server with the same wire format.

    Attributes:
        profile: the name of the provider or server, whose profile has the address, the variable
            with the key and what differs in its wire format; `llm-elicit models profiles` lists
            them. None for the provider's own service, or a server of the same wire format.
        base_url: the server's address; None for the provider's own.
        api_key_env: the environment variable with the API key; None where none is needed, or where
            the SDK finds the key in its usual place.
        price: the price of tokens, which replaces that of the price list.
        structured: whether to request answers by a JSON schema, for models and servers that
            support it.
        effort: how much the model thinks before it answers; None for the provider's default.
        thinking_tokens: tokens reserved for the thinking of a question.
        extra_body: further fields of the request body, as the server names them.
        extra_headers: further headers of a request. `${NAME}` in a value is replaced by the
            environment variable NAME, so that no secret stands in a campaign.

    Examples:
        >>> judge = OpenAIJudge(name="o", backend="openai", model="m", effort="high")
        >>> judge.thinking_room
        16384
    """

    profile: str | None = Field(default=None, exclude_if=operator.not_)
    base_url: str | None = None
    api_key_env: str | None = None
    price: TokenPrice | None = None
    structured: bool = False
    effort: Effort | None = None
    thinking_tokens: Annotated[int, Field(ge=1, le=100_000)] | None = None
    extra_body: dict[str, JsonValue] = Field(default={}, exclude_if=operator.not_)
    extra_headers: dict[str, str] = Field(default={}, exclude_if=operator.not_)

    _with_its_profile = model_validator(mode="before")(with_profile)

    @property
    def wire_format(self) -> Profile:
        """The profile of the provider or server."""
        name = self.profile or default_profile(str(getattr(self, "backend", "")), self.base_url)
        return profile_named(name)

    @property
    def has_batches(self) -> bool:
        """Whether its provider answers batches of questions."""
        return self.wire_format.batch is not None

    @property
    def thinking_room(self) -> int:
        """The tokens to reserve for thinking; 0 if only the provider knows."""
        return self.thinking_tokens or _THINKING_ROOM.get(self.effort, 0)

    @property
    def least_tokens(self) -> int:
        """The least limit on the tokens of an answer, where neither setting states one."""
        return THINKING_ROOM if self.wire_format.thinks else _JSON_ROOM if self.structured else 0

    @property
    def secret_variables(self) -> list[str]:
        """The environment variables of the API key, of the client and of further headers."""
        headers = VARIABLE.findall(" ".join(self.extra_headers.values()))
        return [*super().secret_variables, *self.wire_format.secrets, *headers]

    @field_validator("extra_body")
    @classmethod
    def _no_fixed_field(cls, fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in fields:
            if name in _FIXED_FIELDS:
                raise ValueError(
                    f"{name} is set by the judge's other settings or by the template; remove it "
                    "here"
                )
        return fields

    @field_validator("extra_headers")
    @classmethod
    def _no_secret_header(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not re.fullmatch(r"[A-Za-z0-9-]+", name) or name.lower() in _FIXED_HEADERS:
                raise ValueError(
                    f"{name!r} cannot be added as a header: it is reserved or not a valid name; "
                    "remove it"
                )
            if not value.isascii() or not value.isprintable():
                raise ValueError(
                    f"{name}: a header may contain only printable ASCII text; change the value"
                )
            if _SECRET_HEADER.search(name) and not VARIABLE.search(value):
                raise ValueError(
                    f"{name}: secrets come from the environment; write ${{NAME}} and export NAME"
                )
        return headers

    @model_validator(mode="after")
    def _settings_suit_each_other(self) -> Self:
        default = default_profile(str(getattr(self, "backend", "")), self.base_url)
        is_adapted = self.wire_format.client != Client() or self.profile in (None, default)
        if default == "openai" and not is_adapted:
            raise ValueError(f"profile {self.profile} has no base_url; give the server's address")
        if self.structured and self.wire_format.structured is None:
            raise ValueError(
                f"structured: profile {self.profile} accepts no JSON schema; remove `structured`"
            )
        if self.effort is not None and not self.wire_format.thinking(self.effort, None):
            raise ValueError(f"effort: profile {self.profile} has no such setting; remove `effort`")
        thinking, limit = self.thinking_tokens, self.max_tokens
        if thinking and self.effort == "none":
            raise ValueError(
                "thinking_tokens cannot be combined with effort: none; remove one of them"
            )
        if thinking and limit and limit <= thinking:
            raise ValueError(
                f"max_tokens {limit:,} includes thinking and must be above thinking_tokens "
                f"{thinking:,}; raise it, or leave it out"
            )
        return self


class AnthropicJudge(HostedJudge):
    """A Claude model, through the anthropic SDK.

    `effort` lets the model think as much as it finds necessary at that level; `thinking_tokens` is
    the budget of models before Opus 4.6, at least 1,024. A model that thinks takes no temperature.
    """

    choices_only: ClassVar[str] = "Anthropic's API has no log-probabilities"

    backend: Literal["anthropic"]
    api_key_env: str | None = "ANTHROPIC_API_KEY"

    @model_validator(mode="after")
    def _claude_takes_them(self) -> Self:
        if self.effort == "minimal":
            raise ValueError(
                "effort: Claude accepts one of none, low, medium, high, xhigh, max; change it"
            )
        if self.thinking_tokens is not None and self.thinking_tokens < 1024:
            raise ValueError("thinking_tokens: Claude needs at least 1,024; raise it")
        if self.thinking_room and self.temperature is not None:
            raise ValueError(
                "temperature: Claude accepts no temperature while it thinks; remove it, or set "
                "effort: none"
            )
        return self


class OpenAIJudge(HostedJudge):
    """A model behind OpenAI's API or a compatible server (vLLM, llama.cpp, Ollama, ...).

    `effort` is sent as `reasoning_effort` or as the profile says; `thinking_tokens` is added to the
    token limit.

    Attributes:
        api_key_env: the environment variable with the key; null for a server that needs none.
        logprobs: whether to request the log-probabilities of the answer letters, which make
            judgments soft.
    """

    backend: Literal["openai"]
    api_key_env: str | None = "OPENAI_API_KEY"
    logprobs: bool = True
    seed: int | None = None

    @property
    def choices_only(self) -> str:
        """Why no answer can have log-odds; empty if it may."""
        if self.logprobs:
            return ""
        if self.profile and not self.wire_format.logprobs:
            return f"{self.profile} returns no log-probabilities"
        return "logprobs: false is set"


class LocalJudge(_ModelJudge):
    """A small model that runs on this machine, offline; see `llm-elicit models`.

    `model` is one of these, or the path of a .gguf file; results have the name of the file.

    `concurrency` inference engines share the machine's cores.
    """

    backend: Literal["local"]
    model: str = "smollm2"
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 0.0
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    timeout: Positive = 300.0


class LogOddsResponse(StrictModel):
    """The log-odds that a simulated judge answers in place of choices.

    log P(first shown) / P(second shown) = gain · (log p(first) − log p(second)) + position + noise.

    Attributes:
        gain: the factor of the difference of log-densities; 0 for answers without a preference.
        noise: standard deviation of the noise of an answer, nats.
        position_mean: mean of the position effect, nats.
        position_sd: standard deviation of the position effect over pairs; the effect is the same
            in both orders of a pair.
        ratio_noise: standard deviation of the noise of the logarithm of a stated ratio.
        ignores_width: whether ranges are compared by their mean density in place of their mass.
    """

    gain: NotNegative = 0.04
    noise: NotNegative = 0.07
    position_mean: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    position_sd: NotNegative = 0.0
    ratio_noise: NotNegative = 0.5
    ignores_width: bool = False


class SimulatedJudge(BaseJudge):
    """A random-utility model with a known belief, which calls no language model and is free.

    Attributes:
        belief: "table" is a Gaussian kernel density of the feature space's reference table, on
            each feature's scale; "uniform" has no preference.
        bandwidth: width of the kernels in standard deviations of the table; Scott's rule by
            default.
        noise: family of the noise of choices.
        noise_level: level of the noise of choices; by default that of Bradley-Terry, or 1.
        log_odds: log-odds to answer in place of choices; `noise` and `noise_level` are not used
            then.
        seed: seed of the noise. By default it is derived from the judge's name and the campaign's
            seed, so that judges of a campaign have different errors. Judges with the same seed make
            the same errors on the same questions.
        latency: seconds that an answer takes; 0 by default.
    """

    backend: Literal["simulated"]
    belief: Literal["table", "uniform"] = "table"
    bandwidth: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    noise: Literal["gumbel", "exponential", "normal"] = "gumbel"
    noise_level: NoiseLevel | None = None
    log_odds: LogOddsResponse | None = None
    seed: Seed | None = None
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 64
    latency: Annotated[float, Field(ge=0, le=60)] = 0.0

    @property
    def choices_only(self) -> str:
        """Why no answer can have log-odds; empty if it may."""
        return "" if self.log_odds else "a simulated judge gives log-odds only with `log_odds`"

    def seeded(self, campaign_seed: int = 0) -> Self:
        """Return the judge with a seed of its own, if it has none."""
        if self.seed is not None:
            return self
        digest = hashlib.sha256(f"{campaign_seed}/{self.name}".encode()).digest()
        return self.model_copy(update={"seed": int.from_bytes(digest[:4], "big")})

    @model_validator(mode="after")
    def _one_kind_of_noise(self) -> SimulatedJudge:
        if self.log_odds is not None and self.noise_level is not None:
            raise ValueError(
                f"noise_level {self.noise_level:g} applies to choices, but with log_odds the "
                "judge answers in log-odds; set log_odds.noise, or leave out log_odds"
            )
        return self


class HumanJudge(BaseJudge):
    """One or more experts, who answer at the pages of `llm-elicit serve`.

    Every question is answered by one of the experts. Replicates (`design.replicates`) of a question
    are answered by different experts, as far as there are enough of them. Experts may be added
    while the run continues.

    Attributes:
        experts: the names of the experts; the judge's own name by default.
        repeats: number of questions that an expert is asked a second time, as a share of the other
            questions.
        attention: number of questions that name the answer to give, as a share of the other
            questions. Beliefs are not fitted to answers to repeats and attention questions.

    Examples:
        >>> HumanJudge(name="ada", backend="human").experts
        ('ada',)
    """

    choices_only: ClassVar[str] = "people answer with choices"

    backend: Literal["human"]
    experts: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)] = Field(
        default_factory=lambda judge: (judge["name"],)
    )
    repeats: Annotated[float, Field(ge=0, le=1)] = 0.0
    attention: Annotated[float, Field(ge=0, le=1)] = 0.0

    _differ = field_validator("experts")(distinct)

    def identity(self) -> dict[str, Any]:
        """Return the settings that can change an answer: none, so that experts can be added."""
        return {"backend": self.backend}


class ImportedJudge(BaseJudge):
    """A judge whose judgments were imported from a file, so that it cannot be asked.

    Attributes:
        file: the name of the file.
        sha256: its checksum.
    """

    choices_only: ClassVar[str] = "imported judgments are choices"

    backend: Literal["imported"]
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def identity(self) -> dict[str, Any]:
        """Return what its judgments depend on: the file."""
        return {"backend": self.backend, "sha256": self.sha256}


class PluginJudge(BaseJudge):
    """The settings of a backend from another package, which inherits this model.

    See docs/how-to/backend.md.
    """

    free: ClassVar[bool] = False
    """Whether requests cost nothing; otherwise the cost is unknown without a `price`."""

    backend: str
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    price: TokenPrice | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _validate_by_plugin(
        cls, data: Any, handler: ModelWrapValidatorHandler[PluginJudge]
    ) -> PluginJudge:
        """Validate the settings by the plug-in's own model."""
        if cls is PluginJudge and isinstance(data, dict):
            try:
                settings = plugin_backend(str(data.get("backend"))).Settings
            except InputError as error:
                raise ValueError(str(error)) from None
            return settings.model_validate(data)  # type: ignore[no-any-return]
        return handler(data)


OWN_BACKENDS = ("anthropic", "human", "imported", "local", "openai", "simulated")
"""The backends of this package; a plug-in with one of these names is not used."""


_LONGEST = 200
"""The most characters of another package's error in a message."""


def installed_backends() -> dict[str, list[EntryPoint]]:
    """Return the backends that installed packages provide, by name; several if names clash."""
    entries: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entry_points(group="llm_elicit.backends"):
        entries[entry.name].append(entry)
    return dict(sorted(entries.items()))


def package_of(entry: EntryPoint) -> str:
    """Return the package of an entry point and its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"


def plugin_backend(name: str) -> Any:
    """Return the class of a backend that an installed package provides.

    Raises:
        InputError: no package provides it, two do, it cannot be imported, or it has no `Settings`.

    Examples:
        >>> try:
        ...     plugin_backend("telepathy")
        ... except InputError as error:
        ...     print(str(error)[:37])
        backend 'telepathy' is not installed;
    """
    backends = installed_backends()
    entries = backends.get(name, [])
    if not entries:
        names = ", ".join([*OWN_BACKENDS, *backends])
        raise InputError(
            f"backend {name!r} is not installed; known: {names}; correct the name, or install "
            "the package that provides it"
        )
    if len(entries) > 1:
        packages = " and ".join(map(package_of, entries))
        raise InputError(
            f"backend {name!r} is provided by several packages: {packages}; uninstall all but one"
        )
    try:
        backend = entries[0].load()
    except Exception as error:
        reason = " ".join(str(error).split())[:_LONGEST]
        raise InputError(
            f"backend {name!r} of {package_of(entries[0])} cannot be loaded "
            f"({type(error).__name__}: {reason}); repair or upgrade that package"
        ) from None
    settings = getattr(backend, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, PluginJudge)):
        raise InputError(
            f"backend {name!r}: {getattr(backend, '__name__', backend)} has no class `Settings` "
            "that inherits llm_elicit.config.judges.PluginJudge; see the example in "
            "docs/how-to/backend.md"
        )
    return backend


def _kind(judge: Any) -> str | None:
    """Return the tag of the model that holds a judge's settings."""
    name = judge.get("backend") if isinstance(judge, dict) else getattr(judge, "backend", None)
    if not isinstance(name, str):
        return None
    return name if name in OWN_BACKENDS else "plug-in"


Judge = Annotated[
    Annotated[AnthropicJudge, Tag("anthropic")]
    | Annotated[OpenAIJudge, Tag("openai")]
    | Annotated[HumanJudge, Tag("human")]
    | Annotated[ImportedJudge, Tag("imported")]
    | Annotated[LocalJudge, Tag("local")]
    | Annotated[SimulatedJudge, Tag("simulated")]
    | Annotated[SerializeAsAny[PluginJudge], Tag("plug-in")],
    Discriminator(
        _kind,
        custom_error_type="no_backend",
        custom_error_message="a judge needs a backend; known: " + ", ".join(OWN_BACKENDS),
    ),
]


def controls_among(judges: Sequence[Judge]) -> Sequence[Judge]:
    """Return the simulated judges of a campaign with other judges; none if all are simulated.

    How a control answers is known, so it is not counted among the hypotheses about the others.
    """
    simulated = [judge for judge in judges if judge.backend == "simulated"]
    return simulated if len(simulated) < len(judges) else []
