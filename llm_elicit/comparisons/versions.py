"""The versions of models that answered, and their changes within a run.

A version is the model's name as the provider reports it, with the fingerprint of the system around
it if there is one. Judges that ask the same model at the same address share an alias
(`BaseJudge.alias`), behind which one version is expected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llm_elicit._util.text import visible


def version_of(model: str, fingerprint: str) -> str:
    """Return the name of a version; empty if the provider reports no model.

    Examples:
        >>> version_of("m-2026-01-01", "fp_1"), version_of("m", "")
        ('m-2026-01-01 (fp_1)', 'm')
    """
    return f"{model} ({fingerprint})" if model and fingerprint else model


@dataclass(frozen=True)
class VersionSpan:
    """The answers of one version: their number, and the UTC times of the first and the last."""

    version: str
    answers: int
    first: str
    last: str


JudgeSpan = tuple[str, VersionSpan]
"""A judge's name, and its answers of one version."""


@dataclass(frozen=True)
class VersionChange:
    """Several versions that answered for one alias.

    Attributes:
        judges: the judges that share the alias.
        versions: in the order of their first answers.
    """

    judges: tuple[str, ...]
    versions: tuple[VersionSpan, ...]

    @property
    def line(self) -> str:
        """The versions and the times of the change in one line.

        Examples:
            >>> old = VersionSpan("m-1", 7, "2026-01-01T10:00:00.5", "2026-01-01T10:00:09.7")
            >>> new = VersionSpan("m-2", 1, "2026-01-02T09:00:00.1", "2026-01-02T09:00:00.1")
            >>> VersionChange(("gpt",), (old, new)).line.partition(", then ")[2]
            'm-2 (1 answer, 2026-01-02 09:00:00 to 2026-01-02 09:00:00)'
        """
        parts = [
            f"{visible(span.version, 80)} ({span.answers:,} answer{'s'[: span.answers != 1]}, "
            f"{to_the_second(span.first)} to {to_the_second(span.last)})"
            for span in self.versions
        ]
        return f"the model version changed during the run: {', then '.join(parts)}"


def to_the_second(moment: str) -> str:
    """Return an ISO 8601 time as it is printed, without fractions of a second."""
    return moment[:19].replace("T", " ")


class VersionLog:
    """The versions that answered in a run, by alias.

    Args:
        aliases: the alias of each judge that is a model.
        counts: the answers so far, by judge and version.

    Examples:
        >>> log = VersionLog({"low": "gpt", "high": "gpt"})
        >>> log.add("low", "m-1", "2026-01-01"), log.add("high", "m-1", "2026-01-02")
        (None, None)
        >>> log.add("high", "m-2", "2026-01-03").judges
        ('low', 'high')
    """

    def __init__(self, aliases: Mapping[str, str], counts: Iterable[JudgeSpan] = ()) -> None:
        self._aliases = dict(aliases)
        self._spans: dict[str, dict[str, VersionSpan]] = defaultdict(dict)
        for judge, span in counts:
            if judge in aliases and span.version:
                self._merge(aliases[judge], span)

    def _merge(self, alias: str, span: VersionSpan) -> None:
        spans = self._spans[alias]
        if (earlier := spans.get(span.version)) is not None:
            first, last = min(earlier.first, span.first), max(earlier.last, span.last)
            span = VersionSpan(span.version, earlier.answers + span.answers, first, last)
        spans[span.version] = span

    def add(self, judge: str, version: str, asked_at: str) -> VersionChange | None:
        """Count an answer; return the change if it is the first of another version."""
        alias = self._aliases[judge]
        if not version:
            return None  # such as a refusal by a filter
        is_change = bool(self._spans[alias]) and version not in self._spans[alias]
        self._merge(alias, VersionSpan(version, 1, asked_at, asked_at))
        return self.change(judge) if is_change else None

    def has(self, judge: str, model: str) -> bool:
        """Return whether a model has answered behind a judge's alias, whatever its fingerprint."""
        spans = self._spans[self._aliases[judge]]
        return any(name == model or name.startswith(f"{model} (") for name in spans)

    def change(self, judge: str) -> VersionChange | None:
        """Return the versions behind a judge's alias; None if there are not several."""
        return self._change(self._aliases[judge])

    @property
    def changes(self) -> list[VersionChange]:
        """The aliases behind which there are several versions."""
        changes = map(self._change, dict.fromkeys(self._aliases.values()))
        return [change for change in changes if change is not None]

    def _change(self, alias: str) -> VersionChange | None:
        if len(self._spans[alias]) < 2:
            return None
        spans = sorted(self._spans[alias].values(), key=lambda span: (span.first, span.version))
        judges = tuple(name for name, judge_alias in self._aliases.items() if judge_alias == alias)
        return VersionChange(judges, tuple(spans))
