"""The page: complete, self-contained, well-formed, and deaf to what a reply tells it to do."""

import base64
import dataclasses
import hashlib
import re
from importlib import resources
from itertools import pairwise

from llm_elicit.audit.consistency import Transitivity
from llm_elicit.audit.direct_answers import AnswerCounts
from llm_elicit.audit.inference import Interval
from llm_elicit.audit.own_density import OwnDensityAudit
from llm_elicit.audit.record import Audit, JudgeEvidence, audit_run
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.config.design import Design
from llm_elicit.report import formatting
from llm_elicit.report.answers import build_filters
from llm_elicit.report.page import render_page
from report.reader import Reader


def test_every_tag_is_closed(reader):
    assert reader.open == []


def test_nothing_is_fetched_and_no_script_but_the_slider_runs(page, reader):
    for _, attributes in reader.tags:
        for name in ("src", "srcset", "href", "action", "data"):
            value = attributes.get(name) or "#"
            assert value.startswith(("data:", "#"))
        assert not [name for name in attributes if name.startswith("on")]
    assert not reader.all("iframe", "object", "embed", "form")
    policy = next(a["content"] for a in reader.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert reader.all("script") == [{}]
    script = page[page.index("<script>") + len("<script>") : page.index("</script>\n")]
    assert script == (resources.files("llm_elicit.report") / "templates" / "slider.js").read_text(
        "utf-8"
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.endswith(f"; script-src 'sha256-{digest}'")


def test_a_judge_has_the_line_of_what_it_was_found_to_give(page):
    assert page.count("; log-odds: yes, 5 alternatives</span>") == 1


def test_a_page_of_one_power_has_no_script_and_no_slider(study, report):
    portraits = {name: drawn for name, drawn in report[1].items() if drawn.factors == (1.0,)}
    assert len(portraits) == 1
    parsed = Reader()
    text = render_page(study, portraits)
    parsed.feed(text)
    assert not parsed.all("script")
    assert not [field for field in parsed.all("input") if field["type"] == "range"]
    assert "script-src" not in text


def test_filters_without_a_choice_are_no_empty_box(study, page, monkeypatch):
    """One judge that always prefers the first option: an empty card stood above its answers."""
    assert 'class="filters' in page
    one = {key: choices[:1] for key, choices in build_filters([]).items()}
    monkeypatch.setattr("llm_elicit.report.page.build_filters", lambda _: one)
    assert 'class="filters' not in render_page(study, {})


def test_without_a_script_the_saved_power_is_shown(study, portrait, reader):
    assert portrait.factors == (0.25, 0.5, 1.0, 2.0, 4.0)
    shown = [g for g in reader.all("g") if "data-step" in g and g.get("class") != "off"]
    assert {g["data-step"] for g in shown} == {"2", "0"}, "0 of the judge with one power"
    hidden = [g for g in reader.all("g") if g.get("class") == "off"]
    assert {g["data-step"] for g in hidden} == {"0", "1", "3", "4"}
    power = next(d for d in reader.all("div") if "data-words" in d)
    assert "off" in power["class"].split()


def test_hostile_text_is_escaped(page, reader):
    text = "".join(reader.text)
    assert "<script>document.title='owned'</script>" in text
    assert "{{ 7 * 7 }}" in text
    assert "stuck <b>judge</b>" in text
    assert "A <small> world & its ways" in text
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "\\x1b[31m\\u202e" in text
    assert not reader.all("small")
    assert "<b>judge" not in page


def test_the_page_has_no_address_of_a_server(page):
    assert "backend openai" in page
    assert "host.example" not in page


def test_both_verdicts_are_given_as_sentences(reader):
    text = " ".join("".join(reader.text).split())
    assert "expert prefers higher income, lower age and middle values of latitude (" in text
    assert "; p ≤ 0.01)" in text
    assert (
        "the preference follows the data: a real place ranks above a random one 83% of the time "
        "(95 % interval 79% to 87%; ceiling 95%), 73% of the way from one half to the ceiling; "
        "rank correlation with a kernel density of the data +0.70 (+0.60 to +0.80); the scale of "
        "its belief is identified by ranges and ratios." in text
    )
    assert "Its answers about ranges are compatible with a density" in text
    none = "The answers of stuck <b>judge</b> are not shown to depend on the points (p = 1)"
    assert none in text
    assert "; they depend on the position: the option shown first is preferred (p" in text
    assert (
        "Next: use template `v1/few-shot`, which shows answered examples, compare templates" in text
    )
    assert "Belief with a scale" in text
    assert "Position only" in text
    assert "signal" not in text.lower()


def test_what_does_not_depend_on_the_power_comes_first(page):
    order = ["AUC of the data</a></th>", "The belief of expert</h2>",
             "Effects of the features</h3>", "Sharpness of the belief</h3>",
             "Summary statistics, at the saved power</h3>",
             "Dependence on the power</h3>"]  # fmt: skip
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    assert "Wasserstein" not in page[: places[1]].split("<main", 1)[1]


def test_identified_powers_are_labelled_on_the_slider_and_in_the_table(page, reader):
    text = " ".join("".join(reader.text).split())
    assert (
        "identified by ranges and ratios (90 % interval 0.75 to 1.4 times the saved power). The "
        "sources do not differ significantly (p = 0.3)" in text
    )
    assert "A all sources combined: the saved power (0.75 to 1.4)" in text
    assert "B ranges alone: 1.2 times the saved power (0.8 to 1.8)" in text
    assert "D power that predicts the data best: 4.5 times" in text
    heads = re.search(r"times the saved power</a></th>(.*?)</tr>", page, re.S)
    columns = [re.sub("<[^>]*>", "", head) for head in heads[1].split("</th>")][:-1]
    assert columns == ["0.25", "0.5", "1 A B C", "2", "4 D"]


def test_a_belief_without_a_consistent_preference_is_folded_away(page):
    start = page.index('id="judge-2"')
    folded = page.index("fitted to these answers (position only: it may reflect noise", start)
    assert start < folded < page.index("One feature at a time", start)
    assert "The belief fitted to these" not in page[:start]
    effects = page.index("Effects of the features</h3>", start)
    assert folded < effects, "nothing is said to be preferred outside"
    assert page.count("Effects of the features</h3>") == 2


def test_a_page_on_a_part_of_the_answers_says_so_at_the_top(study):
    gap = dataclasses.replace(study, missing={"expert": 7}, questions={"expert": 90})
    part = render_page(gap, {})
    whole = render_page(study, {})
    assert study.campaign.design.questions != 90, "a stopping rule left rounds out"
    assert "expert: 7 of 90." in part
    assert part.index("The campaign is not complete") < part.index("<nav")
    assert "not complete" not in whole


def test_the_caveats_name_the_run(reader):
    text = " ".join("".join(reader.text).split())
    for part in ("p^(1/s)", "logarithmic scale: income", "age 0 years to 50 years", "seed 1"):
        assert part in text


def test_every_row_is_as_wide_as_the_head_of_its_table(page):
    for table in re.findall(r"<table.*?</table>", page, re.S):
        head, *rows = (
            sum(int(span or 1) for span in re.findall(r'<t[hd](?:[^>]*colspan="(\d+)")?', row))
            for row in re.findall(r"<tr.*?</tr>", table, re.S)
        )
        # A row of a group has its heading in the first of the group.
        assert all(width in (head, head - 1) for width in rows), table[:400]
        if "rowgroup" not in table:
            assert set(rows) <= {head}, table[:400]


def test_headings_descend_one_level_at_a_time(reader):
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_landmarks_names_and_alternatives(reader):
    for landmark in ("main", "header", "footer", "nav"):
        assert len(reader.all(landmark)) == 1
    assert all(image.get("alt") for image in reader.all("img"))
    assert all(drawing.get("aria-label") for drawing in reader.all("svg"))
    assert all(cell.get("scope") for cell in reader.all("th"))
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for a in reader.all("a") if a["href"].startswith("#")}
    named = {a["aria-labelledby"] for a in reader.all("section")}
    assert targets | named <= set(ids)


def test_a_judge_without_belief_in_a_world_without_data(study):
    space = study.audit.space
    nothing = JudgeEvidence("expert", study.comparisons)
    settings = AuditSettings(size=50, repeats=2, flips=99)
    audit = audit_run([nothing], Reference(space, study.samples.sampling), settings=settings)
    bare = dataclasses.replace(study, audit=audit, prompts={}, versions={})
    text = render_page(bare, {})
    assert "the stage fit has not been run" in text
    assert "too few choices" not in text
    assert "not measurable" in text
    preference = audit.judges[0].preference.model_copy(update={"pairs": 3})
    few = audit.judges[0].model_copy(update={"preference": preference})
    text = render_page(
        dataclasses.replace(bare, audit=audit.model_copy(update={"judges": [few]})), {}
    )
    assert "3 pairs have an answer, and 4 features need at least 4" in text
    assert "has not been run" not in text


def test_direct_answers_are_shown_where_there_are_any(study, page, reader):
    text = " ".join("".join(reader.text).split())
    assert "4 of 8" in text
    assert "10 of 12" in text
    assert "expert completed 9 rows of 9 exactly; " in text
    assert "10 points generated by expert, one at a time, 10 of them distinct" in text
    judges = [judge.model_copy(update={"direct": None}) for judge in study.audit.judges]
    audit = study.audit.model_copy(update={"judges": judges})
    assert "Direct questions" not in render_page(dataclasses.replace(study, audit=audit), {})
    assert "Direct questions" in page


def test_answers_about_ranges_and_ratios_are_counted(study):
    expert, stuck = study.audit.judges
    none = {"refusal": 3, "unparsable": 1}
    asked = [AnswerCounts(kind="range", answers=80, unparsed=none),
             AnswerCounts(kind="ratio", answers=20, unparsed={})]  # fmt: skip
    direct = expert.direct.model_copy(update={"answer_counts": asked})
    judges = [expert.model_copy(update={"direct": direct}), stuck]
    audit = study.audit.model_copy(update={"judges": judges})
    text = render_page(dataclasses.replace(study, audit=audit), {})
    assert "<td>76 of 80</td><td>20 of 20</td>" in text
    assert text.count("<td>not asked</td>") == 4


def test_the_own_density_is_shown_where_it_was_read(study, page):
    caption = "beside its choices and the data"
    assert caption not in page
    of_slope = Interval(value=2.02, low=1.99, high=2.05)
    own = OwnDensityAudit(
        pairs=20, rows=18, bounds=3, others=0.02, order_correlation=0.87, correlation=None,
        agreement=Interval(value=0.9, low=0.7, high=0.97), slope=of_slope, auc=None,
        belief_auc=Interval(value=0.84, low=0.73, high=0.92), log_score=None,
        belief_log_score=Interval(value=1.2, low=0.8, high=1.6),
    )  # fmt: skip
    expert, other = study.audit.judges
    direct = expert.direct.model_copy(update={"own_density": own})
    judges = [expert.model_copy(update={"direct": direct}), other]
    audit = study.audit.model_copy(update={"judges": judges})
    text = render_page(dataclasses.replace(study, audit=audit), {})
    cells = [
        "20; 18", "3", "0.87", "not measurable", "90% (70% to 97%)", "2.02 (1.99 to 2.05)",
        "not measurable", "84% (73% to 92%)", "not measurable", "+1.20 (+0.80 to +1.60)",
    ]  # fmt: skip
    assert caption in text
    assert "".join(f"<td>{cell}</td>" for cell in cells) in text


def test_cycles_are_shown_where_they_were_measured(study, page):
    assert "Of three points" not in page
    found = Transitivity(
        triads=40,
        cycle_share=Interval(value=0.25, low=0.14, high=0.4),
        expected_cycle_share=0.22,
        p_random=0.57,
        repeated_cycle_share=Interval(value=0.2, low=0.1, high=0.35),
        expected_repeated_share=0.027,
        p_value=0.0012,
    )
    expert, other = study.audit.judges
    judges = [expert.model_copy(update={"transitivity": found}), other]
    audit = study.audit.model_copy(update={"judges": judges})
    parsed = Reader()
    campaign = study.campaign.model_copy(update={"design": Design(pairs=60, triads=20)})
    parsed.feed(render_page(dataclasses.replace(study, audit=audit, campaign=campaign), {}))
    text = " ".join(parsed.text)
    for part in (
        "25% (14% to 40%)",
        "22%",
        "0.57",
        "20% (10% to 35%)",
        "3%",
        "0.0012",
        "form 20 triads (three points compared",
    ):
        assert part in text
    assert parsed.open == []
    assert {"#term-cycles", "#term-repeated-cycles"} <= {a["href"] for a in parsed.all("a")}


def test_features_are_called_by_their_labels_in_every_table(page):
    for name in ("Latitude", "Longitude"):
        assert f">{name}<" not in page
        assert page.count(f'class="wraps">{name.lower()}<') == 3  # two of tails, unanswered
        assert page.count(f'class="wraps">{name.lower()}: ') == 1


def test_bands_are_below_their_estimates(study, page):
    bands = study.audit.of("expert").bands
    income = study.audit.space.features[0]
    shown = formatting.band_text(income, bands[0].q50)
    assert page.count('<tr class="band soft">') == study.audit.space.dimension
    assert f"<td>{shown}</td>" in page
    assert study.audit.of("stuck <b>judge</b>").bands is None


def test_the_effect_of_more_pairs_is_shown(study, reader):
    text = " ".join("".join(reader.text).split())
    power = study.audit.of("expert").band_precision
    assert power.pairs == 60
    assert power.prior_dominated
    assert "With 60 pairs answered, about 180 more would halve each width; probably more" in text
    first = power.widths[0]
    income, band = study.audit.space.features[0], study.audit.of("expert").bands[0].mean
    assert f"{formatting.band_text(income, band)}{first.mean:.2f}{first.mean / 2:.2f}" in text
    # Nothing can be measured of a judge who always prefers the first option.
    assert study.audit.of("stuck <b>judge</b>").preference.sample_size.pairs is None
    assert text.count("pairs needed to find a preference cannot be estimated") == 1


def test_distances_stand_beside_their_floors_once_a_judge(study, page):
    assert page.count("<h3>Joint distances over all features</h3>") == 2
    floor = study.audit.reference.data_floor.joint
    shown = formatting.estimate_text(floor.classifier, 1, percent=True)
    row = page[page.index("two samples of the data (floor)") :].split("</tr>")[0]
    for value in (
        formatting.estimate_text(floor.sliced),
        formatting.estimate_text(floor.energy),
        shown,
    ):
        assert f"<td>{value}</td>" in row
    expert = study.audit.of("expert").data_distance
    assert f"<td>{formatting.estimate_text(expert.joint.pqmass)}</td>" in page
    low, high = expert.intervals.energy
    energy = formatting.estimate_text(expert.joint.energy)
    shown = f'{energy} <span class="soft">({low:.2f} to {high:.2f})'
    assert f"<td>{shown}</span></td>" in page
    assert page.count("two samples of the belief (floor)") == 1  # of the judge with a cross-check


def test_correlations_and_tails_are_shown_with_their_bands(study, reader):
    text = " ".join("".join(reader.text).split())
    shape = study.audit.of("expert").shape
    pair = shape.largest_gaps(8)[0]
    low, belief, high = map(formatting.signed_text, (pair.band[0], pair.belief, pair.band[1]))
    assert f"{belief}{low} to {high}" in text
    assert formatting.interval_text(pair.difference) in text
    assert f"outside the belief's 90 % band for {len(shape.pairs_outside_band)} of 6 pairs" in text
    below, band = shape.tails[0].below, shape.tails[0].below_band
    shown = formatting.interval_text(below, percent=True, decimals=1)
    assert (
        f"income{shown}{formatting.share_text(band[0], 1)} to {formatting.share_text(band[1], 1)}"
        in text
    )


def test_a_belief_without_a_measured_shape_has_no_tables_of_it(study, page):
    without = {"method_distances": {}, "shape": None}
    judges = [judge.model_copy(update=without) for judge in study.audit.judges]
    bare = study.audit.model_copy(update={"judges": judges})
    text = render_page(dataclasses.replace(study, audit=bare), {})
    for heading in ("<h3>Correlations</h3>", "<h3>Tails</h3>"):
        assert heading in page
        assert heading not in text
    assert "two samples of the data (floor)" in text


def test_an_audit_keeps_its_bands(study, tmp_path):
    study.audit.save(tmp_path / "audit.json")
    assert Audit.load(tmp_path / "audit.json").judges[0].bands == study.audit.judges[0].bands


def test_bands_are_ordered_and_around_their_densities(study):
    bands = study.samples.bands["expert"]
    for feature, marginal in zip(bands.features, bands.marginals, strict=True):
        assert feature.mean[0] < feature.mean[1]
        assert feature.q25[0] < feature.q50[1] < feature.q75[1]
        assert all(0 <= low <= high for low, high in zip(marginal.low, marginal.high, strict=True))


def test_people_are_compared_and_answers_given_unread_are_named(study, reader):
    text = " ".join("".join(reader.text).split())
    assert "Two experts prefer the same point in " in text
    assert "; Krippendorff's alpha of all experts is " in text
    assert "An expert and a model prefer the same point in " in text
    assert "Asked again, experts give their earlier answer in 100% of cases." in text
    assert (
        "cleo <b> answered 0 of 6 attention questions correctly and gave 100% of the answers in "
        "less than a second." in text
    )
    assert "ben answered" not in text
    without = dataclasses.replace(study, audit=study.audit.model_copy(update={"people": None}))
    assert 'id="people"' not in render_page(without, {})


def test_many_raters_are_folded_away(study):
    people = study.audit.people
    many = people.model_copy(update={"agreements": people.agreements * 5})
    nothing = {"agreements": [], "people_agreement": None, "overall_agreement": None}
    silent = [one.model_copy(update={"retest": None}) for one in people.people]
    alone = people.model_copy(update={**nothing, "people": silent})
    pages = [
        render_page(
            dataclasses.replace(study, audit=study.audit.model_copy(update={"people": p})), {}
        )
        for p in (many, alone)
    ]
    assert "Agreement of every two raters (30)</summary>" in pages[0]
    assert "Krippendorff's alpha of" not in pages[1]
    assert "<p></p>" not in pages[1]
    assert "Cohen's kappa</a></th>" not in pages[1]
