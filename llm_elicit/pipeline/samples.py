"""The points of a run's beliefs, of its data and of λ, as the stages after the fit read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from llm_elicit._util.files import read_json, read_parquet
from llm_elicit.audit import belief_power, summaries
from llm_elicit.errors import InputError
from llm_elicit.pipeline.run_folder import BANDS, DRAWS, POWERS, SAMPLES, Run
from llm_elicit.report.marginals import Samples
from llm_elicit.spaces.features import FeatureSpace, Floats

T = TypeVar("T")


def points_of_sampling(run: Run) -> Floats:
    """Return points of λ."""
    rng = np.random.default_rng([run.campaign.seed, 0xA0D17])
    return run.space.sample(run.campaign.fit.samples, rng)


def data_points(run: Run) -> Floats | None:
    """Return the points of the table, if there is one."""
    return run.space.table_points() if run.space.table else None


def read_samples(result: Run) -> Samples:
    """Read points of the data, of λ and of every judge's belief."""
    space, method = result.space, result.campaign.fit.methods[0]
    folders = {
        judge.name: result.belief_folder(judge.name, method) for judge in result.campaign.judges
    }

    def read(read_folder: Callable[[Path], T | None]) -> dict[str, T]:
        values = {name: read_folder(folder) for name, folder in folders.items()}
        return {name: value for name, value in values.items() if value is not None}

    return Samples(
        space=space,
        sampling=points_of_sampling(result),
        data=data_points(result),
        beliefs=read(lambda folder: read_points(folder, space)),
        bands=read(_read_bands),
        draws=read(lambda folder: summaries.read_draws(folder / DRAWS)),
        at_powers=read(lambda folder: belief_power.read_powers(folder / POWERS)),
    )


def read_points(folder: Path, space: FeatureSpace) -> Floats | None:
    """Read a belief's samples; None if it was not fitted."""
    path = folder / SAMPLES
    if not path.is_file():
        return None
    table = read_parquet(path, space.names)
    try:
        return space.points_of(table)
    except (InputError, ValueError, TypeError) as error:
        raise InputError(
            f"{path}: not all of its rows are points ({error}); run the fit again"
        ) from None


def _read_bands(folder: Path) -> summaries.BeliefBands | None:
    """Read a belief's bands; None if its method has none."""
    path = folder / BANDS
    if not path.is_file():
        return None
    return read_json(path, summaries.BeliefBands.model_validate_json)
