"""Figures: valid files with something in them, for any number of features."""

import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from audit.planted import box
from matplotlib.figure import Figure
from PIL import Image

from llm_elicit.features import Feature
from llm_elicit.report.figures import draw_portrait, file_name, save_figures
from llm_elicit.report.pairs import Samples
from llm_elicit.report.style import DARK, LIGHT, log_ticks, set_axis
from llm_elicit.report.words import visible, worded


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
    assert len(portrait.marginals) == 4
    for theme, content in ((LIGHT, portrait.corner.light), (DARK, portrait.corner.dark)):
        seen = np.array(list(colours(content)))
        for colour in (theme.background, theme.data, theme.belief, theme.sampling):
            assert np.abs(seen - rgb(colour)).max(axis=1).min() <= 12
    svg = portrait.marginals[0].light.decode()
    assert LIGHT.belief in svg
    assert LIGHT.sampling in svg
    assert "income" in portrait.marginals[0].alt


def test_the_same_samples_give_the_same_bytes(study, portrait):
    assert draw_portrait(study.samples, "expert") == portrait


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


def test_no_file_leaves_the_folder(portrait, tmp_path):
    written = save_figures({"../../etc/x": portrait}, tmp_path / "figures")
    assert all(path.resolve().parent == (tmp_path / "figures").resolve() for path in written)
    assert file_name("a/b\\c").startswith("a-b-c-")


def test_names_that_differ_only_in_odd_characters_keep_their_files(portrait, tmp_path):
    written = save_figures({"a/b": portrait, "a-b": portrait}, tmp_path)
    assert len(set(written)) == 12


def test_log_ticks_cover_a_narrow_range():
    narrow = Feature(name="x", label="x", scale="log", low=2.2, high=2.9)
    assert log_ticks(narrow, 5) == pytest.approx([2.2, 2.9])


def test_a_standard_deviation_is_worded_though_it_lies_outside_the_range():
    latitude = Feature(name="x", label="x", low=32.6, high=40.7, digits=2)
    assert worded(latitude, 2.13) == "2.1"


def test_a_long_reply_is_cut():
    assert len(visible("x" * 5000)) < 1300


def test_words_on_an_axis_are_few_and_short_and_no_mathematics():
    words = [f"$x_{i}$ a long word" for i in range(30)]
    feature = Feature(name="k", label="k", kind="categorical", categories=words)
    axes = Figure().add_subplot()
    for which in ("x", "y"):
        set_axis(axes, which, feature)
        labels = getattr(axes, f"get_{which}ticklabels")()
        assert 5 <= len(labels) <= 12
        assert labels[0].get_text() == "$x_0$ a long …"
        assert not any(label.get_parse_math() for label in labels)
