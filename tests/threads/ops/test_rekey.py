"""Another key: every thread sealed anew, the same as before, and nothing needs the old key any more."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from clew import open_checkpointer
from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.heads import thread_key
from clew.errors import InvalidInput, WrongKey
from clew.log import Checkpoint, MessageAdded, StatusChanged, Usage
from clew.messages import assistant, user
from clew.threads import Thread
from clew.threads.ops import rekey as rekeying
from clew.threads.ops.rekey import rekey

pytestmark = pytest.mark.anyio

OLD, NEW = "00" * 32, "11" * 32
COPY_OF_A = rekeying._HIDDEN + thread_key("a")


async def fill(store: Checkpointer) -> dict[str, Checkpoint]:
    for name in ("a", "b"):
        async with Thread.open(store, name) as thread:
            await thread.append(MessageAdded(user(f"{name} " * 40_000)), MessageAdded(assistant("yes"), Usage(1), 0.5))
            await thread.append(StatusChanged("done"))
    return {name: await Thread.load(store, name) for name in ("a", "b")}


@pytest.fixture(params=["sqlite:///{}/c.db", "file://{}/threads"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


@pytest.mark.parametrize("before", [OLD, None])
async def test_after_rekey_the_new_key_alone_reads_everything_as_it_was(url: str, before: str | None) -> None:
    async with open_checkpointer(url, key=before) as store:
        states = await fill(store)
        heads = {name: await store.head(name) for name in states}
    steps: list[tuple[int, int | None]] = []
    async with open_checkpointer(url, key=[NEW, OLD], allow_plain=before is None) as store:
        outcome = await rekey(store, lambda done, total: steps.append((done, total)))
        assert sorted(outcome.sealed) == ["a", "b"]
        assert steps[-1] == (2, 2)
        assert (await rekey(store)).already == 2
    async with open_checkpointer(url, key=NEW) as store:
        for name, state in states.items():
            assert await Thread.load(store, name) == state
            old, new = heads[name], await store.head(name)
            assert old is not None
            assert new is not None
            assert (new.created_at, new.status, new.tags, new.frames) == (old.created_at, "done", {}, old.frames)
        assert {head.thread_id async for head in store.heads()} == {"a", "b"}
    async with open_checkpointer(url, key=OLD) as store:
        with pytest.raises(WrongKey):
            await Thread.load(store, "a")


async def test_a_thread_that_somebody_works_on_is_left_as_it_is(url: str) -> None:
    async with open_checkpointer(url, key=OLD) as store:
        await fill(store)
    async with open_checkpointer(url, key=[NEW, OLD]) as store, Thread.open(store, "a") as thread:
        outcome = await rekey(store)
        assert (outcome.sealed, outcome.busy) == (("b",), ("a",))
        await thread.append(MessageAdded(user("still here")))


@pytest.mark.parametrize("step", ["_retag", "fence", "_finish", "transfer", "carry_posts"])
async def test_what_was_interrupted_goes_on(url: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut short before each step, and once more within the last."""
    async with open_checkpointer(url, key=OLD) as store:
        states = await fill(store)
    calls = 0

    class Cut(Exception):
        pass

    async def cut(*arguments: object, **named: object) -> Head:
        nonlocal calls
        calls += 1
        if step != "transfer" or calls == 2:
            raise Cut
        return await real(*arguments, **named)  # type: ignore[no-any-return]

    real = getattr(rekeying, step)
    monkeypatch.setattr(rekeying, step, cut)
    async with open_checkpointer(url, key=[NEW, OLD]) as store:
        with pytest.raises(Cut):
            await rekey(store)
    monkeypatch.undo()
    async with open_checkpointer(url, key=[NEW, OLD]) as store:
        await rekey(store)
        assert {head.thread_id async for head in store.heads()} == {"a", "b"}
    async with open_checkpointer(url, key=NEW) as store:
        for name, state in states.items():
            assert await Thread.load(store, name) == state


@pytest.mark.parametrize("place", ["innocent", COPY_OF_A])
async def test_a_forged_copy_replaces_no_thread(url: str, place: str) -> None:
    """Somebody without the key writes a thread that claims to be the copy of another, which would be deleted for it."""
    async with open_checkpointer(url) as store:
        states = await fill(store)
        head = await store.head("a")
        assert head is not None
        async with Thread.open(store, "forged") as thread:
            await thread.append(MessageAdded(user("forged")))
        base = await store.head("forged")
        assert base is not None
        tags = {"clew:rekeying": "a", "clew:rekeying-log": head.log_id, "clew:rekeying-frames": str(head.frames - 1)}
        forged = msgspec.structs.replace(base, thread_id=place, tags=tags, log_id="e" * 32)
        await store.append(place, await store.read("forged"), at=0, head=forged)
    async with open_checkpointer(url, key=NEW, allow_plain=True) as store:
        await rekey(store)
        for name, state in states.items():
            assert await Thread.load(store, name) == state
        assert {head.thread_id async for head in store.heads()} == {"a", "b", "forged", *{place} - {COPY_OF_A}}


async def test_without_a_key_there_is_nothing_to_seal_with(url: str) -> None:
    async with open_checkpointer(url) as store:
        with pytest.raises(InvalidInput, match="rekey needs a key"):
            await rekey(store)
