"""From a script: the entry points, the problems of some judges, the messages."""

import asyncio

import numpy as np
import pytest

import llm_elicit as le

CAMPAIGN = """
name: script
space: penguins
design: {pairs: 60, triads: 10}
judges:
  - {name: expert, backend: simulated}
  - {name: nobody, backend: openai, model: m, base_url: "http://127.0.0.1:9", api_key_env: null, attempts: 1}
fit: {method: utility, samples: 500}
"""  # noqa: E501


@pytest.fixture(scope="module")
def result(tmp_path_factory, quick_fits):
    folder = tmp_path_factory.mktemp("script")
    path = folder / "c.yaml"
    path.write_text(CAMPAIGN + f"runs: {folder}/runs\n")
    return le.run(path, progress=le.Silent())


def test_the_doors_work_as_printed(result):
    assert len(result.comparisons.of("expert")) == 120
    belief = result.beliefs["expert"]
    x = belief.sample(200, seed=1)
    assert x.shape == (200, 4)
    assert result.space.contains(x).all()
    assert np.isfinite(belief.log_prob(x)).all()
    assert result.audit.of("expert").belief_summary is not None
    transitivity = result.audit.of("expert").transitivity
    assert transitivity.triads == 10
    assert transitivity.p_value > 0.01
    assert result.report_path.read_text().startswith("<!doctype html>")


def test_a_judge_that_cannot_be_asked_leaves_the_others_running(result):
    (problem,) = result.problems
    assert isinstance(problem, le.JudgeError)
    assert "nobody" in str(problem)
    assert list(result.beliefs) == ["expert"]
    assert [judge.name for judge in result.audit.judges] == ["expert"]


def test_inside_an_event_loop_the_way_out_is_named():
    async def notebook():
        le.run("examples/simulated.yaml")

    with pytest.raises(le.InputError, match=r"await arun"):
        asyncio.run(notebook())
