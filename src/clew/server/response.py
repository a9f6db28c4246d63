"""A response of the service, and how it is sent: as a whole, or as a stream that stops when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from clew._runtime.aio import cancel_and_wait

__all__ = ["Response", "Stream"]

Stream = AsyncGenerator[bytes, None]

_WITHOUT_BODY = (204, 304)
_PIECE = 2**18


class Response:
    """An HTTP response. Its body is bytes, or a generator that yields the body in pieces.

    `kind` is the media type, empty for none; text is always UTF-8, and is marked so. If the length of the body is
    known, a header states it. A response with the status code 204 or 304 has no body, and so no header for its type or
    length.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(
        self,
        body: bytes | Stream = b"",
        kind: str = "",
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.headers = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        if status in _WITHOUT_BODY:
            return
        if kind:
            self.headers.append((b"content-type", (f"{kind}; charset=utf-8" if kind[:5] == "text/" else kind).encode()))
        if isinstance(body, bytes):
            self.headers.append((b"content-length", b"%d" % len(body)))

    async def send(self, receive: Any, send: Any) -> None:
        """Send the response with the functions `receive` and `send` of ASGI. If the client goes away while a stream is
        sent, the generator of the stream is cancelled and closed, and nothing is raised. An error in the generator is
        raised, and the client sees that the response was cut off."""
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        if isinstance(self.body, bytes):
            await send(start)
            # In pieces, because each waits until the client has taken the ones before it.
            last = max(0, len(self.body) - 1) // _PIECE * _PIECE
            for place in range(0, last, _PIECE):
                piece = self.body[place : place + _PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": self.body[last:]})
            return
        sending = asyncio.create_task(_send_stream(start, self.body, send))
        leaving = asyncio.create_task(_wait_until_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_sent = sending.done()
            await cancel_and_wait((sending, leaving))
        if is_sent:
            sending.result()


async def _send_stream(start: dict[str, Any], body: Stream, send: Any) -> None:
    async with aclosing(body):
        await send(start)
        async for piece in body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _wait_until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
