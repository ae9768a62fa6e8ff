"""Every kind of evidence reduces to Bradley–Terry where it should, and is recovered otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from llm_elicit.density import (
    DensityError,
    Evidence,
    FitSettings,
    MixtureSettings,
    Noise,
    PosteriorSettings,
    SmoothSettings,
    Uniform,
    UtilitySettings,
    fit_belief,
    fit_evidence,
)
from llm_elicit.density.belief import Array, BeliefDensity
from llm_elicit.density.likelihood import Context, Response
from llm_elicit.density.utility.cross_validation import ChoiceData
from llm_elicit.density.utility.judges import JudgeTerms
from tests.density.targets import assert_close, check_evidence

pytestmark = pytest.mark.usefixtures("few_particles")

SQUARE = Uniform([-3.0, -3.0], [3.0, 3.0])
# The belief of these tests is normal: two components are one more than it needs.
QUICK = FitSettings(
    utility=UtilitySettings(
        mixture=MixtureSettings(counts=(2,), starts=4),
        smooth=SmoothSettings(frequencies=0),
        posterior=PosteriorSettings(draws=0),
    )
)
# Mixtures take more than half of a fit's time.
NO_MIXTURE = replace(QUICK, utility=replace(QUICK.utility, mixture=MixtureSettings(counts=())))
CENTRE = np.array([0.8, -0.5])
LEVEL = Noise().level


def _utility(x: Array) -> Array:
    """log of a normal belief with standard deviation 0.8."""
    return np.asarray(-0.5 * np.square((x - CENTRE) / 0.8).sum(-1))


def _pairs(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    a, b = rng.uniform(-3, 3, (2, n, 2))
    return a, b


def _judge(
    gap: Array, rng: np.random.Generator, *, level: float = LEVEL, bias: Array | float = 0.0
) -> Array:
    """1 where the first wins, at u(a) − u(b) plus the bias."""
    won: Array = (rng.logistic(0.0, level, len(gap)) < gap + bias).astype(np.float64)
    return won


def _error(belief: BeliefDensity) -> float:
    """Distance of the mean from the truth and of the standard deviations from it."""
    x = belief.sample(4000, seed=1)
    return float(np.abs(x.mean(0) - CENTRE).max() + np.abs(x.std(0) - 0.8).max())


# --- ties ---------------------------------------------------------------------------------------


def test_a_judge_with_ties_follows_davidsons_model() -> None:
    gap = torch.linspace(-60, 60, 301, dtype=torch.float64)
    noise, t = Noise(ties=0.7), gap / LEVEL
    parts = torch.stack([0.5 * t, torch.full_like(t, np.log(0.7)), -0.5 * t])
    chances = torch.log_softmax(parts, 0)
    assert_close(noise.log_cdf(gap), chances[0])
    assert_close(noise.log_cdf(-gap), chances[2])
    # A tie is the mean of the two wins, but for a constant.
    half = 0.5 * (noise.log_cdf(gap) + noise.log_cdf(-gap)) + np.log(0.7)
    assert_close(half, chances[1])


def test_slope_and_information_with_ties_are_those_of_their_definition() -> None:
    gap = torch.linspace(-8, 8, 101, dtype=torch.float64).requires_grad_()
    noise = Noise(level=0.6, ties=1.3)
    (slope,) = torch.autograd.grad(noise.log_cdf(gap).sum(), [gap])
    at = gap.detach()
    assert_close(Response(noise).slope(at), slope)
    # Fisher's: the expected square of the score over win, tie and loss.
    win, lose = noise.log_cdf(at).exp(), noise.log_cdf(-at).exp()
    other = Response(noise).slope(-at)
    of_tie = 0.5 * (slope - other)
    information = win * slope**2 + lose * other**2 + (1 - win - lose) * of_tie**2
    assert_close(noise.information(at), information)


def test_few_ties_are_bradley_terry() -> None:
    gap = torch.linspace(-20, 20, 81, dtype=torch.float64)
    assert_close(Noise(ties=1e-12).log_cdf(gap), Noise().log_cdf(gap))


@pytest.mark.parametrize("make", [lambda: Noise(ties=-1.0), lambda: Noise("normal", 1.0, 0.5)])
def test_ties_without_a_meaning_are_refused(make: Callable[[], Noise]) -> None:
    with pytest.raises(DensityError, match="ties"):
        make()


# --- rankings -----------------------------------------------------------------------------------


def _ranked(evidence: Evidence, box: Uniform) -> tuple[ChoiceData, Context]:
    found = check_evidence(evidence, box)
    assert found.context is not None
    return (
        ChoiceData(found.winners, found.losers, found.weights, found.pairs, found.context),
        found.context,
    )


def _plackett_luce(utilities: torch.Tensor, ranking: tuple[int, ...]) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    left = list(ranking)
    for _ in range(len(ranking) - 1):
        total = total + torch.log_softmax(utilities[left] / LEVEL, 0)[0]
        left = left[1:]
    return total


def _broken(points: Array, ranking: tuple[int, ...], u: Array) -> tuple[ChoiceData, Array, Array]:
    """The rows of one ranking, weighted at utilities u, and each row's winner and loser."""
    box = Uniform([0.0], [float(len(u))])
    evidence = Evidence.rankings(points[None], [list(ranking)], positions=False)
    data, context = _ranked(evidence, box)
    winner, loser = (side[:, 0].astype(int) for side in (data.winners, data.losers))
    terms = JudgeTerms.neutral(context)
    return terms.weight_rankings(data, Noise(), u[winner] - u[loser]), winner, loser


@pytest.mark.parametrize("k", [3, 4, 5])
def test_the_comparisons_of_a_ranking_have_the_score_of_plackett_luce(k: int) -> None:
    rng = np.random.default_rng(k)
    points, u = np.arange(k, dtype=np.float64)[:, None], rng.normal(0, 1.5, k)
    ranking = tuple(int(i) for i in rng.permutation(k))
    at = torch.from_numpy(u).requires_grad_()
    (score,) = torch.autograd.grad(_plackett_luce(at, ranking), [at])
    data, winner, loser = _broken(points, ranking, u)
    slope = Response(Noise()).slope(torch.from_numpy(u[winner] - u[loser])).numpy() * data.weights
    broken = np.bincount(winner, slope, k) - np.bincount(loser, slope, k)
    assert np.allclose(broken, score.numpy())


def test_the_comparisons_of_a_ranking_have_the_information_of_plackett_luce() -> None:
    points, u = np.arange(4.0)[:, None], np.array([0.3, -1.0, 1.2, 0.1])
    exact, broken = np.zeros((4, 4)), np.zeros((4, 4))
    for ranking in itertools.permutations(range(4)):
        at = torch.from_numpy(u).requires_grad_()
        log = _plackett_luce(at, ranking)
        (score,) = torch.autograd.grad(log, [at])
        chance = float(torch.exp(log.detach()))
        exact += chance * np.outer(score.numpy(), score.numpy())
        data, winner, loser = _broken(points, ranking, u)
        change = np.eye(4)[winner] - np.eye(4)[loser]
        gap = torch.from_numpy(u[winner] - u[loser])
        information = Noise().information(gap).numpy() * data.weights
        broken += chance * change.T @ (information[:, None] * change)
    assert np.allclose(exact, broken)


def test_rankings_of_two_are_comparisons() -> None:
    rng = np.random.default_rng(0)
    a, b = _pairs(120, rng)
    won = _judge(_utility(a) - _utility(b), rng)
    sets = np.stack([a, b], axis=1)
    order = np.where(won[:, None] == 1, [0, 1], [1, 0])
    ranked = fit_evidence(Evidence.rankings(sets, order), sampling=SQUARE, settings=NO_MIXTURE)
    paired = Evidence.comparisons(a, b, won, first=True)
    compared = fit_evidence(paired, sampling=SQUARE, settings=NO_MIXTURE)
    assert np.array_equal(ranked.sample(50, seed=1), compared.sample(50, seed=1))


def test_rankings_with_a_position_effect_give_the_belief_and_the_effect() -> None:
    rng = np.random.default_rng(1)
    sets = rng.uniform(-3, 3, (500, 5, 2))
    places = np.array([2.0, 1.5, 0.0, 0.0, 0.0])
    heard = _utility(sets) + places + rng.gumbel(0.0, LEVEL, (500, 5))
    ranking = np.argsort(-heard, axis=1)
    belief = fit_evidence(Evidence.rankings(sets, ranking), sampling=SQUARE, settings=NO_MIXTURE)
    judging = belief.diagnostics["utility"]["judging"]["judges"]["judge"]["order_bias"]["5"]
    for place, found in enumerate(judging):
        assert abs(found["nats"] - places[place]) < 4.0 * found["se"] + 0.15
    blind = fit_evidence(
        Evidence.rankings(sets, ranking, positions=False), sampling=SQUARE, settings=NO_MIXTURE
    )
    assert _error(belief) < 0.2
    assert _error(belief) < _error(blind) + 0.02


def test_a_ranking_may_name_the_best_point_alone() -> None:
    rng = np.random.default_rng(2)
    sets = rng.uniform(-3, 3, (400, 4, 2))
    best = np.argmax(_utility(sets) + rng.gumbel(0.0, LEVEL, (400, 4)), axis=1)
    evidence = Evidence.rankings(sets, best[:, None], positions=False)
    assert len(evidence) == 3 * 400
    assert _error(fit_evidence(evidence, sampling=SQUARE, settings=NO_MIXTURE)) < 0.3


# --- plain comparisons, order, judges -----------------------------------------------------------


def test_plain_evidence_is_a_plain_fit_bit_for_bit() -> None:
    rng = np.random.default_rng(3)
    a, b = _pairs(150, rng)
    soft = 1.0 / (1.0 + np.exp(_utility(b) - _utility(a)))
    evidence = Evidence.comparisons(a, b, soft)
    rows = (np.concatenate([a, b]), np.concatenate([b, a]))
    plain = fit_belief(
        *rows,
        sampling=SQUARE,
        method="auto",
        weights=np.concatenate([soft, 1 - soft]),
        settings=QUICK,
    )
    same = fit_evidence(evidence, sampling=SQUARE, settings=QUICK)
    assert np.array_equal(plain.sample(100, seed=1), same.sample(100, seed=1))
    assert "judging" not in same.diagnostics["utility"]


def test_a_position_effect_is_estimated_and_removed() -> None:
    rng = np.random.default_rng(4)
    a, b = _pairs(700, rng)
    first = rng.uniform(size=700) < 0.8  # the presentation is not balanced
    bias = np.where(first, 1.5, -1.5)
    won = _judge(_utility(a) - _utility(b), rng, bias=bias)
    belief = fit_evidence(
        Evidence.comparisons(a, b, won, first=first), sampling=SQUARE, settings=QUICK
    )
    (found,) = belief.diagnostics["utility"]["judging"]["judges"]["judge"]["order_bias"]["2"]
    assert abs(found["nats"] - 1.5) < 4.0 * found["se"]
    assert found["se"] < 0.4
    blind = fit_evidence(Evidence.comparisons(a, b, won), sampling=SQUARE, settings=NO_MIXTURE)
    with_judges, without = (each.diagnostics["held_out_log_likelihood"] for each in (belief, blind))
    assert with_judges > without + 0.01
    assert _error(belief) < 0.25


def test_judges_have_their_own_noise_and_one_belief() -> None:
    rng = np.random.default_rng(5)
    evidence = None
    for name, level in (("sharp", LEVEL), ("dull", 4.0 * LEVEL)):
        a, b = _pairs(600, rng)
        won = _judge(_utility(a) - _utility(b), rng, level=level)
        one = Evidence.comparisons(a, b, won, judge=name)
        evidence = one if evidence is None else evidence + one
    assert evidence is not None
    belief = fit_evidence(evidence, sampling=SQUARE, settings=QUICK)
    judges = belief.diagnostics["utility"]["judging"]["judges"]
    assert judges["sharp"]["level"] == LEVEL
    ratio = np.log(judges["dull"]["level"] / (4.0 * LEVEL))
    assert abs(ratio) < 4.0 * judges["dull"]["log_level_se"]
    assert judges["dull"]["log_level_se"] < 0.4
    assert _error(belief) < 0.25


def test_ties_are_found_with_the_belief() -> None:
    rng = np.random.default_rng(6)
    a, b = _pairs(700, rng)
    t = (_utility(a) - _utility(b)) / LEVEL
    parts = np.stack([0.5 * t, np.full(700, np.log(2.0)), -0.5 * t])
    answer = np.argmax(parts + rng.gumbel(size=parts.shape), axis=0)
    evidence = Evidence.comparisons(a, b, (answer == 0) * 1.0, tie=answer == 1)
    belief = fit_evidence(evidence, sampling=SQUARE, settings=QUICK)
    assert 1.3 < belief.diagnostics["utility"]["judging"]["ties"] < 3.0
    assert _error(belief) < 0.25


def test_a_judge_who_chooses_by_position_alone_has_no_belief() -> None:
    rng = np.random.default_rng(7)
    a, b = _pairs(300, rng)
    first = rng.uniform(size=300) < 0.5
    evidence = Evidence.comparisons(a, b, first * 1.0, first=first)
    belief = fit_evidence(evidence, sampling=SQUARE, settings=QUICK)
    assert belief.diagnostics["utility"]["weights"]["constant"] > 0.2
    assert np.abs(belief.mean()).max() < 0.1
    nulls = belief.diagnostics["null_models"]
    assert nulls["random choices"] == pytest.approx(np.log(0.5))
    assert nulls["position"] > -0.1


# --- what cannot be used ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Evidence.comparisons([[0.0]], [[1.0], [2.0]]), "shapes must be equal"),
        (lambda: Evidence.comparisons([[0.0]], [[1.0]], [1.5]), "probability"),
        (lambda: Evidence.comparisons([[0.0]], [[1.0]], [np.nan]), "probability"),
        (lambda: Evidence.comparisons([[0.0]], [[1.0]], [1.0, 0.0]), "one number per row"),
        (lambda: Evidence.comparisons([0.0], [1.0]), r"must be \(n, d\)"),
        (lambda: Evidence.rankings([[[0.0], [1.0], [2.0]]], [[0, 0, 1]]), "different numbers"),
        (lambda: Evidence.rankings([[[0.0], [1.0], [2.0]]], [[0, 1, 3]]), "different numbers"),
        (lambda: Evidence.rankings([[[0.0], [1.0]]], [0, 1]), "best first"),
    ],
)
def test_evidence_that_cannot_be_read_is_refused(
    make: Callable[[], Evidence], message: str
) -> None:
    with pytest.raises(DensityError, match=message):
        make()


def test_judgments_that_a_method_does_not_model_are_refused() -> None:
    rng = np.random.default_rng(8)
    sets = rng.uniform(-3, 3, (30, 3, 2))
    evidence = Evidence.rankings(sets, np.argsort(_utility(sets), axis=1))
    with pytest.raises(DensityError, match="takes only winners and losers"):
        fit_evidence(evidence, sampling=SQUARE, method="score")
    with pytest.raises(DensityError, match="gumbel"):
        fit_evidence(evidence, sampling=SQUARE, noise=Noise("normal", 1.0))
    plain = Evidence.comparisons(sets[:, 0], sets[:, 1])
    with pytest.raises(DensityError, match="has no model of ties"):
        fit_evidence(plain, sampling=SQUARE, method="flow", noise=Noise(ties=0.5))


def test_positions_are_told_apart_by_judge_and_by_the_number_of_points_shown() -> None:
    """The last position is the reference of the others; a winner counts 1, a loser −1."""
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    pair = Evidence.comparisons(points[:1], points[1:2], 1.0, first=True, judge="one")
    three = Evidence.rankings(points[None], [[1, 2, 0]], judge="one")
    other = Evidence.comparisons(points[:1], points[1:2], 0.0, first=True, judge="two")
    found = check_evidence(pair + three + other, SQUARE)
    assert found.context is not None
    assert found.context.position_terms == (
        ("one", 2, 0, 0),
        ("one", 3, 0, 0),
        ("one", 3, 1, 0),
        ("two", 2, 0, 0),
    )
    rows = {
        (tuple(w), tuple(lost), judge, pick): order.tolist()
        for w, lost, judge, pick, order in zip(
            found.winners, found.losers, found.context.judge, found.context.pick,
            found.context.position_columns, strict=True,
        )
    }  # fmt: skip
    a, b, c = (tuple(point) for point in points)
    assert rows == {
        (a, b, 0, -1): [1.0, 0.0, 0.0, 0.0],
        (b, a, 0, 0): [0.0, -1.0, 1.0, 0.0],
        (b, c, 0, 0): [0.0, 0.0, 1.0, 0.0],
        (c, a, 0, 1): [0.0, -1.0, 0.0, 0.0],
        (b, a, 1, -1): [0.0, 0.0, 0.0, -1.0],
    }
