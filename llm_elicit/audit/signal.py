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
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist

from llm_elicit.audit.evidence import AuditSettings
from llm_elicit.audit.joint import mean_distance
from llm_elicit.audit.power import SearchPower
from llm_elicit.features import Floats
from llm_elicit.strict import Strict

Verdict = Literal["signal", "no signal found"]

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
