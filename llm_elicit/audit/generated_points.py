"""Points that a judge generated one at a time: their distances from the data and the belief.

Each is asked for separately, so they are independent draws of the judge's predictive distribution,
as in Requeima et al. 2024, "LLM Processes: numerical predictive distributions conditioned on
natural language". There are few of them, so every distance is compared with those of as many true
draws.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.scales import Standardizer, category_shares
from llm_elicit.audit.two_sample import energy_between, mean_distance
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats

_REPEATS = 99
_MOST_COMPARED = 1000


class DistanceTest(StrictModel):
    """A distance of the generated points, against those of as many true draws.

    Attributes:
        distance: of the points.
        floor: its mean over true draws.
        p_value: how often true draws are at least as far.
    """

    distance: float
    floor: float
    p_value: float


class GeneratedFeature(StrictModel):
    """One feature: W1 in standard deviations of the data, on its scale; None without data, belief.

    For a categorical feature, the total variation between shares.
    """

    name: str
    data: DistanceTest | None
    belief: DistanceTest | None


class GeneratedPoints(StrictModel):
    """The points a judge generated.

    Attributes:
        points: how many lie in the range asked about; distances are of these.
        outside: how many do not.
        distinct: how many of the points are different.
        features: by feature, in the order of the space.
        data, belief: the energy distance over all features jointly.
    """

    points: int
    outside: int
    distinct: int
    features: list[GeneratedFeature]
    data: DistanceTest | None
    belief: DistanceTest | None


def measure_generated(
    points: Floats,
    reference: Reference,
    belief: Floats | None,
    settings: AuditSettings,
    rng: np.random.Generator,
) -> GeneratedPoints | None:
    """Measure generated points `(n, d)`, natural units; None with fewer than two in the range."""
    space = reference.space
    inside = space.contains(points) if len(points) else np.zeros(0, dtype=bool)
    if inside.sum() < 2:
        return None
    kept = space.round(points[inside])
    standardizer = reference.standardizer
    found: dict[str, list[DistanceTest] | None] = {"data": None, "belief": None}
    for name, other in (("data", reference.data), ("belief", belief)):
        if other is not None:
            found[name] = _tested(kept, space.round(other), standardizer, settings.size, rng)
    return GeneratedPoints(
        points=len(kept),
        outside=int((~inside).sum()),
        distinct=len(np.unique(kept, axis=0)),
        features=[
            GeneratedFeature(
                name=feature, **{name: None if s is None else s[j] for name, s in found.items()}
            )
            for j, feature in enumerate(space.names)
        ],
        **{name: None if s is None else s[-1] for name, s in found.items()},
    )


def _tested(
    x: Floats, y: Floats, standardizer: Standardizer, most: int, rng: np.random.Generator
) -> list[DistanceTest]:
    """Return each feature's distance of x from y, and the energy distance last, with floors.

    y is split: one part represents it, and true draws come from the other.
    """
    y = y[rng.permutation(len(y))]
    kept = y[: min(_MOST_COMPARED, (len(y) + 1) // 2)]
    others = y[len(kept) :]
    size = min(most, len(x), len(others))
    distances = _distances_to(kept, standardizer)
    own = distances(x[rng.permutation(len(x))[:size]])
    draws = (others[rng.choice(len(others), size, replace=False)] for _ in range(_REPEATS))
    drawn = np.array([distances(some) for some in draws])
    reached = (drawn >= np.array(own)).sum(axis=0)
    return [
        DistanceTest(distance=d, floor=float(f), p_value=float((1 + r) / (1 + _REPEATS)))
        for d, f, r in zip(own, drawn.mean(axis=0), reached, strict=True)
    ]


def _distances_to(y: Floats, standardizer: Standardizer) -> Callable[[Floats], list[float]]:
    """Return a function for a sample's distances from y: by feature, and the energy distance."""
    columns, features = standardizer(y), standardizer.space.features
    within = mean_distance(columns)
    shares = {j: category_shares(y[:, j], f) for j, f in enumerate(features) if f.categories}

    def distances(some: Floats) -> list[float]:
        found = [
            0.5 * float(np.abs(category_shares(some[:, j], features[j]) - shares[j]).sum())
            if j in shares
            else standardizer.marginal_distance(j, some[:, j], y[:, j])
            for j in range(some.shape[1])
        ]
        return [*found, energy_between(standardizer(some), columns, within)]

    return distances
