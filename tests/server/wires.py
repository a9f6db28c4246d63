"""Plain sockets to a service, for clients that break the rules: they stop half-way, say too much, or never listen."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from tests.limits import PATIENCE
from tests.server.serving import Running

__all__ = ["Wire", "until"]


class Wire:
    """One connection to a service, on which a test writes and reads bytes as it likes."""

    def __init__(self, running: Running, *, buffer: int = 0, source: str = "127.0.0.1") -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE)
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.bind((source, 0))
        self.socket.connect(("127.0.0.1", running.server.port))

    def send(self, data: bytes) -> None:
        """Send these bytes. Does nothing more if the service has cut the connection off."""
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def head(self, method: str, path: str, token: str = "", *lines: str) -> None:
        """Send the head of a request."""
        proof = [f"authorization: Bearer {token}"] if token else []
        self.send("\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *proof, *lines, "", ""]).encode())

    def answer(self) -> tuple[int, bytes]:
        """Read one whole response, whose length is stated. Returns status and body; 0 if the connection ends first."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (piece := self._receive()):
                return 0, data
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(sizes[0].split(b":")[1]) if sizes else 0
        while len(body) < size and (piece := self._receive()):
            body += piece
        return int(head.split(b" ")[1]), body

    def rest(self) -> bytes:
        """Read all that comes until the service ends the connection."""
        data = b""
        while piece := self._receive():
            data += piece
        return data

    def close(self) -> None:
        self.socket.close()

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(2**16)
        except ConnectionError:
            return b""


def until(condition: Callable[[], object]) -> None:
    """Wait until this holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)
