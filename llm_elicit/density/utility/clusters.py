"""What several judgments of one pair are worth: replicates need not be independent."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.utility.data import CrossValidation, HeldOut


def clustered_weights(validation: CrossValidation, foretold: HeldOut) -> Tensor:
    """Weights (n,) under which every pair counts as many judgments as it is worth.

    A judge asked twice about a pair may answer from memory: m judgments of correlation ρ are
    worth m/(1 + (m − 1)ρ). ρ, the same for all pairs, is estimated from what remains of the
    choices after a form has foretold them (what no form explains looks like memory), over all
    pairs of judgments of one pair (the exchangeable correlation of Liang and Zeger, 1986).
    With one judgment a pair the weights are what they were.
    """
    weights = torch.from_numpy(validation.data.weights)
    pairs = torch.from_numpy(validation.data.pairs)
    count = torch.zeros(int(pairs.max()) + 1, dtype=torch.float64).index_add_(0, pairs, weights)
    if not bool((count > 1.0 + 1e-9).any()):
        return weights
    difference = torch.zeros(validation.size, dtype=torch.float64)
    difference[validation.judged] = torch.from_numpy(foretold.difference)
    correlation = _correlation(validation, difference, count)
    worth = 1.0 / (1.0 + (count - 1.0).clamp(min=0.0) * correlation)
    return weights * worth[pairs]


def _correlation(validation: CrossValidation, difference: Tensor, count: Tensor) -> float:
    """ρ in 0..1 from the residuals of judgments of the same pair."""
    weights = torch.from_numpy(validation.data.weights)
    pairs = torch.from_numpy(validation.data.pairs)
    # Winning is the outcome of every row, seen from the first side of its pair.
    win = validation.response.expected_score(difference)
    sign = torch.from_numpy(_sides(validation))
    residual, variance = 1.0 - win, win * (1.0 - win)

    def of_pairs(values: Tensor) -> Tensor:
        return torch.zeros_like(count).index_add_(0, pairs, values)

    together = of_pairs(weights * sign * residual).square()
    alone = of_pairs(weights * residual.square())
    spread = of_pairs(weights * variance) / count
    several = count > 1.0 + 1e-9
    expected = (count * (count - 1.0) * spread)[several].sum()
    found = (together - alone)[several].sum() / expected.clamp(min=1e-12)
    return float(found.clamp(0.0, 1.0))


def _sides(validation: CrossValidation) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """+1 for rows whose winner comes first in lexical order, −1 for the others (n,)."""
    a, b = validation.data.winners, validation.data.losers
    unequal = (a != b).argmax(1)[:, None]
    first = np.take_along_axis(a, unequal, 1) <= np.take_along_axis(b, unequal, 1)
    return np.where(first[:, 0], 1.0, -1.0)
