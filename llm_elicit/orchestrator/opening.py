"""Opening a run's folder for asking: its lock, its log, its journal, the cache beside it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from logging import WARNING
from pathlib import Path

from llm_elicit.campaign import Campaign
from llm_elicit.errors import ElicitError
from llm_elicit.features import FeatureSpace
from llm_elicit.identity import identity_of
from llm_elicit.orchestrator import cache
from llm_elicit.orchestrator.cache import Cache
from llm_elicit.orchestrator.journal import LEASE, Journal, Place
from llm_elicit.orchestrator.lock import RunLock
from llm_elicit.orchestrator.log import event, logged
from llm_elicit.plan import Plan
from llm_elicit.questions import DirectWording, Template


def wording_of(campaign: Campaign, space: FeatureSpace, plan: Plan) -> DirectWording:
    """The wording of a campaign's direct questions.

    Raises:
        InputError: a template cannot be read.
    """
    if campaign.direct is None:
        return DirectWording(space, {})
    answer = Template.load(campaign.design.template).answer
    return DirectWording.of(campaign.direct, space, campaign.seed, plan, answer)


def worded_identity(
    campaign: Campaign, space: FeatureSpace, template: Template | None = None
) -> dict[str, str]:
    """A campaign's identity with that of its templates; see `llm_elicit.identity`.

    Raises:
        InputError: a template cannot be read.
    """
    template = template or Template.load(campaign.design.template)
    direct = DirectWording.of(campaign.direct, space, campaign.seed, answer=template.answer)
    words = template.names.union(*(one.names for one in direct.templates.values()))
    return {**identity_of(campaign, space, words), "template": template.digest, **direct.identity}


@dataclass(frozen=True)
class Study:
    """What is asked, of whom, and where the answers are kept."""

    campaign: Campaign
    space: FeatureSpace
    plan: Plan
    folder: Path

    @property
    def judges(self) -> list[str]:
        """The judges' names."""
        return [judge.name for judge in self.campaign.judges]

    @cached_property
    def direct(self) -> DirectWording:
        """The wording of its direct questions."""
        return wording_of(self.campaign, self.space, self.plan)

    def identity(self, template: Template) -> dict[str, str]:
        """What must be the same whenever the run goes on."""
        plan = self.plan
        shape = f"{plan.orders} {plan.replicates}".encode()
        # A library that draws other numbers must not mix two plans in a run.
        # Later rounds are on record themselves.
        fixed = slice(plan.fixed)
        points = plan.a[fixed].tobytes() + plan.b[fixed].tobytes()
        digest = hashlib.sha256(points + shape).hexdigest()
        return {**worded_identity(self.campaign, self.space, template), "plan": digest}


@dataclass(frozen=True)
class Opened:
    """A run's folder, open.

    Attributes:
        book, cache: the journal and the answers kept across runs.
        lost: requests that were in flight when an earlier run was cut off.
    """

    book: Journal
    cache: Cache
    lost: int


@contextlib.contextmanager
def opened(
    study: Study, template: Template, shared: bool = True, lease: float = LEASE
) -> Iterator[Opened]:
    """Hold a run's folder while inside, with the plan written down.

    Args:
        study: what is asked.
        template: its wording.
        shared: whether other processes may work on the run too, where its journal allows that.
        lease: seconds for which this process need not be heard of by others.

    Raises:
        InputError: the folder is another campaign's, in use, or cannot be written.
    """
    campaign, folder = study.campaign, study.folder
    place = Place(folder, campaign.journal)
    with contextlib.ExitStack() as stack:
        stack.enter_context(RunLock(folder, shared=shared and place.shared))
        stack.enter_context(logged(folder, campaign))
        event("run began", campaign=campaign.name, judges=study.judges, questions=len(study.plan))
        book = Journal(place, study.identity(template), campaign.limits, lease)
        stack.callback(book.close)
        answers = Cache(folder.parent / cache.FILE)
        stack.callback(_closed, answers)
        yield Opened(book, answers, book.prepare(study.judges, study.plan))


def _closed(answers: Cache) -> None:
    """Close the cache; what it could not keep is in the journal."""
    try:
        answers.close()
    except ElicitError as error:
        event("cache not written", WARNING, reason=str(error))
