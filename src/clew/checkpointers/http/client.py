"""The HTTP client for `clew serve`. It repeats calls where that is safe, and turns answers into results and
errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple, NoReturn

import h11
import msgspec

from clew.checkpointers.http.connections import Address, Answer, NotSent, Pool
from clew.checkpointers.http.events import Event, EventReader
from clew.checkpointers.http.protocol import (
    EVENTS,
    HEART_BEAT,
    MSGPACK,
    NAMESPACE_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    RECORDS,
    Broken,
    Code,
    Failure,
    RecordReader,
    encode_text,
)
from clew.checkpointers.live import NoLiveEvents
from clew.checkpointers.patience import Patience
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

__all__ = ["LARGEST_ANSWER", "Client", "Reply"]

LARGEST_ANSWER = 2**20
"""The most bytes in the body of an answer, for calls whose answers are short, such as the head of a thread."""
_LARGEST_FAILURE = 2**24
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
    number. `in_records` says that the answer is to be a stream of records. `retries` is how often the request may be
    repeated."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    safe: bool
    largest: int
    most: int | None
    in_records: bool
    retries: int


class Client:
    """Makes calls to one server that runs `clew serve`. All calls use the same token and are about the same namespace,
    a separate part of the server's store."""

    def __init__(
        self, where: str, address: Address, base: str, *, token: str, namespace: str, timeout: float, retries: int
    ):
        self._where = where
        self._base = base
        self._address = address
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
        absent: Code | None = None,
        largest: int = LARGEST_ANSWER,
        most: int | None = None,
        in_records: bool = False,
        retries: int | None = None,
    ) -> Reply | None:
        """Make a call and return the server's reply, whose status is 200. Raises the error that the server reports; for
        a 404 with the code `absent`, returns None instead. `kind` is the content type of `body`; `headers` are sent in
        addition to those of every call; `thread_id` is named in errors. The body of the reply may have at most
        `largest` bytes; with `in_records` it may be a stream, of at most `most` records of `largest` bytes each.

        If no answer comes, or the server cannot serve the call for the moment, the call is repeated, at most `retries`
        times (an argument of the client, and of this method for one call). With `safe=False`, which says that repeating
        may do harm, this is done only if the server has not seen the call or says that it did nothing. No attempt
        begins later than the client's `timeout` after the first one. If no attempt succeeds, raises `Unavailable`.
        """
        all_headers = [*self._headers, *headers, *([("content-type", kind)] if method in ("POST", "PUT") else [])]
        most_retries = self._retries if retries is None else retries
        self._active += 1
        self._quiet.clear()
        try:
            reply = await self._patience.limit(
                self._attempts(_Asked(method, path, all_headers, body, safe, largest, most, in_records, most_retries))
            )
            return self._settle(reply, thread_id, absent)
        finally:
            self._active -= 1
            if not self._active:
                self._quiet.set()

    async def _attempts(self, asked: _Asked) -> Reply:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for attempt in range(asked.retries + 1):
            reply, problem, wait = await self._attempt(asked)
            if reply is not None:
                return reply
            if wait is None or attempt == asked.retries:
                break
            pause = max(wait, _PAUSES[min(attempt, len(_PAUSES) - 1)] * random.uniform(1, 1.5))  # noqa: S311 - a pause
            if loop.time() - began + pause >= self._patience.seconds:
                break
            await asyncio.sleep(pause)
        raise Unavailable(f"{self._where}: {problem}. The same call may be made again.")

    async def events(self, path: str, thread_id: str) -> AsyncGenerator[Event, None]:
        """Open a stream of server-sent events and yield them as they come, until the service ends the stream. Raises
        `NoLiveEvents` if the service has no such path, the error that it reports, and `Unavailable` if it cannot be
        reached or the connection breaks. Nothing is tried again."""
        headers = [*((name, value) for name, value in self._headers if name != "accept"), ("accept", EVENTS)]
        pool = Pool(self._address, Patience(self._where, max(self._patience.seconds, 3 * HEART_BEAT)))
        try:
            async with pool.streamed(self._base + path, headers) as (answer, pieces), aclosing(pieces):
                reply = Reply(answer, LARGEST_ANSWER, None, in_records=False)
                self._check_origin(reply)
                if reply.status != 200 or reply.kind != EVENTS:
                    async for piece in pieces:
                        reply.take(piece)
                    self._refuse_stream(reply, thread_id)
                reader = EventReader()
                async for piece in pieces:
                    for event in reader.feed(piece):
                        yield event
        except NotSent as error:
            raise Unavailable(f"{self._where}: cannot be reached ({error})") from error
        except (Broken, OSError, EOFError, h11.ProtocolError) as error:
            raise Unavailable(f"{self._where}: broke off its events ({error or type(error).__name__})") from error

    def _refuse_stream(self, reply: Reply, thread_id: str) -> NoReturn:
        """Raise the error for an answer that is not a stream of events."""
        if reply.status == 200:
            raise Unavailable(f"{self._where} sent {reply.kind or 'nothing'} where a stream of events was asked for")
        failure = self._failure(reply)
        if failure.code == "no_such_path":
            raise NoLiveEvents
        raise self._error(failure, thread_id)

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

    def _settle(self, reply: Reply, thread_id: str | None, absent: Code | None) -> Reply | None:
        if reply.status == 200:
            return reply
        failure = self._failure(reply)
        if reply.status == 404 and failure.code == absent:
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
