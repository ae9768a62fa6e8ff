"""The power that `llm-elicit power` promises, beside that of other simulated campaigns.

`python -m benchmarks.promised verdict 0.4` (or effect, difference, auc) prints one row: the size
(for a verdict the reliability, else 0.5), the pairs recommended for a power of 80 %, and the share
of 200 new campaigns of this size in which the test succeeds.
"""

from __future__ import annotations

import sys
from typing import cast

import llm_elicit as le
from llm_elicit.audit.inference import wilson_interval
from llm_elicit.config.campaign import Campaign
from llm_elicit.pipeline.pilot import AssumedJudge
from llm_elicit.pipeline.statistical_power import Question, Simulator

CAMPAIGNS, TARGET, RELIABILITY = 200, 0.8, 0.5


def measure_promise(question: Question, size: float, simulations: int = 100) -> str:
    """Return a row of the table: question, size, pairs with interval, realized power."""
    reliability = size if question == "verdict" else RELIABILITY
    sizes: dict[Question, float] = {} if question == "verdict" else {question: size}
    result = le.power(
        "simulated", questions=[question], sizes=sizes, reliability=reliability,
        answers="log-odds", power=TARGET, simulations=simulations,
    )  # fmt: skip
    (promised,) = result.questions
    assert promised.pairs is not None
    campaign = Campaign.load("simulated")
    judge = AssumedJudge(result.judge.name, "log-odds", reliability)
    trial = Simulator(campaign, campaign.load_space(), judge).trial(
        promised.question, promised.size
    )
    successes = [trial(promised.pairs, 10**9 + number) > 0 for number in range(CAMPAIGNS)]
    realized = wilson_interval(sum(successes) / CAMPAIGNS, CAMPAIGNS)
    return (
        f"| {question} | {size:g} | {promised.pairs} [{promised.low}, {promised.high}] | "
        f"{realized.value:.2f} [{realized.low:.2f}, {realized.high:.2f}] |"
    )


if __name__ == "__main__":
    sys.stdout.write(measure_promise(cast(Question, sys.argv[1]), float(sys.argv[2])) + "\n")
