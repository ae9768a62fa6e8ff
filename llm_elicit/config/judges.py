"""The settings of judges: one class per backend, people, and the backends of other packages."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Discriminator,
    Field,
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
    each_once,
    http_address,
)
from llm_elicit.config import plugins
from llm_elicit.errors import InputError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
"""The name of a judge or a campaign, which becomes the name of a folder."""

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TokenPrice(StrictModel):
    """The price of a judge's tokens, in USD per million; it replaces that of the price list.

    Attributes:
        input: of prompt tokens.
        output: of answer tokens.
        cached: of prompt tokens read from the provider's cache; the price of `input` by default.
        batch: the share of these prices that is paid in batch mode.
    """

    input: NotNegative
    output: NotNegative
    cached: NotNegative | None = None
    batch: Annotated[float, Field(gt=0, le=1)] = 1.0


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
    def _served(cls, url: object) -> object:
        """Refuse a `base_url` that holds a secret; this covers plug-ins, too."""
        return http_address(url) if isinstance(url, str) else url

    @property
    def model_name(self) -> str:
        """The name of the model, without the folders of this machine; empty if it has none."""
        return str(getattr(self, "model", None) or "")

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
        return self.model_dump(mode="json", exclude=operational)


class _ModelJudge(BaseJudge):
    """The settings that this package's judges with a language model share."""

    model: Annotated[str, Field(min_length=1)]
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=100_000)] | None = None


class AnthropicJudge(_ModelJudge):
    """A Claude model, through the anthropic SDK. The key is read from `api_key_env`.

    `structured` requests answers by a JSON schema, for models that support it.
    """

    backend: Literal["anthropic"]
    base_url: str | None = None
    api_key_env: str = "ANTHROPIC_API_KEY"
    structured: bool = False
    price: TokenPrice | None = None


class OpenAIJudge(_ModelJudge):
    """A model behind OpenAI's API or a compatible server (vLLM, llama.cpp, Ollama, ...).

    Attributes:
        api_key_env: the environment variable with the key; null for a server that needs none.
        logprobs: whether to request the log-probabilities of the answer letters, which make
            judgments soft.
        structured: whether to request answers by a JSON schema, for models and servers that
            support it.
    """

    backend: Literal["openai"]
    base_url: str | None = None
    api_key_env: str | None = "OPENAI_API_KEY"
    price: TokenPrice | None = None
    logprobs: bool = True
    structured: bool = False
    seed: int | None = None


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

    @property
    def model_name(self) -> str:
        """The name of a known model, or that of the file."""
        return Path(self.model).name if self.model.endswith(".gguf") else self.model

    def identity(self) -> dict[str, Any]:
        """Return the settings that can change an answer; the weights may be in any folder."""
        return super().identity() | {"model": self.model_name}


class LogOddsResponse(StrictModel):
    """The log-odds that a simulated judge answers in place of choices.

    log P(first shown) / P(second shown) = gain · (log p(first) − log p(second)) + position + noise.

    Attributes:
        gain: the factor of the difference of log-densities; 0 for answers without a preference.
        noise: standard deviation of the noise of an answer, nats.
        position_mean: mean of the position effect, nats.
        position_sd: its standard deviation over pairs; it is the same in both orders of a pair.
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
        noise_level: its level; that of Bradley-Terry, or 1, by default.
        log_odds: log-odds to answer in place of choices; `noise` and `noise_level` are not used
            then.
        seed: of the noise. By default it follows from the judge's name and the campaign's seed, so
            that no two judges of a campaign share their errors; judges of one seed make the same
            errors on the same questions.
        latency: seconds that an answer takes, as from a model; 0 by default.
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
                f"noise_level {self.noise_level:g} is the noise of choices, and with log_odds the "
                "judge makes none; give log_odds.noise, or leave out log_odds"
            )
        return self


class HumanJudge(BaseJudge):
    """One or more people, who answer at the pages of `llm-elicit serve`.

    Every question is answered by one of the experts. Replicates (`design.replicates`) of a question
    are answered by different experts, as far as there are enough of them. Experts may be added
    while the run continues.

    Attributes:
        experts: the names of the people; the judge's own name by default.
        repeats: additional questions that an expert has answered before, as a share of the others.
        attention: additional questions that name the answer to give, as a share of the others. The
            answers to both kinds are kept apart: beliefs are not fitted to them.

    Examples:
        >>> HumanJudge(name="ada", backend="human").experts
        ('ada',)
    """

    backend: Literal["human"]
    experts: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)]
    repeats: Annotated[float, Field(ge=0, le=1)] = 0.0
    attention: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _named_like_the_judge(cls, data: Any) -> Any:
        if isinstance(data, dict) and "experts" not in data and "name" in data:
            return {**data, "experts": (data["name"],)}
        return data

    _differ = field_validator("experts")(each_once)

    def identity(self) -> dict[str, Any]:
        """Return the settings that can change an answer: none, so that experts can be added."""
        return {"backend": self.backend}


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
    def _as_the_plugin_has_it(
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


OWN_BACKENDS = ("anthropic", "human", "local", "openai", "simulated")
"""The backends of this package; a plug-in with one of these names is not used."""


def plugin_backend(name: str) -> Any:
    """Return the class of a backend that an installed package provides.

    Raises:
        InputError: no package provides it, it cannot be imported, or it has no `Settings`.
    """
    backend = plugins.load(name, OWN_BACKENDS)
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
    | Annotated[LocalJudge, Tag("local")]
    | Annotated[SimulatedJudge, Tag("simulated")]
    | Annotated[SerializeAsAny[PluginJudge], Tag("plug-in")],
    Discriminator(
        _kind,
        custom_error_type="no_backend",
        custom_error_message="a judge names its backend; known: " + ", ".join(OWN_BACKENDS),
    ),
]
