"""The power that `llm-elicit power` promises, beside that of other simulated campaigns.

`python -m benchmarks.promised verdict 0.4` (or effect, difference, auc) prints one row: the size
(for a verdict the reliability, which is else 0.5), the pairs recommended for a power of 80 %, and
the share of 200 new campaigns of this size in which the test succeeds. A number of campaigns and
`choices`, for a judge without log-odds, may follow.
"""

from __future__ import annotations

import sys
from typing import cast

import llm_elicit as le
from llm_elicit.audit.inference import wilson_interval
from llm_elicit.audit.responses import ResponseKind
from llm_elicit.config.campaign import Campaign
from llm_elicit.pipeline.pilot import AssumedJudge
from llm_elicit.pipeline.statistical_power import Question, Simulator

TARGET, RELIABILITY = 0.8, 0.5


def measure_promise(
    question: Question, size: float, campaigns: int = 200, answers: ResponseKind = "log-odds"
) -> str:
    """Return a row of the table: question, size, pairs with interval, realized power."""
    reliability = size if question == "verdict" else RELIABILITY
    sizes: dict[Question, float] = {} if question == "verdict" else {question: size}
    result = le.power(
        "simulated", questions=[question], sizes=sizes, reliability=reliability,
        answers=answers, power=TARGET,
    )  # fmt: skip
    (promised,) = result.questions
    assert promised.pairs is not None
    campaign = Campaign.load("simulated")
    judge = AssumedJudge(result.judge.name, answers, reliability)
    trial = Simulator(campaign, campaign.load_space(), judge).trial(
        promised.question, promised.size
    )
    successes = [trial(promised.pairs, 10**9 + number) > 0 for number in range(campaigns)]
    realized = wilson_interval(sum(successes) / campaigns, campaigns)
    pairs = f"{promised.pairs} [{promised.low}, {promised.high}]"
    return (
        f"| {question}, {answers} | {size:g} | {pairs} | "
        f"{realized.value:.2f} [{realized.low:.2f}, {realized.high:.2f}] |"
    )


if __name__ == "__main__":
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    kind: ResponseKind = "choices" if "choices" in sys.argv else "log-odds"
    row = measure_promise(cast(Question, sys.argv[1]), float(sys.argv[2]), number, kind)
    sys.stdout.write(row + "\n")
