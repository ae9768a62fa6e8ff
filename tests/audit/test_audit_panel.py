"""A panel: worth in rows, ties and pools of judges whose beliefs are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llm_elicit.audit.panel import (
    PanelEntry,
    PanelJudge,
    RowScores,
    _test_equal,
    learn_rows,
    measure_panel_space,
)
from llm_elicit.comparisons.table import sampling_of
from llm_elicit.density import BeliefDensity, Evidence, fit_evidence
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats
from tests.audit.planted import box
from tests.density.targets import FEW_DRAWS, QUADRATIC

SPACE = box(2)


def _population(n: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    x = rng.normal(0.0, 0.5, (2 * n, 2)) + np.where(rng.random((2 * n, 1)) < 0.5, -1.0, 1.0)
    return x[np.abs(x).max(axis=1) < 3.0][:n]


def test_the_density_of_rows_is_one_over_features_of_every_kind() -> None:
    kinds = {"digits": 6}
    features = (
        Feature(name="x", label="x", low=1, high=100, scale="log", **kinds),
        Feature(name="n", label="n", kind="integer", low=0, high=5),
        Feature(name="hour", label="hour", low=0, high=24, periodic=True, **kinds),
        Feature(name="kind", label="kind", kind="categorical", categories=("a", "b", "c")),
    )
    space = FeatureSpace(name="kinds", title="kinds", subject="a thing", features=features)
    rows = np.column_stack([[5.0, 90.0], [0.0, 4.0], [23.9, 0.3], [1.0, 1.0]])
    points = space.sample(100_000, np.random.default_rng(0))
    for width in (0.5, 1.0):
        density = np.exp(learn_rows(space, rows, points, width))
        assert density.mean() == pytest.approx(1.0, abs=0.03)
    near, far = learn_rows(space, rows, np.array([[5.0, 0, 0.1, 1], [5.0, 0, 12.0, 2]]))
    assert near > 0.0 > far


def test_a_judge_worth_20_rows_is_reported_near_20() -> None:
    """The score of each belief is that of 20 rows in the population, of which a table has 200."""
    population = _population(3000, 1)
    truth = learn_rows(SPACE, population[:1000], population[1000:])
    scores = [
        learn_rows(SPACE, population[start : start + 20], population[1000:]).mean()
        for start in range(0, 1000, 20)
    ]

    def belief(share: float) -> Floats:
        return np.log(share * np.exp(truth) + 1.0 - share)

    shares = np.linspace(0.0, 1.0, 201)
    means = [belief(share).mean() for share in shares]
    worth_20 = belief(float(np.interp(np.mean(scores), means, shares)))
    reported = []
    for seed in range(6):
        chosen = np.random.default_rng(seed).permutation(len(worth_20))[:200]
        rows = population[1000:][chosen]
        learned = RowScores.learn(SPACE, rows, np.random.default_rng(seed))
        order = [int(np.flatnonzero((rows == point).all(axis=1))[0]) for point in learned.points]
        reported.append(learned.worth(worth_20[chosen][order]))
    assert sum(10 <= worth.value <= 40 for worth in reported) >= 5, reported
    assert sum(worth.low <= 20 <= worth.high for worth in reported) >= 4, reported
    assert learned.worth(np.zeros(200)).text() == "< 2"
    assert learned.worth(np.full(200, 9.0)).text() == "≥ 80"
    assert (np.diff(learned.curves) >= 0.0).all()


def _belief(centres: Floats, sds: Floats, seed: int = 0) -> BeliefDensity:
    """Return the belief of a judge with a normal density, from exact log-odds."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(-3.0, 3.0, (2, 60, 2))

    def log_density(x: Floats) -> Floats:
        return np.asarray(-0.5 * (np.square(x - centres) / np.square(sds)).sum(axis=1))

    noise = rng.normal(0.0, 0.01, 60)
    answers = Evidence.log_odds(a, b, log_density(a) - log_density(b) + noise)
    utility = replace(QUADRATIC.utility, process=FEW_DRAWS.utility.process)
    settings = replace(QUADRATIC, utility=utility)
    return fit_evidence(answers, sampling=sampling_of(SPACE), seed=seed, settings=settings)


@pytest.fixture(scope="module")
def entries() -> dict[str, PanelEntry]:
    """A panel over normal data: two judges who know one feature each, and others."""
    rows = np.random.default_rng(5).normal(0.0, 0.5, (300, 2))
    narrow, wide, middle = 0.5, 4.0, np.zeros(2)
    beliefs = {
        "first": _belief(middle, np.array([narrow, wide])),
        "second": _belief(middle, np.array([wide, narrow])),
        "wrong": _belief(np.array([2.0, -2.0]), np.array([0.7, 0.7])),
    }
    beliefs["same"] = beliefs["first"]
    beliefs["control"] = _belief(middle, np.array([narrow, narrow]))
    judges = [
        PanelJudge(name, None, belief, belief.sample(2000), name == "control")
        for name, belief in beliefs.items()
    ]
    judges.append(PanelJudge("silent", None, None, None))
    sampling = SPACE.sample(1000, np.random.default_rng(0))
    panel, pools = measure_panel_space(SPACE, rows, sampling, judges)
    assert panel.rows == 300
    assert pools.keys() == {"linear pool", "logarithmic pool"}
    assert np.abs(pools["logarithmic pool"].std(axis=0) - 0.7).max() < 0.2
    return {entry.judge: entry for entry in panel.entries}


def test_ties_share_ranks_and_the_better_is_above(entries: dict[str, PanelEntry]) -> None:
    first, same = entries["first"], entries["same"]
    assert first.worth_ranks == same.worth_ranks
    assert first.worth_ranks is not None
    assert first.worth_ranks[0] < first.worth_ranks[1]
    assert first.auc_ranks == same.auc_ranks
    assert entries["control"].worth_ranks == (1, 1)
    assert entries["control"].auc_ranks is not None
    assert entries["control"].auc_ranks[0] == 1
    assert entries["wrong"].worth_ranks == (7, 7)
    worth = {name: entry.worth for name, entry in entries.items()}
    assert worth["control"] is not None
    assert worth["control"].value > 50
    assert worth["wrong"] is not None
    assert worth["wrong"].text() == "< 2"
    assert worth["silent"] is None
    assert next(iter(entries)) == "control"
    assert list(entries)[-1] == "silent"


def test_a_pool_scores_above_its_judges_and_leaves_the_wrong_one_out(
    entries: dict[str, PanelEntry],
) -> None:
    pool = entries["logarithmic pool"]
    assert pool.weights.keys() == {"first", "second", "wrong", "same"}, "no control"
    assert pool.weights["wrong"] < 0.05
    assert pool.weights["second"] == pytest.approx(0.5, abs=0.15)
    assert entries["linear pool"].weights["wrong"] < 0.05
    for judge in ("first", "second"):
        assert pool.log_density is not None
        score = entries[judge].log_density
        assert score is not None
        assert pool.log_density.low > score.high
        assert pool.worth_ranks is not None
        assert pool.worth_ranks[1] < (entries[judge].worth_ranks or (0,))[0]


def test_a_pool_of_one_judge_is_tied_with_it() -> None:
    """All that they differ by are rounding errors, which have no variance, or a tiny one."""
    scores = np.linspace(-1.0, 1.0, 40)
    for error in (0.0, 1e-16, 1e-13 * np.sin(np.arange(40)) + 1e-12):
        assert _test_equal(scores - (scores + error), 0.0) == 1.0
    assert _test_equal(np.full(40, 0.1), 0.0) == 0.0
    rng = np.random.default_rng(0)
    p_values = [_test_equal(rng.normal(size=40), 0.0) for _ in range(400)]
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.09
