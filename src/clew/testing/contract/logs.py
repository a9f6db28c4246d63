"""Tests that every store has to pass for one thread's log and head: an append is durable, happens whole or not at all,
only at the right position, and can be repeated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from clew.checkpointers.heads import Head, Lease, Owner, QueuePlace
from clew.checkpointers.sealed import SealedCheckpointer
from clew.errors import Conflict, Corrupt, MissingBlob, NotSealed, WrongKey
from clew.log.keys import Keyring
from clew.testing.contract.builders import OpenStore, a_head, append, digest_of, listed, minute, put, state

_FAR = 2**63
"""A number that is too large for the integers of a database."""


class LogContract:
    """Tests of the methods `append`, `read`, `head`, `refs` and `delete` of a checkpointer that is used by one caller
    at a time."""

    # Durable and atomic

    async def test_an_acknowledged_append_is_seen_at_once_through_another_opener(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        [blob] = await put(store, b"blob")
        head = await append(store, "thread", b"one", b"two", refs=[blob])
        assert await state(other, "thread") == ([b"one", b"two"], head, {blob})
        head = await append(other, "thread", b"three", at=2)
        assert await state(store, "thread") == ([b"one", b"two", b"three"], head, {blob})

    async def test_the_head_counts_the_frames_that_are_there(self, open_store: OpenStore) -> None:
        store = open_store()
        for at in range(0, 6, 2):
            await append(store, "thread", b"one", b"two", at=at)
            head = await store.head("thread")
            assert head is not None
            assert head.frames == len(await store.read("thread")) == at + 2

    async def test_a_refused_append_leaves_frames_head_and_refs_as_they_were(self, open_store: OpenStore) -> None:
        store = open_store()
        kept, other = await put(store, b"kept", b"other")
        await append(store, "thread", b"one", b"two", refs=[kept])
        before = await state(store, "thread")
        with pytest.raises(Conflict):
            await append(store, "thread", b"late", at=1, refs=[other], title="late")
        with pytest.raises(MissingBlob):
            await append(store, "thread", b"three", at=2, refs=[other, digest_of(b"absent")], title="missing")
        assert await state(store, "thread") == before

    async def test_a_refused_first_append_makes_no_thread(self, open_store: OpenStore) -> None:
        store = open_store()
        with pytest.raises(Conflict):
            await append(store, "thread", b"frame", at=1)
        with pytest.raises(MissingBlob):
            await append(store, "thread", b"frame", refs=[digest_of(b"absent")])
        assert await state(store, "thread") == ([], None, set())
        assert await listed(store) == []

    # Conditional

    async def test_an_append_where_the_log_does_not_end_is_a_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"one", b"two", b"three")
        before = await state(store, "thread")
        for at in (0, 1, 2, 4, 1000, 2**32, _FAR):
            with pytest.raises(Conflict):
                await append(store, "thread", b"new", at=at)
        assert await state(store, "thread") == before

    async def test_an_append_past_the_start_of_an_absent_thread_is_a_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        for at in (1, 2**32, _FAR):
            with pytest.raises(Conflict):
                await append(store, "thread", b"frame", at=at)
        assert await store.head("thread") is None

    async def test_an_append_with_another_log_id_is_a_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"one", log_id="log-1")
        before = await state(store, "thread")
        for log_id in ("log-2", "LOG-1", "log-1 ", ""):
            with pytest.raises(Conflict):
                await append(store, "thread", b"two", at=1, log_id=log_id)
            with pytest.raises(Conflict):  # the very bytes that are there, but of another log
                await append(store, "thread", b"one", at=0, log_id=log_id)
        assert await state(store, "thread") == before

    async def test_a_thread_deleted_and_made_again_is_another_log(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        [blob] = await put(store, b"blob")
        await append(store, "thread", b"old", log_id="old", refs=[blob])
        await other.delete("thread")
        head = await append(other, "thread", b"new", log_id="new")
        with pytest.raises(Conflict):
            await append(store, "thread", b"more", at=1, log_id="old")
        with pytest.raises(Conflict):
            await append(store, "thread", at=1, log_id="old")
        assert await state(store, "thread") == ([b"new"], head, set())

    async def test_a_conflict_says_which_thread(self, open_store: OpenStore) -> None:
        store = open_store()
        with pytest.raises(Conflict, match="'user/1'") as caught:
            await append(store, "user/1", b"frame", at=5)
        assert caught.value.thread_id == "user/1"

    # Idempotent

    async def test_the_same_append_made_again_succeeds_and_changes_nothing(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        await append(store, "thread", b"one", b"two")
        await append(store, "thread", b"three", b"", at=2)
        before = await state(store, "thread")
        await append(other, "thread", b"three", b"", at=2)
        await append(other, "thread", b"one", b"two", at=0)
        assert await state(store, "thread") == before

    async def test_an_append_made_again_succeeds_though_the_log_has_gone_on(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"one", b"two", title="first")
        await append(store, "thread", b"three", at=2, title="second")
        await append(store, "thread", at=3, title="third")
        before = await state(store, "thread")
        await append(store, "thread", b"one", b"two", at=0, title="first")
        await append(store, "thread", b"three", at=2, title="second")
        assert await state(store, "thread") == before, "a repeated append must not bring its old head back"

    async def test_an_append_made_again_with_other_bytes_is_a_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"one", b"two", b"three")
        before = await state(store, "thread")
        for frames in ([b"one", b"TWO", b"three"], [b"one", b"two", b"thre"], [b"", b"two", b"three"], [b"two"]):
            with pytest.raises(Conflict):
                await append(store, "thread", *frames)
        assert await state(store, "thread") == before

    async def test_an_append_of_which_only_a_part_is_there_is_a_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"one", b"two")
        before = await state(store, "thread")
        with pytest.raises(Conflict):
            await append(store, "thread", b"one", b"two", b"three", at=0)
        with pytest.raises(Conflict):
            await append(store, "thread", b"two", b"three", at=1)
        assert await state(store, "thread") == before

    async def test_equal_frames_at_the_end_are_appended_not_taken_for_a_repeat(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"same")
        await append(store, "thread", b"same", at=1)
        assert await store.read("thread") == [b"same", b"same"]

    # The head alone

    async def test_an_append_without_frames_replaces_the_head_alone(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        [blob] = await put(store, b"blob")
        await append(store, "thread", b"one", refs=[blob], title="old", tags={"a": "1"})
        head = await append(store, "thread", at=1, title="new", status="done", updated_at=minute(1))
        assert await state(other, "thread") == ([b"one"], head, {blob})
        assert await listed(other, title="old") == []
        assert await listed(other, title="new", status="done") == ["thread"]

    async def test_an_append_without_frames_is_conditional_too(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"one", b"two")
        before = await state(store, "thread")
        for at in (0, 1, 3):
            with pytest.raises(Conflict):
                await append(store, "thread", at=at, title="late")
        with pytest.raises(Conflict):
            await append(store, "thread", at=2, log_id="another", title="late")
        assert await state(store, "thread") == before

    async def test_an_append_without_frames_makes_no_thread(self, open_store: OpenStore) -> None:
        store = open_store()
        for at in (0, 1):
            with pytest.raises(Conflict):
                await append(store, "thread", at=at)
        assert await store.head("thread") is None
        assert await listed(store) == []

    # Reading

    async def test_an_absent_thread_reads_as_absent(self, open_store: OpenStore) -> None:
        store = open_store()
        assert await state(store, "thread") == ([], None, set())
        assert await listed(store) == []

    async def test_frames_are_any_bytes_and_may_be_empty(self, open_store: OpenStore) -> None:
        store = open_store()
        frames = [b"", bytes(range(256)), b"\0", b"\r\n", "é".encode("latin-1"), b"", b"\xff" * 70_000]
        await append(store, "thread", *frames)
        assert await store.read("thread") == frames

    async def test_a_range_gives_the_frames_that_exist_in_order(self, open_store: OpenStore) -> None:
        store = open_store()
        frames = [b"%d" % number for number in range(12)]
        await append(store, "thread", *frames[:5])
        await append(store, "thread", *frames[5:], at=5)
        await append(store, "zzz", b"of another thread")
        stops = [None, 0, 1, 3, 5, 6, 11, 12, 13, 2**32, _FAR]
        for start in (0, 1, 4, 5, 6, 11, 12, 13, 2**32, _FAR):
            for stop in stops:
                assert await store.read("thread", start=start, stop=stop) == frames[start:stop], (start, stop)
            assert await store.read("absent", start=start) == []

    # Heads

    async def test_a_head_comes_back_with_every_field(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        head = _full_head("thread")
        for field in msgspec.structs.fields(Head):
            if not field.required:
                assert getattr(head, field.name) != field.default, f"this test forgets Head.{field.name}"
        await store.append("thread", [b"one", b"two"], at=0, head=head)
        assert await other.head("thread") == head
        assert [found async for found in other.heads()] == [head]

    async def test_a_head_comes_back_with_its_defaults(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        await append(store, "thread", b"one", **_as_fields(_full_head("thread")))
        bare = Head(
            thread_id="thread", frames=1, log_id="log-1", status="done", created_at=minute(0), updated_at=minute(1)
        )
        await store.append("thread", [], at=1, head=bare)
        assert await other.head("thread") == bare

    async def test_a_sealed_head_is_genuine_for_whoever_has_the_key_and_a_changed_one_is_not(
        self, open_store: OpenStore
    ) -> None:
        pytest.importorskip("cryptography", reason="needs the extra `encryption`")
        store = open_store()
        sealed, other = (SealedCheckpointer(opened, Keyring(bytes(32))) for opened in (store, open_store()))
        genuine = _full_head("thread")
        await sealed.append("thread", [b"one", b"two"], at=0, head=genuine)
        read = await other.head("thread")
        assert read is not None
        assert read == msgspec.structs.replace(genuine, seal="")
        assert [found async for found in other.heads()] == [read]
        stored = await store.head("thread")
        assert stored is not None
        changes: list[dict[str, Any]] = [
            {"turns": 4},
            {"lease": None},
            {"digest": digest_of(b"one")},
            {"seal": "00" * 24},
        ]
        for change in changes:
            await store.append("thread", [], at=2, head=msgspec.structs.replace(stored, **change))
            with pytest.raises((Corrupt, WrongKey), match="'thread'"):
                await other.head("thread")
            with pytest.raises((Corrupt, WrongKey), match="'thread'"):
                _ = [found async for found in other.heads()]
        await store.append("thread", [], at=2, head=read)
        with pytest.raises(NotSealed, match="'thread'"):
            await other.head("thread")

    async def test_an_unknown_cost_is_not_a_cost_of_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        for number, cost in enumerate([None, 0.0, 0.1 + 0.2, 1e-9]):
            head = await append(store, "thread", b"frame", at=number, cost_usd=cost)
            assert (await store.head("thread")) == head
            assert head.cost_usd == cost

    async def test_moments_come_back_to_the_microsecond_from_any_time_zone(self, open_store: OpenStore) -> None:
        store = open_store()
        moments = [
            datetime(2026, 3, 4, 5, 6, 7, 123457, tzinfo=UTC),
            datetime(2026, 3, 4, 5, 6, 7, 999999, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(9000, 1, 1, 0, 0, 0, 1, tzinfo=timezone(timedelta(hours=-11))),
        ]
        for number, moment in enumerate(moments):
            await append(store, f"{number}", b"frame", created_at=moment, updated_at=moment)
            head = await store.head(f"{number}")
            assert head is not None
            assert (head.created_at, head.updated_at) == (moment, moment)
            assert head.created_at.utcoffset() is not None
        newest_first = [f"{number}" for number in sorted(range(len(moments)), key=moments.__getitem__, reverse=True)]
        assert await listed(store) == await listed(store, order="created") == newest_first

    async def test_text_in_a_head_comes_back_letter_for_letter(self, open_store: OpenStore) -> None:
        store = open_store()
        text = "e\u0301 \u00e9 \U0001f9f5 ' \" \\ % _ * \n\t\x01 \ufeff end  "
        head = await append(store, "thread", b"frame", title=text, agent=text, model=text, tags={text: text, "": ""})
        assert await store.head("thread") == head
        assert await listed(store, title=text, agent=text, tags={text: text}) == ["thread"]

    # Deleting

    async def test_a_deleted_thread_is_absent_for_all(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        [blob] = await put(store, b"blob")
        await append(store, "thread", b"one", refs=[blob])
        kept = await append(store, "kept", b"two", refs=[blob])
        await store.delete("thread")
        assert await state(other, "thread") == ([], None, set())
        assert await state(other, "kept") == ([b"two"], kept, {blob})
        assert await listed(other) == ["kept"]

    async def test_deleting_an_absent_thread_is_no_error(self, open_store: OpenStore) -> None:
        store = open_store()
        await store.delete("thread")
        await append(store, "thread", b"frame")
        await store.delete("thread")
        await store.delete("thread")

    async def test_a_thread_made_again_starts_from_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        first, second = await put(store, b"first", b"second")
        await append(store, "thread", b"one", b"two", b"three", refs=[first], tags={"a": "1"}, log_id="old")
        await store.delete("thread")
        with pytest.raises(Conflict):
            await append(store, "thread", b"four", at=3, log_id="old")
        head = await append(store, "thread", b"new", refs=[second], log_id="new")
        assert await state(store, "thread") == ([b"new"], head, {second})


def _full_head(thread_id: str) -> Head:
    owner = Owner(host="machine", boot="boot-1", pid=4321, started="987.6", label="worker 7")
    return a_head(
        thread_id,
        frames=2,
        log_id="log-9",
        status="interrupted",
        lease=Lease(owner=owner, token="token-1", expires_at=minute(1) + timedelta(microseconds=1)),  # noqa: S106 - made up
        snapshot=1,
        digest=digest_of(b"two"),
        agent="planner",
        title="Plan a trip",
        model="anthropic:model",
        turns=3,
        input_tokens=2**40,
        output_tokens=17,
        cost_usd=0.123456789,
        parent=("its parent", 5),
        tags={"team": "blue", "": "empty name", "empty value": ""},
        seal="00" * 24,
        due=minute(2) + timedelta(microseconds=3),
        queue=QueuePlace(queued_at=minute(-1), priority=7, tries=2),
    )


def _as_fields(head: Head) -> dict[str, Any]:
    left_out = {"thread_id", "frames", "log_id"}
    return {name: getattr(head, name) for name in head.__struct_fields__ if name not in left_out}
