"""How much of a preference is due to the content, and how much to the form of the question.

Pairs are spread over presentations z: wordings, worked examples, labels, units, numbers of digits.
With y half the difference of a pair's log-odds in its two orders and h half their sum,

    y = s_z [(g + δ_z)(a) − (g + δ_z)(b)] + e,      h = m_z + position × content + e',

with a gain s_z and a position effect m_z of each presentation. Shares of the variance of the
log-odds are those of the content that presentations have in common (g), of what is particular to
one (δ_z), of the position effect and its dependence on the points, and the rest. g and δ_z are
separated by the fit of the belief (`llm_elicit.density.utility.gaussian_process`); the other shares
are moments, with intervals by a bootstrap over presentations and their pairs.

*Generalizability theory* (Cronbach et al. 1972; Brennan 2001). With δ_z of relative variance ρ² and
the utility known from n pairs with the relative error ε, an average over W' presentations and n'
pairs has the generalizability 1 / (1 + ρ²/W' + ε n/n').

Tests are those of `llm_elicit.audit.randomization`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import AdjustedTest, Interval, adjust_fields, t_interval
from llm_elicit.audit.preference import orders_reliability
from llm_elicit.audit.randomization import Index, PresentedRows, share_reached
from llm_elicit.audit.reference import AuditSettings, Standardizer
from llm_elicit.audit.responses import Response, build_response
from llm_elicit.audit.utility import GRID, contrast_of, discrete_values, has_discrete_values
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.density.utility.interaction import TARGET_GENERALIZABILITY
from llm_elicit.planning.presentations import name_facets
from llm_elicit.spaces.features import FeatureSpace, Floats

LEVEL = 0.9  # of intervals
FEWEST = 6
"""Presentations of which the signs can show a preference at 5 %."""

_RESAMPLES = 500
_ENUMERATED = 12  # presentations of which all signs are tried
_HALF = 0.5  # of the content, that is common to presentations where there are too few for a test


class Shares(StrictModel):
    """Shares of the variance of one log-odds, with 90 % intervals.

    Attributes:
        content: the preference that all presentations have in common.
        interaction: preferences of single presentations.
        position: the position effects of the presentations.
        position_content: the dependence of the position effect on the points.
        rest: noise, and what the fit leaves out.
    """

    content: Interval
    interaction: Interval
    position: Interval
    position_content: Interval
    rest: Interval


class Presentation(StrictModel):
    """One presentation of a judge's questions.

    Attributes:
        name: the label of the presentation.
        pairs: number of pairs with answers.
        gain: size of the log-odds relative to the mean presentation; None if not fitted.
        position: mean position effect, with its 95 % interval; None with fewer than two pairs.
        reliability: the share of the responses' mean square that both orders have in common, with
            its 95 % interval; None with fewer than ten pairs.
        effects: effects of the features, as `PresentationAudit.effects`.
    """

    name: str
    pairs: int
    gain: float | None
    position: Interval | None
    reliability: Interval | None
    effects: dict[str, float]


class PresentationAudit(StrictModel):
    """How far a judge's preference depends on the presentation of the questions.

    Attributes:
        version: version of the keys.
        presentations: the presentations, in the order of their names.
        pairs: number of pairs; `twice` of them were asked in more than one presentation.
        shares: shares of the variance of log-odds; None for choices, and if no interaction was
            fitted.
        common: the share of the content's variance that is common to presentations, with its 90 %
            interval, up to 1 unless the test of the interaction rejects it; None if no interaction
            was fitted.
        generalizability: the share of the variance of the content, averaged over as many
            presentations, that another set of them would reproduce, with its 90 % interval.
        error: the relative error of the utility by the number of pairs, ε; None if not known.
        interaction: the test that nothing depends on the presentation; adjusted over the judges.
        over_presentations: the test of a preference that presentations have in common; None with
            fewer than six.
        effects: log-odds by feature, common to all presentations; see `Effect.value`.
    """

    version: Literal[1] = 1
    presentations: tuple[Presentation, ...]
    pairs: int
    twice: int
    shares: Shares | None = None
    common: Interval | None = None
    generalizability: Interval | None = None
    error: float | None = None
    interaction: AdjustedTest
    over_presentations: AdjustedTest | None = None
    effects: dict[str, float]

    def has_common_preference(self, level: float) -> bool:
        """Return whether presentations are shown to have a preference in common.

        With too few for the test, whether most of the content is common, by its interval.
        """
        if self.over_presentations is not None:
            return self.over_presentations.p_value < level
        return self.common is not None and self.common.low > _HALF

    def doubt(self, level: float) -> AdjustedTest | None:
        """Return the test of the interaction, unless a preference in common is shown."""
        return None if self.has_common_preference(level) else self.interaction

    def generalizability_of(self, presentations: int, pairs: int) -> float | None:
        """Return the generalizability of so many presentations and pairs; None if not known."""
        if self.common is None or self.error is None:
            return None
        return 1.0 / (1.0 + self._interaction / presentations + self.error * self.pairs / pairs)

    @property
    def presentations_needed(self) -> int | None:
        """The presentations with which as many pairs would reach .8; None if none would."""
        if self.error is None or self.common is None:
            return None
        return _smallest_count(self._interaction, 1.0 / TARGET_GENERALIZABILITY - 1.0 - self.error)

    @property
    def pairs_needed(self) -> int | None:
        """The pairs with which as many presentations would reach .8; None if none would."""
        if self.error is None or self.common is None:
            return None
        allowed = 1.0 / TARGET_GENERALIZABILITY - 1.0 - self._interaction / len(self.presentations)
        return _smallest_count(self.error * self.pairs, allowed)

    @property
    def facets(self) -> str:
        """What varies between the presentations, such as "wordings and labels"."""
        return name_facets(presentation.name for presentation in self.presentations)

    @property
    def noun(self) -> str:
        """The word for a presentation: "wording" if only wordings vary."""
        return "wording" if self.facets == "wordings" else "presentation"

    @property
    def _interaction(self) -> float:
        """ρ²."""
        assert self.common is not None
        return (1.0 - self.common.value) / max(self.common.value, 1e-9)


def _smallest_count(amount: float, allowed: float) -> int | None:
    """Return the smallest n with amount / n <= allowed; None if there is none."""
    return None if allowed <= 0.0 else max(math.ceil(amount / allowed - 1e-9), 1)


@dataclass(frozen=True)
class PresentedResponse:
    """A judge's responses, one row per pair and presentation.

    Attributes:
        names: names of the presentations.
        parts: the response in each.
        label: the number of each row's presentation, `(n,)`.
    """

    names: tuple[str, ...]
    parts: tuple[Response, ...]
    label: Index

    @classmethod
    def of(cls, comparisons: Comparisons, judge: str) -> PresentedResponse:
        """Return the responses of the presentations that have answers."""
        names = np.unique(comparisons.judgments(judge).presentation).tolist()
        parts = {name: build_response(comparisons, judge, name) for name in names}
        parts = {name: part for name, part in parts.items() if len(part)}
        label = np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()])
        return cls(tuple(parts), tuple(parts.values()), label)

    def column(self, name: str) -> Any:
        """Return a column of all rows."""
        return np.concatenate([getattr(part, name) for part in self.parts])

    def as_one_response(self) -> Response:
        """Return all rows as one response."""
        _, *columns = fields(Response)
        return Response(self.parts[0].kind, *(self.column(column.name) for column in columns))

    @cached_property
    def pair(self) -> Index:
        """Numbers of the pairs, by their points, `(n,)`."""
        points = np.concatenate([self.column("a"), self.column("b")], axis=1)
        return np.asarray(np.unique(points, axis=0, return_inverse=True)[1].reshape(-1))


@dataclass(frozen=True)
class _Columns:
    """Linear and square terms of points, by which responses are regressed."""

    space: FeatureSpace
    standardizer: Standardizer

    @classmethod
    def of(cls, response: PresentedResponse, space: FeatureSpace) -> _Columns:
        points = np.concatenate([response.column("a"), response.column("b")])
        return cls(space, Standardizer.of(space, points))

    @cached_property
    def _squared(self) -> npt.NDArray[np.bool_]:
        return ~self.space.categorical[self.standardizer.column_features]

    @property
    def owners(self) -> Index:
        """The feature of each column, `(p,)`."""
        owners = self.standardizer.column_features
        return np.concatenate([owners, owners[self._squared]])

    def __call__(self, points: Floats) -> Floats:
        """Return the columns `(n, p)` of points `(n, d)`."""
        linear = self.standardizer(points)
        return np.concatenate([linear, np.square(linear[:, self._squared])], axis=1)

    def effects(self, coefficients: Floats) -> list[dict[str, float]]:
        """Return the effects by feature of the coefficients `(k, p)`, by the first's contrast."""
        effects: list[dict[str, float]] = [{} for _ in coefficients]
        low, high = self.space.scale_ends
        base = self.space.from_scale(0.5 * (low + high))
        for j, feature in enumerate(self.space.features):
            if has_discrete_values(feature):
                grid = discrete_values(feature)
            else:
                grid = self.space.from_scale(low + GRID[:, None] * (high - low))[:, j]
            points = np.repeat(self.space.round(base)[None], len(grid), axis=0)
            points[:, j] = grid
            feature_columns = self.owners == j
            curves = coefficients[:, feature_columns] @ self(points)[:, feature_columns].T
            contrast = contrast_of(curves[0], feature)
            for values, curve in zip(effects, curves, strict=True):
                values[feature.name] = float(curve @ contrast)
        return effects


@dataclass(frozen=True)
class _Moments:
    """Second moments of responses and half sums by presentation, `(W,)` each.

    Attributes:
        count: number of pairs.
        squares: mean squares of responses.
        position: squared mean half sums, less the variances of these means.
        spread: variances of half sums over pairs.
        noise: variances of a response given the utility.
    """

    count: Floats
    squares: Floats
    position: Floats
    spread: Floats
    noise: Floats

    @property
    def total(self) -> float:
        """The mean square of a response."""
        return float(np.average(self.squares, weights=self.count))

    @property
    def content(self) -> float:
        """The mean square of a response without noise."""
        return max(float(np.average(self.squares - self.noise, weights=self.count)), 0.0)

    def shares(self, interaction: float) -> Floats:
        """Return the shares of content, interaction, position, position × content, and rest.

        `interaction` is that of the content's variance.
        """
        position, spread, noise = (
            max(float(np.average(values, weights=self.count)), 0.0)
            for values in (self.position, self.spread - self.noise, self.noise)
        )
        of_content = (1.0 - interaction) * self.content, interaction * self.content
        parts = np.array([*of_content, position, spread, 2.0 * noise])
        return parts / max(float(parts.sum()), 1e-300)


def _moments(
    parts: Sequence[Response], names: Sequence[str], fitted: Mapping[str, Any]
) -> _Moments:
    """Return the moments of responses; `fitted` are the presentations of the fit, by name."""
    columns = []
    for name, part in zip(names, parts, strict=True):
        sums = part.position[np.isfinite(part.position)]
        n, several = len(sums), len(sums) > 1
        spread = float(sums.var(ddof=1)) if several else math.nan
        terms = fitted.get(name, {})
        noise = 0.5 * float(terms["dispersion"]) ** 2 if "dispersion" in terms else math.nan
        position = float(sums.mean()) ** 2 - spread / n if several else 0.0
        columns.append((len(part), part.squares.mean(), position, spread, noise))
    count, squares, position, spreads, noises = np.array(columns, dtype=np.float64).T
    # Without a fit, what differs between both orders is noise.
    variances = noises if np.isfinite(noises).any() else spreads
    finite = np.isfinite(variances)
    default = float(np.average(variances[finite], weights=count[finite])) if finite.any() else 0.0
    noises = np.where(np.isfinite(noises), noises, default)
    spreads = np.where(np.isfinite(spreads), spreads, noises)
    return _Moments(count, squares, position, spreads, noises)


def measure_presentations(
    response: PresentedResponse,
    judge: str,
    space: FeatureSpace,
    settings: AuditSettings,
    rng: np.random.Generator,
    fit: Mapping[str, Any],
) -> PresentationAudit | None:
    """Measure how far a judge's answers depend on the presentation; None with one presentation.

    Args:
        response: the judge's.
        judge: its name.
        space: the feature space.
        settings: number of randomizations, and the level of the test by which intervals end at 0.
        rng: draws them.
        fit: diagnostics of the fit of its belief.
    """
    if len(response.names) < 2:
        return None
    fitted = fit.get("response") or fit.get("presentations") or {}
    interaction = fitted.get("interaction")
    of_judge = (fitted.get("judges") or {}).get(judge, {})
    by_name = of_judge.get("presentations", {})
    scale = float(of_judge.get("dispersion", math.nan))
    by_presentation = {
        name: {**values, "dispersion": scale * values["dispersion"]}
        for name, values in by_name.items()
        if "dispersion" in values and math.isfinite(scale)
    }
    moments = _moments(response.parts, response.names, by_presentation)
    columns = _Columns.of(response, space)
    design = columns(response.column("a")) - columns(response.column("b"))
    size = np.sqrt(np.square(design).mean(axis=0))
    size = np.where(size > 1e-12, size, 1.0)
    noise, value = moments.noise[response.label], response.column("value")
    rows = PresentedRows.of(design / size, value, noise, response.label, response.pair)
    p_value = rows.interaction_p_value(rng, settings.flips)
    share = 0.0 if interaction is None else float(interaction["share"])
    common, *effects = columns.effects(rows.coefficients(share / (1.0 - share)) / size)
    measured: dict[str, Any] = {}
    if interaction is not None:
        low, high = interaction["share_interval"]
        gen_low, gen_high = interaction["generalizability_interval"]
        if p_value >= settings.level:
            low, gen_high = 0.0, 1.0
        measured["common"] = Interval(value=1.0 - share, low=1.0 - high, high=1.0 - low)
        value = float(interaction["generalizability"])
        measured["generalizability"] = Interval(value=value, low=gen_low, high=gen_high)
        quantiles = np.array(interaction["quantiles"])
        if by_presentation:  # of log-odds
            measured["shares"] = _shares(response, by_presentation, share, quantiles, rng)
        measured["error"] = _error(of_judge.get("held_out_r2"), moments)
    if len(response.names) >= FEWEST:
        measured["over_presentations"] = _over_presentations(rows, settings.flips, rng)
    presentations = [
        Presentation(
            name=name,
            pairs=len(part),
            gain=by_name.get(name, {}).get("gain"),
            position=_position(part),
            reliability=orders_reliability(part),
            effects=values,
        )
        for name, part, values in zip(response.names, response.parts, effects, strict=True)
    ]
    return PresentationAudit(
        presentations=tuple(presentations),
        pairs=int(response.pair.max()) + 1,
        twice=int((np.bincount(response.pair) > 1).sum()),
        interaction=AdjustedTest.unadjusted(p_value, 1.0 / (1 + settings.flips)),
        effects=common,
        **measured,
    )


def _over_presentations(rows: PresentedRows, flips: int, rng: np.random.Generator) -> AdjustedTest:
    """Return the test of a preference in common by the signs of presentations."""
    count = rows.count
    if count <= _ENUMERATED:
        # All signs but for a common one, which changes no score.
        patterns = np.arange(2 ** (count - 1))[:, None] >> np.arange(count) & 1
        signs = 1.0 - 2.0 * patterns
    else:
        signs = np.where(rng.random((1 + flips, count)) < 0.5, -1.0, 1.0)
        signs[0] = 1.0
    p_value = share_reached(rows.common_scores(np.asarray(signs, dtype=np.float64)))
    return AdjustedTest.unadjusted(p_value, 1.0 / len(signs))


def _shares(
    response: PresentedResponse,
    fitted: Mapping[str, Any],
    share: float,
    quantiles: Floats,
    rng: np.random.Generator,
) -> Shares:
    """Return the shares of variance, with intervals by resampled presentations and pairs.

    Args:
        response: the judge's.
        fitted: the presentations of the fit, by name.
        share: share of the variance of the content that is particular to one presentation.
        quantiles: quantiles of its posterior.
        rng: draws the resamples.
    """
    estimate = _moments(response.parts, response.names, fitted).shares(share)
    count, draws = len(response.parts), []
    for _ in range(_RESAMPLES):
        parts, names = [], []
        for number in rng.integers(count, size=count).tolist():
            part = response.parts[number]
            parts.append(part.rows(rng.integers(len(part), size=len(part))))
            names.append(response.names[number])
        draws.append(_moments(parts, names, fitted).shares(float(rng.choice(quantiles))))
    ends = np.quantile(draws, (0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL), axis=0)
    intervals = [
        Interval(value=value, low=min(low, value), high=max(high, value))
        for value, low, high in zip(estimate.tolist(), *ends.tolist(), strict=True)
    ]
    return Shares(**dict(zip(Shares.model_fields, intervals, strict=True)))


def _error(held_out_r2: float | None, moments: _Moments) -> float | None:
    """Return ε: the variance of the utility's error over that of the content."""
    explainable = moments.content / moments.total if moments.total > 0.0 else 0.0
    if held_out_r2 is None or held_out_r2 <= 0.0 or explainable <= 0.0:
        return None
    return max(explainable / min(held_out_r2, explainable) - 1.0, 0.0)


def _position(part: Response) -> Interval | None:
    sums = part.position[np.isfinite(part.position)]
    return t_interval(sums) if len(sums) > 1 else None


def adjust_presentations(
    audits: Sequence[PresentationAudit | None], controls: Sequence[bool]
) -> list[PresentationAudit | None]:
    """Return the audits with p-values of the interaction, Holm-adjusted over the judges."""
    pairs = zip(audits, controls, strict=True)
    family = [audit is not None and not control for audit, control in pairs]
    return adjust_fields(audits, ["interaction"], family)
