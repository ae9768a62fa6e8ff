"""Figures: valid files with something in them, for any number of features."""

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from audit.planted import box
from matplotlib.figure import Figure
from PIL import Image

from llm_elicit._util.text import visible
from llm_elicit.audit.reference import feature_axis
from llm_elicit.density.plot_style import DARK, LIGHT, log_ticks, set_axis
from llm_elicit.density.plots import PanelPair, draw_regions
from llm_elicit.report.figures import (
    Samples,
    draw_corner,
    draw_portrait,
    file_stem,
    find_flat_factors,
    save_figures,
)
from llm_elicit.report.formatting import value_text
from llm_elicit.spaces.features import Feature


def colours(content):
    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image.convert("RGB"))
    return {tuple(int(c) for c in pixel) for pixel in pixels.reshape(-1, 3)[::3]}


def rgb(text):
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def test_figures_are_written_and_valid(written):
    files = sorted(path.name for path in (written.parent / "figures").iterdir())
    assert len(files) == 12
    assert "expert-corner.png" in files
    for path in (written.parent / "figures").iterdir():
        assert path.stat().st_size > 5000
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("svg")


def test_a_figure_shows_data_belief_and_lambda_in_their_colours(portrait):
    seen = np.array(list(colours(portrait.files["corner.png"])))
    for colour in (LIGHT.background, LIGHT.data, LIGHT.belief, LIGHT.sampling):
        assert np.abs(seen - rgb(colour)).max(axis=1).min() <= 12
    backdrop = portrait.corner.backdrop
    for theme, content in ((LIGHT, backdrop.light), (DARK, backdrop.dark)):
        seen = np.array(list(colours(content)))
        for colour in (theme.background, theme.ink):
            assert np.abs(seen - rgb(colour)).max(axis=1).min() <= 12
    svg = portrait.files["marginals.svg"].decode()
    assert LIGHT.belief in svg
    assert LIGHT.sampling in svg


def test_layers_hold_data_lambda_and_the_belief_at_every_power(portrait):
    assert len(portrait.marginals) == 4
    for layers in (*portrait.marginals, portrait.corner):
        fixed = {shape.kind for group in layers.rescaled for shape in group.shapes}
        assert fixed == {"data", "sampling"}
        steps = {shape.step for shape in layers.shapes if shape.kind == "belief"}
        assert steps == set(range(5))
        assert all(len(group.transforms) == 5 for group in layers.rescaled)
    assert {s.step for s in portrait.marginals[0].shapes if s.kind == "band"} == {
        portrait.saved_step
    }
    assert "income" in portrait.marginals[0].alt


def outline(layers, step):
    """Points (n, 2) of a belief's line."""
    path = next(s.path for s in layers.shapes if s.kind == "belief" and s.step == step)
    return np.array([part.split() for part in re.split("[ML]", path)[1:]], dtype=float)


def test_a_sharper_belief_is_narrower_and_the_data_shrink_beside_it(portrait):
    age = portrait.marginals[1]
    wide, sharp = (outline(age, step) for step in (0, 4))
    base = wide[:, 1].max()

    def width(line):
        return np.ptp(line[line[:, 1] < base - 0.5 * (base - line[:, 1].min()), 0])

    assert width(sharp) < 0.6 * width(wide)
    scales = [float(t.split()[3]) for t in age.rescaled[0].transforms]
    assert scales[portrait.saved_step] == 1.0
    assert scales[-1] < 0.8 * scales[0]  # at the saved power the axis holds the band, too


def test_the_same_samples_give_the_same_bytes(report, portrait):
    assert report[1]["expert"] == portrait is not report[1]["expert"]


@pytest.mark.parametrize("d", [1, 3, 11])
def test_any_number_of_features(d):
    space, rng = box(d), np.random.default_rng(0)
    samples = Samples(space, space.sample(50, rng), None, {"j": space.sample(50, rng)})
    portrait = draw_portrait(samples, "j")
    assert len(portrait.marginals) == d
    assert (portrait.corner is None) == (d in (1, 11))
    assert portrait.map is None


def test_a_belief_at_one_point_is_drawn():
    space, rng = box(2), np.random.default_rng(0)
    samples = Samples(space, space.sample(50, rng), None, {"j": np.zeros((50, 2))})
    assert draw_portrait(samples, "j").corner is not None


@pytest.mark.parametrize("d", [2, 3])
def test_the_legend_of_few_features_stands_beside_the_panels(d):
    space, rng = box(d), np.random.default_rng(0)
    samples = Samples(space, space.sample(50, rng), space.sample(50, rng))
    samples = replace(samples, beliefs={"j": space.sample(50, rng)})
    _, figure = draw_corner(samples, "j")
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.width < 0.45 * figure.bbox.width
    assert not any(legend.overlaps(axes.bbox) for axes in figure.axes)


def test_a_flat_belief_has_no_contours_and_says_so():
    space, rng = box(3), np.random.default_rng(0)
    bent = space.sample(4000, rng)
    bent[:, 0] = np.clip(rng.normal(0.5, 1.0, 4000), -3, 3)
    samples = Samples(
        space, space.sample(4000, rng), beliefs={"flat": space.sample(4000, rng), "bent": bent}
    )
    flat, other = (draw_corner(samples, judge)[0] for judge in ("flat", "bent"))
    assert flat.flat_steps == (0,)
    assert [shape.text for shape in flat.shapes if shape.text] == 3 * ["flat"]
    assert [shape.text for shape in other.shapes if shape.text] == ["flat"], "x1 and x2"
    assert len(other.shapes_by_step[0][1]) == 4, "lines of both widths, marginals, and a word"


def test_shares_of_every_draw_are_counted_at_once():
    space = box(2)
    draws = np.random.default_rng(0).normal(0.0, 2.0, (5, 300, 2)).clip(-3, 3)
    draws[0, 0] = space.high
    pair = PanelPair(tuple(map(feature_axis, space.features)), (0, 1))
    edges = [np.linspace(feature.low, feature.high, 7) for feature in space.features]
    counted = [np.histogram2d(*draw.T, bins=edges)[0].ravel() / 300 for draw in draws]
    np.testing.assert_allclose(pair.shares(draws), counted)
    np.testing.assert_allclose(pair.shares(draws[1]), counted[1])


@pytest.mark.parametrize("kind", ["categorical", "ordered"])
def test_frames_of_categories_do_not_overlap(kind):
    words = Feature(name="w", label="w", kind=kind, categories=("a", "b", "c"))
    points = np.random.default_rng(0).integers(3, size=(500, 2)).astype(float)
    axes = Figure().subplots()
    (frames,) = draw_regions(axes, points, PanelPair((feature_axis(words),) * 2, (0, 1)), LIGHT)
    boxes = [path.get_extents() for path in frames.get_paths()]
    assert len(boxes) == 9
    assert 0.5 < max(box.width for box in boxes) < 1.0


def test_contours_within_the_posterior_uncertainty_are_not_drawn():
    """The belief has a trend, but its posterior has trends of that size in all directions."""
    space, rng = box(2), np.random.default_rng(0)

    def tilted(slope, n):
        x = space.sample(40 * n, rng)
        return x[rng.random(len(x)) < np.exp(x @ slope - 3 * np.abs(slope).sum())][:n]

    mean = np.array([0.15, 0.0])
    slopes = rng.normal(0, 0.25, (40, 2))
    samples = Samples(space, space.sample(8000, rng), beliefs={"j": tilted(mean, 8000)})

    def is_flat(samples):
        shown, powers = samples.plot_data("j"), samples.belief_by_factor("j")
        return find_flat_factors(shown, powers, PanelPair.from_plot(shown, 0, 1))[1.0]

    assert not is_flat(samples)
    size = 400
    draws = np.stack([tilted(slope, size) for slope in slopes])
    assert is_flat(replace(samples, draws={"j": draws}))
    sure = np.stack([tilted(mean + slope / 10, size) for slope in slopes])
    assert not is_flat(replace(samples, draws={"j": sure}))


def test_no_file_leaves_the_folder(portrait, tmp_path):
    written = save_figures({"../../etc/x": portrait}, tmp_path / "figures")
    assert all(path.resolve().parent == (tmp_path / "figures").resolve() for path in written)
    assert file_stem("a/b\\c").startswith("a-b-c-")


def test_names_that_differ_only_in_odd_characters_keep_their_files(portrait, tmp_path):
    written = save_figures({"a/b": portrait, "a-b": portrait}, tmp_path)
    assert len(set(written)) == 12


def test_log_ticks_cover_a_narrow_range():
    narrow = Feature(name="x", label="x", scale="log", low=2.2, high=2.9)
    assert log_ticks(feature_axis(narrow), 5) == pytest.approx([2.2, 2.9])


def test_a_standard_deviation_is_worded_though_it_lies_outside_the_range():
    latitude = Feature(name="x", label="x", low=32.6, high=40.7, digits=2)
    assert value_text(latitude, 2.13) == "2.1"


def test_a_long_reply_is_cut():
    assert len(visible("x" * 5000)) < 1300


def test_words_on_an_axis_are_few_and_short_and_no_mathematics():
    words = [f"$x_{i}$ a long word" for i in range(30)]
    feature = Feature(name="k", label="k", kind="categorical", categories=words)
    axes = Figure().add_subplot()
    for which in ("x", "y"):
        set_axis(axes, which, feature_axis(feature))
        labels = getattr(axes, f"get_{which}ticklabels")()
        assert 5 <= len(labels) <= 12
        assert labels[0].get_text() == "$x_0$ a long …"
        assert not any(label.get_parse_math() for label in labels)
