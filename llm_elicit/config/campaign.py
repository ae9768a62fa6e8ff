"""A campaign: what is asked, of whom, how often, and what is made of the answers.

A campaign is one YAML file, read into frozen pydantic models. What changes a question or an
answer is part of its identity (`llm_elicit.config.provenance`); how fast and how patiently it is
asked is not, so that limits can be changed between resumes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    Tag,
    field_validator,
    model_validator,
)

from llm_elicit._util import addresses
from llm_elicit.config import plugins, resources
from llm_elicit.config.base_model import StrictModel, each_once, read_yaml, validated
from llm_elicit.config.design import Design, Direct, Positive
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
NoiseLevel = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A noise level within the range in which differences of utilities are still computed."""


class TokenPrice(StrictModel):
    """What a judge's tokens cost, in USD per million, where the price list does not know better.

    `cached` are prompt tokens read from the provider's cache, by default as dear as others;
    `batch` is the share of these prices that is paid in batch mode.
    """

    input: NotNegative
    output: NotNegative
    cached: NotNegative | None = None
    batch: Annotated[float, Field(gt=0, le=1)] = 1.0


class _Judge(StrictModel):
    name: Name
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 8
    timeout: Positive = 60.0
    attempts: Annotated[int, Field(ge=1, le=100)] = 6

    @field_validator("base_url", check_fields=False)
    @classmethod
    def _served(cls, url: object) -> object:
        """Whichever kind of judge has a `base_url`, a plug-in's too: no secret is in it."""
        return addresses.served(url) if isinstance(url, str) else url

    def identity(self) -> dict[str, Any]:
        """The settings that can change an answer: the operational ones and the name left out."""
        operational = {"name", "concurrency", "timeout", "attempts", "api_key_env", "price"}
        operational |= {"requests_per_minute", "tokens_per_minute"}
        identity = self.recorded(exclude=operational)
        for later in ("structured", "log_odds"):
            if not identity.get(later):
                # Runs begun before there was this setting go on.
                identity.pop(later, None)
        return identity


class _Model(_Judge):
    model: Annotated[str, Field(min_length=1)]
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=100_000)] | None = None


class AnthropicJudge(_Model):
    """A Claude model, through the anthropic SDK. The key is read from `api_key_env`.

    `structured` holds answers to a JSON schema, for models that take one.
    """

    backend: Literal["anthropic"]
    base_url: str | None = None
    api_key_env: str = "ANTHROPIC_API_KEY"
    structured: bool = False
    price: TokenPrice | None = None


class OpenAIJudge(_Model):
    """A model behind OpenAI's API or any server that speaks it (vLLM, llama.cpp, Ollama, ...).

    `logprobs` asks for the answer letters' log-probabilities, which make judgments soft.
    A local server that wants no key takes `api_key_env: null`. `structured` holds answers to a
    JSON schema, for models and servers that take one.
    """

    backend: Literal["openai"]
    base_url: str | None = None
    api_key_env: str | None = "OPENAI_API_KEY"
    price: TokenPrice | None = None
    logprobs: bool = True
    structured: bool = False
    seed: int | None = None


class LocalJudge(_Model):
    """A real small model on this machine, offline: see `llm-elicit models`.

    `concurrency` engines share the machine's cores.
    """

    backend: Literal["local"]
    model: str = "smollm2"
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 0.0
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    timeout: Positive = 300.0


class SoftAnswers(StrictModel):
    """How a simulated judge answers in log-odds instead of choices.

    log P(first shown) / P(second shown) = gain · (log p(first) − log p(second)) + position + noise.

    Attributes:
        gain: how much of a difference of log-density reaches the log-odds; 0 for none.
        noise: standard deviation of the noise of one answer, nats.
        position_mean: mean of the position effect, nats.
        position_sd: its standard deviation over pairs; both orders of a pair have the same.
        ratio_noise: standard deviation of the noise of the logarithm of a stated ratio.
        ignores_width: whether ranges are compared by the mean density within them, however wide
            they are, and not by their mass.
    """

    gain: NotNegative = 0.04
    noise: NotNegative = 0.07
    position_mean: Annotated[float, Field(allow_inf_nan=False, serialization_alias="position")] = (
        0.0
    )
    position_sd: NotNegative = 0.0
    ratio_noise: NotNegative = 0.5
    ignores_width: bool = False


class SimulatedJudge(_Judge):
    """A random-utility expert over a known belief: no model, no cost, the truth is known.

    `belief: table` is a smooth density of the feature space's reference table (a Gaussian
    kernel density on each feature's scale); `belief: uniform` has no preference at all.
    `bandwidth` is the kernels' width in standard deviations of the table; Scott's rule by
    default. Judges of one `seed` err alike where they are asked alike: give each its own to
    compare them. With `log_odds` the answers are log-odds, as a model's log-probabilities are, and
    `noise` and `noise_level` have no part in them.
    """

    backend: Literal["simulated"]
    belief: Literal["table", "uniform"] = "table"
    bandwidth: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    noise: Literal["gumbel", "exponential", "normal"] = "gumbel"
    noise_level: NoiseLevel | None = Field(default=None, serialization_alias="level")
    log_odds: SoftAnswers | None = None
    seed: Seed = 0
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 64

    @model_validator(mode="after")
    def _one_kind_of_noise(self) -> SimulatedJudge:
        if self.log_odds is not None and self.noise_level is not None:
            raise ValueError(
                f"noise_level {self.noise_level:g} is the noise of choices, and with log_odds the "
                "judge makes none; give log_odds.noise, or leave out log_odds"
            )
        return self


class PluginJudge(_Judge):
    """A backend from another package. Its own settings are a model that inherits this one.

    `free` says that asking costs nothing; otherwise what it costs is unknown unless the campaign
    gives a `price`. See docs/backends.md.
    """

    free: ClassVar[bool] = False

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
        """The settings are checked by the plug-in's own model."""
        if cls is PluginJudge and isinstance(data, dict):
            try:
                settings = plugin_backend(str(data.get("backend"))).Settings
            except InputError as error:
                raise ValueError(str(error)) from None
            return settings.model_validate(data)  # type: ignore[no-any-return]
        return handler(data)


OWN_BACKENDS = ("anthropic", "local", "openai", "simulated")
"""This package's; a plug-in of one of these names is never asked."""


def plugin_backend(name: str) -> Any:
    """The backend's class that an installed package offers under a name.

    Raises:
        InputError: there is none, it cannot be imported, or it says nothing of its settings.
    """
    backend = plugins.load(name, OWN_BACKENDS)
    settings = getattr(backend, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, PluginJudge)):
        raise InputError(
            f"backend {name!r}: {getattr(backend, '__name__', backend)} has no class `Settings` "
            "that inherits llm_elicit.config.campaign.PluginJudge; docs/backends.md has an example"
        )
    return backend


def _kind(judge: Any) -> str | None:
    """Which of the models below holds a judge's settings."""
    name = judge.get("backend") if isinstance(judge, dict) else getattr(judge, "backend", None)
    if not isinstance(name, str):
        return None
    return name if name in OWN_BACKENDS else "plug-in"


Judge = Annotated[
    Annotated[AnthropicJudge, Tag("anthropic")]
    | Annotated[OpenAIJudge, Tag("openai")]
    | Annotated[LocalJudge, Tag("local")]
    | Annotated[SimulatedJudge, Tag("simulated")]
    | Annotated[SerializeAsAny[PluginJudge], Tag("plug-in")],
    Discriminator(
        _kind,
        custom_error_type="no_backend",
        custom_error_message="a judge names its backend; known: " + ", ".join(OWN_BACKENDS),
    ),
]


class Limits(StrictModel):
    """What a run may spend: USD and tokens over all resumes, and seconds of asking each time.

    Not part of a campaign's identity.
    """

    max_cost: Positive | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    deadline: Positive | None = None


Method = Literal["auto", "score", "score-constant", "utility", "flow"]


class Fit(StrictModel):
    """How the belief is estimated. The first method is the belief; the others cross-check it.

    `position_effect`: "averaged" makes one comparison of a pair's orders and replicates, in which a
    preference for a position cancels; "estimated" counts every judgment for itself, and finds the
    preference and what a tie means with the belief.
    """

    methods: Annotated[tuple[Method, ...], Field(min_length=1)]
    noise: Literal["gumbel", "exponential", "normal"] = "gumbel"
    noise_level: NoiseLevel | None = Field(default=None, serialization_alias="level")
    samples: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    position_effect: Literal["averaged", "estimated"] = Field(
        default="averaged", serialization_alias="order_bias"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_method(cls, data: Any) -> Any:
        """`method: score` is short for `methods: [score]`."""
        if isinstance(data, dict) and "method" in data and "methods" not in data:
            data = {**data, "methods": [data["method"]]}
            del data["method"]
        return data

    _differ = field_validator("methods")(each_once)

    @model_validator(mode="after")
    def _methods_know_orders(self) -> Fit:
        bound = [method for method in self.methods if method not in ("utility", "auto")]
        if self.position_effect == "estimated" and bound:
            raise ValueError(
                f"position_effect: estimated is for methods utility and auto; {bound[0]!r} knows "
                "winners and losers alone; leave it out, or the method"
            )
        return self


class Grid(StrictModel):
    """Axes of a study besides its judges; every combination is asked: see `config.grid`."""

    spaces: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    temperatures: tuple[Annotated[float, Field(ge=0, le=2)], ...] = ()

    _differ = field_validator("temperatures")(each_once)


class Campaign(StrictModel):
    """One study, ready to run.

    With a `grid` it stands for several, the grid's cells; a cell is `part_of` its grid. `pilot`
    names the templates that `llm-elicit pilot` tries, by default all about pairs.

    Example:
        >>> campaign = Campaign.load("california")
        >>> [judge.name for judge in campaign.judges]
        ['smollm2', 'census-expert']
    """

    name: Name
    space: str
    seed: Seed = 1
    design: Design = Design()
    direct: Direct | None = None
    pilot: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    judges: Annotated[tuple[Judge, ...], Field(min_length=1)]
    fit: Fit = Fit(methods=("utility",))
    limits: Limits = Limits()
    runs: Path = Path("runs")
    journal: str | None = None
    grid: Grid | None = None
    part_of: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _space_of_the_grid(cls, data: Any) -> Any:
        """Where the grid names the feature spaces, `space` is left out."""
        grid = data.get("grid") if isinstance(data, dict) else None
        spaces = grid.get("spaces") if isinstance(grid, dict) else None
        if not spaces or not isinstance(spaces, list | tuple):
            return data
        if data.get("space", spaces[0]) not in spaces:
            raise ValueError("space is not among grid.spaces; leave it out")
        return {**data, "space": data.get("space", spaces[0])}

    _differ = field_validator("pilot")(each_once)

    @field_validator("journal")
    @classmethod
    def _no_secret(cls, address: str | None) -> str | None:
        """A journal that machines share: `postgresql://USER@HOST/DATABASE`, no password."""
        return None if address is None else addresses.database(address)

    @model_validator(mode="after")
    def _rounds_suit_the_fit(self) -> Campaign:
        bound = [m for m in self.fit.methods if m not in ("utility", "auto")]
        if self.design.rounds is not None and bound:
            raise ValueError(
                f"fit: method {bound[0]!r} takes pairs for independent draws from λ, which rounds "
                "do not ask; use utility or auto, or leave out design.rounds"
            )
        return self

    @model_validator(mode="after")
    def _judges_have_names(self) -> Campaign:
        names = [judge.name for judge in self.judges]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"judges: the name {twice[0]!r} appears twice; names must differ")
        return self

    @classmethod
    def load(cls, name: str | Path) -> Campaign:
        """Read a campaign by path, or by name from examples/.

        Raises:
            InputError: no such file, or the first key that breaks a rule.
        """
        path = resources.find("examples", str(name), ".yaml")
        return validated(cls, read_yaml(path), str(path))

    @property
    def folder(self) -> Path:
        """Where this campaign's run is kept."""
        return self.runs / self.name

    def load_space(self) -> FeatureSpace:
        """The feature space this campaign asks about.

        Raises:
            InputError: there is none that can be read, or the fit knows no categories.
        """
        space = FeatureSpace.load(self.space)
        bound = [method for method in self.fit.methods if method not in ("utility", "auto")]
        if bound and space.categorical.any():
            named = space.names[int(space.categorical.argmax())]
            raise InputError(
                f"fit: method {bound[0]!r} knows numbers alone, and {named} of {space.name} is "
                "categorical; use utility or auto"
            )
        return space

    def fingerprint(self, space: FeatureSpace) -> str:
        """A digest of all that decides which questions are asked, and of whom.

        By it runs of versions before `config.provenance` are known: they kept nothing else.
        """
        identity = {
            "space": space.model_dump(mode="json"),
            "seed": self.seed,
            "design": self.design.identity(),
            "judges": {judge.name: judge.identity() for judge in self.judges},
        }
        canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
