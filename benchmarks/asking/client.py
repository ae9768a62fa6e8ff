"""What is measured, in a process of its own: a campaign, or a bare loop over the SDK.

`python -m benchmarks.asking.client JOB`, a job being a `Job` as JSON; prints a `Cost`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_elicit._util.packages import LazyModule
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.engine import ask
from llm_elicit.orchestrator.judgments import status, write_judgments
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.progress import Silent, Tally
from llm_elicit.planning.pairs import Plan, make_plan
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Message, Prompt, Template
from llm_elicit.spaces.features import FeatureSpace

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = LazyModule("anthropic"), LazyModule("openai")

KEY = "BENCH_ORCHESTRATOR_KEY"


@dataclass(frozen=True)
class Job:
    """One client to measure.

    Attributes:
        kind: "campaign", or the bare loop "sdk" or "sdk-aiohttp".
        provider: "openai" or "anthropic".
        url: of the server.
        questions, slots: numbers of questions and of concurrent requests.
        folder: of the run; the cache is beside it.
        timeout: of one request, in seconds.
        export: whether a campaign's table of judgments is written, and its counts are read.
    """

    kind: str
    url: str
    questions: int
    slots: int
    folder: str = ""
    provider: Literal["openai", "anthropic"] = "openai"
    timeout: float = 60.0
    export: bool = False

    def campaign(self) -> Campaign:
        """Return the campaign, whose questions the bare loops ask too."""
        ways: dict[str, dict[str, Any]] = {
            "openai": {"base_url": f"{self.url}/v1", "logprobs": False},
            "anthropic": {"base_url": self.url},
        }
        return Campaign.model_validate(
            {
                "name": "bench",
                "space": "penguins",
                "design": {"pairs": self.questions // 2},
                "judges": [
                    {
                        "name": "bench", "backend": self.provider, "model": "bench-1",
                        "concurrency": self.slots, "api_key_env": KEY, "timeout": self.timeout,
                        **ways[self.provider],
                    }
                ],
            }
        )  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Time and memory of a client, without imports.

    Attributes:
        answered: questions with an answer.
        seconds: of wall time.
        cpu: seconds of processor time, all threads.
        mebibytes: peak memory.
        growth: growth of memory from a tenth of the answers to the last, in MiB.
        quarantined: questions set aside, with the reason in the journal.
        first: seconds until the first answer, with the drawing of pairs.
        tenths: seconds of processor time for each tenth of the answers.
        exported: seconds for writing the table of judgments.
        status: seconds for reading the counts.
    """

    answered: int
    seconds: float
    cpu: float
    mebibytes: float
    growth: float = 0.0
    quarantined: int = 0
    first: float = 0.0
    tenths: Sequence[float] = ()
    exported: float = 0.0
    status: float = 0.0


class _Watch(Silent):
    """A progress that measures time, processor time and memory at the first answer and after each
    tenth of the answers."""

    def __init__(self) -> None:
        self.first = 0.0
        self.processor: list[float] = []
        self.memory: list[float] = []

    def tally(self, judge: str, tally: Tally) -> None:  # noqa: ARG002
        if not tally.answered:
            return
        self.first = self.first or time.perf_counter()
        self.processor = self.processor or [time.process_time()]
        if tally.done >= tally.total * len(self.processor) / 10:
            self.processor.append(time.process_time())
            self.memory.append(_resident())

    @property
    def growth(self) -> float:
        """Growth of memory from the first tenth to the last, in MiB."""
        return self.memory[-1] - self.memory[0] if self.memory else 0.0

    @property
    def tenths(self) -> list[float]:
        """Seconds of processor time of each."""
        return [after - before for before, after in pairwise(self.processor)]


def _resident() -> float:
    """Return the memory in use, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _peak() -> float:
    """Return the peak memory in MiB; that of `getrusage` may be of an earlier process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


async def _bare(job: Job, plan: Plan, space: FeatureSpace) -> int:
    """Ask the same questions with the SDK alone, without a journal or retries."""
    template = Template.load(job.campaign().design.template)
    questions = (render(space, *plan.points_in_order(query), template) for query in plan)
    client, ask = _sdk(job, template.max_tokens)
    answered = 0

    async def work() -> None:
        nonlocal answered
        for prompt in questions:
            await ask(prompt)
            answered += 1

    async with client:
        await asyncio.gather(*(work() for _ in range(job.slots)))
    return answered


Ask = Callable[[Prompt], Awaitable[Any]]


def _sdk(job: Job, limit: int) -> tuple[openai.AsyncOpenAI | anthropic.AsyncAnthropic, Ask]:
    """Return the provider's client and its call, as in its documentation."""
    sdk = openai if job.provider == "openai" else anthropic
    http = sdk.DefaultAioHttpClient() if job.kind == "sdk-aiohttp" else None
    if job.provider == "openai":
        gpt = openai.AsyncOpenAI(
            api_key="none", base_url=f"{job.url}/v1", max_retries=0, http_client=http
        )
        return gpt, lambda prompt: gpt.chat.completions.create(
            model="bench-1", messages=_turns(prompt.messages), max_tokens=limit
        )
    claude = anthropic.AsyncAnthropic(
        api_key="none", base_url=job.url, max_retries=0, http_client=http
    )
    return claude, lambda prompt: claude.messages.create(
        model="bench-1", messages=_turns(prompt.turns), system=prompt.system, max_tokens=limit
    )


def _turns(messages: Iterable[Message]) -> Any:
    return [{"role": m.role, "content": m.content} for m in messages]


async def measure(job: Job) -> Cost:
    """Run one client to its end."""
    for module in (job.provider, "genai_prices.data"):
        import_module(module)
    os.environ.setdefault(KEY, "none")
    campaign = job.campaign()
    space = campaign.load_space()
    opened = time.perf_counter()
    plan = make_plan(space, campaign.design, campaign.seed)
    watch, folder = _Watch(), Path(job.folder)
    began, cpu = time.perf_counter(), time.process_time()
    answered = 0
    study = Study(campaign, space, plan, folder)
    if job.kind == "campaign":
        summary = await ask(study, watch)
        answered = summary.judges["bench"].tally.done
    else:
        answered = await _bare(job, plan, space)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    cost = Cost(answered, seconds, used, _peak(), watch.growth, tenths=watch.tenths)
    if job.kind != "campaign":
        return cost
    if watch.first:
        cost = replace(cost, first=watch.first - opened)
    began = time.perf_counter()
    counts = status(folder, campaign)["bench"]
    cost = replace(cost, quarantined=counts.quarantined, status=time.perf_counter() - began)
    if not job.export:
        return cost
    began = time.perf_counter()
    write_judgments(study, folder / "comparisons.parquet")
    return replace(cost, exported=time.perf_counter() - began, mebibytes=_peak())


if __name__ == "__main__":
    cost = asyncio.run(measure(Job(**json.loads(sys.argv[1]))))
    sys.stdout.write(json.dumps(asdict(cost)) + "\n")
