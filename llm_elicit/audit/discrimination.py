"""Does what a judge prefers follow the data? Numbers that depend on the order of points alone."""

from __future__ import annotations

from llm_elicit.audit.consistency import Interval
from llm_elicit.strict import Strict


class Discrimination(Strict):
    """A judge's utility against the data; 95 % intervals over rows and draws of the posterior.

    Attributes:
        rows: how many rows of the data were looked at.
        auc: the share of pairs of a row of the data and a draw from λ in which the utility of the
            row is higher; 1/2 if the utility says nothing of which is which.
        ceiling: the same of the data's own density, estimated by kernels from the other rows.
        rank_correlation: Spearman's, of the utility with that density, over draws from λ.
        level_set: the share of the data within the tenth of λ that the utility puts highest.
        level_set_ceiling: the same of the data's own density.
    """

    rows: int
    auc: Interval
    ceiling: float
    rank_correlation: Interval
    level_set: Interval
    level_set_ceiling: float
