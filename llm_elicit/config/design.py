"""Which questions a campaign asks: how many pairs, how often, in which rounds; and directly."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from llm_elicit.config.base_model import Positive, StrictModel


class Stop(StrictModel):
    """When a judge has been asked enough, looked at before every round but the first.

    Attributes:
        max_band_width: the 90 % band of every feature's mean is no wider than this many standard
            deviations of the belief; of a categorical feature that of every share, which has
            √(1 − Σ share²) for a standard deviation.
        no_signal_after: after so many pairs, a belief that is everywhere the same foretells
            held-out choices as well as any.

    Either is enough; without both, all rounds are asked.
    """

    max_band_width: Positive | None = Field(default=None, serialization_alias="band")
    no_signal_after: Annotated[int, Field(ge=10)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Stop:
        if self.max_band_width is None and self.no_signal_after is None:
            raise ValueError("give max_band_width or no_signal_after, or leave stop out")
        return self


class Rounds(StrictModel):
    """Pairs planned in rounds, each from the answers to those before it.

    `shared`: all judges are asked the same pairs, and a round waits for all of them; otherwise
    each judge has rounds of its own from the second on. `stop` says when the rounds still to come
    are not asked any more.
    """

    count: Annotated[int, Field(ge=2, le=1000)]
    shared: bool = True
    stop: Stop | None = None


class Design(StrictModel):
    """Which questions are asked: pairs drawn from λ, in both orders, so many times each.

    `adaptive` alone stands for the defaults in five rounds. `triads` are three pairs each, of
    those of the first round: all that join three points drawn from λ.

    Example:
        >>> design = Design(pairs=50, rounds=Rounds(count=3))
        >>> design.sizes, design.questions
        ((18, 16, 16), 100)
    """

    pairs: Annotated[int, Field(ge=2, le=10_000_000)] = 200
    template: str = "v1/zero-shot"
    both_orders: bool = True
    replicates: Annotated[int, Field(ge=1, le=1000)] = 1
    rounds: Rounds | None = None
    triads: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        return {"rounds": {"count": 5}} if data == "adaptive" else data

    @model_validator(mode="after")
    def _rounds_have_pairs(self) -> Design:
        if self.rounds is not None and self.rounds.count > self.pairs:
            rounds = f"{self.rounds.count} rounds of {self.pairs} pairs"
            raise ValueError(f"{rounds}; ask more pairs, or fewer rounds")
        return self

    @model_validator(mode="after")
    def _triads_have_pairs(self) -> Design:
        asked, first = 3 * self.triads, self.sizes[0]
        if asked > first:
            which = "pairs" if self.rounds is None else "pairs of the first round"
            raise ValueError(
                f"{self.triads} triads are {asked} pairs, more than the {first} {which}; "
                "ask more pairs, or fewer triads"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """What decides which questions are asked, as JSON."""
        identity = self.recorded(exclude_none=True)
        if not self.triads:
            # Runs begun before there were triads, or rounds, go on.
            del identity["triads"]
        return identity

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many pairs each round has; what is left over goes into the first."""
        if self.rounds is None:
            return (self.pairs,)
        each, left = divmod(self.pairs, self.rounds.count)
        return (each + left, *[each] * (self.rounds.count - 1))

    @property
    def questions(self) -> int:
        """How many questions a judge is asked in all."""
        return self.pairs * (1 + self.both_orders) * self.replicates


class Direct(StrictModel):
    """Questions besides the pairs: cross-checks, and what tells the scale of the belief.

    Attributes:
        quantiles: how often each feature's quantiles are asked for, if it is a number.
        samples: how many points the judge is asked to write down, each by itself.
        rows: of the reference table, of which the beginning is shown and the rest asked for.
        ranges: how many pairs of ranges are compared, each in both orders.
        ratios: of how many of the pairs it is asked how many times as plausible one is.

    They are no part of a campaign's identity: a run whose pairs are asked takes them up, and more
    of one kind leave those asked before as they were.

    Example:
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
