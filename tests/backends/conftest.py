import numpy as np
import pytest

from llm_elicit.backends import Request
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.spaces.features import FeatureSpace


@pytest.fixture(scope="session")
def space() -> FeatureSpace:
    return FeatureSpace.load("penguins")


@pytest.fixture(scope="session")
def request_(space: FeatureSpace) -> Request:
    a, b = space.sample(2, np.random.default_rng(0))
    template = Template.load("v1/few-shot")
    return Request(render(space, a, b, template), (a, b), max_tokens=template.max_tokens)
