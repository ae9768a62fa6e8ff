"""Figures of a belief: the right artists on the right axes, for features of every kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PatchCollection, PolyCollection, QuadMesh
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.text import Text

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    Empirical,
    GaussianMixture,
    Uniform,
    fit_belief,
)
from llm_elicit.density.feature_axis import FeatureAxis, PlotData, feature_axes
from llm_elicit.density.feature_names import FeatureNames
from llm_elicit.density.plot_style import LIGHT, format_tick_labels, wrap_label
from llm_elicit.density.plots import corner_figure, marginals_figure
from tests.density.targets import QUADRATIC

pytestmark = pytest.mark.usefixtures("few_particles")

WORDS = ["Adelie", "Chinstrap", "Gentoo"]
NAMES = ["mass", "income", "rooms", "species", "smoker", "visits", "hour", "tilt"]
BOX = Uniform(
    [0, 1, 0, 0, 0, 0, 0, -1],
    [10, 1000, 12, 2, 1, 4000, 24, 1],
    log=[False, True] + [False] * 6,
    integer=[False, False, True, False, False, True, False, False],
    categorical=[False] * 3 + [True, True] + [False] * 3,
    periodic=[False] * 6 + [True, False],
)


def utility(x: np.ndarray) -> np.ndarray:
    z = BOX.to_cube(x)
    centre = np.array([0.3, 0.6, 0.4, 0.0, 0.0, 0.7, 0.0, 0.0])
    numbers = [0, 1, 2, 5]
    found = -9.0 * np.square(z - centre)[:, numbers].sum(1) + x[:, 3] + 2.0 * x[:, 4]
    return np.asarray(found + 2.0 * np.cos(2.0 * np.pi * (z[:, 6] - 0.1)) + x[:, 7])


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    rng = np.random.default_rng(0)
    a, b = BOX.sample(400, rng), BOX.sample(400, rng)
    first = (utility(a) > utility(b))[:, None]
    sides = np.where(first, a, b), np.where(first, b, a)
    fitted = fit_belief(*sides, sampling=BOX, method="utility", settings=QUADRATIC)
    return fitted.named(NAMES, {3: WORDS, 4: ["no", "yes"]})


@pytest.fixture(scope="module")
def corner(belief: BeliefDensity) -> Figure:
    return belief.plot(data=BOX.sample(300, np.random.default_rng(5)))


def panel(figure: Figure, row: int, column: int) -> Axes:
    return figure.axes[row * (row + 1) // 2 + column]


def artists(axes: Axes, kind: type) -> list[Any]:
    return [each for each in axes.get_children() if isinstance(each, kind)]


def curve(axes: Axes, colour: str = LIGHT.belief) -> tuple[np.ndarray, np.ndarray]:
    (line,) = [line for line in axes.lines if line.get_color() == colour]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def bars(axes: Axes) -> np.ndarray:
    """Heights of the belief's horizontal lines, one for each single value."""
    (lines,) = [c for c in artists(axes, LineCollection) if c.get_linestyle()[0][1] is None]
    return np.array([segment[0, 1] for segment in lines.get_segments()])


def labels(axis: Axis) -> list[Text]:
    """The tick labels that are drawn."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    at = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)  # none inside
    return [t for place, t in at if low - slack <= place <= high + slack and t.get_text()]


def assert_within(figure: Figure) -> None:
    """Every label that is drawn is in the figure, and the legend is off the panels."""
    figure.draw_without_rendering()
    legend = figure.legends[0]
    drawn = [t for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for t in labels(axis)]
    names = [t for axes in figure.axes for t in (axes.xaxis.label, axes.yaxis.label)]
    for text in (*drawn, *(t for t in names if t.get_text()), legend):
        box = text.get_window_extent()
        assert min(box.x0, box.y0) >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    place = legend.get_window_extent()
    assert not any(place.overlaps(axes.bbox) for axes in figure.axes)


def test_a_corner_plot_has_a_panel_for_every_pair_and_labels_outside(corner: Figure) -> None:
    assert len(corner.axes) == 8 * 9 // 2
    assert [panel(corner, 7, j).get_xlabel() for j in range(8)] == NAMES
    assert [panel(corner, i, 0).get_ylabel() for i in range(1, 8)] == NAMES[1:]
    assert panel(corner, 3, 1).get_xlabel() == panel(corner, 3, 1).get_ylabel() == ""
    assert_within(corner)


def test_axes_have_the_scales_and_words_of_features(corner: Figure) -> None:
    assert panel(corner, 7, 1).get_xscale() == "log"
    assert panel(corner, 1, 0).get_yscale() == "log"
    assert panel(corner, 7, 6).get_xlim() == (0.0, 24.0)
    assert panel(corner, 7, 2).get_xlim() == (-0.5, 12.5)
    words = [label.get_text() for label in panel(corner, 7, 3).get_xticklabels()]
    assert words == WORDS
    assert panel(corner, 7, 5).get_xlim()[1] <= 4000.5


def test_panels_hold_what_fits_their_two_features(corner: Figure) -> None:
    assert artists(panel(corner, 1, 0), ContourSet)
    assert len(artists(panel(corner, 3, 2), PatchCollection)) == 1, "frames of shares"
    assert not artists(panel(corner, 3, 2), ContourSet)
    (mesh,) = artists(panel(corner, 3, 2), QuadMesh)
    assert mesh.get_array().size == 13 * 3, "the data, by value"
    assert artists(panel(corner, 3, 0), LineCollection)


def test_marginals_are_densities_of_the_belief(belief: BeliefDensity) -> None:
    figure = belief.plot_marginals(n=5_000)
    x, density = curve(figure.axes[0])
    step = x[1] - x[0]
    assert density.sum() * step == pytest.approx(1.0, abs=0.01)
    assert (density * x).sum() * step == pytest.approx(belief.mean()[0], abs=0.3)
    log_x, per_decade = curve(figure.axes[1])
    assert per_decade.sum() * np.log(log_x[1] / log_x[0]) == pytest.approx(1.0, abs=0.01)
    shares = belief.sample(5_000)[:, 3]
    np.testing.assert_allclose(bars(figure.axes[3]), [(shares == k).mean() for k in range(3)])
    assert len(figure.axes) == 8
    assert_within(figure)


def test_the_line_of_a_uniform_density_is_flat(belief: BeliefDensity) -> None:
    figure = belief.plot_marginals(["mass", "hour"], bands=False)
    for axes, width in zip(figure.axes, (10.0, 24.0), strict=True):
        _, density = curve(axes, LIGHT.sampling)
        np.testing.assert_allclose(density, 1.0 / width, rtol=0.01)


def test_bands_hold_the_belief_and_can_be_left_out(belief: BeliefDensity) -> None:
    with_bands, without = belief.plot_marginals("mass"), belief.plot_marginals("mass", bands=False)
    (shade,) = artists(with_bands.axes[0], PolyCollection)
    assert not artists(without.axes[0], PolyCollection)
    x, density = curve(with_bands.axes[0])
    inside = shade.get_paths()[0].contains_points(np.stack([x, density], axis=1), radius=1e-3)
    assert inside.mean() > 0.8
    assert len(with_bands.legends[0].get_texts()) == len(without.legends[0].get_texts()) + 1


def test_features_are_chosen_by_name_or_number_in_their_order(belief: BeliefDensity) -> None:
    figure = belief.plot(["hour", 0], bands=False)
    assert [panel(figure, 1, j).get_xlabel() for j in (0, 1)] == ["hour", "mass"]
    single = belief.plot("species", bands=False)
    assert [axes.get_xlabel() for axes in single.axes] == ["species"]


def test_data_are_drawn_beside_the_belief(belief: BeliefDensity) -> None:
    x = BOX.sample(200, np.random.default_rng(3))
    words = [WORDS[int(code)] for code in x[:, 3]]
    frame = pd.DataFrame({"species": words, "mass": x[:, 0], "other": "x"})
    figure = belief.plot_marginals(["mass", "species"], data=frame, bands=False)
    (steps,) = artists(figure.axes[0], StepPatch)
    heights = np.array([bar.get_height() for bar in figure.axes[1].patches])
    np.testing.assert_allclose(heights, np.bincount(x[:, 3].astype(int)) / 200)
    assert steps.get_data().values.sum() * np.diff(steps.get_data().edges)[0] == pytest.approx(
        1.0, abs=0.02
    )
    same = belief.plot_marginals(["mass", "species"], data=x, bands=False)
    np.testing.assert_allclose([bar.get_height() for bar in same.axes[1].patches], heights)


def test_an_axis_shows_where_the_belief_and_the_data_are() -> None:
    box, names = Uniform([0.0], [1000.0]), FeatureNames(("x",))
    narrow = np.random.default_rng(0).normal(500.0, 2.0, (5000, 1))
    (axis,) = feature_axes(box, names, [0], [narrow])
    assert 490 < axis.low < 496
    assert axis.refinement == 1
    wide = np.random.default_rng(0).normal(700.0, 100.0, (300, 1))
    (both,) = feature_axes(box, names, [0], [narrow, wide])
    assert both.low < 450
    assert both.high > 900
    step = np.diff(both.centres)[0]
    line = both.density_line(narrow[:, 0])
    sd = np.sqrt((line * step) @ (both.centres - 500.0) ** 2)
    assert sd < 1.6 * 2.0, "a narrow belief is not widened by wide bins"
    (beyond,) = feature_axes(box, names, [0], [narrow, wide + 500.0])
    assert beyond.high > 1000.0, "data beyond the support are shown"
    (inside,) = feature_axes(box, names, [0], [box.sample(5000, np.random.default_rng(0))])
    assert (inside.low, inside.high) == (0.0, 1000.0)


@pytest.mark.parametrize(
    "sampling",
    [
        GaussianMixture([0.5, 0.5], [[0, 0], [6, 6]], [np.eye(2)] * 2),
        Empirical(
            np.random.default_rng(0).gamma(2.0, 1.0, (300, 2)), low=[0, 0], log=[True, False]
        ),
    ],
    ids=["mixture", "empirical"],
)
def test_other_sampling_densities(sampling: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = sampling.sample(80, rng), sampling.sample(80, rng)
    first = (abs(a - 2).sum(1) < abs(b - 2).sum(1))[:, None]
    sides = np.where(first, a, b), np.where(first, b, a)
    fitted = fit_belief(*sides, sampling=sampling, method="utility", settings=QUADRATIC)
    figure = fitted.plot(data=a, bands=False)
    assert (panel(figure, 1, 0).get_xscale() == "log") == isinstance(sampling, Empirical)
    assert_within(figure)
    assert_within(fitted.plot_marginals(data=a, bands=False))


def plotted(axes: list[FeatureAxis], n: int = 3000) -> PlotData:
    """Points over the axes, belief and λ alike."""
    rng = np.random.default_rng(0)
    columns = []
    for axis in axes:
        if axis.log:
            columns.append(np.exp(rng.uniform(np.log(axis.low), np.log(axis.high), n)))
        elif axis.whole:
            columns.append(rng.integers(int(axis.low), int(axis.high) + 1, n).astype(float))
        else:
            columns.append(np.clip(rng.normal(axis.low, axis.high - axis.low, n), *axis.limits))
    points = np.stack(columns, axis=1)
    return PlotData(tuple(axes), points, points[::-1], points[:200])


LONG = "the median income of households in a block group as of the census of 1990 in USD $x_1$"
KINDS = {
    "long names": FeatureAxis(LONG, 0.0, 1.0),
    "no blanks": FeatureAxis("x" * 90, 0.0, 1.0),
    "60 levels": FeatureAxis(
        "country", 0, 59, whole=True, categories=tuple(f"Country number {i}" for i in range(60))
    ),
    "boolean": FeatureAxis("smoker", 0, 1, whole=True, categories=("0", "1")),
    "counts": FeatureAxis("visits", 0, 9, whole=True),
    "many counts": FeatureAxis("visitors", 1, 90_000, log=True, whole=True),
    "days": FeatureAxis("first seen", 20_000.0, 20_001.0),
    "dates": FeatureAxis("first seen", 10_000.0, 20_000.0, whole=True, date=True),
    "few days": FeatureAxis("first seen", 20_000.0, 20_003.0, whole=True, date=True),
    "one month": FeatureAxis("first seen", 20_000.0, 20_030.0, date=True),
    "logarithmic": FeatureAxis("income", 1e-3, 1e7, log=True),
    "negative": FeatureAxis("longitude", -124.37, -114.31),
    "hours": FeatureAxis("hour", 0, 23, whole=True, periodic=True),
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("draw", [corner_figure, marginals_figure])
def test_no_label_is_cut(kind: str, draw: Callable[[PlotData], Figure]) -> None:
    other = FeatureAxis("age", 0.0, 90.0)
    for axes in ([KINDS[kind]], [KINDS[kind], other], [other, KINDS[kind]]):
        figure = draw(plotted(axes))
        assert_within(figure)
        for panel_axes in figure.axes:
            ticks = [text.get_text() for text in labels(panel_axes.xaxis)]
            assert len(set(ticks)) == len(ticks), "ticks can be told apart"
            assert len(ticks) <= 12


def test_lines_of_many_frames_are_thin() -> None:
    (few,), (many,) = (
        artists(panel(corner_figure(plotted(axes)), 1, 0), PatchCollection)
        for axes in ([KINDS["counts"], KINDS["boolean"]], [KINDS["counts"], KINDS["60 levels"]])
    )
    assert many.get_linewidth()[0] < 0.5 < few.get_linewidth()[0]


@pytest.mark.parametrize("d", [1, 2, 10])
def test_any_number_of_features(d: int) -> None:
    shown = plotted([FeatureAxis(f"a feature with a name, {i}", 0.0, 1.0) for i in range(d)], 500)
    figure = corner_figure(shown)
    assert len(figure.axes) == d * (d + 1) // 2
    assert_within(figure)
    assert len(marginals_figure(shown).axes) == d


def test_a_belief_like_its_sampling_density_is_called_flat() -> None:
    rng = np.random.default_rng(0)
    axes = (FeatureAxis("x", 0.0, 1.0), FeatureAxis("y", 0.0, 1.0))
    flat = PlotData(axes, rng.uniform(size=(4000, 2)), rng.uniform(size=(4000, 2)))
    assert [t.get_text() for t in corner_figure(flat).axes[1].texts] == ["flat"]


def test_a_belief_in_one_point_is_drawn() -> None:
    box, names = Uniform([0.0, 0.0], [1.0, 1.0]), FeatureNames(("x", "y"))
    points = np.full((100, 2), 0.5)
    axes = feature_axes(box, names, [0, 1], [points])
    shown = PlotData(axes, points, box.sample(500, np.random.default_rng(0)))
    assert_within(corner_figure(shown))


def test_labels_tell_values_apart() -> None:
    assert format_tick_labels([1990.0, 2000.0]) == ["1990", "2000"]
    assert format_tick_labels([20231.2, 20231.3, 20231.4]) == ["20.2312k", "20.2313k", "20.2314k"]
    assert wrap_label("x" * 500, 2.0, 8).count("\n") == 2
    assert wrap_label("", 2.0, 8) == ""


def test_jupyter_shows_a_figure_without_pyplot(belief: BeliefDensity) -> None:
    png = belief.plot(["mass", "tilt"], bands=False)._repr_png_()  # type: ignore[attr-defined]
    assert png.startswith(b"\x89PNG")
    assert len(png) > 5000


SCRIPT = """
import sys
from llm_elicit.density import BeliefDensity, DensityError
belief = BeliefDensity.load(sys.argv[1])
assert "matplotlib" not in sys.modules
found, sys.modules["matplotlib"] = sys.modules.get("matplotlib"), None
try:
    belief.plot()
except DensityError as error:
    print(error)
del sys.modules["matplotlib"]
belief.plot(["mass", "species"], bands=False, n=500)
assert "matplotlib.pyplot" not in sys.modules
"""


def test_the_core_draws_without_pyplot_and_says_if_matplotlib_is_missing(
    belief: BeliefDensity, tmp_path: Path
) -> None:
    belief.save(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("plot: matplotlib is not installed; run: pip install matplotlib\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"features": "height"}, "plot: no feature 'height'; the features are mass"),
        ({"features": [9]}, "plot: a feature's number"),
        ({"features": []}, "plot: features = "),
        ({"features": ["mass", 0]}, "none of them twice"),
        ({"features": [None]}, "plot: a feature's number"),
        ({"data": np.zeros((3, 2))}, "plot: data has shape"),
        ({"data": np.full((3, 8), np.nan)}, "plot: data"),
        ({"data": pd.DataFrame({"mass": [1.0]})}, "plot: data: the frame has no column 'income'"),
        (
            {"features": "species", "data": pd.DataFrame({"species": ["Emperor"]})},
            "no category 'Emperor'",
        ),
        ({"n": 0}, "plot: n = 0"),
        ({"n": 1.5}, "plot: n = 1.5"),
        ({"seed": -1}, "plot: seed"),
    ],
)
def test_errors_are_one_line(belief: BeliefDensity, arguments: Any, said: str) -> None:
    with pytest.raises(DensityError, match=said) as caught:
        belief.plot(**({"bands": False} | arguments))
    assert "\n" not in str(caught.value)
