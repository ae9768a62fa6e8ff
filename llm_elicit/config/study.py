"""A study: campaigns, and what is claimed of their judges before they are asked.

A study is one YAML file, which `llm_elicit.pipeline.registration` freezes. Its hypotheses have a
closed grammar, so that each can be decided by a test that every audit makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from llm_elicit._util.settings import StrictModel, distinct
from llm_elicit.config.campaign import Campaign, axis_word
from llm_elicit.config.judges import Name
from llm_elicit.errors import InputError, UnknownNameError
from llm_elicit.spaces.features import FeatureSpace

Claim = Literal[
    "consistent preference", "follows the data", "effect", "differs", "depends on the wording"
]
Sign = Literal["higher", "lower", "middle", "ends"]
Correction = Literal["holm", "none"]
Names = Annotated[tuple[str, ...], Field(min_length=1)]
Cell = tuple[Campaign, FeatureSpace]
"""A campaign of one run, and its feature space."""


class Hypothesis(StrictModel):
    """One hypothesis: a claim about one judge in one run.

    Attributes:
        run: the run's name.
        claim: what is said of the judge.
        judge: the judge.
        other: the judge that it differs from.
        feature, sign: the feature of an effect, and the values that are preferred.
        family: the name of a family of hypotheses, over which their p-values are adjusted.
    """

    run: str
    claim: Claim
    judge: str
    other: str | None = None
    feature: str | None = None
    sign: Sign | None = None
    family: str = "primary"

    def __str__(self) -> str:
        """Return the hypothesis as a sentence, without its run."""
        words = {
            "consistent preference": "has a consistent preference",
            "follows the data": "prefers what is frequent in the data",
            "effect": f"prefers {_values(self.feature, self.sign)}",
            "differs": f"has another belief than {self.other}",
            "depends on the wording": "depends on the wording",
        }
        return f"{self.judge} {words[self.claim]}"


def _values(feature: str | None, sign: str | None) -> str:
    """Return the preferred values of a feature in words."""
    values = {"middle": "the middle of", "ends": "the ends of"}.get(str(sign), str(sign))
    return f"{values} {feature}"


class Claims(StrictModel):
    """The hypotheses of one claim, for every judge and space named.

    Attributes:
        claim: what is said of each judge.
        judge: names of judges; `*` for all that are no controls.
        space: names of feature spaces, or of runs; `*` for all.
        other, feature, sign, family: as in `Hypothesis`.
    """

    claim: Claim
    judge: Names
    space: Names = ("*",)
    other: str | None = None
    feature: str | None = None
    sign: Sign | None = None
    family: Annotated[str, Field(min_length=1)] = "primary"

    _differ = field_validator("judge", "space")(distinct)

    @field_validator("judge", "space", mode="before")
    @classmethod
    def _accept_single_name(cls, value: Any) -> Any:
        """Read one name as a list of one."""
        return [value] if isinstance(value, str) else value

    def hypotheses(self, cells: Sequence[Cell]) -> Iterator[Hypothesis]:
        """Yield a hypothesis for every run and judge.

        Raises:
            InputError: a name is unknown, or a run cannot decide the claim.
        """
        keys = {"claim", "other", "feature", "sign", "family"}
        for campaign, space in (cell for name in self.space for cell in _cells_of(name, cells)):
            models = [j.name for j in campaign.judges if j.name not in campaign.controls]
            for judge in (j for name in self.judge for j in _judges_of(name, models, campaign)):
                self._check(judge, campaign, space)
                settings = self.model_dump(include=keys)
                yield Hypothesis(run=campaign.name, judge=judge, **settings)

    def _check(self, judge: str, campaign: Campaign, space: FeatureSpace) -> None:
        """Check that the run decides the claim.

        Raises:
            InputError: it does not; the message says why.
        """
        source = f"hypotheses: {self.claim}: {campaign.name}"
        for key, claim in (("other", "differs"), ("feature", "effect"), ("sign", "effect")):
            if (getattr(self, key) is not None) != (self.claim == claim):
                verb = "needs" if self.claim == claim else "takes no"
                raise InputError(f"{source}: {self.claim!r} {verb} `{key}`")
        if self.other is not None:
            if self.other == judge:
                raise InputError(f"{source}: {judge!r} is compared with itself; name another judge")
            _judges_of(self.other, [], campaign)
        if self.feature is not None:
            if self.feature not in space.names:
                raise UnknownNameError.of(source, "feature", self.feature, space.names)
            if space.names.index(self.feature) not in space.on_line:
                raise InputError(f"{source}: {self.feature} is no number, so it has no sign")
        if self.claim == "follows the data" and space.table is None:
            raise InputError(f"{source}: {space.name} has no table; leave this run out")
        if self.claim == "depends on the wording" and campaign.design.presentations is None:
            raise InputError(f"{source}: it has one wording; list several in design.presentations")


def _cells_of(name: str, cells: Sequence[Cell]) -> list[Cell]:
    """Return the runs of a space, or of this name.

    Raises:
        InputError: there is none, or a space has several.
    """
    if name == "*":
        return list(cells)
    by_name = [cell for cell in cells if cell[0].name == name]
    by_space = [cell for cell in cells if axis_word(cell[0].space) == axis_word(name)]
    if not by_name and len(by_space) > 1:
        runs = ", ".join(campaign.name for campaign, _ in by_space)
        raise InputError(f"hypotheses: several runs are of {name}: {runs}; name the run")
    if not by_name and not by_space:
        spaces = [axis_word(campaign.space) for campaign, _ in cells]
        raise UnknownNameError.of("hypotheses", "space", name, dict.fromkeys(spaces))
    return by_name or by_space


def _judges_of(name: str, models: Sequence[str], campaign: Campaign) -> Sequence[str]:
    """Return a judge of a run, or all that are no controls for `*`.

    Raises:
        UnknownNameError: the run has no judge of this name.
    """
    if name == "*":
        return models
    names = [judge.name for judge in campaign.judges]
    if name not in names:
        raise UnknownNameError.of(f"hypotheses: {campaign.name}", "judge", name, names)
    return [name]


class StudySettings(StrictModel):
    """The settings of a study in its YAML file.

    Attributes:
        name: the study's name.
        about: what is asked and why, and what else is fixed; for the page to deposit.
        campaigns: names or paths of campaigns, those of files beside the study first.
        alpha: the level of each family of hypotheses.
        correction: the adjustment within a family.
        models: the versions of each judge's model that may answer, with `*` for any part of a name.
            A judge without an entry may answer in any one version.
        hypotheses: the hypotheses.
    """

    name: Name
    about: str = ""
    campaigns: Names
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    correction: Correction = "holm"
    models: dict[str, Names] = Field(default_factory=dict)
    hypotheses: Annotated[tuple[Claims, ...], Field(min_length=1)]

    _differ = field_validator("campaigns")(distinct)

    @field_validator("models", mode="before")
    @classmethod
    def _accept_single_version(cls, value: Any) -> Any:
        """Read one version as a list of one."""
        if not isinstance(value, dict):
            return value
        return {name: [v] if isinstance(v, str) else v for name, v in value.items()}
