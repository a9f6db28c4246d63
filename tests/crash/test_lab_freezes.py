"""A worker that is frozen inside tools which must run once, until other machines have taken its threads over."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.workers import enqueue
from tests.crash.history_sites import postgres
from tests.crash.lab.agent import results_of
from tests.crash.lab.lab import MACHINES, Lab, tell
from tests.crash.lab.ledger import Ledger
from tests.crash.lab.machines import Machines
from tests.crash.lab.payers import PAYERS
from tests.crash.lab.work import Work
from tests.crash.lab.worker import Job
from tests.crash.processes import FULL
from tests.limits import PATIENCE
from tests.tally import count

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.anyio, pytest.mark.xdist_group("lab")]

FROZEN = 34.0
"""Seconds for which a worker is frozen: a lease, and time for others to see that it has ended."""
EACH = 25 if FULL else 1
"""How many threads wait before they pay, and how many after it, of each agent."""


async def test_a_worker_frozen_inside_a_once_tool_past_its_lease_appends_nothing_and_nothing_is_paid_twice(
    tmp_path: Path,
) -> None:
    threads = {f"{name}-{when}-{n}": name for name in PAYERS for when in ("before", "after") for n in range(EACH)}
    ledger, gate, no_gate = Ledger(tmp_path / "ledger"), tmp_path / "gate", tmp_path / "no-gate"
    no_gate.touch()
    (tmp_path / "others").mkdir()
    with postgres(tmp_path) as site:
        job = Job(url=site.url, ledger=str(tmp_path / "ledger"), files="", gate=str(gate), concurrency=len(threads))
        free = msgspec.structs.replace(job, gate=str(no_gate))
        async with open_checkpointer(site.url) as store:
            for thread_id, name in threads.items():
                await enqueue(store, thread_id, "Pay.", agent=name)
            with Machines(1, tmp_path, job) as frozen:
                await until(lambda: in_tool(ledger) >= threads.keys(), frozen)
                frozen.each[0].signal(signal.SIGSTOP)
                count("calls frozen past their lease", len(threads))
                with Machines(1, tmp_path / "others", free) as others:
                    await until(lambda: all_done(store, threads), others)
                    before = await frames(store, threads)
                    gate.touch()
                    frozen.each[0].signal(signal.SIGCONT)
                    await asyncio.to_thread(others.each[0].drain)
                await enqueue(store, "afterwards", "Pay.", agent="plain")
                await until(lambda: all_done(store, ["afterwards"]), frozen)
                await asyncio.to_thread(frozen.each[0].drain)
            assert await frames(store, threads) == before, "the worker that was frozen appended"
            for thread_id, name in threads.items():
                paid = len([deed for deed in ledger.deeds() if (deed.kind, deed.thread_id) == ("paid", thread_id)])
                (told,) = results_of((await Thread.load(store, thread_id)).history).values()
                if name == "careful":
                    assert (paid, told) == (1, "paid"), thread_id
                else:
                    assert paid == (0 if "before" in thread_id else 1), thread_id
                    assert "not known whether pay took effect" in told, thread_id


async def test_workers_frozen_past_their_lease_at_any_moment_give_way_to_others(tmp_path: Path) -> None:
    async def disturb(machines: Machines, work: Work) -> None:
        for _ in range(5 if FULL else 1):
            await asyncio.sleep(random.uniform(1, 3))
            await machines.freeze(random.sample(range(MACHINES), 2), FROZEN)
            for _ in range(MACHINES):
                await work.post()

    with postgres(tmp_path) as site:
        tell(await Lab(site.url, tmp_path).run(disturb, delay=0.6), 35.0)


def in_tool(ledger: Ledger) -> set[str]:
    return {deed.thread_id for deed in ledger.deeds() if deed.kind == "looked"}


async def all_done(store: Checkpointer, threads: Iterable[str]) -> bool:
    heads = [await store.head(thread_id) for thread_id in threads]
    return all(head is not None and head.status == "done" and head.lease is None for head in heads)


async def frames(store: Checkpointer, threads: Iterable[str]) -> dict[str, int]:
    heads = [await store.head(thread_id) for thread_id in threads]
    return {head.thread_id: head.frames for head in heads if head is not None}


async def until(condition: Callable[[], bool | Awaitable[bool]], machines: Machines) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < deadline, machines.said()
        await asyncio.sleep(0.1)
