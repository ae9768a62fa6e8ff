"""A cap in USD against a provider that bills at random: never passed, and nearly all of it spent.

The full form: `python -m orchestrator.cap --prices 20` with tests/ on PYTHONPATH. Each price is a
campaign of two judges, on either provider's wire, that share the cap and 200 requests in flight;
a request is billed a random share of its worst case.
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CapError
from llm_elicit.orchestrator.budget import price_of
from llm_elicit.orchestrator.rate_sharing import LOW_START
from llm_elicit.testing.provider import Action, Answer, Error, Provider, Resets
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
        delay: seconds for which an answer is kept back at most, until as many requests are out at
            once as the client sends.
        late: seconds to an answer once half of the cap is spent, which leaves room for half of
            `in_flight`.
    """

    seed: int
    cap: float = 5.0
    in_flight: int = 200
    share: float = 0.002
    pairs: int = 1500
    faults: float = 0.0
    delay: float = 20.0
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
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.prices = {
            judge.model: price
            for judge in self.trial.study("http://x").judges
            if (price := price_of(judge)) is not None
        }

    def __call__(self, number: int, body: dict[str, Any]) -> Action:
        if self.rng.random() < self.trial.faults:
            return self.rng.choice((Error(429), Error(500), Resets()))
        price = self.prices[body["model"]]
        texts = [str(turn["content"]) for turn in body["messages"]] + [str(body.get("system", ""))]
        prompt = self.rng.randint(1, sum(len(text.encode()) for text in texts))
        cached = self.rng.randint(0, prompt)
        completion = self.rng.randint(1, body["max_tokens"])
        self.billed += price.cost(prompt, completion, cached)
        delay = 0.0 if self.early else self.trial.late
        return Answer("A", delay=delay, prompt_tokens=prompt, completion_tokens=completion,
                    cached=cached)  # fmt: skip

    @property
    def early(self) -> bool:
        """Whether less than half of the cap is spent."""
        return self.billed < 0.5 * self.trial.cap


class Crowd(Provider):
    """Keeps early answers back until as many requests are out as the client sends at once.

    Each judge begins with few, and sends one more at once for every answer.
    """

    def __init__(self, till: Till) -> None:
        super().__init__(till)
        self.peak = 0
        self._trial, self._till = till.trial, till
        self._out = self._answered = 0
        self._go = asyncio.Event()

    async def _act(self, action: Action, *more: Any) -> bool:
        if isinstance(action, Answer):
            await self._wait()
        return await super()._act(action, *more)

    async def _wait(self) -> None:
        go = self._go
        self._out += 1
        self.peak = max(self.peak, self._out)
        if not self._till.early or self._out >= min(
            2 * LOW_START + self._answered, self._trial.in_flight
        ):
            go.set()
            self._go = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(go.wait(), self._trial.delay)
        self._out -= 1
        self._answered += 1


def spend(trial: Trial, folder: Path) -> tuple[float, float, int]:
    """Run a trial to its end.

    Returns:
        What the campaign counts as spent, what the provider billed, and the most requests that
        were out at once.
    """
    till = Till(trial)
    with Crowd(till) as provider:
        summary = run(trial.study(provider.url), folder)
    assert summary.problems, "the cap was not reached: ask more pairs"
    assert all(isinstance(problem, CapError) for problem in summary.problems)
    return summary.spent, till.billed, provider.peak


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
            spent, billed, peak = spend(Trial(seed), Path(folder) / "try")
        held = billed <= spent * (1 + 1e-9) and spent <= 5.0 and billed >= 0.95 * 5.0
        sys.stdout.write(f"{seed}: spent {spent:.4f}, billed {billed:.4f}, "
                         f"at most {peak} in flight, held: {held}\n")  # fmt: skip
        if not held:
            sys.exit(1)


def small(seed: int) -> Trial:
    """A trial that is over in a second or two."""
    return Trial(seed, cap=0.5, in_flight=20, share=0.02, pairs=150, delay=0.05, late=0.05)


if __name__ == "__main__":
    main()
