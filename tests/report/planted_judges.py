"""Thirty-odd planted judges in one world: what each does is known, so each sentence can be checked.

A point has two numbers, size and weight, and a colour. The data lie about size 1 and weight 0, and
most are red.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from audit.planted import Planted, ask_each

from llm_elicit import density
from llm_elicit.audit.record import Audit, JudgeEvidence, audit_run
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.utility import evaluate_utility
from llm_elicit.comparisons.table import Comparisons, evidence_of, sampling_of
from llm_elicit.config.campaign import Campaign, Fit
from llm_elicit.density import (
    AnnealingSettings,
    FitSettings,
    MixtureSettings,
    PosteriorSettings,
    SmoothSettings,
    UtilitySettings,
)
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.report import Samples, Study
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

SPACE = FeatureSpace(
    name="stones", title="stones", subject="a stone",
    features=(
        Feature(name="size", label="size", low=-3, high=3, digits=6),
        Feature(name="weight", label="weight", low=-3, high=3, digits=6),
        Feature(name="colour", label="colour", kind="categorical",
                categories=("red", "green", "blue")),
    ),
)  # fmt: skip
SHARES = np.log([0.6, 0.3, 0.1])
SETTINGS = AuditSettings(size=50, marginal_size=100, repeats=2, flips=399)
QUICK = FitSettings(
    utility=UtilitySettings(
        folds=2, mixture=MixtureSettings(counts=()), smooth=SmoothSettings(frequencies=0),
        posterior=PosteriorSettings(draws=48),
        process=GaussianProcessSettings(frequencies=32, draws=48, rounds=3, iterations=10),
    ),
    annealing=AnnealingSettings(moves=1, final_moves=1),  # no draws of the belief are used
)  # fmt: skip
WITHOUT_BELIEF = ("always A", "rather second", "constant", "random letters", "ties")
"""Judges without a preference, of whom no belief is fitted; of others like them there is one."""


def log_density(x: Floats) -> Floats:
    """Of the data, up to a constant; it is quadratic."""
    of_colour = SHARES[x[:, 2].astype(int)]
    return np.asarray(-0.5 * ((x[:, 0] - 1.0) / 0.9) ** 2 - 0.5 * (x[:, 1] / 0.9) ** 2 + of_colour)


def _data(n: int) -> Floats:
    rng = np.random.default_rng(7)
    x = SPACE.sample(60 * n, rng)
    chance = np.exp(log_density(x) - SHARES.max())
    return x[rng.random(len(x)) < chance][:n]


DATA, SAMPLING = _data(500), SPACE.sample(1000, np.random.default_rng(8))


@dataclass(frozen=True)
class Truth:
    """A planted judge.

    Attributes:
        says: what it is, for the table.
        utility: of points, in log-odds; None if it prefers nothing.
        position: log-odds for the option shown first.
        of_content: what is added to these by the sum of both points' sizes.
        noise: standard deviation of the log-odds of every answer.
        spread: standard deviation of the position effect over pairs.
        kind: of its answers: "log-odds", "choices" drawn with these, "letters" of their sign, or
            "ties".
        pairs, both_orders: how many it is asked, and whether in both orders.
        beyond_quadratic: whether a quadratic rule on the features misses part of what repeats.
        lost: shares of its answers that are no choice, by reason.
        beside: a second judge of the same campaign.
    """

    says: str
    utility: Callable[[Floats], Floats] | None = None
    position: float = 0.1
    of_content: float = 0.0
    noise: float = 0.1
    spread: float = 0.0
    kind: str = "log-odds"
    pairs: int = 60
    both_orders: bool = True
    beyond_quadratic: bool = False
    lost: Mapping[str, float] = field(default_factory=dict)
    beside: str | None = None

    def choose(self, rng: np.random.Generator) -> Callable[[Floats, Floats], Floats]:
        effects = rng.normal(self.position, self.spread, self.pairs)

        def probability(first: Floats, second: Floats) -> Floats:
            log_odds = effects + rng.normal(0.0, self.noise, len(first))
            log_odds = log_odds + self.of_content * (first[:, 0] + second[:, 0])
            if self.utility is not None:
                log_odds = log_odds + self.utility(first) - self.utility(second)
            if self.kind == "letters":
                return (log_odds > 0).astype(float)
            return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))

        return probability


def follows(x: Floats) -> Floats:
    return 0.5 * log_density(x)


def faint(x: Floats) -> Floats:
    return 0.04 * log_density(x)


def size(x: Floats) -> Floats:
    return 0.4 * x[:, 0]


def weight(x: Floats) -> Floats:
    return 0.4 * x[:, 1]


def middle(x: Floats) -> Floats:
    return -0.15 * x[:, 1] ** 2


def red(x: Floats) -> Floats:
    return np.array([0.8, 0.4, 0.0])[x[:, 2].astype(int)]


def waves(x: Floats) -> Floats:
    """Without any trend."""
    return 0.5 * np.cos(4.0 * x[:, 0]) * np.cos(4.0 * x[:, 1])


def real_but_not_dense(x: Floats) -> Floats:
    """As the colours of the data, and within each colour against their density."""
    return 1.6 * red(x) - 0.085 * log_density(x)


def minus(utility: Callable[[Floats], Floats], factor: float = -1.0) -> Callable[[Floats], Floats]:
    return lambda x: factor * utility(x)


EXPERT = Truth("log-odds follow the data's density", follows)
RANDOM = Truth("names either letter at random", position=0.0, noise=0.0, kind="choices")
JUDGES: dict[str, Truth] = {
    "expert": EXPERT,
    "faint expert": Truth("the same, a twelfth as strong", faint, noise=0.02),
    "expert of letters": Truth("chooses by the data's density", minus(follows, 3.0), noise=0.0,
                               kind="choices", position=0.0, pairs=120),
    "noise-free letters": Truth("the same without noise", follows, noise=0.0, kind="letters",
                                position=0.0, pairs=120),
    "contrarian": Truth("log-odds oppose the data's density", minus(follows)),
    "large": Truth("prefers large sizes", size),
    "heavy": Truth("prefers heavy stones, which are as common as light ones", weight),
    "middling": Truth("prefers weights in the middle", middle),
    "extreme": Truth("prefers weights at the ends", minus(middle)),
    "red": Truth("prefers red to green to blue", red),
    "blue": Truth("prefers blue to green to red", minus(red)),
    "real, not dense": Truth("prefers the data's colours, and within them the sparse",
                             real_but_not_dense, noise=0.05, pairs=120),
    "heavy, a little large": Truth("prefers heavy and, less, large stones",
                                   lambda x: weight(x) + 0.4 * size(x)),
    "always A": Truth("names A whatever is shown", position=40.0, noise=0.0, kind="letters"),
    "rather first": Truth("log-odds by position only, not the same in all pairs",
                          position=0.5, spread=0.3),
    "rather second": Truth("log-odds by position only", position=-0.5),
    "first if large": Truth("position effect by the sizes shown; no preference", of_content=0.3,
                            position=0.5),
    "expert, first": Truth("as the expert, with a large position effect", follows, position=3.0),
    "large, first if large": Truth("prefers large sizes; position effect by content", size,
                                   of_content=0.3),
    "one order": Truth("as the expert, asked in one order", follows, position=1.0,
                       both_orders=False),
    "constant": Truth("one half in every answer", position=0.0, noise=0.0),
    "random letters": RANDOM,
    "noise": Truth("log-odds of noise alone", position=0.0, noise=0.3),
    "ties": Truth("calls every pair a tie", kind="ties"),
    "waves": Truth("a repeatable preference without any trend", waves, noise=0.02,
                   beyond_quadratic=True),
    "loud": Truth("as the expert, ten times as strong", minus(follows, 10.0), noise=1.0),
    "saturated": Truth("as the expert, its probabilities next to 0 and 1", minus(follows, 40.0),
                       beyond_quadratic=True),
    "five pairs": Truth("as the expert, asked five pairs", follows, pairs=5),
    "cut": Truth("no answer: all are truncated", follows, lost={"truncated": 1.0}),
    "refuses": Truth("no answer: all are refused", follows, lost={"refusal": 1.0}),
    "rarely answers": Truth("as the expert; nineteen of twenty are truncated", follows,
                            lost={"truncated": 0.95}),
    "half refused": Truth("as the expert; half of the answers are refused", follows,
                          lost={"refusal": 0.5}, pairs=120),
    "expert beside random letters": replace(
        EXPERT, says="as the expert, beside random letters", beside="random letters"
    ),
}  # fmt: skip


def answers(name: str, truth: Truth, seed: int) -> pd.DataFrame:
    """Return the log of a judge."""
    rng = np.random.default_rng([seed, 23])
    soft = truth.kind == "log-odds"
    judges = {name: Planted(truth.choose(rng), rng)}
    frame = ask_each(SPACE, judges, truth.pairs, soft, truth.both_orders).frame
    if truth.kind == "ties":
        frame = frame.assign(verdict="tie", reply="equal", probability=0.5)
    start, order = 0, rng.permutation(len(frame))
    for verdict, part in truth.lost.items():
        rows = order[start : start + round(part * len(frame))]
        start += len(rows)
        frame.loc[rows, ["verdict", "reply", "probability"]] = [verdict, "", np.nan]
    return frame


def audited(name: str, seed: int = 0) -> tuple[Study, Audit]:
    """Return the study of a campaign with this judge, or with it and the one beside it."""
    truth = JUDGES[name]
    truths = {name: truth}
    if truth.beside is not None:
        truths[truth.beside] = replace(JUDGES[truth.beside], beside=None)
    frames = [answers(each, one, seed + k) for k, (each, one) in enumerate(truths.items())]
    log = Comparisons(pd.concat(frames, ignore_index=True), SPACE.names)
    evidence = [_evidence(each, log) for each in truths]
    reference = Reference(SPACE, SAMPLING, DATA)
    audit = audit_run(evidence, reference, settings=SETTINGS)
    campaign = Campaign.model_validate(
        {
            "name": "planted", "space": "stones",
            "design": {"pairs": truth.pairs, "both_orders": truth.both_orders},
            "judges": [{"name": f"j{k}", "backend": "simulated"} for k in range(len(truths))],
        }
    )  # fmt: skip
    samples = Samples(SPACE, SAMPLING, DATA, {}, {})
    return Study(audit, campaign, log, samples), audit


def _evidence(name: str, log: Comparisons) -> JudgeEvidence:
    if len(log.choices(name)) < SPACE.dimension or name in WITHOUT_BELIEF:
        return JudgeEvidence(name, log)
    evidence = evidence_of(log, name, Fit(methods=("utility",)))
    belief = density.fit_evidence(
        evidence, sampling=sampling_of(SPACE), method="utility", seed=0, settings=QUICK
    )
    return JudgeEvidence(
        name,
        log,
        {},
        {"utility": belief.diagnostics},
        utility_draws=evaluate_utility(belief, SPACE, DATA, 0),
    )
