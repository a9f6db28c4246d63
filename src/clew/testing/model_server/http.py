"""HTTP/1.1 for the model server. The package h11 parses and writes the messages, and asyncio's streams carry the bytes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import sys
import time
import zlib
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

import zstandard

from clew.errors import MissingExtra

try:
    import h11
except ImportError as error:
    raise MissingExtra("ModelServer", "testing") from error

__all__ = ["EVENTS", "JSON", "Abandoned", "BadRequest", "Connection", "HttpRequest"]

JSON = {"content-type": "application/json", "request-id": "req_scripted", "x-request-id": "req_scripted"}
EVENTS = {**JSON, "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
MAX_HEAD = 2**20
MAX_BODY = 256 * 2**20
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Abandoned(Exception):
    """Raised when the client closes the connection before it has the whole answer."""


class BadRequest(Exception):
    """Raised when the received bytes are not an HTTP request, or are one whose body is too long. `status` is the HTTP
    status to answer with."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class HttpRequest(NamedTuple):
    method: str
    path: str
    """The path without the query."""
    headers: dict[str, str]
    """Header values by lower-case name."""
    body: bytes


class Connection:
    """One client's connection to the model server. Reads the client's requests, and sends each answer in one of three
    ways: whole, as a stream of chunks, or broken off, as a test may want."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._without_body = False
        """Whether the request that is being answered is a HEAD request."""

    async def read(self) -> HttpRequest | None:
        """Read the next request of the client and return it. Return None if the connection was closed, by the client or
        by this server after an answer. Raises `BadRequest` if the received bytes are not an HTTP request, or its body
        is too long."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        if self._http.our_state is not h11.IDLE:
            return None
        method, path, headers, body = "", "", dict[str, str](), bytearray()
        try:
            while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    method, path = event.method.decode(), urlsplit(event.target.decode()).path
                    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > MAX_BODY:
                        raise BadRequest(f"the body is longer than {MAX_BODY} bytes", 413)
                elif not await self._receive():
                    return None
        except (h11.RemoteProtocolError, ValueError) as error:
            status = getattr(error, "error_status_hint", 400)
            raise BadRequest(f"not a request of HTTP/1.1: {error}", status) from None
        self._without_body = method == "HEAD"
        return HttpRequest(method, path, headers, _decoded(bytes(body), headers.get("content-encoding", "")))

    async def send(self, status: int, headers: dict[str, str], body: bytes, *, only: int | None = None) -> None:
        """Send a whole answer. If it answers a HEAD request, send only the status and headers. With `only`, send that
        many bytes of the body and then close the connection, as if it had broken off."""
        self._head(status, {**headers, "content-length": str(len(body))})
        if not self._without_body and status not in (204, 304):
            self._write(h11.Data(data=body[:only]))
        if only is None:
            self._write(h11.EndOfMessage())
        await self._flush()
        if only is not None:
            await self.cut()

    async def refuse(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send a whole answer to a request that was not read to its end, and then read the rest of the request for at
        most a second. If the rest stayed unread, the system would reset the connection, and the client might lose the
        answer."""
        await self.send(status, {**headers, "connection": "close"}, body)
        with contextlib.suppress(OSError):
            self._writer.write_eof()
            async with asyncio.timeout(1):
                while await self._reader.read(2**16):
                    pass

    async def start(self, headers: dict[str, str]) -> None:
        """Begin an answer that is a stream of chunks: send the status 200 and these headers."""
        self._head(200, headers)
        await self._flush()

    async def chunk(self, data: bytes) -> None:
        if self._reader.at_eof():
            raise Abandoned
        self._write(h11.Data(data=data))
        await self._flush()

    async def end(self) -> None:
        self._write(h11.EndOfMessage())
        await self._flush()

    async def pause(self, seconds: float) -> None:
        """Wait for this many seconds. Raises `Abandoned` if the client closes the connection meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            # a client that closes before it has read all that was sent resets the connection, which is no end of file
            if self._reader.at_eof() or self._reader.exception() is not None:
                raise Abandoned
            await asyncio.sleep(min(left, 0.02))

    async def cut(self) -> None:
        """Close the connection in the middle of an answer. The client still receives what was sent before."""
        self._http.send_failed()
        self._writer.close()

    async def reset(self) -> None:
        """Reset the TCP connection at once, so that the client's next read fails with an error."""
        self._http.send_failed()
        taken = self._writer.get_extra_info("socket")
        taken.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
        )
        self._writer.transport.abort()

    async def _receive(self) -> bool:
        """Wait for more bytes of the request from the client and pass them to the HTTP parser. Return False if the
        client has closed the connection."""
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, reason=b"Continue", headers=[]))
        try:
            data = await self._reader.read(2**16)
        except ConnectionError:
            return False
        if data:
            self._http.receive_data(data)
        return bool(data)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self._write(h11.Response(status_code=status, reason=_REASONS.get(status, b"Error"), headers=[*headers.items()]))

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")

    async def _flush(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            raise Abandoned from None


def _decoded(body: bytes, encoding: str) -> bytes:
    try:
        if encoding == "gzip":
            return gzip.decompress(body)
        if encoding == "deflate":
            return zlib.decompress(body)
        if encoding == "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError):
        raise BadRequest(f"a body that is not {encoding}") from None
    return body
