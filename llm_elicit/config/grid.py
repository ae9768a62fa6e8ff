"""A grid: one campaign that defines several, a cell for each space, template and condition.

All judges and temperatures are in every cell, where they are asked the same pairs. A cell is a
campaign like any other, with its own run folder, journal and report.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

from llm_elicit.config.base_model import validated
from llm_elicit.config.campaign import Campaign, Given
from llm_elicit.config.judges import Judge
from llm_elicit.errors import InputError


def cells(campaign: Campaign) -> tuple[Campaign, ...]:
    """Return the campaigns of a grid, ordered by feature space; without a grid, the campaign.

    The pairs of a cell follow from its feature space, the design and the seed, so every template,
    temperature and judge of a space is asked the same ones. A cell is named by the grid and its
    value on each axis, so its name does not change when values are added.

    Raises:
        InputError: two cells would have one name, or a judge takes no temperature.

    Example:
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
    data["judges"] = [one for judge in campaign.judges for one in _by_temperature(judge, campaign)]
    made = [
        _cell(data, space, template, given)
        for space, template, given in product(
            grid.spaces or (None,), grid.templates or (None,), grid.given or (None,)
        )
    ]
    names = [cell.name for cell in made]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(
            f"grid: two cells would be called {twice[0]!r}; name each space, template and "
            "condition once, and give files of one name other names"
        )
    return tuple(made)


def _cell(
    data: dict[str, Any], space: str | None, template: str | None, given: Given | None
) -> Campaign:
    """Return one cell; its name has no part for an axis that the grid leaves out."""
    place = [axis_word(axis) for axis in (space, template) if axis is not None]
    if given is not None:
        place.append("-".join(axis_word(str(value)) for value in given.values()))
    cell = {**data, "name": ".".join([data["name"], *place])}
    if place:
        cell["part_of"] = data["name"]
    if space is not None:
        cell["space"] = space
    if template is not None:
        cell["design"] = {**data.get("design", {}), "template": template}
    if given is not None:
        cell["given"] = given
    return validated(Campaign, cell, f"grid {data['name']}")


def axis_word(axis: str) -> str:
    """Return a space's or template's name, or a file's stem, as a part of a folder's name."""
    name = Path(axis).stem if axis.endswith((".yaml", ".md")) else axis
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")


def _by_temperature(judge: Judge, campaign: Campaign) -> list[dict[str, Any]]:
    """Return the settings of a judge at every temperature, which is added to its name."""
    settings = judge.model_dump(mode="json", exclude_unset=True)
    temperatures = campaign.grid.temperatures if campaign.grid else ()
    if not temperatures:
        return [settings]
    if "temperature" not in type(judge).model_fields:
        raise InputError(
            f"grid.temperatures: judge {judge.name!r} ({judge.backend}) takes no temperature; put "
            "it into a campaign of its own, or leave the temperatures out"
        )
    if "temperature" in judge.model_fields_set:
        raise InputError(
            f"grid.temperatures: judge {judge.name!r} has a temperature of its own; remove it"
        )
    return [{**settings, "name": f"{judge.name}-t{t:g}", "temperature": t} for t in temperatures]
