"""A cap in USD against a provider that bills at random: never passed, and nearly all of it spent.

The full form: `python -m orchestrator.cap --prices 20` with tests/ on PYTHONPATH. Each price is a
campaign of two judges, on either provider's wire, that share the cap and 200 requests in flight;
a request is billed a random share of its worst case.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CapError
from llm_elicit.orchestrator.prices import price_of
from llm_elicit.testing.provider import Action, Fails, Provider, Resets, Says
from orchestrator.conftest import KEY, claude, gpt
from orchestrator.running import campaign, run


@dataclass(frozen=True)
class Trial:
    """A cap and the prices it is tried with.

    Attributes:
        seed: draws the prices and what is billed.
        cap: USD.
        in_flight: requests at once, both judges together.
        share: the worst case of a request, in caps.
        pairs: of the campaign; enough that the cap ends it.
        faults: the share of requests that go wrong.
        delay: seconds to an answer: so many that all of `in_flight` are out at once.
        late: the same once half of the cap is spent, which leaves room for half of them.
    """

    seed: int
    cap: float = 5.0
    in_flight: int = 200
    share: float = 0.002
    pairs: int = 1500
    faults: float = 0.0
    delay: float = 2.0
    late: float = 0.5

    def study(self, url: str) -> Campaign:
        """The campaign: a random price a judge, and a token limit that makes it worth its share."""
        rng = random.Random(self.seed)
        judges = []
        for make in (claude, gpt):
            per_input = 10 ** rng.uniform(-0.5, 1.2)
            per_output = per_input * rng.uniform(2, 6)
            price = {
                "input": round(per_input, 4),
                "output": round(per_output, 4),
                "cached": round(per_input * rng.uniform(0.05, 1), 4),
            }
            limit = min(int(self.share * self.cap / per_output * 1e6), 100_000)
            judges.append(
                make(url, price=price, max_tokens=max(limit, 1), concurrency=self.in_flight // 2)
            )
        return campaign(judges, pairs=self.pairs, limits={"max_cost": self.cap})


@dataclass
class Till:
    """The provider's side: what it bills, whether or not the client ever hears of it."""

    trial: Trial
    billed: float = 0.0
    peak: int = 0
    begun: deque[float] = field(default_factory=deque)
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.prices = {
            judge.model: price
            for judge in self.trial.study("http://x").judges
            if (price := price_of(judge)) is not None
        }

    def __call__(self, number: int, body: dict[str, Any]) -> Action:
        self._count()
        if self.rng.random() < self.trial.faults:
            return self.rng.choice((Fails(429), Fails(500), Resets()))
        price = self.prices[body["model"]]
        texts = [str(turn["content"]) for turn in body["messages"]] + [str(body.get("system", ""))]
        prompt = self.rng.randint(1, sum(len(text.encode()) for text in texts))
        cached = self.rng.randint(0, prompt)
        completion = self.rng.randint(1, body["max_tokens"])
        self.billed += price.cost(prompt, completion, cached)
        delay = self.trial.delay if self.billed < 0.5 * self.trial.cap else self.trial.late
        return Says("A", delay=delay, prompt_tokens=prompt, completion_tokens=completion,
                    cached=cached)  # fmt: skip

    def _count(self) -> None:
        """Keep the most requests that were out at once: those that began within one delay."""
        now = time.monotonic()
        self.begun.append(now)
        while self.begun[0] < now - self.trial.delay:
            self.begun.popleft()
        self.peak = max(self.peak, len(self.begun))


def spend(trial: Trial, folder: Path) -> tuple[float, Till]:
    """Run a trial to its end: what the campaign counts as spent, and the provider's side."""
    till = Till(trial)
    with Provider(till) as provider:
        summary = run(trial.study(provider.url), folder)
    assert summary.problems, "the cap was not reached: ask more pairs"
    assert all(isinstance(problem, CapError) for problem in summary.problems)
    return summary.spent, till


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prices", type=int, default=20)
    parser.add_argument("--child", nargs=3, metavar=("URL", "FOLDER", "SEED"))
    arguments = parser.parse_args()
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        os.environ.setdefault(name, KEY)
    if arguments.child:
        url, folder, seed = arguments.child
        run(small(int(seed)).study(url), Path(folder))
        return
    for seed in range(arguments.prices):
        with tempfile.TemporaryDirectory() as folder:
            spent, till = spend(Trial(seed), Path(folder) / "try")
        billed = till.billed
        held = billed <= spent * (1 + 1e-9) and spent <= 5.0 and billed >= 0.95 * 5.0
        sys.stdout.write(f"{seed}: spent {spent:.4f}, billed {billed:.4f}, "
                         f"at most {till.peak} in flight, held: {held}\n")  # fmt: skip
        if not held:
            sys.exit(1)


def small(seed: int) -> Trial:
    """A trial that is over in a second or two."""
    return Trial(seed, cap=0.5, in_flight=20, share=0.02, pairs=150, delay=0.05, late=0.05)


if __name__ == "__main__":
    main()
