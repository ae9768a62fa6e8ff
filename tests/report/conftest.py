"""One small study, drawn once for all tests of the report."""

import numpy as np
import pandas as pd
import pytest
from audit.planted import ask, constant, gaussian_expert

from llm_elicit.audit import (
    AuditSettings,
    DirectEvidence,
    JudgeEvidence,
    Reference,
    audit_run,
    measure_bands,
)
from llm_elicit.audit.levels import LEVEL_FACTORS
from llm_elicit.campaign import Campaign
from llm_elicit.comparisons import Comparisons
from llm_elicit.density import BETWEEN_ROUNDS, Uniform, fit_belief
from llm_elicit.features import Feature, FeatureSpace
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.recital import Recital
from llm_elicit.report import Samples, Study, write_report
from llm_elicit.report.figures import Portrait, draw_portrait
from report.reader import Reader

HOSTILE = (
    "<script>document.title='owned'</script><img src=http://evil.example/x.png "
    "onerror=alert(1)></pre></main>\x1b[31m\u202e {{ 7 * 7 }}"
)


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
    """An expert that states what it believes, says so of two features, and recites all it may."""
    stated = np.quantile(draw(900), np.array(LEVELS) / 100, axis=0).T[None].repeat(2, axis=0)
    stated[:, 2:] = np.nan
    cells = tuple(f"{value:.1f}" for value in rng.uniform(-124, -114, 60))
    recital = Recital(3, "a,Longitude", cells, cells, np.zeros((60, 0)), ())
    counts = {"quantiles": 8, "sample": 12, "row": 9}
    return DirectEvidence(
        quantiles=stated, points=draw(10), recital=recital, rows=tuple(range(9)),
        recited=np.array([float(cell) for cell in cells[:9]]), answers=counts,
        unread={"quantiles": {"other count": 4}, "sample": {"refusal": 2}, "row": {}},
        at_levels=np.stack([stated[:1].repeat(len(LEVEL_FACTORS), axis=0)] * 3),
    )  # fmt: skip


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
    winners, losers, weights = log.choices("expert").weighted()
    bands = measure_bands(
        fit_belief(
            winners, losers, weights=weights, method="utility", settings=BETWEEN_ROUNDS,
            sampling=Uniform(space.low, space.high, log=space.log),
        ).draws(),
        space,
    )  # fmt: skip
    calibration = {"bins": [{"share": 1.0, "foretold": 0.8, "found": 0.7}], "error": 0.1}
    gains = {"constant": {"mean": 0.3, "se": 0.05}}
    told = {
        "held_out_log_likelihood": -0.4,
        "note": HOSTILE,
        "utility": {"form": "quadratic", "gains": gains, "calibration": calibration},
        "null_models": {"coin": -0.693, "quadratic": -0.41},
    }
    diagnostics = {"utility": told}
    beliefs = {"utility": belief, "score": draw(900)}
    evidence = [
        JudgeEvidence(
            "expert", log, beliefs, diagnostics, bands, rng.uniform(size=900),
            draws=np.stack([draw(150) for _ in range(24)]),
            direct=direct_evidence(draw, np.random.default_rng(1)),
        ),
        JudgeEvidence("stuck <b>judge</b>", log, {"utility": flat}),
    ]  # fmt: skip
    small = AuditSettings(size=100, marginal_size=400, repeats=2, flips=199, draws=39)
    audit = audit_run(evidence, Reference(space, sampling, data), settings=small)
    campaign = Campaign.model_validate(
        {
            "name": "test",
            "space": "world",
            "judges": [
                {"name": "expert", "backend": "openai", "model": "m", "base_url": "http://u:pw@h/"},
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
            at_powers={"expert": {k: draw(400, k) for k in (0.25, 0.5, 2.0, 4.0)}},
        ),
        versions={"Python": "3"},
        prompts={"0" * 64: f"Which is likelier? {HOSTILE}"},
        created="2026-01-01 00:00 UTC",
    )


@pytest.fixture(scope="session")
def portrait(study) -> Portrait:
    """The expert's figures."""
    return draw_portrait(study.samples, "expert")


@pytest.fixture(scope="session")
def written(study, tmp_path_factory):
    """The page's path."""
    return write_report(study, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def page(written) -> str:
    return written.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def reader(page) -> Reader:
    parsed = Reader()
    parsed.feed(page)
    parsed.close()
    return parsed
