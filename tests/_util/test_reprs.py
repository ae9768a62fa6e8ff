"""What an interactive session shows of an object is short."""

from pathlib import Path

import numpy as np
import pytest

import llm_elicit as le
from llm_elicit.audit.reference import Reference
from llm_elicit.comparisons.table import Choices
from llm_elicit.config.design import Design
from llm_elicit.density import Evidence, GaussianMixture, Ranges, Uniform
from llm_elicit.errors import InputError, UnknownNameError
from llm_elicit.pipeline.run_folder import Beliefs, Run
from llm_elicit.planning.pairs import make_plan

SPACE = le.FeatureSpace.load("california_housing")
POINTS = SPACE.sample(600, np.random.default_rng(0))
BOXES = np.stack([POINTS, POINTS + 1], axis=-1)
CAMPAIGN = le.Campaign.load("study")
RUN = Run(Path("runs/study"), CAMPAIGN, SPACE)


@pytest.mark.parametrize(
    "shown",
    [
        SPACE,
        CAMPAIGN,
        RUN,
        Beliefs(RUN, "auto"),
        Reference(SPACE, POINTS),
        make_plan(SPACE, Design(pairs=300), 1),
        Choices(POINTS, POINTS, POINTS[:, 0], np.arange(600)),
        Evidence.comparisons(POINTS, POINTS[::-1], np.ones(600)),
        Ranges(
            np.stack([POINTS, POINTS + 1], -1), np.stack([POINTS, POINTS + 1], -1), np.ones(600)
        ),
        Uniform(np.zeros(200), np.ones(200)),
        GaussianMixture(np.full(9, 1 / 9), POINTS[:9], np.stack([np.eye(8)] * 9)),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_it_is_below_a_thousand_characters(shown: object) -> None:
    assert len(repr(shown)) < 1000
    assert "array([" not in repr(shown)


def test_a_run_is_named_with_its_folder_and_judges() -> None:
    assert repr(RUN).startswith("Run('study', 'runs/study'; ")
    assert "random-numbers" in repr(RUN)
    assert "..." not in repr(RUN)


def test_an_unknown_name_is_one_line_with_the_nearest() -> None:
    beliefs = Beliefs(RUN, "auto")
    assert "qwn" not in beliefs
    assert beliefs.get("qwn") is None, "as of any mapping"
    with pytest.raises(InputError, match=r"^study: no belief of 'qwn'; known: none$"):
        beliefs["qwn"]
    error = UnknownNameError.of("study", "belief of", "qwn", ["qwen", "expert"])
    assert isinstance(error, KeyError)
    assert str(error) == "study: no belief of 'qwn'; did you mean 'qwen'? known: qwen, expert"
