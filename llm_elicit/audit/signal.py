"""Does the judge say anything about the points? The test behind "no signal found".

A belief fitted to answers that ignore the points still looks like something: about like the
sampling density λ. Two conditions must hold before a belief is read as one:

1. *The answers depend on the points.* An exact randomization test. If they do not, then
   exchanging winner and loser of any pair leaves the joint law of points and answers as it
   was: because the two presentation orders are averaged, or, where one order was asked,
   because the two points of a pair are exchangeable draws. So the observed statistic is one
   of equally likely values under random sign flips, whatever the order bias and the noise.
2. *The belief differs from λ* by more than as many draws from λ as there were comparisons
   differ from λ by chance, in energy distance (Székely and Rizzo 2013).

The statistic is the largest leave-one-out gain, over a fixed grid of ridge penalties, of a
linear prediction of (preference - 1/2) from differences of linear and quadratic features: the
log density of a Gaussian belief is such a function. Taking the largest inside the statistic
makes the choice of penalty part of what is randomized. A judge whose belief has no linear or
quadratic trend at all over the range asked (two equal modes placed symmetrically, say) can
escape the test.

Where pairs were chosen in rounds from earlier answers, flipping all signs with the pairs held fixed
is no symmetry; `llm_elicit.audit.sequential` flips round by round, which is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from llm_elicit.audit.evidence import AuditSettings
from llm_elicit.audit.joint import mean_distance
from llm_elicit.audit.power import SearchPower
from llm_elicit.audit.standard import Standard
from llm_elicit.comparisons import Choices
from llm_elicit.features import FeatureSpace, Floats
from llm_elicit.strict import Strict

Index = npt.NDArray[np.int64]
Verdict = Literal["signal", "no signal found"]

# Ridge penalty a column: noise variance over the variance that all columns together explain.
_PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
_CHUNK = 256
_MOST_POINTS = 1000


class Signal(Strict):
    """The two conditions, the rule, and the verdict.

    Attributes:
        verdict: "signal" only if both conditions hold.
        p_value: of the randomization test; its smallest value is 1 / (1 + flips), but with rounds,
            whose tests are combined.
        gain: leave-one-out share of the variance of (preference - 1/2) that the points
            predict; at or below 0 when they predict nothing.
        flips: sign flips drawn, of every round.
        belief_from_sampling: energy distance of the belief from λ, as of `draws_size` draws;
            None without a belief.
        sampling_threshold: the level that `draws_size` draws of λ itself exceed with
            probability `level`.
        draws_size: points in each of those draws: the number of comparisons, at most 1000.
        level: size of both tests.
        held_out_log_likelihood: nats a held-out comparison, if the fit says; a coin has -ln 2.
        search: how many pairs would find what was measured, where the answers cannot be told from
            ones that ignore the points; None with rounds, whose test has no such rule.
        reason: the verdict's grounds in one sentence.
    """

    verdict: Verdict
    p_value: float
    gain: float
    flips: int
    belief_from_sampling: float | None
    sampling_threshold: float | None
    draws_size: int
    level: float
    held_out_log_likelihood: float | None = None
    search: SearchPower | None = None
    reason: str

    @property
    def answers_depend(self) -> bool:
        """The first condition."""
        return self.p_value < self.level

    @property
    def differs_from_sampling(self) -> bool:
        """The second condition."""
        if self.belief_from_sampling is None or self.sampling_threshold is None:
            return False
        return self.belief_from_sampling > self.sampling_threshold


@dataclass(frozen=True)
class Exchanges:
    """A randomization test.

    Attributes:
        gain: leave-one-out share of the variance of (preference - 1/2) that is foretold.
        by_chance: the same after winners and losers were exchanged at random, `(flips,)`.

    Example:
        >>> test = Exchanges(0.1, np.array([-0.2, 0.1, 0.3]))
        >>> test.p_value, 0.25 < test.exact_p_value(np.random.default_rng(0)) < 0.75
        (0.75, True)
    """

    gain: float
    by_chance: Floats

    @property
    def p_value(self) -> float:
        """(1 + number of flips with at least the observed gain) / (1 + flips)."""
        return (1 + int(np.sum(self.by_chance >= self.gain - self._rounding))) / (
            1 + len(self.by_chance)
        )

    def exact_p_value(self, rng: np.random.Generator) -> float:
        """The same, ties with the observed gain broken at random: uniform if answers are chance."""
        above = int(np.sum(self.by_chance > self.gain + self._rounding))
        alike = 1 + int(np.sum(np.abs(self.by_chance - self.gain) <= self._rounding))
        return float((above + alike * (1.0 - rng.random())) / (1 + len(self.by_chance)))

    @property
    def _rounding(self) -> float:
        """A flip that repeats the observed pattern must count as reached despite rounding."""
        return 1e-9 * max(1.0, abs(self.gain))


def randomization_test(
    choices: Choices, space: FeatureSpace, flips: int, rng: np.random.Generator
) -> tuple[float, float]:
    """The randomization test of a judge's choices: its p-value, and the leave-one-out gain.

    Args:
        choices: the judge's choices.
        space: their feature space.
        flips: how many sign patterns to draw.
        rng: draws them.

    Returns:
        See `Exchanges`. Without a single preference p is 1 and the gain 0.
    """
    found = exchange_choices(choices, space, flips, rng)
    return found.p_value, found.gain


def exchange_choices(
    choices: Choices, space: FeatureSpace, flips: int, rng: np.random.Generator
) -> Exchanges:
    """What `randomization_test` is made from."""
    if len(choices) < 2:
        return Exchanges(0.0, np.zeros(flips))
    design, _ = feature_differences(choices, space)
    return exchange(design, choices.preference, flips, rng)


def exchange(
    design: Floats, preference: Floats, flips: int, rng: np.random.Generator, start: int = 0
) -> Exchanges:
    """The test of columns `(n, p)` that should foretell preferences `(n,)`.

    Only the rows from `start` on are exchanged and measured; those before it stay as they were
    answered, and the prediction learns from them.
    """
    before, response = np.split(preference - 0.5, [start])
    total = float(response @ response)
    # Averages of P and 1 - P leave rounding, which is not a preference.
    if total <= len(response) * 1e-20:
        return Exchanges(0.0, np.zeros(flips))
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    known, left = left[:start].T @ before, left[start:]
    observed = float(_gains(left, singular, response[:, None], known)[0])
    by_chance = np.empty(flips)
    for first in range(0, flips, _CHUNK):
        count = min(_CHUNK, flips - first)
        signs = rng.choice((-1.0, 1.0), size=(len(response), count))
        flipped = response[:, None] * signs
        by_chance[first : first + count] = _gains(left, singular, flipped, known)
    return Exchanges(observed, by_chance)


def distance_from_sampling(
    belief: Floats, sampling: Floats, n: int, settings: AuditSettings, rng: np.random.Generator
) -> tuple[float, float, int]:
    """Energy distance of a belief from λ beside that of λ from itself.

    Args:
        belief: belief samples, `(m, d)`, standardized.
        sampling: λ samples, `(k, d)`, standardized.
        n: the number of comparisons: how many draws each side of a comparison has.
        settings: how many draws of λ, and the level.
        rng: chooses subsamples.

    Returns:
        (distance, threshold, draws_size): the mean distance of `draws_size` belief draws from
        λ; the 1 - level quantile of that of `draws_size` λ draws; their number.
    """
    anchor, pool = np.array_split(sampling[rng.permutation(len(sampling))], 2)
    anchor = anchor[:_MOST_POINTS]
    size = max(min(n, _MOST_POINTS, len(pool), len(belief)), 1)
    within = mean_distance(anchor)

    def measure(points: Floats) -> float:
        drawn = points[rng.choice(len(points), size, replace=False)]
        squared = 2.0 * float(cdist(drawn, anchor).mean()) - mean_distance(drawn) - within
        return float(np.sqrt(max(squared, 0.0)))

    null = [measure(pool) for _ in range(settings.draws)]
    observed = float(np.mean([measure(belief) for _ in range(max(settings.repeats, 5))]))
    return observed, float(np.quantile(null, 1.0 - settings.level)), size


def assess_signal(
    p_value: float,
    gain: float,
    against_sampling: tuple[float, float, int] | None,
    settings: AuditSettings,
    held_out: float | None = None,
    search: SearchPower | None = None,
) -> Signal:
    """Put both conditions together.

    Args:
        p_value, gain: from `randomization_test`.
        against_sampling: from `distance_from_sampling`; None without a belief.
        settings: the level and the flips.
        held_out: held-out choice log-likelihood of the fit, nats a comparison, if known.
        search: what more pairs would find; kept where the answers do not depend on the points.
    """
    depends = p_value < settings.level
    distance, threshold, size = against_sampling or (None, None, 0)
    differs = distance is not None and threshold is not None and distance > threshold
    return Signal(
        verdict="signal" if depends and differs else "no signal found",
        p_value=p_value,
        gain=gain,
        flips=settings.flips,
        belief_from_sampling=distance,
        sampling_threshold=threshold,
        draws_size=size,
        level=settings.level,
        held_out_log_likelihood=held_out,
        search=None if depends else search,
        reason=_reason(p_value, depends, against_sampling),
    )


def _reason(
    p_value: float, depends: bool, against_sampling: tuple[float, float, int] | None
) -> str:
    """The grounds of the verdict, in one sentence."""
    answers = (
        f"the answers depend on the points shown (p = {p_value:.2g})"
        if depends
        else f"the answers cannot be told from ones that ignore the points (p = {p_value:.2g})"
    )
    if against_sampling is None:
        return f"{answers[0].upper()}{answers[1:]}, and there is no belief to compare."
    distance, threshold, size = against_sampling
    differs = distance > threshold
    belief = (
        f"the belief is {'farther' if differs else 'no farther'} from the sampling density "
        f"({distance:.2f}) than {size} chance draws of it are ({threshold:.2f})"
    )
    joint = "and" if depends == differs else "but"
    return f"{answers[0].upper()}{answers[1:]}, {joint} {belief}."


def feature_differences(choices: Choices, space: FeatureSpace) -> tuple[Floats, Index]:
    """φ(a) - φ(b), `(n, p)`, columns scaled to unit mean square, and the feature of each, `(p,)`.

    φ is the linear terms, which of a categorical feature are its corners' coordinates, the squares
    of numbers, then products of two features (-1) where there are pairs enough for them (n at least
    twice the number of columns).
    """
    standard = Standard.of(space, np.concatenate([choices.a, choices.b]))
    a, b = standard(choices.a), standard(choices.b)
    owner = standard.owners
    number = ~space.categorical[owner]
    columns, owners = [a - b, (a**2 - b**2)[:, number]], [owner, owner[number]]
    i, j = np.triu_indices(a.shape[1], k=1)
    i, j = i[owner[i] != owner[j]], j[owner[i] != owner[j]]
    if len(a) >= 2 * (len(owner) + int(number.sum()) + len(i)):
        columns.append(a[:, i] * a[:, j] - b[:, i] * b[:, j])
        owners.append(np.full(len(i), -1))
    design = np.concatenate(columns, axis=1)
    scale = np.sqrt((design**2).mean(axis=0))
    return design / np.where(scale > 0, scale, 1.0), np.concatenate(owners)


def _gains(left: Floats, singular: Floats, responses: Floats, known: Floats) -> Floats:
    """Largest leave-one-out gain over the ridge penalties, for each column of `responses`.

    The leave-one-out residual of a linear smoother H is (z - Hz)_i / (1 - H_ii); H depends
    on the points alone, so the columns share it. `known` `(p,)` is what rows that are not measured
    add to the rotated responses.
    """
    total = (responses**2).sum(axis=0)
    rotated = left.T @ responses + known[:, None]
    best = np.full(responses.shape[1], -np.inf)
    for penalty in _PENALTIES:
        shrink = singular**2 / (singular**2 + penalty * len(singular))
        fitted = left @ (shrink[:, None] * rotated)
        leverage = (left**2) @ shrink
        residual = (responses - fitted) / (1.0 - leverage)[:, None]
        best = np.maximum(best, 1.0 - (residual**2).sum(axis=0) / total)
    return best
