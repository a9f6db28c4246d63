"""The driver for buckets on S3, Google Cloud Storage and Azure, through the package obstore.

obstore makes requests on OS threads of its own. Two things follow from that:

- Such an OS thread still needs the interpreter for a moment after it has handed over a result. If the interpreter ends
  in that moment, the process is aborted. So every future that comes from obstore is remembered for as long as obstore
  holds it, and a process that ends waits until obstore holds none, at most two seconds.
- A forked child process does not have these OS threads, so a request there would never end. It raises `UsageError`
  instead.
"""

from __future__ import annotations

import atexit
import re
import time
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from clew._runtime import forks
from clew.checkpointers.objects.bucket import Found, Listed, Refused, Tag, Transient, progress
from clew.checkpointers.urls import is_loopback
from clew.errors import InvalidInput, MissingExtra, Unavailable, UsageError

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

__all__ = ["ObstoreBucket", "open_obstore", "plain_http"]

T = TypeVar("T")

NEVER = timedelta(days=1)
"""The time after which obstore itself ends a request. It is so long because the checkpointer ends a request itself,
much earlier, if no bytes move."""
CONNECT_TIMEOUT = timedelta(seconds=5)
LEAVE_WITHIN = 2.0
"""The most seconds for which a process that ends waits for obstore's threads."""
PIECE = 2**20
"""Objects of more bytes than this are read in pieces, so that progress shows."""
PAGE = 1000

_NEVER = datetime.min.replace(tzinfo=UTC)
_METADATA = ("169.254.", "metadata.google.internal", "/computeMetadata/")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z -]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_AGAIN = ("408", "425", "429", "5")


def open_obstore(scheme: str, bucket: str, where: str, config: Mapping[str, Any], allow_http: bool) -> ObstoreBucket:
    """Open a bucket through the package obstore. `scheme` is s3, gs or az; `config` is passed to obstore; `where` names
    the bucket in errors; `allow_http` permits requests over plain http. Credentials that are not in `config` are looked
    up by obstore: in the environment, the machine's metadata service, or a credential provider. Raises `InvalidInput`
    if obstore refuses the options."""
    try:
        from obstore import exceptions, store
    except ImportError as error:
        raise MissingExtra("the object storage store", "s3") from error
    client = {"timeout": NEVER, "connect_timeout": CONNECT_TIMEOUT, "allow_http": allow_http}
    given: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}, **config}
    kinds: dict[str, Any] = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
    if scheme == "s3":
        given.setdefault("conditional_put", "etag")
    try:
        return ObstoreBucket(kinds[scheme](bucket, **given), where)
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"{where} cannot be opened with these options ({', '.join(sorted(config)) or 'none'}): "
            f"{type(error).__name__}. See obstore's documentation for what {kinds[scheme].__name__} takes."
        ) from None


def plain_http(endpoint: str | None, allowed: bool | None) -> bool:
    """Return True if requests are to be allowed over plain http, and False if they must use https. Without an endpoint,
    the result is True if `allowed` is True. With an endpoint, it is True if the endpoint's address starts with
    `http://`.

    Raises `InvalidInput` if the endpoint is plain http on another machine and `allowed` is not True. Also raises it if
    the endpoint is not an http or https address, or has a password in it.
    """
    if endpoint is None:
        return bool(allowed)
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InvalidInput("the endpoint of an object store is an http:// or https:// address, without a password")
    if parts.scheme == "http" and not allowed and not is_loopback(parts.hostname):
        raise InvalidInput(
            f"the endpoint on {parts.hostname} is plain http: keys and data would cross the network in the clear. "
            "Use https, or pass allow_http=True."
        )
    return parts.scheme == "http"


_held: weakref.WeakSet[Awaitable[Any]] = weakref.WeakSet()
"""The futures that a thread of obstore may still hold."""
_threads_of: int | None = None
"""The value of `forks.generation` in the process that made the first request and so has obstore's OS threads. A forked
child has another value, and none of these threads. None before the first request."""


async def _settled(future: Awaitable[T]) -> T:
    """Wait for a future of obstore, the library that makes the requests, and return its result. The future is
    remembered for as long as obstore holds it: the process must not end before that, because an OS thread of obstore
    still needs the interpreter."""
    global _threads_of
    if _threads_of is None:
        _threads_of = forks.generation
    _held.add(future)
    try:
        return await future
    finally:
        del future  # otherwise the traceback of an error would keep the future alive


async def _each(stream: AsyncIterable[T]) -> AsyncIterator[T]:
    """Yield the items of a stream of obstore, the library that makes the requests. Each pending item is remembered, so
    that a process that ends first waits, at most two seconds, until no OS thread of obstore needs the interpreter."""
    items = aiter(stream)
    while True:
        try:
            item = await _settled(anext(items))
        except StopAsyncIteration:
            return
        yield item


def _check_process(where: str) -> None:
    """Raise `UsageError` in a forked child of a process that has made requests with obstore. The child does not have
    the OS threads that obstore uses, so a request there would never end."""
    if _threads_of not in (None, forks.generation):
        raise UsageError(
            f"{where} cannot be used in this process: it is a forked child, and its parent has already used object "
            "storage, whose threads do not exist here. Start the child with the method 'spawn', or fork before first use."
        )


def _leave() -> None:
    """Wait until no OS thread of obstore, the package that talks to the clouds, needs the Python interpreter any more,
    but at most two seconds. Otherwise the process could be aborted. Called when the process ends."""
    if _threads_of != forks.generation:
        return
    from obstore.store import MemoryStore

    deadline = time.monotonic() + LEAVE_WITHIN
    while _held and time.monotonic() < deadline:
        time.sleep(0.001)
        MemoryStore()  # any call of obstore: it releases what its threads let go of without the interpreter's lock


atexit.register(_leave)


class ObstoreBucket:
    """A bucket that is reached through the package obstore. Its errors show only the status and code of an answer,
    because obstore's own errors may contain keys, account names and signatures."""

    def __init__(self, store: ObjectStore, where: str) -> None:
        import obstore
        from obstore import exceptions

        _check_process(where)
        self._obstore = obstore  # its functions return futures; the methods of a store wrap them in coroutines
        self._store = store
        self._where = where
        self._conditions = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
        self._denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        self._unsupported = exceptions.NotSupportedError
        self._error = exceptions.BaseError

    async def get(self, key: str, start: int = 0, size: int | None = None) -> Found | None:
        try:
            if size is None:
                answer = await _settled(self._obstore.get_async(self._store, key))
            else:
                answer = await _settled(
                    self._obstore.get_async(self._store, key, options={"range": (start, start + size)})
                )
            data = await _content(answer)
        except FileNotFoundError as error:
            self._check_bucket(error)
            return None
        except (self._error, OSError) as error:
            if size is not None and "status code: 416" in str(error):
                return Found(b"", Tag(""), _NEVER)  # the object ends before the requested part begins
            raise self._explain(error) from None
        meta = answer.meta
        return Found(data, Tag(meta["e_tag"] or "", meta["version"]), meta["last_modified"])

    async def put(self, key: str, data: bytes, when: Tag | Literal["absent"] | None = None) -> Tag:
        mode: Any = "overwrite" if when is None else "create" if when == "absent" else _update(when)
        try:
            answer = await _settled(self._obstore.put_async(self._store, key, data, mode=mode, use_multipart=False))
        except self._conditions:
            raise Refused from None
        except FileNotFoundError as error:
            self._check_bucket(error)
            raise Refused from None
        except self._unsupported:
            raise self._lacking_conditions() from None
        except (self._error, OSError) as error:
            raise self._explain(error) from None
        if answer["e_tag"] is None and answer["version"] is None:
            raise self._lacking_conditions()
        return Tag(answer["e_tag"] or "", answer["version"])

    async def delete(self, keys: Sequence[str]) -> None:
        try:
            await _settled(self._obstore.delete_async(self._store, keys if len(keys) > 1 else keys[0]))
        except FileNotFoundError as error:
            self._check_bucket(error)
            if len(keys) > 1:
                for key in keys:
                    await self.delete([key])
        except (self._error, OSError) as error:
            raise self._explain(error) from None

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        try:
            async for chunk in _each(self._store.list(prefix, offset=after or None, chunk_size=PAGE)):
                yield [Listed(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"]) for meta in chunk]
        except FileNotFoundError as error:
            self._check_bucket(error)
        except (self._error, OSError) as error:
            raise self._explain(error) from None

    async def close(self) -> None:
        """Do nothing: obstore closes its own connections."""

    def _check_bucket(self, error: Exception) -> None:
        """Raise `Unavailable` if this "not found" error means that the bucket does not exist. Does nothing if only an
        object does not exist."""
        if any(code in str(error) for code in _NO_BUCKET):
            raise Unavailable(f"{self._where}: there is no such bucket. Make it, or correct the name.") from None

    def _lacking_conditions(self) -> InvalidInput:
        return InvalidInput(
            f"{self._where} does not support conditional puts, which Clew needs. Use another object storage."
        )

    def _explain(self, error: Exception) -> Exception:
        text = str(error)
        status, code = _STATUS.search(text), _CODE.search(text)
        said = ", ".join(part[1].strip() for part in (status, code) if part) or "no answer"
        if any(host in text for host in _METADATA):
            return Unavailable(
                f"{self._where}: no credentials were given or found in the environment, and no metadata service of this "
                "machine gives any. Set them in the environment, or pass them when you construct the checkpointer."
            )
        if isinstance(error, self._denied):
            return Unavailable(
                f"{self._where} refuses access ({said}). Check the credentials, and that they may read, write, list "
                "and delete there."
            )
        if status and not status[1].startswith(_AGAIN):
            return Unavailable(f"{self._where} refuses a request ({said}). Check the address, region and credentials.")
        return Transient(said)


async def _content(answer: GetResult) -> bytes:
    start, end = answer.range
    if end - start <= PIECE:
        return (await _settled(answer.bytes_async())).to_bytes()
    moved = progress()
    pieces = []
    async for piece in _each(answer.stream(min_chunk_size=PIECE)):
        pieces.append(bytes(piece))
        moved()
    return b"".join(pieces)


def _update(tag: Tag) -> dict[str, str]:
    return {name: value for name, value in (("e_tag", tag.etag), ("version", tag.version)) if value}
