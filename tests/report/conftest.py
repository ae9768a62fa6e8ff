"""One small study, drawn once for all tests of the report."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from audit.planted import Chooser, ask, cards_of, constant, gaussian_expert

from llm_elicit.audit.belief_power import BeliefAtPower, BeliefPowers, DataPower
from llm_elicit.audit.calibration import DataLevels
from llm_elicit.audit.direct_answers import DirectEvidence
from llm_elicit.audit.distances import Estimate
from llm_elicit.audit.inference import Interval
from llm_elicit.audit.people import PeopleAudit, PeopleEvidence, audit_people
from llm_elicit.audit.record import JudgeAudit, JudgeEvidence, audit_run
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.summaries import measure_bands
from llm_elicit.audit.utility import Discrimination, Effect
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.campaign import Campaign
from llm_elicit.density import Coherence, Evidence, Power, Uniform, fit_evidence
from llm_elicit.planning.direct_questions import RowCompletion
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.report import Samples, Study, write_report
from llm_elicit.report.figures import Portrait, draw_portrait
from llm_elicit.spaces.features import Feature, FeatureSpace
from report.reader import Reader
from tests.density.targets import QUADRATIC

HOSTILE = (
    "<script>document.title='owned'</script><img src=http://evil.example/x.png "
    "onerror=alert(1)></pre></main>\x1b[31m\u202e {{ 7 * 7 }}"
)


PERSON = "cleo <b>"
"""The name of a person who does not read the questions."""


def world() -> FeatureSpace:
    """Four features: a log one, a whole-numbered one, and a place on the map."""
    return FeatureSpace(
        name="world",
        title="A <small> world & its ways",
        subject="a place",
        features=(
            Feature(name="income", label="income", unit="USD", scale="log", low=1e3, high=1e5),
            Feature(name="age", label="age", unit="years", kind="integer", low=0, high=50),
            Feature(name="Latitude", label="latitude", unit="°N", low=32, high=42),
            Feature(name="Longitude", label="longitude", unit="°", low=-124, high=-114),
        ),
    )


def direct_evidence(draw, rng) -> DirectEvidence:
    """An expert that states what it believes, says so of two features, and completes all rows."""
    stated = np.quantile(draw(900), np.array(LEVELS) / 100, axis=0).T[None].repeat(2, axis=0)
    stated[:, 2:] = np.nan
    cells = tuple(f"{value:.1f}" for value in rng.uniform(-124, -114, 60))
    completion = RowCompletion(3, "a,Longitude", cells, cells, np.zeros((60, 0)), ())
    counts = {"quantiles": 8, "sample": 12, "row": 9}
    return DirectEvidence(
        quantiles=stated, points=draw(10), completion=completion, rows=tuple(range(9)),
        completed_values=np.array([float(cell) for cell in cells[:9]]), answer_counts=counts,
        unparsed_counts={"quantiles": {"other count": 4}, "sample": {"refusal": 2}, "row": {}},
    )  # fmt: skip


def band(value, half) -> Interval:
    return Interval(value=value, low=value - half, high=value + half)


def _measured(judge: JudgeAudit) -> JudgeAudit:
    """The judge with what a fitted utility and answers to ranges and ratios are measured from."""
    sources = tuple(
        Power(source=name, value=value, low=value / 1.5, high=value * 1.5, log_sd=0.25)
        for name, value in (("ranges", 2.4), ("ratios", 1.7))
    )
    width = Coherence(width=(0.9, 0.7, 1.1), expected=1.0, p_value=0.4)
    identified = Power(
        value=2.0, low=1.5, high=2.7, source="ranges + ratios", log_sd=0.18, sources=sources,
        agreement=0.3, coherence=width,
    )  # fmt: skip
    rows = [
        BeliefAtPower(
            factor=factor, data_distance=Estimate(mean=1 / factor, sd=0.01), log_density=-5.0,
            mean_shifts=[0.1 * factor] * 4, sd_ratios=[1.2] * 4,
        )
        for factor in (0.25, 0.5, 1.0, 2.0, 4.0)
    ]  # fmt: skip
    powers = BeliefPowers(
        saved_power=2.0, saved_source="ranges + ratios", identified_power=identified,
        data_power=DataPower(value=9.0, low=8.0, high=10.0, is_maximum_inside=True), beliefs=rows,
        size=400, sampling_data_distance=Estimate(mean=2.0, sd=0.01), sampling_log_density=-7.0,
    )  # fmt: skip
    directions = (("age", "lower", 0.4), ("income", "higher", 0.9), ("Latitude", "middle", 0.2))
    effects = [
        Effect(
            name=name, value=size, low=size - 0.1, high=size + 0.1, direction=direction, sd=size,
            loo_r2=0.2, p_value=0.005, p_holm=0.02, p_is_bound=True,
        )
        for name, direction, size in directions
    ]  # fmt: skip
    unclear = {"direction": "ends", "name": "Longitude", "p_value": 0.6, "p_holm": 0.6}
    unclear |= {"low": -0.4, "high": 1.2}
    order = [effects[1], effects[0], effects[2], effects[0].model_copy(update=unclear)]
    found = Discrimination(
        rows=900, auc=band(0.83, 0.04), ceiling=0.95, rank_correlation=band(0.7, 0.1),
        level_set=band(0.5, 0.05), level_set_ceiling=0.8,
    )  # fmt: skip
    preference = judge.preference.model_copy(update={"verdict": "belief with a scale"})
    return judge.model_copy(
        update={
            "preference": preference, "powers": powers, "effects": tuple(order),
            "discrimination": found,
        }
    )  # fmt: skip


def people_audit(log: Comparisons, choose: Chooser) -> PeopleAudit | None:
    """Ben judges as the expert does; the other names either option, within half a second."""
    space, frames = world(), [log.frame]
    for name, chooser in (("ben", choose), (PERSON, constant(0.5))):
        answers = ask(space, chooser, np.random.default_rng(7), 60, name="panel").frame
        frames.append(answers.assign(model_answered=name))
    cards = pd.concat([cards_of(frames[1]), cards_of(frames[2], seconds=0.5)])
    cards.loc[(cards["expert"] == PERSON) & (cards["kind"] == "attention"), "choice"] = "b"
    return audit_people(PeopleEvidence(Comparisons(pd.concat(frames), space.names), cards))


@pytest.fixture(scope="session")
def study() -> Study:
    space, rng = world(), np.random.default_rng(0)
    centre, width = np.array([9.2, 25.0, 37.0, -119.0]), np.array([0.5, 6.0, 1.2, 1.2])

    def draw(n, power=1.0):
        return space.round(space.from_scale(rng.normal(centre, width / power**0.5, size=(n, 4))))

    def standard(points):
        return (space.to_scale(points) - centre) / width

    choose = gaussian_expert(space)
    expert = ask(space, lambda a, b: choose(standard(a), standard(b)), rng, 60, name="expert")
    stuck = ask(space, constant(0.9), rng, 60, name="stuck <b>judge</b>", soft=True).frame
    stuck.loc[2, ["reply", "verdict", "probability"]] = [HOSTILE, "refusal", np.nan]
    log = Comparisons(pd.concat([expert.frame, stuck]), space.names)
    data, sampling, belief = draw(900), space.sample(900, rng), draw(900)
    flat = space.sample(900, rng)
    choices = log.choices("expert")
    bands = measure_bands(
        fit_evidence(
            Evidence.comparisons(choices.a, choices.b, choices.preference), method="utility",
            settings=QUADRATIC,
            sampling=Uniform(space.low, space.high, log=space.log),
        ).draws(),
        space,
    )  # fmt: skip
    calibration = {"bins": [{"share": 1.0, "predicted": 0.8, "observed": 0.7}], "error": 0.1}
    gains = {"constant": {"mean": 0.3, "se": 0.05}}
    diagnostics = {
        "held_out_log_likelihood": -0.4,
        "note": HOSTILE,
        "utility": {"gains": gains, "calibration": calibration},
        "null_models": {"random choices": -0.693, "quadratic": -0.41},
    }
    fits = {"utility": diagnostics}
    beliefs = {"utility": belief, "score": draw(900)}
    evidence = [
        JudgeEvidence(
            "expert", log, beliefs, fits, bands, DataLevels(rng.uniform(size=900), 4000),
            draws=np.stack([draw(150) for _ in range(24)]),
            direct=direct_evidence(draw, np.random.default_rng(1)),
        ),
        JudgeEvidence("stuck <b>judge</b>", log, {"utility": flat}),
    ]  # fmt: skip
    small = AuditSettings(size=100, marginal_size=400, repeats=2, flips=199)
    audit = audit_run(evidence, Reference(space, sampling, data), settings=small)
    people = people_audit(log, lambda a, b: choose(standard(a), standard(b)))
    judges = [_measured(audit.judges[0]), audit.judges[1]]
    audit = audit.model_copy(update={"judges": judges, "people": people})
    campaign = Campaign.model_validate(
        {
            "name": "test",
            "space": "world",
            "judges": [
                {
                    "name": "expert",
                    "backend": "openai",
                    "model": "m",
                    "base_url": "http://host.example/",
                },
            ],
        }
    )
    return Study(
        audit,
        campaign,
        log,
        Samples(
            space,
            sampling,
            data,
            {"expert": belief, "stuck <b>judge</b>": flat},
            {"expert": bands},
            points_by_factor={"expert": {k: draw(400, k) for k in (0.25, 0.5, 2.0, 4.0)}},
        ),
        versions={"Python": "3"},
        prompts={"0" * 64: f"Which is likelier? {HOSTILE}"},
        created="2026-01-01 00:00 UTC",
        log_odds={"expert": "log-odds: yes, 5 alternatives"},
    )


@pytest.fixture(scope="session")
def portrait(study) -> Portrait:
    """The expert's figures."""
    return draw_portrait(study.samples, "expert")


@pytest.fixture(scope="session")
def report(study, tmp_path_factory) -> tuple[Path, dict[str, Portrait]]:
    """The page's path, and the figures that were drawn for it by judge."""
    portraits = {}

    def draw(samples, judge):
        portraits[judge] = draw_portrait(samples, judge)
        return portraits[judge]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llm_elicit.report.page.draw_portrait", draw)
        return write_report(study, tmp_path_factory.mktemp("run")), portraits


@pytest.fixture(scope="session")
def written(report) -> Path:
    """The page's path."""
    return report[0]


@pytest.fixture(scope="session")
def page(written) -> str:
    return written.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def reader(page) -> Reader:
    parsed = Reader()
    parsed.feed(page)
    parsed.close()
    return parsed
