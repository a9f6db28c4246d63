"""A process that gets no memory is told so by every store in the same way, never by a raw `MemoryError`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from clew.checkpointers import MemoryCheckpointer, open_checkpointer
from clew.checkpointers.checks import Guard
from clew.checkpointers.objects import threads as object_threads
from clew.checkpointers.objects.base import BucketCheckpointer
from clew.checkpointers.objects.clouds import ObstoreBucket
from clew.checkpointers.registry import _BUILT_IN
from clew.checkpointers.sealed import SealedCheckpointer
from clew.errors import Unavailable
from clew.log.keys import Keyring
from clew.testing.contract.builders import append, every_call, heads
from tests.servers.running import lacking

pytestmark = pytest.mark.anyio

URLS = {
    "file": "file:{}/files",
    "http": "http://127.0.0.1:1",
    "memory": "memory://",
    "mysql": "mysql://me@127.0.0.1:1/db",
    "oci": "oci://namespace/bucket/prefix",
    "opensearch": "opensearch://127.0.0.1:1",
    "oracle": "oracle://me:password@127.0.0.1:1/service",
    "postgresql": "postgresql://me@127.0.0.1:1/db",
    "redis": "redis://127.0.0.1:1/0",
    "s3": "s3://bucket/prefix?endpoint=http://127.0.0.1:1&region=us-east-1",
    "sqlite": "sqlite:///{}/clew.db",
}


def _marks(scheme: str) -> list[pytest.MarkDecorator]:
    """The SDK of OCI is large, and installed only for the slow tests."""
    return [pytest.mark.slow] if scheme == "oci" else []


def test_every_kind_of_store_is_tried() -> None:
    tried = {_BUILT_IN[scheme] for scheme in URLS}
    assert tried == set(_BUILT_IN.values())


def no_memory(*given: Any, **options: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("scheme", [pytest.param(each, marks=_marks(each)) for each in URLS])
async def test_every_call_without_memory_is_unavailable(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scheme == "oci" and find_spec("oci") is None:
        lacking("no SDK of OCI", install="the extra oci")
    async with open_checkpointer(URLS[scheme].format(tmp_path)) as store:
        with monkeypatch.context() as without:
            without.setattr(Guard, "enter", no_memory)
            for call in every_call(store).values():
                with pytest.raises(Unavailable, match="this process got no memory"):
                    await call()


@pytest.fixture
async def bucket() -> AsyncIterator[BucketCheckpointer]:
    async with BucketCheckpointer(ObstoreBucket(MemoryStore(), "bucket"), "bucket", "", "") as store:
        await append(store, "thread", b"one")
        yield store


@pytest.mark.parametrize("lacking", ["thread_object", "read_parts"])
async def test_object_storage_goes_on_after_memory_was_lacking_to_encode_or_decode(
    bucket: BucketCheckpointer, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Callable[[], Awaitable[object]]] = (
        [lambda: append(bucket, "thread", b"two", at=1), lambda: append(bucket, "another", b"one")]
        if lacking == "thread_object"
        else [lambda: bucket.head("another"), lambda: bucket.read("thread", start=0), lambda: heads(bucket)]
    )
    with monkeypatch.context() as without:
        without.setattr(object_threads, lacking, no_memory)
        told = [await _outcome(call()) for call in calls]
    assert Unavailable in told
    assert MemoryError not in told
    await append(bucket, "thread", b"two", at=1)
    assert await bucket.read("thread") == [b"one", b"two"]


async def _outcome(call: Any) -> type[object]:
    try:
        await call
    except Exception as error:  # noqa: BLE001 - the test looks at its type
        return type(error)
    return object


async def test_a_sealed_store_without_memory_to_sign_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SealedCheckpointer(MemoryCheckpointer(), Keyring("0" * 64)) as store:
        with monkeypatch.context() as without:
            without.setattr(Keyring, "sign_head", no_memory)
            with pytest.raises(Unavailable, match="this process got no memory"):
                await append(store, "thread", b"one")
        await append(store, "thread", b"one")
