"""What of an audit depends on the power of the utility that the belief is."""

from __future__ import annotations

from llm_elicit.audit.consistency import Interval
from llm_elicit.audit.distance import Estimate
from llm_elicit.strict import Strict


class SourcePower(Strict):
    """The power by one source, over the fitted utility's own; 90 % interval."""

    source: str
    value: float
    low: float
    high: float


class WidthResponse(Strict):
    """How the judge reacts to the width of ranges.

    Attributes:
        width: the coefficient of log-width in the log-odds, 95 % interval.
        expected: what the holder of a density who answers alike otherwise would have.
        p_value: of the test that the judge is one.
        coherent: whether that is not refused at 5 %.
    """

    width: Interval
    expected: float
    p_value: float
    coherent: bool


class PinnedPower(Strict):
    """The power that other answers than comparisons of points say.

    Attributes:
        value, low, high: over the fitted utility's own; 90 % interval.
        source: the sources, joined by " + ".
        sources: the powers by each alone.
        agreement: p-value of a test that they have one power in common; None of one source.
        coherence: how the judge reacts to width, where ranges were compared.
    """

    value: float
    low: float
    high: float
    source: str
    sources: tuple[SourcePower, ...]
    agreement: float | None
    coherence: WidthResponse | None


class AtPower(Strict):
    """A judge's belief at one power.

    Attributes:
        factor: the power over the saved belief's.
        belief_data: Wasserstein-1 to the data; None without data.
        log_density: mean log density of the data's rows, nats a row, per unit of each feature's
            standardized scale, so that λ's own can be set beside it; None without data.
        shifts: each feature's mean less the data's (λ's without data), in its standard
            deviations, on the feature's scale, in the order of the space; None of a categorical
            feature.
        widths: the same of standard deviations, as a ratio.
    """

    factor: float
    belief_data: Estimate | None
    log_density: float | None
    shifts: list[float | None]
    widths: list[float | None]


class Powers(Strict):
    """A judge's belief over a range of powers.

    Attributes:
        saved: the saved belief's power, over the fitted utility's own.
        source: where that comes from; "assumed noise level" or "convention" where nothing says.
        pinned: the power by other answers than comparisons of points, if there are any.
        data: the power at which the data are most likely, over the fitted utility's own; no
            property of the judge. None without data.
        rows: from the flattest belief to the sharpest.
        size: points on each side of the distances here.
        sampling_data: Wasserstein-1 of λ from the data at that size; None without data.
        sampling_log_density: mean log density of the data's rows under λ; None without data.
    """

    saved: float
    source: str
    pinned: PinnedPower | None
    data: SourcePower | None
    rows: list[AtPower]
    size: int
    sampling_data: Estimate | None
    sampling_log_density: float | None
