"""Judgments as a fit takes them, and the probability of a choice given the utilities of two points.

Comparisons are merged: a table of pairs with the circumstances of each (`Judgments`, `Context`).

A judge compares x and x', adds independent noise W to the utilities u = log p and prefers
the larger sum. The probability that x wins is F(u(x) − u(x')), with F the distribution
function of W(x') − W(x) (Mikkola, Acerbi and Klami, 2026, section 2.3).

================  =====================  ==================================  ==============
family            W                      F                                   level
================  =====================  ==================================  ==============
``gumbel``        Gumbel(0, s)           logistic, scale s                   scale s
``exponential``   Exp, **rate** s        Laplace, scale 1/s                  rate s
``normal``        Normal(0, s²)          normal, standard deviation s·√2     std. dev. s
================  =====================  ==================================  ==============

The level of the exponential family is a rate, as in the paper: a larger level means *less*
noise there, and more noise for the other two families.

**Ties.** A Gumbel judge may also call a pair equal, by Davidson's (1970) model. With
t = (u(x) − u(x'))/s,

    P(x wins) : P(tie) : P(x' wins) = e^(t/2) : ν : e^(−t/2),

so that ν = 0 is Bradley–Terry, and 1/(1 + 2/ν) the share of ties between equal points. Up to
log ν, the log-probability of a tie is the mean of those of the two wins: two rows of weight ½.

**Several judges, position effects.** A judge with another noise level than the assumed one sees
every difference scaled, and a judge with a position effect sees it shifted: the first of two points
is preferred with probability F(g (u − u') + o), with g the ratio of the noise levels and o the
position effect in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from llm_elicit.density import errors
from llm_elicit.density.contrasts import LabelledRows, PairContrasts, pair_contrasts
from llm_elicit.density.errors import MAX_NUMBER, Array, DensityError, Flags, Index
from llm_elicit.density.evidence import UNKNOWN, Evidence, LogOdds, order_points
from llm_elicit.density.sampling import LOG_SQRT_2PI

FAMILIES = ("gumbel", "exponential", "normal")
UNIT_VARIANCE_LEVEL = math.sqrt(6.0) / math.pi
_LOG_2 = math.log(2.0)
_QUADRATURE_NODES = 16


@dataclass(frozen=True)
class Context(LabelledRows):
    """The judges, presentations, positions and ties of n comparisons.

    Attributes:
        judges: names of the judges.
        judge: (n,) numbers of ``judges``.
        presentations: names of the presentations; one empty name if there is one.
        presentation: (n,) numbers of ``presentations``; −1 for none.
        position_terms: (judge, points shown, position, presentation) of each of B position effects.
        position_columns: (n, B) how often each effect counts for the winner, less how often for
            the loser.
        tie, pick: (n,) as in `Evidence`.
        group: (n,) numbers; rows of one group stay together in cross-validation.
    """

    judges: tuple[str, ...]
    judge: Index
    presentations: tuple[str, ...]
    presentation: Index
    position_terms: tuple[tuple[str, int, int, int], ...]
    position_columns: Array
    tie: Flags
    pick: Index
    group: Index

    @property
    def is_needed(self) -> bool:
        """Whether the comparisons are more than plain ones by one judge."""
        special = self.tie.any() or (self.pick != UNKNOWN).any()
        has_several = len(self.judges) > 1 or len(self.presentations) > 1
        return bool(has_several or self.position_terms or special)


@dataclass(frozen=True)
class Judgments:
    """Checked comparisons, and log-odds.

    Equal rows are merged (their weights added) and rows of weight zero dropped. So a row given
    twice equals a row of weight two, and a soft judgment of probability one equals a hard one,
    exactly.

    Attributes:
        winners, losers: (n, d) points in natural units.
        weights: (n,) > 0.
        pairs: (n,) numbers of the pairs, the same in either order.
        context: the circumstances; None if all are plain comparisons by one judge.
        measurements: the log-odds.
        judges: names of the judges' numbers.
        presentations: names of the presentations' numbers.
    """

    winners: Array
    losers: Array
    weights: Array
    pairs: Index
    context: Context | None
    measurements: LogOdds
    judges: tuple[str, ...]
    presentations: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of distinct rows of comparisons."""
        return int(self.winners.shape[0])

    @property
    def points(self) -> Array:
        """All judged points (m, d), natural units."""
        measured = (self.contrasts.a, self.contrasts.b) if self.measured_pairs else ()
        return np.concatenate([self.winners, self.losers, *measured])

    @cached_property
    def contrasts(self) -> PairContrasts:
        """The log-odds by pair."""
        return pair_contrasts(self.measurements)

    @property
    def measured_pairs(self) -> int:
        """Number of pairs with log-odds, counted by judge and presentation."""
        return len(self.contrasts) if len(self.measurements) else 0


def merge(evidence: Evidence) -> Judgments:
    """Return evidence as `Judgments`.

    Raises:
        DensityError: there are fewer distinct judgments than features.
    """
    has_weight, d = evidence.weights > 0, evidence.dimension
    labels = (
        evidence.judge,
        *evidence.positions.T,
        evidence.shown_count,
        evidence.tie,
        evidence.pick,
        evidence.question,
        evidence.presentation,
    )
    circumstances = np.stack(labels, axis=1).astype(np.float64)
    points = np.concatenate([evidence.winners, evidence.losers], axis=1)
    rows = np.concatenate([points, circumstances], axis=1)[has_weight]
    unique, index = np.unique(rows, axis=0, return_inverse=True)
    weights = np.bincount(index.reshape(-1), evidence.weights[has_weight], len(unique))
    a, b = unique[:, :d], unique[:, d : 2 * d]
    # The same pair in either order gets one number, so that its rows are in one fold.
    pairs = np.unique(np.concatenate(order_points(a, b), axis=1), axis=0, return_inverse=True)[1]
    pairs = pairs.reshape(-1).astype(np.int64)
    judges = evidence.judges
    columns = unique[:, 2 * d :].astype(np.int64).T
    judge, winner, loser, size, tie, pick, questions, presentation = columns
    kinds = np.unique(np.stack([judge, size, presentation], 1)[winner != UNKNOWN], axis=0)
    # The last position is the reference of the others.
    position_terms = [(j, k, place, p) for j, k, p in kinds.tolist() for place in range(k - 1)]
    position_columns = np.zeros((len(judge), len(position_terms)))
    for term, (j, k, position, p) in enumerate(position_terms):
        rows = (judge == j) & (size == k) & (presentation == p)
        position_columns[:, term] = rows * ((winner == position) * 1.0 - (loser == position) * 1.0)
    named_terms = tuple((judges[j], k, place, p) for j, k, place, p in position_terms)
    # Judgments of one pair or of one set of alternatives are one group.
    groups, group_of_pairs = pairs.copy(), dict[bytes, int]()
    for question in np.unique(questions[questions != UNKNOWN]):
        rows = questions == question
        pairs_of_question = np.unique(pairs[rows]).tobytes()
        groups[rows] = group_of_pairs.setdefault(
            pairs_of_question, int(pairs.max()) + 1 + len(group_of_pairs)
        )
    group = np.unique(groups, return_inverse=True)[1].reshape(-1).astype(np.int64)
    names = evidence.presentations
    context = Context(
        judges, judge, names, presentation, named_terms, position_columns, tie > 0, pick, group
    )
    judgments = Judgments(
        a,
        b,
        weights.astype(np.float64),
        pairs,
        context if len(unique) and context.is_needed else None,
        evidence.measurements,
        judges,
        names,
    )
    if judgments.size + judgments.measured_pairs < d:
        raise DensityError(
            f"winners holds {judgments.size} distinct comparisons of positive weight and "
            f"{judgments.measured_pairs} pairs with log-odds for {d} features; at least as many as "
            "features are needed; ask more questions."
        )
    return judgments


def assign_folds(pairs: Index, folds: int, rng: np.random.Generator) -> Index:
    """Return fold numbers (n,), 0 to ``folds`` − 1: of equal size, and equal for rows of a pair."""
    groups = int(pairs.max()) + 1
    fold_of_group = rng.permutation(np.arange(groups) % folds)
    return np.asarray(fold_of_group[pairs], dtype=np.int64)


@dataclass(frozen=True)
class Noise:
    """The noise of a judge's choices: its family and level (see the table above).

    Attributes:
        family: ``"gumbel"`` (Bradley–Terry), ``"exponential"`` or ``"normal"``
            (Thurstone–Mosteller).
        level: s > 0, in nats of log-density (in 1/nats for ``exponential``, where it is a rate).
            The default gives Gumbel noise of variance one, s = √6/π.
        ties: Davidson's ν >= 0 (see above); only for ``"gumbel"``.

    Raises:
        DensityError: unknown family, a level that is not a positive finite number, or ties that are
            negative or combined with another family.

    Examples:
        >>> import torch
        >>> float(Noise().log_cdf(torch.tensor(0.0)).exp())
        0.5
    """

    family: str = "gumbel"
    level: float = UNIT_VARIANCE_LEVEL
    ties: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.family, str) or self.family not in FAMILIES:
            raise DensityError(
                f"Noise: family {self.family!r} is unknown; the families are "
                f"{', '.join(FAMILIES)}; choose one of them."
            )
        errors.check_number("Noise: level", self.level, 1.0 / MAX_NUMBER)
        errors.check_number("Noise: ties", self.ties, -1.0 / MAX_NUMBER)
        if self.ties and self.family != "gumbel":
            raise DensityError(
                f"Noise: ties are modelled for gumbel noise, not for {self.family}; use gumbel, "
                "or count a tie as half a win for each side."
            )

    @property
    def scale(self) -> float:
        """Scale of F in nats: s, 1/s or s·√2 for gumbel, exponential, normal."""
        if self.family == "exponential":
            return 1.0 / self.level
        return self.level * math.sqrt(2.0) if self.family == "normal" else self.level

    def log_cdf(self, difference: Tensor) -> Tensor:
        """Return log F(u − u'), of a win, elementwise, without overflow in either tail.

        Examples:
            >>> import torch
            >>> far = torch.tensor(-1e3, dtype=torch.float64)
            >>> bool(Noise("normal", 1.0).log_cdf(far).isfinite())
            True
        """
        t = difference / self.scale
        if self.ties:
            return 0.5 * t - self._log_total(t)
        if self.family == "gumbel":
            return torch.nn.functional.logsigmoid(t)
        if self.family == "normal":
            return torch.as_tensor(torch.special.log_ndtr(t))
        # Each branch is finite where the other is chosen, so that no gradient is NaN.
        lower = t.clamp(max=0.0) - _LOG_2
        upper = torch.log1p(-0.5 * torch.exp(-t.clamp(min=0.0)))
        return torch.where(t < 0, lower, upper)

    def log_pdf(self, difference: Tensor) -> Tensor:
        """Return log F'(u − u') elementwise, the log-density of the noise difference."""
        t = difference / self.scale
        log_scale = math.log(self.scale)
        if self.ties:
            # F' = F (1 − E[score]), the score of a win 1, of a tie ½, of a loss 0.
            log_loss_and_half_tie = torch.logaddexp(
                -0.5 * t, t.new_tensor(math.log(0.5 * self.ties))
            )
            return 0.5 * t + log_loss_and_half_tie - 2.0 * self._log_total(t) - log_scale
        if self.family == "gumbel":
            a = -t.abs()
            return a - 2.0 * torch.log1p(torch.exp(a)) - log_scale
        if self.family == "normal":
            return -0.5 * t * t - LOG_SQRT_2PI - log_scale
        return -t.abs() - _LOG_2 - log_scale

    def slope(self, difference: Tensor) -> Tensor:
        """Return F'/F, the slope of `log_cdf`, elementwise, without overflow in either tail."""
        if self.family == "gumbel" and not self.ties:
            return torch.sigmoid(-difference / self.scale) / self.scale
        return torch.exp(self.log_pdf(difference) - self.log_cdf(difference))

    def information(self, difference: Tensor) -> Tensor:
        """Return the Fisher information of one answer about its difference, elementwise.

        It is F′²/(F(1 − F)) without ties, and the variance of the score with them.
        """
        if self.family == "gumbel" and not self.ties:
            t = difference / self.scale
            return torch.sigmoid(t) * torch.sigmoid(-t) / self.scale**2
        if self.ties:
            t = difference / self.scale
            total = self._log_total(t)
            win, lose = (torch.exp(sign * 0.5 * t - total) for sign in (1.0, -1.0))
            return (0.25 * (win + lose) - 0.25 * (win - lose).square()) / self.scale**2
        log_cdfs = self.log_cdf(difference) + self.log_cdf(-difference)
        return torch.exp(2.0 * self.log_pdf(difference) - log_cdfs)

    def _log_total(self, t: Tensor) -> Tensor:
        """Return log(e^(t/2) + ν + e^(−t/2)), the normalizing constant of the three answers."""
        wins = torch.logaddexp(0.5 * t, -0.5 * t)
        return torch.logaddexp(wins, t.new_tensor(math.log(self.ties)))

    def moderated_log_cdf(self, difference: Tensor, sd: Tensor) -> Tensor:
        """Return log E F(d + s z), z ~ N(0, 1), elementwise: a prediction if d has error s.

        This is MacKay's (1992) moderated output, by Gauss–Hermite quadrature. Where d is large but
        uncertain it bounds the loss by a single wrong prediction.

        Examples:
            >>> import torch
            >>> sure, unsure = torch.tensor([0.0, 10.0])
            >>> wrong = torch.tensor(-8.0)
            >>> bool(Noise().moderated_log_cdf(wrong, sure)
            ...      < Noise().moderated_log_cdf(wrong, unsure))
            True
        """
        if not sd.any():
            return self.log_cdf(difference)
        nodes, masses = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)
        z, log_mass = difference.new_tensor(nodes), difference.new_tensor(np.log(masses))
        shifted = difference[..., None] + sd[..., None] * z
        return torch.logsumexp(self.log_cdf(shifted) + log_mass, -1) - LOG_SQRT_2PI

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return random W of this shape, in nats."""
        if self.family == "gumbel":
            return rng.gumbel(0.0, self.level, shape)
        if self.family == "normal":
            return rng.normal(0.0, self.level, shape)
        return rng.exponential(1.0 / self.level, shape)


def simulate_choices(
    utility_a: Array, utility_b: Array, noise: Noise, rng: np.random.Generator
) -> Flags:
    """Return whether a beats b (n,), with random noise on the utilities (n,) of both, nats.

    Examples:
        >>> import numpy as np
        >>> bool(simulate_choices(np.array([99.0]), np.zeros(1), Noise(),
        ...                       np.random.default_rng(0))[0])
        True
    """
    errors.check_instance("simulate_choices: noise", noise, Noise, "pass Noise()")
    errors.check_instance(
        "simulate_choices: rng", rng, np.random.Generator, "pass numpy.random.default_rng(0)"
    )
    a, b = (
        errors.check_column(f"simulate_choices: utility_{name}", values, np.size(utility_a))
        for name, values in (("a", utility_a), ("b", utility_b))
    )
    noise_a, noise_b = noise.draw(a.shape, rng), noise.draw(b.shape, rng)
    return np.asarray(a + noise_a > b + noise_b)


def estimate_level(differences: npt.ArrayLike, family: str = "gumbel") -> Noise:
    """Return the noise of a judge whose belief is known, by maximum likelihood.

    Choices depend on u and the level only through (u − u')/s. The level can therefore be
    estimated only if u is known (a simulated judge, points of known density), and not together with
    the belief: p with noise s and p^(1/2) with noise s/2 give the same choices.

    Args:
        differences: (n,) utilities u(winner) − u(loser), nats; some choices must go against them.
        family: see `Noise`.

    Raises:
        DensityError: no difference is negative, so that the level would be zero, or none is
            positive.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> u, v = rng.normal(0, 2, (2, 20_000))
        >>> wins = simulate_choices(u, v, Noise("normal", 1.5), rng)
        >>> round(estimate_level(np.where(wins, u - v, v - u), "normal").level, 1)
        1.5
    """
    checked = errors.check_column("estimate_level: differences", differences, np.size(differences))
    difference = torch.as_tensor(checked)
    if not (bool((difference < 0).any()) and bool((difference > 0).any())):
        raise DensityError(
            "estimate_level: every choice agrees (or disagrees) with the differences given, so the "
            "data do not determine the level; give more comparisons, or comparisons of closer "
            "points."
        )

    def loss(log_level: float) -> float:
        return -float(Noise(family, math.exp(log_level)).log_cdf(difference).sum())

    optimum = minimize_scalar(loss, bounds=(-12.0, 12.0), method="bounded")
    return Noise(family, math.exp(float(optimum.x)))


def choice_log_likelihood(difference: Tensor, weights: Tensor, noise: Noise) -> Tensor:
    """Return the weighted mean of log F(u(winner) − u(loser)), nats per comparison.

    Shapes: ``difference`` (..., n), ``weights`` (n,) -> (...). Without preferences it is −log 2.
    """
    return (noise.log_cdf(difference) * weights).sum(-1) / weights.sum()


@dataclass(frozen=True)
class Response:
    """A `Noise` for each of n judgments, by its judge and the positions of its points.

    Differences are (..., n). Without gain and offset it is the `Noise` itself, bit for bit.

    Attributes:
        gain, offset: (n,) g and o, nats, of F(g (u − u') + o).
    """

    noise: Noise
    gain: Tensor | None = None
    offset: Tensor | None = None

    def select(self, rows: Tensor | slice) -> Response:
        """Return the response of some of the judgments."""
        if self.gain is None or self.offset is None:
            return self
        return Response(self.noise, self.gain[rows], self.offset[rows])

    def linear_predictor(self, difference: Tensor) -> Tensor:
        """Return g (u − u') + o: the difference relative to the noise that the fit assumes."""
        if self.gain is None or self.offset is None:
            return difference
        return self.gain.to(difference) * difference + self.offset.to(difference)

    def log_cdf(self, difference: Tensor) -> Tensor:
        """Return log F of a win, elementwise."""
        return self.noise.log_cdf(self.linear_predictor(difference))

    def slope(self, difference: Tensor) -> Tensor:
        """Return F'/F, the slope of `log_cdf`, without overflow in either tail."""
        slope = self.noise.slope(self.linear_predictor(difference))
        return slope if self.gain is None else self.gain.to(slope) * slope

    def information(self, difference: Tensor) -> Tensor:
        """Return the Fisher information of one answer about its difference, elementwise."""
        information = self.noise.information(self.linear_predictor(difference))
        return information if self.gain is None else self.gain.to(information) ** 2 * information

    def scale_sd(self, sd: Tensor) -> Tensor:
        """Return standard deviations of `linear_predictor` from those of the differences."""
        return sd if self.gain is None else self.gain.to(sd) * sd

    def moderated_log_cdf(self, difference: Tensor, sd: Tensor) -> Tensor:
        """Return `Noise.moderated_log_cdf` of differences with standard errors ``sd``."""
        return self.noise.moderated_log_cdf(self.linear_predictor(difference), self.scale_sd(sd))
