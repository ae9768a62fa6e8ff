"""Every sentence of the first screen, of each of thirty planted judges, is held against its truth.

The table of docs/planted.md is made here: PLANTED_TABLE=write python -m pytest this file.
"""

import os
import re
from functools import cache
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from llm_elicit.audit.utility import auc, spearman
from llm_elicit.planning.pairs import fewest_pairs
from llm_elicit.report.page import render_page
from report.planted_judges import DATA, JUDGES, SPACE, audited, log_density

PAGE = Path(__file__).parents[2] / "docs" / "planted.md"
POINTS = SPACE.sample(8000, np.random.default_rng(3))
NUMBER = r"[−+]?\d[\d,.]*"
PERCENT = rf"(?:more than )?{NUMBER}%"
P = rf"p [=≤<] {NUMBER}"
FACTS = rf" (?P<answers>{NUMBER}) answers; 0 USD; asked 2026-01-01 00:00 UTC\."


@cache
def cards(name):
    """Return the texts of the cards on the first screen, by judge: badge, and paragraphs."""
    study, _ = audited(name)
    page = render_page(study, {})
    found = {}
    for card in re.findall(r'<article class="card verdict">(.*?)</article>', page, re.S):
        heading = re.search(r"<h3>(.*?)</h3>", card, re.S)[1]
        badge = re.search(r'class="badge[^>]*>(.*?)<', card, re.S)[1]
        text = " ".join(re.findall(r"<p[^>]*>(.*?)</p>", card, re.S))
        found[unescape(heading)] = badge, " ".join(unescape(text).split())
    return found


def truth_of(name, judge):
    return JUDGES[name] if judge == name else JUDGES[JUDGES[name].beside]


def share_of(text):
    return 0.995 if text.startswith("more") else float(text.rstrip("%")) / 100


def number_of(text):
    return float(text.replace("−", "-").replace(",", ""))


def contrast(truth, feature, direction):
    """Return how much more a judge prefers what it is said to prefer."""
    base = POINTS[:500]

    def mean(value):
        points = base.copy()
        points[:, SPACE.names.index(feature)] = value
        return float(truth.utility(points).mean())

    if direction == "higher":
        return mean(1.5) - mean(-1.5)
    if direction == "lower":
        return mean(-1.5) - mean(1.5)
    bend = mean(0.0) - 0.5 * (mean(1.5) + mean(-1.5))
    return bend if direction == "middle" else -bend


def prefers(truth, match):
    """higher size, middle values of weight and red over blue (colour)"""
    said = match["what"]
    pattern = (
        r"(?P<kind>higher|lower|middle values of|extreme values of) (?P<names>size and weight|"
        r"weight and size|size|weight)|(?P<best>\w+) over (?P<worst>\w+) \(colour\)"
    )
    for part in re.finditer(pattern, said):
        said = said.replace(part[0], "", 1)
        if part["best"]:
            red = SPACE.features[2]
            points = np.repeat(POINTS[:1], 2, axis=0)
            points[:, 2] = [red.code(part["best"]), red.code(part["worst"])]
            best, worst = truth.utility(points)
            assert best > worst
            continue
        direction = part["kind"].split()[0].replace("extreme", "ends")
        for feature in part["names"].split(" and "):
            assert contrast(truth, feature, direction) > 0.0
    assert not said.replace("and", "").strip(", "), f"nothing holds {said!r} against the truth"


def predicted(truth, match):
    """Of log-odds without rounding the shares are known; none is above its ceiling."""
    share = share_of(match["share"])
    if match["ceiling"]:
        assert share <= share_of(match["ceiling"])
    gaps = truth.utility(POINTS[:4000]) - truth.utility(POINTS[4000:])
    if truth.kind == "log-odds" and np.abs(gaps).max() < 60.0:  # beyond, probabilities saturate
        signal, noise = float(np.mean(gaps**2)), truth.noise**2 / (1 + truth.both_orders)
        assert share == pytest.approx(
            signal / (signal + noise), abs=0.3 if "40" in match[0] else 0.2
        )


def area(truth, text, relation):
    found = re.search(
        rf"ranks above a random one ({PERCENT}) of the time \(95 % interval ({PERCENT}) to "
        rf"({PERCENT}); ceiling ({PERCENT})\)(?:, ({PERCENT}) of the way|, at least as often|;)",
        text
    )  # fmt: skip
    value, low, high, ceiling = (share_of(part) for part in found.groups()[:4])
    true = auc(truth.utility(DATA), truth.utility(POINTS))
    assert low - 0.03 < true < high + 0.03
    assert ceiling == pytest.approx(auc(log_density(DATA), log_density(POINTS)), abs=0.04)
    if found[5]:
        assert share_of(found[5]) == pytest.approx((value - 0.5) / (ceiling - 0.5), abs=0.03)
    rank = spearman(truth.utility(POINTS), log_density(POINTS))
    said = re.search(rf"a kernel density of the data ({NUMBER}) \(({NUMBER}) to ({NUMBER})\)", text)
    # A kernel density is a rough estimate of the density, which few colours rank with many ties.
    assert abs(number_of(said[1])) < abs(rank) + 0.25
    assert number_of(said[1]) * rank > -0.02
    above, higher = (true > 0.5) - (true < 0.5), (rank > 0) - (rank < 0)
    if relation in ("follows", "weakly follows"):
        assert (above, higher) == (1, 1)
        assert ("weakly" in relation) == (true - 0.5 < 0.25 * (ceiling - 0.5))
    elif relation == "is opposite to":
        assert (above, higher) == (-1, -1)
    elif relation == "is practically unrelated to":
        assert abs(true - 0.5) < 0.05
        assert abs(rank) < 0.15


def related(truth, match):
    area(truth, match[0], match["relation"])


def partly(truth, match):
    area(truth, match[0], "")
    rank = spearman(truth.utility(POINTS), log_density(POINTS))
    if "the utility is lower where the data are dense" in match[0]:
        assert rank < 0
    if "the utility is higher where the data are dense" in match[0]:
        assert rank > 0
    if match[0].startswith("the preference ranks real rows"):
        true = auc(truth.utility(DATA), truth.utility(POINTS))
        assert (true > 0.5) == ("above" in match[0].split(":")[0])


def no_preference(truth, match):
    """Says what was not found, and claims nothing."""
    assert number_of(re.search(NUMBER, match["p"])[0]) >= 0.05


def by_position(truth, match):
    no_preference(truth, match)
    assert (truth.position > 0) == (match["side"] == "first")
    assert truth.position != 0
    assert bool(truth.of_content) == (match["content"] is not None)
    position_share(truth, match)


def position_share(truth, match):
    if truth.kind == "letters":
        assert match["share"] == "100%"
        return
    sums = POINTS[:4000, 0] + POINTS[4000:, 0]
    position = truth.position**2 + truth.spread**2 + truth.of_content**2 * float(np.mean(sums**2))
    gaps = 0.0
    if truth.utility is not None:
        gaps = float(np.mean((truth.utility(POINTS[:4000]) - truth.utility(POINTS[4000:])) ** 2))
    noise = truth.noise**2 / 2
    assert share_of(match["share"]) == pytest.approx(position / (position + gaps + noise), abs=0.15)


def by_content(truth, match):
    assert truth.of_content


def all_ties(truth, match):
    assert truth.kind == "ties"


def too_few(truth, match):
    assert int(match["pairs"]) <= truth.pairs
    assert int(match["pairs"]) < fewest_pairs(1 + (truth.beside is not None))


def no_answer(truth, match):
    counts = {"refused": "refusal", "truncated": "truncated"}
    assert truth.lost == {counts[match["why"]]: 1.0}
    assert int(match["lost"]) == int(match["all"]) == truth.pairs * (1 + truth.both_orders)


def lost_answers(truth, match):
    asked = truth.pairs * (1 + truth.both_orders)
    assert int(match["all"]) == asked
    assert int(match["lost"]) == round(asked * sum(truth.lost.values()))


def repeats(truth, match):
    """Though no rule on the features describes it, there is a preference."""
    no_preference(truth, match)
    assert truth.utility is not None
    gaps = truth.utility(POINTS[:4000]) - truth.utility(POINTS[4000:])
    signal = float(np.mean(gaps**2))
    assert share_of(match["share"]) == pytest.approx(
        signal / (signal + truth.noise**2 / 2), abs=0.1
    )


def one_order(truth, match):
    assert not truth.both_orders or truth.lost


def misfit(truth, match):
    assert truth.beyond_quadratic


def scale_unknown(truth, match):
    """Nothing but pairs was asked."""


def answer_count(truth, match):
    """Every question was answered, at no cost, at the same time."""
    assert number_of(match["answers"]) == truth.pairs * (1 + truth.both_orders)


def advice(truth, match):
    said = match[0]
    more = re.search(r"(?:about|as many:) ([\d,]+)", said)
    assert more is None or int(more[1].replace(",", "")) > truth.pairs * (
        1 - sum(truth.lost.values())
    )
    assert "both orders" not in said or not truth.both_orders
    assert "returns log-probabilities" not in said or truth.kind != "log-odds"
    assert "max_tokens" not in said or "truncated" in truth.lost
    assert "refuses" not in said or "refusal" in truth.lost


LOST = r"(?P<lost>[\d,]+) (?P<why>truncated|refused)"
RELATIONS = "(?:weakly )?follows|is opposite to|is not shown to be related to|is practically unrel"
SENTENCES = [
    (rf"NAME prefers the same option of a pair in both orders \((?P<share>{PERCENT}) of the "
     rf"variation repeats; {P}\), but no linear or quadratic rule on these features is shown to "
     rf"predict which \((?P<p>{P})\)\.", repeats),
    (r"NAME prefers (?P<what>.+?)(?= \((?:more|\d))", prefers),
    (
        rf" \((?P<share>{PERCENT}) of the variation of held-out (?:log-odds|choices) is predicted"
        rf"(?:; ceiling (?P<ceiling>{PERCENT})|, which is at its ceiling)?; {P}\); ",
        predicted,
    ),
    (rf"the preference (?P<relation>(?:{RELATIONS}ated to|{RELATIONS})) the data: .*?\)"
     r"(?:, [^;]*?)?; rank correlation .*?\)(?:; both intervals are within 15% of what the data's "
     r"own density reaches)?; ", related),
    (r"the preference (?:is not shown to rank|ranks) real rows [^:]*: a real .*?; but the utility "
     r"is [^:]*: rank correlation .*?\); ", partly),
    (r"the scale of its belief is not identified\.", scale_unknown),
    (rf"The answers of NAME are not shown to depend on the points \((?P<p>{P})\), nor on which "
     r"option is shown first\.", no_preference),
    (rf"The answers of NAME are not shown to depend on the points \((?P<p>{P})\); they "
     rf"depend on the position: the option shown (?P<side>first|second) is preferred \({P}\), "
     rf"which accounts for (?P<share>{PERCENT}) of their variation(?P<content>, to a degree that "
     rf"depends on the content \({P}\))?\.", by_position),
    (rf"NAME called every pair a tie: no preference was found \({P}\)\.", all_ties),
    (rf"NAME answered (?P<pairs>\d+) pairs?, so few that no preference could have been found "
     rf"\({P}\)\.", too_few),
    (rf"NAME gave no usable answer: {LOST} of (?P<all>[\d,]+)\.", no_answer),
    (r" (?P<lost>[\d,]+) of its (?P<all>[\d,]+) answers could not be used: (?P=lost) "
     r"(?:truncated|refused)\.", lost_answers),
    (r" No pair was answered in both orders, so a repeatable preference that these features do "
     r"not describe could not be detected\.", one_order),
    (rf" Repeatable variation of its answers \({PERCENT} repeats\) is not captured by (?P<by>the "
     r"fit|a quadratic rule on the features): the intervals above account for this; those of the "
     r"density below do not\.", misfit),
    (rf" The position effect accounts for (?P<share>{PERCENT}) of the variation of its answers\.",
     position_share),
    (rf" Its position effect depends on the content \({P}\): asking both orders removes only its "
     r"mean, and part of the rest may look like preference\.", by_content),
    (FACTS, answer_count),
    (r" Next: .*$", advice),
]  # fmt: skip
BADGES = {
    "No usable answers": lambda truth: sum(truth.lost.values()) == 1.0,
    "Too few answers": lambda truth: truth.pairs < 6,
    "Repeatable, not described by these features": lambda truth: truth.beyond_quadratic,
    "Position only": lambda truth: truth.position != 0.0,
    "No consistent preference": lambda truth: truth.utility is None or bool(truth.lost),
    "Consistent preference": lambda truth: truth.utility is not None,
}


@pytest.mark.parametrize("name", JUDGES)
def test_no_sentence_of_the_first_screen_is_false(name):
    """A sentence that no check knows fails, too."""
    for judge, (badge, text) in cards(name).items():
        truth = truth_of(name, judge)
        assert BADGES[badge](truth)
        rest = text
        while rest:
            known = (
                (match, check)
                for pattern, check in SENTENCES
                if (match := re.match(pattern.replace("NAME", re.escape(judge)), rest))
            )
            match, check = next(known, (None, None))
            assert match, f"nothing holds this against the truth: {rest}"
            check(truth, match)
            rest = rest[match.end() :]


NUMBERS = [
    r" \((?=[^)]*\d)[^)]*\)",  # intervals, ceilings, p-values
    r": a real stone ranks above a random one [^;]*",
    r"; both intervals [^;]*",
    r"(?:;|:) rank correlation [^;]*",
    r"; the scale of its belief is not identified",
    rf", which accounts for {PERCENT} of their variation",
]


def sentences_of(judge, text):
    """Return the sentences of a card without the judge's name and most numbers."""
    text = re.sub(FACTS, "", text.partition(" Next: ")[0])
    for pattern in NUMBERS:
        text = re.sub(pattern, "", text)
    text = text.replace(f" of {judge} ", " of the judge ").removeprefix(f"{judge} ")
    return text[0].upper() + text[1:]


def table():
    """Return a row for each set of sentences, with the judges of whom the report says it."""
    planted = {}
    for name in JUDGES:
        for judge, (badge, text) in cards(name).items():
            sentences = sentences_of(judge, text)
            wording = badge, re.sub(NUMBER, "#", re.sub(PERCENT, "#%", sentences))
            judges, _ = planted.setdefault(wording, ([], sentences))
            beside = "" if judge == name else f" (beside “{name}”)"
            judges.append(f"**{judge}**{beside}: {truth_of(name, judge).says}")
    rows = [
        f"| {'; '.join(judges)} | {badge} | {sentences} |"
        for (badge, _), (judges, sentences) in planted.items()
    ]
    return "\n".join(["| planted | verdict | sentences |", "| --- | --- | --- |", *rows]) + "\n"


def test_the_table_of_the_documentation_is_what_the_report_says():
    """Word by word; numbers may differ in the last digits on another processor."""
    said = table()
    head, _, written = PAGE.read_text(encoding="utf-8").partition("| planted |")
    if os.environ.get("PLANTED_TABLE") == "write":
        PAGE.write_text(head + said, encoding="utf-8")
        return
    quoted = " ".join(head.replace("> ", "").split())
    expert = re.sub(FACTS, "", cards("expert")["expert"][1].partition(" Next: ")[0])
    assert re.sub(NUMBER, "#", expert) in re.sub(NUMBER, "#", quoted)
    written = "| planted |" + written
    assert (
        re.sub(PERCENT, "#%", re.sub(NUMBER, "#", written)).splitlines()
        == re.sub(PERCENT, "#%", re.sub(NUMBER, "#", said)).splitlines()
    )
    here, there = (np.array([number_of(n.rstrip(".,")) for n in re.findall(NUMBER, text)])
                   for text in (said, written))  # fmt: skip
    assert here == pytest.approx(there, rel=0.1, abs=3.0)
