"""The checkpointer of a store that another machine serves over HTTP, with the command `clew serve`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec

from clew._runtime.aio import settle, settling
from clew._runtime.batches import batches
from clew.checkpointers.base import MAX_FRAME, Checkpointer
from clew.checkpointers.checks import (
    Guard,
    check_append,
    check_blobs,
    check_digests,
    check_grace,
    check_namespace,
    check_query,
    check_range,
    check_stored_blob,
    check_thread_id,
    check_wanted,
)
from clew.checkpointers.heads import Head, HeadQuery, grace_micros
from clew.checkpointers.http.protocol import (
    MSGPACK,
    OCTETS,
    Blobs,
    Deltas,
    Digests,
    Listeners,
    Sweep,
    encode_text,
    log_number,
    log_tag,
)
from clew.checkpointers.live import Changed, Delta, Dropped, LiveChannel, LiveEvent, NoLiveEvents
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.checkpointers.urls import check_no_at_in_path, given_options, without_password
from clew.errors import Corrupt, InvalidInput, MissingExtra, Unavailable

if TYPE_CHECKING:
    import ssl

    from clew.checkpointers.http.client import Client, Reply

__all__ = ["HTTPCheckpointer"]

_BATCH = 4 * 2**20
"""The most bytes that blobs in one request have in total. A single larger blob has a request of its own."""
_BATCH_COUNT = 1000
_MOST = 2**62
_LARGEST_HEAD = 2**20
"""The most bytes of a head that a server may send. Older versions wrote larger ones than stores accept now."""
_LARGEST_REFS = 2**27

T = TypeVar("T")

_encode = msgspec.msgpack.encode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_listeners = msgspec.msgpack.Decoder(Listeners).decode
_decode_delta = msgspec.json.Decoder(Delta).decode
_decode_dropped = msgspec.json.Decoder(Dropped).decode
_decode_digests = msgspec.msgpack.Decoder(Digests).decode


@explains_lack_of_memory()
class HTTPCheckpointer(Checkpointer, LiveChannel):
    """Keeps threads in the store behind a server that runs `clew serve`, within the namespace that belongs to the
    token. It also passes live events on (`LiveChannel`): words of a response while a model writes it.

    `token`, by default the value of the environment variable `CLEW_TOKEN`, is sent with every call and never shown.
    Appends, reads and puts that get no answer are repeated up to `retries` times, because that does no harm; deletes
    are not repeated. A call without progress for `timeout` seconds, 10 by default, raises `Unavailable`; `timeout` may
    also be an option of the URL. `tls` replaces the default TLS settings, which trust the authorities that the system
    trusts.

    The size of an answer is limited: a blob may have `max_blob` bytes (256 MiB by default), a frame 4 MiB, a head 1
    MiB, the list of a thread's refs 128 MiB. If a server sends more, the call raises `Unavailable`.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        token: str | None = None,
        timeout: float | None = None,
        retries: int = 3,
        tls: ssl.SSLContext | None = None,
        max_blob: int = 256 * 2**20,
    ) -> None:
        check_namespace(namespace)
        self._scheme, self._host, self._port, self._base, options = _parse(url)
        self._token = _check_token(os.environ.get("CLEW_TOKEN", "") if token is None else token)
        if retries < 0:
            raise InvalidInput(f"retries={retries}: retries are 0 or more")
        try:
            import h11  # noqa: F401 - so that a missing extra is noticed here, not in the middle of a run
        except ImportError:
            raise MissingExtra("the HTTP store", "server") from None
        self._namespace = namespace
        self._timeout = timeout_seconds(options.get("timeout", TIMEOUT) if timeout is None else timeout)
        self._retries = retries
        self._tls = tls
        self._max_blob = max_blob
        named = f"[{self._host}]" if ":" in self._host else self._host
        self._socket = options.get("socket", "")
        at_socket = f"?socket={self._socket}" if self._socket else ""
        self._where = f"{self._scheme}://{named}:{self._port}{self._base}{at_socket}"
        self.place = f"{self._where}#{namespace}"
        self._guard = Guard(f"the checkpointer of {self._where}")
        self._client: Client | None = None
        self._appends: set[asyncio.Task[Reply | None]] = set()

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> HTTPCheckpointer:
        """Open the store at a URL of the form `http://host:port` or `https://host:port/base?timeout=30`, where the path
        `/base` is put before all paths of requests; or, at a unix socket, `http://localhost?socket=/path`. The token
        comes from the environment variable `CLEW_TOKEN`."""
        return cls(url, namespace)

    def __repr__(self) -> str:
        return f"HTTPCheckpointer({self._where!r}, namespace={self._namespace!r})"

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self._guard.enter()
        encoded = check_append(thread_id, frames, at, head, refs)
        check_wanted()
        body = _encode({"at": at, "head": msgspec.Raw(encoded), "frames": frames, "refs": list(refs)})
        condition = ("if-match", log_tag(at, head.log_id)) if at else ("if-none-match", "*")
        sending = self._use().call(
            "POST", f"{_path(thread_id)}/frames", body, headers=(condition,), thread_id=thread_id
        )
        task = settling(sending)
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)
        await settle(task)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        self._guard.enter()
        check_range(thread_id, start, stop)
        wanted = f"?start={start}" + ("" if stop is None else f"&stop={stop}")
        most = None if stop is None else max(0, stop - start)
        return await self._records("GET", f"{_path(thread_id)}/frames{wanted}", largest=MAX_FRAME, most=most)

    async def head(self, thread_id: str) -> Head | None:
        self._guard.enter()
        check_thread_id(thread_id)
        reply = await self._use().call("GET", _path(thread_id), absent="absent")
        if reply is None:
            return None
        head = self._decode(_decode_head, reply.body)
        if head.thread_id != thread_id:
            raise Corrupt(f"{self._where} sent the head of thread {head.thread_id!r} where {thread_id!r} was asked for")
        return head

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        self._guard.enter()
        check_query(query)
        if query.limit is not None:
            query = msgspec.structs.replace(query, limit=min(query.limit, _MOST))
        try:
            found = await self._records(
                "POST", "/v1/threads/query", _encode(query), largest=_LARGEST_HEAD, most=query.limit
            )
        except InvalidInput as error:
            if query.order != "due":
                raise
            raise InvalidInput(
                f"{self._where} cannot list the threads that are due, most likely because it runs an older Clew. Update "
                f"Clew there. It said: {error}"
            ) from error
        for data in found:
            yield self._decode(_decode_head, data)

    async def refs(self, thread_id: str) -> set[str]:
        self._guard.enter()
        check_thread_id(thread_id)
        reply = await self._ask("GET", f"{_path(thread_id)}/refs", largest=_LARGEST_REFS)
        return set(self._decode(_decode_digests, reply.body).digests)

    async def delete(self, thread_id: str) -> None:
        self._guard.enter()
        check_thread_id(thread_id)
        check_wanted()
        await self._ask("DELETE", _path(thread_id), safe=False)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        self._guard.enter()
        check_blobs(blobs)
        for batch in batches(blobs.items(), _BATCH_COUNT, size=lambda blob: len(blob[1]), largest=_BATCH):
            if len(batch) == 1:
                [(digest, data)] = batch
                await self._ask("PUT", f"/v1/blobs/{digest}", bytes(data), kind=OCTETS)
            else:
                await self._ask("POST", "/v1/blobs", _encode(Blobs(dict(batch))))

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        self._guard.enter()
        check_digests(digests)
        if not digests:
            return {}
        wanted = set(digests)
        found = {}
        asked = _encode(Digests(list(wanted)))
        largest, most = 32 + self._max_blob, len(wanted)
        for record in await self._records("POST", "/v1/blobs/get", asked, largest=largest, most=most):
            digest, data = record[:32].hex(), record[32:]
            if digest not in wanted:
                raise Corrupt(f"{self._where} sent a blob {digest} that was not asked for")
            check_stored_blob(digest, data, self._where)
            found[digest] = data
        return found

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        self._guard.enter()
        check_digests(digests)
        if not digests:
            return set()
        asked = set(digests)
        largest = 1024 + 80 * len(asked)
        reply = await self._ask("POST", "/v1/blobs/missing", _encode(Digests(list(asked))), largest=largest)
        return set(self._decode(_decode_digests, reply.body).digests)

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        self._guard.enter()
        check_grace(untouched_for)
        address = f"/v1/blobs?untouched_for_micros={grace_micros(untouched_for)}"
        for record in await self._records("GET", address, largest=32):
            yield record.hex()

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        self._guard.enter()
        check_digests(digests)
        check_grace(untouched_for)
        if digests:
            sweep = Sweep(list(set(digests)), grace_micros(untouched_for))
            await self._ask("POST", "/v1/blobs/delete", _encode(sweep), safe=False)

    async def publish(self, thread_id: str, deltas: Sequence[Delta]) -> int:
        self._guard.enter()
        check_thread_id(thread_id)
        path, body = f"{_path(thread_id)}/deltas", _encode(Deltas(list(deltas)))
        reply = await self._use().call("POST", path, body, safe=False, retries=0, absent="no_such_path")
        if reply is None:
            raise NoLiveEvents
        return self._decode(_decode_listeners, reply.body).listeners

    async def follow(self, thread_id: str, *, after: int = -1, log_id: str = "") -> AsyncIterator[LiveEvent]:
        self._guard.enter()
        check_thread_id(thread_id)
        asked = [
            "entries=0",
            *([f"after={after}"] if after >= 0 else []),
            *([f"log={log_number(log_id)}"] if log_id else []),
        ]
        path = f"{_path(thread_id)}/events?{'&'.join(asked)}"
        async with aclosing(self._use().events(path, thread_id)) as events:
            async for event in events:
                if event.name == "delta":
                    yield self._decode(_decode_delta, event.data.encode())
                elif event.name == "dropped":
                    yield self._decode(_decode_dropped, event.data.encode())
                elif event.name == "gone":
                    return
                else:
                    yield Changed()

    async def close(self) -> None:
        if self._guard.close() and self._client is not None:
            client, self._client = self._client, None
            if self._appends:
                await asyncio.wait(self._appends)
            await client.close()

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        kind: str = MSGPACK,
        safe: bool = True,
        largest: int = _LARGEST_HEAD,
        most: int | None = None,
        in_records: bool = False,
    ) -> Reply:
        reply = await self._use().call(
            method, path, body, kind=kind, safe=safe, largest=largest, most=most, in_records=in_records
        )
        assert reply is not None, "only a call that allows it is answered with absent"  # noqa: S101 - said before
        return reply

    async def _records(
        self, method: str, path: str, body: bytes = b"", *, largest: int, most: int | None = None
    ) -> list[bytes]:
        """Make a call and return the records of its answer: up to `most`, each of up to `largest` bytes. Raises
        `Unavailable` if the answer is not a stream of records, so that a wrong answer is never taken for an empty
        list."""
        reply = await self._ask(method, path, body, largest=largest, most=most, in_records=True)
        if not reply.is_stream:
            raise Unavailable(f"{self._where} sent {reply.kind or 'nothing'} where a stream of records was asked for")
        return reply.reader.records

    def _decode(self, decode: Callable[[bytes | bytearray], T], data: bytes | bytearray) -> T:
        try:
            return decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unavailable(f"{self._where} sent an answer that cannot be decoded: {error}") from error

    def _use(self) -> Client:
        if self._client is None:
            from clew.checkpointers.http.client import Client
            from clew.checkpointers.http.connections import Address

            address = Address(self._host, self._port, self._trust(), self._socket)
            self._client = Client(
                self._where,
                address,
                self._base,
                token=self._token,
                namespace=self._namespace,
                timeout=self._timeout,
                retries=self._retries,
            )
        return self._client

    def _trust(self) -> ssl.SSLContext | None:
        if self._scheme == "http":
            return None
        import ssl

        return self._tls or ssl.create_default_context()


def _parse(url: str) -> tuple[str, str, int, str, dict[str, str]]:
    """Parse a URL into scheme, host, port, base path and options. Raises `InvalidInput` if it is malformed, or has parts
    that it must not have, such as a password. The error does not show these parts, because they may be secret."""
    wanted = "Write http://host:port or https://host:port/base, with ?timeout=seconds if need be."
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidInput(f"the host or port in the URL of the HTTP store cannot be parsed. {wanted}") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            "the URL of the HTTP store holds a user or a password, and URLs end up in logs. "
            "Give the token as token=… or in CLEW_TOKEN."
        )
    check_no_at_in_path(parts, "the URL of the HTTP store", wanted)
    if parts.fragment:
        raise InvalidInput(f"the URL of the HTTP store must not have a fragment. {wanted}")
    options = given_options(parts.query, ("timeout", "socket"), "the URL of the HTTP store")
    if "socket" in options and (parts.scheme != "http" or not options["socket"].startswith("/")):
        raise InvalidInput("the option socket is the whole path of a unix socket: http://localhost?socket=/path")
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidInput(f"{without_password(url)} does not name a server. {wanted}")
    base = parts.path.rstrip("/")
    if not base.isascii() or not base.isprintable() or " " in base:
        raise InvalidInput(f"{without_password(url)}: the base path must be percent-encoded ASCII. {wanted}")
    if not host.isascii() or any(letter.isspace() for letter in host):
        raise InvalidInput(f"{without_password(url)}: the host must be ASCII. {wanted}")
    return parts.scheme, host, port or (443 if parts.scheme == "https" else 80), base, options


def _check_token(token: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InvalidInput(
            "the token for the HTTP store has characters that a token cannot have, such as spaces or line ends"
        )
    return token


def _path(thread_id: str) -> str:
    return f"/v1/threads/{encode_text(thread_id)}"
