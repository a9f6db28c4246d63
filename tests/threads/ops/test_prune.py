"""prune deletes what its conditions say, and never what somebody works on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, Head, MemoryCheckpointer
from clew.errors import InvalidInput, LeaseLost
from clew.log import StatusChanged
from clew.threads import leases
from clew.threads.heads import PART
from clew.threads.ops.prune import prune
from tests.stores import store_fixture
from tests.threads.keeping import turn, with_turns, write_log

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)


store = store_fixture()


async def old(store: Checkpointer, thread_id: str, days: int, **head: Any) -> None:
    moment = datetime.now(UTC) - days * DAY
    await write_log(store, thread_id, [turn(1)], **{"created_at": moment, "updated_at": moment, **head})


async def names(store: Checkpointer) -> list[str]:
    return sorted([head.thread_id async for head in store.heads()])


@pytest.mark.parametrize(
    ("conditions", "gone"),
    [
        ({"older_than": 5 * DAY}, ["c", "d"]),
        ({"older_than": timedelta(0)}, ["a", "b", "c", "d"]),
        ({"keep": 1}, ["b", "c", "d"]),
        ({"keep": 0}, ["a", "b", "c", "d"]),
        ({"keep": 9}, []),
        ({"keep": 3, "older_than": 5 * DAY}, ["d"]),
        ({"status": "done"}, ["b", "d"]),
        ({"status": ("done", "failed"), "keep": 1}, ["c", "d"]),
        ({"tags": {"team": "x"}}, ["a", "d"]),
        ({"prefix": "c"}, ["c"]),
        ({"status": "done", "older_than": 5 * DAY, "tags": {"team": "x"}}, ["d"]),
    ],
)
async def test_what_meets_every_condition_goes(
    conditions: dict[str, Any], gone: list[str], store: Checkpointer
) -> None:
    await old(store, "a", 1, tags={"team": "x"})
    await old(store, "b", 3, status="done")
    await old(store, "c", 7, status="failed")
    await old(store, "d", 9, status="done", tags={"team": "x"})
    told = await prune(store, **conditions, dry_run=True)
    assert (sorted(told.deleted), told.dry_run) == (gone, True)
    assert await names(store) == ["a", "b", "c", "d"]
    steps: list[tuple[int, int | None]] = []
    done = await prune(store, **conditions, progress=lambda *step: steps.append(step))
    assert (done.deleted, done.kept, done.busy) == (told.deleted, told.kept, ())
    assert await names(store) == sorted({"a", "b", "c", "d"} - set(gone))
    assert steps == [(n + 1, len(gone)) for n in range(len(gone))]


async def test_no_condition_and_senseless_ones_are_refused(store: Checkpointer) -> None:
    senseless: list[dict[str, Any]] = [
        {},
        {"keep": -1},
        {"older_than": -DAY},
        {"status": "over"},
        {"tags": {}, "prefix": ""},
    ]
    for conditions in senseless:
        with pytest.raises(InvalidInput):
            await prune(store, **conditions)


async def test_a_thread_that_somebody_works_on_is_never_deleted(store: Checkpointer) -> None:
    await with_turns(store, "idle", 1)
    async with Thread.open(store, "busy") as thread:
        for dry_run in (True, False):
            pruned = await prune(store, keep=0, dry_run=dry_run)
            assert (pruned.deleted, pruned.busy, pruned.kept) == (("idle",), ("busy",), 1)
        await thread.append(*turn(1))


async def test_a_thread_opened_since_it_was_listed_is_spared() -> None:
    class Late(MemoryCheckpointer):
        opened: Thread | None = None

        async def head(self, thread_id: str) -> Head | None:
            head = await super().head(thread_id)
            if self.opened is not None and head is not None:
                opened, self.opened = self.opened, None
                await opened.__aenter__()  # between the look at the lease and the deletion
            return head

    store = Late()
    await with_turns(store, "t", 1)
    store.opened = thread = Thread.open(store, "t")
    pruned = await prune(store, keep=0)
    assert (pruned.deleted, pruned.busy) == ((), ("t",))
    await thread.append(*turn(2))
    await thread.__aexit__(None, None, None)
    assert (await Thread.load(store, "t")).turns == 2


async def test_a_thread_whose_process_died_counts_as_interrupted(
    store: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = Thread.open(store, "crashed")
    await crashed.__aenter__()
    monkeypatch.setattr(leases, "provably_dead", lambda owner: True)
    assert (await prune(store, status="running")).deleted == ()
    assert (await prune(store, status="interrupted")).deleted == ("crashed",)
    with pytest.raises(LeaseLost):
        await crashed.append(StatusChanged("done"))
    crashed._end()


async def test_hidden_parts_are_neither_counted_nor_deleted(store: Checkpointer) -> None:
    await old(store, "part", 1, tags={PART: "1"})
    await old(store, "t", 9)
    pruned = await prune(store, keep=1)
    assert (pruned.deleted, pruned.kept) == ((), 1)
    assert (await prune(store, keep=0)).deleted == ("t",)
    assert await names(store) == ["part"]


async def test_blobs_stay_for_gc(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1, "large " * 20_000))
    blobs = await store.refs("t")
    assert len(blobs) == 1
    await prune(store, keep=0)
    assert msgspec.structs.asdict(await prune(store, keep=0))["deleted"] == ()
    assert await store.missing_blobs(blobs) == set()
