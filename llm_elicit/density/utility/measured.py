"""The utility from evidence with log-odds, and the terms of the judges."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from llm_elicit.density.judgments import Context, Judgments
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.log_odds import PairContrasts, in_order
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.density.utility.gaussian_process import GaussianProcessFit, fit_gaussian_process
from llm_elicit.density.utility.marginal_likelihood import Observations

Array = npt.NDArray[np.float64]
_FEWEST = 10  # pairs of which a share is given
_PLACE_SD = 3.0  # of a choice's order bias, in units of the noise's scale


def fit_measured(
    judgments: Judgments,
    latent: Latent,
    noise: Noise,
    generator: torch.Generator,
    settings: GaussianProcessSettings,
) -> tuple[GaussianProcessFit, dict[str, Any]]:
    """Fit log-odds, and the choices beside them if there are any.

    Returns the fit and its ``response`` (JSON-able): ``scale``, what sets the unit of the utility,
    "log-odds" or "choices"; ``held_out_r2`` of the pairs' log-odds by the others, one minus the
    mean squared error over the mean square, without the position effect in either, with its 95 %
    ``held_out_r2_interval`` over pairs, None where they do not vary and with fewer than ten pairs;
    ``dispersion``, the
    residual standard deviation of one log-odds, nats; ``position``, the mean effect of being shown
    first and its standard deviation over pairs beyond the dispersion, None where no pair was asked
    in both orders; ``pairs`` and how many were asked in ``both_orders``; and the same of each of
    the ``judges``, with the gain of its log-odds. Values beside ``judges`` are the first judge's.
    """
    rows = _observations(judgments, latent, noise)
    fit = fit_gaussian_process(rows, noise, generator, settings)
    return fit, _response(judgments, rows, fit)


def _observations(judgments: Judgments, latent: Latent, noise: Noise) -> Observations:
    pairs = judgments.measured
    judges = list(dict.fromkeys(pairs.judge.tolist()))
    n, m = len(pairs), judgments.size
    context = judgments.context
    of_choices = np.zeros(m, dtype=np.int64) if context is None else context.judge
    choosing = list(dict.fromkeys(of_choices.tolist()))
    source = np.concatenate([
        np.array([judges.index(j) for j in pairs.judge], dtype=np.int64),
        np.array([len(judges) + choosing.index(j) for j in of_choices], dtype=np.int64),
    ])  # fmt: skip
    effects, effect_sd = _position_columns(pairs, judges, context, m, noise)
    nothing, ones = np.zeros(m), np.ones(m)
    return Observations(
        torch.cat([_features(latent, pairs.a), _features(latent, judgments.winners)]),
        torch.cat([_features(latent, pairs.b), _features(latent, judgments.losers)]),
        np.concatenate([pairs.value, nothing]),
        np.concatenate([pairs.share, ones]),
        np.concatenate([pairs.extra, nothing]),
        np.concatenate([pairs.censored, np.zeros(m, dtype=np.int64)]),
        np.concatenate([np.ones(n), judgments.weights]),
        source,
        (*[False] * len(judges), *[True] * len(choosing)),
        effects,
        effect_sd,
        _groups(judgments),
        latent.category,
    )


def _features(latent: Latent, x: Array) -> torch.Tensor:
    return latent.features(torch.from_numpy(latent.to_latent(x)))


def _position_columns(
    pairs: PairContrasts, judges: list[int], context: Context | None, choices: int, noise: Noise
) -> tuple[Array, Array]:
    """Columns (n, B) of position effects and their prior standard deviations (B,)."""
    columns, spread = [], []
    for judge in judges:
        side = np.where(pairs.judge == judge, pairs.side, 0.0)
        if side.any():
            effect = pairs.position_effect(judge)
            columns.append(np.concatenate([side, np.zeros(choices)]))
            spread.append(effect[1] / np.sqrt(effect[2]) if effect and effect[2] > 1 else np.nan)
    if context is not None:
        for column in context.order.T:
            columns.append(np.concatenate([np.zeros(len(pairs)), column]))
            spread.append(_PLACE_SD * noise.scale)
    size = len(pairs) + choices
    return np.stack(columns, 1) if columns else np.zeros((size, 0)), np.array(spread)


def _groups(judgments: Judgments) -> npt.NDArray[np.int64]:
    """Return group numbers: rows about the same two points are left out together."""
    pairs = judgments.measured
    measured, compared = (pairs.a, pairs.b), in_order(judgments.winners, judgments.losers)
    points = np.concatenate([np.concatenate(sides, 1) for sides in (measured, compared)])
    return np.unique(points, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _response(judgments: Judgments, rows: Observations, fit: GaussianProcessFit) -> dict[str, Any]:
    pairs, names = judgments.measured, judgments.judges
    ids = list(dict.fromkeys(pairs.judge.tolist()))
    column, judges = 0, {}
    for at, judge in enumerate(ids):
        single = bool(pairs.side[pairs.judge == judge].any())
        effect = float(fit.effects[column]) if single else 0.0
        column += single
        judges[names[judge]] = _of_judge(pairs, judge, fit, at, effect)
    return {
        "scale": "choices" if any(rows.choices) else "log-odds",
        **judges[names[ids[0]]],
        **_r2(pairs, fit, np.ones(len(pairs), dtype=bool)),
        "pairs": len(pairs),
        "both_orders": int((pairs.side == 0).sum()),
        "judges": judges,
    }


def _of_judge(
    pairs: PairContrasts, judge: int, fit: GaussianProcessFit, source: int, effect: float
) -> dict[str, Any]:
    rows, dispersion = pairs.judge == judge, float(fit.dispersion[source])
    estimate = pairs.position_effect(judge)
    mean, spread = effect, None
    if estimate is not None:
        # Rows in one order shift the mean of the half sums.
        mean = estimate[0] + (effect if estimate[2] > 1 else 0.0)
        spread = float(np.sqrt(max(estimate[1] ** 2 - 0.5 * dispersion**2, 0.0)))
    return {
        **_r2(pairs, fit, rows),
        "dispersion": dispersion,
        "gain": float(fit.gain[source]),
        "position": {"mean": mean, "sd": spread},
        "pairs": int(rows.sum()),
        "both_orders": int((pairs.side[rows] == 0).sum()),
    }


def _r2(
    pairs: PairContrasts, fit: GaussianProcessFit, chosen: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """Return R² of uncensored values less the position effect; None where they are all 0.

    The effect is that of the other pairs. The interval is the jackknife's, linearized in the
    logarithm of one minus R², with Student's quantile.
    """
    use = chosen & (pairs.censored == 0) & np.isfinite(pairs.extra)
    value, predicted = pairs.value[use], fit.predicted[: len(pairs)][use]
    plain = value - _left_out_effect(pairs, use)[use]
    squares, errors, n = np.square(plain), np.square(value - predicted), len(value)
    total, missed = float(squares.sum()), float(errors.sum())
    # Half differences of equal numbers are rounding errors, not a preference.
    if n < _FEWEST or total <= 1e-24 * n:
        return {"held_out_r2": None, "held_out_r2_interval": None}
    ratio = missed / total
    influence = errors / missed - squares / total if missed > 0 else np.zeros(n)
    half = stats.t.ppf(0.975, n - 1) * np.sqrt(float(influence @ influence) * n / (n - 1))
    ends = [1.0 - ratio * float(np.exp(sign * half)) for sign in (1.0, -1.0)]
    return {"held_out_r2": 1.0 - ratio, "held_out_r2_interval": ends}


def _left_out_effect(pairs: PairContrasts, use: npt.NDArray[np.bool_]) -> Array:
    """Return what the mean position effect of a judge's other pairs adds to each value (n,).

    0 where pairs asked in both orders determine it, as it is subtracted there.
    """
    effect = np.zeros(len(pairs))
    for judge in np.unique(pairs.judge[use]):
        estimate = pairs.position_effect(judge)
        alone = use & (pairs.judge == judge) & (pairs.side != 0)
        if alone.sum() > 1 and (estimate is None or estimate[2] < 2):
            signed = pairs.side[alone] * pairs.value[alone]
            others = (signed.sum() - signed) / (len(signed) - 1)
            effect[alone] = pairs.side[alone] * others
    return effect
