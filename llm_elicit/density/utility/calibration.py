"""Whether choices that are foretold to be so sure are right so often."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.folds import Array, HeldOut

_EDGES = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1.0])


def calibration(held_out: HeldOut, weights: Array, response: Response) -> dict[str, Any]:
    """A table of confidence and hits, and the mean absolute gap between them; JSON-able.

    ``bins`` hold the weight (``share``) of comparisons whose likelier side has a probability in
    0.5–0.6, ..., 0.9–1, its mean (``foretold``), and the share that were won by it (``found``);
    bins without comparisons are left out. ``error`` is the mean of \\|found − foretold\\|
    weighted by share (the expected calibration error of Naeini, Cooper and Hauskrecht, 2015).

    Examples
    --------
    >>> from llm_elicit.density import Noise
    >>> rng = np.random.default_rng(0)
    >>> gap = np.abs(rng.normal(0, 2, 20_000))
    >>> won = np.where(rng.logistic(0, Noise().level, 20_000) < gap, gap, -gap)
    >>> sure = calibration(HeldOut(won, 0 * won), np.ones(20_000), Response(Noise()))
    >>> too_sure = calibration(HeldOut(2 * won, 0 * won), np.ones(20_000), Response(Noise()))
    >>> sure["error"] < 0.02 < too_sure["error"]
    True
    """
    seen = response.seen(torch.from_numpy(held_out.difference))
    spread = response.spread(torch.from_numpy(held_out.spread))
    win, lose = (
        torch.exp(response.noise.moderated_log_cdf(sign * seen, spread)).numpy()
        for sign in (1.0, -1.0)
    )
    # Of the two sides: a tie tells neither.
    chance = win / (win + lose)
    confidence, hit = np.maximum(chance, 1.0 - chance), np.where(chance == 0.5, 0.5, chance > 0.5)
    place = np.clip(np.searchsorted(_EDGES, confidence, side="right") - 1, 0, len(_EDGES) - 2)
    mass = np.bincount(place, weights, len(_EDGES) - 1)
    bins, error = [], 0.0
    for k in np.flatnonzero(mass > 0):
        here = place == k
        foretold, found = (np.average(v[here], weights=weights[here]) for v in (confidence, hit))
        share = float(mass[k] / mass.sum())
        error += share * abs(float(found - foretold))
        bins.append({"share": share, "foretold": float(foretold), "found": float(found)})
    return {"bins": bins, "error": error}
