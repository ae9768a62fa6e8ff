"""A run: its folder, and what its stages wrote there."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit._util.files import read_parquet
from llm_elicit._util.packages import LazyModule, pd
from llm_elicit._util.settings import read_yaml, validate
from llm_elicit._util.text import visible
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.campaign import Campaign, cells, check_same
from llm_elicit.errors import ElicitError, InputError, UnknownNameError, did_you_mean
from llm_elicit.orchestrator import judgments
from llm_elicit.orchestrator.journal.connection import AT_WORK, JournalLocation, RunLock
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.journal.control import drop_journal
from llm_elicit.orchestrator.journal.questions import (
    is_begun,
    planned_rounds,
    reading,
    stored_answers,
    stored_identity,
)
from llm_elicit.orchestrator.journal.schema import Totals
from llm_elicit.orchestrator.journal.store import batch_rows
from llm_elicit.orchestrator.open_run import Study, worded_identity
from llm_elicit.pipeline.manifest import Manifest, digest_of, digest_of_file, replacing
from llm_elicit.planning.pairs import PairCorrelation, Plan, direct_queries, make_plan, reason
from llm_elicit.planning.rounds import questions_of, with_rounds
from llm_elicit.questions.template import Prompt
from llm_elicit.spaces.features import FeatureSpace

if TYPE_CHECKING:
    from llm_elicit import density
    from llm_elicit.audit import record
else:
    record, density = LazyModule("llm_elicit.audit.record"), LazyModule("llm_elicit.density")

CAMPAIGN = "campaign.yaml"
"""The file of the campaign as it was validated."""

COMPARISONS, DIRECT = "comparisons.parquet", "direct.parquet"
"""The files of the answers: about pairs, and to direct questions."""

PEOPLE = "people.parquet"
"""The file of the cards that people have answered, if there are people."""

REPORT = "report.html"
"""The file of the self-contained report."""

PLAN = "plan.parquet"
"""The file of the pairs."""

INPUTS = "inputs"
"""The folder with copies of the feature space, its table and the template."""

AUDIT = "audit.json"
"""The file of the numbers of the report."""

ANSWERS = "answers"
"""The manifest's key for the number of answers in the journal when the tables were written."""

SAMPLES = "samples.parquet"
"""The file of a belief's samples, in its folder."""

BANDS = "bands.json"
"""The file of a belief's credible bands, in its folder, if its method has posterior draws."""

DRAWS = "draws.parquet"
"""The file of points of posterior draws of the belief, beside its bands."""

POWER = "power.json"
"""The file of the power that direct answers imply, beside the belief."""

POWERS = "powers.parquet"
"""The file of a belief's points at other powers, which the audit writes."""

BELIEF = ("belief.json", "belief.safetensors", SAMPLES, BANDS, DRAWS, POWER)
"""The files that a fit may write into a belief's folder."""

_LISTED = 20
"""The runs that a message lists."""

_OF_DIRECT = ("judge", "kind", "number", "replicate", "template", "reply", "verdict")
"""The columns of direct answers that later stages use, in every version."""


@dataclass(frozen=True)
class Run:
    """A run: its folder, and what its stages wrote there.

    Attributes:
        folder: the folder.
        campaign: the campaign of the run.
        space: the feature space.
        problems: errors that left questions without an answer or stopped a judge.
        remarks: lines about the answers that a user of the result should know.

    Example::

        run = le.Run.open("simulated")
        run.comparisons.frame, run.beliefs["expert"], run.audit, run.report_path
    """

    folder: Path
    campaign: Campaign
    space: FeatureSpace
    problems: tuple[ElicitError, ...] = ()
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # asyncio writes the result of a task; this reads no file.
        return self._text([judge.name for judge in self.campaign.judges])

    def __str__(self) -> str:
        """Return the name, the folder, and the judges with their verdicts, if audited."""
        names = {judge.name: judge.name for judge in self.campaign.judges}
        with suppress(ElicitError):
            names |= {judge.name: f"{judge.name}: {judge.verdict}" for judge in self.audit.judges}
        return self._text(names.values())

    def _text(self, judges: Iterable[str]) -> str:
        return f"Run({self.campaign.name!r}, {str(self.folder)!r}; {', '.join(judges)})"

    @classmethod
    def open(cls, where: str | Path | Campaign) -> Run:
        """Open a run by its folder, its name under runs/, or its campaign.

        Raises:
            InputError: nothing of this name exists, or it is a grid of several runs.
        """
        runs = open_runs(where)
        if len(runs) > 1:
            names = ", ".join(run.campaign.name for run in runs)
            raise InputError(
                f"{runs[0].campaign.part_of} is a grid, whose cells are {names}; name one, or use "
                "run_grid"
            )
        return runs[0]

    @cached_property
    def first_round(self) -> Plan:
        """The pairs of the first round: they follow from the seed.

        In a run that was started they are read from its file: another version may draw others.
        """
        if self.campaign.imported:
            return Plan(*self.comparisons.points(self.comparisons.frame), ("ab",), 1)
        first = make_plan(self.space, self.campaign.design, self.campaign.seed)
        path = self.folder / PLAN
        chosen = self.started or self.campaign.repeat_of is not None
        if not (chosen and path.is_file() and self.manifest.as_written("pairs", PLAN)):
            return first
        written = pd.read_parquet(path).to_numpy(dtype=np.float64)[: len(first.a)]
        a, b = np.split(written, 2, axis=1)
        return replace(first, a=a, b=b) if a.shape == first.a.shape else first

    @cached_property
    def plan(self) -> Plan:
        """The pairs: those of the first round, and those of later rounds from the journal."""
        campaign, first = self.campaign, self.first_round
        pairs, repeated = len(first.a), first.repeated if campaign.direct else ()
        direct = direct_queries(campaign.direct, self.space, campaign.seed, pairs, repeated)
        first = replace(first, direct=direct)
        if self.campaign.design.rounds is None:
            return first
        return with_rounds(first, self.campaign, self.space, planned_rounds(self.location))

    @property
    def location(self) -> JournalLocation:
        """The location of the journal."""
        return JournalLocation(self.folder, self.campaign.journal)

    @property
    def study(self) -> Study:
        """The study for the orchestrator: the campaign, its space and plan, and the folder."""
        return Study(self.campaign, self.space, self.plan, self.folder)

    def prompts(self) -> Iterator[Prompt]:
        """Yield the questions about pairs, worded with the templates as they are now."""
        plan, study = self.plan, self.study
        for query in plan:
            yield study.presentation(query.pair).render(*plan.points_in_order(query))

    def write_pairs(self, folder: Path | None = None) -> None:
        """Write plan.parquet, one row per pair; for a repeat, into its folder."""
        folder = folder or self.folder
        columns = [f"{side}_{name}" for side in "ab" for name in self.space.names]
        pairs = np.hstack([self.plan.a, self.plan.b])
        with replacing(folder / PLAN) as temporary:
            pd.DataFrame(pairs, columns=columns).to_parquet(temporary)
        Manifest(folder).record("pairs", {}, [folder / PLAN])

    @property
    def answered(self) -> dict[str, dict[str, int]]:
        """Answered questions by judge and form; empty before the first answer."""
        if not is_begun(self.location):
            return {}
        return judgments.answered_counts(self.folder, self.campaign)

    @cached_property
    def measured_tokens(self) -> dict[str, judgments.MeasuredTokens]:
        """The tokens that an answer is expected to have, by judge.

        They are measured on the answers of this run or of its pilot, whichever has more. Answers to
        other templates of the pilot count only as far as their lengths are alike.
        """
        by_template: dict[str, dict[str, judgments.AnswerTokens]] = defaultdict(dict)
        for run, judges in self._measured_in:
            template = "" if run is self else run.campaign.design.template
            for name, tokens in judgments.answer_tokens(run.folder, run.campaign).items():
                fewer = by_template[name].get(template)
                count = 0 if fewer is None else len(fewer.completion)
                if name in judges and len(tokens.completion) > count:
                    by_template[name][template] = tokens
        measured, templates = {}, self.campaign.design.templates
        for name, tokens_of in by_template.items():
            of_run = tokens_of.pop("", None)
            of_templates = [tokens_of.pop(key) for key in templates if key in tokens_of]
            most = max((len(tokens.completion) for tokens in of_templates), default=0)
            if of_run and len(of_run.completion) >= most:
                of_templates = [of_run]
            if of_templates or tokens_of:
                measured[name] = judgments.MeasuredTokens.of(of_templates, list(tokens_of.values()))
        return measured

    @property
    def replicates(self) -> dict[str, str]:
        """The reason for the number of replicates of each model; empty unless it is "auto"."""
        models = [j for j in self.campaign.judges if j.name not in self.campaign.people]
        if self.campaign.design.replicates != "auto":
            return {}
        log_odds = {judge.name: False for judge in models}
        correlations: dict[str, PairCorrelation] = {}
        templates = set(self.campaign.design.templates)
        for run, judges in self._measured_in:
            if not templates.issuperset(run.campaign.design.templates):
                continue
            table = judgments.comparisons(run.study)
            for name, answers in judgments.answer_summaries(run.folder, run.campaign).items():
                if name not in judges or name not in log_odds:
                    continue
                log_odds[name] |= answers.log_odds.scored > 0
                correlation = PairCorrelation.of(table.answers_of(name))
                if correlation is not None:
                    correlations[name] = correlation
        return {
            name: reason(log_odds=soft, correlation=correlations.get(name))
            for name, soft in log_odds.items()
        }

    @cached_property
    def _measured_in(self) -> list[tuple[Run, set[str]]]:
        """This run and its pilots, each with the names of the judges that have the same settings.

        Their answers show what answers of these judges are like.
        """
        pilots = self.folder.parent.glob(f"{self.campaign.name}.pilot.*")
        same = {judge.name: judge.identity() for judge in self.campaign.judges}
        runs = []
        for folder in (self.folder, *sorted(pilots)):
            run = self if folder == self.folder else Run.open(folder)
            if is_begun(run.location):
                judges = [j.name for j in run.campaign.judges if j.identity() == same.get(j.name)]
                runs.append((run, set(judges)))
        return runs

    @property
    def empty_totals(self) -> dict[str, Totals]:
        """The counts of every judge before the first question is asked."""
        direct = len(self.plan.direct) if self.campaign.direct else 0
        total = Totals(total=self.campaign.design.questions + direct)
        return {judge.name: total for judge in self.campaign.judges}

    @property
    def comparisons(self) -> Comparisons:
        """The table of judgments."""
        return Comparisons.read(self._as_written("ask", COMPARISONS), self.space)

    @property
    def direct(self) -> pd.DataFrame | None:
        """The answers to direct questions; None if none were asked."""
        path = self._as_written("ask", DIRECT)
        return read_parquet(path, _OF_DIRECT) if path.is_file() else None

    @property
    def people_cards(self) -> pd.DataFrame | None:
        """The cards that people have answered; None in runs without people."""
        path = self._as_written("ask", PEOPLE)
        return read_parquet(path) if path.is_file() else None

    @property
    def judgments(self) -> dict[str, int]:
        """The number of judgments by judge; judges without any are left out."""
        path = self._as_written("ask", COMPARISONS)
        if not path.is_file():
            raise InputError(f"{path}: no such file; run the campaign first")
        judges = read_parquet(path, only=["judge"])["judge"]
        return {str(judge): int(count) for judge, count in judges.value_counts().items()}

    @property
    def missing(self) -> dict[str, int]:
        """The number of questions without an answer by judge; zeros are left out."""
        counts = self.judgments
        gaps = {judge: total - counts.get(judge, 0) for judge, total in self.questions.items()}
        return {judge: gap for judge, gap in gaps.items() if gap}

    @property
    def questions(self) -> dict[str, int]:
        """The number of questions about pairs by judge; a stopping rule may reduce it."""
        if self.campaign.imported:
            return self.judgments
        rounds = self.campaign.design.rounds
        planned = {} if rounds is None else planned_rounds(self.location)
        names = [judge.name for judge in self.campaign.judges]
        return {name: questions_of(name, self.campaign, planned) for name in names}

    @property
    def beliefs(self) -> Mapping[str, density.BeliefDensity]:
        """The belief of each judge by the campaign's first method; judges may have none."""
        return Beliefs(self, self.campaign.fit.methods[0])

    @property
    def audit(self) -> record.Audit:
        """The numbers of the report, audit.json."""
        return record.Audit.load(self._as_written("audit", AUDIT))

    @property
    def report_path(self) -> Path:
        """The path of the self-contained report."""
        return self.folder / REPORT

    @property
    def tables_digest(self) -> str:
        """A digest of the tables of answers."""
        return digest_of([digest_of_file(self.folder / name) for name in (COMPARISONS, DIRECT)])

    @property
    def named(self) -> dict[str, str]:
        """A digest of the features' names, which the tables of answers have as columns."""
        return {"names": digest_of(self.space.names)}

    @property
    def renamed(self) -> bool:
        """Whether a feature has another name than when the tables of answers were written."""
        entry = self.manifest.entry("ask")
        return entry is not None and entry.read != entry.read | self.named

    @property
    def manifest(self) -> Manifest:
        """The digests of what the stages read and wrote."""
        return Manifest(self.folder)

    @property
    def identity(self) -> dict[str, str]:
        """The settings that must not change between resumes; see `llm_elicit.config.campaign`."""
        return worded_identity(self.campaign, self.space)

    @property
    def recorded_identity(self) -> dict[str, str]:
        """The identity that the run was started with; empty before that, or if unknown."""
        identity = self.manifest.identity
        if identity or not (self.folder / JOURNAL).is_file():
            return identity
        return stored_identity(self.location)

    @property
    def started(self) -> bool:
        """Whether any question was asked."""
        return (
            self.location.shared or (self.folder / COMPARISONS).exists() or is_begun(self.location)
        )

    def remove(self, to: Path | None = None) -> None:
        """Remove the run, see `remove`."""
        remove(self.location, to)

    @property
    def batched(self) -> bool:
        """Whether the run was asked through a provider's batch endpoint."""
        with reading(self.location) as db:
            return any(batch_rows(db, judge.name) for judge in self.campaign.judges)

    def check_identity(self) -> None:
        """Check that the campaign is the one that the run was started with.

        Raises:
            InputError: the campaign, its feature space or a template was changed.
        """
        check_same(self.recorded_identity, self.identity, self.folder)

    def check_journal(self) -> None:
        """Check that the journal still holds the answers that the tables were made from.

        Raises:
            InputError: the journal is missing or holds fewer answers than before, which would be
                paid for again.
        """
        if self.campaign.imported:
            return
        entry, table = self.manifest.entry("ask"), self.folder / COMPARISONS
        if entry is not None:
            recorded = int(entry.read[ANSWERS])
        else:  # its manifest was lost
            recorded = len(Comparisons.read(table)) if table.is_file() else 0
        if not recorded:
            return
        count = stored_answers(self.location)
        if count < recorded:
            raise InputError(
                f"{self.folder}: the journal holds {count:,} of the {recorded:,} answers that "
                f"{COMPARISONS} was made from, so continuing would pay for the missing ones again; "
                "restore the journal, or move the folder away and run again: answers in the "
                "cache cost nothing"
            )

    def _as_written(self, stage: str, name: str) -> Path:
        """Return the path of a file, which must be unchanged since its stage wrote it.

        Raises:
            InputError: it was changed.
        """
        path = self.folder / name
        if path.exists() and not self.manifest.as_written(stage, name):
            raise InputError(
                f"{path}: changed since it was written; llm-elicit report {self.folder} rebuilds it"
            )
        return path

    def belief_folder(self, judge: str, method: str) -> Path:
        """Return the folder of a belief."""
        return self.folder / "beliefs" / judge / method

    def main_belief(self, judge: str) -> Path:
        """Return the folder of a judge's belief by the campaign's first method."""
        return self.belief_folder(judge, self.campaign.fit.methods[0])


def remove(location: JournalLocation, to: Path | None = None) -> None:
    """Remove a run: its journal and its folder.

    Args:
        location: the run's journal.
        to: a folder to which the run's folder is moved instead; a journal on a server stays.

    Raises:
        InputError: one of them cannot be removed.
    """
    if to is None:
        drop_journal(location)
    try:
        if to is None:
            shutil.rmtree(location.folder)
        else:
            to.mkdir(mode=0o700, parents=True, exist_ok=True)
            location.folder.rename(to / location.folder.name)
    except FileNotFoundError:
        pass  # another process has removed it
    except OSError as error:
        raise InputError(
            f"{location.folder}: cannot be removed ({error.strerror or error}); check its "
            "permissions, and delete it again"
        ) from None


def remove_unreadable(folder: Path, to: Path | None = None) -> None:
    """Remove a run that cannot be opened, as `remove`, unless a process is at work on it.

    Raises:
        InputError: another process is at work on it, or it cannot be removed.
    """
    try:
        journal = find(folder)[0].journal
    except (ElicitError, OSError):
        journal = None
    location = JournalLocation(folder, journal)
    with RunLock(folder, shared=location.shared, name=AT_WORK):
        remove(location, to)


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of the runs in a folder."""
    return sorted(path.parent for path in folder.glob(f"*/{CAMPAIGN}"))


def find(where: str | Path | Campaign) -> tuple[Campaign, Path]:
    """Return a campaign and its folder, by the folder or name of its run, or its own file or name.

    Raises:
        InputError: nothing of the kind exists.
    """
    if isinstance(where, Campaign):
        return where, where.folder
    if not isinstance(where, str | Path):
        raise InputError(
            f"a campaign is a path, a name or a le.Campaign, got {type(where).__name__}; "
            "le.Campaign.model_validate(...) makes one of a dict"
        )
    for folder in (Path(where), Path("runs") / where):
        copy = folder / CAMPAIGN
        if copy.is_file():
            if not Manifest(folder).as_written("plan", CAMPAIGN):
                raise InputError(
                    f"{copy}: the run's copy of the campaign was changed; restore it, and edit "
                    "your own campaign file instead"
                )
            stat = copy.stat()
            return _campaign(copy, (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)), folder
    if Path(where).is_dir():
        raise InputError(
            f"{where}: a folder without a run: it has no {CAMPAIGN}; name a run's folder, its name "
            "under runs/, or a campaign's .yaml file"
        )
    try:
        campaign = Campaign.load(where)
    except UnknownNameError as error:
        names = [visible(path.name) for path in run_folders(Path("runs"))]
        if not names:
            raise
        guess = did_you_mean(Path(where).name, names, max_count=3)
        listed = ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
        raise UnknownNameError(f"no run of this name; {guess}runs: {listed}; {error}") from None
    return campaign, campaign.folder


@lru_cache(maxsize=1_000)
def _campaign(copy: Path, changed: tuple[int, ...]) -> Campaign:
    """Return a run's copy of its campaign; `changed` makes the cache read a changed file again."""
    del changed
    return validate(Campaign, read_yaml(copy), str(copy))


def open_runs(where: str | Path | Campaign) -> tuple[Run, ...]:
    """Open a run by its folder, name or campaign; of a grid, the runs of all cells.

    Raises:
        InputError: nothing of the kind exists.
    """
    campaign, folder = find(where)
    if campaign.grid is None:
        return (Run(folder, campaign, campaign.load_space()),)
    return tuple(
        Run(folder.parent / cell.name, cell, cell.load_space()) for cell in cells(campaign)
    )


def fit_of(judge: str, method: str) -> str:
    """Return the name that the stage which fits a belief has in the manifest."""
    return f"fit {judge} {method}"


class Beliefs(Mapping[str, "density.BeliefDensity"]):
    """The beliefs of a run by judge; each is loaded when it is looked up.

    Raises:
        UnknownNameError: the run has no belief of this judge.
    """

    def __repr__(self) -> str:
        return f"Beliefs of {', '.join(self) or 'no judge'}"

    def __init__(self, run: Run, method: str) -> None:
        self._run, self._method = run, method
        self._folders = {
            judge.name: run.belief_folder(judge.name, method)
            for judge in run.campaign.judges
            if (run.belief_folder(judge.name, method) / SAMPLES).is_file()
        }

    def __getitem__(self, judge: str) -> density.BeliefDensity:
        if judge not in self._folders:
            judges = self._folders.keys()
            raise UnknownNameError.of(self._run.campaign.name, "belief of", judge, judges)
        folder = self._folders[judge]
        changed = self._run.manifest.changed(fit_of(judge, self._method))
        if changed:
            raise InputError(
                f"{self._run.folder / changed[0]}: changed since it was written; llm-elicit fit "
                f"{self._run.folder} rebuilds it"
            )
        return density.BeliefDensity.load(folder)

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)
