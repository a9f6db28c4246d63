"""A token with the scopes read and append does an agent's work, and destroys nothing that is on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.http.protocol import Append
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.checkpointers.sqlite.store import SQLiteCheckpointer
from clew.errors import Conflict, UsageError
from clew.log import FIRST, Described, MessageAdded, StatusChanged, encode_entries, encode_frame
from clew.messages import assistant, user
from clew.server.additions import check_addition
from clew.server.failures import Refused
from clew.threads.heads import INBOX, PART, inbox_id, new_head
from clew.threads.ops.copy import copy
from tests.server.serving import Running, a_token, serving

pytestmark = pytest.mark.anyio

ADDER = "a-token-that-may-only-append"
WRITER = "a-token-that-may-write-all"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    tokens = (a_token(ADDER, "team", ("read", "append")), a_token(WRITER, "team", ("read", "write")))
    with serving(f"sqlite:///{tmp_path}/clew.db", tokens=tokens) as service:
        yield service


def adder(running: Running) -> HTTPCheckpointer:
    return HTTPCheckpointer(running.url, token=ADDER)


async def written(store: Checkpointer) -> Head:
    async with Thread.open(store, "trip") as thread:
        await thread.append(MessageAdded(user("Plan a trip.")), MessageAdded(assistant("To Paris.")))
        await thread.append(StatusChanged("done"))
    head = await store.head("trip")
    assert head is not None
    return head


async def test_an_append_token_does_the_work_of_an_agent(running: Running) -> None:
    async with adder(running) as store:
        await written(store)
        async with Thread.open(store, "trip") as thread:
            await thread.renew()
            await thread.fence()
            await thread.append(MessageAdded(user("And Rome?" + "x" * 200_000)))  # large enough for a blob
            await thread.fork("other")
        assert len((await Thread.load(store, "trip")).messages) == 3
        assert len((await Thread.load(store, "other")).messages) == 2  # a fork is cut at a turn
        assert (await Thread.verify(store, "trip")).sound


async def test_an_append_token_posts_to_a_thread_that_another_holds(running: Running) -> None:
    async with adder(running) as store, adder(running) as poster:
        await written(store)
        async with Thread.open(store, "trip") as thread:
            for number in range(2):
                await Thread.post(poster, "trip", f"Rome {number}?" + "x" * 100_000 * number)
            assert [post.prompt_id for post in await thread.posts()]
            assert len(await thread.posts()) == 2


@pytest.mark.parametrize(
    "change", [{"tags": {INBOX: "other"}}, {"tags": {}}, {"parent": ("other", 0)}, {"status": "running"}]
)
def test_an_append_token_makes_nothing_hidden_that_is_no_inbox(change: dict[str, Any]) -> None:
    frame, digest = a_frame(FIRST, 0)
    inbox = msgspec.structs.replace(
        new_head(inbox_id("trip", "log"), "done"), parent=("trip", 0), tags={INBOX: "log"}, frames=1, digest=digest
    )
    check_addition(None, Append(at=0, frames=[frame], head=inbox))
    forged = msgspec.structs.replace(inbox, **change)
    with pytest.raises(Refused):
        check_addition(None, Append(at=0, frames=[frame], head=forged))


async def test_an_append_token_can_bring_a_copy_of_a_thread(running: Running) -> None:
    async with open_checkpointer("memory://") as source, adder(running) as store:
        await written(source)
        await copy(source, store, "trip")
        assert await Thread.load(store, "trip") == await Thread.load(source, "trip")


def a_frame(previous: bytes, number: int) -> tuple[bytes, str]:
    entries = [encode_entries([MessageAdded(user("more"))])]
    frame = encode_frame(entries, previous=previous, thread_id="trip", number=number)
    return frame.data, frame.digest.hex()


def changed(**changes: Any) -> Callable[[Head], tuple[list[bytes], Head]]:
    return lambda head: ([], msgspec.structs.replace(head, **changes))


def with_frame(**changes: Any) -> Callable[[Head], tuple[list[bytes], Head]]:
    def make(head: Head) -> tuple[list[bytes], Head]:
        data, digest = a_frame(bytes.fromhex(head.digest), head.frames)
        fields = {"frames": head.frames + 1, "digest": digest} | {
            name: value(head) if callable(value) else value for name, value in changes.items()
        }
        return [data], msgspec.structs.replace(head, **fields)

    return make


def unchained(head: Head) -> tuple[list[bytes], Head]:
    data, digest = a_frame(FIRST, head.frames)
    return [data], msgspec.structs.replace(head, frames=head.frames + 1, digest=digest)


def unsound(head: Head) -> tuple[list[bytes], Head]:
    data, digest = a_frame(bytes.fromhex(head.digest), head.frames)
    return [data[:-17] + b"?" + data[-16:]], msgspec.structs.replace(head, frames=head.frames + 1, digest=digest)


HARM = {
    "another digest without frames": (changed(digest="00" * 16), "digest"),
    "another snapshot without frames": (changed(snapshot=0), "snapshot"),
    "another title without frames": (changed(title="Nothing here"), "title"),
    "no turns without frames": (changed(turns=0), "turns"),
    "other tags without frames": (changed(tags={"city": "Rome"}), "tags"),
    "hidden without frames": (changed(tags={PART: "log"}), "incomplete"),
    "from the future without frames": (
        lambda head: changed(updated_at=head.updated_at + timedelta(days=90_000))(head),
        "future",
    ),
    "older without frames": (lambda head: changed(updated_at=head.updated_at - timedelta(days=9))(head), "older"),
    "a frame that follows nothing": (unchained, "follow"),
    "a frame that is not sound": (unsound, "follow"),
    "another digest": (with_frame(digest="00" * 16), "digest"),
    "a snapshot beyond the end": (with_frame(snapshot=99), "snapshot"),
    "an old frame as the snapshot": (with_frame(snapshot=0), "snapshot"),
    "another time of creation": (with_frame(created_at=lambda head: head.created_at - timedelta(days=1)), "created_at"),
    "hidden": (with_frame(tags={PART: "log"}), "incomplete"),
    "the tags of a copy that rekey has made": (with_frame(tags={"clew:rekeying": "victim"}), "reserved"),
    "the tags of a copy that purge has made": (with_frame(tags={"clew:old-log": "0", "clew:new-log": "1"}), "reserved"),
    "from the future": (with_frame(updated_at=lambda head: head.updated_at + timedelta(days=90_000)), "future"),
    "older": (with_frame(updated_at=lambda head: head.updated_at - timedelta(days=9)), "older"),
}


@pytest.mark.parametrize("harm", HARM)
async def test_an_append_token_cannot_destroy_history_with_an_append(running: Running, harm: str) -> None:
    make, said = HARM[harm]
    async with adder(running) as store:
        head = await written(store)
        frames, forged = make(head)
        with pytest.raises(UsageError, match=said) as caught:
            await store.append("trip", frames, at=head.frames, head=forged)
        assert "the scope 'write'" in str(caught.value)
        assert await store.head("trip") == head
        assert (await Thread.verify(store, "trip")).sound


async def test_an_append_token_cannot_make_a_thread_older_by_many_small_steps(running: Running) -> None:
    async with adder(running) as store:
        head = await written(store)
        once, twice = (
            msgspec.structs.replace(head, updated_at=head.updated_at - timedelta(minutes=minutes))
            for minutes in (59, 118)
        )
        await store.append("trip", [], at=head.frames, head=once)
        with pytest.raises(UsageError, match="older"):
            await store.append("trip", [], at=head.frames, head=twice)
        assert await store.head("trip") == once


async def test_machines_whose_clocks_differ_a_little_take_turns_on_a_thread(running: Running) -> None:
    async with adder(running) as store:
        head = await written(store)
        for minutes in (50, -50, 50):
            moved = msgspec.structs.replace(head, updated_at=head.updated_at + timedelta(minutes=minutes))
            await store.append("trip", [], at=head.frames, head=moved)


async def test_a_thread_that_an_operator_dated_into_the_future_still_takes_honest_appends(running: Running) -> None:
    async with adder(running) as store, HTTPCheckpointer(running.url, token=WRITER) as operator:
        head = await written(store)
        late = msgspec.structs.replace(head, updated_at=head.updated_at + timedelta(days=90_000))
        await operator.append("trip", [], at=head.frames, head=late)
        async with Thread.open(store, "trip") as thread:
            await thread.append(MessageAdded(user("Back to the present.")))
        stored = await store.head("trip")
        assert stored is not None
        assert stored.updated_at < late.updated_at


@pytest.mark.parametrize("prefix", ["clew:purging:", "clew:rekeying:", "clew:"])
async def test_an_append_token_makes_no_thread_whose_id_is_reserved(running: Running, prefix: str) -> None:
    async with adder(running) as store:
        head = await written(store)
        frames = await store.read("trip")
        forged = msgspec.structs.replace(head, thread_id=f"{prefix}{'0' * 64}", log_id="e" * 32)
        with pytest.raises(UsageError, match="the id is reserved"):
            await store.append(forged.thread_id, frames, at=0, head=forged)
        assert await store.head(forged.thread_id) is None


@pytest.mark.parametrize("tags", [{"clew:rekeying": "victim"}, {PART: "log", "clew:old-log": "0"}])
async def test_an_append_token_makes_no_thread_with_reserved_tags(running: Running, tags: dict[str, str]) -> None:
    async with adder(running) as store:
        head = await written(store)
        forged = msgspec.structs.replace(head, thread_id="other", log_id="e" * 32, tags=tags)
        with pytest.raises(UsageError, match="reserved for Clew"):
            await store.append("other", await store.read("trip"), at=0, head=forged)
        assert await store.head("other") is None


async def test_a_reserved_tag_that_is_only_on_record_hides_no_thread(running: Running) -> None:
    async with adder(running) as store:
        await written(store)
        for _ in range(2):  # the second head is made from what the first put on record
            async with Thread.open(store, "trip") as thread:
                await thread.append(Described("Gone?", {PART: "log", "city": "Paris"}))
        head = await store.head("trip")
        assert head is not None
        assert head.tags == {"city": "Paris"}


async def test_an_append_ahead_of_the_log_is_a_conflict_even_if_another_makes_up_for_it(running: Running) -> None:
    """The one that is ahead follows nothing when it is checked, and would fit when it is written."""
    async with adder(running) as store, HTTPCheckpointer(running.url, token=ADDER, retries=0) as second:
        head = await written(store)
        for number in range(head.frames, head.frames + 20):
            [data], grown = with_frame()(head)
            ahead = msgspec.structs.replace(
                grown, frames=number + 2, digest="00" * 16, updated_at=head.updated_at - timedelta(days=900)
            )
            honest, forged = await asyncio.gather(
                store.append("trip", [data], at=number, head=grown),
                second.append("trip", [bytes(64)], at=number + 1, head=ahead),
                return_exceptions=True,
            )
            assert honest is None
            assert isinstance(forged, Conflict | UsageError)
            assert await store.head("trip") == grown
            head = grown
        assert (await Thread.verify(store, "trip")).sound


async def test_between_the_check_of_an_append_and_its_writing_no_other_is_checked(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, most = 0, 0
    append = SQLiteCheckpointer.append

    def counted_check(stored: Head | None, body: Append) -> None:
        nonlocal checked, most
        check_addition(stored, body)
        checked += 1
        most = max(most, checked)

    async def counted_append(*arguments: Any, **named: Any) -> None:
        nonlocal checked
        try:
            await append(*arguments, **named)
        finally:
            checked -= 1

    async with adder(running) as store:
        head = await written(store)
        monkeypatch.setattr("clew.server.routes.threads.check_addition", counted_check)
        monkeypatch.setattr(SQLiteCheckpointer, "append", counted_append)
        await asyncio.gather(*[store.append("trip", [], at=head.frames, head=head) for _ in range(32)])
    assert most == 1


async def test_an_append_that_says_what_it_adds_is_taken(running: Running) -> None:
    async with adder(running) as store:
        head = await written(store)
        frames, added = with_frame(snapshot=lambda head: head.snapshot)(head)
        for _ in range(2):  # the second time as a repetition
            await store.append("trip", frames, at=head.frames, head=added)
        assert await store.head("trip") == added


async def test_an_append_token_deletes_neither_threads_nor_blobs(running: Running) -> None:
    async with adder(running) as store:
        head = await written(store)
        with pytest.raises(UsageError, match="scope 'delete'"):
            await store.delete("trip")
        with pytest.raises(UsageError, match="scope 'delete'"):
            await Thread.purge(store, "trip")
        with pytest.raises(UsageError, match="scope 'admin'"):
            await store.delete_blobs(["0" * 64], untouched_for=timedelta(0))
        assert await store.head("trip") == head


def test_a_head_that_claims_many_frames_is_refused_before_they_are_counted() -> None:
    base = new_head("trip")
    stored = msgspec.structs.replace(base, frames=1, digest="00" * 16)
    claimed = msgspec.structs.replace(stored, frames=10**15, snapshot=10**14)
    with pytest.raises(Refused, match="another number of frames"):
        check_addition(stored, Append(at=1, head=claimed, frames=[]))
