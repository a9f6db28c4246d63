"""Quotas: what a tenant may keep and ask, and that others are not touched by it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from blake3 import blake3

from clew.checkpointers import MemoryCheckpointer
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import InvalidInput, MissingBlob, UsageError
from clew.server import Settings, create_app
from clew.server.failures import Refused
from clew.server.quotas import Ledger, Metered
from clew.testing.contract.builders import append
from tests.server.serving import Running, a_token, serving

pytestmark = pytest.mark.anyio

ONE, SECOND, OTHER = "the-long-first-token", "the-long-second-token", "the-long-other-token"
TOKENS = (a_token(ONE, "team"), a_token(SECOND, "team"), a_token(OTHER, "else"))


def limited(tmp_path: Path, **limits: Any) -> Any:
    return serving(f"sqlite:///{tmp_path}/clew.db", tokens=TOKENS, quota_file=tmp_path / "quotas.db", **limits)


def client(running: Running, token: str = ONE, namespace: str = "") -> HTTPCheckpointer:
    return HTTPCheckpointer(running.url, namespace, token=token)


async def test_a_tenant_has_so_many_threads_in_all_its_namespaces_and_after_a_restart(tmp_path: Path) -> None:
    with limited(tmp_path, tenant_threads=2) as running:
        async with client(running) as store, client(running, SECOND, "inner") as inner, client(running, OTHER) as other:
            await append(store, "one", b"frame")
            await append(inner, "two", b"frame")
            for full in (store, inner):
                with pytest.raises(UsageError, match="the tenant team has 2 threads, and may have 2"):
                    await append(full, "three", b"frame")
            await append(store, "one", b"more", at=1)  # those that are there go on
            await append(other, "three", b"frame")
    with limited(tmp_path, tenant_threads=2) as running:
        async with client(running) as store:
            with pytest.raises(UsageError, match="2 threads"):
                await append(store, "three", b"frame")
            await store.delete("one")
            await append(store, "three", b"frame")


async def test_a_tenant_keeps_so_many_bytes_of_frames_and_blobs(tmp_path: Path) -> None:
    data = bytes(600)
    digest = blake3(data).hexdigest()
    with limited(tmp_path, tenant_bytes=1000) as running:
        async with client(running) as store, client(running, OTHER) as other:
            for _ in range(2):  # the same blob counts once
                await store.put_blobs({digest: data})
            for _ in range(2):  # an append that is repeated too
                await append(store, "thread", bytes(300))
            with pytest.raises(UsageError, match="keeps 964 B, and may keep 1000 B; this has 264 B"):
                await append(store, "thread", bytes(200), at=1)
            with pytest.raises(UsageError, match="may keep 1000 B"):
                await store.put_blobs({blake3(data + b"x").hexdigest(): data + b"x"})
            with pytest.raises(UsageError, match="may keep 1000 B"):
                await append(other, "empty frames are not free", *[b""] * 20)
            await append(other, "thread", bytes(900))
            await store.delete_blobs([digest], untouched_for=timedelta(0))
            await append(store, "thread", bytes(200), at=1)


async def test_many_writes_at_once_do_not_go_past_the_quota(tmp_path: Path) -> None:
    with limited(tmp_path, tenant_threads=5, tenant_bytes=8 * 2**20) as running:
        async with client(running) as store:
            threads = await asyncio.gather(
                *[append(store, f"thread {number}", b"frame") for number in range(32)], return_exceptions=True
            )
            assert [type(done) for done in threads if isinstance(done, Exception)] == [UsageError] * 27
            assert len([head async for head in store.heads()]) == 5
            blobs = [bytes([number]) * 3 * 2**20 for number in range(8)]
            puts = await asyncio.gather(
                *[store.put_blobs({blake3(blob).hexdigest(): blob}) for blob in blobs], return_exceptions=True
            )
            assert [type(done) for done in puts if isinstance(done, Exception)] == [UsageError] * 6


async def test_what_is_stored_twice_at_once_is_counted_once(tmp_path: Path) -> None:
    data = bytes(600)
    with limited(tmp_path, tenant_bytes=2000) as running:
        async with client(running) as store:
            await asyncio.gather(*[store.put_blobs({blake3(data).hexdigest(): data}) for _ in range(3)])
            head = await append(store, "thread", bytes(500))
            more = msgspec.structs.replace(head, frames=2)
            await asyncio.gather(*[store.append("thread", [bytes(500)], at=1, head=more) for _ in range(3)])
            await append(store, "other", bytes(100))  # 600, twice 564 and 164 of 2000


async def test_a_write_that_fails_takes_nothing_of_the_quota(tmp_path: Path) -> None:
    with limited(tmp_path, tenant_bytes=1000, tenant_threads=2) as running:
        async with client(running) as store:
            head = await append(store, "thread", b"frame")
            wrong = msgspec.structs.replace(head, thread_id="other", frames=1, log_id="e" * 32)
            for _ in range(5):
                with pytest.raises(MissingBlob):
                    await store.append("other", [bytes(300)], at=0, head=wrong, refs=["0" * 64])
            await append(store, "other", bytes(800))


class Slow(MemoryCheckpointer):
    """A store whose deletions take a while to return."""

    async def delete(self, thread_id: str) -> None:
        await super().delete(thread_id)
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_thread_that_is_written_while_it_is_deleted_is_counted(tmp_path: Path) -> None:
    store = Metered(Slow(), Ledger(tmp_path / "quotas.db", threads=1, size=None), "team", "")
    await append(store, "one", b"frame")
    await asyncio.gather(store.delete("one"), append(store, "one", b"frame"))
    assert await store.head("one") is not None
    with pytest.raises(Refused, match="may have 1"):
        await append(store, "two", b"frame")


async def test_the_tokens_of_a_tenant_share_one_rate(tmp_path: Path) -> None:
    with limited(tmp_path, tenant_rate=2) as running:
        found = [
            httpx.get(f"{running.url}/v1/threads/YQ", headers={"authorization": f"Bearer {token}"})
            for token in (ONE, SECOND, ONE, SECOND, ONE, SECOND, OTHER)
        ]
        *mine, other = found
        assert 429 in [answer.status_code for answer in mine]
        assert other.status_code == 404
        [refused, *_] = [answer for answer in mine if answer.status_code == 429]
        assert "the tenant team may make 2 requests a second in all" in refused.json()["message"]


@pytest.mark.parametrize("limits", [{"tenant_threads": 1}, {"tenant_bytes": 1}, {"tenant_rate": 0}])
def test_a_quota_that_cannot_hold_is_refused_at_the_start(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="quota"):
        create_app(Settings(store="memory://", tokens=TOKENS, **limits))
