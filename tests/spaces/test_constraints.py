"""Constraints of a feature space: read from text, kept by points, table, fit and belief."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.fits import fit_quickly, report_quickly
from hypothesis import given
from hypothesis import strategies as st

import llm_elicit as le
from llm_elicit._util.settings import to_yaml, validate
from llm_elicit.errors import InputError
from llm_elicit.spaces.constraints import inequality
from llm_elicit.spaces.features import FeatureSpace

CALIFORNIA = [
    [-124.6, 42.1], [-119.8, 42.1], [-114.0, 35.0], [-114.0, 32.4], [-117.4, 32.4],
    [-118.7, 33.6], [-120.8, 34.3], [-122.7, 37.3], [-124.6, 40.3],
]  # fmt: skip


def _space(tmp_path: Path, constraints: list[Any]) -> FeatureSpace:
    rng = np.random.default_rng(0)
    low = rng.uniform(10, 90, 400)
    rows = [
        f"{a:.1f},{min(a + b, 99.9):.1f}" for a, b in zip(low, rng.exponential(9, 400), strict=True)
    ]
    rows[7] = "80.0,20.0"
    (tmp_path / "prices.csv").write_text("low_price,high_price\n" + "\n".join(rows) + "\n")
    return le.FeatureSpace.model_validate({
        "name": "prices", "title": "prices", "subject": "a share",
        "features": [
            {"name": "low_price", "label": "lowest price", "low": 0, "high": 100},
            {"name": "high_price", "label": "highest price", "low": 0, "high": 100},
        ],
        "constraints": constraints,
        "table": {
            "file": "prices.csv", "source": "made", "licence": "CC0", "rows": 400,
            "sha256": hashlib.sha256((tmp_path / "prices.csv").read_bytes()).hexdigest(),
        },
        "folder": str(tmp_path),
    })  # fmt: skip


@given(
    a=st.integers(-9, 9), b=st.integers(-9, 9), c=st.integers(-9, 9),
    x=st.floats(-5, 5), y=st.floats(-5, 5),
)  # fmt: skip
def test_a_text_is_the_inequality_that_python_evaluates(
    a: int, b: int, c: int, x: float, y: float
) -> None:
    text = f"{a} * x - y / 2 >= {b} * y - ({c} - x) * 3"
    terms = inequality(text)
    value = terms.get("x", 0.0) * x + terms.get("y", 0.0) * y + terms.get("", 0.0)
    left, right = a * x - y / 2, b * y - (c - x) * 3
    assert value == pytest.approx(right - left, abs=1e-9)


@pytest.mark.parametrize("sampling", ["uniform", "empirical"])
def test_points_and_rows_keep_the_constraint(tmp_path: Path, sampling: str) -> None:
    space = _space(tmp_path, ["low_price <= high_price"]).with_sampling(sampling)  # type: ignore[arg-type]
    drawn = space.sample(2000, np.random.default_rng(1))
    assert (drawn[:, 0] <= drawn[:, 1] + 1e-6).all()
    assert space.contains(drawn).all()
    if sampling == "uniform":  # uniform on the triangle: E low = 1/3, E high = 2/3
        np.testing.assert_allclose(drawn.mean(0), [100 / 3, 200 / 3], atol=2.0)
    points = space.table_points()
    assert len(points) == 399
    assert str(space.table_rows()) == "399 of 400 rows used: 1 outside the constraints"


def test_a_polygon_bounds_a_map() -> None:
    data = FeatureSpace.load("california_housing")
    region = {"features": ["Longitude", "Latitude"], "polygon": CALIFORNIA}
    space = FeatureSpace.model_validate(
        {**data.model_dump(), "folder": data.folder, "constraints": [region]}
    )
    drawn = space.sample(500, np.random.default_rng(0))
    assert space.contains(drawn).all()
    longitude, latitude = (space.names.index(name) for name in ("Longitude", "Latitude"))
    assert not ((drawn[:, longitude] < -121) & (drawn[:, latitude] < 34)).any()  # the ocean
    assert len(space.table_points()) > 0.95 * len(data.table_points())


def test_a_condition_is_substituted_into_the_constraints(tmp_path: Path) -> None:
    space = _space(tmp_path, ["low_price <= high_price"]).conditional({"high_price": 40})
    drawn = space.sample(500, np.random.default_rng(0))
    assert 30 < drawn.max() <= 40


def test_a_campaign_keeps_the_constraint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit_quickly(monkeypatch)
    report_quickly(monkeypatch)
    space = _space(tmp_path, ["low_price <= high_price"])
    path = tmp_path / "prices.yaml"
    path.write_text(to_yaml(space.model_dump(mode="json")), encoding="utf-8")
    campaign = le.Campaign.model_validate({
        "name": "prices", "space": str(path), "runs": str(tmp_path / "runs"),
        "design": {"pairs": 30, "rounds": {"count": 2}},
        "judges": [{"name": "expert", "backend": "simulated"}],
        "fit": {"method": "auto", "samples": 100},
    })  # fmt: skip
    run = le.run(campaign, progress=le.Silent())
    belief = run.beliefs["expert"]
    x = belief.sample(2000, seed=3)
    assert (x[:, 0] <= x[:, 1] + 1e-6).all()
    assert belief.log_prob([[80.0, 20.0]])[0] == -np.inf
    for side in (run.plan.a, run.plan.b):
        assert space.contains(side).all()


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ("low_price <= hihg_price", "no feature 'hihg_price'"),
        ("low_price * high_price <= 1", "not linear in the features"),
        ("low_price", "it is not a single inequality"),
        ("low_price == high_price", "neither <= nor >="),
        ("low_price <=", "invalid syntax"),
        ("__import__('os').system('x') <= 1", "not linear in the features"),
        ({"features": ["low_price", "high_price"], "polygon": [[0, 0], [1, 1]]}, "at least 3"),
        ({"features": ["low_price"] * 2, "polygon": [[0, 0], [1, 1], [1, 0]]}, "low_price alone"),
        ({"features": ["low_price", "high_price"], "polygon": [[0, 0], [1, 1], [1e999, 0]]}, "fin"),
        ("1 <= 2", "it names no feature; remove it"),
        ("low_price <= low_price", "it names no feature; remove it"),
        ("0 * low_price <= 5", "it names no feature; remove it"),
        ("1e999 * low_price <= high_price", "a number is too large"),
    ],
)
def test_what_is_no_constraint_is_refused(tmp_path: Path, constraint: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _space(tmp_path, [constraint])


def test_a_polygon_that_is_refused_says_why_in_its_line(tmp_path: Path) -> None:
    polygon = {"features": ["low_price"] * 2, "polygon": [[0, 0], [1, 1], [1, 0]]}
    data = {**_space(tmp_path, []).model_dump(mode="json"), "constraints": [polygon]}
    with pytest.raises(
        InputError, match=r"^s\.yaml: constraints\.0\.region\.features: a polygon on"
    ):
        validate(FeatureSpace, data, "s.yaml")


def test_constraints_that_hold_nowhere_are_refused(tmp_path: Path) -> None:
    space = _space(tmp_path, ["low_price + high_price >= 199.99"])
    with pytest.raises(InputError, match="almost no point"):
        space.sample(500, np.random.default_rng(0))
