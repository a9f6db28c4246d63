"""The store for OCI Object Storage, through Oracle's SDK. Objects have the same format as in every other bucket."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeVar, get_args

from clew._runtime.aio import WorkerPool, together
from clew.checkpointers.objects.base import BucketCheckpointer
from clew.checkpointers.objects.bucket import AT_ONCE, Found, Listed, Refused, Tag, Transient, progress
from clew.checkpointers.objects.clouds import plain_http
from clew.checkpointers.objects.store import check_prefix, parse_url
from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.errors import InvalidInput, MissingExtra, Unavailable

__all__ = ["OCICheckpointer"]

T = TypeVar("T")
Auth = Literal["config", "instance", "resource"]

WORKERS = AT_ONCE
"""The number of OS threads that wait for answers, because Oracle's SDK blocks: one for each request that is made at the
same time."""
CONNECT_TIMEOUT = 5.0
PAGE = 1000
PIECE = 2**20
"""Objects are read in pieces of this many bytes, so that progress shows."""
_FIELDS = "name,size,etag,timeModified"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")
_NEVER = datetime.min.replace(tzinfo=UTC)


class OCICheckpointer(BucketCheckpointer):
    """A store in a bucket of OCI Object Storage. The URL is `oci://namespace/bucket/prefix`.

    The namespace in the URL is the tenancy's Object Storage namespace; the argument `namespace` is Clew's own, which
    keeps the threads of several users of one store apart. `auth` selects the credentials: `config` takes them from a
    profile of the SDK's configuration file; `instance` and `resource` use the principal that OCI gives to the machine
    or the function in which this runs. Alternatively pass a configured `ObjectStorageClient` as `client`. A call
    without progress for `timeout` seconds, 10 by default, raises `Unavailable`. The progress of an upload cannot be
    seen, so it gets one more second for each MiB.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        auth: Auth = "config",
        profile: str = "DEFAULT",
        config_file: str = "~/.oci/config",
        region: str | None = None,
        endpoint: str | None = None,
        timeout: float | None = None,
        client: Any = None,
    ) -> None:
        try:
            import oci
        except ImportError as error:
            raise MissingExtra("the OCI store", "oci") from error
        if auth not in get_args(Auth):
            raise InvalidInput(f"auth is one of {', '.join(get_args(Auth))}, not {auth!r}")
        plain_http(endpoint, allowed=False)
        tenancy, bucket, prefix = _address(url)
        where = f"oci://{tenancy}/{bucket}" + (f" at {endpoint}" if endpoint else "")
        seconds = timeout_seconds(TIMEOUT if timeout is None else timeout)

        def connect() -> Any:
            return client or _client(oci, where, auth, profile, config_file, region, endpoint, seconds)

        super().__init__(_OCIBucket(oci, connect, tenancy, bucket, where), where, prefix, namespace, timeout=seconds)

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> OCICheckpointer:
        """Open the bucket that the URL names, for example
        `oci://namespace/bucket/prefix?auth=instance&region=eu-frankfurt-1`. Further options are `profile`,
        `config_file`, `endpoint` and `timeout`. The namespace in the URL is Oracle's name for the tenancy's storage; the
        argument `namespace` is Clew's own, which keeps the threads of several users of one store apart."""
        address, options = parse_url(
            url, {"auth", "profile", "config_file", "region", "endpoint", "timeout"}, {"key", "pass_phrase"}
        )
        return cls(address, namespace, **options)  # type: ignore[arg-type]  # auth is checked there


class _OCIBucket:
    """A bucket that is reached through the `ObjectStorageClient` of Oracle's SDK. The client's calls block, so they run
    on OS threads of a worker pool."""

    def __init__(self, oci: Any, connect: Callable[[], Any], tenancy: str, bucket: str, where: str) -> None:
        self._oci = oci
        self._connect = connect
        self._address = tenancy, bucket
        self._where = where
        self._client: Any = None
        self._connecting = threading.Lock()
        self._pool: WorkerPool | None = None

    async def get(self, key: str, start: int = 0, size: int | None = None) -> Found | None:
        part = {} if size is None else {"range": f"bytes={start}-{start + size - 1}"}
        loop, moved = asyncio.get_running_loop(), progress()

        def read(content: Any) -> bytes:
            pieces = []
            for piece in content.iter_content(PIECE):
                pieces.append(piece)
                if len(piece) == PIECE:
                    loop.call_soon_threadsafe(moved)
            return b"".join(pieces)

        def work(client: Any) -> Found | None:
            try:
                answer = client.get_object(*self._address, key, **part)
                return Found(read(answer.data), Tag(answer.headers["etag"]), _moment(answer.headers))
            except self._oci.exceptions.ServiceError as error:
                if _is_absent(error):
                    return None
                if error.status == 416:
                    return Found(b"", Tag(""), _NEVER)  # the object ends before the requested part begins
                raise

        return await self._run(work)

    async def put(self, key: str, data: bytes, when: Tag | Literal["absent"] | None = None) -> Tag:
        condition = {} if when is None else {"if_none_match": "*"} if when == "absent" else {"if_match": when.etag}

        def work(client: Any) -> Tag:
            try:
                return Tag(client.put_object(*self._address, key, data, **condition).headers["etag"])
            except self._oci.exceptions.ServiceError as error:
                if error.status in (409, 412) or _is_absent(error):
                    raise Refused from None
                raise

        return await self._run(work)

    async def delete(self, keys: Sequence[str]) -> None:
        await together([self._delete(key) for key in keys])

    async def _delete(self, key: str) -> None:
        def work(client: Any) -> None:
            try:
                client.delete_object(*self._address, key)
            except self._oci.exceptions.ServiceError as error:
                if not _is_absent(error):
                    raise

        await self._run(work)
        progress()()

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        following: dict[str, str] | None = {"start_after": after} if after else {}
        while following is not None:
            page = await self._run(self._page(prefix, following))
            yield [Listed(found.name, found.size, found.etag, found.time_modified) for found in page.objects]
            following = {"start": page.next_start_with} if page.next_start_with else None

    def _page(self, prefix: str, start: dict[str, str]) -> Callable[[Any], Any]:
        given = {"prefix": f"{prefix}/", "fields": _FIELDS, "limit": PAGE, **start}
        return lambda client: client.list_objects(*self._address, **given).data

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await asyncio.to_thread(pool.stop)

    async def _run(self, work: Callable[[Any], T]) -> T:
        exceptions = self._oci.exceptions

        def explained(_: None) -> T:
            try:
                return work(self._connected())
            except exceptions.ServiceError as error:
                raise self._explain(error) from None
            except (exceptions.BaseRequestException, exceptions.BaseConnectTimeout, OSError) as error:
                raise Transient(f"no answer: {type(error).__name__}") from None

        if self._pool is None:
            self._pool = WorkerPool("clew-oci", WORKERS, lambda: None, lambda _: None)
        running = asyncio.ensure_future(self._pool.run(explained, asyncio.get_running_loop()))
        running.add_done_callback(_forget)
        return await asyncio.shield(running)  # an OS thread cannot be cancelled: it goes on without the caller

    def _connected(self) -> Any:
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _explain(self, error: Any) -> Exception:
        """Turn an error of the service into `Transient` (a retry can help) or `Unavailable`, and return it. Its text
        has only the status and code of the service's error."""
        said = f"{error.status}, {error.code}"
        if error.status in (408, 409, 429) or error.status >= 500:
            return Transient(said)
        return Unavailable(
            f"{self._where} refuses a request ({said}). Check that the bucket exists, and that the policies let this user "
            "or principal read, write, list and delete objects in it."
        )


def _client(
    oci: Any,
    where: str,
    auth: Auth,
    profile: str,
    config_file: str,
    region: str | None,
    endpoint: str | None,
    timeout: float,
) -> Any:
    """Make a client of Oracle's SDK, whose module is `oci`. The client's retries and circuit breaker are off, because
    the checkpointer retries by itself. Raises `InvalidInput` if the credentials cannot be used.

    `auth` selects the credentials; `profile` and `config_file` are used only if it is `config`. `region` and
    `endpoint`, if given, replace the SDK's defaults. `timeout` is how many seconds to wait for the next bytes of an
    answer. `where` names the bucket in errors.
    """
    given: dict[str, Any] = {
        "timeout": (min(CONNECT_TIMEOUT, timeout), timeout),
        "retry_strategy": oci.retry.NoneRetryStrategy(),
        "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
    }
    if endpoint is not None:
        given["service_endpoint"] = endpoint
    config: dict[str, Any] = {}
    try:
        if auth == "config":
            config = oci.config.from_file(config_file, profile)
        elif auth == "instance":
            given["signer"] = oci.auth.signers.InstancePrincipalsSecurityTokenSigner()
        else:
            given["signer"] = oci.auth.signers.get_resource_principals_signer()
        if region is not None:
            config["region"] = region
        return oci.object_storage.ObjectStorageClient(config, **given)
    except (oci.exceptions.ClientError, ValueError, OSError) as error:
        raise InvalidInput(
            f"{where}: cannot sign requests with auth={auth!r} ({type(error).__name__}). Use auth=config with a profile of "
            "the SDK's configuration file, or auth=instance or auth=resource where OCI gives the machine a principal."
        ) from None


def _forget(running: asyncio.Future[Any]) -> None:
    if not running.cancelled():
        running.exception()  # otherwise asyncio logs that this error was never retrieved


def _is_absent(error: Any) -> bool:
    """Return whether this error of the service means that the object does not exist. For a missing bucket or permission
    the service returns the same status, but another code; then this returns False."""
    return bool(error.status == 404 and error.code == "ObjectNotFound")


def _moment(headers: Any) -> datetime:
    return parsedate_to_datetime(headers["last-modified"])


def _address(url: str) -> tuple[str, str, str]:
    scheme, _, path = url.partition("://")
    tenancy, _, rest = path.partition("/")
    bucket, _, prefix = rest.partition("/")
    if scheme != "oci" or not _NAME.fullmatch(tenancy) or not _NAME.fullmatch(bucket):
        raise InvalidInput(
            "this URL does not name a bucket of OCI. Write oci://namespace/bucket/prefix: the namespace of your tenancy's "
            "Object Storage, then the bucket."
        )
    return tenancy, bucket, check_prefix(prefix)
