"""Checkpointers with the names and the methods that they have in Locus, another agent library. Each keeps its data in a
store of Clew."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from clew import checkpointers
from clew.compat.locus.memory.checkpointer import BaseCheckpointer
from clew.compat.locus.refusal import refuse
from clew.errors import InvalidInput, Unavailable

__all__ = [
    "FileCheckpointer",
    "HTTPCheckpointer",
    "MemoryCheckpointer",
    "OCIBucketBackend",
    "StorageBackendAdapter",
    "mysql_checkpointer",
    "oci_bucket_checkpointer",
    "opensearch_checkpointer",
    "oracle_checkpointer",
    "postgresql_checkpointer",
    "redis_checkpointer",
    "s3_checkpointer",
    "sqlite_checkpointer",
]

_TABLES = "Clew has tables of its own, in a schema of their own"
_POOL = "one number limits the connections, connections=, and none is kept open without need"
_IMPORT = "To bring the conversations along: clew import --from locus PATH --to URL"


class MemoryCheckpointer(BaseCheckpointer):
    """Keeps threads in the memory of this process, for tests and notebooks. They are lost when the process ends."""

    def __init__(self) -> None:
        super().__init__(checkpointers.MemoryCheckpointer())


class FileCheckpointer(BaseCheckpointer):
    """Keeps threads in a folder, one file a thread. A save appends to the file only what is new, whereas Locus itself
    writes the whole conversation into a new file."""

    def __init__(self, base_dir: str | os.PathLike[str] = ".clew_checkpoints", **others: Any) -> None:
        refuse(
            "FileCheckpointer",
            others,
            ["base_dir"],
            {
                "pretty": "the files hold compressed, checked records. For JSON: clew show THREAD --json",
                "max_checkpoints_per_thread": "a checkpoint adds what is new, so that keeping all costs no more than one",
            },
        )
        folder = Path(base_dir)
        if kept := next(folder.glob("*/*.json"), None):
            raise InvalidInput(
                f"{folder} holds checkpoints of Locus, such as {kept.name}. Choose another folder. {_IMPORT}"
            )
        super().__init__(checkpointers.FileCheckpointer(folder))
        self.base_dir = folder


class HTTPCheckpointer(BaseCheckpointer):
    """Keeps threads in the store of a machine that runs `clew serve`.

    The token may be in `headers`, as `{"Authorization": "Bearer TOKEN"}`; without one it is that of the environment
    variable `CLEW_TOKEN`. A request without progress for `timeout` seconds raises `Unavailable`.
    """

    def __init__(
        self, base_url: str, headers: Mapping[str, str] | None = None, auth: Any = None, timeout: float = 30.0
    ) -> None:
        if auth is not None:
            raise InvalidInput(
                "auth= is not taken: clew serve knows clients by tokens. Give headers={'Authorization': 'Bearer TOKEN'}"
            )
        token: str | None = None
        for name, value in (headers or {}).items():
            kind, _, given = value.partition(" ")
            if name.lower() != "authorization" or kind.lower() != "bearer" or not given.strip():
                raise InvalidInput(
                    f"headers: {name} is not sent. The only header that is taken is Authorization, with Bearer and a token."
                )
            token = given.strip()
        super().__init__(checkpointers.HTTPCheckpointer(base_url, token=token, timeout=timeout))
        self.base_url = base_url.rstrip("/")

    async def health_check(self) -> bool:
        """Return whether the server answers. Raises `UsageError` if the server refuses the token."""
        try:
            await self.store.head("health")
        except Unavailable:
            return False
        return True


_AUTH = {"api_key": "config", "instance_principal": "instance", "resource_principal": "resource"}


class OCIBucketBackend(BaseCheckpointer):
    """Keeps threads in a bucket of OCI Object Storage, which must exist. It needs the extra `oci`.

    `namespace` is the tenancy's Object Storage namespace, and the names of all objects begin with `prefix`. Do not let
    a lifecycle rule of the bucket delete these objects; the method `vacuum` deletes old threads.
    """

    def __init__(
        self,
        bucket_name: str,
        namespace: str,
        prefix: str = "clew",
        profile_name: str = "DEFAULT",
        auth_type: str = "api_key",
        region: str | None = None,
        config_file: str = "~/.oci/config",
        endpoint: str | None = None,
        client: Any = None,
        **others: Any,
    ) -> None:
        refuse(
            "OCIBucketBackend",
            others,
            ["bucket_name", "namespace", "prefix", "profile_name", "auth_type", "region", "config_file", "endpoint"],
            {"compartment_id": "Clew makes no buckets. Make it first: oci os bucket create"},
        )
        if auth_type not in _AUTH and client is None:
            raise InvalidInput(
                f"auth_type is one of {', '.join(_AUTH)}, not {auth_type!r}. For security tokens give "
                "client=ObjectStorageClient(…) with your own signer."
            )
        place = "/".join(quote(part, safe="/") for part in (namespace, bucket_name, prefix.strip("/")) if part)
        store = checkpointers.OCICheckpointer(
            f"oci://{place}",
            auth=_AUTH.get(auth_type, "config"),  # type: ignore[arg-type]  # one of the three
            profile=profile_name,
            config_file=config_file,
            region=region,
            endpoint=endpoint,
            client=client,
        )
        super().__init__(store)


class StorageBackendAdapter(BaseCheckpointer):
    """A checkpointer that keeps its data in a store of Clew. Functions such as `sqlite_checkpointer` return one. The
    name is that of a class of Locus, which turns a storage backend into a checkpointer; here there are no backends."""


class _Expiring(StorageBackendAdapter):
    """A checkpointer whose store deletes each thread by itself, a fixed time after the thread's last change."""

    expires = True


def oci_bucket_checkpointer(bucket_name: str, namespace: str, prefix: str = "clew", **options: Any) -> OCIBucketBackend:
    """Return a checkpointer that keeps threads in a bucket of OCI Object Storage, under names that begin with `prefix`.
    `namespace` is the tenancy's Object Storage namespace. `options` are further arguments of `OCIBucketBackend`."""
    return OCIBucketBackend(bucket_name, namespace, prefix, **options)


def redis_checkpointer(
    url: str = "redis://localhost:6379",
    prefix: str = "clew:",
    *,
    ttl_seconds: float | None = None,
    db: int | None = None,
    **others: Any,
) -> BaseCheckpointer:
    """Return a checkpointer that keeps threads in Redis or Valkey at `url`, under keys that begin with `prefix`. With
    `ttl_seconds` a thread is deleted so many seconds after its last change. Needs the extra `redis`. Any argument in
    `others` raises `InvalidInput`."""
    refuse("redis_checkpointer", others, ["url", "prefix", "ttl_seconds", "db"], {})
    if db is not None:
        parts = urlsplit(url)
        if parts.path.strip("/") not in ("", str(db)):
            raise InvalidInput(f"db={db} and the number in the URL are two databases. Give one of them.")
        url = parts._replace(path=f"/{db}").geturl()
    store = checkpointers.RedisCheckpointer(url, prefix=prefix, ttl=ttl_seconds)
    return StorageBackendAdapter(store) if ttl_seconds is None else _Expiring(store)


def postgresql_checkpointer(
    host: str = "localhost",
    port: int = 5432,
    database: str = "locus",
    user: str = "postgres",
    password: str = "",
    dsn: str | None = None,
    *,
    schema_name: str | None = None,
    max_pool_size: int | None = None,
    **others: Any,
) -> BaseCheckpointer:
    """Return a checkpointer that keeps threads in PostgreSQL, at `dsn` or else on the given host. The tables are made
    in the schema `schema_name`, by default `clew`. `max_pool_size` is the most connections. Needs the extra `postgres`.
    Any argument in `others` raises `InvalidInput`."""
    refuse(
        "postgresql_checkpointer",
        others,
        ["host", "port", "database", "user", "password", "dsn", "schema_name", "max_pool_size"],
        {"table_name": _TABLES, "min_pool_size": _POOL},
    )
    url = dsn or f"postgresql://{_login(user, password)}{host}:{port}/{quote(database, safe='')}"
    return StorageBackendAdapter(checkpointers.PostgresCheckpointer(url, schema=schema_name, connections=max_pool_size))


def mysql_checkpointer(
    host: str = "localhost",
    port: int = 3306,
    database: str = "locus",
    user: str = "root",
    password: str = "",
    dsn: str | None = None,
    *,
    max_pool_size: int | None = None,
    **others: Any,
) -> BaseCheckpointer:
    """Return a checkpointer that keeps threads in MySQL or MariaDB, at `dsn` or else on the given host. `max_pool_size`
    is the most connections. Needs the extra `mysql`. Any argument in `others` raises `InvalidInput`."""
    refuse(
        "mysql_checkpointer",
        others,
        ["host", "port", "database", "user", "password", "dsn", "max_pool_size"],
        {"table_name": _TABLES, "min_pool_size": _POOL},
    )
    url = dsn or f"mysql://{_login(user, password)}{host}:{port}/{quote(database, safe='')}"
    return StorageBackendAdapter(checkpointers.MySQLCheckpointer(url, connections=max_pool_size))


def sqlite_checkpointer(path: str | os.PathLike[str] = "clew_checkpoints.db", **others: Any) -> BaseCheckpointer:
    """Return a checkpointer that keeps threads in one SQLite file, which several processes of this machine may use. Any
    argument in `others` raises `InvalidInput`."""
    refuse("sqlite_checkpointer", others, ["path"], {"table_name": _TABLES})
    return StorageBackendAdapter(checkpointers.SQLiteCheckpointer(Path(path)))


def opensearch_checkpointer(
    hosts: Sequence[str] | None = None,
    index_name: str = "clew",
    *,
    username: str | None = None,
    password: str | None = None,
    use_ssl: bool = True,
    verify_certs: bool = True,
    ca_certs: str | None = None,
    **others: Any,
) -> BaseCheckpointer:
    """Return a checkpointer that keeps threads in OpenSearch, in three indices whose names begin with `index_name`.
    `hosts` is a list with one host. Needs the extra `opensearch`. Any argument in `others` raises `InvalidInput`."""
    refuse(
        "opensearch_checkpointer",
        others,
        ["hosts", "index_name", "username", "password", "use_ssl", "verify_certs", "ca_certs"],
        {},
    )
    found = ["localhost:9200"] if hosts is None else list(hosts)
    if isinstance(hosts, str) or len(found) != 1:
        raise InvalidInput(
            "hosts is a list with one host, such as ['localhost:9200']. For several give the store a client of your own: "
            "Agent(checkpointer=clew.checkpointers.OpenSearchCheckpointer(url, client=AsyncOpenSearch(…)))"
        )
    host = found[0].rpartition("://")[2].rstrip("/")
    store = checkpointers.OpenSearchCheckpointer(
        f"opensearch://{_login(username, password)}{host}/{index_name}",
        tls=use_ssl,
        verify=verify_certs if use_ssl else None,
        ca_file=ca_certs,
    )
    return StorageBackendAdapter(store)


def oracle_checkpointer(
    dsn: str | None = None,
    user: str = "admin",
    password: str = "",
    *,
    wallet_location: str | None = None,
    wallet_password: str | None = None,
    config_dir: str | None = None,
    **others: Any,
) -> BaseCheckpointer:
    """Return a checkpointer that keeps threads in an Oracle Database. `dsn` is `host:port/service`, or an alias of the
    `tnsnames.ora` in `config_dir`. Needs the extra `oracle`. Any argument in `others` raises `InvalidInput`. This has
    not been tested with a live Oracle Database."""
    refuse(
        "oracle_checkpointer",
        others,
        ["dsn", "user", "password", "wallet_location", "wallet_password", "config_dir"],
        {"table_name": _TABLES},
    )
    if not dsn:
        raise InvalidInput(
            "oracle_checkpointer: give the database: dsn='host:1521/service', or an alias with config_dir=…"
        )
    given = {"wallet_location": wallet_location, "wallet_password": wallet_password, "config_dir": config_dir}
    options = [f"{name}={quote(value, safe='')}" for name, value in given.items() if value is not None]
    host, slash, _ = dsn.partition("/")
    place = dsn if slash and "(" not in host else "/"
    if place == "/":
        options.insert(0, f"dsn={quote(dsn, safe='')}")
    query = f"?{'&'.join(options)}" if options else ""
    return StorageBackendAdapter(checkpointers.OracleCheckpointer(f"oracle://{_login(user, password)}{place}{query}"))


def s3_checkpointer(
    bucket: str, prefix: str = "clew", *, endpoint_url: str | None = None, region: str | None = None, **others: Any
) -> BaseCheckpointer:
    """Return a checkpointer that keeps threads in a bucket of S3, or of a server that speaks S3, under names that begin
    with `prefix`. Credentials come from the environment. Needs the extra `s3`. Any argument in `others` raises
    `InvalidInput`."""
    refuse(
        "s3_checkpointer",
        others,
        ["bucket", "prefix", "endpoint_url", "region"],
        {
            "aws_access_key_id": "credentials come from the environment (AWS_ACCESS_KEY_ID), or from a role of the machine"
        },
    )
    store = checkpointers.ObjectCheckpointer(f"s3://{bucket}/{prefix.strip('/')}", endpoint=endpoint_url, region=region)
    return StorageBackendAdapter(store)


def _login(user: str | None, password: str | None) -> str:
    if not user:
        return ""
    return quote(user, safe="") + (f":{quote(password, safe='')}" if password else "") + "@"
