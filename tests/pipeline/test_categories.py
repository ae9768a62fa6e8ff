"""Campaigns about words: asked, believed, audited and reported as words, never as their codes."""

import hashlib
import json
import re

import numpy as np
import pandas as pd
import pytest
import yaml

import llm_elicit as le
from llm_elicit._util.settings import validate
from llm_elicit.audit.summaries import correlation_columns, correlation_pairs
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.design import Design, Direct
from llm_elicit.pipeline import stages
from llm_elicit.planning.pairs import direct_queries, make_plan
from llm_elicit.spaces.features import FeatureSpace

WORDS = ['<b>&"oak"', "$elm$ a_b|c", "ash"]
SHARES = np.array([0.5, 0.3, 0.2])
KIND = {"name": "kind", "label": "kind", "kind": "categorical", "categories": WORDS}
SEX = {"name": "sex", "label": "sex", "kind": "categorical", "categories": ["f", "m"]}
HEIGHT = {"name": "height", "label": "height", "unit": "m", "low": 0, "high": 30}


def space_of(features, folder=None):
    data = {"name": "trees", "title": "trees", "subject": "a tree", "features": features}
    if folder is None:
        return validate(FeatureSpace, data, "trees")
    rng = np.random.default_rng(0)
    codes = rng.choice(3, 400, p=SHARES)
    height = rng.normal(np.array([22.0, 12.0, 6.0])[codes], 2.0).clip(0, 30)
    pd.DataFrame({
        "kind": np.array(WORDS)[codes], "sex": np.where(codes == 1, "m", "f"), "height": height
    }).to_csv(folder / "trees.csv", index=False)  # fmt: skip
    digest = hashlib.sha256((folder / "trees.csv").read_bytes()).hexdigest()
    data["table"] = {
        "file": "trees.csv", "sha256": digest, "source": "made up", "licence": "CC0", "rows": 400,
    }  # fmt: skip
    path = folder / "trees.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def campaign(folder, features, **more):
    data = {
        "name": "trees", "space": str(space_of(features, folder)), "runs": str(folder / "runs"),
        "judges": [{"name": "expert", "backend": "simulated"}],
        "fit": {"method": "utility", "samples": 2000},
    }  # fmt: skip
    path = folder / "campaign.yaml"
    path.write_text(yaml.safe_dump(data | more))
    return path


@pytest.fixture(scope="module")
def trees(tmp_path_factory, quick_fits):
    """An expert on kinds and heights, and a random judge, both also asked directly."""
    # As many choices leave the shares uncertain by as much as the bounds below.
    odds = {"gain": 1.0, "noise": 0.3}
    judges = [
        {"name": "expert", "backend": "simulated", "log_odds": odds},
        {"name": "random", "backend": "simulated", "belief": "uniform", "seed": 2},
    ]
    path = campaign(
        tmp_path_factory.mktemp("trees"), [KIND, HEIGHT],
        design={"pairs": 100}, direct={"quantiles": 1, "samples": 30, "rows": 5}, judges=judges,
    )  # fmt: skip
    return le.run(path, progress=le.Silent())


def test_the_experts_shares_are_found(trees):
    belief = trees.audit.of("expert").belief_summary[0].shares
    bands = trees.audit.of("expert").bands[0].shares
    assert list(belief) == list(bands) == WORDS
    data = trees.audit.reference.data_summary[0].shares
    for word in WORDS:
        assert belief[word] == pytest.approx(data[word], abs=0.15)
        assert bands[word][0] - 0.02 <= data[word] <= bands[word][1] + 0.02
    found = trees.audit.of("expert").data_distance.features[0]
    floor = trees.audit.reference.data_floor.features[0]
    assert found.wasserstein is floor.wasserstein is None
    assert found.total_variation.mean < floor.total_variation.mean + 0.12


def records_of(node, name):
    """Every record of an audit's JSON that is of one feature."""
    if isinstance(node, dict):
        if node.get("name") == name or name in (node.get("first"), node.get("second")):
            yield node
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from records_of(each, name)


def test_no_number_of_an_audit_is_made_of_codes(trees):
    audit = json.loads((trees.folder / "audit.json").read_text())
    del audit["space"]
    # An effect's numbers are log-odds between the two categories that it names.
    effects = [each for judge in audit["judges"] for each in judge.pop("effects")]
    assert all(len(each["categories"]) == 2 for each in effects if each["name"] == "kind")
    found = list(records_of(audit, "kind"))
    assert len(found) > 8
    numeric = {"mean", "sd", "q05", "q50", "wasserstein", "quantiles", "median", "low", "high"}
    for record in found:
        assert all(record.get(key) is None for key in numeric), record
    assert [each["name"] for each in audit["judges"][0]["shape"]["tails"]] == ["height"]
    rows = audit["judges"][0]["powers"]["beliefs"]
    assert len(rows) == 9
    assert all(row["mean_shifts"][0] is None and row["sd_ratios"][0] is None for row in rows)


def test_correlations_are_of_having_a_category(trees):
    """Some kinds are taller than others, as the expert knows from the table."""
    judge = trees.audit.of("expert")
    assert [pair.sides for pair in judge.shape.correlations] == [
        (("kind", word), ("height", None)) for word in WORDS
    ]
    table = pd.read_csv(trees.folder.parent.parent / "trees.csv")
    for word, pair in zip(WORDS, judge.shape.correlations, strict=True):
        found = np.corrcoef(table["kind"] == word, table["height"])[0, 1]
        assert pair.data.value == pytest.approx(found, abs=0.02)
        assert pair.belief == pytest.approx(found, abs=0.2)
        assert pair.band[0] - 0.05 < found < pair.band[1] + 0.05
        assert abs(pair.sampling) < 0.06
    assert "kind ash, height" in trees.report_path.read_text()


def test_of_two_categories_one_is_shown():
    space = space_of([SEX, HEIGHT])
    points = np.array([[0.0, 3.0], [1.0, 4.0]])
    assert correlation_columns(space, points).tolist() == [[0.0, 3.0], [1.0, 4.0]]
    assert [pair.sides for _, _, pair in correlation_pairs(space)] == [
        (("sex", "m"), ("height", None))
    ]


def test_questions_and_the_page_have_words(trees):
    page = trees.report_path.read_text()
    assert "<b>&" not in page
    escaped = "&lt;b&gt;&amp;&#34;oak&#34;"
    assert re.search(rf'<th scope="row">{escaped}</th>(<td>[\d.]+%</td>){{2}}<td>[\d.]+% to', page)
    assert "Shares of kind. &lt;b&gt;" in page
    assert 'id="term-shares"' in page
    asked = make_plan(trees.space, trees.campaign.design, trees.campaign.seed).a[0]
    assert trees.space.word(asked)[0][1] in WORDS
    names = {path.name for path in (trees.folder / "tables").iterdir()}
    assert {"expert-shares.csv", "expert-shares.md", "expert-features.tex"} <= names
    table = pd.read_csv(trees.folder / "tables" / "expert-shares.csv")
    assert table.groupby("sample")["share"].sum().to_numpy() == pytest.approx(1.0)
    features = pd.read_csv(trees.folder / "tables" / "expert-features.csv")
    assert set(features["feature"]) == {"height"}
    assert r"\$elm\$ a\_b\|c" in (trees.folder / "tables" / "expert-shares.md").read_text()


def test_the_marginal_is_bars_labelled_by_words(trees):
    drawn = (trees.folder / "figures" / "expert-marginals.svg").read_text()
    for word in ("&lt;b&gt;&amp;&quot;oak&quot;", "$elm$ a_b|c", "ash"):
        assert word in drawn or word.replace("&quot;", '"') in drawn


def test_direct_answers_are_words_and_quantiles_of_numbers(trees):
    direct = trees.audit.of("expert").direct
    assert [each.name for each in direct.stated_quantiles] == ["height"]
    assert all(each.parsed == each.answers for each in direct.answer_counts)
    kind, height = direct.generated_points.features
    assert 0 <= kind.data.distance <= 1
    assert height.data is not None
    replies = trees.direct[trees.direct["kind"] == "sample"]["reply"]
    assert replies.map(lambda reply: reply.split("; ")[0]).isin(WORDS).all()


def test_judges_are_compared_by_shares(trees):
    (gap,) = le.compare([trees]).differences
    kind, height = sorted(gap.features, key=lambda feature: feature.mean is not None)
    assert list(kind.shares) == WORDS
    assert kind.mean is kind.log_sd is None
    assert sum(each.value for each in kind.shares.values()) == pytest.approx(0.0, abs=0.1)
    assert height.shares is None
    assert height.mean is not None


def test_words_alone_are_asked_anew_as_often_as_their_pairs_are_drawn(tmp_path):
    """Six points make fifteen pairs: one answer each, looked up again, would tell no share."""
    judges = [
        {"name": "expert", "backend": "simulated"},
        {"name": "random", "backend": "simulated", "belief": "uniform", "seed": 2},
    ]
    path = campaign(tmp_path, [KIND, SEX], design={"pairs": 200, "triads": 5}, judges=judges)
    run = le.run(path, progress=le.Silent())
    rows = run.comparisons.of("expert")
    points = [f"{side}_{name}" for side in "ab" for name in run.space.names]
    assert (rows[points[:2]].to_numpy() != rows[points[2:]].to_numpy()).any(axis=1).all()
    assert rows.groupby([*points, "order"])["verdict"].nunique().max() == 2
    belief = run.audit.of("expert").belief_summary[0].shares
    for word, share in run.audit.reference.data_summary[0].shares.items():
        assert belief[word] == pytest.approx(share, abs=0.12)
    assert run.report_path.is_file()
    (gap,) = le.compare([run]).differences
    assert "sex" in gap.differing_features


def test_methods_and_questions_that_know_no_words_are_refused_before_any_is_asked(tmp_path):
    path = campaign(tmp_path, [KIND, HEIGHT], fit={"methods": ["auto", "flow"]})
    with pytest.raises(le.InputError, match=r"'flow' supports only numbers, but kind of trees"):
        Campaign.load(path).load_space()
    with pytest.raises(le.InputError, match="'flow' supports only numbers"):
        stages.plan(path)
    with pytest.raises(le.InputError, match="every feature of trees is categorical"):
        direct_queries(Direct(quantiles=1), space_of([KIND, SEX]), 1, 10)
    with pytest.raises(le.InputError, match="has only 2 different points"):
        make_plan(space_of([SEX]), Design(pairs=9, triads=2), seed=1)


def test_pairs_of_words_are_of_two_points_and_longer_plans_begin_with_shorter():
    space = space_of([KIND, SEX])
    some, more = (make_plan(space, Design(pairs=n), seed=3) for n in (40, 90))
    np.testing.assert_array_equal(some.a, more.a[:40])
    np.testing.assert_array_equal(some.b, more.b[:40])
    assert (more.a != more.b).any(axis=1).all()
    triads = make_plan(space, Design(pairs=60, triads=20), seed=3)
    assert (triads.a != triads.b).any(axis=1).all()


def test_without_a_table_and_with_many_words_there_is_a_report_too(tmp_path):
    many = {**KIND, "categories": [f"kind {i}" for i in range(15)]}
    data = {"name": "many", "title": "t", "subject": "a tree", "features": [many, HEIGHT]}
    (tmp_path / "many.yaml").write_text(yaml.safe_dump(data))
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({
        "name": "many", "space": str(tmp_path / "many.yaml"), "runs": str(tmp_path / "runs"),
        "judges": [{"name": "random", "backend": "simulated", "belief": "uniform"}],
        "design": {"pairs": 60}, "fit": {"method": "utility", "samples": 500},
    }))  # fmt: skip
    run = le.run(path, progress=le.Silent())
    audit = run.audit.of("random")
    assert audit.boxes is audit.data_distance is None
    assert sum(audit.belief_summary[0].shares.values()) == pytest.approx(1.0)
    assert audit.sampling_distance.features[0].wasserstein is None
    assert "kind 14" in run.report_path.read_text()
