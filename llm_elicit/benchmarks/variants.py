"""Named settings of a fit: one for each correction to the paper's method and for each option.

To add one, add a line to `VARIANTS`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from llm_elicit.benchmarks.job import DEFAULT
from llm_elicit.density import FitSettings, ScoreSettings, TrainingSettings, UtilitySettings
from llm_elicit.density.fit import METHODS
from llm_elicit.errors import InputError


@dataclass(frozen=True)
class Variant:
    """A method with settings of its own.

    Attributes:
        method: as in `fit_belief`.
        settings: everything else that shapes the fit.
        about: what differs from the default, in a few words.
    """

    method: str
    settings: FitSettings
    about: str

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with any setting."""
        text = json.dumps([self.method, asdict(self.settings)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _score(about: str, **changes: object) -> Variant:
    settings = FitSettings(score=ScoreSettings(**changes))  # type: ignore[arg-type]
    return Variant("score", settings, about)


VARIANTS = {
    "score": _score("the default"),
    "winners": _score("de-temper the winners alone, by τ(x), as the paper does", side="winners"),
    "no-cap": _score("the tempering field without its bound", cap_quantile=1.0),
    "cap-90": _score("the tempering field bounded at its 90 % quantile", cap_quantile=0.9),
    "sharp": _score("sampling ends at a quarter of the noise", smoothing=0.0125),
    "joint-half": _score("half of the training on pairs", training=TrainingSettings(joint=0.5)),
    "joint-none": _score("no training on pairs", training=TrainingSettings(joint=0.0)),
    "constant": Variant("score-constant", FitSettings(), "one constant τ*"),
    "utility": Variant("utility", FitSettings(), "the utility alone, no diffusion"),
    "utility-2": Variant("utility", FitSettings(UtilitySettings(folds=2)), "an ensemble of two"),
}


def variant(method: str, name: str = DEFAULT) -> Variant:
    """The variant of this name, or the method with its default settings.

    Example:
        >>> variant("utility").settings == FitSettings()
        True
    """
    return Variant(method, FitSettings(), "the default") if name == DEFAULT else VARIANTS[name]


def check_methods(names: Iterable[str]) -> list[str]:
    """The names, if the density core has them all.

    Raises:
        InputError: a method is unknown.
    """
    return _check(names, METHODS, "method")


def check_variants(names: Iterable[str]) -> list[str]:
    """The names, if there are such variants.

    Raises:
        InputError: a variant is unknown.
    """
    return _check(names, VARIANTS, "variant")


def _check(names: Iterable[str], known: Iterable[str], kind: str) -> list[str]:
    found, choices = list(names), list(known)
    for name in found:
        if name not in choices:
            raise InputError(f"{kind} {name!r} is unknown; choose from {', '.join(choices)}")
    return found
