"""Points that a judge wrote down, one at a time: how far they lie from the data and the belief.

Each is asked for by itself, so they are independent draws of what the judge generates, as in
Requeima et al. 2024, "LLM Processes: numerical predictive distributions conditioned on natural
language", where a model's samples are its predictive distribution. There are few of them, so every
distance stands beside what as many true draws give.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance

from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.scales import Standard, shares_of
from llm_elicit.audit.two_sample import mean_distance
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats

_REPEATS = 99
_OTHERS = 1000


class Beside(StrictModel):
    """A distance of the written points, and the same of as many true draws.

    Attributes:
        distance: of the points.
        floor: its mean over true draws.
        p_value: how often true draws are as far or farther.
    """

    distance: float
    floor: float
    p_value: float


class GeneratedFeature(StrictModel):
    """One feature: W1 in standard deviations of the data, on its scale; None without the other.

    Of a categorical feature, the total variation between shares.
    """

    name: str
    data: Beside | None
    belief: Beside | None


class Generated(StrictModel):
    """The points a judge wrote down.

    Attributes:
        points: how many lie in the range asked about, which the distances are of.
        outside: how many do not.
        distinct: how many of the points are different.
        features: by feature, in the order of the space.
        data, belief: the energy distance over all features together.
    """

    points: int
    outside: int
    distinct: int
    features: list[GeneratedFeature]
    data: Beside | None
    belief: Beside | None


def measure_generated(
    points: Floats,
    reference: Reference,
    belief: Floats | None,
    settings: AuditSettings,
    rng: np.random.Generator,
) -> Generated | None:
    """From written points `(n, d)`, natural units; None with fewer than two in the range."""
    space = reference.space
    inside = space.contains(points) if len(points) else np.zeros(0, dtype=bool)
    if inside.sum() < 2:
        return None
    kept = space.round(points[inside])
    standard = reference.standard
    sides: dict[str, list[Beside] | None] = {"data": None, "belief": None}
    for name, other in (("data", reference.data), ("belief", belief)):
        if other is not None:
            sides[name] = _beside(kept, space.round(other), standard, settings.size, rng)
    return Generated(
        points=len(kept),
        outside=int((~inside).sum()),
        distinct=len(np.unique(kept, axis=0)),
        features=[
            GeneratedFeature(
                name=feature, **{name: None if s is None else s[j] for name, s in sides.items()}
            )
            for j, feature in enumerate(space.names)
        ],
        **{name: None if s is None else s[-1] for name, s in sides.items()},
    )


def _beside(
    x: Floats, y: Floats, standard: Standard, most: int, rng: np.random.Generator
) -> list[Beside]:
    """Each feature's distance and the energy distance last, of x from y and of draws of y from y.

    One part of y stands for it, and the true draws are from the other.
    """
    y = y[rng.permutation(len(y))]
    kept = y[: min(_OTHERS, (len(y) + 1) // 2)]
    others = y[len(kept) :]
    size = min(most, len(x), len(others))
    placed, numbers = standard(kept), standard.numbers(kept)
    within, space = mean_distance(placed), standard.space
    words = [j for j, feature in enumerate(space.features) if feature.categories]
    shares = {j: shares_of(kept[:, j], space.features[j]) for j in words}

    def distances(some: Floats) -> list[float]:
        place = standard(some)
        squared = 2.0 * float(cdist(place, placed).mean()) - mean_distance(place) - within
        each = [
            0.5 * float(np.abs(shares_of(some[:, j], space.features[j]) - shares[j]).sum())
            if j in shares
            else float(wasserstein_distance(column, numbers[:, j]))
            for j, column in enumerate(standard.numbers(some).T)
        ]
        return [*each, max(squared, 0.0) ** 0.5]

    own = distances(x[rng.permutation(len(x))[:size]])
    draws = (others[rng.choice(len(others), size, replace=False)] for _ in range(_REPEATS))
    drawn = np.array([distances(some) for some in draws])
    reached = (drawn >= np.array(own)).sum(axis=0)
    return [
        Beside(distance=d, floor=float(f), p_value=float((1 + r) / (1 + _REPEATS)))
        for d, f, r in zip(own, drawn.mean(axis=0), reached, strict=True)
    ]
