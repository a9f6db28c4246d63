"""Makes requests to an OpenSearch cluster, repeats failed ones and explains errors. Also parses the URL of a store and
its options."""

from __future__ import annotations

import asyncio
import io
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec

from clew._runtime.aio import Calls
from clew.checkpointers.patience import TIMEOUT, Patience, timeout_seconds
from clew.checkpointers.urls import (
    check_no_at_in_path,
    count,
    given_options,
    is_loopback,
    number,
    truth,
    why_unparsed,
    without_password,
)
from clew.errors import ClewError, Corrupt, InvalidInput, MissingExtra, Unavailable, UsageError

if TYPE_CHECKING:
    from opensearchpy import AsyncOpenSearch

__all__ = ["Address", "Answer", "Engine", "Opening", "Options", "check_options", "parse_url"]


T = TypeVar("T")
Answer = dict[str, Any]
"""An answer of the cluster, decoded from JSON."""
Opening = Callable[["Engine"], Awaitable[None]]
"""A function that is called once, before the first request of a store. It creates missing indices and checks existing
ones."""

AT_ONCE = 32
"""The most requests that one checkpointer makes at the same time. Concurrent writes to a shard share one sync."""
_NEVER = 86_400.0
"""Seconds after which the OpenSearch client itself ends a request. It is so long because `Patience` ends a request much
earlier, if no bytes move."""
PAUSE = 0.2
"""Seconds to wait before a request is made a second and last time, because its connection broke or the cluster was too
busy."""

_BUSY = frozenset({408, 429, 502, 503, 504})
_GONE = "index_not_found_exception"


class Engine:
    """Makes requests to an OpenSearch cluster. All requests can safely be repeated, so a request is made a second time
    if its connection broke or the cluster was too busy.

    Answers with the statuses 404 and 409 are returned. Every other error is raised as a `ClewError`.
    """

    def __init__(self, address: Address, options: Options, client: AsyncOpenSearch | None, opening: Opening) -> None:
        try:
            import opensearchpy
        except ImportError:
            raise MissingExtra("the OpenSearch store", "opensearch") from None
        if not hasattr(opensearchpy, "AsyncOpenSearch"):  # installed without aiohttp
            raise MissingExtra("the OpenSearch store", "opensearch")
        if client is not None and not isinstance(client, opensearchpy.AsyncOpenSearch):
            raise InvalidInput(f"client is an opensearchpy.AsyncOpenSearch, not {type(client).__name__}")
        self._driver = opensearchpy
        self._address = address
        self._options = options
        self._patience = Patience(str(address), options.timeout)
        self._own = client is None
        self._client = client
        self._opening = opening
        self._opened = False
        self._door = asyncio.Lock()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._calls = Calls()
        self._asking = 0
        self._idle = asyncio.Event()
        self._closed = False

    async def get(self, index: str, key: str, fields: str) -> Answer | None:
        """Read these fields of a document, as they are after the last write to it, and return the cluster's answer,
        which has them under `_source`. `fields` are names separated by commas. Returns None if the document does not
        exist."""
        answer = await self.call("GET", f"/{index}/_doc/{quote(key)}", {**_PRIMARY, "_source_includes": fields})
        return answer if answer["found"] else None

    async def get_all(self, index: str, keys: Sequence[str], fields: str | None) -> list[Answer | None]:
        """Read several documents. Returns the cluster's answer for each, in the order of `keys`, and None for each that
        does not exist. `fields` are names separated by commas; an answer has these fields under `_source`. With None as
        `fields`, the answers only show which documents exist."""
        if not keys:
            return []
        source = {"_source": "false"} if fields is None else {"_source_includes": fields}
        answer = await self.call("POST", f"/{index}/_mget", {**_PRIMARY, **source}, {"ids": list(keys)})
        for document in answer["docs"]:
            if "error" in document:
                raise self.failed(document["error"], int(document.get("status", 503)))
        return [document if document["found"] else None for document in answer["docs"]]

    async def put(
        self, index: str, key: str, document: Mapping[str, Any], *, when: tuple[int, int] | str | None = None
    ) -> tuple[int, int] | None:
        """Write a document, and return its new state: sequence number and primary term. If `when` is a state, the
        document is written only if it is in that state; if it is `"absent"`, only if it does not exist; if it is None,
        always. Returns None if it was not written."""
        params: dict[str, Any] = {}
        if isinstance(when, tuple):
            params = {"if_seq_no": when[0], "if_primary_term": when[1]}
        elif when is not None:
            params = {"op_type": "create"}
        answer = await self.call("PUT", f"/{index}/_doc/{quote(key)}", params, document)
        return None if "error" in answer else (answer["_seq_no"], answer["_primary_term"])

    async def bulk(self, index: str, actions: Sequence[tuple[str, Mapping[str, Any], Any]]) -> list[Answer]:
        """Make several writes in one request. Each of `actions` has three values: a verb such as `delete`, its
        parameters, and the document to write or None. Each write is atomic, all together are not.

        Returns the cluster's result for each write, in order. A result may have the status 404 (no such document) or
        409 (conflict). Raises a `ClewError` if a write has any other error.
        """
        if not actions:
            return []
        lines: list[bytes] = []
        for action, what, document in actions:
            lines.append(_encode({action: what}))
            if document is not None:
                lines.append(_encode(document))
        answer = await self.call("POST", f"/{index}/_bulk", {}, b"\n".join([*lines, b""]))
        items = [next(iter(item.values())) for item in answer["items"]]
        for item in items:
            if "error" in item and (item["status"] not in (404, 409) or item["error"].get("type") == _GONE):
                raise self.failed(item["error"], item["status"])
        return items

    async def search(self, body: Answer, index: str | None = None) -> Answer:
        """Search an index and return the cluster's answer. Without an index, search the point in time (a frozen view of
        an index) that `body`, the search request, names. Never returns partial results: if a shard (a part of the
        index) does not answer, this raises a `ClewError`."""
        params = {"allow_partial_search_results": "false"}
        if index is None:
            return await self.call("POST", "/_search", params, body)
        return await self.call("POST", f"/{index}/_search", {**params, **_PRIMARY}, body)

    async def refresh(self, index: str) -> None:
        """Make everything that has been written to this index visible to searches. Costs almost nothing if nothing was
        written since the last call."""
        await self.call("POST", f"/{index}/_refresh")

    async def call(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        *,
        also: Collection[int] = (),
    ) -> Answer:
        """Open the store if it is not yet open (the first opening creates its indices), make this request, and return
        the answer. Answers with the statuses 404, 409 and those in `also` are returned; every other error is raised."""
        if not self._opened:
            await self._patience.limit(self._open())
        return await self.ask(method, path, params, body, also=also)

    async def _open(self) -> None:
        async with self._door:
            if not self._opened:
                await self._opening(self)
                self._opened = True

    async def ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        *,
        also: Collection[int] = (),
    ) -> Answer:
        """Make this request and return the answer. Answers with the statuses 404, 409 and those in `also` are returned;
        every other error is raised. Unlike `call`, this does not open the store first (check and create its indices),
        so that it can be used while the store is being opened."""
        data = body if body is None or isinstance(body, bytes) else _encode(body)
        self._asking += 1
        try:
            asking = self._in_turn(method, path, dict(params or {}), data, {404, 409, *also})
            answer = await self._patience.limit(asking)
        finally:
            self._asking -= 1
            if not self._asking:
                self._idle.set()
        error = answer.get("error")
        if isinstance(error, dict) and error.get("type") == _GONE:
            raise self.failed(error, 404)
        return answer

    async def _in_turn(
        self, method: str, path: str, params: dict[str, Any], data: bytes | None, answers: set[int]
    ) -> Answer:
        async with self._room:
            return await self._twice(method, path, params, data, answers)

    async def _twice(
        self, method: str, path: str, params: dict[str, Any], data: bytes | None, answers: set[int]
    ) -> Answer:
        errors = self._driver.exceptions
        try:
            return await self._once(method, path, params, data, answers)
        except errors.ConnectionTimeout as error:
            raise self._explain(error) from error
        except (errors.TransportError, errors.SerializationError, msgspec.DecodeError) as error:
            broken = isinstance(error, errors.ConnectionError) and not isinstance(error, errors.SSLError)
            if not broken and getattr(error, "status_code", None) not in _BUSY:
                raise self._explain(error) from error
        await asyncio.sleep(PAUSE)
        try:
            return await self._once(method, path, params, data, answers)
        except (errors.TransportError, errors.SerializationError, msgspec.DecodeError) as error:
            raise self._explain(error) from error

    async def _once(
        self, method: str, path: str, params: dict[str, Any], data: bytes | None, answers: set[int]
    ) -> Answer:
        patience = self._patience.part()
        with patience.uploading(len(data or b"")):
            answer = await patience.limit(
                self._connected().transport.perform_request(
                    method, path, params=dict(params), body=data, timeout=_NEVER, ignore=tuple(answers)
                )
            )
        if not isinstance(answer, dict):
            raise self._stranger()
        return answer

    def _connected(self) -> AsyncOpenSearch:
        if self._closed:
            raise UsageError(f"the OpenSearch checkpointer of {self._address} is closed.")
        if self._client is None:
            self._client = self._make()
        return self._client

    def _make(self) -> AsyncOpenSearch:
        address, options = self._address, self._options
        given: dict[str, Any] = {
            "hosts": [{"host": address.host, "port": address.port}],
            "serializer": _Json(),
            "max_retries": 0,
            "timeout": _NEVER,
            "pool_maxsize": AT_ONCE,
            "maxsize": AT_ONCE,
        }
        if address.username is not None:
            given["http_auth"] = (address.username, address.password or "")
        if options.tls:
            context = ssl.create_default_context(cafile=options.ca_file)
            if not options.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            given |= {"use_ssl": True, "ssl_context": context}
        return self._driver.AsyncOpenSearch(**given)

    def failed(self, error: Any, status: int) -> ClewError:
        """Return the `ClewError` for `error`, which the cluster reported with this HTTP status. Its text says what to
        do."""
        told = error if isinstance(error, dict) else {"type": str(error)}
        kind = told.get("type", "")
        if kind == _GONE:
            return Corrupt(
                f"{self._address}: the index {told.get('index', '')} no longer exists. Restore it from a snapshot; or open "
                "the checkpointer again, which creates an empty one."
            )
        if kind == "cluster_block_exception":
            hint = "it takes no writes, most likely because a disk is full; nothing stored was harmed. Make room"
        elif status == 401:
            hint = "it does not accept this user name and password; check them in the URL"
        elif status == 403:
            hint = f"this user lacks rights that the store needs on the indices {self._options.prefix}-*"
        elif status == 413:
            hint = (
                "it does not accept requests of this size; raise http.max_content_length to 100mb, which is its default"
            )
        elif status in (429, 503):
            hint = "it has no room or no shard for this just now; try again"
        else:
            hint = "try again"
        return Unavailable(f"{self._address}: {kind or 'no reason given'} (status {status}): {hint}.")

    def _explain(self, error: Exception) -> ClewError:
        errors = self._driver.exceptions
        if isinstance(error, errors.ConnectionTimeout):
            return Unavailable(f"{self._address}: no answer within {self._options.timeout:g} s; try again.")
        if isinstance(error, errors.SSLError) or isinstance(getattr(error, "info", None), ssl.SSLError):
            return Unavailable(
                f"{self._address}: TLS failed ({_network_error(error)}): check tls and ca_file in the URL."
            )
        if isinstance(error, errors.ConnectionError):
            return Unavailable(
                f"{self._address}: {_network_error(error)}: check that it runs and can be reached, then try again."
            )
        if isinstance(error, errors.TransportError):
            info = error.info if isinstance(error.info, dict) else {}
            return self.failed(info.get("error", error.error), int(error.status_code))
        return self._stranger()

    def _stranger(self) -> Unavailable:
        return Unavailable(
            f"{self._address}: the server that answers there is not an OpenSearch server. Check the host and the port."
        )

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this coroutine to its end even if the caller is cancelled, and return its result. `close` waits for the
        coroutine too."""
        return await self._calls.settle(self._patience.limit(work))

    async def close(self) -> None:
        await self._calls.drain()
        while self._asking:
            self._idle.clear()
            await self._idle.wait()
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._own:
            await client.close()


_PRIMARY = {"preference": "_primary"}
"""Parameters that make a read ask the primary shard, which has every write first. A replica may lack a write that
another reader has seen."""
_LARGE = 2**19
"""If a request's body has more than this many bytes, it is sent in several parts."""
_encode = msgspec.json.Encoder().encode


def _network_error(error: Exception) -> str:
    """Return the text of the network error that caused this error of the OpenSearch client, or the error's own text if
    it has no such cause."""
    inner = getattr(error, "info", None)
    return str(inner) or type(inner).__name__ if isinstance(inner, Exception) else str(error)


class _Json:
    """Passes request bodies to the OpenSearch client, and decodes answers from JSON. Request bodies are JSON as bytes
    already, so they are not encoded here. A body of more than 512 KiB becomes a file object, which the client sends in
    several parts, so that it does not block the event loop."""

    mimetype = "application/json"

    def dumps(self, data: bytes) -> bytes | io.BytesIO:
        return io.BytesIO(data) if len(data) > _LARGE else data

    def loads(self, text: str) -> Any:
        return msgspec.json.decode(text)


_KNOWN = ("ca_file", "index_messages", "replicas", "shards", "timeout", "tls", "verify")
_PREFIX = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_FORM = "Write opensearch://host:9200/index-prefix, with a password opensearch://user:password@host:9200?tls=true"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address and credentials of the cluster, or of a proxy in front of it. The text of this object never shows
    user and password."""

    host: str
    port: int = 9200
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"opensearch://{host}:{self.port}"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an OpenSearch store: how to connect, and how to create its indices."""

    prefix: str = "clew"
    tls: bool | None = None
    """Whether to use HTTPS. None means plain HTTP, but raises `InvalidInput` if a password would go over a network."""
    ca_file: str | None = None
    verify: bool = True
    timeout: float = TIMEOUT
    shards: int = 1
    replicas: int | None = None
    """The number of replicas of each index when it is created. None means one replica if there is a second node,
    otherwise none."""
    index_messages: bool = False


def parse_url(url: str) -> tuple[Address, Options]:
    """Parse the URL of an OpenSearch store into its address and its options. Raises `InvalidInput`, with the reason, if
    it is wrong. The error never shows the password."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"{shown}: {why_unparsed(error)}. {_FORM}") from None
    if parts.scheme != "opensearch" or not url.startswith("opensearch://"):
        raise InvalidInput(f"{shown} is not an OpenSearch URL. {_FORM}")
    if not parts.hostname:
        raise InvalidInput(f"{shown} does not name a host. {_FORM}")
    check_no_at_in_path(parts, "an OpenSearch URL", _FORM)
    if parts.fragment:
        raise InvalidInput(f"{shown}: a # in a password is written %23. {_FORM}")
    given = given_options(parts.query, _KNOWN, shown)
    address = Address(
        host=parts.hostname,
        port=9200 if port is None else port,
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )
    options = Options(
        prefix=parts.path.strip("/") or "clew",
        tls=truth(given, "tls", shown) if "tls" in given else None,
        ca_file=given.get("ca_file"),
        verify=truth(given, "verify", shown) if "verify" in given else True,
        timeout=number(given, "timeout", shown) if "timeout" in given else TIMEOUT,
        shards=count(given, "shards", shown) if "shards" in given else 1,
        replicas=count(given, "replicas", shown) if "replicas" in given else None,
        index_messages="index_messages" in given and truth(given, "index_messages", shown),
    )
    return address, options


def check_options(address: Address, options: Options) -> None:
    """Raise `InvalidInput` if an option has a value that cannot work, or if a password would go over a network without
    TLS. An explicit `tls=False` permits that."""
    if not _PREFIX.fullmatch(options.prefix):
        raise InvalidInput(
            f"{options.prefix[:120]!r} cannot be a prefix of index names. Use up to 100 lower-case letters, digits "
            "and . _ - that start with a letter or a digit."
        )
    timeout_seconds(options.timeout)
    if not 1 <= options.shards <= 1024:
        raise InvalidInput(f"an index has 1 to 1024 shards, not {options.shards}")
    if options.replicas is not None and not 0 <= options.replicas <= 100:
        raise InvalidInput(f"an index has 0 to 100 replicas, not {options.replicas}")
    if address.password is not None and options.tls is None and not is_loopback(address.host):
        raise InvalidInput(
            f"{address}: a password would go over the network in the clear. Add tls=true to the URL; or tls=false, "
            "if nobody else can listen there."
        )
    if not options.tls and (options.ca_file is not None or not options.verify):
        raise InvalidInput(f"{address}: ca_file and verify are for TLS. Add tls=true to the URL.")
    if options.ca_file is not None and not Path(options.ca_file).exists():
        raise InvalidInput(f"{address}: there is no ca_file {options.ca_file!r}")
