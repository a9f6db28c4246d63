"""The HTTP client for `clew serve`. It repeats calls where that is safe, turns answers into results and errors, and
keeps a pool of connections."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import h11
import msgspec

from clew.checkpointers.http.protocol import (
    MSGPACK,
    NAMESPACE_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    RECORDS,
    Broken,
    Failure,
    RecordReader,
    encode_text,
)
from clew.checkpointers.patience import Patience, unread_and_unsent
from clew.errors import (
    ClewError,
    Conflict,
    Corrupt,
    InvalidInput,
    MissingBlob,
    NewerFormat,
    Unavailable,
    UsageError,
    rebuild,
)

__all__ = ["LARGEST_ANSWER", "Address", "Answer", "Client", "NotSent", "Pool", "Reply"]

MOST_OPEN = 64
"""The most connections that a client has to its server at the same time. Further calls wait."""
_IDLE = 30.0
"""Seconds after which an idle connection is closed instead of being used again."""
_PIECE = 2**18
LARGEST_ANSWER = 2**20
"""The most bytes in the body of an answer, for calls whose answers are short, such as the head of a thread."""
_LARGEST_FAILURE = 2**24
_MOST_NOTICES = 20
"""The most interim answers (status 1xx) that the server may send before the actual answer to a request."""
_ASK_FIRST = 2**20
"""The size of a request's body, in bytes, from which the body is held back at first. It is sent once the server has
agreed to receive it, or has said nothing for a second."""
_PAUSES = (0.05, 0.2, 0.6)
"""Seconds to wait before the second attempt of a call, before the third, and before every further one. A random time of
up to half as long is added."""
_decode_failure = msgspec.json.Decoder(Failure).decode


class Reply:
    """The server's answer to a call, with its body. If the call asks for a stream of records (`in_records`) and the
    server sends one, the records are in `reader`. The bytes of any other body are in `body`.

    `largest` is the most bytes that the body of a successful answer may have, or each record of a stream. `most` is the
    most records of a stream; None is no limit. If the server sends more, `Broken` is raised and the rest is not kept.
    """

    def __init__(self, answer: Answer, largest: int, most: int | None, *, in_records: bool) -> None:
        self.status = answer.status
        self.kind = answer.headers.get("content-type", "").partition(";")[0].strip()
        self.retry_after = _seconds(answer.headers.get("retry-after", ""))
        self.protocol = answer.headers.get(PROTOCOL_HEADER, "")
        self.server = answer.headers.get("server", "")
        self.body = bytearray()
        self.reader = RecordReader(largest, most)
        self.is_stream = in_records and self.kind == RECORDS and self.status == 200
        self._largest = largest if self.status == 200 else _LARGEST_FAILURE
        self.take: Callable[[bytes], None] = self.reader.feed if self.is_stream else self._extend

    def _extend(self, data: bytes) -> None:
        if len(self.body) + len(data) > self._largest:
            raise Broken(f"it has more than the {self._largest} bytes that are the limit")
        self.body += data


class _Asked(NamedTuple):
    """An HTTP request, and the limits for its answer. `safe` says that repeating the request does no harm. `largest` is
    the most bytes of the answer's body, or of each record of a stream; `most` is the most records, None for any
    number. `in_records` says that the answer is to be a stream of records."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    safe: bool
    largest: int
    most: int | None
    in_records: bool


class Client:
    """Makes calls to one server that runs `clew serve`. All calls use the same token and are about the same namespace,
    a separate part of the server's store."""

    def __init__(
        self, where: str, address: Address, base: str, *, token: str, namespace: str, timeout: float, retries: int
    ):
        self._where = where
        self._base = base
        self._patience = Patience(where, timeout)
        self._pool = Pool(address, self._patience)
        self._retries = retries
        self._has_token = bool(token)
        named = f"[{address.host}]" if ":" in address.host else address.host
        headers = [
            ("host", f"{named}:{address.port}"),
            ("accept", f"{MSGPACK}, {RECORDS}"),
            ("accept-encoding", "identity"),
        ]
        if token:
            headers.append(("authorization", f"Bearer {token}"))
        if namespace:
            headers.append((NAMESPACE_HEADER, encode_text(namespace)))
        self._headers = headers
        self._active = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        kind: str = MSGPACK,
        safe: bool = True,
        headers: tuple[tuple[str, str], ...] = (),
        thread_id: str | None = None,
        absent: bool = False,
        largest: int = LARGEST_ANSWER,
        most: int | None = None,
        in_records: bool = False,
    ) -> Reply | None:
        """Make a call and return the server's reply, whose status is 200. Raises the error that the server reports.
        With `absent`, return None if the server says that the thread does not exist. `kind` is the content type of
        `body`; `headers` are sent in addition to those of every call; `thread_id` is named in errors. The body of the
        reply may have at most `largest` bytes; with `in_records` it may be a stream, of at most `most` records of
        `largest` bytes each.

        If no answer comes, or the server cannot serve the call for the moment, the call is repeated, at most `retries`
        times (an argument of the client). With `safe=False`, which says that repeating may do harm, this is done only
        if the server has not seen the call or says that it did nothing. No attempt begins later than the client's
        `timeout` after the first one. If no attempt succeeds, raises `Unavailable`.
        """
        all_headers = [*self._headers, *headers, *([("content-type", kind)] if method in ("POST", "PUT") else [])]
        self._active += 1
        self._quiet.clear()
        try:
            reply = await self._patience.limit(
                self._attempts(_Asked(method, path, all_headers, body, safe, largest, most, in_records))
            )
            return self._settle(reply, thread_id, absent)
        finally:
            self._active -= 1
            if not self._active:
                self._quiet.set()

    async def _attempts(self, asked: _Asked) -> Reply:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for attempt in range(self._retries + 1):
            reply, problem, wait = await self._attempt(asked)
            if reply is not None:
                return reply
            if wait is None or attempt == self._retries:
                break
            pause = max(wait, _PAUSES[min(attempt, len(_PAUSES) - 1)] * random.uniform(1, 1.5))  # noqa: S311 - a pause
            if loop.time() - began + pause >= self._patience.seconds:
                break
            await asyncio.sleep(pause)
        raise Unavailable(f"{self._where}: {problem}. The same call may be made again.")

    async def close(self) -> None:
        """Wait for the running calls to end, then close all connections."""
        await self._quiet.wait()
        await self._pool.close()

    async def _attempt(self, asked: _Asked) -> tuple[Reply | None, str, float | None]:
        """Send the request of a call once.

        Returns three values: the reply, the problem, and the seconds to wait. If the call is answered, these are the
        reply, an empty text and None. If not, the reply is None, the problem is said in words, and the seconds are how
        long to wait at least before the next attempt, or None if the call must not be repeated. Raises a `ClewError`
        where another attempt cannot help.
        """
        replies: list[Reply] = []

        def begin(answer: Answer) -> Callable[[bytes], None]:
            replies.append(Reply(answer, asked.largest, asked.most, in_records=asked.in_records))
            return replies[-1].take

        again = 0.0 if asked.safe else None
        try:
            await self._pool.exchange(asked.method, self._base + asked.path, asked.headers, asked.body, begin)
            reply = replies[-1]
            if reply.status >= 500 and not reply.protocol:
                return None, _found(reply), again
            self._check_origin(reply)
            if reply.is_stream:
                reply.reader.finish()
        except NotSent as error:
            return None, f"cannot be reached ({error})", 0.0
        except Broken as error:
            if error.failure is not None and error.failure.code not in ("unavailable", "conflict"):
                raise self._error(error.failure, None) from None
            return None, f"broke off its answer: {error}", again
        except (OSError, EOFError, h11.ProtocolError, msgspec.MsgspecError) as error:
            return None, f"broke off ({error or type(error).__name__})", again
        if reply.status == 429:
            return None, f"accepts no more calls for now; wait {reply.retry_after:g} s", reply.retry_after
        if reply.status >= 500:
            failure = self._failure(reply)
            if failure.code == "draining":
                return None, "is shutting down", reply.retry_after
            if failure.code not in ("corrupt", "newer_format"):
                return None, f"answered {reply.status}: {failure.message}", again
        return reply, "", None

    def _check_origin(self, reply: Reply) -> None:
        if not reply.protocol:
            raise Unavailable(
                f"{self._where} {_found(reply)}. Check the URL, and any proxy between here and the server."
            )
        if reply.protocol != str(PROTOCOL):
            version = int(reply.protocol) if reply.protocol.isdecimal() and len(reply.protocol) < 10 else 0
            raise NewerFormat(f"the protocol of {self._where}", version, PROTOCOL)

    def _settle(self, reply: Reply, thread_id: str | None, absent: bool) -> Reply | None:
        if reply.status == 200:
            return reply
        failure = self._failure(reply)
        if reply.status == 404 and failure.code == "absent" and absent:
            return None
        raise self._error(failure, thread_id)

    def _failure(self, reply: Reply) -> Failure:
        try:
            return _decode_failure(reply.body)
        except msgspec.MsgspecError:
            raise Unavailable(
                f"{self._where} answered {reply.status} and did not say why. The same call may be made again."
            ) from None

    def _error(self, failure: Failure, thread_id: str | None) -> ClewError:
        """Return the Clew error for a failure that the server reported. The failure's code decides the kind of error,
        and `thread_id` is the thread that the error names."""
        match failure.code:
            case "conflict":
                return rebuild(Conflict, (failure.message,), {"thread_id": thread_id})
            case "missing_blobs":
                return MissingBlob(failure.digests, thread_id=thread_id)
            case "invalid" | "too_large":
                return InvalidInput(failure.message)
            case "corrupt":
                return Corrupt(failure.message)
            case "newer_format":
                return NewerFormat(f"the store behind {self._where}", failure.found, failure.supported)
            case "unauthenticated" | "forbidden":
                lack = "" if self._has_token else " No token was given: pass token=… or set CLEW_TOKEN."
                return UsageError(f"{self._where}: {failure.message}{lack}")
            case _:
                return Unavailable(f"{self._where}: {failure.message}")


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 1.0


def _found(reply: Reply) -> str:
    """Return a text for an error about an answer that does not come from a Clew server. It has the status, the content
    type and the name of the server, but not the body, which may be any web page."""
    named = f", from {reply.server!r}" if reply.server else ""
    return f"did not answer as a Clew server does (status {reply.status}, {reply.kind or 'no content type'}{named})"


# Connections

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
