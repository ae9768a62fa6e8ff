"""What a fit foretells of choices it never saw, beside what it must beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_elicit.audit.consistency import Interval
from llm_elicit.config.base_model import StrictModel


class NullModel(StrictModel):
    """A model to beat: its log-likelihood, and by how much the belief beats it.

    Attributes:
        name: "coin"; "sampling density" (λ for a belief), where that is no coin; "places", where
            they were told; "quadratic".
        log_likelihood: nats a comparison.
        gain: the belief's less this one's, with its 95 % interval over pairs; None where the two
            were not paired, or are the same.
    """

    name: str
    log_likelihood: float
    gain: Interval | None = None


class CalibrationBin(StrictModel):
    """Held-out choices whose likelier side was foretold with about the same probability.

    Attributes:
        share: of all held-out choices.
        foretold: the mean probability.
        found: how often that side was chosen.
    """

    share: float
    foretold: float
    found: float


class Foretold(StrictModel):
    """How well choices held out of the fit are foretold.

    Attributes:
        log_likelihood: the belief's, nats a comparison.
        nulls: what it must beat.
        calibration: how often choices foretold with a probability came true.
        calibration_error: mean |found - foretold|.
    """

    log_likelihood: float
    nulls: list[NullModel]
    calibration: list[CalibrationBin]
    calibration_error: float


def read_foretold(diagnostics: Mapping[str, Any]) -> Foretold | None:
    """From what a fit says of itself; None where it says nothing of it (a flow)."""
    utility, nulls = diagnostics.get("utility"), diagnostics.get("null_models")
    if not utility or not nulls or "calibration" not in utility:
        return None
    told = "judging" in utility
    gains = {"places" if told else "coin": utility["gains"]["constant"]}
    if utility["form"] != "quadratic":
        gains["quadratic"] = utility["gains"]["quadratic"]
    coin, table = nulls["coin"], utility["calibration"]
    shown = {
        name: value
        for name, value in nulls.items()
        if (name != "places" or told) and (name != "sampling density" or abs(value - coin) > 1e-9)
    }
    return Foretold(
        log_likelihood=diagnostics["held_out_log_likelihood"],
        nulls=[
            NullModel(name=name, log_likelihood=value, gain=_interval(gains.get(name)))
            for name, value in shown.items()
        ],
        calibration=[CalibrationBin(**row) for row in table["bins"]],
        calibration_error=table["error"],
    )


def _interval(gain: Mapping[str, float] | None) -> Interval | None:
    if gain is None:
        return None
    mean, half = gain["mean"], 1.96 * gain["se"]
    return Interval(value=mean, low=mean - half, high=mean + half)
