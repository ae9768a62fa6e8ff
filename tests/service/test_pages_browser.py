"""The pages in headless Chromium: live, by keyboard alone, on a phone, light and dark."""

import re
import shutil
import signal
import time
from importlib import resources
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from report.browser import CHROMIUM, display, goto, opened, until
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from typer.testing import CliRunner

from llm_elicit.cli.main import app
from llm_elicit.orchestrator.people import PeopleProgress
from llm_elicit.pipeline.snapshot import JudgeSnapshot, RunSnapshot
from llm_elicit.service.responses import refusal, render, render_run, stylesheet
from tests.service.gate import gated
from tests.service.proxy import NAME, PATH, proxied
from tests.service.serving import KEYS, LOOK, TOKEN, serving

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or shutil.which("openssl") is None,
    reason="Chromium or openssl is not installed",
)

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
    judges = [{"backend": name} for name in ("simulated", "human", "local")]
    settings = {"live": 3.0, "hosts": [NAME], "proxies": ["127.0.0.1"], "judges": judges}
    with serving(tmp_path_factory.mktemp("service"), settings=settings, **KEYS) as one:
        yield one


@pytest.fixture(scope="module")
def proxy(served, tmp_path_factory):
    """The proxy through which all browsers reach it."""
    with proxied(urlsplit(served.address).port, tmp_path_factory.mktemp("proxy")) as one:
        yield one


@pytest.fixture(scope="module")
def tab(proxy, tmp_path_factory):
    """An administrator's browser, in which two campaigns were created."""
    profile = tmp_path_factory.mktemp("browser") / "profile"
    own = ["--ignore-certificate-errors", "--host-resolver-rules=MAP *.example 127.0.0.1"]
    with opened(CHROMIUM, "about:blank", profile, *own) as one:
        sign_in(one, proxy, TOKEN)
        for text in (WATCHED, JUDGED):
            goto(one, f"{proxy.address}/new")
            fill(one, "yaml", text)
            submit(one, "[value=dry-run]", f"{proxy.address}/new")
            name = re.search("name: (.+)", text)[1]
            submit(one, "#start", f"{proxy.address}/campaigns/{name}")
        yield one


@pytest.fixture(scope="module")
def office(tab):
    """Another page of the administrator's browser, where links are issued."""
    return tab.beside(own=False)


@pytest.fixture(scope="module")
def judge(tab):
    """The browser of someone who judges."""
    return tab.beside()


@pytest.fixture(scope="module")
def reader(tab, proxy):
    """The browser of someone who may only look."""
    other = tab.beside()
    sign_in(other, proxy, LOOK)
    return other


def sign_in(tab, proxy, token):
    goto(tab, f"{proxy.address}/login")
    fill(tab, "token", token)
    submit(tab, ".main", f"{proxy.address}/")


def fill(tab, field, text):
    """Fill in a field as keys do."""
    tab.run(f"document.getElementById('{field}').focus()")
    tab.run(f"document.getElementById('{field}').select()")
    tab.send("Input.insertText", text=text)


def submit(tab, button, address=None):
    """Press a button of a form, and wait for the page that follows."""
    tab.run("window.old = true")
    tab.run(f"document.querySelector({button!r}).click()")
    until(tab, "!window.old && document.readyState === 'complete'")
    assert address in (None, tab.run("location.href")), tab.run("document.body.innerText")


def link_of(tab, proxy, campaign, judge, expert):
    """Issue a link by the form, and return its address."""
    place = f"{proxy.address}/campaigns/{campaign}/people"
    goto(tab, place)
    tab.run("document.querySelectorAll('[name=who]').forEach((box) => { box.checked ="
            f" box.value === {judge!r} + '\\n' + {expert!r}; }})")  # fmt: skip
    submit(tab, "#issue", place)
    return tab.run("document.getElementById('links').value")


def answered(tab, link, count):
    """Answer some questions by the buttons of the page."""
    goto(tab, f"{link}/question")
    until(tab, "document.querySelector('[data-key=a]') !== null")
    for _ in range(count):
        submit(tab, "[data-key=a]", f"{link}/question")


def says(words):
    return f"document.body.innerText.includes({words!r})"


def findings(tab):
    """What axe-core finds in the page, with all of its parts open."""
    tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    tab.run((resources.files("axe_core_python") / "axe.min.js").read_text("utf-8") + "; 0")
    tab.run(f"axe.run({{runOnly: {WCAG}}}).then((found) => {{ window.found = found; }})")
    named = "found.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html).join(' | '))"
    assert tab.run("found.passes.length") > 8
    return tab.run(named)


def test_answers_and_beliefs_appear_without_a_reload(proxy, tab, office, judge):
    goto(tab, f"{proxy.address}/campaigns/watched")
    tab.run("window.same = true")
    until(tab, says("160 of 320"))
    link = link_of(office, proxy, "watched", "panel", "ben")
    answered(judge, link, 3)
    until(tab, says("3 of 160 answered"))
    until(tab, "document.querySelectorAll('#belief svg[role=img]').length === 4")
    words = tab.run("document.querySelector('#belief svg').getAttribute('aria-label')")
    assert words.startswith("Marginal densities of bill length")
    assert tab.run("window.same === true")
    assert "asking" in tab.run("document.title")


def test_a_lost_connection_is_said_and_comes_back(proxy, tab, office, judge):
    link = link_of(office, proxy, "watched", "panel", "ben")
    with gated(proxy.port) as gate:
        goto(tab, f"https://{NAME}:{gate.port}{PATH}/campaigns/watched")
        tab.run("window.same = true")
        until(tab, says("of 320"))
        before = int(tab.run("document.body.innerText.match(/([0-9]+) of 320/)[1]"))
        gate.cut()
        until(tab, says("Connection lost, since "))
        assert tab.run("document.getElementById('connection').getAttribute('role')") == "status"
        answered(judge, link, 2)
        gate.mend()
        until(tab, says(f"{before + 2} of 320"))
        until(tab, "document.getElementById('connection').hidden")
        assert tab.run("window.same === true")
        goto(tab, "about:blank")


@pytest.mark.parametrize("path", ["/", "/campaigns/watched"])
def test_a_service_that_hangs_is_said_and_comes_back(served, proxy, tab, path):
    """Its connections stay open; only nothing comes over them."""
    goto(tab, f"{proxy.address}{path}")
    until(tab, says("of 320"))
    tab.run("window.same = true")
    served.process.send_signal(signal.SIGSTOP)
    try:
        until(
            tab, "/Connection lost, since [0-9]+:[0-9:]+.*; retrying/.test(document.body.innerText)"
        )
    finally:
        served.process.send_signal(signal.SIGCONT)
    until(tab, "document.getElementById('connection').hidden")
    assert tab.run("window.same === true")


def test_a_button_keeps_the_focus_and_pauses(proxy, tab, office, judge):
    goto(tab, f"{proxy.address}/campaigns/watched")
    for _ in range(30):
        tab.press("Tab", 9)
        if tab.run("document.activeElement.id") == "do-pause":
            break
    link = link_of(office, proxy, "watched", "panel", "ada")
    before = int(tab.run("document.body.innerText.match(/([0-9]+) of 320/)[1]"))
    answered(judge, link, 1)
    until(tab, says(f"{before + 1} of 320"))
    assert tab.run("document.activeElement.id") == "do-pause"
    assert tab.run("document.activeElement.matches(':focus-visible')")
    enter(tab)
    until(tab, "document.getElementById('do-resume') !== null")
    until(tab, says("paused"))
    goto(judge, f"{link}/question")
    assert judge.run(says("The study is paused"))
    judge.run("look()")
    assert judge.run(says("The study is paused"))
    tab.run("document.getElementById('do-resume').click()")
    until(tab, "document.getElementById('do-pause') !== null")
    judge.run("look()")  # as after some seconds
    until(judge, "document.querySelector('[name=card]') !== null")


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


def test_judging_by_keyboard_alone_from_the_first_to_the_last_question(proxy, tab, office, judge):
    link = link_of(office, proxy, "judged", "ada", "ada")
    goto(tab, f"{link}")
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
    key(tab, "b")
    key(tab, "2")
    assert tab.run(says("Your last answer: B, fairly sure"))
    for name in "acebab":
        key(tab, name)
    assert says_answered(tab) == "7"
    key(tab, "b")
    until(tab, says("Thank you, ada"))
    goto(tab, f"{proxy.address}/campaigns/judged")
    until(tab, says("8 of 8 answered"))


def says_answered(tab):
    return tab.run("document.body.innerText.match(/You have answered ([0-9]+) of 8/)[1]")


LAST = {"id": 1, "labels": ("A", "B"), "choice": "a", "a": [("mass", "1 kg")],
        "b": [("mass", "2 kg")], "confidence": 0.5, "comment": "Which sea?"}  # fmt: skip


def seldom_seen():
    """The HTML of pages in states that take long to come, by name."""
    judge = JudgeSnapshot(backend="openai", model="m", total=40, done=17, failed=2, cached=3,
                          requests=22, failures={"timeout": 2}, throttled=1, rate=0.5,
                          cost=None, change="the version changed")  # fmt: skip
    of_run = {"title": "Birds", "about": "name: a-run", "began": 0.0, "csrf": "", "people": True,
              "signed_in": True, "may_change": True, "stated": None}  # fmt: skip
    for state in ("planned", "pausing", "paused", "interrupted", "cancelled", "failed"):
        run = RunSnapshot(name="a-run", state=state, stage="ask", step="", judges={"gpt": judge},
                          cost=None, max_cost=1.0, concurrency=2, problems=("gpt: stopped",),
                          live=0, seq=1, updated="", report=False)  # fmt: skip
        message = "This is not possible now." if state == "paused" else None
        yield state, render_run("campaign", run, None, bundle=False, message=message, **of_run)
    form = {"action": "/new", "csrf": "", "signed_out": True, "fields": [("yaml", "name: a\nb: c")]}
    for status, more in ((401, {"form": form}), (403, {}), (409, {}), (429, {}), (500, {})):
        path = "/judge/x" if status == 403 else "/new"
        error = HTTPException(status, "no")
        answer = refusal(Headers({"accept": "text/html"}), path, error, str, **more)
        yield str(status), answer.body.decode()
    card = SimpleNamespace(
        id=1, number=1, question="Which is likelier?", labels=("A", "B"), choice="b",
        subject="birds", setting="", instruction="Choose B here.", a=LAST["a"], b=LAST["b"],
    )  # fmt: skip
    own = {"progress": PeopleProgress(answered=3, wanted=8, left=5, additional=2), "csrf": "",
           "base": "/judge/x", "expert": "ada", "title": "Birds", "message": None}  # fmt: skip
    for name, more in (("judge_wait", {"reason": "paused"}), ("judge_end", {}),
                       ("judge_question", {"card": card})):  # fmt: skip
        yield name, render(name, **own, last=SimpleNamespace(**LAST), **more)


@pytest.fixture(scope="module")
def seldom(tmp_path_factory):
    """The addresses of files with such pages, which have the style of the service in them."""
    folder, style = tmp_path_factory.mktemp("pages"), f"<style>{stylesheet()}</style>"
    for name, text in seldom_seen():
        alone = re.sub("<script.*?</script>|<link rel=.stylesheet.*?>", "", text)
        (folder / f"{name}.html").write_text(alone.replace("</head>", f"{style}</head>"))
    return [path.as_uri() for path in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def pages(proxy, office):
    link = link_of(office, proxy, "watched", "panel", "ada")
    paths = ["/", "/login", "/actions", "/new", "/new?from=simulated", "/campaigns/watched",
             "/campaigns/watched/answers", "/campaigns/watched/people",
             "/campaigns/none"]  # fmt: skip
    return [*(f"{proxy.address}{path}" for path in paths), link, f"{link}/question"]


BIRDS = "\n".join([
    "body_mass_g,eggs,sex,note",
    *(f"{3000 + 37 * k % 2000 if k % 9 else ''},{k % 3},{'mf'[k % 2] if k % 7 else ''},n{k}"
      for k in range(80)),
])  # fmt: skip


def test_a_table_becomes_a_running_campaign_and_a_report(served, proxy, tab, tmp_path):
    """By the form alone, of a table with mixed columns and missing values."""
    began = served.clock(workers=True)
    table = tmp_path / "birds.csv"
    table.write_text(BIRDS, encoding="utf-8")
    goto(tab, f"{proxy.address}/new")
    root = tab.send("DOM.getDocument")["root"]["nodeId"]
    field = tab.send("DOM.querySelector", nodeId=root, selector="#table")["nodeId"]
    tab.send("DOM.setFileInputFiles", nodeId=field, files=[str(table)])
    submit(tab, ".fields .main", f"{proxy.address}/new?space=birds")
    assert tab.run(says("qwen2.5-coder-0.5b (local)"))
    for field, text in (("subject", "a bird"), ("label:body_mass_g", "weight"), ("pairs", "12"),
                        ("low:body_mass_g", "many")):  # fmt: skip
        fill(tab, field, text)
    tab.run("document.getElementById('use:eggs').click()")
    boxes = "[...document.querySelectorAll('[name^=\"judge:\"]')]"
    tab.run(f"{boxes}.forEach((box) => {{ box.checked = false; }})")
    tab.run("document.querySelector('[name=\"add:0-0\"]').click()")
    tab.run("document.getElementById('yaml').value += '\\nfit: {samples: 500}  # few'")
    for width, dark in ((390, False), (1280, True)):
        display(tab, width, dark=dark)
        assert tab.run("document.documentElement.scrollWidth") <= width
        assert findings(tab) == []
    display(tab)
    submit(tab, "[value=dry-run]", f"{proxy.address}/new#dry-run")
    assert tab.run("document.getElementById('low:body_mass_g').value") == "many"
    assert "not a number" in tab.run("document.getElementById('problem-low:body_mass_g').innerText")
    fill(tab, "low:body_mass_g", "2000")
    submit(tab, "[value=dry-run]", f"{proxy.address}/new#dry-run")
    assert tab.run("document.querySelectorAll('#dry-run ~ h3').length") == 3
    assert tab.run(says("weight 2,")) or tab.run(says("weight 3,"))
    assert "fit: {samples: 500}  # few" in tab.run("document.getElementById('yaml').value")
    assert findings(tab) == []
    submit(tab, "#start", f"{proxy.address}/campaigns/birds")
    until(tab, "document.getElementById('to-report') !== null && " + says("done"))
    assert served.clock(workers=True) - began < 180
    until(tab, "document.querySelectorAll('.bins a').length > 4")
    tab.run("document.querySelector('[data-bins]').focus()")
    tab.press("ArrowRight", 39)
    assert "belief" in tab.run("document.activeElement.getAttribute('aria-label')")
    assert findings(tab) == []
    submit(tab, "#to-report", f"{proxy.address}/campaigns/birds/report")
    assert tab.run(says("24 answers"))
    submit(tab, "header a", f"{proxy.address}/campaigns/birds")


def test_no_page_has_an_error_in_its_console_or_breaks_its_policy(proxy, tab, pages):
    tab.watch()
    tab.faults()  # of tests before, whose clicks are those of a script
    more = ("/new?clone=watched", "/campaigns/judged", "/campaigns/judged/people")
    for path in [*pages, *(f"{proxy.address}{path}" for path in more)]:
        goto(tab, path)
        found = tab.faults()
        if path.endswith("/campaigns/none"):  # the page that says so
            found = [text for text in found if "404" not in str(text)]
        assert found == [], path


@pytest.mark.parametrize(("width", "dark"), [(360, False), (1280, True)], ids=["light", "dark"])
def test_no_page_is_hard_to_use_or_wider_than_a_phone(
    proxy, tab, office, pages, seldom, width, dark
):
    link_of(office, proxy, "watched", "panel", "ben")  # its address is shown, and only now
    display(office, width, dark=dark)
    assert office.run("document.documentElement.scrollWidth") <= width
    assert findings(office) == []
    display(tab, width, dark=dark)
    for path in [*pages, *seldom]:
        goto(tab, path)
        assert tab.run("document.documentElement.scrollWidth") <= width, path
        assert findings(tab) == [], path
        ground = tab.run("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(16, 19, 23)") == dark
    display(tab)


def test_a_reader_sees_every_page_and_can_change_nothing(proxy, tab, reader):
    for path in ("/", "/campaigns/watched", "/campaigns/judged"):
        goto(reader, f"{proxy.address}{path}")
        changing = "form[method=post]:not([action$=logout]):not([action$='selection/compare'])"
        assert reader.run(f'document.querySelectorAll("{changing}").length') == 0
        assert reader.run("document.querySelectorAll('.danger').length") == 0
        assert reader.run("document.querySelector('main').innerText.length") > 50
    goto(reader, f"{proxy.address}/campaigns/watched/people")
    assert reader.run(says("Not allowed"))
    goto(reader, f"{proxy.address}/campaigns/watched/")


def test_links_in_a_mail_end_no_session_and_no_open_card(proxy, tab, office, judge):
    """Also not that of someone who judges in the browser in which they administrate."""
    link = link_of(office, proxy, "judged", "late", "late")
    assert link.startswith(f"{proxy.address}/judge/")
    card = tab.beside(own=False)
    goto(card, f"{link}/question")
    for address in (f"{proxy.address}/campaigns/judged", link, f"{proxy.address}/login"):
        goto(tab, proxy.mail(address))
        submit(tab, "#link", address)
    goto(tab, f"{proxy.address}/campaigns/judged")
    assert tab.run(says("Sign out"))
    assert tab.run(says("Pause"))
    submit(card, "[data-key=b]", f"{link}/question")
    assert card.run(says("You have answered 1 of 8."))


def test_cookies_are_for_the_path_and_https_alone(proxy, tab):
    goto(tab, f"{proxy.address}/")
    cookies = tab.send("Network.getCookies", urls=[proxy.address])["cookies"]
    assert len(cookies) == 2
    for cookie in cookies:
        assert cookie["secure"]
        assert cookie["httpOnly"]
        assert (cookie["sameSite"], cookie["path"]) == ("Lax", PATH)


def test_a_refused_form_comes_back_as_it_was_filled_in(proxy, tab):
    goto(tab, f"{proxy.address}/new")
    text = WATCHED.replace("watched", "elsewhere").replace("space: penguins", "space: <nowhere>")
    fill(tab, "yaml", text)
    submit(tab, "[value=dry-run]")
    assert tab.run(says("No feature space")), tab.run("document.body.innerText")
    assert tab.run("document.getElementById('yaml').value").strip() == text.strip()
    goto(tab, f"{proxy.address}/campaigns/watched")
    tab.run("document.getElementById('limits').open = true")
    tab.run("document.querySelector('#limits form').noValidate = true")
    until(tab, "shown.size > 0")  # the page has fetched its parts again
    fill(tab, "max-cost", "-5")
    submit(tab, "#do-retune")
    assert tab.run(says("The limits must be numbers above 0."))
    assert tab.run("document.getElementById('max-cost').value") == "-5"
    tab.run("shown.clear(); update().then(() => 0)")  # as after an event, with the focus elsewhere
    assert tab.run("shown.size") > 0
    assert tab.run("document.getElementById('limits').open")
    assert tab.run("document.getElementById('max-cost').value") == "-5"


def test_signing_out_ends_the_session_and_keeps_what_is_filled_in(proxy, tab):
    other = tab.beside()
    sign_in(other, proxy, TOKEN)
    cookies = other.send("Network.getCookies", urls=[proxy.address])["cookies"]
    goto(other, f"{proxy.address}/new")
    open_form = other.run("document.querySelector('.fields [name=csrf]').value")
    submit(other, "[action$=logout] button", f"{proxy.address}/login")
    for cookie in cookies:
        named = {key: cookie[key] for key in ("name", "value", "domain", "path", "secure")}
        other.send("Network.setCookie", **named)
    goto(other, f"{proxy.address}/campaigns/watched", at="/login?next=/campaigns/watched")
    sign_in(other, proxy, TOKEN)
    goto(other, f"{proxy.address}/new")
    fill(other, "yaml", "name: kept\nspace: none")
    other.run(f"document.querySelector('[action$=new] [name=csrf]').value = {open_form!r}")
    submit(other, "[value=dry-run]")
    assert other.run(says("The form is not of this session"))
    submit(other, ".fields .main", f"{proxy.address}/new")
    assert other.run("document.getElementById('yaml').value") == "name: kept\nspace: none"


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
