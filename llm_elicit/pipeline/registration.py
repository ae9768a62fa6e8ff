"""The registration of a study: what is fixed before a question is asked, and what differs later.

A study is one YAML file: campaigns, hypotheses in a closed grammar, a level and a correction.
`register` freezes it as JSON with a digest, and as a page to deposit. A copy is put into the folder
of every run, by which `run`, `audit` and `report` know what was registered. Deviations are computed
from the present files, from what each run recorded when it was asked, and from its answers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
from pydantic import JsonValue, ValidationError

from llm_elicit._util.files import read_parquet
from llm_elicit._util.packages import LazyModule, installed_versions, pd
from llm_elicit._util.settings import StrictModel, read_yaml, validate
from llm_elicit.comparisons.table import Comparisons, version_of
from llm_elicit.config.study import Correction, Hypothesis, StudySettings
from llm_elicit.errors import ElicitError, InputError, UnknownNameError
from llm_elicit.pipeline.manifest import digest_of, digest_of_file, write_atomically
from llm_elicit.pipeline.run_folder import AUDIT, COMPARISONS, DIRECT, Run, open_runs

if TYPE_CHECKING:
    from llm_elicit.audit import hypotheses
    from llm_elicit.audit.judge_comparison import JudgeComparison
    from llm_elicit.audit.record import Audit
else:
    hypotheses = LazyModule("llm_elicit.audit.hypotheses")

FILE = "registration.json"
"""The file of the registration in the folder of each run."""

_SOURCES = {".py", ".jinja", ".yaml", ".css", ".js"}
_DIGEST_LENGTH = 64
_SHOWN = 12  # characters of a digest on the page
_LONGEST = 80  # characters of a value in a message

Compare = Callable[[Run], "JudgeComparison"]
"""Compares the judges of a run, as `llm-elicit compare` does."""


class RegisteredJudge(StrictModel):
    """One judge of a run.

    Attributes:
        settings: those that can change an answer.
        versions: the versions of its model that may answer; any one if there are none.
        answers, direct_answers: the numbers of answers at which asking ends.
    """

    settings: dict[str, JsonValue]
    versions: tuple[str, ...]
    answers: int
    direct_answers: int


class RegisteredRun(StrictModel):
    """All that decides the questions, the answers and the numbers of one run.

    Attributes:
        space: the words of the feature space, and its features by name.
        table: the digest of the reference table.
        seed, given, design, direct, fit: settings of the campaign.
        templates, presentations: digests of texts by the name of the template or presentation.
        plan: the digest of the pairs.
        judges: the judges.
        recorded: digests of what a run records when it is started.
    """

    space: dict[str, JsonValue]
    table: str | None
    seed: int
    given: dict[str, JsonValue]
    design: JsonValue
    direct: JsonValue
    fit: JsonValue
    templates: dict[str, str]
    presentations: dict[str, str]
    plan: str
    judges: dict[str, RegisteredJudge]
    recorded: dict[str, str]

    @classmethod
    def of(cls, run: Run, models: Mapping[str, Sequence[str]]) -> RegisteredRun:
        """Return what is fixed of a run that can be asked.

        Raises:
            InputError: a file cannot be read.
        """
        campaign, space, study = run.campaign, run.space, run.study
        shared, identity = campaign.shareable(), study.identity
        settings_by_judge = {judge["name"]: judge for judge in shared["judges"]}
        words: dict[str, JsonValue] = {
            name: getattr(space, name) for name in ("title", "subject", "setting")
        }
        words["features"] = {
            f.name: f.model_dump(mode="json", exclude_defaults=True, exclude={"name", "note"})
            for f in space.features
        }
        templates, presentations = dict(study.direct.identity), {}
        for presentation in study.presentations:
            template = presentation.template
            digest = templates.setdefault(template.id, template.digest)
            if digest != template.digest:  # two files of one id
                templates[template.id] = digest_of([digest, template.digest])
            examples = [example.model_dump() for example in presentation.examples]
            content = digest_of([presentation.order, presentation.options, examples])
            presentations[presentation.label or "the only one"] = content
        judges = {
            judge.name: RegisteredJudge(
                settings=_without_address(judge.identity(), settings_by_judge[judge.name]),
                versions=tuple(models.get(judge.name, ())),
                answers=campaign.design.questions,
                direct_answers=len(run.plan.direct) if campaign.direct else 0,
            )
            for judge in campaign.judges
        }
        return cls(
            space=words,
            seed=campaign.seed,
            given=dict(campaign.given),
            templates=templates,
            table=(space.table and digest_of_file(space.folder / space.table.file)) or None,
            design=shared["design"],
            direct=shared["direct"],
            fit=shared["fit"],
            presentations=presentations,
            plan=identity["plan"],
            judges=judges,
            recorded={name: digest_of(text) for name, text in identity.items()},
        )


def _without_address(identity: Mapping[str, Any], shareable: Mapping[str, Any]) -> dict[str, Any]:
    """Return a judge's settings without folders, and with a digest of its server's address."""
    settings = {name: shareable.get(name, value) for name, value in identity.items()}
    if settings.get("base_url"):
        settings["base_url"] = digest_of(str(settings["base_url"]))
    return settings


class Registration(StrictModel):
    """A frozen study, as stored in its JSON file.

    Attributes:
        version: version of the format.
        name, about, alpha, correction: as in `StudySettings`.
        created: the UTC time, ISO 8601.
        hypotheses: every hypothesis.
        runs: what is fixed of each run, by its name.
        software: versions of packages, and a digest of this package's sources.
        digest: of all the above.
    """

    version: Literal[1] = 1
    name: str
    about: str
    created: str
    alpha: float
    correction: Correction
    hypotheses: tuple[Hypothesis, ...]
    runs: dict[str, RegisteredRun]
    software: dict[str, str]
    digest: str = ""

    @property
    def content_digest(self) -> str:
        """The digest of everything but the digest."""
        return digest_of(self.model_dump(mode="json", exclude={"digest"}))

    @classmethod
    def load(cls, path: Path) -> Registration:
        """Read a registration.

        Raises:
            InputError: it cannot be read, or was changed since it was written.
        """
        try:
            registered = cls.model_validate_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); `llm-elicit register` writes it"
            ) from None
        except (ValidationError, UnicodeDecodeError):
            raise InputError(f"{path}: not a registration of this version; restore it") from None
        if registered.digest != registered.content_digest:
            raise InputError(f"{path}: changed since it was written; restore it")
        return registered


def software_versions() -> dict[str, str]:
    """Return the versions of packages, and a digest of this package's sources."""
    folder = Path(__file__).parents[1]
    sources = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.suffix in _SOURCES
    }
    return installed_versions() | {"sources": digest_of(sources)}


@dataclass(frozen=True)
class Registered:
    """A study with its files.

    Attributes:
        path: its YAML file.
        settings: the study.
        campaigns: its campaigns as files or names that exist.
        runs: their runs.
    """

    path: Path
    settings: StudySettings
    campaigns: tuple[str | Path, ...]
    runs: tuple[Run, ...]

    @classmethod
    def open(cls, path: Path) -> Registered:
        """Read a study and its campaigns.

        Raises:
            InputError: a file cannot be read, or breaks a rule.
        """
        settings = validate(StudySettings, read_yaml(path), str(path))
        paths = [path.parent / f"{name.removesuffix('.yaml')}.yaml" for name in settings.campaigns]
        campaigns = [
            file if file.is_file() else name
            for file, name in zip(paths, settings.campaigns, strict=True)
        ]
        runs = [run for campaign in campaigns for run in open_runs(campaign)]
        names = [run.campaign.name for run in runs]
        duplicates = [name for name in names if names.count(name) > 1]
        if duplicates:
            raise InputError(
                f"{path}: campaigns: two runs are called {duplicates[0]!r}; rename one"
            )
        judges = {judge.name for run in runs for judge in run.campaign.judges}
        for judge in settings.models:
            if judge not in judges:
                raise UnknownNameError.of(f"{path}: models", "judge", judge, judges)
        return cls(path, settings, tuple(campaigns), tuple(runs))

    @property
    def record(self) -> Path:
        """The path of the registration."""
        return self.path.with_suffix(".registration.json")

    @property
    def page(self) -> Path:
        """The path of the page to deposit."""
        return self.path.with_suffix(".registration.md")

    @property
    def stated(self) -> tuple[Hypothesis, ...]:
        """Every hypothesis, for each run and judge.

        Raises:
            InputError: one names nothing that is asked, or is stated twice.
        """
        cells = [(run.campaign, run.space) for run in self.runs]
        stated = [h for claims in self.settings.hypotheses for h in claims.hypotheses(cells)]
        for number, hypothesis in enumerate(stated):
            if hypothesis in stated[:number]:
                raise InputError(
                    f"{self.path}: hypotheses: {hypothesis} ({hypothesis.run}) appears twice in "
                    f"family {hypothesis.family!r}; state it once"
                )
        return tuple(stated)

    def freeze(self) -> Registration:
        """Return the study as it is now.

        Raises:
            InputError: a hypothesis cannot be decided, or a file cannot be read.
        """
        settings = self.settings
        frozen = Registration(
            name=settings.name, about=settings.about.strip(), alpha=settings.alpha,
            correction=settings.correction, hypotheses=self.stated,
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            runs={r.campaign.name: RegisteredRun.of(r, settings.models) for r in self.runs},
            software=software_versions(),
        )  # fmt: skip
        return frozen.model_copy(update={"digest": frozen.content_digest})

    def register(self) -> Registration:
        """Freeze the study, or find it unchanged; copy the registration to planned runs.

        Raises:
            InputError: it is registered already and was changed since.
        """
        if self.record.is_file():
            frozen = Registration.load(self.record)
            changes = self.changes(frozen)
            if changes:
                raise InputError(
                    f"{self.record}: registered already, and the study was changed since "
                    f"({changes[0]}); --check lists all changes, and another name registers anew"
                )
        else:
            frozen = self.freeze()
            write_atomically(self.record, frozen.model_dump_json(indent=1) + "\n")
            write_atomically(self.page, page_of(frozen))
        for run in self.runs:
            write_atomically(run.folder / FILE, self.record.read_text(encoding="utf-8"))
        return frozen

    def check(self, compare: Compare) -> hypotheses.RegisteredResults:
        """Return the results and deviations of the study as it is now.

        Raises:
            InputError: it is not registered, or the registration was changed.
        """
        registered = Registration.load(self.record)
        return _results(registered, self.runs, compare, self.deviations(registered))

    def deviations(self, registered: Registration) -> list[str]:
        """Return what differs from what was registered, in the files and in what was asked."""
        run_lines = [line for run in self.runs for line in run_deviations(registered, run)]
        return [*self.changes(registered), *run_lines]

    def changes(self, registered: Registration) -> list[str]:
        """Return what differs now from what was registered, whatever was asked."""
        settings, names = self.settings, ("name", "about", "alpha", "correction")
        recorded = {name: getattr(registered, name) for name in names}
        current = {name: getattr(settings, name) for name in names}
        lines = list(_differences(recorded, current | {"about": settings.about.strip()}))
        try:
            recorded, current = map(_number_hypotheses, (registered.hypotheses, self.stated))
            lines += _differences(recorded, current, "hypotheses")
        except InputError as error:
            lines.append(str(error))
        present = [run.campaign.name for run in self.runs]
        lines += [f"{n}: registered, but missing now" for n in registered.runs if n not in present]
        for run in self.runs:
            lines += _run_changes(registered, run, settings.models)
        return [*lines, *_software_changes(registered)]


def _number_hypotheses(hypotheses: Sequence[Hypothesis]) -> dict[str, JsonValue]:
    """Return hypotheses as JSON data by their number."""
    return {f"number {n}": hypothesis.model_dump() for n, hypothesis in enumerate(hypotheses, 1)}


def _software_changes(registered: Registration) -> Iterator[str]:
    yield from _differences(registered.software, software_versions(), "software")


def _run_changes(
    registered: Registration, run: Run, models: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Return what differs now from what was registered of a run.

    Args:
        registered: the registration.
        run: the run.
        models: the versions that may answer now, by judge; by default those registered.
    """
    name = run.campaign.name
    if name not in registered.runs:
        return [f"{name}: not registered"]
    if models is None:
        judges = registered.runs[name].judges
        models = {judge: planned.versions for judge, planned in judges.items()}
    try:
        present = RegisteredRun.of(run, models)
    except InputError as error:
        return [f"{name}: {error}"]
    recorded, now = (
        r.model_dump(mode="json", exclude={"recorded"}) for r in (registered.runs[name], present)
    )
    return [f"{name}: {line}" for line in _differences(recorded, now)]


def _differences(recorded: Any, present: Any, path: str = "") -> Iterator[str]:
    """Yield a line for every leaf of JSON data that differs."""
    if isinstance(recorded, dict) and isinstance(present, dict):
        for key in recorded | present:
            inside = f"{path}.{key}" if path else key
            if key not in present:
                yield f"{inside}: registered, but missing now"
            elif key not in recorded:
                yield f"{inside}: not registered"
            else:
                yield from _differences(recorded[key], present[key], inside)
    elif recorded != present:
        is_digest = isinstance(recorded, str) and len(recorded) == _DIGEST_LENGTH
        change = "changed" if is_digest else f"{_text(recorded)} registered, {_text(present)} now"
        yield f"{path}: {change}"


def _text(value: Any) -> str:
    """Return a value for a message, on one line."""
    text = "none" if value is None else " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def run_deviations(registered: Registration, run: Run) -> Iterator[str]:
    """Yield how a run that was asked differs from what was registered; nothing before that.

    A setting that differs is left out where the present campaign differs as well.
    """
    name = run.campaign.name
    recorded = registered.runs.get(name)
    if recorded is None or not run.started:
        return
    identity: dict[str, str] = {}
    with suppress(InputError):  # of a file that cannot be read, which is another deviation
        identity = run.identity
    for part, text in run.recorded_identity.items():
        if recorded.recorded.get(part) != digest_of(text) and identity.get(part) != text:
            yield f"{name}: asked with another {part} than registered"
    for stage in ("pairs", "inputs", "ask", "audit"):
        for file in run.manifest.changed(stage):
            yield f"{name}: {file} is missing, or changed since it was written"
    if not (run.folder / COMPARISONS).is_file():
        return
    answers = Comparisons.read(run.folder / COMPARISONS).frame
    path, direct = run.folder / DIRECT, answers["judge"][:0]
    if path.is_file():
        direct = read_parquet(path, ["judge"])["judge"]
    questions = run.questions
    for judge, planned in recorded.judges.items():
        rows = answers[answers["judge"] == judge]
        expected = min(planned.answers, questions.get(judge, planned.answers))
        direct_count = int((direct == judge).sum())
        for kind, count, number in (
            ("answers", len(rows), expected),
            ("direct answers", direct_count, planned.direct_answers),
        ):
            if count != number:
                change = f"{abs(number - count):,} of {number:,} {kind}"
                yield f"{name}: {judge}: {change} {'missing' if count < number else 'too many'}"
        yield from (f"{name}: {judge}: {line}" for line in _version_deviations(planned, rows))
        if early := int((rows["asked_at"].fillna("") < registered.created).sum()):
            yield f"{name}: {judge}: {early:,} answers are older than the registration"


def _version_deviations(planned: RegisteredJudge, rows: pd.DataFrame) -> Iterator[str]:
    """Yield the versions of a judge's model that were not to answer."""
    prints = rows["fingerprint"].fillna("") if "fingerprint" in rows else [""] * len(rows)
    models = rows["model_answered"].fillna("")
    counts = Counter(map(version_of, models, prints))
    if not planned.versions:
        if len(counts) > 1:
            yield f"{len(counts)} versions answered ({', '.join(sorted(counts))}), not one"
        return
    for version, count in sorted(counts.items()):
        if not any(fnmatchcase(version, pattern) for pattern in planned.versions):
            yield f"{count:,} answers by version {version or 'unknown'}, which is not registered"


def _results(
    registered: Registration, runs: Sequence[Run], compare: Compare, deviations: Sequence[str]
) -> hypotheses.RegisteredResults:
    """Test the hypotheses by the audits of the runs that have one."""
    by_name = {run.campaign.name: run for run in runs}
    audits: dict[str, Audit] = {}
    for name, run in by_name.items():
        with suppress(InputError):
            audits[name] = run.audit
    claims, alpha = registered.hypotheses, registered.alpha

    @cache
    def compared(name: str) -> JudgeComparison | None:
        with suppress(InputError):  # a file that was changed, which is a deviation
            return compare(by_name[name])
        return None

    tests = hypotheses.decide_hypotheses(claims, audits, compared, alpha, registered.correction)
    return hypotheses.RegisteredResults(
        **registered.model_dump(include={"name", "created", "digest", "alpha", "correction"}),
        hypotheses=tests,
        exploratory=tuple(hypotheses.explore(claims, audits, alpha)),
        deviations=tuple(deviations),
    )


def _read_registration(run: Run) -> Registration | None:
    """Return the registration in a run's folder; None if there is none.

    Raises:
        InputError: it was changed since it was written.
    """
    path = run.folder / FILE
    return Registration.load(path) if path.is_file() else None


def results_of(run: Run, compare: Compare) -> hypotheses.RegisteredResults | None:
    """Return the registered results and the deviations of one run; None if it is not registered.

    p-values are adjusted over all runs of the study that lie beside it.

    Raises:
        InputError: the registration in its folder was changed.
    """
    registered, name = _read_registration(run), run.campaign.name
    if registered is None:
        return None
    runs = [run]
    for other in registered.runs.keys() - {name}:
        with suppress(ElicitError):
            runs.append(Run.open(run.folder.parent / other))
    return _results(registered, runs, compare, deviations_of(registered, run)).of_run(name)


def deviations_of(registered: Registration, run: Run) -> list[str]:
    """Return the deviations of one run, by the files that it has now and had when it was asked."""
    return [*_changes(registered, run), *run_deviations(registered, run)]


def _changes(registered: Registration, run: Run) -> list[str]:
    """Return what differs now from what was registered of a run, and of the software."""
    return [*_run_changes(registered, run), *_software_changes(registered)]


def reads(run: Run) -> dict[str, str]:
    """Return a digest of what the registered results depend on; nothing without a registration."""
    registered = _read_registration(run)
    if registered is None:
        return {}
    audits = [digest_of_file(run.folder.parent / name / AUDIT) for name in registered.runs]
    return {"registration": digest_of([audits, registered.digest, deviations_of(registered, run)])}


def changes_of(run: Run) -> list[str]:
    """Return what was changed since a run was registered; nothing without a registration."""
    registered = _read_registration(run)
    return [] if registered is None else _changes(registered, run)


def notes_of(run: Run) -> list[str]:
    """Return the deviations of a run as lines to print; nothing without a registration."""
    registered = _read_registration(run)
    if registered is None:
        return []
    lines = deviations_of(registered, run)
    number = f"{len(lines) or 'no'} deviation{'' if len(lines) == 1 else 's'}"
    return [f"registered: {number}", *(f"  deviation: {line}" for line in lines)]


def page_of(registered: Registration) -> str:
    """Return the page to deposit, as Markdown, from `registration.md.jinja`."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    page = Path(__file__).with_name("registration.md.jinja").read_text(encoding="utf-8")
    return environment.from_string(page).render(study=registered, shown=_SHOWN)
