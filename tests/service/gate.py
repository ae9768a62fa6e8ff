"""A connection between a browser and a service that can be cut and mended."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Gate:
    """Passes connections on to a port, while it is open."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._passed: list[socket.socket] = []
        self.port = 0
        self.mend()

    def mend(self) -> None:
        """Let connections pass."""
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listening.bind(("127.0.0.1", self.port))
        self._listening.listen()
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        for one in (self._listening, *self._passed):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._passed.clear()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._passed += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pass, args=(source, target), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65_536):
            target.sendall(part)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def gated(port: int) -> Iterator[Gate]:
    """A gate that is cut afterwards."""
    gate = Gate(port)
    try:
        yield gate
    finally:
        gate.cut()
