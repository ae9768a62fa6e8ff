"""Rankings: planted judges are named for what they are, and the real ones are read."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from llm_elicit.audit.rankings import (
    RankingAudit,
    audit_rankings,
    plackett_luce,
    plackett_luce_score,
)
from llm_elicit.errors import InputError

REAL = (
    Path(__file__).parents[3] / "shared" / "data" / "claude3haiku_california_rankings_part1.jsonl"
)
PLACES = np.array([1.5, 0.5, 0.0, 0.0])
Utility = Callable[[np.ndarray], np.ndarray]


def _audit(seed: int, utility: Utility, n: int = 60) -> RankingAudit:
    """A judge whose utility is heard with Gumbel noise; four points of two features each."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1, 1, (n, 4, 2))
    heard = utility(points) + rng.gumbel(size=(n, 4))
    ranking = np.argsort(-heard, axis=1)
    return audit_rankings(points, ranking, ["one", "two"], exchanges=59, resamples=2, seed=seed)


def test_the_likelihood_is_that_of_picking_the_best_of_those_left() -> None:
    u = np.array([[0.3, -1.0, 2.0], [700.0, -700.0, 0.0]])
    first, second = (log_softmax(rest, axis=1)[:, 0] for rest in (u, u[:, 1:]))
    np.testing.assert_allclose(plackett_luce(u), first + second)


def test_the_score_is_the_derivative_of_the_likelihood() -> None:
    u = np.random.default_rng(0).normal(0.0, 2.0, (20, 5))
    score = plackett_luce_score(u)
    for i, step in enumerate(1e-5 * np.eye(5)):
        slope = (plackett_luce(u + step) - plackett_luce(u - step)) / 2e-5
        np.testing.assert_allclose(score[:, i], slope, atol=1e-8)
    assert np.isfinite(plackett_luce_score(100.0 * u)).all()


def test_a_judge_at_random_is_seldom_called_anything_else() -> None:
    audits = [_audit(seed, lambda x: 0.0 * x[..., 0]) for seed in range(30)]
    # Five of 30 or more by chance at a true 5 %: 1.6 %.
    assert sum(audit.point_p_value <= 0.05 for audit in audits) < 5
    assert sum(audit.position_p_value <= 0.05 for audit in audits) < 5


def test_a_judge_by_place_alone_is_one() -> None:
    audits = [_audit(100 + seed, lambda x: 0.0 * x[..., 0] + PLACES) for seed in range(30)]
    assert all(audit.position_p_value <= 0.02 for audit in audits)
    assert sum(audit.point_p_value <= 0.05 for audit in audits) < 5
    assert all(audit.position_gain.low > 0 for audit in audits[:10])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_judge_by_one_feature_is_found_through_its_liking_for_places(sign: float) -> None:
    audits = [_audit(seed, lambda x: sign * 1.5 * x[..., 1] + PLACES) for seed in range(10)]
    for audit in audits:
        _, two = audit.features
        assert audit.point_p_value <= 0.02
        assert two.p_holm <= 0.05
        assert sign * two.slope.value > 0.4
    assert sum(audit.features[0].p_holm <= 0.05 for audit in audits) <= 2


def test_intervals_hold_what_was_planted() -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (300, 4, 1))
    z = points[..., 0] / points.std()
    heard = 0.6 * z - 0.5 * (z**2 - 1) + PLACES + rng.gumbel(size=(300, 4))
    audit = audit_rankings(points, np.argsort(-heard, axis=1), ["x"], exchanges=19, resamples=200)
    (feature,) = audit.features
    found = (*(place.nats for place in audit.positions[:3]), feature.slope, feature.curvature)
    for interval, true in zip(found, (1.5, 0.5, 0.0, 0.6, -0.5), strict=True):
        wide = interval.high - interval.low
        assert interval.low - 0.3 * wide < true < interval.high + 0.3 * wide
        assert wide < 0.7


@pytest.mark.skipif(not REAL.is_file(), reason="the real rankings are not on this machine")
def test_claude_3_haiku_goes_by_places_and_by_points() -> None:
    lines = [json.loads(line) for line in REAL.read_text().splitlines()]
    points = np.array([line["points"] for line in lines])
    names = [f"x{i}" for i in range(points.shape[2])]
    ranking = np.array([line["ranking"] for line in lines])
    audit = audit_rankings(points, ranking, names, exchanges=199, resamples=40)
    assert (audit.questions, audit.alternatives) == (207, 5)
    assert [place.times_first for place in audit.positions] == [69, 71, 35, 19, 13]
    assert audit.position_p_value == audit.point_p_value == 1 / 200
    assert audit.point_gain.low > 0


@pytest.mark.parametrize(
    ("points", "ranking", "message"),
    [
        (np.zeros((20, 3, 1)), np.zeros((20, 3), dtype=int), "a permutation of 0 to 2"),
        (np.zeros((20, 3, 2)), np.tile(np.arange(3), (20, 1)), r"give \(n, k, 1\)"),
        (np.zeros((5, 3, 1)), np.tile(np.arange(3), (5, 1)), "at least 20"),
    ],
)
def test_what_are_no_rankings_is_refused(
    points: np.ndarray, ranking: np.ndarray, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        audit_rankings(points, ranking, ["x"])
