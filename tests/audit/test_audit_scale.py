"""What depends on the noise level: a belief at several, against the law p^c."""

import numpy as np
import pytest

from audit.planted import ask, gaussian_expert
from llm_elicit import density
from llm_elicit.audit import Reference, points_at_levels
from llm_elicit.audit.scale import FACTORS, measure_scale
from llm_elicit.features import Feature, FeatureSpace, Floats
from tests.density.targets import QUICK


@pytest.fixture(scope="module")
def plane() -> FeatureSpace:
    features = (
        Feature(name=name, label=name, unit="", scale=scale, low=low, high=high)
        for name, scale, low, high in (("x", "linear", -6.0, 6.0), ("y", "log", 0.01, 100.0))
    )
    return FeatureSpace(name="plane", title="plane", subject="a point", features=tuple(features))


@pytest.fixture(scope="module")
def belief(plane: FeatureSpace) -> density.BeliefDensity:
    """An expert whose belief is normal about (1.5, 1) on the features' scales."""
    centre, width = np.array([1.5, 0.0]), np.array([1.2, 0.9])
    choose, rng = gaussian_expert(plane), np.random.default_rng(0)

    def standard(points: Floats) -> Floats:
        return (plane.to_scale(points) - centre) / width

    log = ask(plane, lambda a, b: choose(standard(a), standard(b)), rng, 300, name="expert")
    winners, losers, weights = log.choices("expert").weighted()
    return density.fit_belief(
        winners, losers, weights=weights, method="utility", settings=QUICK,
        sampling=density.Uniform(plane.low, plane.high, log=plane.log),
    )  # fmt: skip


def test_weighted_points_are_those_of_the_belief_at_another_level(
    belief: density.BeliefDensity, plane: FeatureSpace
) -> None:
    found = points_at_levels(belief, plane, belief.sample(8000, seed=1), seed=0)
    assert tuple(found) == FACTORS
    for factor in (0.5, 2.0):
        anew = belief.at_noise(factor * belief.noise.level).sample(4000, seed=3)
        one, other = (plane.to_scale(points) for points in (found[factor], anew))
        np.testing.assert_allclose(one.mean(0), other.mean(0), atol=0.08)
        np.testing.assert_allclose(one.std(0), other.std(0), rtol=0.08)


def test_conclusions_are_told_apart_by_whether_they_hold_at_every_level(
    belief: density.BeliefDensity, plane: FeatureSpace
) -> None:
    """The data lie below the belief in x at any level; in y they are as the belief is.

    λ is nearer to wide data than a belief as narrow as twice the noise would make it.
    """
    rng = np.random.default_rng(1)
    at_levels = points_at_levels(belief, plane, belief.sample(4000, seed=1), seed=0)

    def scale_against(width: float, centre: tuple[float, float]):
        data = plane.from_scale(rng.normal(centre, width, (3000, 2)).clip(-4.5, 4.5))
        return measure_scale(at_levels, Reference(plane, plane.sample(3000, rng), data), rng)

    apart = scale_against(0.9, (0.0, 0.0))
    assert (apart.above, apart.below) == (["x"], [])
    assert apart.nearer is True
    distances = [each.belief_data.mean for each in apart.levels if each.belief_data]
    assert len(distances) == len(FACTORS)
    assert scale_against(2.6, (1.5, 0.0)).nearer is not True


def test_without_data_a_belief_is_set_beside_its_sampling_density(
    belief: density.BeliefDensity, plane: FeatureSpace
) -> None:
    rng = np.random.default_rng(2)
    at_levels = points_at_levels(belief, plane, belief.sample(4000, seed=1), seed=0)
    found = measure_scale(at_levels, Reference(plane, plane.sample(3000, rng)), rng)
    assert found.above == ["x"]
    assert found.nearer is None
    assert all(each.belief_data is None for each in found.levels)
