"""The pages as a browser without JavaScript uses them: forms, redirects and refusals."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest

from llm_elicit.orchestrator.people import PeopleProgress
from llm_elicit.service.responses import render
from tests.service.serving import Served

CAMPAIGN = """
name: {name}
space: penguins
design: {{pairs: 12}}
judges:
  - {{name: expert, backend: simulated}}
  - {{name: panel, backend: human, experts: [ada, ben]}}
fit: {{method: utility, samples: 500}}
"""


class Browser:
    """A browser without JavaScript."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path: str) -> str:
        """Load a page that must exist."""
        page = self.client.get(path, headers={"accept": "text/html"})
        assert page.status_code == 200, page.text
        return page.text

    def post(self, page: str, path: str, **fields: str) -> httpx.Response:
        """Send a form of a page."""
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found, page
        # Browsers end the lines of all fields with CR LF.
        sent = {name: "\r\n".join(text.split("\n")) for name, text in fields.items()}
        return self.client.post(path, data={"csrf": found[1], **sent})


@pytest.fixture
def browser(served: Served) -> Iterator[Browser]:
    with served.client(follow_redirects=True) as client:
        yield Browser(client)


def created(browser: Browser, name: str, waits: str = "") -> httpx.Response:
    return composed(browser, CAMPAIGN.format(name=name), waits)


def composed(browser: Browser, text: str, waits: str = "") -> httpx.Response:
    """Send the form as after a dry run of the same text."""
    fields = {"yaml": text, "yaml_before": text.strip("\n"), "tried": "yes"}
    judges = re.findall(r"- {?name: ([\w-]+)", text)
    fields |= {f"judge:{name}": "on" for name in judges}
    page = browser.get("/new")
    return browser.post(page, "/new", action="create" if waits else "start", **fields)


def until(browser: Browser, path: str, words: str, seconds: float = 120.0) -> str:
    """Load a page again until it says something."""
    end = time.monotonic() + seconds
    while words not in (page := browser.get(path)):
        assert time.monotonic() < end, page
        time.sleep(0.1)
    return page


def judging(browser: Browser, name: str, expert: str = "ada") -> str:
    """Issue a link and return its path."""
    people = browser.get(f"/campaigns/{name}/people")
    page = browser.post(people, f"/campaigns/{name}/people", who=f"panel\n{expert}", days="1")
    found = re.search(r"readonly[^>]*>http://[^/]+([^<]+)<", page.text)
    assert found, page.text
    return found[1]


def test_a_campaign_is_created_paused_retuned_and_cancelled_by_forms(browser: Browser) -> None:
    page = created(browser, "forms", waits="yes")
    assert page.url.path == "/campaigns/forms", page.text
    assert "Start</button>" in page.text
    page = browser.post(page.text, "/campaigns/forms/resume")
    until(browser, "/campaigns/forms", "24 of 24 answered")
    page = browser.post(page.text, "/campaigns/forms/pause")
    assert "paused" in until(browser, "/campaigns/forms", "Go on</button>")
    page = browser.post(page.text, "/campaigns/forms/retune", concurrency="3", max_cost="")
    assert 'value="3"' in page.text
    page = browser.post(page.text, "/campaigns/forms/retune", concurrency="many")
    assert page.status_code == 422
    assert "The limits must be numbers above 0." in page.text
    assert 'value="many"' in page.text
    page = browser.post(page.text, "/campaigns/forms/cancel")
    assert "Start again</button>" in until(browser, "/campaigns/forms", "cancelled")
    assert "forms" in browser.get("/")


def test_a_campaign_that_is_refused_comes_back_with_the_reason(browser: Browser) -> None:
    text = CAMPAIGN.format(name="refused").replace("penguins", "<i>nowhere</i>")
    page = composed(browser, text)
    assert page.status_code == 422
    assert "&lt;i&gt;nowhere" in page.text
    assert "<i>nowhere" not in page.text
    twice = [created(browser, "twice", waits="yes") for _ in range(2)]
    said = re.search(r"cannot be used yet.*?</ul>", twice[1].text, re.DOTALL)
    assert said, twice[1].text
    assert twice[1].status_code == 409, said[0]
    assert "campaign &#39;twice&#39; already exists; choose another name" in said[0]


def test_a_campaign_begins_with_a_feature_space_and_not_with_nothing(browser: Browser) -> None:
    page = browser.get("/new")
    assert "<option>penguins</option>" in page
    refused = browser.post(page, "/new", yaml=" ", action="dry-run")
    assert (refused.status_code, "Nothing to try: begin with" in refused.text) == (422, True)
    assert "<option>penguins</option>" in refused.text
    page = browser.get("/new?space=penguins")
    assert "space: penguins\n" in page
    refused = browser.post(
        page, "/new", yaml="name: a\nspace: penguins\njudges: []", action="dry-run"
    )
    assert "judges: needs at least 1, got 0" in refused.text


def test_a_form_without_the_sessions_token_is_refused(browser: Browser) -> None:
    created(browser, "forged", waits="yes")
    for path in ("/new", "/campaigns/forged/cancel", "/campaigns/forged/people"):
        assert browser.client.post(path, data={"csrf": "0" * 64}).status_code == 403
    link = judging(browser, "forged")
    page = browser.client.post(f"{link}/answer", data={"card": "1", "choice": "a"})
    assert page.status_code == 403


def test_examples_begin_a_campaign(browser: Browser) -> None:
    page = browser.get("/new?from=simulated")
    assert "name: simulated" in page
    assert "hosted_models" not in page  # whose judges this server does not allow
    assert "root:" not in browser.get("/new?from=../../etc/passwd")


def test_campaigns_are_found_tagged_archived_and_deleted_by_forms(browser: Browser) -> None:
    for name in ("listed-one", "listed-two"):
        created(browser, name, waits="yes")
    page = browser.get("/?q=listed&sort=name&since=&until=&state=&tag=")
    names = re.findall(r'href="/campaigns/(listed[^"]*)"', page)
    assert names == ["listed-one", "listed-two"]
    assert "1 to 2 of 2" in page
    tagged = browser.post(page, "/selection/tag", run="listed-one", tag="pilot v2")
    assert tagged.status_code == 200, tagged.text
    page = browser.get("/?tag=pilot&q=listed")
    assert re.findall(r'href="/campaigns/(listed[^"]*)"', page) == ["listed-one"]
    assert "v2 (1)</option>" in page
    browser.post(page, "/selection/untag", run="listed-one", tag="pilot")
    browser.post(page, "/selection/archive", run="listed-one")
    assert 'href="/campaigns/listed-one"' not in browser.get("/?q=listed")
    page = browser.get("/?q=listed&archived=true")
    assert 'href="/campaigns/listed-one"' in page
    assert "Take out of the archive" in page
    browser.post(page, "/selection/unarchive", run="listed-one")
    deleted = browser.post(page, "/selection/delete", run="listed-two")
    assert "Deleted: listed-two." in deleted.text
    assert browser.client.get("/campaigns/listed-two").status_code == 404
    browser.post(deleted.text, "/selection/restore", run="listed-two")
    page = browser.get("/?q=listed")
    assert "1 to 2 of 2" in page
    for path, fields in (
        ("/selection/delete", {}),
        ("/selection/tag", {"run": "listed-one"}),
        ("/selection/tag", {"run": "listed-one", "tag": "<b>"}),
        ("/selection/archive", {"run": "nothing"}),
        ("/selection/archive", {"run": "../x"}),
        ("/selection/restore", {"run": "listed-one"}),
    ):
        refused = browser.post(page, path, **fields)
        assert refused.status_code in (404, 422), (path, fields)
    assert "1 to 2 of 2" in browser.get("/?q=listed")
    assert "name: listed-one-copy" in browser.get("/new?clone=listed-one")


def test_a_clone_is_a_campaign_of_the_same_settings(browser: Browser, served: Served) -> None:
    created(browser, "original", waits="yes")
    page = browser.get("/new?clone=original")
    text = html.unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)[1])
    clone = composed(browser, text, waits="yes")
    assert clone.url.path == "/campaigns/original-copy", clone.text
    with served.api() as client:
        names = ("original", "original-copy")
        first, second = (client.run(name).campaign().splitlines() for name in names)
    assert [line for line in first if line not in second] == ["name: original"]


def test_answers_are_read_by_judge_and_verdict(browser: Browser, served: Served) -> None:
    created(browser, "answered")
    until(browser, "/campaigns/answered", "24 of 24 answered")
    page = browser.get("/campaigns/answered/answers?judge=expert&verdict=&pair=&low=")
    assert page.count("<article") == 12
    assert page.count("point a was option A") == page.count("point b was option A") == 12
    assert page.count("and say which is more plausible") == 24
    shown = browser.get("/campaigns/answered/answers?pair=3")
    assert shown.count("<article") == 1
    assert "No answers like this." in browser.get("/campaigns/answered/answers?verdict=refusal")
    with served.api() as client:
        run = client.run("answered")
        first = run.answers(limit=5)
        assert [item.pair for item in first.questions] == [0, 1, 2, 3, 4]
        assert first.following is not None
        rest = run.answers(limit=200, after=first.following)
    assert (len(rest.questions), rest.following) == (7, None)
    refused = browser.client.get("/campaigns/answered/answers?judge=nobody")
    assert refused.status_code == 422
    assert "no judge &#39;nobody&#39;" in refused.text


def test_what_is_not_there_is_a_page(browser: Browser) -> None:
    page = browser.client.get("/campaigns/nothing")
    assert page.status_code == 404
    assert "<h1>Not found</h1>" in page.text
    assert browser.client.get("/static/..%2fpages.py").status_code == 404


def test_an_expert_judges_without_javascript(browser: Browser) -> None:
    created(browser, "plain")
    until(browser, "/campaigns/plain", "24 of 24 answered")
    link = judging(browser, "plain")
    assert "Welcome, ada" in browser.get(link)
    page = browser.get(f"{link}/question")
    seen = set()
    for choice in ("a", "b", "equal", "cannot-say"):
        card = re.search(r'name="card" value="(\d+)"', page)
        assert card
        seen.add(card[1])
        sent = {"card": card[1], "choice": choice, "seconds": "1.5"}
        answered = browser.post(page, f"{link}/answer", **sent)
        assert answered.url.path == f"{link}/question"
        page = answered.text
        assert "How sure were you?" in page
    assert len(seen) == 4
    sent = {"about": card[1], "confidence": "fairly", "comment": "Which <sea>?"}
    page = browser.post(page, f"{link}/remark", **sent).text
    assert "Noted, thank you." in page
    assert "Your last answer: cannot say, fairly sure" in page
    for path in ("/campaigns/plain/people", "/campaigns/plain/answers?judge=panel"):
        assert "Which &lt;sea&gt;?" in browser.get(path)
    refused = browser.post(page, f"{link}/remark", about="999999", comment="x")
    assert "not shown to ada" in refused.text
    assert "You have answered 4 of 24." in page
    undone = browser.post(page, f"{link}/undo").text
    assert "Your last answer is undone" in undone
    assert "You had chosen: cannot say." in undone
    assert "You have answered 3 of 24." in undone
    other = judging(browser, "plain", "ben")
    assert "Welcome, ben" in browser.get(other)
    assert "You have answered" not in browser.get(other)


@pytest.mark.parametrize(("additional", "words"), [(0, ""), (5, "counted separately: 5.")])
def test_repeats_are_counted_apart(additional: int, words: str) -> None:
    card = SimpleNamespace(id=1, number=17, question="", labels=("A", "B"), subject="birds",
                           setting="", instruction="",
                           choice=None, a=[("mass", "1 kg")], b=[("mass", "2 kg")])  # fmt: skip
    progress = PeopleProgress(answered=11, wanted=12, left=1, additional=additional)
    more = {"base": "/judge/x", "expert": "ada", "title": "Birds", "csrf": "", "message": None}
    page = render("judge_question", card=card, last=None, progress=progress, **more)
    assert "You have answered 11 of 12." in page
    assert "17" not in page
    assert ("counted separately" in page) == bool(words)
    assert words in page


def test_what_an_expert_sends_is_checked(browser: Browser) -> None:
    created(browser, "checked")
    until(browser, "/campaigns/checked", "24 of 24 answered")
    link = judging(browser, "checked")
    page = browser.get(f"{link}/question")
    for card, choice in (("1", "maybe"), ("x", "a"), ("", "")):
        refused = browser.post(page, f"{link}/answer", card=card, choice=choice)
        assert refused.status_code == 422
        assert "Choose A, B, equal or cannot say." in refused.text
    huge = browser.post(page, f"{link}/answer", card="9" * 30, choice="a")
    assert huge.status_code == 422
    stale = browser.post(page, f"{link}/answer", card="999999", choice="a", seconds="nan")
    assert "not shown to ada" in stale.text
    assert 'name="card"' in stale.text


def test_a_view_of_another_version_does_not_break_the_page(
    browser: Browser, served: Served
) -> None:
    page = created(browser, "other-version", waits="yes")
    folder, end = served.runs / "other-version", time.monotonic() + 120.0
    while not folder.is_dir():
        assert time.monotonic() < end
        time.sleep(0.05)
    (folder / "live.json").write_text('{"of": "another version"}')
    assert "The first plot appears once a few pairs are answered" in browser.get(
        "/campaigns/other-version"
    )
    assert browser.client.get("/campaigns/other-version/parts").status_code == 200
    browser.post(page.text, "/campaigns/other-version/cancel")


def test_a_study_that_is_paused_or_ended_asks_nothing(browser: Browser) -> None:
    page = created(browser, "ends")
    until(browser, "/campaigns/ends", "24 of 24 answered")
    link = judging(browser, "ends")
    browser.post(page.text, "/campaigns/ends/pause")
    until(browser, "/campaigns/ends", "Go on</button>")
    assert "The study is paused" in browser.get(f"{link}/question")
    browser.post(page.text, "/campaigns/ends/cancel")
    until(browser, "/campaigns/ends", "Start again</button>")
    assert "Thank you, ada" in browser.get(f"{link}/question")


def test_a_revoked_or_forged_link_says_so(browser: Browser) -> None:
    created(browser, "revoked", waits="yes")
    link = judging(browser, "revoked")
    people = browser.get("/campaigns/revoked/people")
    action = re.search(r'action="(/campaigns/revoked/people/[^"]+/revoke)"', people)
    assert action
    assert "revoked" in browser.post(people, action[1]).text
    for path in (link, f"{link}/question", f"{link[:-3]}xyz"):
        page = browser.client.get(path)
        assert page.status_code == 422
        assert "<h1>The request failed</h1>" in page.text
        assert "Campaigns" not in page.text


def test_people_join_leave_and_get_links_together(browser: Browser) -> None:
    created(browser, "joined")
    until(browser, "/campaigns/joined", "24 of 24 answered")
    place = "/campaigns/joined/people"
    page = browser.post(browser.get(place), f"{place}/add", judge="panel", names="cleo\ndan, eve")
    assert page.url.path == place
    token = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert token
    everyone = [f"panel\r\n{name}" for name in ("ada", "ben", "cleo", "dan", "eve")]
    sent = {"csrf": token[1], "who": everyone, "days": "2"}
    text = browser.client.post(place, data=sent).text
    links = re.findall(r"(\w+)\thttp://[^/]+(/judge/[^<\s]+)", text)
    assert [name for name, _ in links] == ["ada", "ben", "cleo", "dan", "eve"]
    answer = answer_one(browser, links[2][1])
    page = browser.post(browser.get(place), f"{place}/remove", who="panel\ncleo")
    assert "Removed; the answers are kept." in page.text
    refused = browser.client.get(links[2][1])
    assert (refused.status_code, "withdrawn" in refused.text) == (422, True)
    assert answer_one(browser, links[3][1], answer)
    page = browser.post(browser.get(place), f"{place}/remove", who="panel\nzoe")
    assert (page.status_code, "no expert" in page.text) == (422, True)
    page = browser.post(browser.get(place), f"{place}/add", judge="panel", names="a b")
    assert (page.status_code, ">a b</textarea>" in page.text) == (422, True)
    clone = browser.get("/new?clone=joined")
    assert all(f"  - {name}\n" in clone for name in ("ada", "ben", "dan", "eve"))
    assert "cleo" not in clone
    done = browser.get("/actions?campaign=joined")
    for words in ("create", "add cleo, dan, eve to panel", "issue a link to eve", "remove cleo"):
        assert words in done
    assert "zoe" not in done


def answer_one(browser: Browser, link: str, choice: str = "a") -> str:
    """Answer a question of a link, and return the choice."""
    page = browser.get(f"{link}/question")
    card = re.search(r'name="card" value="(\d+)"', page)
    assert card, page
    answered = browser.post(page, f"{link}/answer", card=card[1], choice=choice)
    assert answered.status_code == 200
    return choice
