"""Judgments as the core uses them: checked, merged, grouped by pair and by question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llm_elicit.density import DensityError, Evidence, Uniform
from llm_elicit.density.likelihood import assign_folds
from tests.density.targets import check_evidence, check_judgments

BOX = Uniform([0.0, 0.0], [9.0, 9.0])
A, B, C, D, E = ([float(n), 1.0] for n in range(5))


def _plain(winners: list[list[float]], losers: list[list[float]]) -> Evidence:
    return Evidence.comparisons(winners, losers)


def test_equal_rows_are_one_of_their_weights_together() -> None:
    """Those of weight zero are left out; both directions of a pair have its number."""
    found = check_judgments(
        [A, B, A, C, A, D], [B, A, B, A, B, A], np.array([1.0, 2.0, 0.5, 4.0, 0.25, 0.0]), BOX
    )
    assert found.winners.tolist() == [A, B, C]
    assert found.losers.tolist() == [B, A, A]
    assert found.weights.tolist() == [1.75, 2.0, 4.0]
    assert found.pairs[0] == found.pairs[1] != found.pairs[2]
    assert set(found.pairs) == {0, 1}
    assert (found.size, found.context, found.judges) == (3, None, ("judge",))
    assert found.points.tolist() == [A, B, C, B, A, A]


def test_without_weights_every_comparison_counts_once() -> None:
    assert check_judgments([A, B], [B, C], None, BOX).weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 1.0, 1.0], r"weights has shape \(3,\); .* shape \(2,\); pass one number"),
        ([[1.0], [1.0]], r"weights has shape \(2, 1\)"),
        ([1.0, -1.0], r"^weights\[1\] is -1.0; .* 0 or from 1e-09 to 1e\+12; give an unwanted"),
        ([1.0, 0.9e-9], r"^weights\[1\] is 9e-10"),
        ([1.1e12, 1.0], r"^weights\[0\] is 1100000000000.0"),
        ([0.0, 0.0], "^weights are all 0; at least one comparison must count; leave weights out"),
    ],
)
def test_weights_that_cannot_be_used(weights: object, message: str) -> None:
    with pytest.raises(DensityError, match=message):
        check_judgments([A, B], [B, C], weights, BOX)  # type: ignore[arg-type]


def test_the_lightest_and_the_heaviest_weight() -> None:
    found = check_judgments([A, B, C], [B, C, D], [1e-9, 1e12, 0.0], BOX)
    assert found.weights.tolist() == [1e-9, 1e12]


def test_weights_of_other_rows_are_checked_too() -> None:
    evidence = replace(_plain([A, B], [B, C]), weights=np.array([1.0, 1e13]))
    with pytest.raises(DensityError, match=r"^weights\[1\] is 10000000000000.0"):
        check_evidence(evidence, BOX)
    nothing = replace(_plain([A, B], [B, C]), weights=np.zeros(2))
    with pytest.raises(DensityError, match=r"^weights are all 0"):
        check_evidence(nothing, BOX)
    log_odds = Evidence.log_odds([A, B], [B, C], [0.5, 1.0])
    assert check_evidence(nothing + log_odds, BOX).size == 0


def test_as_many_judgments_are_needed_as_features() -> None:
    with pytest.raises(DensityError, match=r"^winners holds 1 distinct comparisons of positive"):
        check_judgments([A, A], [B, B], None, BOX)
    one, log_odds = _plain([A], [B]), Evidence.log_odds([C], [D], [0.5])
    assert len(check_evidence(one + log_odds, BOX).contrasts) == 1
    with pytest.raises(DensityError, match=r"holds 0 .* and 1 pairs with log-odds for 2 features"):
        check_evidence(log_odds, BOX)
    with pytest.raises(DensityError, match="the points have 2 features and the sampling density 1"):
        check_evidence(one, Uniform([0.0], [1.0]))


def test_log_odds_alone() -> None:
    evidence = Evidence.log_odds([A, B, B], [B, A, C], [0.5, 0.25, 1.0], judge="one")
    found = check_evidence(evidence, BOX)
    assert (found.size, found.context, found.judges) == (0, None, ("one",))
    assert found.winners.shape == found.losers.shape == (0, 2)
    assert found.weights.shape == found.pairs.shape == (0,)
    assert found.pairs.dtype == np.int64
    assert len(found.contrasts) == 2
    assert found.points.tolist() == [*found.contrasts.a.tolist(), *found.contrasts.b.tolist()]


@pytest.mark.parametrize("place", ["winners", "losers", "first", "second"])
def test_points_outside_the_sampling_density_are_named(place: str) -> None:
    far = [10.0, 1.0]
    pairs = _plain(*([[A, far if place == side else B] for side in ("winners", "losers")]))
    log_odds = Evidence.log_odds(*([[far if place == s else C] for s in ("first", "second")]), [1])
    with pytest.raises(DensityError, match=f"^{place}"):
        check_evidence(pairs + log_odds, BOX)


def test_circumstances_make_rows_of_their_own() -> None:
    """The same comparison by another judge, in another place, or as half a tie is another row."""
    plain = _plain([A, B], [B, C])
    assert check_evidence(plain + plain, BOX).context is None
    for other in (
        Evidence.comparisons([A], [B], judge="other"),
        Evidence.comparisons([A], [B], first=True),
        Evidence.comparisons([A], [B], tie=True),
        Evidence.rankings([[A, B, C]], [[0, 1, 2]], positions=False),
    ):
        found = check_evidence(plain + other, BOX)
        assert found.size == 2 + len(other)
        assert found.context is not None
        assert found.context.judges == found.judges == (plain + other).judges
        assert found.context.tie.sum() == (plain + other).tie.sum()
    assert found.context is not None
    assert sorted(found.context.pick) == [-1, -1, 0, 0, 1]


def test_answers_about_the_same_alternatives_are_one_group() -> None:
    """A pair is one by itself, whether or not a question with several alternatives has it."""
    sets = [[A, B, C], [C, A, B], [B, C, D]]
    rankings = Evidence.rankings(sets, [[0, 1, 2], [0, 1, 2], [2, 1, 0]])
    found = check_evidence(rankings + _plain([A, B, D, E], [B, A, A, D]), BOX)
    context = found.context
    assert context is not None
    groups: dict[tuple[bool, str], set[int]] = {}
    for pick, w, loser, group in zip(
        context.pick, found.winners, found.losers, context.group, strict=True
    ):
        pair = "".join(sorted("ABCDE"[int(point[0])] for point in (w, loser)))
        groups.setdefault((pick >= 0, pair), set()).add(int(group))
    first, second = groups[True, "AB"], groups[True, "BD"]
    assert len(first) == len(second) == 1
    assert groups[True, "AC"] == first != second == groups[True, "CD"]
    assert groups[True, "BC"] == first | second
    alone = [groups[False, pair] for pair in ("AB", "AD", "DE")]
    assert sorted(map(len, alone)) == [1, 1, 1]
    assert set.union(first, second, *alone) == set(range(5)), "each its own, without gaps"


def test_folds_are_balanced_and_random() -> None:
    pairs = np.array([0, 0, 1, 2, 3, 4, 5, 5, 5])
    drawn = [assign_folds(pairs, 3, np.random.default_rng(seed)) for seed in range(10)]
    for folds in drawn:
        assert folds.dtype == np.int64
        assert folds[0] == folds[1]
        assert folds[6] == folds[7] == folds[8]
        assert np.bincount(folds[1:7], minlength=3).tolist() == [2, 2, 2]
    again = assign_folds(pairs, 3, np.random.default_rng(0)).tolist()
    assert again == drawn[0].tolist() != drawn[1].tolist()
