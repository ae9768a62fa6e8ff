"""Rows are kept as they come, skipped when done, tried again when failed; real fits end to end."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks import Job, adaptive, power
from benchmarks import run as module
from benchmarks.__main__ import main
from benchmarks.adaptive import measure_adaptive, round_ends
from benchmarks.coverage import measure_coverage
from benchmarks.measure import Streams, compare, measure
from benchmarks.run import Request, Rows, key_of, parse_seeds, run_table
from benchmarks.targets import find
from llm_elicit.density import FitSettings, MixtureSettings
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline.cluster import Workers
from tests.benchmarks.stand_ins import MARK, odd_seeds_fail, quick

SMALL = ["--methods", "utility", "--comparisons-per-feature", "20", "--points", "100"]
KEY = [
    "table", "target", "method", "variant", "seed", "n", "points", "samples", "settings", "version",
]  # fmt: skip
COLUMNS = [
    "dimension", "w1", "w1_floor", "mmtv", "mmtv_floor", "fit_seconds", "sample_seconds",
    "peak_mib", "held_out_log_likelihood", "diagnostics", "commit", "machine", "date", "error",
]  # fmt: skip


@pytest.fixture
def marks(tmp_path, monkeypatch):
    """Where the stand-ins leave their marks: one `x` a run of a job."""
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv(MARK, str(folder))
    return lambda: {mark.name: len(mark.read_text()) for mark in folder.iterdir()}


def request(*seeds):
    return Request("table1", targets=("Ring2D",), methods=("utility",), seeds=seeds)


def test_a_second_run_runs_only_new_jobs(tmp_path, monkeypatch, marks):
    monkeypatch.setattr(module, "measure", quick)
    run_table(request(1, 2), tmp_path, Silent())
    rows = run_table(request(1, 2, 3), tmp_path, Silent(), Workers(count=1))
    assert rows["seed"].tolist() == [1, 2, 3]
    assert set(marks().values()) == {1}, "every job ran once"
    other = Request("table1", ("Ring2D",), (1,), ("utility",), points=500)
    run_table(other, tmp_path, Silent())
    assert marks()["Ring2D-utility-default-001-n2000"] == 2, "other points, another row"
    assert len(pd.read_parquet(tmp_path / "table1.parquet")) == 4


def test_a_failed_job_is_recorded_and_tried_again_and_stops_no_other(tmp_path, monkeypatch, marks):
    monkeypatch.setattr(module, "measure", odd_seeds_fail)
    rows = run_table(request(1, 2, 3), tmp_path, Silent()).set_index("seed")
    assert rows.loc[1, "error"] == "ValueError: the fit did not converge"
    assert pd.isna(rows.loc[2, "error"])
    monkeypatch.setattr(module, "measure", quick)
    rows = run_table(request(1, 2, 3), tmp_path, Silent())
    assert rows["error"].isna().all()
    assert set(marks().values()) == {1}, "seed 2 was not run again"


def test_an_incomplete_file_is_not_read_as_a_row(tmp_path, monkeypatch, marks):
    monkeypatch.setattr(module, "measure", quick)
    run_table(request(1), tmp_path, Silent())
    (whole,) = (tmp_path / "table1" / "rows").glob("*.parquet")
    half = whole.with_name(f".{whole.name}.123")
    half.write_bytes(whole.read_bytes()[:50])
    whole.unlink()
    assert len(run_table(request(1), tmp_path, Silent())) == 1
    assert set(marks().values()) == {2}


def test_the_key_changes_with_everything_that_shapes_a_row(tmp_path):
    base = Job("table1", "Ring2D", "utility", 1, 2000)
    others = [
        Job("runtime", "Ring2D", "utility", 1, 2000),
        Job("table1", "Onemoon2D", "utility", 1, 2000),
        Job("table1", "Ring2D", "score", 1, 2000),
        Job("table1", "Ring2D", "utility", 2, 2000),
        Job("table1", "Ring2D", "utility", 1, 200),
        Job("table1", "Ring2D", "utility", 1, 2000, points=500),
        Job("ablation", "Ring2D", "score", 1, 2000, "wide"),
        Job("ablation", "Ring2D", "protocol", 1, 2000, "paper+clip"),
    ]
    rows = Rows(tmp_path, "table1")
    assert len({rows.path(job) for job in [base, *others]}) == 9


def test_all_methods_see_the_same_comparisons_and_seeds_do_not():
    target = find(["Onemoon2D"])[0]
    first, again, other = (
        compare(target, 50, Streams.of("Onemoon2D", seed))[0] for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert not (first == other).any()


def test_a_judge_prefers_what_the_target_prefers():
    target = find(["Gaussian4D"])[0]
    winners, losers = compare(target, 2000, Streams.of("Gaussian4D", 1))
    assert (target.log_density(winners) > target.log_density(losers)).mean() > 0.9


def test_a_measured_row_is_complete_and_the_same_again():
    job = Job("table1", "Ring2D", "utility", 11, 60, points=100, samples=2000)
    row, again = measure(job), measure(job)
    assert set(COLUMNS) - {"error"} <= set(row)
    for name in ("w1", "w1_floor", "mmtv", "mmtv_floor", "held_out_log_likelihood"):
        assert row[name] == again[name]
    assert row["w1"] > row["w1_floor"] > 0
    assert json.loads(row["diagnostics"])["method"] == "utility"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"table": "table9"}, "table 'table9' is unknown; choose from table1"),
        ({"targets": ("Moon",)}, "target 'Moon'"),
        ({"methods": ("magic",)}, "method 'magic' is unknown; choose from"),
        ({"table": "ablation", "variants": ("magic",)}, "variant 'magic'"),
        (
            {"variants": ("winners",)},
            "variants belong to ablation, coverage, power and low-amplitude",
        ),
        ({"table": "ablation", "methods": ("utility",)}, "leave --methods out"),
        ({"seeds": ()}, "at least one"),
        ({"comparisons_per_feature": 0}, "at least 1"),
        ({"points": 30_000}, "25000"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        Request(**{"table": "table1", **changes})


@pytest.mark.parametrize("text", ["a", "1-", "1-b", "-3"])
def test_seeds_that_cannot_be_read_are_refused(text):
    with pytest.raises(InputError, match="seeds"):
        parse_seeds(text)


def test_the_ablation_leaves_the_slow_variants_out_unless_asked():
    usual = {job.variant for job in Request("ablation", ("Ring2D",), (1,)).jobs()}
    assert "two-networks" in usual
    assert not any(name.startswith("paper") for name in usual)
    asked = Request("ablation", ("Ring2D",), (1,), variants=("paper", "paper+jacobian")).jobs()
    assert [job.method for job in asked] == ["protocol", "protocol"]


def bench(folder, monkeypatch, capsys, *arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0, capsys.readouterr()


def test_the_command_prints_published_ours_and_floor_and_writes_markdown(
    tmp_path, monkeypatch, capsys
):
    arguments = ["table1", "--targets", "ring2d", "--seeds", "11", *SMALL, "--markdown", "t.md"]
    code, said = bench(tmp_path, monkeypatch, capsys, *arguments)
    assert code == 0, said.err
    rows = pd.read_parquet(tmp_path / "runs/bench/table1.parquet")
    assert {*KEY, *COLUMNS} <= set(rows.columns)
    assert f"{rows['w1'][0]:.3f}" in said.out
    page = (tmp_path / "t.md").read_text()
    assert "| target | method | published | ours | floor |" in page
    assert "python -m benchmarks table1 --targets ring2d" in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rows/*.parquet")}
    code, said = bench(tmp_path, monkeypatch, capsys, *arguments)
    assert code == 0
    assert f"{rows['w1'][0]:.3f}" in said.out
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rows/*.parquet")}


def test_the_command_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    code, said = bench(tmp_path, monkeypatch, capsys, "table1", "--methods", "magic")
    assert code == 2
    assert said.err.strip().count("\n") == 0
    assert said.err.startswith("error: method 'magic' is unknown")
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_keeps_the_finished_rows_and_exits_with_130(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "table1", "--targets", "Ring2D"]
    running = subprocess.Popen(
        [*command, "--seeds", "1-50", *SMALL, "--out", "b"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        end = time.monotonic() + 120
        while not list(tmp_path.rglob("rows/Ring2D*.parquet")):
            assert time.monotonic() < end, "no row came"
            assert running.poll() is None
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=120)[1].decode()
    finally:
        running.kill()
    assert running.returncode == 130, said
    assert "run again to resume" in said
    assert "Traceback" not in said
    kept = pd.read_parquet(tmp_path / "b/table1.parquet")
    assert len(kept) == len(list(tmp_path.rglob("rows/Ring2D*.parquet"))) >= 1
    assert kept["error"].isna().all()


def test_pairs_chosen_in_rounds_end_where_they_should(monkeypatch):
    # Draws of mixtures take seconds, and where rounds end does not depend on them.
    utility = replace(adaptive.BETWEEN_ROUNDS.utility, mixture=MixtureSettings(counts=()))
    monkeypatch.setattr(adaptive, "BETWEEN_ROUNDS", FitSettings(utility=utility))
    row = measure_adaptive(
        Job("adaptive", "Onemoon2D", "auto", seed=11, n=150, points=200, samples=500)
    )
    curve = json.loads(row["curve"])
    assert [at["n"] for at in curve] == [100, 150] == round_ends(2, 150)
    assert curve[-1]["w1"] == row["w1"] > 0
    assert row["suggest_seconds"] < 60


def test_variants_are_those_of_the_table():
    jobs = Request("coverage", ("Ring2D",), (1,), variants=("normal", "log-odds")).jobs()
    assert [job.variant for job in jobs] == ["normal", "log-odds"]
    assert key_of(jobs[0]) != key_of(jobs[1])
    with pytest.raises(InputError, match=r"variant 'paper\+clip' is unknown"):
        Request("coverage", variants=("paper+clip",))
    with pytest.raises(InputError, match="leave them out of table1"):
        Request("table1", variants=("paper+clip",))


def test_log_odds_have_bands_at_the_true_power():
    row = measure_coverage(Job("coverage", "Normal1D", "auto", seed=2, n=40, variant="log-odds"))
    held = row["mean_cover"], row["quantile_cover"], row["cdf_cover"]
    assert held == (1.0, 1.0, 1.0), "at power 1 the belief is as wide as λ"
    assert 0.1 < row["mean_width"] < 0.5


def test_random_judges_and_the_judge_may_be_asked_in_rounds(monkeypatch):
    target, asked = find(["Ring2D"])[0], []

    class Ring:
        """Stands for a fit, which takes seconds."""

        def sample(self, n, seed):
            return target.sample(n, np.random.default_rng(seed))

    def suggest(_belief, n, seed):
        asked.append(n)
        rng = np.random.default_rng(seed)
        return target.sampling.sample(n, rng), target.sampling.sample(n, rng)

    monkeypatch.setattr(power, "fit_belief", lambda *_args, **_rest: Ring())
    monkeypatch.setattr(power, "suggest_pairs", suggest)
    asking = Request("power", ("Ring2D",), (11,), (), ("rounds",), comparisons_per_feature=100)
    (job,) = asking.jobs()
    row = power.measure_power(job)
    assert asked == [50, 50] * 21, "twenty random judges and the judge, each in three rounds"
    assert (row["random_judges"], row["found"]) == (20, 1.0)
    assert row["false_alarms"] <= 0.25
    assert [job.variant for job in Request("power", seeds=(1,), targets=("Ring2D",)).jobs()] == [
        "default"
    ]
