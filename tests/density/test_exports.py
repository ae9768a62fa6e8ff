"""A belief as arviz data, by the core alone; tests/comparisons/test_exports.py has the numbers."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from llm_elicit.density import BeliefDensity, DensityError, Uniform, fit_belief
from tests.density.targets import QUADRATIC

pytestmark = pytest.mark.usefixtures("few_particles")

BOX = Uniform([1.0, 0.0], [3.0, 9.0], categorical=[True, False])


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    rng = np.random.default_rng(0)
    a, b = BOX.sample(80, rng), BOX.sample(80, rng)
    first = (a[:, 0] - (a[:, 1] - 3) ** 2 > b[:, 0] - (b[:, 1] - 3) ** 2)[:, None]
    sides = np.where(first, a, b), np.where(first, b, a)
    return fit_belief(*sides, sampling=BOX, method="utility", settings=QUADRATIC)


def test_names_units_and_categories_are_the_belief_s_own(belief: BeliefDensity) -> None:
    pytest.importorskip("arviz")
    named = belief.named(["size", "mass"], {0: ["none", "small", "medium", "large"]})
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        tree = named.to_arviz(chains=2, draws=300, units=["", "kg"])
    assert not [each for each in raised if "llm_elicit" in each.filename]
    assert tree.posterior["feature"].to_numpy().tolist() == ["mass"]
    assert tree.posterior["unit"].to_numpy().tolist() == ["kg"]
    for group in (tree.posterior, tree.beliefs):
        shares = group["share_size"]
        assert shares["size_category"].to_numpy().tolist() == ["small", "medium", "large"]
        np.testing.assert_allclose(shares.sum("size_category"), 1.0)
    unnamed = belief.to_arviz(chains=1, draws=5)
    assert unnamed.posterior["share_x0"]["x0_category"].to_numpy().tolist() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"chains": 0}, "to_arviz: chains = 0"),
        ({"draws": 2.5}, "to_arviz: draws = 2.5"),
        ({"units": ["kg"]}, "1 units for 2 features"),
    ],
)
def test_errors_are_one_line(
    belief: BeliefDensity, arguments: dict[str, object], said: str
) -> None:
    with pytest.raises(DensityError, match=said):
        belief.to_arviz(**arguments)  # type: ignore[arg-type]


def test_a_missing_package_is_named(belief: BeliefDensity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(DensityError, match=r"arviz is not installed; run: pip install"):
        belief.to_arviz()
