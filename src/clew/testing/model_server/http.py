"""The part of HTTP/1.1 that clients of models use, on asyncio's streams: keep-alive, chunks, server-sent events."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import sys
import time
import zlib
from typing import NamedTuple
from urllib.parse import urlsplit

import zstandard

__all__ = ["EVENTS", "JSON", "Abandoned", "BadRequest", "Exchange", "HttpRequest", "read_request"]

JSON = {"content-type": "application/json", "request-id": "req_scripted", "x-request-id": "req_scripted"}
EVENTS = {**JSON, "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
MAX_BODY = 256 * 2**20
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    426: "Upgrade Required",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Abandoned(Exception):
    """Raised when the client closes the connection before it has the whole answer."""


class BadRequest(Exception):
    """Raised when the received bytes are not an HTTP request."""


class HttpRequest(NamedTuple):
    method: str
    path: str
    """The path without the query."""
    headers: dict[str, str]
    """Header values by lower-case name."""
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """Read the next HTTP request of a connection. Return None if the client has closed the connection. Raises
    `BadRequest`."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest("the headers are too long") from None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    try:
        method, target, _ = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        length = int(headers.get("content-length", "0"))
    except ValueError:
        raise BadRequest("not a request of HTTP/1.1") from None
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = await _read_chunks(reader)
        else:
            body = await reader.readexactly(min(length, MAX_BODY))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return HttpRequest(method, urlsplit(target).path, headers, _decoded(body, headers.get("content-encoding", "")))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while True:
        line = await reader.readline()
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            raise BadRequest("a chunk without a size") from None
        part = await reader.readexactly(size + 2)
        if size == 0:
            return b"".join(parts)
        parts.append(part[:-2])


def _decoded(body: bytes, encoding: str) -> bytes:
    try:
        if encoding == "gzip":
            return gzip.decompress(body)
        if encoding == "deflate":
            return zlib.decompress(body)
        if encoding == "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    except (OSError, zlib.error, zstandard.ZstdError):
        raise BadRequest(f"a body that is not {encoding}") from None
    return body


class Exchange:
    """Sends the answers to the HTTP requests of one connection: whole, as a stream of chunks, or broken off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.broken = False
        """Whether the connection was closed or reset here, so that it takes no further request."""

    async def send(
        self, status: int, headers: dict[str, str], body: bytes, *, only: int | None = None, hide: bool = False
    ) -> None:
        """Send a whole answer.

        With `only`, send that many bytes of the body and then close the connection. With `hide`, send only the headers,
        for a HEAD request.
        """
        self._head(status, {**headers, "content-length": str(len(body))})
        if not hide:
            self._writer.write(body if only is None else body[:only])
        await self._flush()
        if only is not None:
            await self.cut()

    async def start(self, headers: dict[str, str]) -> None:
        """Begin an answer that is a stream of chunks: send its status and headers."""
        self._head(200, {**headers, "transfer-encoding": "chunked"})
        await self._flush()

    async def chunk(self, data: bytes) -> None:
        if self._reader.at_eof():
            raise Abandoned
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._flush()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._flush()

    async def pause(self, seconds: float) -> None:
        """Wait for this many seconds. Raises `Abandoned` if the client closes the connection meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._reader.at_eof():
                raise Abandoned
            await asyncio.sleep(min(left, 0.02))

    async def cut(self) -> None:
        """Close the connection in the middle of an answer. The client still receives what was sent."""
        self.broken = True
        self._writer.close()

    async def reset(self) -> None:
        """Reset the connection at once, so that the client's next read fails."""
        self.broken = True
        taken = self._writer.get_extra_info("socket")
        taken.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
        )
        self._writer.transport.abort()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def _flush(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            raise Abandoned from None
