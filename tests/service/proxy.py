"""A reverse proxy with TLS, as stands in front of a service; and a site of someone else's.

It serves below a path, which it removes, and adds the headers of proxies. At `mail.example` it
serves a page with a link, for what a browser does with links of other sites.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

NAME, PATH = "elicit.example", "/elicit"


class Proxy:
    """A proxy in front of a port of this machine.

    Attributes:
        port: where it listens.
        address: by which browsers reach the service.
    """

    def __init__(self, to: int, folder: Path) -> None:
        self._to = to
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*certificate(folder))
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    @property
    def address(self) -> str:
        return f"https://{NAME}:{self.port}{PATH}"

    def mail(self, link: str) -> str:
        """The address of a page of another site with a link."""
        return f"https://mail.example:{self.port}/{link}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(10)

    def _stop(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_soon(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, near: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await near.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            method, target, version = head[0].split(" ")
            headers = dict(line.split(": ", 1) for line in head[1:])
            host = headers["Host"]
            if host.startswith("mail."):
                answer.write(_mail(target[1:]))
            else:
                assert target.startswith(PATH), target
                first = f"{method} {target.removeprefix(PATH) or '/'} {version}"
                await self._pass(_forwarded(first, headers, host), near, answer)
            await answer.drain()
        with contextlib.suppress(OSError):
            answer.close()

    async def _pass(
        self, head: bytes, near: asyncio.StreamReader, answer: asyncio.StreamWriter
    ) -> None:
        far, request = await asyncio.open_connection("127.0.0.1", self._to)
        request.write(head)
        sending = asyncio.create_task(_copied(near, request))
        try:
            await _copied(far, answer)
        finally:
            sending.cancel()
            request.close()


def _forwarded(first: str, headers: dict[str, str], host: str) -> bytes:
    """The head of a request as the proxy passes it on."""
    stated = {name: text for name, text in headers.items() if name.lower() != "connection"}
    stated |= {
        "Host": "127.0.0.1", "Connection": "close", "X-Forwarded-For": "203.0.113.7",
        "X-Forwarded-Proto": "https", "X-Forwarded-Host": host, "X-Forwarded-Prefix": PATH,
        "Forwarded": f'for=203.0.113.7;proto=https;host="{host}"',
    }  # fmt: skip
    lines = [first, *(f"{name}: {text}" for name, text in stated.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _mail(link: str) -> bytes:
    page = f'<a id="link" href="{html.escape(unquote(link))}">the link</a>'
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(page)}\r\n\r\n{page}".encode()


async def _copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await source.read(65_536):
            target.write(part)
            await target.drain()


def certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
               "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={NAME}",
               "-keyout", key, "-out", certificate]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@contextlib.contextmanager
def proxied(to: int, folder: Path) -> Iterator[Proxy]:
    """A proxy that stops afterwards."""
    proxy = Proxy(to, folder)
    try:
        yield proxy
    finally:
        proxy.close()
