"""The store for S3 and compatible servers, Google Cloud Storage and Azure Blob Storage. Also parses the URLs of all
buckets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from clew.checkpointers.objects.base import BucketCheckpointer
from clew.checkpointers.objects.clouds import open_obstore, plain_http
from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.checkpointers.urls import given_options, truth, why_unparsed, without_password
from clew.errors import InvalidInput

__all__ = ["ObjectCheckpointer", "check_prefix", "parse_url"]

_KINDS = {"s3": "s3://bucket/prefix", "gs": "gs://bucket/prefix", "az": "az://container/prefix?account=name"}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_SEGMENT = re.compile(r"[A-Za-z0-9._~=+@,!-]{1,255}")
_LONGEST_PREFIX = 512
_OPTIONS = {"endpoint", "region", "account", "virtual_hosted", "allow_http", "timeout"}
_KEYS = {"access_key_id", "secret_access_key", "session_token"}


class ObjectCheckpointer(BucketCheckpointer):
    """A store in a bucket of S3, Google Cloud Storage or Azure, through the package obstore.

    The URL is `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. Each append is one conditional
    put: a write that is refused if the object has changed. On first use the bucket is tested: a server that ignores the
    conditions of a put, as some S3-compatible servers do, raises `InvalidInput`.

    Credentials are given as arguments, or come from the environment variables of the cloud's own tools or the machine's
    metadata service. `endpoint` is the address of a server other than the cloud's own. Plain http is allowed only to this
    machine, unless `allow_http=True`. `options` are passed unchanged to obstore's `S3Store`, `GCSStore` or `AzureStore`.
    A call without progress for `timeout` seconds, 10 by default, raises `Unavailable`. The progress of an upload
    cannot be seen, so it gets one more second for each MiB.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        account: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        virtual_hosted: bool | None = None,
        allow_http: bool | None = None,
        timeout: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        scheme, bucket, prefix = _address(url)
        given = {
            "endpoint": endpoint,
            "region": region,
            "account_name": account,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
            "virtual_hosted_style_request": virtual_hosted,
        }
        config = {name: value for name, value in given.items() if value is not None}
        if scheme != "s3" and (wrong := config.keys() - {"endpoint", "account_name"}):
            raise InvalidInput(
                f"for s3:// only: {', '.join(sorted(wrong))}. Give {scheme}:// its settings in `options`."
            )
        if scheme != "az" and account is not None:
            raise InvalidInput("the argument account is for az:// only.")
        where = f"{scheme}://{bucket}" + (f" at {endpoint}" if endpoint else "") + (f" of {account}" if account else "")
        plain = plain_http(endpoint, allow_http)
        super().__init__(
            open_obstore(scheme, bucket, where, {**config, **(options or {})}, plain),
            where,
            prefix,
            namespace,
            timeout=timeout_seconds(TIMEOUT if timeout is None else timeout),
        )

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> ObjectCheckpointer:
        """Open the bucket that the URL names, for example
        `s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=us-east-1`.

        Options are `endpoint`, `region`, `account`, `virtual_hosted`, `allow_http` and `timeout`. Keys in the URL raise
        `InvalidInput`, because URLs end up in logs and process lists; keys come from the environment.
        """
        address, given = parse_url(url, _OPTIONS, _KEYS)
        options: dict[str, Any] = dict(given)
        for name in ("virtual_hosted", "allow_http"):
            if name in given:
                options[name] = truth(given, name, address)
        return cls(address, namespace, **options)


def parse_url(url: str, options: set[str], keys: set[str]) -> tuple[str, dict[str, str]]:
    """Split the URL of a bucket into its address (the URL up to ?) and its options by name.

    Raises `InvalidInput` for an option that is not in `options`, and for one in `keys`, which are names of credentials.
    No error shows a credential.
    """
    parts = _split(url)
    scheme = parts.scheme
    if not parts.netloc:
        raise InvalidInput(
            f"{without_password(url[:100])} does not name a bucket. Write {scheme}:// and then its name."
        )
    if "@" in parts.netloc:
        raise InvalidInput(
            f"a {scheme}:// URL takes no password: credentials come from the environment. Remove the part before @"
        )
    address = f"{scheme}://{parts.netloc}{parts.path}"
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name in keys:
            raise InvalidInput(
                f"{name} does not belong in a URL, which ends up in logs. Set it in the environment, or construct the "
                "checkpointer with it."
            )
    given = given_options(parts.query, sorted(options), address)
    if empty := [name for name, value in given.items() if not value]:
        raise InvalidInput(f"{address}: {empty[0]} has no value")
    if parts.fragment:
        raise InvalidInput(f"a {scheme}:// URL has no part after #")
    return address, given


def check_prefix(path: str) -> str:
    """Return the path of a URL, without slashes at its ends, as the prefix of all object names. Raises `InvalidInput`
    if it has more than 512 characters, or characters that some store or client would encode differently."""
    prefix = path.strip("/")
    segments = prefix.split("/") if prefix else []
    if len(prefix) > _LONGEST_PREFIX or any(s in (".", "..") or not _SEGMENT.fullmatch(s) for s in segments):
        raise InvalidInput(
            f"the prefix {prefix[:80]!r} has characters or parts that not every store keeps as they are. Use letters, "
            f"digits and . _ ~ = + @ , ! - in parts divided by single slashes, {_LONGEST_PREFIX} characters at most."
        )
    return prefix


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidInput(f"the URL of a bucket cannot be parsed: {why_unparsed(error)}.") from None


def _address(url: str) -> tuple[str, str, str]:
    parts = _split(url)
    if parts.scheme not in _KINDS or not _BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment:
        named = "this URL" if "@" in parts.netloc or parts.query else without_password(url)
        raise InvalidInput(
            f"{named} does not name a bucket. Write {' or '.join(_KINDS.values())}. Other options are for from_url, or are "
            "arguments."
        )
    return parts.scheme, parts.netloc, check_prefix(parts.path)
