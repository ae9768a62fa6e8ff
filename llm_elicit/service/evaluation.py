"""What is computed of a run for a request: tables, samples, densities. In a worker's process."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from llm_elicit._util.sanitize import visible
from llm_elicit.errors import InputError
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

Format = Literal["json", "parquet"]

Points = Sequence[Sequence[float | str] | Mapping[str, float | str]]
"""Points as lists in the order of the features, or as values by feature; categories as words."""


def table(folder: Path, path: Path) -> Path:
    """Write the judgments so far to a file, whose suffix gives the format."""
    return stages.export(Run.open(folder), path)


def rows(folder: Path, offset: int, limit: int) -> bytes:
    """Return some of the judgments as JSON."""
    frame = Run.open(folder).comparisons.frame
    page = frame.iloc[offset : offset + limit]
    kept = page.to_json(orient="records", force_ascii=False, double_precision=15)
    return b'{"total": %d, "offset": %d, "rows": %s}' % (len(frame), offset, kept.encode())


def audit(folder: Path) -> bytes:
    """Return the numbers of the report as JSON."""
    return Run.open(folder).audit.model_dump_json().encode()


def marginals(folder: Path, judge: str) -> list[dict[str, Any]]:
    """Return the mean, the quantiles or the shares of every feature under a belief."""
    run = Run.open(folder)
    belief = _belief(run, judge)
    found = []
    for number, feature in enumerate(run.space.features):
        marginal = belief.marginal(number)
        line: dict[str, Any] = {
            "feature": feature.name,
            "label": feature.label,
            "unit": feature.unit,
            "kind": feature.kind,
        }
        if feature.categories:
            line["shares"] = _shares(belief, number, feature)
        else:
            levels = {f"{level:g}": value for level, value in marginal.quantiles.items()}
            line |= {"mean": marginal.mean, "sd": marginal.sd, "quantiles": levels}
        found.append(line)
    return found


def samples(folder: Path, judge: str, n: int, seed: int, form: Format) -> bytes:
    """Return points drawn from a belief, with the words of categories."""
    run = Run.open(folder)
    points = _belief(run, judge).sample(n, seed=seed)
    columns = {
        feature.name: _worded(points[:, number], feature)
        for number, feature in enumerate(run.space.features)
    }
    return _written(pd.DataFrame(columns), form)


def log_prob(folder: Path, judge: str, points: Points, form: Format) -> bytes:
    """Return the log densities of points under a belief, nats; null outside the support."""
    run = Run.open(folder)
    belief = _belief(run, judge)
    found = belief.log_prob(_read_points(points, run.space))
    if form == "json":
        values = [float(value) if np.isfinite(value) else None for value in found]
        return json.dumps({"log_prob": values}).encode()
    return _written(pd.DataFrame({"log_prob": found}), form)


def _belief(run: Run, judge: str) -> Any:
    """Return a judge's belief.

    Raises:
        InputError: it has none.
    """
    if judge not in run.beliefs:
        known = ", ".join(run.beliefs) or "none yet"
        raise InputError(f"{run.campaign.name}: no belief of {judge[:80]!r}; there are {known}")
    return run.beliefs[judge]


def _shares(belief: Any, number: int, feature: Feature) -> dict[str, float]:
    codes = belief.sample(10_000, seed=0)[:, number]
    counts = np.bincount(codes.astype(int), minlength=len(feature.categories))
    return dict(zip(feature.categories, (counts / counts.sum()).tolist(), strict=True))


def _worded(column: Floats, feature: Feature) -> Any:
    if not feature.categories:
        return column
    return np.array(feature.categories)[column.astype(int)]


def _written(frame: pd.DataFrame, form: Format) -> bytes:
    if form == "json":
        data = frame.astype(object).to_numpy().tolist()  # pandas would round numbers
        return json.dumps({"columns": list(frame.columns), "data": data}).encode()
    written = io.BytesIO()
    frame.to_parquet(written)
    return written.getvalue()


def _read_points(points: Points, space: FeatureSpace) -> Floats:
    """Return points as an array.

    Raises:
        InputError: one lacks a feature, or has a value that its feature cannot have.
    """
    read = np.empty((len(points), space.dimension))
    for row, point in enumerate(points):
        values = _in_order(point, space.names, row)
        for number, (feature, value) in enumerate(zip(space.features, values, strict=True)):
            read[row, number] = _value(feature, value, row)
    return read


def _in_order(
    point: Sequence[float | str] | Mapping[str, float | str], names: list[str], row: int
) -> list[float | str]:
    given = list(point) if isinstance(point, Mapping) else names[: len(point)]
    if sorted(given) != sorted(names) or len(point) != len(names):
        raise InputError(
            f"points[{row}]: {len(point)} values, where each of {', '.join(names)} has one"
        )
    return [point[name] for name in names] if isinstance(point, Mapping) else list(point)


def _value(feature: Feature, value: float | str, row: int) -> float:
    if isinstance(value, str) and (feature.categories or feature.kind == "date"):
        return feature.read(value)
    if not isinstance(value, str) and not feature.categories:
        return float(value)  # which may be outside the range
    shown = visible(repr(value), 60)
    expected = "a word" if feature.categories else "a number"
    raise InputError(f"points[{row}]: {feature.name} is {expected}, got {shown}")


def ready() -> None:
    """Import what a worker computes with, so that the first request is fast."""
    import_module("llm_elicit.density")
