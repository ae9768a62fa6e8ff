"""The questions of a campaign: pairs, their rounds and triads, and direct questions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from llm_elicit._util.settings import Positive, Sampling, StrictModel


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
    def _says_something(self) -> Stop:
        if self.max_band_width is None and self.no_signal_after is None:
            raise ValueError("give max_band_width or no_signal_after, or leave stop out")
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


class Design(StrictModel):
    """The questions about pairs of points that are drawn from λ.

    In YAML, `design: adaptive` means the defaults in five rounds.

    Attributes:
        pairs: the number of pairs, in all rounds together.
        sampling: λ, the density that points are drawn from: "uniform" on the features' scales, or
            "empirical", a kernel density of the reference table.
        template: the question template.
        both_orders: whether each pair is shown in both orders.
        replicates: how many times each pair is asked in each order; with "auto" the number that
            tells most for its cost, and the dry run says why (`llm_elicit.planning.replicates`).
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
    both_orders: bool = True
    replicates: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = 1
    rounds: Rounds | None = None
    triads: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        return {"rounds": {"count": 5}} if data == "adaptive" else data

    @model_validator(mode="after")
    def _has_enough_pairs(self) -> Design:
        if self.rounds is not None and self.rounds.count > self.pairs:
            rounds = f"{self.rounds.count} rounds of {self.pairs} pairs"
            raise ValueError(f"{rounds}; ask more pairs, or fewer rounds")
        pairs, first = 3 * self.triads, self.sizes[0]
        if pairs > first:
            noun = "pairs" if self.rounds is None else "pairs of the first round"
            raise ValueError(
                f"{self.triads} triads are {pairs} pairs, more than the {first} {noun}; "
                "ask more pairs, or fewer triads"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide which questions are asked, as JSON data."""
        return self.model_dump(mode="json", exclude_none=True) | {"replicates": self.times}

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

    Examples:
        >>> Direct(quantiles=3).samples
        0
    """

    quantiles: Annotated[int, Field(ge=0, le=1000)] = 0
    samples: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    rows: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    ranges: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    ratios: Annotated[int, Field(ge=0, le=1_000_000)] = 0

    @model_validator(mode="after")
    def _asks_something(self) -> Direct:
        if not (self.quantiles or self.samples or self.rows or self.ranges or self.ratios):
            raise ValueError(
                "ask for quantiles, samples, rows, ranges or ratios, or leave direct out"
            )
        return self
