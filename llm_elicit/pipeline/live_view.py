"""What is known of a run's beliefs while it asks, as it is written into the run's folder.

It needs none of the libraries that made it, so that a service reads it at once.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from llm_elicit._util.files import read_json
from llm_elicit._util.settings import StrictModel

LIVE = "live.json"
"""The file of the live view in a run's folder."""


class LiveInterval(StrictModel):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


class LiveShape(StrictModel):
    """A part of a chart: an SVG path, or a text, in CSS pixels.

    Attributes:
        kind: "data", "sampling", "band", "belief" or "axis"; determines its colour.
        path: its outline; empty for a text.
        width: of its line; 0 if it is filled.
        text, x, y, angle: the text and the position of its middle (of its end, if rotated).
    """

    kind: str
    path: str = ""
    width: float = 0.0
    text: str = ""
    x: float = 0.0
    y: float = 0.0
    angle: float = 0.0


class LiveChart(StrictModel):
    """A chart of one feature.

    Attributes:
        title: the feature with its unit.
        words: the same in words.
        width, height: in CSS pixels.
        shapes: what is drawn.
    """

    title: str
    words: str
    width: int
    height: int
    shapes: tuple[LiveShape, ...]


class LiveFeature(StrictModel):
    """One feature of a judge's belief, and of the data.

    Densities are per unit of the feature's scale; of categories and of few whole numbers, shares.

    Attributes:
        name: the feature's name.
        shares: whether they are shares.
        at: values, natural units; of categories, their codes.
        belief: the belief at each of them.
        low, high: its 90 % band; empty for a method without one.
        data: the table; empty without one.
        chart: the chart.
    """

    name: str
    shares: bool
    at: tuple[float, ...]
    belief: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    data: tuple[float, ...] = ()
    chart: LiveChart


class LiveJudge(StrictModel):
    """One judge while it is asked; None where its answers do not allow a measurement yet.

    Attributes:
        judgments: answers so far.
        pairs: pairs with at least one choice.
        agreement: share of pairs asked in both orders whose answers pick the same point.
        retest: share of repeated questions answered alike.
        position_effect: P(option A) − 1/2 over pairs asked in both orders.
        features: the belief; empty without one.
        method: how it was estimated.
        used: the number of pairs of a quick fit; 0 if it is the run's own belief.
        reason: why there is no belief; empty if there is one.
    """

    judgments: int
    pairs: int
    agreement: LiveInterval | None = None
    retest: LiveInterval | None = None
    position_effect: LiveInterval | None = None
    features: tuple[LiveFeature, ...] = ()
    method: str = ""
    used: int = 0
    reason: str = ""


class LiveView(StrictModel):
    """What is known of a run's beliefs at one moment.

    Attributes:
        created: the UTC time, ISO 8601.
        data: whether there is a table to compare with.
        judges: the judges by name, in the campaign's order.
    """

    created: str
    data: bool
    judges: dict[str, LiveJudge] = Field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> LiveView | None:
        """Read the view in a run's folder; None before the first.

        Raises:
            InputError: the file was changed by hand.
        """
        path = folder / LIVE
        return read_json(path, cls.model_validate_json) if path.is_file() else None
