"""How far a preference depends on the presentation: the variance component.

The utility in presentation z is f + δ_z, with f common to all presentations, and ρ² the ratio of
the variance of δ_z to that of f. The share ρ²/(1 + ρ²) has a uniform prior. Its likelihood is
maximized over gains and dispersions, with the variances of f at their estimates, so that the share
is that of this judge's utility and not of all utilities with the same prior. Since these parameters
count as known, the likelihood is raised to the power of one half. This power was chosen by
simulated campaigns; docs/benchmarks.md has the coverage in others.

*Choices* have the probability F(s_z [(f + δ_z)(a) − (f + δ_z)(b)] + m_z). Here f and δ_z are
quadratic forms, apart from the fitted utility, and each kind of term has the variance that it has
in f in expectation. Gains are linear about f, s_z (f + δ_z) ≈ f + δ_z + γ_z f, and γ_z and m_z are
normal. So all are coefficients of one predictor, and expectation propagation gives the marginal
likelihood (Minka, 2001; Rasmussen and Williams, 2006, section 3.6). Laplace's approximation is too
low with so few choices for each coefficient. The belief is fitted to all choices. Its draws add the
variation of an average over W presentations about f: a part ρ²/(W + ρ²) of the prior of f.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from llm_elicit.density.errors import Array
from llm_elicit.density.evidence import UNKNOWN
from llm_elicit.density.likelihood import Context, Noise
from llm_elicit.density.utility.cross_validation import ChoiceData
from llm_elicit.density.utility.judges import JudgeTerms
from llm_elicit.density.utility.quadratic import QuadraticTerms
from llm_elicit.density.utility_function import UtilityDraws, Warp

SHARES = np.array([0.0005, 0.02, 0.05, 0.1, 0.17, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85])
"""The shares at which the likelihood is computed; it is interpolated between them."""

TARGET_GENERALIZABILITY = 0.8
"""The generalizability to reach with more presentations."""

_QUANTILES = 16
_TEMPER = 0.5  # power of the likelihood


@dataclass(frozen=True)
class Interaction:
    """How far a preference depends on the presentation, from log-odds.

    Attributes:
        share: the share of the variance of the utility that is particular to one presentation;
            posterior mean.
        share_interval: the shortest interval with 90 % of the posterior.
        presentations: the number W of presentations.
        generalizability: the share of the variance of the content, averaged over W presentations,
            that is common to presentations like these: 1 / (1 + ρ²/W).
        generalizability_interval: 90 %.
        quantiles: quantiles of the share, at 16 equal steps of probability.
    """

    share: float
    share_interval: tuple[float, float]
    presentations: int
    generalizability: float
    generalizability_interval: tuple[float, float]
    quantiles: tuple[float, ...]

    @classmethod
    def from_profile(cls, log_likelihood: Array, presentations: int) -> Interaction:
        """Return the estimates from log-likelihoods at `SHARES`."""
        grid = np.linspace(SHARES[0], SHARES[-1], 800)
        values = PchipInterpolator(SHARES, log_likelihood)(grid)
        weight = np.exp(_TEMPER * (values - values.max()))
        weight /= weight.sum()
        order = np.argsort(-weight)
        shortest = grid[order[: np.searchsorted(np.cumsum(weight[order]), 0.9) + 1]]
        low, high, share = float(shortest.min()), float(shortest.max()), float(grid @ weight)
        levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES

        def generalizability_at(share: float) -> float:
            return 1.0 / (1.0 + share / (1.0 - share) / presentations)

        ends = generalizability_at(high), generalizability_at(low)
        quantiles = tuple(grid[np.searchsorted(np.cumsum(weight), levels)].tolist())
        mean = generalizability_at(share)
        return cls(share, (low, high), presentations, mean, ends, quantiles)


_MAX_ROWS, _MAX_TERMS = 2000, 60  # of choices; with more terms, those of two features are left out
_POSITION_SD = 3.0  # of a position effect, in units of the noise's scale
_GAIN_SD, _MIN_GAIN = 0.5, 0.1  # of a gain
_START_SD = 2.0  # of a difference of utility, in units of the noise's scale
_NODES = 20  # of quadratures
_MAX_ROUNDS, _MAX_VARIANCE_ROUNDS = 30, 8
_TOLERANCE, _VARIANCE_TOLERANCE = 1e-3, 0.1  # nats; of the logarithms of variances
_STEP = 0.8  # of a site towards the one that matches moments
_MIN_PRECISION = 1e-8


@dataclass(frozen=True)
class ChoiceInteraction:
    """How far choices depend on the presentation, and the belief that presentations have in common.

    Attributes:
        estimate: the variance component.
        gains: (C,) gains of each judge in each presentation, with geometric mean one for a judge.
        positions: (B,) position effects of the context, nats.
        terms: the terms of the quadratic form.
        root: (P, r) root of the prior covariance of the form's coefficients.
    """

    estimate: Interaction
    gains: Array
    positions: Array
    terms: QuadraticTerms
    root: Tensor

    def widen(self, draws: UtilityDraws) -> UtilityDraws:
        """Return draws of the common utility, from draws of the mean over these presentations."""
        count, rank = len(draws), self.root.shape[1]
        normal = torch.from_numpy(np.random.default_rng(0).normal(size=(count, rank)))
        shares = torch.tensor(self.estimate.quantiles, dtype=torch.float64)
        odds = (shares / (1.0 - shares))[torch.arange(count) % len(shares), None]
        part = odds / (self.estimate.presentations + odds)
        linear, curvature = self.terms.linear_and_curvature(part.sqrt() * (normal @ self.root.T))
        return replace(draws, linear=draws.linear + linear, curvature=draws.curvature + curvature)

    def report(self, context: Context) -> dict[str, Any]:
        """Return the estimates (JSON-able), as those of log-odds are reported."""
        judges: dict[str, Any] = {name: {"presentations": {}} for name in context.judges}
        positions = dict(zip(context.position_terms, self.positions.tolist(), strict=True))
        for (judge, presentation), gain in zip(context.cells.tolist(), self.gains, strict=True):
            name = context.judges[judge]
            label = "" if presentation == UNKNOWN else context.presentations[presentation]
            position = positions.get((name, 2, 0, presentation))
            judges[name]["presentations"][label] = {"gain": float(gain), "position": position}
        return {"interaction": asdict(self.estimate), "judges": judges}


class _Approximation(NamedTuple):
    """The normal approximation of coefficients (Q,) by expectation propagation.

    Attributes:
        log_evidence: log marginal likelihood.
        mean, covariance: (Q,) and (Q, Q).
        sites: (2, n) precisions, and precisions times means, of the rows' predictors.
    """

    log_evidence: float
    mean: Tensor
    covariance: Tensor
    sites: Tensor


class PresentedChoices:
    """Choices in several presentations, as a regression on quadratic terms.

    Args:
        data: choices, with a context of several presentations.
        judges: the judges' terms; gains and ties are taken for known.
        noise: noise of the choices.
        warp: warp of the features, on which the utility is a simpler function; None for none.
    """

    def __init__(
        self, data: ChoiceData, judges: JudgeTerms, noise: Noise, warp: Warp | None = None
    ) -> None:
        context = data.context
        assert context is not None
        generator = torch.Generator().manual_seed(0)
        rows = torch.randperm(len(data.weights), generator=generator)[:_MAX_ROWS].sort().values
        self.terms = QuadraticTerms.of(data.categories)
        winners, losers = (
            self.terms.columns((t if warp is None else warp(t)).numpy())
            for t in (torch.from_numpy(side)[rows].double() for side in (data.winners, data.losers))
        )
        response = judges.response(context, noise)
        assert response.gain is not None
        self.noise = response.noise
        gain = response.gain[rows].double()
        self.columns = gain[:, None] * torch.from_numpy(winners - losers)
        self.projections = self.terms.projections[: 3 if len(self.terms) > _MAX_TERMS else None]
        self.weights = torch.from_numpy(data.weights)[rows]
        position_columns = torch.from_numpy(context.position_columns)[rows]
        self.positions = _POSITION_SD * noise.scale * position_columns
        cells, cell = context.cells, context.cell
        self.presentations = len(np.unique(cells[:, 1]))
        self.of_cell = torch.eye(len(cells), dtype=torch.float64)[torch.from_numpy(cell)[rows]]
        same_judge = torch.from_numpy(cells[:, :1] == cells[:, 0]).double()
        # Gains are relative to their mean over a judge's presentations.
        self.centring = torch.eye(len(cells)).double() - same_judge / same_judge.sum(0)
        size = [float((self.columns @ p).square().sum(1).mean()) for p in self.projections]
        start = (_START_SD * noise.scale) ** 2 / len(size)
        self.variances = torch.tensor([start / s if s > 0.0 else 0.0 for s in size]).double()
        self.sites = torch.stack([torch.full_like(self.weights, 0.1), 0.0 * self.weights])
        self.predictor = 0.0 * self.weights

    @property
    def root(self) -> Tensor:
        """A root (P, r) of the prior covariance of the coefficients of f."""
        blocks = zip(self.variances, self.projections, strict=True)
        root = torch.stack([v.sqrt() * p for v, p in blocks]).sum(0)
        return root[:, root.any(0)]

    def estimate(self) -> ChoiceInteraction:
        """Return the estimates, with variances at the share of highest evidence."""
        self._estimate_variances(0.0)
        self._estimate_variances(float(SHARES[self._profile().argmax()]))
        estimate = Interaction.from_profile(self._profile(), self.presentations)
        mean = self._solve(estimate.share).mean
        rank, cells = self.root.shape[1], len(self.centring)
        gains, positions = torch.split(mean[rank * (1 + cells) :], [cells, self.positions.shape[1]])
        logs = (1.0 + _GAIN_SD * self.centring @ gains).clamp(min=_MIN_GAIN).log()
        relative_gains = torch.exp(self.centring @ logs).numpy()
        effects = (_POSITION_SD * self.noise.scale * positions).numpy()
        return ChoiceInteraction(estimate, relative_gains, effects, self.terms, self.root)

    def _profile(self) -> Array:
        """Return the log marginal likelihoods at `SHARES`."""
        return np.array([self._solve(share).log_evidence for share in SHARES])

    def _estimate_variances(self, share: float) -> None:
        """Set the variances of the terms of f, by expectation maximization."""
        for _ in range(_MAX_VARIANCE_ROUNDS):
            posterior, root = self._solve(share), self.root
            rank = root.shape[1]
            mean = root @ posterior.mean[:rank]
            second_moments = torch.outer(mean, mean)
            second_moments += root @ posterior.covariance[:rank, :rank] @ root.T
            self.predictor, previous = self.columns @ mean, self.variances
            parts = [(p * second_moments).sum() for p in self.projections]
            ranks = [p.diagonal().sum().clamp(min=1.0) for p in self.projections]
            self.variances = torch.stack(parts) / torch.stack(ranks)
            changes = (self.variances / previous.clamp(min=1e-300)).clamp(min=1e-12).log().abs()
            if float(changes[previous > 0.0].max()) < _VARIANCE_TOLERANCE:
                break

    def _solve(self, share: float) -> _Approximation:
        """Return the coefficients of f, of δ_z, of gains and of positions, at a share."""
        common = self.columns @ self.root
        parts = [common]
        if share > 0.0:
            particular = math.sqrt(share / (1.0 - share)) * common
            parts += [particular * row[:, None] for row in self.of_cell.T]
            parts.append(_GAIN_SD * self.predictor[:, None] * (self.of_cell @ self.centring))
        approximation = _propagate_expectations(
            torch.cat([*parts, self.positions], 1), self.weights, self.noise, self.sites
        )
        self.sites = approximation.sites
        return approximation


def _propagate_expectations(
    design: Tensor, weights: Tensor, noise: Noise, sites: Tensor
) -> _Approximation:
    """Return the posterior of standard normal coefficients given choices.

    Args:
        design: (n, Q); rows times coefficients are differences of utility of winner and loser.
        weights: (n,) how many times each choice was made.
        noise: noise of the choices.
        sites: (2, n) to start from.
    """
    nodes, masses = (
        torch.from_numpy(values) for values in np.polynomial.hermite_e.hermegauss(_NODES)
    )
    log_masses = (masses / masses.sum()).log()
    precision, shift = sites
    log_evidence = -math.inf
    for _ in range(_MAX_ROUNDS):
        information = design.T @ (design * precision[:, None]) + torch.eye(design.shape[1]).double()
        factor = torch.linalg.cholesky(information)
        variance = torch.linalg.solve_triangular(factor, design.T, upper=False).square().sum(0)
        mean = torch.cholesky_solve((design.T @ shift)[:, None], factor)[:, 0]
        fitted = design @ mean
        # The cavity distribution: a predictor without its own site.
        other_precision = (1.0 / variance - precision).clamp(min=_MIN_PRECISION)
        other_shift = fitted / variance - shift
        other_mean = other_shift / other_precision
        values = other_mean[:, None] + other_precision.rsqrt()[:, None] * nodes
        logs = weights[:, None] * noise.log_cdf(values) + log_masses
        log_mass = torch.logsumexp(logs, 1)
        probability = torch.exp(logs - log_mass[:, None])
        tilted_mean = (probability * values).sum(1)
        tilted_variance = (probability * (values - tilted_mean[:, None]).square()).sum(1)
        total = (
            log_mass
            + 0.5 * torch.log1p(precision / other_precision)
            + 0.5 * other_mean * other_shift
            - 0.5 * (other_shift + shift).square() / (other_precision + precision)
        )
        previous, fit = log_evidence, total.sum() + 0.5 * shift @ fitted
        log_evidence = float(fit - factor.diagonal().log().sum())
        if abs(log_evidence - previous) < _TOLERANCE:
            break
        matched = (1.0 / tilted_variance - other_precision).clamp(min=_MIN_PRECISION)
        matched_shift = tilted_mean / tilted_variance - other_shift
        precision = precision + _STEP * (matched - precision)
        shift = shift + _STEP * (matched_shift - shift)
    return _Approximation(
        log_evidence, mean, torch.cholesky_inverse(factor), torch.stack([precision, shift])
    )
