"""Rankings as comparisons, by the Plackett–Luce model.

By Plackett–Luce a judge picks the best of m, then the best of the rest. The score (the gradient of
the log-likelihood) of one pick w among S is

    ∇f_w − Σ_j π_j ∇f_j  =  Σ_{j ≠ w} v_wj · (1 − F(f_w − f_j)) (∇f_w − ∇f_j),   v_wj = π_w + π_j,

with π the probabilities of S and F logistic. It is that of Bradley–Terry comparisons of w with each
of the others, weighted by the probability that the pick falls on the two. v is symmetric, so these
comparisons are unbiased at whatever utility the weights are evaluated. At the true utility they
have the score of Plackett–Luce and its expected information, since Σ_{j<k} v² (π_j π_k/v²) (∇f_j −
∇f_k)² is the variance of ∇f under π. With equal utilities v = 2/m, and 1 for a pick of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_elicit.density.errors import DensityError, numbers

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RankingRows:
    """The comparisons of n rankings, m rows.

    Parameters
    ----------
    question : (m,) numbers of the rankings.
    winner, loser : (m,) numbers of the points within their question.
    pick : (m,) numbers of the picks, distinct over all questions.
    """

    question: Index
    winner: Index
    loser: Index
    pick: Index


def ranking_rows(ranking: npt.ArrayLike, n: int, k: int) -> RankingRows:
    """Return the comparisons of rankings (n, r) of k points each, best first.

    Raises
    ------
    DensityError : another shape, or rows that are not different numbers of 0..k−1.

    Examples
    --------
    >>> rows = ranking_rows([[2, 0]], n=1, k=3)            # 2 best, then 0, then 1
    >>> list(zip(rows.winner.tolist(), rows.loser.tolist()))
    [(2, 0), (2, 1), (0, 1)]
    """
    order = _check_ranking(ranking, n, k)
    ranked = np.zeros((n, k), dtype=bool)
    np.put_along_axis(ranked, order, True, axis=1)
    rest = np.argsort(ranked, axis=1, kind="stable")[:, : k - order.shape[1]]
    whole = np.concatenate([order, rest], axis=1)
    picks = min(order.shape[1], k - 1)
    best, worse = np.array([(p, j) for p in range(picks) for j in range(p + 1, k)]).T
    question = np.repeat(np.arange(n), len(best))
    pick = question * picks + np.tile(best, n)
    return RankingRows(question, whole[:, best].ravel(), whole[:, worse].ravel(), pick)


def pick_weights(pick: Index, odds: Array) -> Array:
    """Return v_wj (m,) of the comparisons of picks numbered ``pick`` (m,).

    Parameters
    ----------
    odds : (m,) f_w − f_j in units of the noise's scale; NaN where not known: equal utilities.

    Examples
    --------
    >>> pick_weights(np.array([0, 0]), np.zeros(2)).round(2).tolist()    # one of three
    [0.67, 0.67]
    """
    picks = np.unique(pick, return_inverse=True)[1].reshape(-1)
    # log Σ_S e / e_w, over the losers of each pick and the winner itself.
    others = np.zeros(int(picks.max()) + 1)
    np.logaddexp.at(others, picks, -odds)
    share = np.exp(np.logaddexp(0.0, -odds) - others[picks])
    even = 2.0 / (1.0 + np.bincount(picks))[picks]
    return np.where(np.isnan(share), even, share)


def _check_ranking(ranking: npt.ArrayLike, n: int, k: int) -> Index:
    """Return rankings (n, r) of k points each, as integers."""
    if np.asarray(ranking).dtype.kind not in "iu":
        raise DensityError(
            "Evidence: ranking must be whole numbers, those of a question's points; convert it "
            "to integers first."
        )
    order = numbers("Evidence: ranking", ranking).astype(np.int64)
    if order.ndim != 2 or len(order) != n or not 1 <= order.shape[1] <= k:
        raise DensityError(
            f"Evidence: ranking has shape {order.shape}, expected ({n}, r) with r in 1..{k}: "
            "the numbers of the points of a question, best first; pass one row per question."
        )
    for i, row in enumerate(order.tolist()):
        if len(set(row)) < len(row) or not set(row) <= set(range(k)):
            raise DensityError(
                f"Evidence: ranking[{i}] is {row}; it must be different numbers of "
                f"0..{k - 1}, best first; drop answers that are not rankings."
            )
    return order
