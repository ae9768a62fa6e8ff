"""The page in headless Chromium: silent, no wider than the window, accessible, filtered."""

import html
import json
import re
import subprocess
from importlib import resources

import numpy as np
import pytest
from audit.planted import box

from llm_elicit.audit.inference import Interval
from llm_elicit.audit.panel import Panel, PanelEntry, PanelSpace
from llm_elicit.report.answers import EXPANDED_ANSWERS, sample_answers
from llm_elicit.report.figures import Samples, draw_portrait
from llm_elicit.report.page import render_page, render_panel
from report.browser import CHROMIUM, display, goto, opened, until

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

# Windows have a least width, frames have not: the page is measured in a frame.
FRAME = """<!doctype html><title>frame</title><body>
<iframe style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {{
  const page = frame.contentDocument;
  const root = page.documentElement;
  const all = (chosen) => [...root.querySelectorAll(chosen)];
  document.body.dataset.result = JSON.stringify(({measure})());
}});
</script>"""

MEASURE = """() => ({{
  scrolls: root.scrollWidth,
  wide: all("main *, header *, footer *").filter(
    (e) => !e.closest(".scroll") && e.getBoundingClientRect().right > {width} + 0.5).length,
  drawings: all("img, svg").length,
  broken: all("img").filter((i) => !i.naturalWidth).length,
  title: page.title,
}})"""

# The powers whose belief is seen, and what is said, when the first judge's slider is put there.
SLIDE = """() => ["2", "4", "0"].map((step) => {
  const slider = page.querySelector("input[type=range]");
  slider.value = step;
  slider.dispatchEvent(new Event("input"));
  const figures = slider.closest(".figures");
  const seen = [...figures.querySelectorAll("[data-step]")].filter(
    (e) => getComputedStyle(e).display !== "none");
  return {
    steps: [...new Set(seen.map((e) => e.dataset.step))],
    said: page.querySelector("output").textContent,
    heard: slider.getAttribute("aria-valuetext"),
    label: slider.labels[0].textContent.trim(),
    scale: figures.querySelector(".rescaled").getAttribute("transform"),
  };
})"""

# How far the corner plot is stretched: above 1 its words grow with it.
STRETCH = """() => {
  const plot = page.querySelector(".corner .layered");
  return plot.getBoundingClientRect().width / plot.querySelector("svg").viewBox.baseVal.width;
}"""

# What is shown after each of these choices, the ones before undone: none, the second judge, A,
# orders that differ, the second judge's refusals.
FILTER = """() => [[], ["judge-1"], ["verdict-0"], ["orders-1"], ["judge-1", "verdict-3"]].map(
  (picked) => {
    all("input:not(.narrow)").forEach((i) => { i.checked = true; });
    picked.forEach((id) => { page.getElementById("only-" + id).checked = true; });
    return all(".answer").filter((e) => e.checkVisibility()).length;
  })"""

# Closed parts are opened; of the many cards that are alike a few are enough.
AXE = """<script>{axe}</script><script>
document.querySelectorAll(".more .answer:nth-child(n+3)").forEach((e) => e.remove());
document.querySelectorAll("details").forEach((d) => {{ d.open = true; }});
axe.run({{runOnly: {rules}}}).then((found) => {{
  document.body.dataset.result = JSON.stringify({{
    checked: found.passes.length,
    violations: found.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 200))]),
  }});
}});
</script></body>"""
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """One browser for all pages that say themselves what they are: to start one takes seconds."""
    with opened(CHROMIUM, "about:blank", tmp_path_factory.mktemp("browser") / "profile") as tab:
        yield tab


def dump(path, profile, *flags):
    command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def printed_json(tab, content, folder, *, dark=False):
    """What a page's script leaves in `document.body.dataset.result`."""
    path = folder / "page.html"
    path.write_text(content, encoding="utf-8")
    display(tab, 1500, 1000, dark=dark)
    goto(tab, path.as_uri())
    until(tab, "document.body.dataset.result !== undefined")
    return json.loads(tab.run("document.body.dataset.result"))


def framed(page, width, measure):
    return FRAME.format(width=width, page=html.escape(page), measure=measure)


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_overflows(tab, page, tmp_path, width):
    found = printed_json(tab, framed(page, width, MEASURE.format(width=width)), tmp_path)
    assert found["scrolls"] <= width
    assert found["wide"] == found["broken"] == 0
    assert found["drawings"] > 8
    assert "owned" not in found["title"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_opens_without_console_messages(written, tmp_path, dark):
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = dump(written, tmp_path / "profile", scheme)
    assert "</html>" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []


@pytest.mark.parametrize("medium", ["screen", "print"])
def test_answers_are_filtered(tab, study, page, tmp_path, medium):
    """Without a script of its own. On paper: the few, or all that a filter leaves."""
    if medium == "print":
        page = page.replace("@media print", "@media all")
    names = [judge.name for judge in study.audit.judges]
    shown = [sample_answers(study.comparisons.of(name), study.audit.space) for name in names]
    answers = [answer for some in shown for answer in some.answers]
    everything = len(answers) if medium == "screen" else 2 * EXPANDED_ANSWERS
    expected = [
        everything,
        len(shown[1].answers),
        sum(answer.verdict == "A" for answer in answers),
        sum(answer.orders == "differ" for answer in answers),
        1,  # one refusal was planted
    ]
    assert printed_json(tab, framed(page, 1400, FILTER), tmp_path) == expected


def test_the_slider_shows_one_power_at_a_time(tab, page, tmp_path):
    saved, sharpest, widest = printed_json(tab, framed(page, 1400, SLIDE), tmp_path)
    assert [found["steps"] for found in (saved, sharpest, widest)] == [["2"], ["4"], ["0"]]
    assert saved["said"] == saved["heard"] == "the saved power"
    assert sharpest["said"] == sharpest["heard"] == "4 times the saved power"
    assert saved["label"] == "Power of the belief"
    assert saved["scale"] == "matrix(1 0 0 1 0 0)" != sharpest["scale"]


def test_the_slider_is_moved_by_keys(tab, written):
    """Reached by the tab key, moved by arrows and Home, with the page's own policy in force."""
    goto(tab, written.as_uri())
    for _ in range(60):
        tab.press("Tab", 9)
        if tab.run("document.activeElement.type") == "range":
            break
    assert tab.run("document.activeElement.labels[0].textContent") == "Power of the belief"
    shown = """[...new Set([...document.querySelectorAll(".figures")[0]
        .querySelectorAll("[data-step]:not(.off)")].map((e) => e.dataset.step))]"""
    found = [tab.run(shown)]
    for key, code in (("ArrowRight", 39), ("ArrowRight", 39), ("ArrowRight", 39), ("Home", 36)):
        tab.press(key, code)
        found.append(tab.run(shown))
    assert found == [["2"], ["3"], ["4"], ["4"], ["0"]]
    assert tab.run("document.querySelector('output').textContent") == "0.25 times the saved power"


@pytest.mark.parametrize("d", [2, 3])
def test_a_corner_plot_of_few_features_is_not_stretched(tab, study, tmp_path, d):
    space, rng = box(d), np.random.default_rng(0)
    samples = Samples(space, space.sample(50, rng), beliefs={"expert": space.sample(50, rng)})
    page = render_page(study, {"expert": draw_portrait(samples, "expert")})
    assert printed_json(tab, framed(page, 1400, STRETCH), tmp_path) == pytest.approx(1.0, abs=0.01)


def audited(page, *rules):
    """The page with axe-core in it, which the page's own policy would not let run."""
    axe = (resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    return free.replace("</body>", AXE.format(axe=axe, rules=list(rules)))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_that_breaks_wcag_a_or_aa(tab, page, tmp_path, dark):
    found = printed_json(tab, audited(page, *WCAG), tmp_path, dark=dark)
    assert found["violations"] == []
    assert found["checked"] > 15


def test_axe_finds_what_is_broken(tab, page, tmp_path):
    head = page[: page.index('<section aria-labelledby="compared"')] + "</main></body></html>"
    broken = head.replace("--soft: #555c66", "--soft: #b0b5bc").replace('lang="en"', "", 1)
    checked = audited(broken, "color-contrast", "html-has-lang")
    found = dict(printed_json(tab, checked, tmp_path)["violations"])
    assert found.keys() == {"color-contrast", "html-has-lang"}


def test_a_panel_is_sorted_by_a_column_and_no_wider_than_the_window(tab, tmp_path):
    """Judges without a number are last in both directions."""
    scores = {"b": 0.2, "c": None, "a": -0.7}
    entries = [
        PanelEntry(
            judge=name,
            verdict="consistent preference",
            auc=None if value is None else Interval(value=value, low=-1.0, high=1.0),
        )
        for name, value in scores.items()
    ]
    space = PanelSpace(name="box", title="a <b>box</b>", rows=0, entries=tuple(entries))
    points = np.random.default_rng(0).normal(size=(200, 2))
    path = tmp_path / "panel.html"
    samples = Samples(box(2), points, points, {"b": points})
    path.write_text(render_panel(Panel(spaces=(space,)), [samples]))
    order = (
        "[...document.querySelectorAll('.sortable tbody th')].map((e) => e.textContent).join('')"
    )
    tab.watch()
    tab.faults()  # of pages before
    display(tab, 390)
    goto(tab, path.as_uri())
    assert tab.run("document.documentElement.scrollWidth") == 390
    assert tab.run("document.title") == "Panel of a <b>box</b>"
    orders = [tab.run(order)]
    for _ in range(2):
        tab.run("document.querySelectorAll('.sortable thead button')[4].click()")
        orders.append(tab.run(order))
    assert orders == ["bca", "bac", "abc"]
    assert tab.faults() == []
