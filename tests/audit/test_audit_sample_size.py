"""The predicted effect of more pairs against the real one."""

import numpy as np
import pytest
from scipy import stats

from audit.planted import box
from llm_elicit.audit.inference import estimate_sample_size
from llm_elicit.audit.randomization import RandomizationTest
from llm_elicit.audit.responses import Response
from llm_elicit.audit.summaries import (
    MIN_PAIRS_PER_FEATURE,
    BandPrecision,
    measure_band_precision,
    measure_bands,
)
from llm_elicit.comparisons.table import Choices
from llm_elicit.density import (
    FitSettings,
    MixtureSettings,
    Noise,
    SmoothSettings,
    Uniform,
    UtilitySettings,
    fit_belief,
    simulate_choices,
)

pytestmark = pytest.mark.usefixtures("few_particles")

PLANE, LINE = box(2), box(1)
QUADRATIC = FitSettings(
    utility=UtilitySettings(
        mixture=MixtureSettings(counts=()), smooth=SmoothSettings(frequencies=0)
    )
)


def _power(n: int, seed: int) -> BandPrecision:
    """Of a standard normal belief's bands after n comparisons."""
    rng = np.random.default_rng([seed, n])
    a, b = PLANE.sample(n, rng), PLANE.sample(n, rng)
    wins = simulate_choices(-0.5 * (a**2).sum(1), -0.5 * (b**2).sum(1), Noise(), rng)[:, None]
    belief = fit_belief(
        np.where(wins, a, b), np.where(wins, b, a), method="utility", settings=QUADRATIC,
        sampling=Uniform(PLANE.low, PLANE.high),
    )  # fmt: skip
    return measure_band_precision(
        measure_bands(belief.draws(), PLANE), belief.sample(2000), PLANE, pairs=n
    )


def test_bands_are_about_as_narrow_as_predicted():
    """Within a factor of 1.5, in the geometric mean over two judges."""
    n = 2 * MIN_PAIRS_PER_FEATURE
    ratios = []
    for seed in range(2):
        now = _power(n, seed)
        assert not now.prior_dominated
        later = _power(n + now.more_pairs, seed)
        assert later.pairs == 4 * n
        ratios += [
            getattr(after, which) / getattr(before, which)
            for before, after in zip(now.widths, later.widths, strict=True)
            for which in ("mean", "median")
        ]
    assert 0.5 / 1.5 < stats.gmean(ratios) < 0.5 * 1.5


@pytest.mark.parametrize("freedom", [1, 5, 20])
@pytest.mark.parametrize("squared", [0.02, 0.1])
def test_the_pairs_of_a_search_are_those_of_the_chi_squared_test(freedom, squared):
    """Of which n gains, with `freedom` columns and the squared correlation, are known exactly."""
    n = 200
    null = (np.random.default_rng(0).chisquare(freedom, 20_000) - freedom) / n
    critical = stats.chi2.ppf(0.95, freedom)
    enough = np.linspace(1, 100, 10_000)
    noncentral = enough[np.argmax(stats.ncx2.sf(critical, freedom, enough) >= 0.8)]
    found = estimate_sample_size(null.mean() + squared, null, n)
    if squared <= found.se:
        assert found.pairs is None
    else:
        assert found.pairs == pytest.approx(max(n, noncentral / squared), rel=0.15)


def _weak(n: int, rng: np.random.Generator) -> RandomizationTest:
    """A judge who names the larger of two points in three of five choices."""
    a, b = LINE.sample(n, rng), LINE.sample(n, rng)
    larger = (a > b)[:, 0]
    said = np.where(rng.random(n) < 0.6, larger, ~larger)
    return _test_of(a, b, said * 1.0)


def _test_of(a, b, preference) -> RandomizationTest:
    choices = Choices(a, b, preference, np.arange(len(a)))
    return RandomizationTest(Response.from_choices(choices), LINE)


def test_as_many_pairs_as_predicted_find_the_signal_in_four_of_five_studies():
    rng = np.random.default_rng(0)
    few = [_weak(150, rng).run(99, rng) for _ in range(150)]
    gain = np.mean([each.loo_r2 for each in few])
    found = estimate_sample_size(gain, np.concatenate([each.null_r2 for each in few]), 150)
    assert np.mean([each.p_value <= 0.05 for each in few]) < 0.5
    tests = (_weak(found.pairs, rng).run(99, rng) for _ in range(150))
    assert np.mean([each.p_value <= 0.05 for each in tests]) == pytest.approx(0.8, abs=0.12)


def test_a_judge_who_says_nothing_gives_no_number():
    rng = np.random.default_rng(0)
    a, b = LINE.sample(50, rng), LINE.sample(50, rng)
    same = _test_of(a, b, np.full(50, 0.5)).run(99, rng)
    assert estimate_sample_size(same.loo_r2, same.null_r2, 50).pairs is None


def test_a_signal_that_is_there_already_takes_no_more_pairs():
    null = (np.random.default_rng(0).chisquare(2, 2000) - 2) / 100
    assert estimate_sample_size(0.5, null, 100).pairs == 100
