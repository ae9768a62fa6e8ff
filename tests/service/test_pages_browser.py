"""The pages in headless Chromium: live, by keyboard alone, on a phone, light and dark."""

import re
import time
from importlib import resources
from urllib.parse import urlsplit

import pytest
from report.browser import CHROMIUM, opened
from typer.testing import CliRunner

from llm_elicit.cli.main import app
from tests.service.gate import gated
from tests.service.serving import serving

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

WATCHED = """
name: watched
space: penguins
design: {pairs: 80}
judges:
  - {name: expert, backend: simulated}
  - {name: panel, backend: human, experts: [ada, ben]}
fit: {method: utility, samples: 500}
"""
JUDGED = """
name: judged
space: penguins
design: {pairs: 4}
judges: [{name: ada, backend: human}, {name: late, backend: human}]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A service that shows beliefs while it asks; the next view comes with eight more answers."""
    with serving(tmp_path_factory.mktemp("service"), settings={"live": 3.0}) as one:
        yield one


@pytest.fixture(scope="module")
def client(served):
    with served.client(follow_redirects=True) as one:
        for text in (WATCHED, JUDGED):
            assert posted(one, "/", "/campaigns", yaml=text).status_code == 200
        yield one


@pytest.fixture(scope="module")
def tab(client, tmp_path_factory):
    profile = tmp_path_factory.mktemp("browser") / "profile"
    with opened(CHROMIUM, "about:blank", profile) as one:
        yield one


def posted(client, page, path, **fields):
    """The page that follows a form of a page."""
    csrf = re.search(r'name="csrf" value="([^"]+)"', client.get(page).text)[1]
    return client.post(path, data={"csrf": csrf, **fields})


def link_of(client, campaign, judge, expert):
    where = f"/campaigns/{campaign}/people"
    page = posted(client, where, where, who=f"{judge}\n{expert}", days="1").text
    return urlsplit(re.search(r'readonly value="([^"]+)"', page)[1]).path


def answered(client, link, count):
    """Answer some questions without a browser."""
    for _ in range(count):
        page = client.get(f"{link}/question").text
        card = re.search(r'name="card" value="(\d+)"', page)[1]
        posted(client, f"{link}/question", f"{link}/answer", card=card, choice="a")


def until(tab, condition, seconds=120):
    """Wait until an expression is true in the page, whatever it loads meanwhile."""
    end = time.monotonic() + seconds
    while True:
        try:
            if tab.run(condition):
                return
        except AssertionError:  # the page is being replaced
            pass
        assert time.monotonic() < end, tab.run("document.body.innerText")
        time.sleep(0.05)


def goto(tab, address):
    tab.send("Page.navigate", url=address)
    until(tab, f"location.href === {address!r} && document.readyState === 'complete'")


def says(words):
    return f"document.body.innerText.includes({words!r})"


def display(tab, width=1280, height=900, *, dark=False):
    mobile = width < 600
    tab.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
             deviceScaleFactor=1, mobile=mobile)  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    tab.send("Emulation.setEmulatedMedia", features=[scheme])


def findings(tab):
    """What axe-core finds in the page, with all of its parts open."""
    tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    tab.run((resources.files("axe_core_python") / "axe.min.js").read_text("utf-8") + "; 0")
    tab.run(f"axe.run({{runOnly: {WCAG}}}).then((found) => {{ window.found = found; }})")
    named = "found.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html).join(' | '))"
    assert tab.run("found.passes.length") > 8
    return tab.run(named)


def test_answers_and_beliefs_appear_without_a_reload(served, client, tab):
    goto(tab, f"{served.address}/campaigns/watched")
    tab.run("window.same = true")
    until(tab, says("160 of 320"))
    link = link_of(client, "watched", "panel", "ben")
    answered(client, link, 3)
    until(tab, says("3 of 160 answered"))
    until(tab, "document.querySelectorAll('#belief svg[role=img]').length === 4")
    words = tab.run("document.querySelector('#belief svg').getAttribute('aria-label')")
    assert words.startswith("Marginal densities of bill length")
    assert tab.run("window.same === true")
    assert "asking" in tab.run("document.title")


def test_a_lost_connection_is_said_and_comes_back(served, client, tab):
    link = link_of(client, "watched", "panel", "ben")
    with gated(urlsplit(served.address).port) as gate:
        goto(tab, f"http://127.0.0.1:{gate.port}/campaigns/watched")
        tab.run("window.same = true")
        until(tab, says("of 320"))
        before = int(tab.run("document.body.innerText.match(/([0-9]+) of 320/)[1]"))
        gate.cut()
        until(tab, says("Connection lost, retrying"))
        assert tab.run("document.getElementById('connection').getAttribute('role')") == "status"
        answered(client, link, 2)
        gate.mend()
        until(tab, says(f"{before + 2} of 320"))
        until(tab, "document.getElementById('connection').hidden")
        assert tab.run("window.same === true")
        goto(tab, "about:blank")


def test_a_button_keeps_the_focus_and_pauses(served, client, tab):
    goto(tab, f"{served.address}/campaigns/watched")
    for _ in range(30):
        tab.press("Tab", 9)
        if tab.run("document.activeElement.id") == "do-pause":
            break
    link = link_of(client, "watched", "panel", "ada")
    before = int(tab.run("document.body.innerText.match(/([0-9]+) of 320/)[1]"))
    answered(client, link, 1)
    until(tab, says(f"{before + 1} of 320"))
    assert tab.run("document.activeElement.id") == "do-pause"
    assert tab.run("document.activeElement.matches(':focus-visible')")
    enter(tab)
    until(tab, "document.getElementById('do-resume') !== null")
    until(tab, says("paused"))
    tab.run("document.getElementById('do-resume').click()")
    until(tab, "document.getElementById('do-pause') !== null")


def enter(tab):
    """Press the enter key, which needs its character to press a button."""
    for what in ("keyDown", "keyUp"):
        tab.send("Input.dispatchKeyEvent", type=what, key="Enter", code="Enter", text="\r",
                 windowsVirtualKeyCode=13)  # fmt: skip


def card(tab):
    return tab.run("(document.querySelector('[name=card]') || {}).value || ''")


def takes_keys(tab):
    """Wait until a page has been there so long that a key is meant for it."""
    until(tab, "document.readyState === 'complete'")
    time.sleep(0.4)


def key(tab, name):
    """Press a key that answers, and wait for the next page."""
    takes_keys(tab)
    tab.run("window.old = true")
    tab.press(name, ord(name.upper()))
    until(tab, "!window.old && document.readyState === 'complete'")


def test_judging_by_keyboard_alone_from_the_first_to_the_last_question(served, client, tab):
    link = link_of(client, "judged", "ada", "ada")
    goto(tab, f"{served.address}{link}")
    until(tab, "document.activeElement.id === 'go'")
    enter(tab)
    until(tab, says("You have answered 0 of 8."))
    first = card(tab)
    key(tab, "a")
    assert says_answered(tab) == "1"
    assert card(tab) != first
    key(tab, "u")
    assert tab.run(says("Your last answer is undone"))
    assert tab.run(says("You had chosen: A."))
    takes_keys(tab)
    tab.press("2", 50)
    assert tab.run("document.querySelector('[name=confidence]:checked').value") == "fairly"
    for name in "bacebab":
        key(tab, name)
    assert says_answered(tab) == "7"
    key(tab, "b")
    until(tab, says("Thank you, ada"))
    goto(tab, f"{served.address}/campaigns/judged")
    until(tab, says("8 of 8 answered"))


def says_answered(tab):
    return tab.run("document.body.innerText.match(/You have answered ([0-9]+) of 8/)[1]")


@pytest.fixture(scope="module")
def pages(served, client):
    link = link_of(client, "watched", "panel", "ada")
    return ["/", "/login", "/campaigns/watched", "/campaigns/watched/people", "/campaigns/none",
            link, f"{link}/question"]  # fmt: skip


def test_no_page_has_an_error_in_its_console_or_breaks_its_policy(served, tab, pages):
    tab.watch()
    for path in [*pages, "/?from=simulated", "/campaigns/judged", "/campaigns/judged/people"]:
        goto(tab, f"{served.address}{path}")
        found = tab.faults()
        if path == "/campaigns/none":  # the page that says so
            found = [text for text in found if "404" not in str(text)]
        assert found == [], path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_page_is_hard_to_use_or_wider_than_a_phone(served, tab, pages, dark):
    for path in pages:
        for width in (360, 1280):
            display(tab, width, dark=dark)
            goto(tab, f"{served.address}{path}")
            assert tab.run("document.documentElement.scrollWidth") <= width, path
        assert findings(tab) == [], path
        ground = tab.run("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(16, 19, 23)") == dark
    display(tab)


def test_a_bundle_is_a_page_of_its_own(served, tab, tmp_path):
    path = tmp_path / "page.html"
    made = CliRunner().invoke(app, ["bundle", str(served.runs / "watched"), str(path)])
    assert made.exit_code == 0, made.output
    text = path.read_text("utf-8")
    assert "<script" not in text
    assert "<form" not in text
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    for width in (360, 1280):
        display(tab, width)
        goto(tab, path.as_uri())
        assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.querySelectorAll('svg[role=img]').length") >= 4
    assert findings(tab) == []
