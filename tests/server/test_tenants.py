"""Eight tenants on one service: none sees, guesses or disturbs what is another's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from clew.checkpointers import HeadQuery
from clew.checkpointers.http.protocol import encode_text
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import Conflict, MissingBlob
from clew.testing.contract.builders import all_blobs, append, digest_of
from tests.sampling import FULL, dice
from tests.server.serving import Running, a_token, serving

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

REQUESTS = 100_000 if FULL else 2_000
TENANTS = 8
IDS = ["thread", "user/1", "../x", "*", "%", "A", "a"]
INNER = ["", "a", "tenant-1", "../tenant-2", "*"]


def secret(tenant: int) -> str:
    return f"the-long-token-of-tenant-{tenant}"


@pytest.fixture
def service(tmp_path: object) -> Iterator[Running]:
    with serving(
        f"sqlite:///{tmp_path}/clew.db",
        tokens=[a_token(secret(tenant), f"tenant-{tenant}") for tenant in range(TENANTS)],
    ) as running:
        yield running


class Tenant:
    """One tenant's calls, each checked against what this tenant alone has done."""

    def __init__(self, number: int, url: str) -> None:
        self._number = number
        self._dice = dice(f"tenant {number}")
        self._stores = {inner: HTTPCheckpointer(url, inner, token=secret(number)) for inner in INNER}
        self._logs: dict[tuple[str, str], list[bytes]] = {}
        self._blobs: dict[str, set[str]] = {inner: set() for inner in INNER}

    async def step(self) -> None:
        inner, thread_id = self._dice.choice(INNER), self._dice.choice(IDS)
        store, log = self._stores[inner], self._logs.setdefault((inner, thread_id), [])
        blob = b"blob %d" % self._dice.randrange(40)
        match self._dice.randrange(8):
            case 0 | 1:
                frame = b"of tenant %d, %d" % (self._number, self._dice.getrandbits(64))
                await append(store, thread_id, frame, at=len(log), log_id=f"of {self._number}")
                log.append(frame)
            case 2:
                assert await store.read(thread_id) == log
            case 3:
                head = await store.head(thread_id)
                assert (head.frames if head else 0) == len(log)
            case 4:
                mine = {thread for (space, thread), frames in self._logs.items() if space == inner and frames}
                assert {head.thread_id async for head in store.heads(HeadQuery())} == mine
            case 5:
                await store.put_blobs({digest_of(blob): blob})
                self._blobs[inner].add(digest_of(blob))
            case 6:
                here = digest_of(blob) in self._blobs[inner]
                assert await store.get_blobs([digest_of(blob)]) == ({digest_of(blob): blob} if here else {})
                assert await store.missing_blobs([digest_of(blob)]) == (set() if here else {digest_of(blob)})
            case _:
                with pytest.raises((Conflict, MissingBlob)):
                    await append(store, thread_id, b"guess", at=len(log) + 1, refs=[digest_of(b"never put")])

    async def close(self) -> None:
        for inner, store in self._stores.items():
            assert set(await all_blobs(store)) == self._blobs[inner]
            await store.close()


@pytest.mark.slow
async def test_each_of_eight_tenants_finds_its_own_and_nothing_else(service: Running) -> None:
    tenants = [Tenant(number, service.url) for number in range(TENANTS)]

    async def work(tenant: Tenant) -> None:
        for _ in range(REQUESTS // TENANTS):
            await tenant.step()

    await asyncio.gather(*map(work, tenants))
    for tenant in tenants:
        await tenant.close()


def test_what_is_anothers_and_what_is_nobodys_are_the_same_answer(service: Running) -> None:
    path = f"/v1/threads/{encode_text('private')}"

    async def fill() -> None:
        async with HTTPCheckpointer(service.url, token=secret(0)) as owner:
            await owner.put_blobs({digest_of(b"private"): b"private"})
            await append(owner, "private", b"frame", refs=[digest_of(b"private")])

    def answers(path: str, namespace: str) -> tuple[object, ...]:
        headers = {"authorization": f"Bearer {secret(1)}", "clew-namespace": encode_text(namespace)}
        answer = client.get(path, headers=headers)
        kept = {name: value for name, value in answer.headers.items() if name not in ("date",)}
        return answer.status_code, answer.content, kept

    asyncio.run(fill())
    with httpx.Client(base_url=service.url) as client:
        for private, nobodys in (
            (path, f"/v1/threads/{encode_text('nobodys')}"),
            (f"{path}/frames", f"/v1/threads/{encode_text('nobodys')}/frames"),
            (f"{path}/refs", f"/v1/threads/{encode_text('nobodys')}/refs"),
            (f"/v1/blobs/{digest_of(b'private')}", f"/v1/blobs/{digest_of(b'nobodys')}"),
        ):
            for namespace in ("", "tenant-0", "../tenant-0", "/tenant-0", "*"):
                assert answers(private, namespace) == answers(nobodys, namespace)
