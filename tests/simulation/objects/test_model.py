"""The simulated bucket does what a bucket does for the store: the contract of all stores holds on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest
from obstore.store import MemoryStore

from clew.checkpointers.objects.base import BucketCheckpointer
from clew.checkpointers.objects.bucket import Found, Refused, Tag
from clew.checkpointers.objects.clouds import ObstoreBucket
from clew.checkpointers.patience import TIMEOUT
from clew.testing import CheckpointerContract
from tests.simulation.environment import simulated
from tests.simulation.loop import SimulatedLoop
from tests.simulation.objects.link import WHERE, Link, Network
from tests.simulation.objects.server import Server
from tests.simulation.promises import promises


class Silenced:
    """A store whose server can be frozen, as the contract wants it."""

    timeout = TIMEOUT
    answering: Collection[str] = ()

    def __init__(self, store: BucketCheckpointer, server: Server) -> None:
        self.store = store
        self.freeze = server.freeze
        self.thaw = server.thaw


def keep(promise: str, fixture: str) -> None:
    """Run one test of the contract on the simulated bucket."""
    loop = SimulatedLoop(promise)

    async def run() -> None:
        server = Server(loop)
        network = Network(loop, server)
        opened: list[BucketCheckpointer] = []

        def open_store(namespace: str = "") -> BucketCheckpointer:
            opened.append(network.store(namespace))
            return opened[-1]

        given: Any = open_store if fixture == "open_store" else Silenced(open_store(), server)
        await getattr(CheckpointerContract(), promise)(given)
        for store in opened:
            await store.close()

    with simulated(loop):
        loop.run(run())
    assert loop.failures == []


@pytest.mark.parametrize("promise", promises("open_store"))
def test_the_contract_holds_on_the_simulated_bucket(promise: str) -> None:
    keep(promise, "open_store")


@pytest.mark.parametrize("promise", promises("freezable_store"))
def test_every_call_to_the_simulated_bucket_ends_when_it_is_frozen(promise: str) -> None:
    keep(promise, "freezable_store")


async def requests(bucket: ObstoreBucket) -> list[object]:
    """Make requests of every kind, and return their answers without tags and times."""
    answers: list[object] = []

    async def ask(request: Callable[[], Any]) -> Any:
        try:
            answer = await request()
        except Refused:
            answers.append("refused")
            return None
        answers.append(answer.data if isinstance(answer, Found) else "tag" if isinstance(answer, Tag) else answer)
        return answer

    first = await ask(lambda: bucket.put("folder/a", b"one", "absent"))
    await ask(lambda: bucket.put("folder/a", b"two", "absent"))
    second = await ask(lambda: bucket.put("folder/a", b"three", first))
    await ask(lambda: bucket.put("folder/a", b"four", first))
    await ask(lambda: bucket.put("folder/b", b"any"))
    await ask(lambda: bucket.put("folderb", b"elsewhere"))
    for part in ((0, None), (1, 2), (3, 100)):
        await ask(lambda part=part: bucket.get("folder/a", *part))  # type: ignore[misc]
    await ask(lambda: bucket.get("folder/c"))
    for after in ("", "folder/a"):
        answers.append([(each.key, each.size) async for page in bucket.list("folder", after) for each in page])
    await ask(lambda: bucket.delete(["folder/a"]))
    await ask(lambda: bucket.get("folder/a"))
    await ask(lambda: bucket.put("folder/a", b"five", second))
    await ask(lambda: bucket.delete(["folder/a", "folder/b"]))
    answers.append([each async for each in bucket.list("folder")])
    return answers


def test_the_simulated_bucket_answers_as_the_memory_store_of_obstore_does() -> None:
    loop = SimulatedLoop(1)

    async def run() -> list[object]:
        link: Any = Link(Network(loop, Server(loop)))
        bucket = ObstoreBucket(link, WHERE)
        bucket._obstore = link
        return await requests(bucket)

    with simulated(loop):
        answers = loop.run(run())
    assert answers == asyncio.run(requests(ObstoreBucket(MemoryStore(), "memory")))
