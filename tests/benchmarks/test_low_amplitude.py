"""Faint judges: log-odds as faint as they are said to be, and the right masses of ranges."""

import numpy as np
import pytest

from benchmarks import Job
from benchmarks.low_amplitude import (
    LOG_ODDS_SD,
    LowAmplitudeJudge,
    box_of,
    log_mass,
    measure_low_amplitude,
)
from benchmarks.run import Request
from benchmarks.targets import find
from llm_elicit.planning.direct_questions import draw_ranges


def target(name):
    return find([name])[0]


@pytest.mark.parametrize("name", ["Ring2D", "Gaussian4D", "Stargaussian6D"])
def test_the_mass_of_a_range_is_the_share_of_draws_within(name):
    of = target(name)
    rng = np.random.default_rng(0)
    x = of.sample(200_000, rng)
    low, high = np.quantile(x, [0.2, 0.7], axis=0)
    boxes = np.full((3, of.dimension, 2), (-np.inf, np.inf))
    boxes[0, :2] = np.stack([low, high], -1)[:2]
    boxes[1, 1] = low[1], high[1]
    boxes[2, 0] = x[:, 0].min(), high[0]
    share = [((x >= b[:, 0]) & (x <= b[:, 1])).all(1).mean() for b in boxes]
    gaps = np.diff(log_mass(of, boxes)), np.diff(np.log(share))
    assert gaps[0] == pytest.approx(gaps[1], abs=0.03)


def test_log_odds_are_as_faint_as_said():
    of = target("Onemoon2D")
    judge = LowAmplitudeJudge.of(of, np.random.default_rng(1))
    a, b = (of.sampling.sample(4000, np.random.default_rng(seed)) for seed in (2, 3))
    rows = judge.judge_points(a, b).measurements
    half = len(rows) // 2
    apart = 0.5 * (rows.value[:half] - rows.value[half:])
    mean = 0.5 * (rows.value[:half] + rows.value[half:])
    assert apart.std() == pytest.approx(np.hypot(LOG_ODDS_SD, 0.07 / 2**0.5), rel=0.05)
    assert mean.mean() == pytest.approx(0.1, abs=0.005)
    assert mean.std() == pytest.approx(np.hypot(0.05, 0.07 / 2**0.5), rel=0.05)


def test_a_judge_by_values_does_not_heed_width():
    of = target("Normal1D")
    judge = LowAmplitudeJudge.of(of, np.random.default_rng(4))
    narrow, wide = ([[[0.69, 0.71]]] * 400, [[[0.2, 1.2]]] * 400)
    heard = judge.judge_ranges(np.array(narrow), np.array(wide), by_mass=False).log_odds
    assert abs(0.5 * (heard[:400] - heard[400:]).mean()) < 0.03
    heard = judge.judge_ranges(np.array(narrow), np.array(wide)).log_odds
    expected = judge.gain * np.log(0.02 / 1.0)
    assert 0.5 * (heard[:400] - heard[400:]).mean() == pytest.approx(expected, rel=0.2)


def test_ranges_are_drawn_where_lambda_has_its_mass():
    of = target("Gaussian16D")
    low, high = box_of(of)
    first, second = draw_ranges(low, high, 40, np.random.default_rng(5))
    assert np.isfinite(log_mass(of, first) - log_mass(of, second)).all()


def test_a_row_says_how_far_it_is_at_both_powers_and_coherence_leaves_that_out():
    row = measure_low_amplitude(Job("low-amplitude", "Normal1D", "auto", seed=11, n=50, points=300))
    assert row["rank_correlation"] > 0.9
    assert row["power_low"] < row["power"] < row["power_high"]
    assert row["w1_floor"] < row["w1_true_power"]
    assert row["measure_seconds"] >= 0.0
    blind = measure_low_amplitude(
        Job("low-amplitude", "Normal1D", "auto", seed=11, n=50, variant="values")
    )
    assert blind["coherent"] == 0.0
    assert "w1" not in blind


def test_the_table_has_fewer_pairs_and_targets_of_its_own_for_coherence():
    jobs = Request("low-amplitude", seeds=(1,)).jobs()
    assert len(jobs) == 8
    assert jobs[0].n == 100
    jobs = Request("low-amplitude", seeds=(1, 2), variants=("mass",)).jobs()
    assert [(job.target, job.n) for job in jobs[::2]] == [
        ("Normal1D", 50), ("Onemoon2D", 100), ("Gaussian4D", 200),
    ]  # fmt: skip
    assert Request("table1", seeds=(1,), methods=("utility",)).jobs()[0].n == 2000
