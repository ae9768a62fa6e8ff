"""What figures are drawn from: points of the data, of λ and of each judge's belief."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_elicit.audit.summary import BeliefBands
from llm_elicit.spaces.features import FeatureSpace, Floats


@dataclass(frozen=True)
class Samples:
    """Points in natural units, `(n, d)` each.

    Attributes:
        space: the feature space.
        sampling: draws from λ.
        data: the reference table's points, or None.
        beliefs: each judge's belief samples, by the judge's name.
        bands: the beliefs' credible bands, of those that have them.
        draws: points `(S, m, d)` of the densities that the answers allow, of judges that have them.
        at_powers: each judge's belief at other powers, by the factor of the saved belief's power.
    """

    space: FeatureSpace
    sampling: Floats
    data: Floats | None = None
    beliefs: Mapping[str, Floats] = field(default_factory=dict)
    bands: Mapping[str, BeliefBands] = field(default_factory=dict)
    draws: Mapping[str, Floats] = field(default_factory=dict)
    at_powers: Mapping[str, Mapping[float, Floats]] = field(default_factory=dict)

    def by_factor(self, judge: str) -> dict[float, Floats]:
        """Return a judge's belief by the factor of its power, rising; 1 is the saved belief."""
        found = {**self.at_powers.get(judge, {}), 1.0: self.beliefs[judge]}
        return dict(sorted(found.items()))
