"""The questions of a campaign: pairs, their presentations, rounds and triads, direct questions."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from llm_elicit._util import files
from llm_elicit._util.settings import Positive, Sampling, StrictModel, distinct, read_yaml
from llm_elicit.errors import InputError


class Stop(StrictModel):
    """A stopping rule for a judge's rounds, checked before every round after the first.

    The rounds end when either condition holds.

    Attributes:
        max_band_width: the 90 % band of every feature's mean is at most this wide, in standard
            deviations of the belief. For a categorical feature it is the band of every share, in
            units of √(1 − Σ share²).
        no_signal_after: after this many pairs, a constant utility predicts held-out choices as
            well as any other.
    """

    max_band_width: Positive | None = None
    no_signal_after: Annotated[int, Field(ge=10)] | None = None

    @model_validator(mode="after")
    def _has_rule(self) -> Stop:
        if self.max_band_width is None and self.no_signal_after is None:
            raise ValueError("give max_band_width or no_signal_after, or remove `stop`")
        return self


class Rounds(StrictModel):
    """Adaptive rounds: the pairs of each are planned from the answers to the rounds before.

    Attributes:
        count: the number of rounds.
        shared: whether all judges are asked the same pairs, so that a round waits for all of
            them. Otherwise each judge has its own rounds from the second on.
        stop: the rule by which later rounds are left out.
    """

    count: Annotated[int, Field(ge=2, le=1000)]
    shared: bool = True
    stop: Stop | None = None


_NO_EXAMPLES = "none"


class Presentations(StrictModel):
    """Facets of how pairs are asked; pairs are spread over them (`planning.presentations`).

    Attributes:
        wordings: templates, or patterns of their names such as `v2/*`; by default,
            `design.template`.
        features: "fixed" for the space's order of features, "shuffled" for several orders.
        examples: sets of worked examples of `example_file`, `*` for all of them, or `none`; no
            examples by default.
        example_file: where they are, a name in prompts/ or a path; v2/examples by default.
        labels: names of the two options, such as `A/B`, `1/2` and `X/Y`.
        units: "fixed" for the space's units, "varied" for these and the features' other `units`.
        digits: numbers of significant digits; points are drawn with the largest.

    Examples:
        >>> Presentations(wordings=["v2/typical"], labels=["A/B", "1/2"]).templates()
        ('v2/typical',)
    """

    wordings: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    features: Literal["fixed", "shuffled"] = "fixed"
    examples: tuple[str, ...] = ()
    example_file: Annotated[str | None, Field(exclude_if=lambda path: path is None)] = None
    labels: tuple[Annotated[str, Field(pattern=r"^[A-Z0-9]/[A-Z0-9]$")], ...] = ()
    units: Literal["fixed", "varied"] = "fixed"
    digits: tuple[Annotated[int, Field(ge=1, le=9)], ...] = ()

    _differ = field_validator("examples", "labels", "digits")(distinct)

    @field_validator("wordings", "examples", "labels", "digits", mode="before")
    @classmethod
    def _accept_single_level(cls, value: Any) -> Any:
        """Read one level as a list of one."""
        return [value] if isinstance(value, str | int) else value

    @field_validator("labels")
    @classmethod
    def _two_labels(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        for pair in labels:
            if pair[0] == pair[2]:
                raise ValueError(
                    f"labels: {pair!r} gives both options the label {pair[0]!r}; use two different "
                    "labels"
                )
        return labels

    def templates(self) -> tuple[str, ...]:
        """Return the names of the templates of all wordings; empty without `wordings`.

        Raises:
            InputError: a pattern matches no name.
        """
        names: list[str] = []
        for wording in self.wordings or ():
            matching = [wording]
            if "*" in wording:
                templates = files.available("prompts", ".md")
                matching = [name for name in templates if PurePosixPath(name).match(wording)]
            if not matching:
                raise InputError(
                    f"design.presentations: wordings: no template matches {wording!r}; v2/* "
                    "matches the English templates, v2/de/* the German ones"
                )
            names += matching
        return tuple(dict.fromkeys(names))

    def example_path(self) -> Path:
        """Return the file of the sets of worked examples.

        Raises:
            InputError: there is no such file.
        """
        return files.find("prompts", self.example_file or "v2/examples", ".yaml")

    def example_sets(self) -> tuple[str, ...]:
        """Return the names of the sets of worked examples, or `none`.

        Raises:
            InputError: there is no such set.
        """
        sets = list(read_yaml(self.example_path())) if self.examples else []
        names = [
            name for pattern in self.examples for name in (sets if pattern == "*" else [pattern])
        ]
        for name in names:
            if name not in (*sets, _NO_EXAMPLES):
                raise InputError(
                    f"design.presentations: examples: no set {name!r}; known: {', '.join(sets)}, "
                    "or none"
                )
        return tuple(dict.fromkeys(names))


class Design(StrictModel):
    """The questions about pairs of points that are drawn from λ.

    In YAML, `design: adaptive` means the defaults in five rounds.

    Attributes:
        pairs: the number of pairs, in all rounds together.
        sampling: λ, the density that points are drawn from: "uniform" on the features' scales, or
            "empirical", a kernel density of the reference table.
        template: the question template, unless `presentations` lists several.
        presentations: facets of how pairs are asked, such as several templates. Pairs are spread
            over combinations of their levels; a fifth of the pairs is asked in two, and counts
            twice in `pairs`.
        both_orders: whether each pair is shown in both orders.
        replicates: how many times each pair is asked in each order; "auto" chooses the number
            with most information for its cost, and the dry run says why
            (`llm_elicit.planning.pairs`).
        rounds: adaptive rounds, if any.
        triads: sets of three points drawn from λ, of which all three pairs are asked; they count
            as pairs of the first round.

    Examples:
        >>> design = Design(pairs=50, rounds=Rounds(count=3))
        >>> design.sizes, design.questions
        ((18, 16, 16), 100)
    """

    pairs: Annotated[int, Field(ge=2, le=10_000_000)] = 200
    sampling: Sampling = "uniform"
    template: str = "v1/zero-shot"
    presentations: Presentations | None = None
    both_orders: bool = True
    replicates: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = 1
    rounds: Rounds | None = None
    triads: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _expand_adaptive(cls, data: Any) -> Any:
        return {"rounds": {"count": 5}} if data == "adaptive" else data

    @model_validator(mode="after")
    def _settings_suit_each_other(self) -> Design:
        facets, default = self.presentations, type(self).model_fields["template"].default
        if facets is not None and facets.wordings is not None and self.template != default:
            raise ValueError(
                f"template: {self.template} and presentations.wordings both name templates; list "
                "it among the wordings, and remove `template`"
            )
        if self.rounds is not None and self.rounds.count > self.pairs:
            rounds = f"{self.rounds.count} rounds of {self.pairs} pairs"
            raise ValueError(f"{rounds}; ask more pairs, or fewer rounds")
        pairs, first = 3 * self.triads, self.sizes[0]
        if pairs > first:
            noun = "pairs" if self.rounds is None else "pairs of the first round"
            raise ValueError(
                f"{self.triads} triads need {pairs} pairs, more than the {first} {noun}; "
                "ask more pairs, or fewer triads"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide which questions are asked, as JSON data."""
        return self.model_dump(mode="json", exclude_none=True) | {"replicates": self.times}

    @property
    def templates(self) -> tuple[str, ...]:
        """The names of the templates of questions about pairs.

        Raises:
            InputError: a pattern of `presentations.wordings` matches none.
        """
        facets = self.presentations
        return (facets.templates() if facets is not None else ()) or (self.template,)

    @property
    def times(self) -> int:
        """How many times each pair is asked in each order."""
        return 1 if self.replicates == "auto" else self.replicates

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of pairs of each round; the first has the remainder."""
        if self.rounds is None:
            return (self.pairs,)
        size, remainder = divmod(self.pairs, self.rounds.count)
        return (size + remainder, *[size] * (self.rounds.count - 1))

    @property
    def questions(self) -> int:
        """The number of questions that a judge is asked."""
        return self.pairs * (1 + self.both_orders) * self.times


class Direct(StrictModel):
    """Direct questions, which check a belief and determine its power.

    They are not part of a campaign's identity: they can be added to a run, and a larger number of
    a kind includes the questions of a smaller one.

    Attributes:
        quantiles: how many times the quantiles of each numeric feature are asked for.
        samples: how many single points the judge is asked to sample.
        rows: how many rows of the reference table the judge is asked to complete.
        ranges: how many pairs of ranges are compared, each in both orders.
        ratios: for how many pairs the judge is asked how many times as plausible one point is.
        likelihood: for how many pairs, and for how many rows of the reference table, the model's
            own probabilities of the numbers are read.

    Examples:
        >>> Direct(quantiles=3).samples
        0
    """

    quantiles: Annotated[int, Field(ge=0, le=1000)] = 0
    samples: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    rows: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    ranges: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    ratios: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    likelihood: Annotated[int, Field(ge=0, le=1_000_000)] = 0

    @model_validator(mode="after")
    def _has_questions(self) -> Direct:
        if not any(self.model_dump().values()):
            raise ValueError(
                "ask for quantiles, samples, rows, ranges, ratios or likelihood, or leave direct "
                "out"
            )
        return self
