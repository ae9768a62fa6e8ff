"""Which features drive a judge's choices: each alone, and all without it."""

from __future__ import annotations

import numpy as np

from llm_elicit.audit.multiplicity import holm
from llm_elicit.audit.randomization import RandomizationTest, exchange
from llm_elicit.audit.response import Response
from llm_elicit.features import FeatureSpace, Floats
from llm_elicit.rounds import Schedule
from llm_elicit.strict import Strict


class Driver(Strict):
    """One feature's part in the choices.

    Attributes:
        name: the feature.
        alone: leave-one-out share of the variance of (preference - 1/2) that the feature
            predicts by itself, linear and square, or by category; at or below 0 when it predicts
            nothing.
        lost: by how much the share that all features predict shrinks without this one.
        p_value: of the randomization test of the feature alone.
        p_holm: the same, for looking at all features (Holm 1979).
    """

    name: str
    alone: float
    lost: float
    p_value: float
    p_holm: float


def measure_drivers(
    choices: Response,
    space: FeatureSpace,
    flips: int,
    rng: np.random.Generator,
    schedule: Schedule | None = None,
) -> list[Driver]:
    """Every feature's part, in the order of the space; empty where nothing was chosen.

    `schedule` says which pairs belong to which round; None for one round.

    Example:
        >>> from llm_elicit.comparisons import Choices
        >>> space = FeatureSpace.load("penguins")
        >>> rng = np.random.default_rng(0)
        >>> a, b = space.sample(80, rng), space.sample(80, rng)
        >>> heavier = (a[:, 3] > b[:, 3]).astype(float)         # a judge by weight alone
        >>> told = Response.of_choices(Choices(a, b, heavier, np.arange(80)))
        >>> drivers = measure_drivers(told, space, 199, rng)
        >>> [driver.name for driver in drivers if driver.p_holm < 0.05]
        ['body_mass_g']
    """
    if len(choices) < 2:
        return []
    told = RandomizationTest(choices, space, schedule)
    design, owners = told.designs[len(choices)]
    columns = [design[:, owners == j] for j in range(space.dimension)]
    tests = [told.run(flips, rng, feature=j) for j in range(space.dimension)]
    adjusted = holm(np.array([test.p_value for test in tests]))

    def gain(kept: list[Floats]) -> float:
        if not kept:
            return 0.0
        return exchange(np.concatenate(kept, axis=1), choices.value, 0, rng).gain

    whole = gain(columns)
    return [
        Driver(
            name=name,
            alone=tests[j].gain,
            lost=whole - gain(columns[:j] + columns[j + 1 :]),
            p_value=tests[j].p_value,
            p_holm=float(adjusted[j]),
        )
        for j, name in enumerate(space.names)
    ]
