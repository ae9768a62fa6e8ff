"""A loopback provider that speaks the batch endpoints of Anthropic and OpenAI.

Real sockets, real wire formats. A test decides what becomes of each request (`answer`), when a
batch ends (`end`), and what the provider does wrong (`resets_after`, `refuses`).
"""

from __future__ import annotations

import email.parser
import email.policy
import json
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from llm_elicit.testing.provider import Answer, Error, completion, error_body, message

Outcome = Answer | Error | None
"""What becomes of a request; None if it expires."""


@dataclass
class Batch:
    """A batch as the provider keeps it."""

    id: str
    wire: str
    requests: dict[str, dict[str, Any]]
    metadata: dict[str, str] = field(default_factory=dict)
    created: int = 0
    ended: bool = False
    status: str = "in_progress"


@dataclass
class BatchProvider:
    """The server. `with BatchProvider() as provider: provider.url`."""

    answer: Callable[[dict[str, Any]], Outcome] = lambda body: Answer("A")
    max_count: int = 100_000
    max_bytes: int = 200_000_000
    page: int = 2
    resets_after: int | None = None
    """So many batches are accepted; the connection of the next is cut after it was accepted."""
    at_once: bool = False
    """Every batch is over as soon as it is handed in."""
    stalls: threading.Event | None = None
    """A batch is accepted, and nothing said of it until this is set."""
    refuses: Error | None = None
    batches: list[Batch] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    endpoint: str = "/v1/chat/completions"
    direct: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of questions that were asked directly."""

    def __enter__(self) -> Self:
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            provider = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        host, port = self._server.server_address[:2]
        self.url = f"http://{host!s}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def end(self) -> None:
        """Every batch is over."""
        for batch in self.batches:
            batch.ended = True

    @property
    def submitted(self) -> list[str]:
        """The last turn of every request in every batch."""
        bodies = [body for batch in self.batches for body in batch.requests.values()]
        return [str(body["messages"][-1]["content"]) for body in bodies]

    # What the handler calls; each returns (status, JSON or bytes), or None to cut the connection.

    def post(self, path: str, kind: str, raw: bytes) -> tuple[int, Any] | None:
        if path == "/v1/files":
            return self._keep_file(kind, raw)
        if path == "/v1/chat/completions":
            return self._direct(json.loads(raw))
        wire = "openai" if path == "/v1/batches" else "anthropic"
        if self.refuses is not None:
            return self.refuses.status, error_body(self.refuses, wire == "anthropic")
        body = json.loads(raw)
        if wire == "openai":
            raw = self._files[body["input_file_id"]]
            lines = [json.loads(line) for line in raw.splitlines()]
            assert all(line["url"] == body["endpoint"] == self.endpoint for line in lines)
            asked = {line["custom_id"]: line["body"] for line in lines}
        else:
            lines = body["requests"]
            assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", line["custom_id"]) for line in lines)
            asked = {line["custom_id"]: line["params"] for line in lines}
        assert len(asked) == len(lines), "custom ids must differ"
        if len(asked) > self.max_count or len(raw) > self.max_bytes:
            return 400, error_body(Error(400, "the batch is too large"), wire == "anthropic")
        with self._lock:
            number = len(self.batches) + 1
            batch = Batch(f"batch_{number}", wire, asked, body.get("metadata") or {}, 1000 + number)
            batch.ended = self.at_once
            self.batches.append(batch)
        if self.stalls is not None:
            self.stalls.wait(60)
        if self.resets_after is not None and number > self.resets_after:
            return None
        return 200, self._shown(batch)

    def _direct(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.direct.append(body)
        outcome = self.answer(body)
        if isinstance(outcome, Answer):
            return 200, completion(outcome, body)
        fails = outcome or Error(503, "overloaded")
        return fails.status, error_body(fails, anthropic=False)

    def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if path.endswith("/content"):
            return 200, self._files[path.split("/")[-2]]
        if path.endswith("/batches"):
            return 200, self._listed("anthropic" if "messages" in path else "openai", query)
        parts = path.split("/")
        name = parts[-2] if path.endswith("/results") else parts[-1]
        found = [batch for batch in self.batches if batch.id == name]
        if not found:
            return 404, error_body(Error(404, "no such batch"), "messages" in path)
        if path.endswith("/results"):
            return 200, self._results(found[0])
        return 200, self._shown(found[0])

    def _keep_file(self, kind: str, raw: bytes) -> tuple[int, Any]:
        head = f"Content-Type: {kind}\r\n\r\n".encode()
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + raw)
        parts = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in form.iter_parts()  # type: ignore[attr-defined]
        }
        assert parts["purpose"] == b"batch"
        name = f"file-{len(self._files) + 1}"
        self._files[name] = parts["file"]
        kept = {"id": name, "object": "file", "bytes": len(parts["file"]), "created_at": 1}
        return 200, {**kept, "filename": "b.jsonl", "purpose": "batch", "status": "processed"}

    def _listed(self, wire: str, query: dict[str, list[str]]) -> dict[str, Any]:
        """Newest first, a page at a time."""
        newest = [batch for batch in reversed(self.batches) if batch.wire == wire]
        after = (query.get("after") or query.get("after_id") or [None])[0]
        ids = [batch.id for batch in newest]
        start = ids.index(after) + 1 if after else 0
        page = newest[start : start + self.page]
        return {
            "object": "list",
            "data": [self._shown(batch) for batch in page],
            "has_more": start + self.page < len(newest),
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
        }

    def _outcomes(self, batch: Batch) -> dict[str, Outcome]:
        return {name: self.answer(body) for name, body in batch.requests.items()}

    def _shown(self, batch: Batch) -> dict[str, Any]:
        outcomes = list(self._outcomes(batch).values()) if batch.ended else []
        done = sum(isinstance(outcome, Answer) for outcome in outcomes)
        failed = sum(isinstance(outcome, Error) for outcome in outcomes)
        total, expired = len(batch.requests), len(outcomes) - done - failed
        if batch.wire == "anthropic":
            counts = {
                "processing": total - len(outcomes), "succeeded": done, "errored": failed,
                "canceled": 0, "expired": expired,
            }  # fmt: skip
            url = f"{self.url}/v1/messages/batches/{batch.id}/results" if batch.ended else None
            return {
                "id": batch.id, "type": "message_batch", "request_counts": counts,
                "processing_status": "ended" if batch.ended else "in_progress",
                "created_at": f"2099-01-01T00:00:{batch.created - 1000:02d}Z",
                "expires_at": "2099-01-02T00:00:00Z", "ended_at": None, "results_url": url,
                "cancel_initiated_at": None, "archived_at": None,
            }  # fmt: skip
        status = ("expired" if expired else "completed") if batch.ended else batch.status
        shown: dict[str, Any] = {
            "id": batch.id, "object": "batch", "endpoint": "/v1/chat/completions", "errors": None,
            "input_file_id": "file-0", "completion_window": "24h", "status": status,
            "created_at": 4_070_908_800 + batch.created, "metadata": batch.metadata,
            "output_file_id": None, "error_file_id": None,
            "request_counts": {"total": total, "completed": done, "failed": failed + expired},
        }  # fmt: skip
        if batch.ended:
            good, bad = self._openai_files(batch)
            shown |= {"output_file_id": good, "error_file_id": bad}
        return shown

    def _openai_files(self, batch: Batch) -> tuple[str | None, str | None]:
        lines: tuple[list[str], list[str]] = ([], [])
        for name, outcome in self._outcomes(batch).items():
            body = batch.requests[name]
            line: dict[str, Any] = {"id": f"r-{name}", "custom_id": name, "error": None}
            if isinstance(outcome, Answer):
                line["response"] = {"status_code": 200, "request_id": "x",
                                    "body": completion(outcome, body)}  # fmt: skip
            elif isinstance(outcome, Error):
                line["response"] = {"status_code": outcome.status, "request_id": "x",
                                    "body": error_body(outcome, anthropic=False)}  # fmt: skip
            else:
                line["response"] = None
                line["error"] = {"code": "batch_expired", "message": "not done in time"}
            lines[not isinstance(outcome, Answer)].append(json.dumps(line))
        names: list[str | None] = []
        for suffix, some in zip(("output", "error"), lines, strict=True):
            random.Random(len(some)).shuffle(some)
            name = f"file-{batch.id}-{suffix}"
            self._files[name] = "\n".join(some).encode()
            names.append(name if some else None)
        return names[0], names[1]

    def _results(self, batch: Batch) -> bytes:
        lines = []
        for name, outcome in self._outcomes(batch).items():
            if isinstance(outcome, Answer):
                said = message(outcome, batch.requests[name])
                result: dict[str, Any] = {"type": "succeeded", "message": said}
            elif isinstance(outcome, Error):
                result = {"type": "errored", "error": error_body(outcome, anthropic=True)}
            else:
                result = {"type": "expired"}
            lines.append(json.dumps({"custom_id": name, "result": result}))
        random.Random(len(lines)).shuffle(lines)
        return "\n".join(lines).encode()


def _below(path: str) -> str:
    """The path as at OpenAI; other providers have its endpoints below another one."""
    return re.sub(r"^/openai(/v1)?/", "/v1/", path.partition("?")[0])


class _Handler(BaseHTTPRequestHandler):
    provider: BatchProvider
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = _below(parts.path)
        self.provider.requests.append(("GET", path))
        self._send(self.provider.get(path, parse_qs(parts.query)))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        path = _below(self.path)
        self.provider.requests.append(("POST", path))
        self._send(self.provider.post(path, self.headers["content-type"], raw))

    def _send(self, answer: tuple[int, Any] | None) -> None:
        if answer is None:
            self.close_connection = True
            self.connection.close()
            return
        status, content = answer
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/binary" if isinstance(content, bytes) else "application/json"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""
