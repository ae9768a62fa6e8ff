"""A campaign: the questions, the judges, the limits, and how beliefs are fitted.

A campaign is one YAML file, read into frozen pydantic models. Settings that change a question or
an answer are part of its identity (`identity_of`). Speed, retries and limits are
not, so they can be changed before a run is resumed.

A grid is one campaign that defines several, a cell for each space, template and condition. All
judges, temperatures and efforts are in every cell, where they are asked the same pairs. A cell is a
campaign like any other, with its own run folder, journal and report.

A run can be resumed only with the identity that it was started with. An identity is a mapping of
texts, so that a journal can store it and a message can name the part that differs. Only parts that
both identities have are compared: judges and direct questions can be added. Caps, speed, retries,
prices, the fit and the source of a feature space are not part of it. Its reference table and the
names of its columns can be mended at any time, too, unless the pairs were drawn from the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from llm_elicit._util import files
from llm_elicit._util.settings import (
    DatabaseAddress,
    NoiseLevel,
    Positive,
    Seed,
    StrictModel,
    distinct,
    read_yaml,
    validate,
)
from llm_elicit.config.design import Design, Direct
from llm_elicit.config.judges import HumanJudge, Judge, Name, controls_among
from llm_elicit.config.profiles import Effort
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

_SHOWN = 60
_FEATURE = "feature number "
"""What the name of a feature's part begins with."""


class Limits(StrictModel):
    """Caps of a run. They are not part of a campaign's identity.

    Attributes:
        max_cost: USD over all resumes.
        max_tokens: tokens over all resumes.
        deadline: seconds of asking, each time that the run is resumed.
        unusable: answers after which a judge is stopped if hardly any is usable (at most one in
            twenty), since a setting is at fault; None for never.
    """

    max_cost: Positive | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    deadline: Positive | None = None
    unusable: Annotated[int, Field(ge=1)] | None = 10


Method = Literal["auto", "score", "score-constant", "utility", "flow"]


class Fit(StrictModel):
    """How beliefs are estimated.

    Attributes:
        methods: the first gives the belief; the others are fitted for comparison. With one,
            `method: utility` is short for `methods: [utility]`.
        noise: family of the noise of choices.
        noise_level: its level; that of Bradley-Terry, or 1, by default.
        samples: points drawn from each belief.
        position_effect: "averaged" merges the orders and replicates of a pair into one
            comparison, in which the position effect cancels; "estimated" fits every judgment, and
            the position effect and the tie rate together with the belief.
    """

    methods: Annotated[tuple[Method, ...], Field(min_length=1)] = ("utility",)
    noise: Literal["gumbel", "exponential", "normal"] = "gumbel"
    noise_level: NoiseLevel | None = None
    samples: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    position_effect: Literal["averaged", "estimated"] = "averaged"

    @model_validator(mode="before")
    @classmethod
    def _accept_single_method(cls, data: Any) -> Any:
        """Read `method: score` as `methods: [score]`."""
        if isinstance(data, dict) and "method" in data and "methods" not in data:
            data = {**data, "methods": [data["method"]]}
            del data["method"]
        return data

    _differ = field_validator("methods")(distinct)

    @model_validator(mode="after")
    def _methods_know_orders(self) -> Fit:
        bound = [method for method in self.methods if method not in ("utility", "auto")]
        if self.position_effect == "estimated" and bound:
            raise ValueError(
                "position_effect: estimated works only with methods utility and auto, because "
                f"{bound[0]!r} uses no positions; remove the setting or the method"
            )
        return self


Given = dict[str, str | float]
"""A condition: values of features by name, as numbers in natural units or as categories."""


class Grid(StrictModel):
    """The axes of a study; every combination is a campaign of its own, see `cells`.

    Attributes:
        spaces: feature spaces, by name or path.
        templates: templates of questions about pairs.
        temperatures: values of `temperature` of the judges, which must not set it themselves.
        efforts: values of `effort` of the judges.
        thinking_tokens: values of `thinking_tokens` of the judges.
        given: conditions, as `Campaign.given`. Beliefs of one judge under several conditions on
            the same features are fitted together, with one part that all of them share.
    """

    spaces: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    temperatures: tuple[Annotated[float, Field(ge=0, le=2)], ...] = ()
    efforts: tuple[Effort, ...] = ()
    thinking_tokens: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] = ()
    given: tuple[Given, ...] = Field(default=(), exclude_if=lambda conditions: not conditions)

    _differ = field_validator("temperatures", "efforts", "thinking_tokens")(distinct)

    @field_validator("given")
    @classmethod
    def _same_features(cls, conditions: tuple[Given, ...]) -> tuple[Given, ...]:
        for condition in conditions:
            if not condition or condition.keys() != conditions[0].keys():
                raise ValueError(
                    f"{condition or 'no value'}: all conditions must fix the same features; put "
                    "the others into another campaign"
                )
        return conditions


class RepeatOf(StrictModel):
    """The run that a campaign repeats, and the first one of the series."""

    run: Name
    first: Name


class Campaign(StrictModel):
    """One study, ready to run.

    Attributes:
        name: the name of the campaign and of its run's folder.
        space: the feature space, by name or path.
        given: values of features that all questions share; the belief is conditional on them.
        seed: seed of all random numbers of the run.
        design: the questions about pairs.
        direct: the direct questions, if any.
        pilot: the templates that `llm-elicit pilot` compares; by default all templates of
            questions about pairs.
        judges: the models and experts that are asked.
        fit: how beliefs are estimated.
        limits: caps on cost, tokens and time.
        require: `log_odds` to stop a judge at its first answer without log-probabilities; by
            default its answers are used as choices.
        runs: the folder of the runs.
        journal: a PostgreSQL database in place of a file in the run's folder.
        grid: the axes of a grid, of which each cell is a campaign.
        part_of: the grid that this campaign is a cell of.
        repeat_of: the run whose questions it asks again, see `llm_elicit.pipeline.repeats`.

    Examples:
        >>> campaign = Campaign.load("california")
        >>> [judge.name for judge in campaign.judges]
        ['smollm2', 'census-expert']
    """

    name: Name
    space: str
    given: Given = Field(default={}, exclude_if=lambda values: not values)
    seed: Seed = 1
    design: Design = Design()
    direct: Direct | None = None
    pilot: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    judges: Annotated[tuple[Judge, ...], Field(min_length=1)]
    fit: Fit = Fit()
    limits: Limits = Limits()
    require: Literal["log_odds"] | None = None
    runs: Path = Path("runs")
    journal: DatabaseAddress | None = None
    grid: Grid | None = None
    part_of: Name | None = None
    repeat_of: RepeatOf | None = Field(default=None, exclude_if=lambda link: link is None)

    @model_validator(mode="before")
    @classmethod
    def _take_space_of_grid(cls, data: Any) -> Any:
        """Take the first of the grid's feature spaces as `space`, which a grid leaves out."""
        grid = data.get("grid") if isinstance(data, dict) else None
        spaces = grid.get("spaces") if isinstance(grid, dict) else None
        if not spaces or not isinstance(spaces, list | tuple):
            return data
        if data.get("space", spaces[0]) not in spaces:
            raise ValueError("`space` is not among grid.spaces; remove `space`")
        return {**data, "space": data.get("space", spaces[0])}

    @property
    def controls(self) -> frozenset[str]:
        """The names of `controls_among` the judges.

        Examples:
            >>> Campaign.load("demo").controls, Campaign.load("simulated").controls
            (frozenset({'random-numbers'}), frozenset())
        """
        return frozenset(judge.name for judge in controls_among(self.judges))

    _differ = field_validator("pilot")(distinct)

    @field_validator("judges")
    @classmethod
    def _seed_simulated_judges(cls, judges: tuple[Judge, ...], info: ValidationInfo) -> Any:
        """Give every simulated judge a seed."""
        return tuple(judge.seeded(info.data.get("seed", 0)) for judge in judges)

    @model_validator(mode="after")
    def _settings_suit_each_other(self) -> Campaign:
        methods = [m for m in self.fit.methods if m not in ("utility", "auto")]
        if self.design.rounds is not None and methods:
            raise ValueError(
                f"fit: method {methods[0]!r} needs pairs drawn independently from λ, but adaptive "
                "rounds choose pairs by earlier answers; use utility or auto, or leave out "
                "design.rounds"
            )
        if self.design.sampling == "empirical" and methods:
            raise ValueError(
                f"fit: method {methods[0]!r} needs the exact density λ, which sampling: empirical "
                "only estimates; use utility or auto, or sampling: uniform"
            )
        askable = [judge.name for judge in self.judges if judge.backend != "imported"]
        if self.imported and askable:
            raise ValueError(
                f"judges: {askable[0]!r} cannot be asked in a run of imported judgments; ask it in "
                "a campaign of its own, and compare the two runs"
            )
        names = [judge.name for judge in self.judges]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"judges: the name {duplicates[0]!r} appears twice; names must differ")
        if self.people and self.direct is not None:
            raise ValueError(
                f"direct: judge {next(iter(self.people))!r} has backend: human, and people only "
                "compare two points; remove `direct`, or ask people in a separate campaign"
            )
        facets, grid = self.design.presentations, self.grid
        if grid is not None and grid.templates and facets is not None and facets.wordings:
            raise ValueError(
                "grid.templates and design.presentations.wordings both name templates; remove one "
                "of them"
            )
        for judge in self.judges if self.require else ():
            if judge.choices_only:
                raise ValueError(
                    f"require: log_odds: judge {judge.name!r} gives choices without log-odds "
                    f"({judge.choices_only}); remove the judge, or `require`"
                )
        return self

    @classmethod
    def load(cls, name: str | Path) -> Campaign:
        """Read a campaign by path, or by its name in examples/.

        Raises:
            InputError: no such file, a feature space, or the first key that breaks a rule.
        """
        path = files.find("examples", str(name), ".yaml")
        data = read_yaml(path)
        if "features" in data and "judges" not in data:
            raise InputError(
                f"{path}: this is a feature space; name it as `space:` in the file of a campaign"
            )
        return validate(cls, data, str(path))

    @property
    def people(self) -> dict[str, HumanJudge]:
        """The judges that are people, by name."""
        people = [judge for judge in self.judges if judge.backend == "human"]
        return {judge.name: cast(HumanJudge, judge) for judge in people}

    @property
    def imported(self) -> bool:
        """Whether the judgments were imported, so that no judge can be asked."""
        return any(judge.backend == "imported" for judge in self.judges)

    @property
    def aliases(self) -> dict[str, str]:
        """The alias of each judge that is a model, see `BaseJudge.alias`."""
        return {j.name: j.alias for j in self.judges if j.name not in self.people}

    @property
    def folder(self) -> Path:
        """The folder of this campaign's run."""
        return self.runs / self.name

    def shareable(self) -> dict[str, Any]:
        """Return the settings as JSON data for publication, without folders of this machine.

        Examples:
            >>> campaign = Campaign.load("simulated").model_copy(update={"space": "/me/mine.yaml"})
            >>> campaign.shareable()["space"], "runs" in campaign.shareable()
            ('mine.yaml', False)
        """
        settings = self.model_dump(mode="json", exclude={"runs"})
        for judge, judge_settings in zip(self.judges, settings["judges"], strict=True):
            if "model" in judge_settings:
                judge_settings["model"] = judge.model_name
        return {key: _without_folders(value) for key, value in settings.items()}

    def load_space(self) -> FeatureSpace:
        """Read the feature space of this campaign, conditional on `given`.

        Raises:
            InputError: it cannot be read, it has no such value as is given, or a method of the fit
                does not support categories.
        """
        space = FeatureSpace.load(self.space).conditional(self.given)
        space = space.with_sampling(self.design.sampling)
        facets = self.design.presentations
        if facets is not None and facets.digits:
            space = space.with_digits(max(facets.digits))
        methods = [method for method in self.fit.methods if method not in ("utility", "auto")]
        if methods and space.categorical.any():
            name = space.names[int(space.categorical.argmax())]
            raise InputError(
                f"fit: method {methods[0]!r} supports only numbers, but {name} of {space.name} is "
                "categorical; use utility or auto"
            )
        if methods and (space.periodic.any() or space.density_constraints):
            kind = "constraints" if space.density_constraints else "a periodic feature"
            raise InputError(
                f"fit: method {methods[0]!r} supports only non-periodic numbers without "
                f"constraints, but {space.name} has {kind}; use utility or auto"
            )
        if "flow" in methods and find_spec("zuko") is None:
            raise InputError("fit: method 'flow' needs zuko; run: pip install 'llm-elicit[flow]'")
        return space


def _without_folders(value: Any) -> Any:
    """Return JSON data with the names of files in place of absolute paths."""
    if isinstance(value, dict):
        return {key: _without_folders(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_folders(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


_Axis = list[tuple[str | None, dict[str, Any]]]
"""The values of an axis of a grid: a word for the name of a cell, and the settings."""


def cells(campaign: Campaign) -> tuple[Campaign, ...]:
    """Return the campaigns of a grid, ordered by feature space; without a grid, the campaign.

    The pairs of a cell follow from its feature space, the design and the seed, so every template,
    temperature and judge of a space is asked the same ones. A cell is named by the grid and its
    value on each axis, so its name does not change when values are added.

    Raises:
        InputError: two cells would have one name, or a judge takes no temperature.

    Examples:
        >>> study = Campaign.model_validate({
        ...     "name": "study", "judges": [{"name": "gpt", "backend": "openai", "model": "m"}],
        ...     "grid": {"spaces": ["penguins"], "templates": ["v1/zero-shot", "v1/few-shot"],
        ...              "temperatures": [0, 0.7]}})
        >>> [cell.name for cell in cells(study)]
        ['study.penguins.v1-zero-shot', 'study.penguins.v1-few-shot']
        >>> [judge.name for judge in cells(study)[0].judges]
        ['gpt-t0', 'gpt-t0.7']
    """
    grid = campaign.grid
    if grid is None:
        return (campaign,)
    data = campaign.model_dump(mode="json", exclude={"grid", "judges"}, exclude_unset=True)
    data["judges"] = [v for judge in campaign.judges for v in _variants(judge, grid)]
    unchanged: _Axis = [(None, {})]
    spaces: _Axis = [(axis_word(name), {"space": name}) for name in grid.spaces]
    templates: _Axis = [
        (axis_word(name), {"design": {**data.get("design", {}), "template": name}})
        for name in grid.templates
    ]
    conditions: _Axis = [
        ("-".join(axis_word(str(value)) for value in given.values()), {"given": given})
        for given in grid.given
    ]
    campaigns = []
    for axes in product(spaces or unchanged, templates or unchanged, conditions or unchanged):
        words = [word for word, _ in axes if word is not None]
        part = {"part_of": campaign.name} if words else {}
        cell = {**data, **axes[0][1], **axes[1][1], **axes[2][1], **part}
        cell["name"] = ".".join([campaign.name, *words])
        campaigns.append(validate(Campaign, cell, f"grid {campaign.name}"))
    names = [cell.name for cell in campaigns]
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise InputError(
            f"grid: two cells would be called {duplicates[0]!r}; list each space, template and "
            "condition once, and rename files that share a name"
        )
    return tuple(campaigns)


def axis_word(axis: str) -> str:
    """Return a space's or template's name, or a file's stem, as a part of a folder's name."""
    name = Path(axis).stem if axis.endswith((".yaml", ".md")) else axis
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")


_JUDGE_AXES = {
    "temperatures": ("temperature", "t"),
    "efforts": ("effort", ""),
    "thinking_tokens": ("thinking_tokens", "thinking"),
}
"""A setting of judges by axis of a grid, and what stands before its value in a judge's name."""


def _variants(judge: Judge, grid: Grid) -> list[dict[str, Any]]:
    """Return the settings of a judge with each combination of values, which extend its name."""
    variants = [judge.model_dump(mode="json", exclude_unset=True)]
    for axis, (setting, prefix) in _JUDGE_AXES.items():
        values = getattr(grid, axis)
        if not values:
            continue
        if setting not in type(judge).model_fields:
            raise InputError(
                f"grid.{axis}: judge {judge.name!r} ({judge.backend}) does not support "
                f"{setting}; move it to another campaign, or leave {axis} out"
            )
        if setting in judge.model_fields_set:
            raise InputError(f"grid.{axis}: judge {judge.name!r} sets its own {setting}; remove it")
        words = [value if isinstance(value, str) else f"{value:g}" for value in values]
        variants = [
            {**variant, "name": f"{variant['name']}-{prefix}{word}", setting: value}
            for variant in variants
            for value, word in zip(values, words, strict=True)
        ]
    return variants


def identity_of(
    campaign: Campaign, space: FeatureSpace, words: Collection[str] = ()
) -> dict[str, str]:
    """Return the identity of a campaign: its questions and its judges.

    Args:
        campaign: the campaign.
        space: its feature space.
        words: the variables that its templates show.

    Examples:
        >>> campaign = Campaign.load("simulated")
        >>> identity_of(campaign, campaign.load_space())["seed"]
        '1'
    """
    about: dict[str, Any] = {"features": [feature.label for feature in space.features]}
    about |= {name: getattr(space, name) for name in ("subject", "setting")}
    if space.table and space.sampling == "empirical":  # the pairs are drawn from it
        about["table"] = {
            "sha256": space.table.sha256,
            "columns": space.table.columns,
            **space.table.model_dump(mode="json", include={"dialect", "words", "dates"}),
        }
    features = {
        f"{_FEATURE}{number}": feature.model_dump(
            mode="json", exclude_defaults=True, exclude={"note", "units"}
        )
        for number, feature in enumerate(space.features, 1)
    }
    judges = {f"judge {judge.name}": judge.identity() for judge in campaign.judges}
    parts = {"seed": campaign.seed, "design": campaign.design.identity(), **features}
    parts |= {"space": about, **judges}
    if "title" in words:
        parts["title"] = space.title
    return {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}


def check_same(stored: Mapping[str, str], identity: Mapping[str, str], folder: Path) -> None:
    """Check that a run is resumed with the identity that it was started with.

    Args:
        stored: the recorded identity; empty if unknown.
        identity: the present identity.
        folder: the run's folder, for the message.

    Raises:
        InputError: they differ; the message names the first part that does, and the way out.
    """
    for name, value in identity.items():
        if stored.get(name, value) == value:
            continue
        recorded, present = _read(stored[name]), _read(value)
        if name.startswith(_FEATURE) and isinstance(recorded, dict):
            # Its name is that of a column, which no question shows.
            recorded["name"] = present["name"]
            line = _difference(f"feature {present['name']}", recorded, present)
        else:  # if only its text differs, a file may be damaged
            text_differs = f"the text of its {name} differs"
            line = _difference(name, recorded, present) or text_differs
        if line is not None:
            raise InputError(
                f"{folder}: this folder holds the run of another campaign ({line}); undo that "
                "change, or give this campaign another name"
            )


def _difference(name: str, recorded: Any, present: Any) -> str | None:
    """Return the first difference between two values of a part; None if they are equal."""
    if recorded == present:
        return None
    if isinstance(recorded, dict) and isinstance(present, dict):
        fields = recorded | present
        lines = (_difference(f"{name}.{f}", recorded.get(f), present.get(f)) for f in fields)
        return next(filter(None, lines), None)
    return f"its {name} differs: {_shown(recorded)} before, {_shown(present)} now"


def _read(text: str) -> Any:
    """Parse a part from its text; digests stay texts."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _shown(value: Any) -> str:
    """Return a value for a message, shortened if it is long."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
