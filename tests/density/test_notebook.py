"""The table that notebooks show of a belief: its numbers, escaped, at once."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from llm_elicit.density import (
    BeliefDensity,
    BeliefDraws,
    Uniform,
    band,
    fit_belief,
)
from llm_elicit.density.feature_axis import feature_axes
from llm_elicit.density.feature_names import FeatureNames
from llm_elicit.density.latent import make_latent
from llm_elicit.density.presentation import belief_html
from tests.density.targets import QUADRATIC

SCRIPT = "<script>alert(1)</script>"


class Table(HTMLParser):
    """Rows of cells by the feature's name, and all tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: dict[str, list[str]] = {}
        self._cells: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self._cells = []
        elif tag in ("td", "th") and self._cells is not None:
            self._cells.append("")
        elif tag == "br" and self._cells:
            self._cells[-1] += "|"

    def handle_data(self, data: str) -> None:
        if self._cells:
            self._cells[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr" and self._cells is not None:
            name, *cells = self._cells
            self.rows[name] = cells
            self._cells = None


def fitted(box: Uniform, n: int = 200) -> BeliefDensity:
    """A belief near the middle of the first half of every range."""
    rng = np.random.default_rng(0)
    a, b = box.sample(n, rng), box.sample(n, rng)
    first = (abs(box.to_cube(a) - 0.3).sum(1) < abs(box.to_cube(b) - 0.3).sum(1))[:, None]
    sides = np.where(first, a, b), np.where(first, b, a)
    return fit_belief(*sides, sampling=box, method="utility", settings=QUADRATIC)


BOX = Uniform(
    [0, 1, 0, 0, 0],
    [100, 1000, 2, 24, 3],
    log=[False, True, False, False, False],
    categorical=[False, False, True, False, False],
    periodic=[False, False, False, True, False],
    integer=[False, False, False, False, True],
)
NAMES = [SCRIPT, "income", "species", "hour", "size"]
WORDS = {2: ["<b>Adelie</b>", "Chinstrap", "Gentoo"], 4: ["small", "medium", "large", "huge"]}


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    return fitted(BOX).named(NAMES, WORDS)


def test_a_table_has_a_row_for_every_feature_with_its_numbers(belief: BeliefDensity) -> None:
    table = Table(belief._repr_html_())
    assert list(table.rows) == ["", *NAMES]
    mean, sd, *quantiles = table.rows[SCRIPT]
    assert float(mean) == pytest.approx(belief.mean()[0], abs=1.0)
    assert float(sd) == pytest.approx(belief.sd()[0], abs=1.0)
    found = belief.quantile([0.05, 0.5, 0.95])[:, 0]
    np.testing.assert_allclose([float(q) for q in quantiles], found, atol=1.0)
    assert table.rows["hour"][2:] == ["–"] * 3, "a circle has no quantiles"
    (shares,) = table.rows["species"]
    codes = belief._reference_points[:, 2]
    assert f"Chinstrap {(codes == 1).mean():.0%}" in shares
    assert "small" in table.rows["size"][0], "whole numbers with words are categories"


def test_what_was_measured_is_stated(belief: BeliefDensity) -> None:
    text = belief._repr_html_()
    held_out = f"{belief.diagnostics['held_out_log_likelihood']:.3f}".replace("-", "−")
    assert "method utility; 200 judgments" in text
    assert f"held-out log-likelihood {held_out} per comparison (random choices −0.693)" in text
    assert "given feature 3 = 3" in belief.given({"hour": 3.0})._repr_html_()
    assert "power 2" in belief.tempered(2.0)._repr_html_()


def test_everything_is_escaped_and_nothing_is_run(belief: BeliefDensity) -> None:
    text = belief._repr_html_()
    tags = set(Table(text).tags)
    assert tags <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "br", "small"}
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;Adelie" in text
    assert "color" not in text, "notebooks are light or dark"
    assert "\n" not in repr(belief.named(["a\nb", *NAMES[1:]]))


def test_bands_are_those_of_the_draws_once_these_were_made() -> None:
    belief = fitted(BOX).named(NAMES, WORDS)
    before = belief._repr_html_()
    assert "call draws() first" in before
    assert "|" not in Table(before).rows[SCRIPT][0]
    draws = belief.draws()
    table = Table(belief._repr_html_())
    low, high = band(draws.mean())
    ends = [float(end) for end in table.rows[SCRIPT][0].partition("|")[2].split(" to ")]
    np.testing.assert_allclose(ends, [low[0], high[0]], atol=1.0)
    share_low, share_high = band(draws.shares("species"))
    assert f"({share_low[1]:.0%} to {share_high[1]:.0%})" in table.rows["species"][0]
    first, last = (float(end) for end in table.rows["hour"][0].partition("|")[2].split(" to "))
    middle = float(table.rows["hour"][0].partition("|")[0])
    assert (middle - first) % 24.0 < (last - first) % 24.0, "a band may go over the end"


def test_a_circle_is_averaged_around_its_end() -> None:
    """Hours before and after midnight have their mean near it, not at noon."""
    box, rng = Uniform([0.0], [24.0], periodic=[True]), np.random.default_rng(0)
    a, b = box.sample(150, rng), box.sample(150, rng)
    first = np.cos(a / 24 * 2 * np.pi) > np.cos(b / 24 * 2 * np.pi)
    sides = np.where(first, a, b), np.where(first, b, a)
    belief = fit_belief(*sides, sampling=box, method="utility", settings=QUADRATIC)
    mean, sd, *_ = Table(belief._repr_html_()).rows["x0"]
    assert min(float(mean), 24.0 - float(mean)) < 2.0
    assert float(sd) < 5.0


def test_of_many_features_the_points_of_all_draws_are_sorted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d, rng = 20, np.random.default_rng(0)
    box = Uniform([0.0] * d, [1.0] * (d - 1) + [59.0], categorical=[False] * (d - 1) + [True])
    points, names = box.sample(8192, rng), FeatureNames.default(d)
    weights = tuple(rng.dirichlet(np.ones(8192), 64))
    latent = make_latent(box, points[:100])
    draws = BeliefDraws((points,) * 64, weights, latent, None, None, None)  # type: ignore[arg-type]
    axes = feature_axes(box, names, range(d), [points])
    argsort, sorted_arrays = np.argsort, []

    def count_sorts(values: np.ndarray, *arguments: Any, **options: Any) -> np.ndarray:
        sorted_arrays.append(values)
        return argsort(values, *arguments, **options)

    monkeypatch.setattr(np, "argsort", count_sorts)
    table = Table(belief_html(axes, points[:2048], draws, {}))
    assert 0 < len(sorted_arrays) < 10 < len(draws)
    assert len(table.rows) == d + 1
    assert "52 others" in table.rows["x19"][0]


@pytest.mark.parametrize("belief", ["moon_utility", "moon_score"])
def test_beliefs_with_and_without_draws_are_shown(
    belief: str, request: pytest.FixtureRequest
) -> None:
    belief = request.getfixturevalue(belief)
    assert len(Table(belief._repr_html_()).rows) == belief.dimension + 1
    assert repr(belief).startswith("BeliefDensity(")
    assert "\n" not in repr(belief)
