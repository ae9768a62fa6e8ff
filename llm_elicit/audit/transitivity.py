"""Do the choices go round in circles, more than noise makes a judge with a utility do?

Three pairs that join the same three points are a *triad*. Where a is preferred to b, b to c and
c to a, no utility can say why: the choices are a cycle, a circular triad of Kendall and Babington
Smith (1940). A coin makes one in a quarter of all triads, and a Bradley–Terry judge makes some,
wherever the points are near in utility.

*How many cycles there are cannot tell a circle from noise.* Over points drawn from λ the chance of
one is 1/4 - 3/4 E[m²], with m the mean over λ of 2 P(the point is preferred) - 1: nothing counts
but how often each point is preferred in general, and the Bradley–Terry judge that fits best has
the same m. A judge whose preferences run round a circle makes the 1/4 of a coin. What tells the
two apart is to ask again, as Tversky (1969) did: noise seldom repeats itself. So the test counts
*firm* cycles, made in both presentation orders. If answers are independent given the points, and a
pair's preference averaged over orders is p, both say so with a chance of at most p², whatever the
order bias; a coin makes a firm cycle in 1/32 of triads.

A judge whose noise is the same whenever it sees a pair (a model at temperature 0) makes firm
cycles too: its preferences do run in circles, though only because it errs about a pair for good.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import sparse, stats

from llm_elicit import density
from llm_elicit.audit.inference import Interval, wilson
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import Floats

Index = npt.NDArray[np.int64]
_COIN = 0.25
_ROUNDING = 1e-9


class Transitivity(StrictModel):
    """Cycles among a judge's triads. None: not measurable from what was asked, or no belief.

    Attributes:
        triads: how many there are; no two share a pair.
        cycles: the share that are cycles, one answer drawn for each pair; soft judgments and
            pairs whose answers differ count by the chance of a cycle. 1/4 for a coin.
        expected: the same as the belief foretells it.
        p_coin: how probable it is that a coin makes as few cycles.
        firm: the share that are cycles in both presentation orders, over triads of which all
            pairs were answered in both. At most 1/32 for a coin.
        firm_expected: at most how large that is as the belief foretells it.
        p_value: how probable it is that a Bradley–Terry judge makes as many firm cycles.
    """

    triads: int
    cycles: Interval
    expected: float | None
    p_coin: float
    firm: Interval | None
    firm_expected: float | None
    p_value: float | None


@dataclass(frozen=True)
class Triads:
    """The triads among a judge's answers.

    Attributes:
        corners: the points a, b and c of each, `(t, 3, d)`, natural units.
        preference: that of a over b, b over c and c over a, averaged over replicates, by
            presentation order, `(t, 3, 2)` in [0, 1]; NaN for an order that was not answered.
    """

    corners: Floats
    preference: Floats

    def __len__(self) -> int:
        return len(self.corners)


def find_triads(comparisons: Comparisons, judge: str) -> Triads:
    """Triads of which no two share a pair, found from the points alone.

    Choices on different pairs are independent given the utility, so cycles of such triads are
    too. Where more triads could be made of the pairs, those of earlier pairs are taken. Of two
    pairs of the same two points the first counts.
    """
    choices = comparisons.choices(judge)
    points = np.stack([choices.a, choices.b], axis=1).reshape(-1, len(comparisons.features))
    number = pd.DataFrame(points).groupby(list(range(points.shape[1])), sort=False).ngroup()
    ends: Index = np.asarray(number, dtype=np.int64).reshape(-1, 2)
    corners, pairs, turned = _corners(ends)
    rows = comparisons.of(judge)
    means = rows.groupby(["pair", "order"])["probability"].mean().unstack()
    by_order = means.reindex(index=choices.pair, columns=["ab", "ba"]).to_numpy(np.float64)
    said = by_order[pairs]
    _, first = np.unique(ends, return_index=True)
    return Triads(points[first][corners], np.where(turned[..., None], 1.0 - said, said))


def _corners(ends: Index) -> tuple[Index, Index, npt.NDArray[np.bool_]]:
    """Triads among pairs of points (n, 2), by their numbers 0, 1, ...

    Returns:
        The three points of each, the pairs (rows of `ends`) from each to the next and from the
        last to the first, and whether such a pair was asked about the other way round, `(t, 3)`.
    """
    found: list[tuple[int, int, int]] = []
    pair_of: dict[tuple[int, int], int] = {}
    beside: defaultdict[int, set[int]] = defaultdict(set)
    for pair in np.flatnonzero(_in_triangles(ends)).tolist():
        i, j = ends[pair].tolist()
        if j not in beside[i]:
            pair_of[i, j] = pair_of[j, i] = pair
            beside[i].add(j)
            beside[j].add(i)
    for i, j in pair_of:
        shared = beside[i] & beside[j] if j in beside[i] else set()
        if shared:
            k = min(shared)
            found.append((i, j, k))
            for one, other in ((i, j), (j, k), (k, i)):
                beside[one].remove(other)
                beside[other].remove(one)
    corners = np.array(found, dtype=np.int64).reshape(-1, 3)
    around = [[pair_of[i, j], pair_of[j, k], pair_of[k, i]] for i, j, k in found]
    pairs = np.array(around, dtype=np.int64).reshape(-1, 3)
    return corners, pairs, ends[pairs, 0] != corners


def _in_triangles(ends: Index) -> npt.NDArray[np.bool_]:
    """Whether the two points of each pair `(n, 2)` are both compared with some third one.

    Where no point is in two pairs, as in pairs drawn from λ, none are, and no more is looked at.
    """
    count = 1 + int(ends.max(initial=-1))
    if count == ends.size:
        return np.zeros(len(ends), dtype=bool)
    i, j = ends.T
    apart = i != j
    both = np.concatenate([ends[apart], ends[apart, ::-1]]).T
    joined = sparse.csr_array((np.ones(both.shape[1]), both), shape=(count, count))
    return np.asarray(apart & ((joined @ joined)[i, j] > 0))


def foretell_triads(belief: density.BeliefDensity, triads: Triads, seed: int = 0) -> Floats | None:
    """What a belief foretells of its judge's triads: a row for every draw of its posterior.

    The belief was fitted to the same answers. Taken for certain it would foretell too well what
    was said, and so too few cycles; the draws say what the answers leave open. A belief without
    draws (a flow) is all that there is of it.

    Returns:
        Preferences of a over b, b over c and c over a, averaged over both orders, `(S, t, 3)`;
        None without triads.
    """
    if not len(triads):
        return None
    points = triads.corners.reshape(-1, triads.corners.shape[-1])
    held = belief.draws(seed=seed) if belief.has_draws else belief
    utility = held.log_prob(points) - belief.sampling.log_scale_slope(points)
    utility = utility.reshape(-1, len(triads), 3)
    difference = torch.from_numpy(utility - np.roll(utility, -1, axis=-1))
    noise, bias = _told(belief)
    shifted = torch.stack([difference + bias, difference - bias])
    win, lose = (torch.exp(noise.log_cdf(sign * shifted)) for sign in (1.0, -1.0))
    return np.asarray((0.5 + 0.5 * (win - lose)).mean(0).numpy())


def _told(belief: density.BeliefDensity) -> tuple[density.Noise, float]:
    """The judge's noise and its order bias in nats, with what was estimated of them."""
    unknown: dict[str, Any] = {"judges": {}, "ties": None}
    judging = belief.diagnostics.get("utility", {}).get("judging", unknown)
    places = [judge["order_bias"].get("2", []) for judge in judging["judges"].values()]
    bias = sum(place["nats"] for judge in places for place in judge)
    return replace(belief.noise, ties=judging["ties"] or 0.0), bias


def measure_transitivity(triads: Triads, foretold: Floats | None = None) -> Transitivity | None:
    """Cycles, beside those of a coin and of the belief; None without triads.

    The second p-value is the posterior predictive one (Rubin, 1984): the chance of as many firm
    cycles by each draw of the belief, Poisson-binomial, averaged. Its draws have seen the answers,
    so it errs on the side of no finding (Meng, 1994); so does rounding their number down, where
    soft judgments and ties make parts of cycles.

    Args:
        triads: from `find_triads`.
        foretold: from `foretell_triads`, for the same triads; None without a belief.

    Raises:
        InputError: `foretold` is for another number of triads.

    Example:
        >>> corners = np.random.default_rng(0).uniform(size=(40, 3, 2))
        >>> circle = Triads(corners, np.ones((40, 3, 2)))   # a before b before c before a
        >>> found = measure_transitivity(circle, np.full((1, 40, 3), 0.5))
        >>> found.firm.value, found.firm_expected, found.p_value < 1e-9
        (1.0, 0.03125, True)
    """
    if not len(triads):
        return None
    if foretold is not None and foretold.shape[1:] != (len(triads), 3):
        raise InputError(
            f"transitivity: foretold has shape {foretold.shape}, expected (draws, {len(triads)}, 3)"
        )
    drawn = _cycle(np.nanmean(triads.preference, axis=2))
    both = ~np.isnan(triads.preference).any(axis=(1, 2))
    firm = _cycle(triads.preference[both].reshape(-1, 6))
    by_belief = None
    if foretold is not None and len(firm):
        by_belief = _cycle(np.repeat(foretold[:, both], 2, axis=2))
    few = int(np.ceil(drawn.sum() - _ROUNDING))
    return Transitivity(
        triads=len(triads),
        cycles=wilson(float(drawn.mean()), len(drawn)),
        expected=None if foretold is None else float(_cycle(foretold).mean()),
        p_coin=float(stats.binom.cdf(few, len(drawn), _COIN)),
        firm=wilson(float(firm.mean()), len(firm)) if len(firm) else None,
        firm_expected=None if by_belief is None else float(by_belief.mean()),
        p_value=None if by_belief is None else chance_of_as_many(float(firm.sum()), by_belief),
    )


def chance_of_as_many(count: float, chances: Floats) -> float:
    """P(at least `count` of t independent events happen), their chances `(S, t)`, mean over S.

    The distribution is the Poisson-binomial, by convolution; a `count` is rounded down.

    Example:
        >>> round(chance_of_as_many(2, np.array([[0.5, 0.5, 0.5]])), 6)
        0.5
    """
    ways = np.zeros((len(chances), chances.shape[1] + 1))
    ways[:, 0] = 1.0
    for chance in chances.T[:, :, None]:
        ways[:, 1:] = (1.0 - chance) * ways[:, 1:] + chance * ways[:, :-1]
        ways[:, :1] *= 1.0 - chance
    least = int(np.floor(count + _ROUNDING))
    return float(np.minimum(1.0, ways[:, least:].sum(axis=1)).mean())


def _cycle(preference: Floats) -> Floats:
    """The chance that answers of these chances `(..., k)` all go one way round the triad."""
    return np.asarray(preference.prod(axis=-1) + (1.0 - preference).prod(axis=-1))
