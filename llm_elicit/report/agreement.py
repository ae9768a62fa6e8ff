"""What the page says about people as judges, in words."""

from __future__ import annotations

from collections.abc import Sequence

from llm_elicit.audit.people import GroupAgreement, PeopleAudit, PersonAudit, RaterAgreement
from llm_elicit.report.formatting import interval, listed, share

_OFTEN = 0.1
"""The share of answers in less than a second from which the page mentions it."""


def agreement_sentences(people: PeopleAudit) -> tuple[str, ...]:
    """Return how far people agree with each other, with models and with themselves."""
    names = {person.name for person in people.people}
    among = [one for one in people.between if {one.first, one.second} <= names]
    mixed = [one for one in people.between if len({one.first, one.second} & names) == 1]
    own = [person.retest for person in people.people if person.retest is not None]
    sentences = []
    if among:
        same = f"Two people prefer the same point in {_mean(among)} of the pairs that both judged"
        sentences.append(f"{same}{_alpha('all people', people.among_people)}.")
    if mixed:
        same = f"A person and a model prefer the same point in {_mean(mixed)} of their pairs"
        sentences.append(f"{same}{_alpha('people and models together', people.among_all)}.")
    if own:
        sentences.append(f"Asked again, people give their earlier answer in {_mean(own)} of cases.")
    return tuple(sentences)


def _mean(found: Sequence[RaterAgreement]) -> str:
    """Return the share of pairs on which raters agree, over all of their pairs."""
    return share(sum(one.share.value * one.pairs for one in found) / sum(o.pairs for o in found))


def _alpha(raters: str, group: GroupAgreement | None) -> str:
    if group is None or group.alpha is None:
        return ""
    found = interval(group.alpha).replace("(", "(95 % interval ", 1)
    return f"; Krippendorff's alpha of {raters} is {found}"


def care_sentences(people: PeopleAudit) -> tuple[str, ...]:
    """Return whose answers may have been given without reading the question, and why."""
    return tuple(
        f"{person.name} {listed(reasons)}." for person in people.people if (reasons := _why(person))
    )


def _why(person: PersonAudit) -> list[str]:
    reasons = []
    if person.attentive is not None and person.attentive.value < 1.0:
        passed = round(person.attentive.value * person.attention)
        reasons.append(f"answered {passed} of {person.attention} attention questions as asked")
    if person.fast >= _OFTEN:
        reasons.append(f"gave {share(person.fast)} of the answers in less than a second")
    return reasons
