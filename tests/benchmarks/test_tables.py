"""What is printed: published, ours, floor, excess; failures shown; Markdown well formed."""

from dataclasses import replace

import pandas as pd
import pytest

from benchmarks import Job
from benchmarks.marginal import measure_marginal
from benchmarks.tables import MARGINALIZATION, SECONDS, TABLE_1, make_tables, published
from benchmarks.targets import PAPER_TARGETS
from benchmarks.variants import VARIANTS, Variant, variant
from llm_elicit.baselines.protocol import paper_protocol
from llm_elicit.density import FitSettings


def row(seed, error=None, **changes):
    numbers = {
        "target": "Ring2D", "method": "score", "variant": "default", "seed": seed, "w1": 0.2,
        "w1_floor": 0.06, "mmtv": 0.1, "mmtv_floor": 0.03, "fit_seconds": 10.0,
        "sample_seconds": 2.0, "peak_mib": 500.0,
    }  # fmt: skip
    return {**numbers, **changes, "error": error}


def lines(table, frame):
    return [
        dict(zip(made.columns, line, strict=True))
        for made in make_tables(table, frame)
        for line in made.rows
    ]


def test_a_table_has_published_and_own_numbers_floor_and_excess():
    frame = pd.DataFrame([row(1), row(2, w1=0.3)])
    wasserstein, mmtv = lines("table1", frame)
    assert wasserstein == {
        "target": "Ring2D", "method": "score", "published": "0.39 ± 0.08", "ours": "0.250 ± 0.071",
        "floor": "0.060", "excess": "0.190", "seconds": "12.0", "peak MiB": "500", "seeds": "2",
    }  # fmt: skip
    assert (mmtv["published"], mmtv["ours"]) == ("0.26 ± 0.01", "0.100 ± 0.000")


def test_a_failed_seed_is_shown_and_not_averaged():
    frame = pd.DataFrame([row(1), row(2, "ValueError: no", w1=None)])
    first = lines("table1", frame)[0]
    assert (first["ours"], first["seeds"]) == ("0.200", "1, 1 failed")
    nothing = lines("table1", pd.DataFrame([{**row(1, "no"), "w1": None}]).drop(columns="w1"))[0]
    assert (nothing["ours"], nothing["excess"], nothing["seeds"]) == ("", "", "0, 1 failed")


def test_published_numbers_are_shown_for_all_methods_but_only_the_paper_s_targets():
    frame = pd.DataFrame([row(1, method="utility"), row(1, target="Banana2D")])
    assert [line["published"] for line in lines("table1", frame)[:2]] == ["0.39 ± 0.08", ""]


def test_the_runtime_table_says_how_many_times_faster():
    (line,) = lines("runtime", pd.DataFrame([row(1)]))
    assert line["published fit"] == "82 + 47"
    assert line["times faster"] == f"{(82 + 47 + 692) / 12:.0f}×"


def test_the_ablation_has_a_row_for_each_variant():
    frame = pd.DataFrame([row(1, variant="winners"), row(1, variant="no-cap")])
    assert [line["variant"] for line in lines("ablation", frame)[:2]] == ["winners", "no-cap"]


def test_markdown_has_as_many_cells_in_every_line():
    table = make_tables("table1", pd.DataFrame([row(1)]))[0]
    text = table.markdown().splitlines()
    assert text[0] == "**Wasserstein**"
    assert {line.count("|") for line in text[2:]} == {len(table.columns) + 1}


def test_no_rows_make_no_tables():
    assert make_tables("table1", pd.DataFrame()) == []


def test_every_target_of_the_paper_has_all_its_numbers():
    names = {target.name for target in PAPER_TARGETS}
    assert set(SECONDS) == set(MARGINALIZATION) == {target for target, _, _ in TABLE_1} == names
    assert len(TABLE_1) == 8 * 3 * 2
    assert published("Gaussian16D", "flow", "w1").mean == 5.50
    assert published("Gaussian16D", "auto", "w1") == published("Gaussian16D", "score", "w1")
    assert published("Banana2D", "auto", "w1") is None
    assert published("Mixturegaussians10D", "score-constant", "mmtv").mean == 0.14
    assert SECONDS["Gaussian16D"].total == 797 + 4977 + 47477


def test_every_variant_differs_from_every_other():
    digests = [each.digest(2) for each in VARIANTS.values()]
    assert len(set(digests)) == len(digests)
    assert variant("score").digest(2) == VARIANTS["score"].digest(2)
    assert all(each.about for each in VARIANTS.values())


@pytest.fixture
def quick_training(monkeypatch):
    paper = paper_protocol(2)
    settings = FitSettings(external=replace(paper, training=replace(paper.training, steps=250)))
    monkeypatch.setitem(VARIANTS, "quick", Variant("protocol", "little", lambda _: settings))


def test_winners_drawn_jointly_and_alone_are_both_near_true_ones(quick_training):
    job = Job("marginalization", "Onemoon2D", "protocol", 11, 2000, "quick", 500, 1000)
    found = measure_marginal(job)
    # λ itself, which an untrained network gives, is 0.86 away.
    assert 0 < found["w1_alone"] < 2.2 * found["w1_floor"] < 0.8
    assert 0 < found["w1_joint"] < 2.2 * found["w1_floor"]
    (line,) = lines("marginalization", pd.DataFrame([{**found, **row(11), **{"w1": found["w1"]}}]))
    assert line["published"] == "0.077 ± 0.012"
    assert line["joint–alone"] == f"{found['w1']:.3f}"


def test_the_adaptive_table_says_when_the_published_excess_is_reached():
    curve = '[{"n": 100, "w1": 0.6, "mmtv": 0.4}, {"n": 200, "w1": 0.3, "mmtv": 0.2}]'
    shared = {"dimension": 2, "curve": curve, "suggest_seconds": 0.25, "total_seconds": 50.0}
    (line,) = lines("adaptive", pd.DataFrame([row(1, **shared), row(2, "no", curve=None)]))
    assert line["published excess at 1000·d"] == "0.35"
    assert line["excess by the end of each round"] == "50·d 0.540, 100·d 0.240"
    assert (line["published reached"], line["seeds"]) == ("100·d", "1, 1 failed")


def test_the_coverage_table_keeps_judges_apart():
    shares = {"mean_cover": 1.0, "quantile_cover": 0.9, "cdf_cover": 0.8, "mean_width": 0.3}
    frame = pd.DataFrame([row(1, **shares), row(1, **shares, variant="half-level")])
    first, second = lines("coverage", frame)
    assert (first["judge"], second["judge"]) == ("default", "half-level")
    assert (first["means"], first["together"]) == ("1.00", "0.90")


def test_the_power_table_counts_random_judges():
    found = {"random_judges": 100, "found": 1.0}
    frame = pd.DataFrame([row(s, **found, false_alarms=a) for s, a in ((1, 0.02), (2, 0.06))])
    (line,) = lines("power", frame)
    assert (line["random judges called consistent"], line["random judges"]) == (
        "0.040 ± 0.028",
        "200",
    )
    assert line["judge found"] == "1.00"


def test_the_faint_table_has_medians_and_the_power_s_error():
    shared = {"rank_correlation": 0.9, "w1_true_power": 1.0, "w1_floor": 0.2, "true_power": 10.0}
    rows = [
        row(seed, **shared, w1=w1, power=power, covered=1.0, coherent=None, power_seconds=2.0)
        for seed, w1, power in ((1, 1.2, 20.0), (2, 1.4, 5.0), (3, 9.0, 10.0))
    ]
    (line,) = lines("low-amplitude", pd.DataFrame(rows))
    assert (line["W1, estimated power"], line["estimated / true"]) == ("1.400", "1.400")
    assert (line["power / true"], line["error of its logarithm"]) == ("1.00", "0.46")
    assert (line["interval covers"], line["seeds"]) == ("1.00", "3")
