"""Who may see what, side by side in one browser, directly and through a proxy.

By raw HTTP, but for what is there beforehand: it is about pages, headers and forms.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from llm_elicit.errors import InputError
from llm_elicit.service.server import create_app
from llm_elicit.service.settings import ServerSettings
from tests.service.serving import BEARER, LOOK, TOKEN, Served

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CAMPAIGN = {
    "name": "panel", "space": "penguins", "design": {"pairs": 6},
    "judges": [{"name": "panel", "backend": "human", "experts": ["ada", "ben"]}],
}  # fmt: skip
PROXY = "127.0.0.9"


@pytest.fixture(scope="module")
def link(strict: Served) -> str:
    """The path of a judge's link to a campaign that asks."""
    with strict.api(TOKEN) as client, strict.client() as judge:
        path = urlsplit(client.start(CAMPAIGN).issue_link("panel", "ada").url).path
        end = time.monotonic() + 120
        while 'name="card"' not in judge.get(f"{path}/question").text:
            assert time.monotonic() < end
            time.sleep(0.1)
    return path


def behind(strict: Served, **options: Any) -> httpx.Client:
    """A client at the address of the trusted proxy."""
    return strict.client(transport=httpx.HTTPTransport(local_address=PROXY), **options)


_NUMBERS = itertools.count(1)


def stranger() -> dict[str, str]:
    """The header by which a proxy tells of a client that was not there before."""
    return {"x-forwarded-for": f"192.0.2.{next(_NUMBERS)}"}


def issued(client: httpx.Client, **headers: str) -> str:
    """Issue a link by a request with headers, and return its address."""
    asked = {"judge": "panel", "expert": "ada"}
    answer = client.post("/api/v1/campaigns/panel/links", json=asked, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"])


@pytest.fixture(scope="module")
def roles(strict: Served, link: str) -> Iterator[dict[str, httpx.Client]]:
    """A browser of each role, which has opened a judge's link as well."""
    clients = {}
    for role, token in (("nobody", None), ("judge", None), ("reader", LOOK), ("admin", TOKEN)):
        clients[role] = behind(strict, headers=HTML)
        if token:
            signed_in(clients[role], token)
        if role != "nobody":
            assert clients[role].get(link).status_code == 200
    yield clients
    for client in clients.values():
        client.close()


def form_of(page: httpx.Response, action: str) -> dict[str, str]:
    """The hidden fields of a form of a page."""
    start = rf'<form method="post" action="{re.escape(action)}"'
    form = re.search(rf"{start}.*?</form>", page.text, re.DOTALL)
    assert form, page.text
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[0]))


def signed_in(client: httpx.Client, token: str, **more: str) -> httpx.Response:
    fields = form_of(client.get("/login"), "/login")
    answer = client.post("/login", data={**fields, "token": token, **more}, headers=HTML)
    assert answer.status_code == 303, answer.text
    return answer


# Each page, and its status for nobody, a judge, a reader and an admin.
PAGES = {
    "/": (303, 303, 200, 200),
    "/login": (200, 200, 200, 200),
    "/parts": (303, 303, 200, 200),
    "/campaigns/panel": (303, 303, 200, 200),
    "/actions": (303, 303, 403, 200),
    "/compare": (303, 303, 422, 422),
    "/panel": (303, 303, 422, 422),
    "/campaigns/panel/answers": (303, 303, 200, 200),
    "/campaigns/panel/report": (303, 303, 404, 404),
    "/new": (303, 303, 403, 200),
    "/campaigns/panel/parts": (303, 303, 200, 200),
    "/campaigns/panel/people": (303, 303, 403, 200),
    "/campaigns/nothing": (303, 303, 404, 404),
    "/campaigns/nothing/people": (303, 303, 403, 404),
    "/static/style.css": (200, 200, 200, 200),
    "/static/live.js": (200, 200, 200, 200),
    "/static/secret": (404, 404, 404, 404),
    "/nowhere": (404, 404, 404, 404),
    "/judge/LINK": (200, 200, 200, 200),
    "/judge/LINK/question": (200, 200, 200, 200),
    "/judge/forged": (422, 422, 422, 422),
    "/judge/forged/question": (422, 422, 422, 422),
    "/api/v1/campaigns/panel/report": (303, 303, 404, 404),
    "/api/v1/campaigns/panel/events": (303, 303, 200, 200),
    "/api/v1/campaigns/panel/links": (303, 303, 403, 200),
    "/health": (200, 200, 200, 200),
    "/metrics": (303, 303, 200, 200),
}
FORMS = {
    "/new": (401, 401, 403, 422),
    "/new/table": (303, 303, 403, 422),
    "/selection/none": (303, 303, 404, 404),
    "/campaigns/panel/pause": (303, 303, 403, 303),
    "/campaigns/panel/start": (303, 303, 403, 303),
    "/campaigns/panel/resume": (303, 303, 403, 303),
    "/campaigns/panel/repeat": (303, 303, 403, 409),
    "/campaigns/panel/retune": (401, 401, 403, 422),
    "/campaigns/panel/people": (401, 401, 403, 422),
    "/campaigns/panel/people/add": (401, 401, 403, 422),
    "/campaigns/panel/people/remove": (401, 401, 403, 422),
    "/campaigns/panel/people/none/revoke": (303, 303, 403, 422),
    "/judge/LINK/answer": (422, 422, 422, 422),
    "/judge/LINK/remark": (422, 422, 422, 422),
    "/judge/LINK/undo": (303, 303, 303, 303),
    "/judge/forged/answer": (422, 422, 422, 422),
    "/judge/forged/undo": (422, 422, 422, 422),
}
FILLED = {"/new": "yaml", "/campaigns/panel/retune": "concurrency",
          "/campaigns/panel/people": "who", "/campaigns/panel/people/add": "names",
          "/campaigns/panel/people/remove": "who", "/judge/LINK/answer": "card",
          "/judge/LINK/remark": "about"}  # fmt: skip
NAMES = ("nobody", "judge", "reader", "admin")


@pytest.mark.parametrize("path", PAGES)
def test_each_page_for_each_role(roles: dict[str, httpx.Client], link: str, path: str) -> None:
    place = path.replace("/judge/LINK", link)
    who = stranger()
    for method in ("GET", "HEAD") if "events" not in path else ("HEAD",):
        answers = {role: roles[role].request(method, place, headers=who) for role in NAMES}
        assert tuple(one.status_code for one in answers.values()) == PAGES[path], method
    who = stranger()
    for role in NAMES:
        slashed = roles[role].head(f"{place}/", headers=who)
        assert slashed.status_code == answers[role].status_code
        assert not slashed.headers.get("location", "").startswith(("http", "//"))
        assert not answers[role].headers.get("location", "").startswith(("http", "//"))
        if not path.startswith("/static"):
            assert answers[role].headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", FORMS)
def test_each_form_for_each_role(roles: dict[str, httpx.Client], link: str, path: str) -> None:
    place = path.replace("/judge/LINK", link)
    page = f"{link}/question" if path.startswith("/judge/LINK") else "/"
    for role, status in zip(NAMES, FORMS[path], strict=True):
        token = re.search(r'name="csrf" value="([^"]+)"', roles[role].get(page).text)
        sent = {"csrf": token[1] if token else "", FILLED.get(path, "x"): "not\r\nvalid"}
        if path not in FILLED:
            del sent["x"]
        answer = roles[role].post(place, data=sent, headers=stranger())
        assert answer.status_code == status, (role, answer.text)
        if status != 303:
            assert answer.headers["content-type"].startswith("text/html"), answer.text
            assert path not in FILLED or role == "reader" or "judge" in path or (
                "not\nvalid" in answer.text or "panel" in answer.text
            )  # fmt: skip


def routes(app: FastAPI) -> list[APIRoute]:
    """All routes of the service."""
    operations = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(operations) > 40
    return operations


def test_the_tables_name_every_page() -> None:
    app = create_app(ServerSettings())
    named = {
        re.sub("(?<=[a-z])/(panel|LINK|forged|none)(?=/|$)", "/{}", path)
        for path in (*PAGES, *FORMS)
    }
    pages = {
        re.sub(r"/\{\w+\}", "/{}", route.path)
        for route in routes(app)
        if not route.include_in_schema
    }
    rest = {"/static/{}", "/campaigns/{}/cancel", "/logout", "/api/v1/openapi.json"}
    assert pages - named == rest


def test_a_mail_link_ends_no_session_and_leaves_open_cards_usable(
    strict: Served, link: str
) -> None:
    with strict.client(headers=HTML) as admin, strict.client() as mail:
        card = form_of(mail.get(f"{link}/question", headers=HTML), f"{link}/answer")
        signed_in(admin, TOKEN)
        form = form_of(admin.get("/campaigns/panel/people"), "/campaigns/panel/people")
        signed = [name for name in admin.cookies if "forms" not in name]
        assert len(signed) == 1
        for path in (link, f"{link}/question", "/campaigns/panel", "/login"):
            # What a browser sends that holds the cookies back, as for links of other sites.
            answer = admin.get(path, headers={"cookie": ""})
            for name in signed:
                assert f"{name}=" not in answer.headers.get("set-cookie", "")
            admin.cookies.update(answer.cookies)
        sent = {**form, "who": "panel\r\nben", "days": "1"}
        assert "The link of ben" in admin.post("/campaigns/panel/people", data=sent).text
        # The card was opened before, and is answered by a browser that has signed in since.
        answer = admin.post(f"{link}/answer", data={**card, "choice": "a"}, headers=HTML)
        assert answer.status_code == 303
        # A card of another link is shown anew.
        answer = mail.post(f"{link}/answer", data={**card, "csrf": "0" * 64, "choice": "a"})
        assert answer.status_code == 403
        assert "The form is not of this session" in answer.text
        again = form_of(answer, f"{link}/answer")
        assert mail.post(f"{link}/answer", data={**again, "choice": "b"}).status_code == 303
        assert not mail.cookies


def test_named_administrators_and_what_they_did(strict: Served, link: str) -> None:
    token = (strict.runs / ".service" / "token-anna").read_text().strip()
    with strict.client() as anna, strict.client(headers=BEARER) as admin, strict.api(TOKEN) as api:
        signed_in(anna, token)
        page = anna.get("/campaigns/panel")
        assert page.status_code == 200
        for action, status in (("retune", 422), ("pause", 303), ("resume", 303)):
            sent = {**form_of(page, "/logout"), "concurrency": "x"}
            answer = anna.post(f"/campaigns/panel/{action}", data=sent, headers=HTML)
            assert answer.status_code == status
        api.run("panel").label("a")
        page = admin.get("/actions?campaign=panel")
        rows = re.findall(r"<li><strong>(.*?)</strong>: (.*?) <", page.text)
        assert rows[:3] == [("administrator", "label"), ("anna", "resume"), ("anna", "pause")]
        assert ("administrator", "issue a link to ada") in rows
        assert token not in strict.whole_log()


def test_a_refused_form_keeps_all_that_was_selected(strict: Served, link: str) -> None:
    with strict.client(headers=HTML) as browser:
        sent = {"csrf": "", "who": ["panel\r\nada", "panel\r\nben"]}
        answer = browser.post("/campaigns/panel/people", data=sent)
        assert answer.status_code == 401
        assert "panel\nada" in answer.text
        assert "panel\nben" in answer.text


def test_signing_out_ends_copies_of_the_cookie(strict: Served, link: str) -> None:
    with strict.client(headers=HTML) as browser, strict.client(headers=HTML) as thief:
        signed_in(browser, TOKEN)
        thief.cookies.update(browser.cookies)
        assert thief.get("/").status_code == 200
        signed_in(browser, LOOK)  # another session; the former has ended
        assert thief.get("/").status_code == 303
        thief.cookies.update(browser.cookies)
        assert thief.get("/api/v1/campaigns").status_code == 200
        fields = form_of(browser.get("/"), "/logout")
        stream = thief.send(
            thief.build_request("GET", "/api/v1/campaigns/panel/events"), stream=True
        )
        assert stream.status_code == 200
        assert stream.headers["x-accel-buffering"] == "no"
        assert browser.post("/logout", data=fields).headers["location"] == "/login"
        for path in ("/", "/api/v1/campaigns", "/campaigns/panel/parts", "/metrics"):
            assert thief.get(path).status_code == 303
            assert thief.get(path, headers={"accept": "*/*"}).status_code == 401
        assert thief.get("/api/v1/campaigns/panel/events").status_code == 303
        assert stream.read()  # which was open, and ends


def test_a_form_of_an_ended_session_comes_back_with_what_was_filled_in(strict: Served) -> None:
    with strict.client(headers=HTML) as browser:
        signed_in(browser, TOKEN)
        text = "name: kept\r\nspace: <penguins>"
        sent = {**form_of(browser.get("/new"), "/new"), "yaml": text}
        signed_in(browser, TOKEN)
        answer = browser.post("/new", data=sent)
        assert answer.status_code == 403
        assert "name: kept\nspace: &lt;penguins&gt;" in answer.text
        browser.post("/logout", data=form_of(browser.get("/"), "/logout"))
        answer = browser.post("/new", data=sent)
        assert answer.status_code == 401
        assert "name: kept" in answer.text
        again = {**form_of(answer, "/new"), "yaml": text}
        signed_in(browser, TOKEN)
        answer = browser.post("/new", data=again)  # once more, with the new session's token
        assert "name: kept" in answer.text
        again = {**form_of(answer, "/new"), "yaml": text}
        assert browser.post("/new", data=again).status_code == 422


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("/campaigns/panel", "/campaigns/panel"),
        ("/campaigns/panel?a=b&c=%2F", "/campaigns/panel?a=b&c=%2F"),
        *[(other, "/") for other in (
            "", "https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example",
            "javascript:alert(1)", "evil.example", "/a\r\nset-cookie: a=b", "/@evil.example",
        )],
    ],
)  # fmt: skip
def test_signing_in_leads_to_pages_of_the_service_alone(
    strict: Served, wanted: str, place: str
) -> None:
    with strict.client() as browser:
        assert signed_in(browser, TOKEN, next=wanted).headers["location"] == place


def test_who_asks_for_a_page_is_led_there_after_signing_in(strict: Served, link: str) -> None:
    with strict.client(headers=HTML, follow_redirects=True) as browser:
        page = browser.get("/campaigns/panel?x=1")
        fields = form_of(page, "/login")
        assert fields["next"] == "/campaigns/panel?x=1"
        page = browser.post("/login", data={**fields, "token": f" {TOKEN}\r\n"})
        assert page.url.path == "/campaigns/panel"


MULTIPART = "multipart/form-data; boundary=x"
FIELD = 'Content-Disposition: form-data; name="{}"'
BODIES = {
    "many fields": (None, "&".join(f"f{n}=1" for n in range(3000))),
    "large field": (None, "yaml=" + "a" * 1_900_000),
    "too large": (None, "yaml=" + "a" * 2_100_000),
    "no UTF-8": (None, "yaml=%ff%fe&who=%ed%a0%80&card=%00&choice=%00&concurrency=%ff"),
    "repeated": (None, "yaml=a&yaml=b&who=a&who=b&card=1&card=2&choice=a&choice=b"),
    "malformed": (None, "%&=;%%%zz=&&&=&yaml"),
    "no boundary": ("multipart/form-data", "x"),
    "parts": (MULTIPART, f"--x\r\n{FIELD.format('yaml')}\r\n\r\n{'a' * 1_500_000}\r\n--x--\r\n"),
    "file": (MULTIPART, f"--x\r\n{FIELD.format('yaml')}; filename=a\r\n\r\na\r\n--x--\r\n"),
    "cut": (MULTIPART, f"--x\r\n{FIELD.format('yaml')}\r\n\r\na"),
    "charset": ("application/x-www-form-urlencoded; charset=nothing", "yaml=a&who=b"),
    "JSON": ("application/json", '{"yaml": "\\ud800"}'),
    "text": ("text/plain", "yaml=a"),
}


@pytest.mark.parametrize("name", BODIES)
def test_odd_bodies_are_refused_with_a_page(
    roles: dict[str, httpx.Client], link: str, name: str
) -> None:
    kind, body = BODIES[name]
    admin = roles["admin"]
    csrf = form_of(admin.get("/new"), "/new")["csrf"]
    for path in ("/new", "/new/table", "/campaigns/panel/people", "/campaigns/panel/retune",
                 f"{link}/answer", "/login"):  # fmt: skip
        token = form_of(admin.get(f"{link}/question"), path)["csrf"] if link in path else csrf
        headers = {"content-type": kind or "application/x-www-form-urlencoded", **stranger()}
        sent = f"{body}&csrf={token}" if kind is None else body
        answer = admin.post(path, content=sent, headers=headers | {"x-csrf-token": token})
        assert 400 <= answer.status_code < 500 or answer.is_redirect, (path, answer.text)
        if not answer.is_redirect:
            assert answer.headers["content-type"].startswith("text/html"), (path, answer.text)
    assert admin.get("/").status_code == 200


class TestProxies:
    def test_wrong_tokens_slow_down_their_sender_alone(self, strict: Served, link: str) -> None:
        with behind(strict) as client:
            wrong = stranger()
            sent = [client.get("/metrics", headers=wrong | {"authorization": f"Bearer {n}"})
                    for n in range(11)]  # fmt: skip
            assert [one.status_code for one in sent] == [401] * 10 + [429]
            assert client.get(link, headers=wrong).status_code == 200
            assert client.get("/metrics", headers=wrong | BEARER).status_code == 200
            bad = {"authorization": "Bearer x"}
            assert client.get("/metrics", headers=stranger() | bad).status_code == 401

    def test_the_address_that_a_stranger_states_is_not_believed(
        self, strict: Served, link: str
    ) -> None:
        elsewhere = httpx.HTTPTransport(local_address="127.0.0.3")
        with strict.client(transport=elsewhere) as client:
            bad = {"authorization": "Bearer x"}
            headers = [{"x-forwarded-for": f"198.51.100.{n}"} for n in range(11)]
            sent = [client.get("/metrics", headers=bad | one).status_code for one in headers]
            assert sent == [401] * 10 + [429]
            seen = {"x-forwarded-proto": "https", "x-forwarded-host": "elicit.example",
                    "x-forwarded-prefix": "/evil", "forwarded": "proto=https"}  # fmt: skip
            answer = client.get("/", headers=HTML | seen)
            assert answer.headers["location"] == "/login"
            cookie = client.get("/login", headers=seen).headers["set-cookie"]
            assert "Path=/;" in cookie
            assert "Secure" not in cookie
            assert issued(client, **BEARER, **seen).startswith("http://127.0.0.1:")

    @pytest.mark.parametrize(
        "headers",
        [
            {"x-forwarded-for": "203.0.113.5", "x-forwarded-proto": "https",
             "x-forwarded-host": "elicit.example", "x-forwarded-prefix": "/elicit/"},
            {"forwarded": 'for="[2001:db8::7]:1";proto=https;host=elicit.example',
             "x-forwarded-prefix": "/elicit"},
            {"x-forwarded-proto": "https", "host": "elicit.example",
             "x-forwarded-prefix": "/elicit"},
        ],
        ids=["x-forwarded", "forwarded", "host"],
    )  # fmt: skip
    @pytest.mark.parametrize("passed", ["", "/elicit"], ids=["stripped", "whole"])
    def test_addresses_are_those_of_the_proxy(
        self, strict: Served, link: str, headers: dict[str, str], passed: str
    ) -> None:
        with behind(strict, headers=headers | HTML) as client:
            answer = client.get(f"{passed}/campaigns/panel/")
            assert answer.headers["location"] == "/elicit/login?next=/campaigns/panel"
            page = client.get(f"{passed}/login")
            cookie = page.headers["set-cookie"]
            assert "Path=/elicit;" in cookie
            assert cookie.endswith("Secure")
            assert "max-age" in page.headers["strict-transport-security"]
            assert 'action="/elicit/login"' in page.text
            assert 'href="/elicit/static/style.css"' in page.text
            url = issued(client, **BEARER)
            assert url.startswith("https://elicit.example/elicit/judge/")
            card = client.get(f"{passed}{link}/question").text
            assert f'action="/elicit{link}/answer"' in card
            made = {"origin": "https://elicit.example", "sec-fetch-site": "same-origin", **BEARER}
            assert (
                client.post(f"{passed}/campaigns/panel/resume", headers=made).headers["location"]
                == "/elicit/campaigns/panel"
            )

    @pytest.mark.parametrize("host", ["evil.example", "evil.example, elicit.example:x", "a@b"])
    def test_a_proxy_cannot_name_another_host(self, strict: Served, host: str) -> None:
        with behind(strict, headers=HTML) as client:
            assert client.get("/login", headers={"x-forwarded-host": host}).status_code == 421

    def test_a_proxy_that_calls_it_by_its_address(self, strict: Served, link: str) -> None:
        with behind(strict) as client:
            seen = {"x-forwarded-proto": "https", "origin": "https://elicit.example:8443"}
            assert issued(client, **{**BEARER, "x-forwarded-proto": "https"}).startswith(
                "https://elicit.example/judge/"
            )
            path = "/campaigns/panel/resume"
            assert client.post(path, headers=BEARER | seen).status_code == 403
            same = seen | {"sec-fetch-site": "same-origin"}
            assert client.post(path, headers=BEARER | same).status_code == 303
            crossed = seen | {"sec-fetch-site": "cross-site"}
            assert client.post(path, headers=BEARER | crossed).status_code == 403


def test_the_text_of_all_forms_is_normalized() -> None:
    app = create_app(ServerSettings())
    fields = [
        field
        for route in routes(app)
        for field in route.dependant.body_params
        if type(field.field_info).__name__ == "Form"
    ]
    assert len(fields) > 10
    for field in fields:
        if field.name == "run":  # names of runs, which another text than a name is not
            assert field.validate(["a\r\n"], {}, loc=("body",))[1]
            continue
        several = field.name == "who"
        text, normal = "\ufeffa \r\n  b\r\rc\r\n", "a\n  b\n\nc"
        value, errors = field.validate([text] if several else text, {}, loc=("body",))
        assert (value, errors) == ([normal] if several else normal, []), field.name


@pytest.mark.parametrize("settings", [{"https": True}, {"hosts": ["a.example"]},
                                      {"proxies": ["127.0.0.1"]}, {"host": "0.0.0.0"}])  # fmt: skip
def test_a_service_that_others_can_reach_needs_a_token(settings: dict[str, Any]) -> None:
    assert ServerSettings(**settings).needs_token
    assert not ServerSettings().needs_token


@pytest.mark.parametrize("settings", [{"path": "elicit"}, {"path": "//evil.example"},
                                      {"path": "/a b"}, {"proxies": ["a.example"]}])  # fmt: skip
def test_a_path_or_a_proxy_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="write one such as"):
        ServerSettings().changed(settings)
