"""Which questions to ask: a pure function of (campaign, seed), so a resumed run asks the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llm_elicit.campaign import Design
from llm_elicit.errors import InputError
from llm_elicit.features import FeatureSpace, Floats

Order = Literal["ab", "ba"]


@dataclass(frozen=True)
class Query:
    """One question to put: pair number, presentation order and replicate.

    In order "ab" point a is shown first, as option A; in order "ba" point b is.
    """

    pair: int
    order: Order
    replicate: int


@dataclass(frozen=True)
class Plan:
    """The pairs of a campaign and every way each is put.

    Attributes:
        a: the first points, `(n, d)`, natural units, as they are worded.
        b: the second points, `(n, d)`.
    """

    a: Floats
    b: Floats
    orders: tuple[Order, ...]
    replicates: int

    def __len__(self) -> int:
        return len(self.a) * len(self.orders) * self.replicates

    def __iter__(self) -> Iterator[Query]:
        """Queries pair by pair, so that an interrupted run holds whole pairs."""
        for pair in range(len(self.a)):
            for replicate in range(self.replicates):
                for order in self.orders:
                    yield Query(pair, order, replicate)

    def shown(self, query: Query) -> tuple[Floats, Floats]:
        """The two points of `query` in the order they are shown: option A, option B."""
        a, b = self.a[query.pair], self.b[query.pair]
        return (a, b) if query.order == "ab" else (b, a)


def make_plan(space: FeatureSpace, design: Design, seed: int) -> Plan:
    """Draw the pairs of a campaign from λ.

    With `both_orders` each pair is asked as (a, b) and as (b, a); without, the draw being
    exchangeable, as (a, b) alone.

    Raises:
        InputError: fewer pairs than features.

    Example:
        >>> space = FeatureSpace.load("california_housing")
        >>> plan = make_plan(space, Design(pairs=50), seed=1)
        >>> len(plan), next(iter(plan))
        (100, Query(pair=0, order='ab', replicate=0))
    """
    if design.pairs < space.dimension:
        raise InputError(
            f"design.pairs: {design.pairs} is fewer than the {space.dimension} features of "
            f"{space.name}; ask at least {space.dimension}, and some 25 a feature for a belief"
        )
    points = space.sample(2 * design.pairs, np.random.default_rng([seed, 0x9A125]))
    orders: tuple[Order, ...] = ("ab", "ba") if design.both_orders else ("ab",)
    return Plan(points[0::2], points[1::2], orders, design.replicates)
