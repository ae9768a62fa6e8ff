"""Repeats of a run: what is asked again, what is not, and whether anything changed."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fakes.batches import BatchProvider

from llm_elicit.audit.repeats import (
    Answers,
    Block,
    Kind,
    RepeatedJudge,
    common_answers,
    kinds_of,
    measure_change,
    measure_repeats,
    permutation_p,
)
from llm_elicit.errors import InputError
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.ask import ask_in_batches
from llm_elicit.pipeline.repeats import asked_in_batches, plan_repeats, series_of
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.spaces.features import Floats
from llm_elicit.testing.provider import Action, Answer, Provider, Sends, completion


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")


def asked(name: str = "first", pairs: int = 10, judge: Any = None, **rest: Any) -> Run:
    settings = {
        "name": name, "space": "penguins", "design": {"pairs": pairs, "template": "mine.md"},
        "judges": [judge or {"name": "expert", "backend": "simulated"}], **rest,
    }  # fmt: skip
    Path(f"{name}.yaml").write_text(yaml.safe_dump(settings))
    return ask(stages.plan(f"{name}.yaml"))


def ask(run: Run) -> Run:
    return asyncio.run(stages.ask(run))


@pytest.fixture(autouse=True)
def _template(_place: None) -> Iterator[None]:
    source = Path(stages.__file__).parents[2] / "prompts" / "v1" / "zero-shot.md"
    Path("mine.md").write_text(source.read_text())
    return


def gpt(url: str) -> dict[str, Any]:
    return {"name": "gpt", "backend": "openai", "model": "m", "base_url": url, "temperature": 0}


def test_a_repeat_asks_the_same_questions_past_the_cache_and_only_once() -> None:
    model = "m-1"

    def behave(number: int, body: dict[str, Any]) -> Action:
        return Sends(json.dumps(completion(Answer("A"), body) | {"model": model}).encode())

    with Provider(behave) as provider:
        run = asked(judge=gpt(provider.url))
        model = "m-2"
        Path("mine.md").write_text("changed")  # the run has its own copy
        (run.folder / "plan.parquet").write_bytes(b"changed")
        repeat = ask(plan_repeats("first")[0])
        assert len(provider.seen) == 40, "nothing is from the cache"
        assert ask(plan_repeats("first")[0]).folder == repeat.folder
        assert len(provider.seen) == 40, "what it has paid for is not asked twice"
        again = ask(plan_repeats(repeat.folder)[0])
        assert len(provider.seen) == 60
    before, after = run.comparisons.frame, repeat.comparisons.frame
    assert list(before["prompt_hash"]) == list(after["prompt_hash"])
    assert set(after["model_answered"]) == {"m-2"}
    assert repeat.campaign.name == "first.repeat-1"
    link, further = repeat.campaign.repeat_of, again.campaign.repeat_of
    assert link is not None
    assert further is not None
    assert (link.run, link.first, further.run, further.first) == (
        "first", "first", "first.repeat-1", "first",
    )  # fmt: skip
    series = series_of([again])
    assert series is not None
    assert [one.campaign.name for one in series] == ["first", "first.repeat-1", "first.repeat-2"]


@pytest.mark.parametrize("wordings", [None, ["v2/typical", "v2/common"]])
def test_worked_examples_are_repeated_as_they_were_shown(wordings: list[str] | None) -> None:
    own = Path("prompts/v2/examples.yaml")
    own.parent.mkdir(parents=True)
    sets = yaml.safe_load((Path(stages.__file__).parents[2] / own).read_text())
    own.write_text(yaml.safe_dump(sets))
    facets = {"examples": "*"} | ({} if wordings is None else {"wordings": wordings})
    template = {} if wordings else {"template": "v2/typical"}
    run = asked(design={"pairs": 16, "presentations": facets, **template})
    for examples in sets.values():
        examples["en"][0]["a"] = "a cup of tea"
    sets["another"] = sets["cup-and-train"]  # `*` meant the sets of that time
    own.write_text(yaml.safe_dump(sets))
    with pytest.raises(InputError, match="its presentations differs"):
        ask(Run.open(run.folder))
    (repeat,) = plan_repeats("first")
    (again,) = plan_repeats(ask(repeat).folder)
    hashes = [list(one.comparisons.frame["prompt_hash"]) for one in (run, repeat, ask(again))]
    assert hashes[0] == hashes[1] == hashes[2]


def test_what_was_asked_in_batches_is_repeated_in_batches() -> None:
    with BatchProvider(at_once=True) as provider:
        Path("first.yaml").write_text(yaml.safe_dump({
            "name": "first", "space": "penguins", "design": {"pairs": 5},
            "judges": [gpt(provider.url + "/v1")],
        }))  # fmt: skip
        run = asyncio.run(ask_in_batches(stages.plan("first.yaml"), "wait"))
        (repeat,) = plan_repeats("first")
        assert asked_in_batches(repeat)
        assert not asked_in_batches(run)
        again = asyncio.run(ask_in_batches(repeat, "wait"))
        assert len(provider.batches) == 2
        assert all(len(batch.requests) == 9 for batch in provider.batches), "past the cache"
        assert len(provider.direct) == 2
    assert list(run.comparisons.frame["prompt_hash"]) == list(
        again.comparisons.frame["prompt_hash"]
    )


def test_direct_questions_are_repeated_too_and_people_are_asked_again() -> None:
    run = asked("direct", pairs=5, direct={"quantiles": 1})
    repeat = ask(plan_repeats("direct")[0])
    assert run.direct is not None
    assert repeat.direct is not None
    assert list(repeat.direct["prompt_hash"]) == list(run.direct["prompt_hash"])
    settings = {
        "name": "people", "space": "penguins", "design": {"pairs": 5},
        "judges": [{"name": "expert", "backend": "simulated"},
                   {"name": "panel", "backend": "human", "experts": ["ada"]}],
        "limits": {"deadline": 2},
    }  # fmt: skip
    Path("people.yaml").write_text(yaml.safe_dump(settings))
    both = ask(stages.plan("people.yaml"))
    (again,) = plan_repeats(both.folder)
    assert [judge.name for judge in again.campaign.judges] == ["expert", "panel"]
    assert again.campaign.people["panel"].experts == ("ada",)


def test_rounds_are_repeated_as_they_were_planned() -> None:
    run = asked(pairs=24, design={"pairs": 24, "rounds": {"count": 2}, "template": "mine.md"})
    repeat = ask(plan_repeats("first", "again")[0])
    assert np.array_equal(run.plan.a, repeat.plan.a)
    assert len(repeat.comparisons) == len(run.comparisons) == 48


def test_the_cells_of_a_grid_are_repeated_under_its_caps() -> None:
    settings = {
        "name": "grid", "space": "penguins", "design": {"pairs": 5}, "limits": {"max_cost": 1.0},
        "judges": [{"name": "expert", "backend": "simulated"}],
        "grid": {"templates": ["v1/zero-shot", "v1/few-shot"]},
    }  # fmt: skip
    Path("grid.yaml").write_text(yaml.safe_dump(settings))
    for cell in stages.plan_grid("grid.yaml"):
        ask(cell)
    repeats = [ask(run) for run in plan_repeats("grid")]
    assert [run.campaign.name for run in repeats] == [
        "grid.repeat-1.v1-zero-shot", "grid.repeat-1.v1-few-shot",
    ]  # fmt: skip
    assert {run.campaign.part_of for run in repeats} == {"grid.repeat-1"}
    assert [run.folder for run in plan_repeats("grid")] == [run.folder for run in repeats]


def test_what_cannot_be_repeated_is_refused() -> None:
    run = asked()
    asked("other")
    with pytest.raises(InputError, match="not a repeat of first"):
        plan_repeats("first", "other")
    (run.folder / "inputs" / "template.md").write_text("changed")
    with pytest.raises(InputError, match="the run's copy"):
        plan_repeats("first")


def test_a_simulated_judge_repeats_its_answers() -> None:
    """End to end, through the journal and the table."""
    settings = {"gain": 0.1, "noise": 0.02, "position_mean": 0.3}
    run = asked(judge={"name": "expert", "backend": "simulated", "log_odds": settings})
    again = ask(plan_repeats(run.campaign.name)[0])
    runs = [RepeatedJudge(r.campaign.name, r.comparisons, None) for r in (run, again)]
    result = measure_repeats("expert", runs, run.space)
    assert result.change.identical
    (sentence,) = result.sentences
    assert "nothing changed (p = 1)" in sentence
    assert len(result.runs[1].versions) == 1


def simulated(rng: np.random.Generator, kind: str, drift: float, **settings: Any) -> Answers:
    """Two runs of 100 pairs of a judge: log-odds, or choices."""
    n, d, runs = 100, 4, settings.get("runs", 2)
    choices, noise = settings.get("choices", False), settings.get("noise", 0.05)
    a, b = rng.random((n, d)), rng.random((n, d))
    weights, best = rng.normal(size=d), rng.random(d)

    def utility(x: Floats) -> Floats:
        return x @ weights - 1.5 * np.square(x - best).sum(axis=1)

    content = utility(a) - utility(b)
    content *= (3.0 if choices else 0.3) / content.std()
    change = {
        "strength": content, "feature": (a - b)[:, 0], "direction": (a - b) @ best,
        "product": np.prod(a[:, :2] - 0.5, axis=1) - np.prod(b[:, :2] - 0.5, axis=1),
        "wave": np.sin(2 * np.pi * a[:, 0]) - np.sin(2 * np.pi * b[:, 0]),
    }[kind]  # fmt: skip
    change = change * drift * content.std() / change.std()
    position = 0.2 + 0.1 * rng.normal(size=n)
    parts: list[list[Floats]] = [[], []]
    for run in range(runs):
        m = position + (settings.get("moved", 0.0) if run else 0.0)
        y = content + (change if run else 0.0)
        for part, mean in zip(parts, (y + m, y - m), strict=True):
            value = mean[:, None] + noise * rng.standard_normal((n, settings.get("repeats", 1)))
            first = rng.random(value.shape) < 1 / (1 + np.exp(-value))
            part.append(np.where(first, 1.0, -1.0) if choices else value)
    ab, ba = (np.stack(part, axis=1) for part in parts)
    return Answers(a, b, (ab + ba) / 2, (ab - ba) / 2, "choices" if choices else "log-odds")


@pytest.mark.parametrize("kind", ["strength", "feature", "direction"])
def test_a_drift_by_a_tenth_of_the_preference_is_found(kind: str) -> None:
    found = [
        measure_change(simulated(np.random.default_rng([1, n]), kind, 0.1), ("1", "2"), 499)
        for n in range(4)
    ]
    assert all(change.preference < 0.05 for change in found)


@pytest.mark.parametrize("kind", ["product", "wave"])
def test_a_drift_that_no_line_follows_is_found(kind: str) -> None:
    p_values = []
    for n in range(5):
        answers = simulated(np.random.default_rng([2, n]), kind, 0.1)
        a, b, preference = answers.a, answers.b, answers.preference
        block = Block(preference, kinds_of(a, b, preference.mean(axis=(1, 2))))
        p_values.append(permutation_p([block], flips=499))
    assert sum(p < 0.05 for p in p_values) >= 4


def test_a_test_without_a_change_has_its_size() -> None:
    """The p-values of a permutation test are at least uniform, whatever the noise."""
    rng = np.random.default_rng(0)
    noise = rng.standard_t(2, size=(300, 30, 2, 1))
    kinds = (Kind.of(rng.normal(size=(30, 1))), Kind.of(rng.normal(size=(30, 3))))
    p = [permutation_p([Block(values, kinds)], n, flips=99) for n, values in enumerate(noise)]
    assert np.mean(np.array(p) <= 0.05) < 0.09
    assert np.mean(np.array(p) <= 0.5) > 0.4


def test_a_position_effect_that_moves_is_no_change_of_the_preference() -> None:
    rng = np.random.default_rng(3)
    change = measure_change(simulated(rng, "feature", 0.0, moved=0.3), ("1", "2"))
    assert change.position is not None
    assert change.position < 0.001
    assert change.preference > 0.05
    moved = [
        measure_change(simulated(rng, "feature", 0.0, moved=2.0, choices=True), ("1", "2"))
        for _ in range(3)
    ]
    assert all(change.position is not None and change.position < 0.05 for change in moved)
    assert sum(change.preference < 0.05 for change in moved) < 2


def test_the_odd_one_of_three_runs_is_found_without_structure() -> None:
    rng = np.random.default_rng(4)
    answers = simulated(rng, "feature", 0.0, noise=0.0, runs=3)
    answers.preference[:, 2] += 0.01 * rng.standard_normal((100, 1))
    assert measure_change(answers, ("1", "2", "3")).preference < 0.001
    still = simulated(rng, "feature", 0.0, noise=0.0, runs=3)
    assert measure_change(still, ("1", "2", "3")).identical


def test_questions_that_differ_are_not_compared() -> None:
    run = asked()
    table = replace_hashes(run)
    with pytest.raises(InputError, match="no question to expert was answered in all runs"):
        common_answers([(run.comparisons, "expert"), (table, "expert")], run.space)


def replace_hashes(run: Run) -> Any:
    comparisons = replace(run).comparisons
    comparisons.frame["prompt_hash"] = "other"
    return comparisons
