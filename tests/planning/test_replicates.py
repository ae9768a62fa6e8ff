"""`replicates: auto`: one choice about each of more pairs at least as informative as replicates."""

import numpy as np
import pandas as pd
import pytest

from llm_elicit.config.design import Design
from llm_elicit.planning.pairs import PairCorrelation, reason

_FEATURES, _QUESTIONS, _SEEDS = 4, 400, 12


def test_auto_asks_once_and_is_the_same_campaign_as_one() -> None:
    auto, one = (Design(pairs=20, replicates=count) for count in ("auto", 1))
    assert auto.questions == one.questions == 40
    assert auto.identity() == one.identity(), "a run goes on whichever is stated"


def _fitted(x: np.ndarray, side: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Logistic regression on differences of features, with a position effect and a ridge."""
    design = np.column_stack([np.ones(len(x)), side[:, None] * x])
    beta, ridge = np.zeros(design.shape[1]), np.eye(design.shape[1])
    for _ in range(12):
        p = 1.0 / (1.0 + np.exp(-design @ beta))
        hessian = (design * (p * (1.0 - p))[:, None]).T @ design + ridge
        beta += np.linalg.solve(hessian, design.T @ (y - p) - ridge @ beta)
    return beta[1:]


def _accuracy(scale: float, unexplained: float, position: float, replicates: int) -> float:
    """The mean correlation of the fitted utility with the true one, at equal cost."""
    results = []
    for seed in range(_SEEDS):
        rng = np.random.default_rng(seed)
        beta = rng.normal(size=_FEATURES) * scale / np.sqrt(_FEATURES)
        x = rng.normal(size=(_QUESTIONS // (2 * replicates), _FEATURES))
        theta = x @ beta + rng.normal(0.0, unexplained, len(x))
        x, theta = np.repeat(x, 2 * replicates, axis=0), np.repeat(theta, 2 * replicates)
        side = np.tile([1.0, -1.0], _QUESTIONS // 2)[: len(x)]
        y = (rng.random(len(x)) < 1.0 / (1.0 + np.exp(-position - side * theta))).astype(float)
        new = rng.normal(size=(500, _FEATURES))
        results.append(np.corrcoef(new @ _fitted(x, side, y), new @ beta)[0, 1])
    return float(np.mean(results))


@pytest.mark.parametrize(
    ("scale", "unexplained", "position"),
    [(0.3, 0.0, 0.0), (0.5, 0.5, 1.0), (1.5, 1.5, 0.0), (4.0, 0.0, 2.0)],
)
def test_one_replicate_is_as_good_as_eight_at_equal_cost(
    scale: float, unexplained: float, position: float
) -> None:
    one, eight = (_accuracy(scale, unexplained, position, count) for count in (1, 8))
    assert one >= eight


def test_the_correlation_leaves_a_position_effect_out() -> None:
    rng, n = np.random.default_rng(0), 4000
    p = rng.beta(2.0, 2.0, n)  # ρ = 1 / (2 + 2 + 1)
    ab = rng.random(n) < p
    ba = np.where(rng.random(n) < 0.5, rng.random(n) < p, 0)  # the other order is biased
    rows = pd.DataFrame({"pair": np.tile(np.arange(n), 2), "order": ["ab"] * n + ["ba"] * n})
    rows["probability"] = np.concatenate([ab, ba]).astype(float)
    same = rows.copy()
    same.loc[n:, "probability"] = (rng.random(n) < p).astype(float)
    found = PairCorrelation.of(same)
    assert found is not None
    assert found.value == pytest.approx(0.2, abs=0.04)
    biased = PairCorrelation.of(rows)
    assert biased is not None
    assert 0.05 < biased.value < 0.2
    assert PairCorrelation.of(rows[:18]) is None, "one order"


def test_the_reason_names_what_was_measured() -> None:
    assert "asking again gives the same log-odds" in reason(log_odds=True, correlation=None)
    assert reason(log_odds=False, correlation=None).endswith("at least as informative")
    assert "by 20 pairs, 8 replicates give 18% to 100% of the information" in reason(
        log_odds=False, correlation=PairCorrelation(0.5, 20)
    )
