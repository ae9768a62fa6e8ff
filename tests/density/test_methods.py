"""External methods: found by their entry points, and one clear error where they are not."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest

from llm_elicit.density import BeliefDensity, DensityError, FitSettings, Uniform, fit_belief
from llm_elicit.density import methods as module
from llm_elicit.density.belief import _digest
from llm_elicit.density.methods import (
    CORE_METHODS,
    ENTRY_POINT_GROUP,
    available_methods,
    external_method,
)
from tests.density.conftest import QUICK
from tests.density.targets import Array

LINE = Uniform([-1.0], [1.0])
ROOT = Path(__file__).parents[2]


def test_a_fit_to_arrays_calls_no_other_modules_than_contributing_lists(
    line_judge: tuple[Array, Array],
) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    path, others = text.split("**A fit**")[1].split("All of them use")
    listed = set(re.findall(r"`([\w/]+)`", path + others.split("which are not")[0]))
    called: set[str] = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_globals.get("__name__", "")))
    try:
        fit_belief(*line_judge, sampling=LINE, settings=QUICK).sample(9)
    finally:
        sys.setprofile(None)
    prefix = "llm_elicit.density."
    modules = {name.split(".")[-1] for name in called if name.startswith(prefix)}
    assert "smc" in modules < {name.split("/")[-1] for name in listed}


def _install(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    found = EntryPoints(
        EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in values.items()
    )
    monkeypatch.setattr(module, "entry_points", found.select)


def test_the_flow_of_the_benchmarks_is_installed_with_this_package() -> None:
    assert available_methods() == (*CORE_METHODS, "flow", "protocol")
    assert external_method("flow").fit.__name__ == "fit_flow"


def test_a_method_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, line_judge: tuple[Array, Array], tmp_path: Path
) -> None:
    belief = fit_belief(*line_judge, sampling=LINE, method="utility", settings=QUICK)
    belief.save(tmp_path)
    text = json.loads((tmp_path / "belief.json").read_text(encoding="utf-8"))
    text["model"] = "flow"
    del text["digest"]
    text["digest"] = _digest(text, tmp_path / "belief.safetensors")
    (tmp_path / "belief.json").write_text(json.dumps(text), encoding="utf-8")
    _install(monkeypatch)
    with pytest.raises(DensityError, match="'flow' is unknown; the methods are auto, score"):
        fit_belief(*line_judge, sampling=LINE, method="flow")
    with pytest.raises(DensityError, match="'flow' is not installed"):
        BeliefDensity.load(tmp_path)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no_such_module:METHOD", "cannot be imported"),
        ("llm_elicit.baselines.flow:NOTHING", "cannot be imported"),
        ("llm_elicit.baselines.flow:FlowSettings", "must be an ExternalMethod"),
    ],
)
def test_a_broken_entry_point_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    _install(monkeypatch, broken=value)
    with pytest.raises(DensityError, match=words):
        external_method("broken")


def test_settings_of_another_kind_are_refused() -> None:
    points = np.array([[0.1], [0.2], [0.3]])
    settings = FitSettings(external={"steps": 3})
    with pytest.raises(DensityError, match="the flow takes FlowSettings"):
        fit_belief(points, -points, sampling=LINE, method="flow", settings=settings)
