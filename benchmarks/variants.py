"""Named settings of a fit: one for each correction to the paper's method and for each option.

To add one, add a line to `VARIANTS`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import DEFAULT
from llm_elicit.baselines.protocol import CORRECTIONS, paper_protocol
from llm_elicit.density import FitSettings, MixtureSettings, ScoreSettings, UtilitySettings
from llm_elicit.errors import InputError


@dataclass(frozen=True)
class Variant:
    """A method with named settings.

    Attributes:
        method: as in `fit_belief`.
        about: the difference from the default, in a few words.
        settings_for: returns the settings for a number of features.
        slow: whether the ablation omits it by default.
    """

    method: str
    about: str
    settings_for: Callable[[int], FitSettings] = lambda _: FitSettings()
    slow: bool = False

    def digest(self, dimension: int) -> str:
        """Twelve hexadecimal digits that change with any setting of a fit of d features."""
        settings = asdict(self.settings_for(dimension))
        text = json.dumps([self.method, settings], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _score(about: str, **changes: Any) -> Variant:
    settings = FitSettings(score=ScoreSettings(**changes))
    return Variant("score", about, lambda _: settings)


def _utility(about: str, **changes: Any) -> Variant:
    settings = FitSettings(utility=UtilitySettings(**changes))
    return Variant("utility", about, lambda _: settings)


def _paper(about: str, *corrected: str) -> Variant:
    def settings_for(dimension: int) -> FitSettings:
        return FitSettings(external=paper_protocol(dimension, corrected))

    return Variant("protocol", about, settings_for, slow=True)


VARIANTS = {
    "score": Variant("score", "the default"),
    "constant": Variant("score-constant", "one constant instead of the field"),
    "two-networks": _score("two networks instead of five", networks=2),
    "wide": _score("twice the width", width=128),
    "long": _score("twice the steps", steps=2000),
    "utility": Variant("utility", "the utility alone, no diffusion"),
    "utility-no-mixture": _utility(
        "without mixtures among its forms", mixture=MixtureSettings(counts=())
    ),
    "utility-2": _utility("an ensemble of two", folds=2),
    "paper": _paper("the published protocol"),
    "paper+all": _paper("the published protocol, all corrected", *CORRECTIONS),
    **{
        f"paper+{name}": _paper(f"the published protocol, {name} corrected", name)
        for name in CORRECTIONS
    },
}


def variant(method: str, name: str = DEFAULT) -> Variant:
    """Return the variant of this name, or the method with its default settings.

    Examples:
        >>> variant("utility").settings_for(2) == FitSettings()
        True
    """
    return Variant(method, "the default") if name == DEFAULT else VARIANTS[name]


def check_names(names: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Refuse a name that is not among the known ones of this kind.

    Raises:
        InputError: a name is unknown.
    """
    choices = list(known)
    for name in names:
        if name not in choices:
            raise InputError(f"{kind} {name!r} is unknown; choose from {', '.join(choices)}")
