"""The connections of the HTTP client to one server: how they are made, kept for the next request, and closed."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import h11

from clew.checkpointers.patience import Patience, unread_and_unsent

__all__ = ["Address", "Answer", "Begin", "Headers", "NotSent", "Pool"]

MOST_OPEN = 64
"""The most connections that a client has to its server at the same time. Further calls wait."""
_IDLE = 30.0
"""Seconds after which an idle connection is closed instead of being used again."""
_PIECE = 2**18
_MOST_NOTICES = 20
"""The most interim answers (status 1xx) that the server may send before the actual answer to a request."""
_ASK_FIRST = 2**20
"""The size of a request's body, in bytes, from which the body is held back at first. It is sent once the server has
agreed to receive it, or has said nothing for a second."""

Headers = Sequence[tuple[str, str]]


class NotSent(Exception):
    """Raised if no connection could be made, so that the server has seen nothing of the request."""


class Address:
    """The host and port where the server listens, or the path of its unix socket. `tls` is None for plain HTTP."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, socket: str = "") -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.socket = socket


class Answer:
    """The status and the headers of an HTTP answer. The body is not kept here: each piece of it is passed to a function
    of the caller when it arrives."""

    def __init__(self, response: h11.Response) -> None:
        self.status = response.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}


Begin = Callable[[Answer], Callable[[bytes], None]]
"""A function that is called with an answer once its headers have arrived. It returns a function that is called with
each piece of the body."""


class Pool:
    """Keeps the connections to one server and runs requests on them."""

    def __init__(self, address: Address, patience: Patience) -> None:
        self._address = address
        self._patience = patience
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(MOST_OPEN)

    async def exchange(self, method: str, target: str, headers: Headers, body: bytes, begin: Begin) -> Answer:
        """Send an HTTP request and return the status and headers of its answer. As soon as these have arrived, `begin`
        is called with them. `begin` returns a function, which is then called with each piece of the answer's body.

        Raises `NotSent` if no connection could be made. Raises OSError, EOFError or an h11 error if it is unknown
        whether the server handled the request, and `Unavailable` if nothing is sent or received for the checkpointer's
        `timeout`.
        """
        async with self._slots:
            connection = self._reusable() or await self._connect()
            try:
                answer = await connection.patience.limit(connection.exchange(method, target, headers, body, begin))
            except BaseException:
                connection.abort()
                raise
            if connection.is_reusable():
                self._idle.append(connection)
            else:
                await connection.close()
            return answer

    @asynccontextmanager
    async def streamed(
        self, target: str, headers: Headers
    ) -> AsyncIterator[tuple[Answer, AsyncGenerator[bytes, None]]]:
        """Send a GET request on a connection of its own. Give the status and headers of the answer, and its body in
        pieces as they arrive. The connection is broken at the end of the block. Raises the same errors as `exchange`."""
        connection = await self._connect()
        try:
            yield await connection.patience.limit(connection.begin(target, headers)), connection.pieces()
        finally:
            connection.abort()

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
        if address.socket:
            connecting = asyncio.open_unix_connection(address.socket, limit=2 * _PIECE)
        else:
            connecting = asyncio.open_connection(address.host, address.port, ssl=address.tls, limit=2 * _PIECE)
        try:
            reader, writer = await self._patience.part().limit(connecting)
        except OSError as error:
            raise NotSent(_in_words(error)) from error
        return _Connection(reader, writer, self._patience)


class _Connection:
    """One connection to the server, which carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience: Patience) -> None:
        self.patience = patience.part(lambda: unread_and_unsent(reader, writer))
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**16)
        self._used = time.monotonic()
        self._early: object = None
        """The first event of the server's answer, if that answer began before the request's body was sent. None
        otherwise."""

    async def exchange(self, method: str, target: str, headers: Headers, body: bytes, begin: Begin) -> Answer:
        http = self._http
        ask_first = len(body) >= _ASK_FIRST
        sized = [*headers, ("content-length", str(len(body)))] if body or method in ("POST", "PUT") else list(headers)
        if ask_first:
            sized = [*sized, ("expect", "100-continue")]
        start = http.send(h11.Request(method=method, target=target, headers=sized)) or b""
        if ask_first:
            self._writer.write(start)
            if await self._is_wanted():
                await self._send(body)
        else:
            self._writer.write(start + body)
            http.send_with_data_passthrough(h11.Data(data=body))
            http.send(h11.EndOfMessage())
        return await self._receive(begin)

    async def begin(self, target: str, headers: Headers) -> Answer:
        """Send a GET request, and return the status and headers of its answer once they have arrived."""
        request = h11.Request(method="GET", target=target, headers=list(headers))
        self._writer.write((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return Answer(event)
            if not isinstance(event, h11.InformationalResponse):
                raise EOFError("the connection was closed before the answer")

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body of the answer to `begin` in pieces as they arrive. Raises `EOFError` or an h11 error if the
        connection is closed before the end of the body."""
        while not isinstance(event := await self.patience.limit(self._next()), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise EOFError("the connection was closed in the middle of the answer")
            yield bytes(event.data)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_PIECE))
            self.patience.moved()
        return event

    async def _is_wanted(self) -> bool:
        """Wait until the server answers the header `Expect: 100-continue`, and return whether to send the body of the
        request. Returns False if the server has already sent its final answer, and True if it says nothing for a
        second."""
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

    async def _send(self, body: bytes) -> None:
        view = memoryview(body)
        for start in range(0, len(body), _PIECE):
            self._writer.write(view[start : start + _PIECE])
            await self._writer.drain()
            self.patience.moved()
        self._http.send_with_data_passthrough(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())

    async def _receive(self, begin: Begin) -> Answer:
        http = self._http
        answer: Answer | None = None
        take: Callable[[bytes], None] = bytearray().extend
        notices = 0
        while True:
            event, self._early = (self._early or http.next_event()), None
            if event is h11.NEED_DATA:
                http.receive_data(await self._reader.read(_PIECE))
                self.patience.moved()
            elif isinstance(event, h11.Response):
                answer = Answer(event)
                take = begin(answer)
            elif isinstance(event, h11.Data):
                take(event.data)
            elif isinstance(event, h11.EndOfMessage) and answer is not None:
                return answer
            elif isinstance(event, h11.InformationalResponse) and notices < _MOST_NOTICES:
                notices += 1
            else:
                raise EOFError("the connection was closed before the answer")

    def is_reusable(self) -> bool:
        """Return whether the connection can carry another HTTP request. If so, reset its state for the next request and
        note the time, from which it counts as idle."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._used = time.monotonic()
        return True

    def is_alive(self) -> bool:
        return not self._reader.at_eof() and time.monotonic() - self._used < _IDLE

    def abort(self) -> None:
        """Break the connection at once, without waiting for the server. A server that is slow or frozen will see later
        that nobody waits for its answer any more."""
        with suppress(OSError):  # the connection is already broken
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection. Wait at most a second for the server to close its side; then cut it off."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except OSError:  # a TimeoutError too
            self.abort()


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no connection in time"
    return str(error) or type(error).__name__
