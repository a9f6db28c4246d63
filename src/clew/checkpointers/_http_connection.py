"""HTTP/1.1 over asyncio: a few connections kept open, an exchange on each at a time. h11 reads and writes the protocol.

A whole HTTP library costs several times what this does for one small request; `bench/http.py` measures both.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence

import h11

__all__ = ["Address", "Answer", "NotSent", "Pool"]

MOST_OPEN = 64
"""Connections to one server at the same time; further calls wait."""
_IDLE = 30.0
"""Seconds after which a connection that nobody used is not used again."""
_PIECE = 2**18
_ASK_FIRST = 2**20
"""Bodies from this size on are sent when the server has said that it wants them, or nothing within a second."""

Headers = Sequence[tuple[str, str]]


class NotSent(Exception):
    """No connection could be made: the server has seen nothing of this call."""


class Address:
    """Where the server listens. `tls` is None for plain HTTP."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.host = host
        self.port = port
        self.tls = tls


class Answer:
    """Status and headers of an answer. Its body goes to whatever `begin` returned."""

    def __init__(self, response: h11.Response) -> None:
        self.status = response.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}


Begin = Callable[[Answer], Callable[[bytes], None]]
"""Told of an answer when its headers are there; gives what takes the body, piece by piece."""


class Pool:
    """The connections to one server."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(MOST_OPEN)

    async def exchange(self, method: str, target: str, headers: Headers, body: bytes, begin: Begin) -> Answer:
        """One request and its answer. The time limit is for each step forward, not for the whole.

        Raises `NotSent`; else OSError, EOFError, TimeoutError or an h11 error, when it is not known what became of it.
        """
        async with self._slots:
            connection = self._reusable() or await self._connect()
            try:
                async with asyncio.timeout(self._timeout) as clock:
                    loop = asyncio.get_running_loop()
                    answer = await connection.exchange(
                        method, target, headers, body, begin, lambda: clock.reschedule(loop.time() + self._timeout)
                    )
            except BaseException:
                connection.abort()
                raise
            if connection.is_reusable():
                self._idle.append(connection)
            else:
                await connection.close()
            return answer

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    def _reusable(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        address = self._address
        try:
            async with asyncio.timeout(self._timeout):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=address.tls, limit=2 * _PIECE
                )
        except (OSError, TimeoutError) as error:
            raise NotSent(_in_words(error)) from error
        return _Connection(reader, writer)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**16)
        self._used = time.monotonic()
        self._early: object = None
        """What the server said before it was sent the body."""

    async def exchange(
        self, method: str, target: str, headers: Headers, body: bytes, begin: Begin, progress: Callable[[], None]
    ) -> Answer:
        http = self._http
        ask_first = len(body) >= _ASK_FIRST
        sized = [*headers, ("content-length", str(len(body)))] if body or method in ("POST", "PUT") else list(headers)
        if ask_first:
            sized = [*sized, ("expect", "100-continue")]
        start = http.send(h11.Request(method=method, target=target, headers=sized)) or b""
        if ask_first:
            self._writer.write(start)
            if await self._is_wanted():
                await self._send(body, progress)
        else:
            self._writer.write(start + body)
            http.send_with_data_passthrough(h11.Data(data=body))
            http.send(h11.EndOfMessage())
        return await self._receive(begin, progress)

    async def _is_wanted(self) -> bool:
        """Whether to send the body: not if the server has answered without it."""
        try:
            async with asyncio.timeout(1.0):
                while (event := self._http.next_event()) is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(_PIECE))
        except TimeoutError:
            return True
        if isinstance(event, h11.InformationalResponse):
            return True
        self._early = event
        return False

    async def _send(self, body: bytes, progress: Callable[[], None]) -> None:
        view = memoryview(body)
        for start in range(0, len(body), _PIECE):
            self._writer.write(view[start : start + _PIECE])
            await self._writer.drain()
            progress()
        self._http.send_with_data_passthrough(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())

    async def _receive(self, begin: Begin, progress: Callable[[], None]) -> Answer:
        http = self._http
        answer: Answer | None = None
        take: Callable[[bytes], None] = bytearray().extend
        while True:
            event, self._early = (self._early or http.next_event()), None
            if event is h11.NEED_DATA:
                http.receive_data(await self._reader.read(_PIECE))
                progress()
            elif isinstance(event, h11.Response):
                answer = Answer(event)
                take = begin(answer)
            elif isinstance(event, h11.Data):
                take(event.data)
            elif isinstance(event, h11.EndOfMessage) and answer is not None:
                return answer
            elif not isinstance(event, h11.InformationalResponse):
                raise EOFError("the connection was closed before the answer")

    def is_reusable(self) -> bool:
        """Make ready for another exchange, if both sides leave the connection open."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._used = time.monotonic()
        return True

    def is_alive(self) -> bool:
        return not self._reader.at_eof() and time.monotonic() - self._used < _IDLE

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        """Say goodbye, and do not wait long for an answer to it."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except OSError:  # TimeoutError is one: however it ended, it has ended
            self.abort()


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no connection in time"
    return str(error) or type(error).__name__
