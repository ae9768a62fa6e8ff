"""Attacks on the service by other sites, by wrong tokens and by large requests, by raw HTTP."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from llm_elicit.errors import InputError
from llm_elicit.service.server import serve
from llm_elicit.service.settings import ServerSettings
from tests.service.serving import BEARER, LOOK, TOKEN, Served, serving

CSV = "mass,sex\n" + "".join(f"{n * 7 % 91},{'mf'[n % 2]}\n" for n in range(60))


def problem(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    return str(answer.json()["detail"])


def test_every_answer_has_the_security_headers(served: Served) -> None:
    with served.client() as client:
        for path in ("/health", "/api/v1/spaces", "/nowhere"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "a@127.0.0.1", ""])
def test_a_wrong_host_is_refused(served: Served, host: str) -> None:
    with served.client() as client:
        assert "hosts" in problem(client.get("/api/v1/spaces", headers={"host": host}), 421)


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8642", "192.0.2.7"])
def test_addresses_cannot_be_rebound_and_are_accepted(served: Served, host: str) -> None:
    with served.client() as client:
        assert client.get("/health", headers={"host": host}).status_code == 200


def test_an_operators_own_host_name_is_accepted(strict: Served) -> None:
    name = {"host": "elicit.example"}
    with strict.client(headers=name | BEARER) as client:
        assert client.get("/health").status_code == 200
        origin = {"origin": "https://elicit.example", "content-type": "text/csv"}
        answer = client.post("/api/v1/spaces?name=birds", content=CSV, headers=origin)
        assert answer.status_code == 201, answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_request_of_another_site_is_refused(served: Served, headers: dict[str, str]) -> None:
    with served.client() as client:
        sent = {"content-type": "text/csv", **headers}
        answer = client.post("/api/v1/spaces?name=birds", content=CSV, headers=sent)
        assert "another site" in problem(answer, 403)
        names = {line["name"] for line in client.get("/api/v1/spaces").json()}
        assert "birds" not in names


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_a_form_without_the_sessions_token_is_refused(served: Served, kind: str) -> None:
    with served.client() as client:
        answer = client.post(
            "/api/v1/spaces?name=birds", content="a=1", headers={"content-type": kind}
        )
        assert "not of this session" in problem(answer, 403)


def test_a_session_must_repeat_its_token(strict: Served) -> None:
    with strict.client() as client:
        signed = client.post("/api/v1/session", json={"token": TOKEN})
        cookie = signed.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert TOKEN not in cookie
        assert client.get("/api/v1/spaces").status_code == 200
        sent = {"content-type": "text/csv"}
        path = "/api/v1/spaces?name=tokens"
        assert "session" in problem(client.post(path, content=CSV, headers=sent), 403)
        forged = sent | {"X-CSRF-Token": "0" * 64}
        assert "session" in problem(client.post(path, content=CSV, headers=forged), 403)
        right = sent | {"X-CSRF-Token": signed.json()["csrf"]}
        assert client.post(path, content=CSV, headers=right).status_code == 201
        assert client.delete("/api/v1/session", headers=right).status_code == 204
        assert "sign in" in problem(client.get("/api/v1/spaces"), 401)


def test_a_forged_session_is_none(strict: Served) -> None:
    with strict.client() as client:
        client.post("/api/v1/session", json={"token": LOOK})
        (name,) = client.cookies.keys()
        value = client.cookies[name]
    changed = value[:-3] + ("aaa" if value[-3:] != "aaa" else "bbb")
    with strict.client(cookies={name: changed}) as client:
        problem(client.get("/api/v1/spaces"), 401)


def test_scopes(strict: Served) -> None:
    with strict.client(headers={"authorization": f"Bearer {LOOK}"}) as client:
        assert client.get("/api/v1/spaces").status_code == 200
        answer = client.post(
            "/api/v1/spaces?name=b", content=CSV, headers={"content-type": "text/csv"}
        )
        assert "may only read" in problem(answer, 403)
    with strict.client() as client:
        assert client.get("/health").status_code == 200
        for path in ("/api/v1/spaces", "/metrics", "/api/v1/models", "/api/v1/templates"):
            problem(client.get(path), 401)


def test_wrong_tokens_are_limited_by_address(strict: Served) -> None:
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
    with strict.client(transport=elsewhere) as client:
        answers = [client.post("/api/v1/session", json={"token": "wrong"}) for _ in range(12)]
        assert [one.status_code for one in answers] == [401] * 10 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) > 30
        # Who has a right one may share the address: it is the proxy's.
        assert client.get("/api/v1/spaces", headers=BEARER).status_code == 200
        assert client.post("/api/v1/session", json={"token": LOOK}).status_code == 200
        problem(client.post("/api/v1/session", json={"token": "wrong"}), 429)
    with strict.client() as client:
        problem(client.post("/api/v1/session", json={"token": "wrong"}), 401)


def test_a_token_is_made_and_kept_for_its_user_alone(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "0.0.0.0") as served:
        kept = tmp_path / "runs" / ".service" / "token"
        assert str(kept.relative_to(tmp_path)) in served.line
        token = kept.read_text().strip()
        assert token not in served.line
        for name in ("token", "read-token", "secret"):
            assert stat.S_IMODE((kept.parent / name).stat().st_mode) == 0o600
        address = served.address.replace("0.0.0.0", "127.0.0.1")
        bearer = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{address}/api/v1/spaces", headers=bearer).status_code == 200
        problem(httpx.get(f"{address}/api/v1/spaces"), 401)


def test_a_readable_secret_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / ".service"
    folder.mkdir(parents=True)
    (folder / "secret").write_text("a secret that all can read")
    (folder / "secret").chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        serve(ServerSettings(runs=tmp_path / "runs"), print)


def test_a_short_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_ELICIT_TOKEN", "x")
    with pytest.raises(InputError, match="at least 16"):
        serve(ServerSettings(runs=tmp_path / "runs"), print)


def test_a_taken_port_is_one_clear_line(served: Served, tmp_path: Path) -> None:
    port = str(urlsplit(served.address).port)
    with pytest.raises(RuntimeError) as refused, serving(tmp_path, "--port", port):
        pass
    (line,) = str(refused.value).splitlines()
    assert "give another --port" in line


def test_a_large_request_is_refused_by_its_stated_length(served: Served) -> None:
    """A thousand megabytes are announced, and none is sent."""
    place = urlsplit(served.address)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=60) as caller:
        caller.sendall(
            b"POST /api/v1/spaces?name=huge HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: text/csv\r\nContent-Length: 1000000000\r\n\r\n"
        )
        assert b" 413 " in caller.recv(4000)


def test_a_large_upload_is_refused_while_it_streams(strict: Served) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(10_000):
            sent += 100_000
            yield b"1,2\n" * 25_000

    kept = strict.runs / ".service" / "spaces"
    before = set(kept.glob("*"))
    with strict.client(headers=BEARER) as client:
        headers = {"content-type": "text/csv"}
        try:
            answer = client.post("/api/v1/spaces?name=huge", content=parts(), headers=headers)
        except httpx.HTTPError:
            pass  # the service closed the connection in the middle
        else:
            assert "1,000,000 bytes" in problem(answer, 413)
        assert sent < 100_000_000
        assert client.get("/health").status_code == 200
        assert set(kept.iterdir()) == before


def test_another_request_than_an_upload_is_small(served: Served) -> None:
    with served.client() as client:
        problem(client.post("/api/v1/session", json={"token": "x" * 3_000_000}), 413)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP"])
def test_a_compressed_request_is_refused(served: Served, encoding: str) -> None:
    with served.client() as client:
        headers = {"content-type": "text/csv", "content-encoding": encoding}
        answer = client.post("/api/v1/spaces?name=bomb", content=b"\x1f\x8b", headers=headers)
        assert "compressed" in problem(answer, 415)


def test_what_is_no_http_harms_nothing(served: Served) -> None:
    place = urlsplit(served.address)
    for said in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n"):
        with socket.create_connection((place.hostname or "", place.port or 0), 60) as caller:
            caller.sendall(said)
            caller.settimeout(60)
            try:
                caller.recv(1000)
            except ConnectionResetError:
                continue
    with served.client() as client:
        assert client.get("/health").status_code == 200


def test_no_line_of_the_log_holds_a_token(strict: Served) -> None:
    with strict.client() as client:
        client.get(f"/judge/{TOKEN}?token={TOKEN}")
        client.get(f"/api/v1/spaces/{TOKEN}", headers=BEARER)
        client.post("/api/v1/session", json={"token": TOKEN})
        client.post("/api/v1/session", content=f'{{"token": "{TOKEN}"')
    log = strict.whole_log()
    assert "/api/v1/session" in log
    assert TOKEN not in log
    assert LOOK not in log


def test_no_answer_holds_a_token(strict: Served) -> None:
    with strict.client(headers=BEARER) as client:
        for path in (f"/api/v1/spaces/{TOKEN}", f"/{TOKEN}", "/api/v1/models", "/metrics"):
            assert TOKEN not in client.get(path).text
        sent = client.post("/api/v1/session", json={"token": [TOKEN]})
        assert TOKEN not in sent.text
        assert sent.status_code == 422
