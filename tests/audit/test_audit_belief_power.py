"""What depends on the power: a belief at several, against the law exp(k f)."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from llm_elicit import density
from llm_elicit.audit.belief_power import (
    POWER_FACTORS,
    evaluate_powers,
    measure_powers,
    parse_power,
    read_powers,
    write_powers,
)
from llm_elicit.audit.reference import Reference
from llm_elicit.comparisons.table import sampling_of
from llm_elicit.spaces.features import Feature, FeatureSpace

pytestmark = pytest.mark.usefixtures("few_particles")

SD = np.array([1.2, 0.9])
CENTRE = np.array([1.5, 0.0])


@pytest.fixture(scope="module")
def plane() -> FeatureSpace:
    features = (
        Feature(name=name, label=name, unit="", scale=scale, low=low, high=high, digits=6)
        for name, scale, low, high in (("x", "linear", -6.0, 6.0), ("y", "log", 0.01, 100.0))
    )
    return FeatureSpace(name="plane", title="plane", subject="a point", features=tuple(features))


@pytest.fixture(scope="module")
def belief(plane: FeatureSpace) -> density.BeliefDensity:
    """A twentieth of a normal log density about (1.5, 1) on the features' scales, taken to 5."""
    rng = np.random.default_rng(0)
    a, b = plane.sample(150, rng), plane.sample(150, rng)

    def g(points):
        return -0.025 * np.square((plane.to_scale(points) - CENTRE) / SD).sum(1)

    return density.fit_belief(
        a, b, log_odds=g(a) - g(b) + rng.normal(0, 0.02, 150),
        sampling=density.Uniform(plane.low, plane.high, log=plane.log),
    ).tempered(5.0)  # fmt: skip


def _data(plane, rng, centre=CENTRE, n=1500, sd=SD):
    return plane.from_scale(rng.normal(centre, sd, (n, 2)).clip(-4.5, 4.5))


def test_weighted_points_are_those_of_the_belief_at_another_power(plane, belief) -> None:
    found = evaluate_powers(belief, plane, belief.sample(8000, seed=1), None, 0)
    assert tuple(found.points_by_factor) == POWER_FACTORS
    assert found.saved_power == 5.0
    for factor in (0.25, 2.0, 4.0):
        anew = belief.tempered(factor).sample(4000, seed=3)
        one, other = (plane.to_scale(points) for points in (found.points_by_factor[factor], anew))
        np.testing.assert_allclose(one.mean(0), other.mean(0), atol=0.1)
        np.testing.assert_allclose(one.std(0), other.std(0), rtol=0.1)


def test_few_points_are_as_good_and_no_power_is_sampled_anew(plane, belief, monkeypatch) -> None:
    many = evaluate_powers(belief, plane, belief.sample(8000, seed=1), None, 0).log_normalizers

    def refuse(*_, **__):
        raise AssertionError("sampled anew")

    monkeypatch.setattr(density.BeliefDensity, "tempered", refuse)
    few = evaluate_powers(belief, plane, belief.sample(100, seed=1), None, 0).log_normalizers
    assert few == pytest.approx(many, abs=0.03)


def test_the_data_are_most_likely_at_the_power_they_were_drawn_at(plane, belief) -> None:
    """The utility is a twentieth of the data's log density."""
    rng = np.random.default_rng(1)
    data = _data(plane, rng)
    evidence = evaluate_powers(belief, plane, belief.sample(8000, seed=1), data, 0)
    found = measure_powers(evidence, Reference(plane, plane.sample(3000, rng), data), rng)
    assert found.data_power.value == pytest.approx(20.0, rel=0.15)
    assert (
        found.data_power.low < 20.0 < found.data_power.high or abs(found.data_power.value - 20) < 3
    )
    assert found.data_power.is_maximum_inside
    best = max(found.beliefs, key=lambda row: row.log_density)
    assert best.factor * 5.0 == pytest.approx(20.0, rel=0.5)
    assert best.log_density > found.sampling_log_density
    # The normal's own, per unit of standard deviations of the data.
    assert best.log_density == pytest.approx(-1.0 - np.log(2 * np.pi), abs=0.1)
    assert found.beliefs[0].data_distance.mean > best.data_distance.mean
    assert found.is_nearer is True
    assert found.beliefs[-1].sd_ratios == pytest.approx([1.0, 1.0], abs=0.1)
    assert found.beliefs[0].sd_ratios[0] > 1.5


def _with_sampling(plane, kind) -> tuple[FeatureSpace, density.SamplingDensity]:
    if kind == "constrained":
        fields = {name: getattr(plane, name) for name in FeatureSpace.model_fields}
        half = FeatureSpace(**{**fields, "constraints": ("x <= 2",)})
        return half, sampling_of(half)
    table = _data(plane, np.random.default_rng(5), centre=(0.5, 0.5), sd=(1.5, 1.2))
    return plane, density.Empirical(table, plane.low, plane.high, log=plane.log)


@pytest.mark.parametrize("kind", ["empirical", "constrained"])
def test_log_densities_are_those_of_the_tempered_beliefs(plane, kind) -> None:
    """λ was taken for uniform on the whole box: the log densities were off by a nat or more."""
    rng = np.random.default_rng(1)
    space, sampling = _with_sampling(plane, kind)
    a, b = sampling.sample(150, rng), sampling.sample(150, rng)

    def g(points):
        return -0.025 * np.square((plane.to_scale(points) - CENTRE) / SD).sum(1)

    heard = g(a) - g(b) + rng.normal(0, 0.02, 150)
    belief = density.fit_belief(a, b, log_odds=heard, sampling=sampling)
    belief = belief.tempered(5.0)
    data = _data(plane, rng)
    data = data[sampling.contains(data)]
    evidence = evaluate_powers(belief, space, belief.sample(8000, seed=1), data, 0)
    reference = Reference(space, sampling.sample(3000, rng), data)
    found = measure_powers(evidence, reference, rng)
    per_sd = np.log(plane.to_scale(data).std(axis=0)).sum()

    def log_density(law):
        return float((law.log_prob(data) - sampling.log_scale_derivative(data)).mean()) + per_sd

    assert found.sampling_log_density == pytest.approx(log_density(sampling), abs=1e-6)
    # Each is normalized anew, which takes a second: every other of them.
    beliefs = {row.factor: belief.tempered(row.factor) for row in found.beliefs[::2]}
    tempered = {factor: log_density(one) for factor, one in beliefs.items()}
    assert [row.log_density for row in found.beliefs[::2]] == pytest.approx(
        list(tempered.values()), abs=0.08
    )
    most = max(tempered, key=tempered.get)
    assert found.data_power.value == pytest.approx(5.0 * most, rel=0.5)
    anew = plane.to_scale(beliefs[0.25].sample(4000, seed=3))
    np.testing.assert_allclose(
        plane.to_scale(evidence.points_by_factor[0.25]).std(0), anew.std(0), rtol=0.1
    )


def test_data_of_low_utility_have_their_largest_likelihood_at_power_zero(plane, belief) -> None:
    rng = np.random.default_rng(2)
    data = _data(plane, rng, centre=(-4.0, -3.0), sd=(0.4, 0.4))
    sharper = belief.tempered(4.0)  # whose least power is far from λ
    evidence = evaluate_powers(sharper, plane, sharper.sample(4000, seed=1), data, 0)
    found = measure_powers(evidence, Reference(plane, plane.sample(3000, rng), data), rng)
    assert found.data_power.value == 0.0
    assert found.is_nearer is False
    assert all(row.mean_shifts[0] > 1.0 for row in found.beliefs)


def test_without_data_a_belief_is_compared_with_its_sampling_density(plane, belief) -> None:
    rng = np.random.default_rng(2)
    evidence = evaluate_powers(belief, plane, belief.sample(4000, seed=1), None, 0)
    found = measure_powers(evidence, Reference(plane, plane.sample(3000, rng)), rng)
    assert (found.data_power, found.is_nearer, found.sampling_data_distance) == (None, None, None)
    assert all(row.data_distance is None and row.log_density is None for row in found.beliefs)
    assert found.beliefs[-1].mean_shifts[0] > 0.3
    assert found.scale_sources is None


def test_an_identified_power_is_recorded_and_gives_the_scale(plane, belief) -> None:
    rng = np.random.default_rng(3)
    coherence = density.Coherence((0.0, -0.02, 0.02), 0.3, 1e-4)
    ranges = density.Power(9.0, 8.0, 10.0, "ranges", 0.07, coherence=coherence)
    ratios = density.Power(11.0, 9.0, 13.0, "ratios", 0.1)
    power = density.Power(9.7, 8.9, 10.6, "ranges + ratios", 0.05, (ranges, ratios), 0.2, coherence)
    assert parse_power(json.loads(json.dumps(asdict(power)))) == power
    evidence = evaluate_powers(belief, plane, belief.sample(4000, seed=1), None, 0, power)
    reference = Reference(plane, plane.sample(3000, rng))
    said = measure_powers(replace(evidence, saved_source=power.source), reference, rng)
    assert said.is_identified
    assert said.scale_sources == "ranges + ratios"
    assert [one.source for one in said.identified_power.sources] == ["ranges", "ratios"]
    assert not said.identified_power.coherence.coherent
    unused = measure_powers(replace(evidence, saved_source="convention"), reference, rng)
    assert unused.scale_sources is None
    # Ranges alone, answered as no holder of a density would, say nothing of its power.
    alone = replace(evidence, identified_power=ranges, saved_source="ranges")
    assert measure_powers(alone, reference, rng).scale_sources is None


def test_points_are_written_and_read_by_factor(plane, belief, tmp_path) -> None:
    evidence = evaluate_powers(belief, plane, belief.sample(4000, seed=1), None, 0)
    write_powers(evidence, plane, tmp_path / "powers.parquet")
    found = read_powers(tmp_path / "powers.parquet")
    assert sorted(found) == pytest.approx(sorted(POWER_FACTORS))
    np.testing.assert_array_equal(found[2.0], evidence.points_by_factor[2.0])
    assert read_powers(tmp_path / "missing.parquet") == {}
