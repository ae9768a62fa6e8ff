"""Direct questions through the engine: beside the pairs, under the same caps, kept raw."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fakes.warm import WarmPopen

from llm_elicit.audit.direct_answers import DirectEvidence, measure_direct
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.backends import Capabilities, SimulatedBackend
from llm_elicit.config.campaign import Campaign, identity_of
from llm_elicit.errors import CapError, InputError
from llm_elicit.orchestrator.budget import Price, UsageCheck
from llm_elicit.orchestrator.estimates import estimate, example_prompts
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import reading, spent_or_reserved
from llm_elicit.orchestrator.judgments import answered_counts, direct_answers, status
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.request_builder import RequestBuilder
from llm_elicit.planning.direct_questions import RowCompletion, range_pairs
from llm_elicit.planning.pairs import direct_queries
from llm_elicit.questions.numbers import UNREAD
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import Answer, Error, Provider
from orchestrator.child import study as child_study
from orchestrator.conftest import EXPERT, claude, gpt
from orchestrator.running import campaign, plan_of, run, space_of, table, until

DIRECT = {"quantiles": 2, "samples": 5, "rows": 4}
COUNT = 2 * 4 + 5 + 4


def says(_number: int, body: dict[str, Any]) -> Answer:
    """A letter for a pair, five numbers for quantiles, four for a sample, one for a row."""
    system, question = str(body.get("system") or body["messages"][0]["content"]), _question(body)
    if "You imagine" in system:
        return Answer("40; 17; 200; 4,200")
    if "below which" in question:
        return Answer("34.5, 36, 40, 44 and 50 mm")
    return Answer("4200" if "CSV" in system else "A")


def _question(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def answers_of(study: Campaign, folder: Path) -> pd.DataFrame:
    return direct_answers(Study(study, study.load_space(), plan_of(study), folder))


def test_direct_questions_are_asked_beside_the_pairs(tmp_path: Path) -> None:
    with Provider(says) as provider:
        # The settings suit letters; answers in words have the room that they need.
        judges = [claude(provider.url, temperature=0), gpt(provider.url, max_tokens=8, seed=7)]
        study = campaign(judges, pairs=5, direct=DIRECT)
        assert run(study, tmp_path / "try").complete
        bodies = [seen.body for seen in provider.seen]
    assert len(table(study, tmp_path / "try")) == 2 * 10
    frame = answers_of(study, tmp_path / "try")
    kinds = frame.groupby(["judge", "kind"]).size().to_dict()
    assert kinds == {
        (judge, kind): count
        for judge in ("claude", "gpt")
        for kind, count in (("quantiles", 8), ("sample", 5), ("row", 4))
    }
    assert set(frame["reply"]) == {"40; 17; 200; 4,200", "34.5, 36, 40, 44 and 50 mm", "4200"}
    assert set(frame["template"]) == {"v1/quantiles", "v1/sample", "v1/row"}
    letters = [body for body in bodies if says(0, body).text == "A"]
    words = [body for body in bodies if says(0, body).text != "A"]
    assert (len(letters), len(words)) == (20, 2 * COUNT)
    assert all("logprobs" not in body and body["max_tokens"] >= 40 for body in words)
    samples = [body for body in words if says(0, body).text.startswith("40;")]
    # At 0 all of a judge's samples would be one; one seed would make them copies.
    assert {body.get("temperature") for body in samples} == {1.0, None}
    assert {body.get("temperature") for body in words if body not in samples} == {0.0, None}
    assert sorted(body["seed"] for body in samples if "seed" in body) == [7, 8, 9, 10, 11]


def test_they_are_added_to_a_run_that_is_asked_and_taken_back(tmp_path: Path) -> None:
    folder = tmp_path / "try"
    with Provider(says) as provider:
        plain = campaign([claude(provider.url)], pairs=5)
        run(plain, folder)
        before = table(plain, folder).frame
        # A section is no part of what a run is.
        study = campaign([claude(provider.url)], pairs=5, direct=DIRECT)
        space = plain.load_space()
        assert identity_of(study, space) == identity_of(plain, space)
        assert run(study, folder).complete
        assert len(provider.seen) == 10 + COUNT
        assert run(study, folder).complete
        more = campaign([claude(provider.url)], pairs=5, direct={**DIRECT, "samples": 7})
        assert run(more, folder).complete
        assert len(provider.seen) == 10 + COUNT + 2
        # The cache serves other runs too.
        assert run(more, tmp_path / "other").judges["claude"].tally.cached == 10 + COUNT + 2
    assert table(more, folder).frame.equals(before)
    assert answered_counts(folder, more)["claude"] == {
        "ab": 5, "ba": 5, "quantiles": 8, "sample": 7, "row": 4
    }  # fmt: skip


def test_what_is_not_asked_for_any_more_is_not_asked(tmp_path: Path) -> None:
    folder, broken = tmp_path / "try", True
    with Provider(
        lambda n, body: Error(400) if broken and n > 10 + 6 else says(n, body)
    ) as provider:
        study = campaign([gpt(provider.url, concurrency=1)], pairs=5, direct=DIRECT)
        assert not run(study, folder).complete
        broken = False
        kept = len(answers_of(study, folder))
        assert 0 < kept < COUNT
        fewer = campaign([gpt(provider.url, concurrency=1)], pairs=5, direct={"quantiles": 1})
        assert run(fewer, folder).complete
    assert status(folder, fewer)["gpt"].planned == 0
    assert set(answers_of(fewer, folder)["kind"]) == {"quantiles"}


def test_a_cap_holds_over_both(tmp_path: Path) -> None:
    price = {"input": 100.0, "output": 100.0}
    with Provider(says) as provider:
        judge = gpt(provider.url, price=price, concurrency=4)
        free = campaign([judge], pairs=5, direct=DIRECT)
        run(free, tmp_path / "free")
        with reading(JournalLocation(tmp_path / "free")) as db:
            whole, _ = spent_or_reserved(db)
        capped = campaign([judge], pairs=5, direct=DIRECT, limits={"max_cost": 0.7 * whole})
        summary = run(capped, tmp_path / "elsewhere" / "capped")
    assert isinstance(summary.problems[0], CapError)
    assert 0.3 * whole < summary.spent <= 0.7 * whole
    # The pairs come first.
    assert len(table(capped, tmp_path / "elsewhere" / "capped")) == 10


def test_killed_amid_direct_questions_nothing_answered_is_asked_again(tmp_path: Path) -> None:
    folder, child = tmp_path / "try", Path(__file__).parent / "child.py"
    path = os.pathsep.join(part or "." for part in sys.path)
    with Provider(lambda n, body: Answer(says(n, body).text, delay=0.02)) as provider:
        running = WarmPopen(
            [sys.executable, str(child), provider.url, str(folder), "5", "direct"],
            env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE,
        )  # fmt: skip
        until(lambda: len(provider.seen) >= 40)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        study = child_study(provider.url, 5, "direct")
        before = answers_of(study, folder)
        assert len(before) > 10
        seen = len(provider.seen)
        summary = run(study, folder)
        again = Counter(_question(request.body) for request in provider.seen[seen:])
    after = answers_of(study, folder)
    assert summary.complete
    assert summary.lost_in_flight <= 8
    assert len(after) == 8 + 40 + 20
    assert sum(again.values()) == len(after) - len(before)
    same = after.merge(before, on=["kind", "number", "replicate", "asked_at", "reply"])
    assert len(same) == len(before)


def test_the_expert_states_its_belief_and_draws_from_it(tmp_path: Path) -> None:
    study = campaign([EXPERT], pairs=5, direct={"quantiles": 1, "samples": 60, "rows": 2})
    run(study, tmp_path / "one")
    run(study, tmp_path / "two")
    one, two = (
        answers_of(study, tmp_path / name).drop(columns="asked_at") for name in ("one", "two")
    )
    assert one.equals(two)
    points = one[one["kind"] == "sample"]["reply"]
    assert points.nunique() == 60
    body_mass = one[one["kind"] == "quantiles"]["reply"].iloc[3]
    assert re.fullmatch(r"3\d{3}; 3\d{3}; 4\d{3}; 4\d{3}; 5\d{3}", body_mass)


def test_an_estimate_and_a_dry_run_tell_of_them() -> None:
    judges = [claude("http://127.0.0.1:9"), EXPERT]
    plain, study = (campaign(judges, pairs=5, **more) for more in ({}, {"direct": DIRECT}))
    space = study.load_space()
    without, _ = estimate(plain, space, plan_of(plain))
    both, expert = estimate(study, space, plan_of(study))
    assert both.requests == expert.requests == 10 + COUNT
    assert both.cost > without.cost
    assert both.completion_tokens == without.completion_tokens + 4 * (8 * 5 + 5 * 4 + 4)
    done = {"claude": {"ab": 5, "ba": 5, "quantiles": 8, "sample": 5, "row": 3}}
    left, _ = estimate(study, space, plan_of(study), done)
    assert left.requests == 1
    last = {prompt.turns[-1].content for prompt in example_prompts(study, space, plan_of(study))}
    assert len(last) == 6
    assert sum("CSV" in p.system for p in example_prompts(study, space, plan_of(study))) == 1


@pytest.mark.parametrize(
    ("direct", "message"),
    [
        ({}, "ask for quantiles, samples, rows, ranges, ratios or likelihood"),
        ({"samples": -1}, "greater than or equal to 0"),
        ({"points": 3}, "unknown key|Extra inputs"),
    ],
)
def test_a_section_that_asks_nothing_or_nonsense_is_refused(direct, message) -> None:
    with pytest.raises(ValueError, match=message):
        campaign([EXPERT], direct=direct)


def test_a_backend_that_knows_pairs_alone_is_put_no_direct_question(tmp_path: Path) -> None:
    class Old(SimulatedBackend):
        capabilities = Capabilities(seed=True)

    def check(study: Campaign) -> None:
        whole = Study(study, space_of(study), plan_of(study), tmp_path)
        judge = study.judges[0]
        backend = Old(judge, whole.space)
        RequestBuilder(whole, judge, backend, Price(), UsageCheck()).check()

    with pytest.raises(InputError, match=r"'expert'.*does not declare that it answers direct"):
        check(campaign([EXPERT], direct=DIRECT))
    check(campaign([EXPERT]))


def test_rows_need_a_table() -> None:
    study = campaign([{**EXPERT, "belief": "uniform"}], direct={"rows": 3})
    bare = study.load_space().model_copy(update={"table": None})
    with pytest.raises(InputError, match="no reference table"):
        direct_queries(study.direct, bare, study.seed, 10)


def test_a_planted_reciter_is_found_through_refusals_and_garbage(tmp_path: Path) -> None:
    """The whole way: asked over the wire, kept, read, and held against the table."""
    direct = {"quantiles": 2, "samples": 12, "rows": 24}
    space = FeatureSpace.load("penguins")
    completion = RowCompletion.of(space, seed=1)
    memorized = dict(zip(completion.beginnings, completion.hidden, strict=True))

    def completes(number: int, body: dict[str, Any]) -> Answer:
        found = says(number, body)
        if "CSV" in body["messages"][0]["content"]:
            shown = _question(body).split("begins with\n\n")[1].split(",\n\nWhich")[0]
            return Answer(f"{memorized[shown]}") if number % 2 else Answer("I cannot recall.")
        if found.text.startswith("40;"):
            return (
                Answer("", stop="content_filter") if number % 3 == 0 else Answer("41; 17; 1e999; 4")
            )
        return found

    with Provider(completes) as provider:
        study = campaign([gpt(provider.url, concurrency=1)], pairs=5, direct=direct)
        assert run(study, tmp_path / "try").complete
        found = answers_of(study, tmp_path / "try")
    evidence = DirectEvidence.from_table(found, "gpt", space, study.seed)
    data = space.table_points()
    reference = Reference(space, space.sample(500, np.random.default_rng(0)), data)
    audit = measure_direct(evidence, reference, None, AuditSettings(), np.random.default_rng(0))
    assert audit.row_completion.memorized
    assert audit.row_completion.exact_share.value == 0.5
    assert audit.row_completion.chance_share < 0.1
    unread = {some.kind: some.unparsed for some in audit.answer_counts}
    assert unread["row"]["no numbers"] == 12
    assert unread["sample"] == {**dict.fromkeys(UNREAD, 0), "refusal": 4, "not finite": 8}
    assert audit.generated_points is None
    # One statement was made of every feature, in millimetres: three lie outside their ranges.
    assert [feature.times for feature in audit.stated_quantiles] == [2, 2, 2, 2]
    assert [feature.outside for feature in audit.stated_quantiles] == [0, 10, 10, 10]


SOFT = {
    **EXPERT,
    "log_odds": {"gain": 0.05, "noise": 0.02, "position_mean": 0.3, "position_sd": 0.1},
}
TWO = {"ranges": 6, "ratios": 4}


def test_ranges_and_ratios_are_asked_in_their_own_words(tmp_path: Path) -> None:
    def answers(_number: int, body: dict[str, Any]) -> Answer:
        system = str(body.get("system") or body["messages"][0]["content"])
        if "how many times" in system:
            return Answer("3 times")
        top = {"A": -0.5, "B": -1.0} if body.get("logprobs") else None
        return Answer("A", logprobs=top)

    with Provider(answers) as provider:
        judges = [claude(provider.url), gpt(provider.url)]
        study = campaign(judges, pairs=5, direct=TWO)
        assert run(study, tmp_path / "try").complete
        bodies = [seen.body for seen in provider.seen]
    frame = answers_of(study, tmp_path / "try")
    counts = frame.groupby(["judge", "kind", "order"]).size().to_dict()
    assert counts == {
        (judge, *kind): count
        for judge in ("claude", "gpt")
        for kind, count in ((("range", "ab"), 6), (("range", "ba"), 6), (("ratio", ""), 4))
    }
    ranges = frame[frame["kind"] == "range"]
    soft = ranges[ranges["judge"] == "gpt"]["first"]
    assert soft.to_numpy() == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert ranges[ranges["judge"] == "claude"]["first"].isna().all()
    assert frame[frame["kind"] == "ratio"]["first"].to_numpy() == pytest.approx(0.75)
    questions = [_question(body) for body in bodies if "two statements" in str(body)]
    assert len(questions) == 2 * 2 * 6
    assert all(len(re.findall(r"between [\d.,]+ and [\d.,]+ \w", q)) >= 2 for q in questions)
    # The four ratios are of different pairs of the campaign's five.
    assert sorted(set(frame[frame["kind"] == "ratio"]["number"])) != [0, 1, 2, 3, 4]
    assert set(frame[frame["kind"] == "ratio"]["number"]) <= set(range(5))


def test_answers_about_ranges_that_state_nothing_are_counted(tmp_path: Path) -> None:
    says = ["A", "I can't say.", "Let me think", "B"]
    with Provider(lambda n, body: Answer(says[n % 4])) as provider:
        study = campaign([claude(provider.url, concurrency=1)], pairs=4, direct=TWO)
        run(study, tmp_path / "try")
    evidence = DirectEvidence.from_table(
        answers_of(study, tmp_path / "try"), "claude", study.load_space(), study.seed
    )
    assert evidence.answer_counts["range"] == 12
    assert evidence.unparsed_counts["range"] == {"refusal": 3, "unparsable": 3}
    assert evidence.unparsed_counts["ratio"] == {"refusal": 1, "unparsable": 3}


def test_more_ranges_and_ratios_leave_those_asked_as_they_were(tmp_path: Path) -> None:
    folder = tmp_path / "try"
    plain = campaign([SOFT], pairs=30)
    run(plain, folder)
    pairs = table(plain, folder).frame
    run(campaign([SOFT], pairs=30, direct=TWO), folder)
    few = answers_of(plain, folder)
    many = campaign([SOFT], pairs=30, direct={"ranges": 25, "ratios": 9})
    assert run(many, folder).complete
    after = answers_of(many, folder)
    assert len(few) == 2 * 6 + 4
    assert len(after) == 2 * 25 + 9
    kept = after.merge(few, on=["kind", "number", "order", "reply", "first", "asked_at"])
    assert len(kept) == len(few)
    assert table(many, folder).frame.equals(pairs)


def test_the_expert_compares_ranges_by_their_mass(tmp_path: Path) -> None:
    study = campaign([SOFT], pairs=5, direct={"ranges": 60, "ratios": 5})
    run(study, tmp_path / "try")
    space = study.load_space()
    frame = answers_of(study, tmp_path / "try")
    expert = SimulatedBackend(study.judges[0], space)
    first, second = range_pairs(space, 60, study.seed)
    masses = expert.log_mass(first) - expert.log_mass(second)
    frame = frame[frame["kind"] == "range"]
    shown = np.log(frame["first"] / (1 - frame["first"])).to_numpy().reshape(60, 2)
    half = (shown[:, 0] - shown[:, 1]) / 2
    gain = half @ masses / (masses @ masses)
    assert gain == pytest.approx(0.05, rel=0.1)
    assert np.std(half - 0.05 * masses) == pytest.approx(0.02 / np.sqrt(2), rel=0.3)


def test_masses_are_those_of_draws_and_add_up() -> None:
    space = FeatureSpace.load("penguins")
    expert = SimulatedBackend(campaign([SOFT]).judges[0], space)
    free = np.array([[-np.inf, np.inf]] * space.dimension)
    low, high, whole = free.copy(), free.copy(), free.copy()
    middle = (space.low[0] + space.high[0]) / 2
    low[0], high[0], whole[0] = (
        (space.low[0], middle), (middle, space.high[0]), (space.low[0], space.high[0])
    )  # fmt: skip
    masses = np.exp(expert.log_mass(np.stack([low, high, whole])))
    assert masses[0] + masses[1] == pytest.approx(masses[2], abs=1e-9)
    assert 0.8 < masses[2] < 1.0  # kernels reach beyond the range asked about
    drawn = expert.sample(20_000, np.random.default_rng(9))
    assert masses[0] / masses[2] == pytest.approx((drawn[:, 0] < middle).mean(), abs=0.03)
    # Two features, and a box so narrow that next to no draw lies in it: its density counts.
    both, narrow = free.copy(), free.copy()
    both[:2] = [(40.0, 50.0), (15.0, 18.0)]
    share = ((drawn[:, :2] > both[:2, 0]) & (drawn[:, :2] < both[:2, 1])).all(axis=1).mean()
    narrow[:2] = [(44.0, 44.02), (17.0, 17.01)]
    wider = narrow.copy()
    wider[:2] = [(44.0, 44.04), (17.0, 17.02)]
    found = np.exp(expert.log_mass(np.stack([both, narrow, wider])))
    assert found[0] / masses[2] == pytest.approx(share, abs=0.04)
    assert found[2] / found[1] == pytest.approx(4.0, rel=0.01)


def test_a_judge_that_ignores_width_finds_whole_ranges_no_likelier(tmp_path: Path) -> None:
    flat = {**EXPERT, "belief": "uniform"}
    widths = {}
    for ignores in (False, True):
        judge = {**flat, "log_odds": {"gain": 1.0, "noise": 0.0, "ignores_width": ignores}}
        study = campaign([judge], pairs=5, direct={"ranges": 20})
        run(study, tmp_path / str(ignores))
        frame = answers_of(study, tmp_path / str(ignores))
        frame = frame[frame["order"] == "ab"]
        widths[ignores] = np.log(frame["first"] / (1 - frame["first"])).to_numpy()
    # A uniform belief's masses are widths, and the density within every range is the same.
    assert np.abs(widths[False]).min() > 0.5
    assert widths[True] == pytest.approx(0.0, abs=1e-9)


def test_an_estimate_tells_of_ranges_in_both_orders_and_ratios() -> None:
    judge = claude("http://127.0.0.1:9")
    plain, study = (campaign([judge], pairs=5, **more) for more in ({}, {"direct": TWO}))
    space = study.load_space()
    without, both = (estimate(one, space, plan_of(one))[0] for one in (plain, study))
    assert both.requests == 10 + 12 + 4
    assert both.completion_tokens == without.completion_tokens + 12 * 2 + 4 * 4
    done = {"claude": {"ab": 5, "ba": 5, "range-ab": 6, "range-ba": 5, "ratio": 4}}
    (left,) = estimate(study, space, plan_of(study), done)
    assert left.requests == 1
    shown = example_prompts(study, space, plan_of(study))
    assert len(shown) == 3 + 2


def test_a_campaign_of_stated_probabilities_states_them_of_ranges_too(tmp_path: Path) -> None:
    design = {"pairs": 5, "template": "v1/probability"}
    study = campaign([SOFT], direct=TWO, design=design)
    run(study, tmp_path / "try")
    frame = answers_of(study, tmp_path / "try")
    ranges = frame[frame["kind"] == "range"]
    assert set(ranges["template"]) == {"v1/range-probability"}
    assert ranges["reply"].str.fullmatch(r"\d+ %").all()
    assert ranges["first"].notna().all()


def test_ranges_need_numbers() -> None:
    words = FeatureSpace.load("penguins_kinds")
    kinds = [one for one in words.features if one.categories]
    bare = words.model_copy(update={"features": tuple(kinds)})
    for name in ("categorical", "numeric", "low", "high", "log", "names"):
        bare.__dict__.pop(name, None)
    with pytest.raises(InputError, match=r"direct\.ranges: every feature .* is categorical"):
        range_pairs(bare, 3, 1)
    first, _ = range_pairs(words, 30, 1)
    assert np.isinf(first[:, words.categorical]).all()
    assert np.isfinite(first[:, ~words.categorical]).any()


def test_ranges_are_worded_with_the_precision_that_is_kept() -> None:
    space = FeatureSpace.load("california_housing")
    for side in range_pairs(space, 40, 3):
        assert (side[..., 0] < side[..., 1]).all()
        for box in side:
            for j, feature in enumerate(space.features):
                if np.isfinite(box[j]).all():
                    assert feature.round(box[j]) == pytest.approx(box[j])
                    assert (box[j] >= feature.low).all()
                    assert (box[j] <= feature.high).all()
