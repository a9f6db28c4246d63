"""Threads over a store: what is on record, what is lost never, who may write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import msgspec
import pytest

from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer
from clew.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    LeaseLost,
    MissingBlob,
    ThreadBusy,
    ThreadNotFound,
    Unavailable,
    UsageError,
)
from clew.log import (
    Checkpoint,
    Described,
    Logged,
    MessageAdded,
    ProviderKey,
    StateSet,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceSnapshot,
    fold,
)
from clew.log.blobs import pack_tree
from clew.messages import Message, Text, ToolCall, ToolResult, assistant, tool, user
from clew.threads import Thread, leases
from clew.threads import leases as owners
from clew.threads.leases import RENEW_AFTER
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.stores import store_fixture

pytestmark = pytest.mark.anyio


store = store_fixture("memory", "sqlite")


def turn(number: int) -> list[MessageAdded]:
    call = ToolCall(f"c{number}", "look", {"n": number})
    answer = ToolResult(f"c{number}", (Text(f"row {number}"),))
    return [
        MessageAdded(user(f"question {number}")),
        MessageAdded(assistant(f"answer {number}", call), Usage(100, 10), 0.01),
        MessageAdded(tool(answer)),
    ]


async def with_turns(store: Checkpointer, thread_id: str, count: int) -> None:
    async with Thread.open(store, thread_id) as thread:
        for number in range(1, count + 1):
            await thread.append(*turn(number))


def expected(count: int) -> tuple[Message, ...]:
    return fold([entry for number in range(1, count + 1) for entry in turn(number)]).messages


class Stumbling(MemoryCheckpointer):
    """A store that answers Unavailable now and then, before or after it has written, or takes its time."""

    fails: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.fails = []
        self.takes_its_time = asyncio.Event()
        self.appends = 0

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self.appends += 1
        fail = self.fails.pop(0) if self.fails else ""
        if fail == "before":
            raise Unavailable("no answer")
        await super().append(thread_id, frames, at=at, head=head, refs=refs)
        if fail == "after":
            raise Unavailable("the answer was lost")
        if fail == "slow":
            self.takes_its_time.set()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "entry",
    [
        Described("a title", {"priority": 1}),  # type: ignore[dict-item]
        StatusChanged("done", None),  # type: ignore[arg-type]
        StatusChanged("finished"),  # type: ignore[arg-type]
        StateSet(5, 1),  # type: ignore[arg-type]
        MessageAdded("hello"),  # type: ignore[arg-type]
        MessageAdded(user("hello"), None, "free"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
async def test_an_entry_with_a_value_of_a_wrong_type_is_refused_and_leaves_the_thread_readable(
    entry: Logged, store: Checkpointer
) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("kept")))
        with pytest.raises(InvalidInput, match=f"{type(entry).__name__} holds a value of a wrong type"):
            await thread.append(entry)
        await thread.append(StatusChanged("done"))
    state = await Thread.load(store, "t")
    assert (state.messages, state.status) == ((user("kept"),), "done")


async def test_what_was_appended_is_there_for_the_next_process(store: Checkpointer) -> None:
    await with_turns(store, "t", 3)
    checkpoint = await Thread.load(store, "t")
    assert checkpoint.messages == expected(3)
    assert (checkpoint.turns, checkpoint.usage) == (3, Usage(300, 30))
    assert checkpoint.cost_usd == pytest.approx(0.03)


async def test_an_opened_thread_goes_on_where_it_was(store: Checkpointer) -> None:
    await with_turns(store, "t", 2)
    async with Thread.open(store, "t") as thread:
        assert thread.checkpoint.messages == expected(2)
        await thread.append(*turn(3))
    assert (await Thread.load(store, "t")).messages == expected(3)


async def test_the_head_tells_what_the_log_adds_up_to(store: Checkpointer) -> None:
    async with Thread.open(store, "t", label="worker 7") as thread:
        await thread.append(ThreadStarted("ada", "m-1"), *turn(1), Described(tags={"team": "x"}))
        head = await store.head("t")
        assert head is not None
        assert head == thread.head
        assert (head.status, head.agent, head.model, head.turns) == ("running", "ada", "m-1", 1)
        assert (head.input_tokens, head.output_tokens, head.cost_usd) == (100, 10, 0.01)
        assert (head.title, head.tags) == ("question 1", {"team": "x"})
        assert head.lease is not None
        assert head.lease.owner.label == "worker 7"
    head = await store.head("t")
    assert head is not None
    assert (head.status, head.lease) == ("interrupted", None)


async def test_a_status_that_was_set_stays(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1), StatusChanged("done"))
    head = await store.head("t")
    assert head is not None
    assert head.status == "done"


async def test_a_thread_that_is_not_there_is_not_found(store: Checkpointer) -> None:
    with pytest.raises(ThreadNotFound, match="no thread 'nobody'"):
        await Thread.load(store, "nobody")


async def test_loading_takes_no_lease_and_changes_nothing(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1))
        before = await store.head("t")
        assert (await Thread.load(store, "t")).turns == 1
        assert await store.head("t") == before


async def test_a_second_opener_is_told_who_holds_the_thread(store: Checkpointer) -> None:
    async with Thread.open(store, "t", label="first"):
        with pytest.raises(ThreadBusy, match=r"'t' is being run by process \d+ on .* \(first\)") as caught:
            async with Thread.open(store, "t"):
                pass
        assert 25 < caught.value.expires_in <= 30


async def test_whoever_is_taken_over_gets_lease_lost_and_changes_nothing(store: Checkpointer) -> None:
    first = Thread.open(store, "t")
    await first.__aenter__()
    await first.append(*turn(1))
    async with Thread.open(store, "t", takeover=True, label="second") as second:
        log = await store.read("t")
        for _ in range(2):
            with pytest.raises(LeaseLost, match="taken over by process"):
                await first.append(*turn(9))
        with pytest.raises(LeaseLost):
            await first.__aexit__(None, None, None)
        assert await store.read("t") == log
        await second.append(*turn(2))
    assert (await Thread.load(store, "t")).messages == expected(2)


async def test_losing_the_lease_does_not_hide_the_error_that_came_first(store: Checkpointer) -> None:
    async def fail_after_a_takeover() -> None:
        async with Thread.open(store, "t"):
            async with Thread.open(store, "t", takeover=True):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_after_a_takeover()


async def test_who_is_cancelled_while_it_takes_the_lease_gives_it_back() -> None:
    store = Stumbling()
    store.fails = ["slow"]
    task = asyncio.create_task(Thread.open(store, "t").__aenter__())
    await store.takes_its_time.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1))


async def test_a_lease_that_was_seen_unchanged_for_its_whole_time_may_be_taken(
    store: Checkpointer, clock: Clock
) -> None:
    gone = Thread.open(store, "t")
    await gone.__aenter__()
    gone._end()  # it neither renews its lease nor gives it back
    with pytest.raises(ThreadBusy):
        await Thread.open(store, "t").__aenter__()
    clock.advance(leases.LEASE_TIME.total_seconds())
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1))


async def test_the_lease_of_a_dead_process_is_taken_at_once(
    store: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = owners.this_process()
    dead = msgspec.structs.replace(real, started="another time")
    monkeypatch.setattr(leases, "this_process", lambda label: dead)
    gone = Thread.open(store, "t")
    await gone.__aenter__()
    monkeypatch.setattr(leases, "this_process", lambda label: msgspec.structs.replace(real, label=label))
    async with Thread.open(store, "t"):
        pass
    gone._end()


async def test_a_process_of_another_machine_or_container_is_never_taken_for_dead() -> None:
    here = owners.this_process()
    assert not owners.provably_dead(here)
    assert not owners.provably_dead(msgspec.structs.replace(here, boot="elsewhere", pid=2**22 + 1))
    assert not owners.provably_dead(msgspec.structs.replace(here, boot="", pid=2**22 + 1))
    assert owners.provably_dead(msgspec.structs.replace(here, pid=2**22 + 1))


async def test_a_process_that_could_not_learn_when_it_started_is_never_taken_for_another() -> None:
    here = msgspec.structs.replace(owners.this_process(), started="")
    assert not owners.provably_dead(here)
    assert owners.provably_dead(msgspec.structs.replace(here, pid=2**22 + 1))


async def test_a_lease_is_renewed_while_nothing_is_written(store: Checkpointer, clock: Clock) -> None:
    async with Thread.open(store, "t") as thread:
        assert thread.head.lease is not None
        first, frames = thread.head.lease.expires_at, thread.head.frames
        await asyncio.sleep(0)  # what renews the lease begins to wait
        clock.advance(RENEW_AFTER.total_seconds())
        async with asyncio.timeout(PATIENCE):
            while (head := await store.head("t")) is None or head.lease is None or head.lease.expires_at <= first:
                await asyncio.sleep(0.01)
        assert head.frames == frames


async def test_a_crashed_thread_is_shown_as_interrupted(store: Checkpointer, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_turns(store, "ended", 1)
    async with Thread.open(store, "running") as running:
        await running.append(*turn(1))
        monkeypatch.setattr(leases, "LEASE_TIME", timedelta(seconds=-1))
        crashed = Thread.open(store, "crashed")
        await crashed.__aenter__()
        monkeypatch.undo()
        shown = {head.thread_id: head.status async for head in Thread.list(store)}
        assert shown == {"ended": "interrupted", "running": "running", "crashed": "interrupted"}
        interrupted = [head.thread_id async for head in Thread.list(store, HeadQuery(status="interrupted"))]
        assert sorted(interrupted) == ["crashed", "ended"]
        assert len([head async for head in Thread.list(store, HeadQuery(status="interrupted", limit=1))]) == 1
        assert [head.thread_id async for head in Thread.list(store, HeadQuery(status="running"))] == ["running"]
        assert (await Thread.load(store, "crashed")).status == "interrupted"
    crashed._end()


async def test_a_listing_finds_what_is_far_behind_others_that_do_not_match(store: Checkpointer) -> None:
    async with Thread.open(store, "wanted") as thread:
        await thread.append(StateSet("k", 1))
    now = datetime.now(UTC)
    for number in range(120):
        head = Head(thread_id=f"clew:{number}", frames=1, log_id="l", status="done", created_at=now, updated_at=now)
        await store.append(head.thread_id, [b"x"], at=0, head=head)
    assert [head.thread_id async for head in Thread.list(store, HeadQuery(limit=1))] == ["wanted"]
    assert [head.thread_id async for head in Thread.list(store)] == ["wanted"]
    assert [head async for head in Thread.list(store, HeadQuery(limit=0))] == []


async def test_a_listing_that_has_enough_asks_the_store_for_no_more() -> None:
    asked: list[HeadQuery] = []

    class Counting(MemoryCheckpointer):
        async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
            asked.append(query)
            async for head in super().heads(query):
                yield head

    async with Counting() as store:
        for number in range(60):
            async with Thread.open(store, f"t-{number}"):
                pass
        assert len([head async for head in Thread.list(store, HeadQuery(limit=50))]) == 50
    assert len(asked) == 1


async def test_a_rewound_thread_goes_on_from_the_earlier_turn(store: Checkpointer) -> None:
    await with_turns(store, "t", 5)
    async with Thread.open(store, "t") as thread:
        await thread.rewind(to_turn=2)
        assert thread.checkpoint.messages == expected(2)
        await thread.append(*turn(3))
    checkpoint = await Thread.load(store, "t")
    assert checkpoint.messages == expected(3)
    assert len(checkpoint.history) == 18
    assert checkpoint.usage == Usage(600, 60)


async def test_a_turn_that_does_not_exist_is_refused(store: Checkpointer) -> None:
    await with_turns(store, "t", 2)
    async with Thread.open(store, "t") as thread:
        with pytest.raises(InvalidInput, match="has turns 0 to 2; there is no turn 3"):
            await thread.rewind(to_turn=3)
        with pytest.raises(InvalidInput, match="no turn -1"):
            await thread.fork("f", at_turn=-1)
    with pytest.raises(InvalidInput):
        await Thread.load(store, "t", at_turn=9)


async def test_the_state_at_an_earlier_turn_can_be_looked_at(store: Checkpointer) -> None:
    await with_turns(store, "t", 4)
    assert (await Thread.load(store, "t", at_turn=1)).messages == expected(1)
    assert (await Thread.load(store, "t")).turns == 4


async def test_a_fork_goes_on_by_itself(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        for number in (1, 2, 3):
            await thread.append(*turn(number), StateSet("at", number))
        head = await thread.fork("f", at_turn=2)
        assert (head.parent, head.turns, head.status) == (("t", 2), 2, "interrupted")
        await thread.append(*turn(4))
    async with Thread.open(store, "f") as branch:
        assert branch.checkpoint.messages == expected(2)
        assert branch.checkpoint.state == {"at": 2}
        assert (branch.checkpoint.usage, branch.checkpoint.cost_usd) == (Usage(), 0.0)
        await branch.append(*turn(3))
        await branch.rewind(to_turn=1)
    assert (await Thread.load(store, "f")).messages == expected(1)
    assert (await Thread.load(store, "t")).messages == expected(4)
    assert [head.thread_id async for head in Thread.list(store, HeadQuery(parent="t"))] == ["f"]


async def test_a_fork_shares_large_values(store: Checkpointer) -> None:
    large = "a long document. " * 10_000
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user(large)), MessageAdded(assistant("read")))
        await thread.fork("f")
    assert await store.refs("f") == await store.refs("t")
    assert (await Thread.load(store, "f")).messages[0] == user(large)


async def test_calls_that_are_open_when_a_fork_is_taken_are_in_doubt_in_it(store: Checkpointer) -> None:
    three = assistant(ToolCall("a", "t", {}), ToolCall("b", "t", {}), ToolCall("c", "t", {}))
    async with Thread.open(store, "t") as thread:
        await thread.append(
            MessageAdded(user("go")), MessageAdded(three), ToolIntent(1, 0, "k"), ToolIntent(1, 1, "k2")
        )
        await thread.append(ToolOutcome(1, 0, ToolResult("a")))
        await thread.fork("f")
    calls = (await Thread.load(store, "f")).calls
    assert [(call.status, call.key) for call in calls] == [("done", "k"), ("in_doubt", "k2"), ("in_doubt", "")]


async def test_a_fork_never_overwrites_a_thread(store: Checkpointer) -> None:
    await with_turns(store, "taken", 1)
    async with Thread.open(store, "t") as thread:
        with pytest.raises(Conflict, match="this thread exists"):
            await thread.fork("taken")
    assert (await Thread.load(store, "taken")).turns == 1


async def test_a_deleted_thread_is_gone_and_can_be_made_anew(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1))
        await thread.delete()
        with pytest.raises(UsageError, match="is closed"):
            await thread.append(*turn(2))
    with pytest.raises(ThreadNotFound):
        await Thread.load(store, "t")
    await with_turns(store, "t", 2)
    assert (await Thread.load(store, "t")).turns == 2


async def test_a_holder_whose_thread_was_deleted_writes_nothing_into_a_new_one(store: Checkpointer) -> None:
    first = Thread.open(store, "t")
    await first.__aenter__()
    await store.delete("t")
    with pytest.raises(LeaseLost, match="deleted"):
        await first.append(*turn(1))
    await with_turns(store, "t", 1)
    with pytest.raises(LeaseLost):
        await first.append(*turn(1))
    assert (await Thread.load(store, "t")).turns == 1
    first._end()


async def test_saving_appends_what_differs(store: Checkpointer) -> None:
    await with_turns(store, "t", 2)
    files, packed = pack_tree(b"no files")
    await store.put_blobs({files: packed})
    async with Thread.open(store, "t") as thread:
        wanted = fold(
            [*turn(3), StateSet("k", [1]), ProviderKey("codex", "x"), WorkspaceSnapshot(files, 1)], thread.checkpoint
        )
        before = thread.head.frames
        await thread.save(wanted)
        assert thread.checkpoint.messages == expected(3)
        assert thread.head.frames == before + 1
        await thread.save(wanted)
        assert thread.head.frames == before + 1
    loaded = await Thread.load(store, "t")
    assert (loaded.state, loaded.provider_keys, loaded.usage) == ({"k": [1]}, {"codex": "x"}, Usage(300, 30))
    assert loaded.workspace == WorkspaceSnapshot(files, 1)


async def test_saving_a_changed_conversation_rewinds_first(store: Checkpointer) -> None:
    await with_turns(store, "t", 3)
    other: Checkpoint = fold([*turn(1), MessageAdded(user("something else")), MessageAdded(assistant("indeed"))])
    async with Thread.open(store, "t") as thread:
        await thread.save(other)
    loaded = await Thread.load(store, "t")
    assert loaded.messages == other.messages
    assert loaded.turns == 2
    assert len(loaded.history) > len(loaded.messages)
    assert loaded.usage == Usage(300, 30)


async def test_saving_cannot_take_state_away_unseen(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(StateSet("k", 1))
        with pytest.raises(InvalidInput, match="set these keys to None: k"):
            await thread.save(fold(turn(1)))


async def test_a_long_log_full_of_noise_opens_from_a_folded_state(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1))
        for number in range(60):
            await thread.append(*(ToolIntent(n, 0, f"no such call {number} {n * 7919}") for n in range(200, 400)))
        assert thread.head.snapshot > 0
        await thread.append(*turn(2))
        snapshot = thread.head.snapshot
    loaded = await Thread.load(store, "t")
    assert loaded.messages == expected(2)
    assert len(await store.read("t", start=snapshot)) < 40


async def test_a_plain_conversation_spends_nothing_on_folded_states(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        for number in range(150):
            text = " ".join(str(hash((number, n))) for n in range(60))
            await thread.append(MessageAdded(user(text)), MessageAdded(assistant(text[::-1])))
        assert thread.head.snapshot == -1


async def test_a_state_too_large_for_a_frame_is_not_written_again_and_again(store: Checkpointer) -> None:
    folded = set()
    dice = Random(7)
    async with Thread.open(store, "t") as thread:
        for _ in range(6):
            await thread.append(*(MessageAdded(user(dice.randbytes(25_000).hex())) for _ in range(30)))
    for _ in range(2):  # the second process knows the size of a state that the first has written only from its record
        async with Thread.open(store, "t") as thread:
            for _ in range(30):
                await thread.append(*(ToolIntent(9, 0, dice.randbytes(8_000).hex()) for _ in range(20)))
                folded.add(thread.head.snapshot)
    assert len(folded) <= 2


async def test_concurrent_appends_are_all_kept_in_order(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await asyncio.gather(*(thread.append(StateSet(str(number), number)) for number in range(50)))
        await asyncio.gather(*(thread.append(StateSet(str(number), number)) for number in range(50)))
    assert (await Thread.load(store, "t")).state == {str(number): number for number in range(50)}


async def test_after_an_unavailable_store_nothing_is_lost_or_doubled() -> None:
    store = Stumbling()
    async with Thread.open(store, "t") as thread:
        for number, fail in enumerate(["before", "after", "before"], start=1):
            store.fails = [fail]
            with pytest.raises(Unavailable):
                await thread.append(*turn(number))
            if fail == "after":
                await thread.flush()
        assert thread.checkpoint.messages == expected(3)
    assert (await Thread.load(store, "t")).messages == expected(3)


async def test_a_store_that_is_unavailable_at_the_end_keeps_the_thread_open() -> None:
    store = Stumbling()
    thread = Thread.open(store, "t", durability="exit")

    async def work() -> None:
        async with thread:
            await thread.append(*turn(1))
            store.fails = ["before"]

    with pytest.raises(Unavailable):
        await work()
    await thread.flush()
    assert (await Thread.load(store, "t")).messages == expected(1)
    await thread.__aexit__(None, None, None)


async def test_a_cancelled_append_is_settled_by_the_next() -> None:
    store = Stumbling()
    async with Thread.open(store, "t") as thread:
        store.fails = ["slow"]
        task = asyncio.create_task(thread.append(*turn(1)))
        await store.takes_its_time.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await thread.append(*turn(2))
    assert (await Thread.load(store, "t")).messages == expected(2)


async def test_sync_is_durable_when_append_returns(store: Checkpointer) -> None:
    async with Thread.open(store, "t", durability="sync") as thread:
        await thread.append(StateSet("k", 1))
        assert (await Thread.load(store, "t")).state == {"k": 1}


async def test_async_waits_for_barriers_and_lets_the_rest_follow() -> None:
    store = Stumbling()
    async with Thread.open(store, "t", durability="async") as thread:
        before = store.appends
        await thread.append(StateSet("k", 1))
        assert store.appends == before
        async with asyncio.timeout(PATIENCE):
            while (await Thread.load(store, "t")).state != {"k": 1}:
                await asyncio.sleep(0.01)
        await thread.append(StateSet("k", 2))
        await thread.append(MessageAdded(assistant("a response")))
        loaded = await Thread.load(store, "t")
        assert (loaded.state, loaded.turns) == ({"k": 2}, 1)


async def test_exit_keeps_everything_in_memory_until_the_end() -> None:
    store = Stumbling()
    async with Thread.open(store, "t", durability="exit") as thread:
        before = store.appends
        for number in (1, 2):
            await thread.append(*turn(number))
        assert store.appends == before
        await thread.flush()
        assert (await Thread.load(store, "t")).messages == expected(2)
        await thread.append(*turn(3))
    assert (await Thread.load(store, "t")).messages == expected(3)


async def test_a_value_that_cannot_be_stored_spoils_nothing(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        with pytest.raises(InvalidInput):
            await thread.append(StateSet("good", 1), StateSet("bad", object()))
        assert thread.checkpoint.state == {}
        await thread.append(StateSet("good", 2))
    assert (await Thread.load(store, "t")).state == {"good": 2}


async def test_a_thread_that_is_not_open_says_how_to_open_it(store: Checkpointer) -> None:
    thread = Thread.open(store, "t")
    with pytest.raises(UsageError, match=r"async with Thread\.open"):
        await thread.append(*turn(1))
    async with thread:
        pass
    with pytest.raises(UsageError, match="is closed"):
        await thread.append(*turn(1))
    with pytest.raises(UsageError, match="opened before"):
        await thread.__aenter__()


async def test_an_unknown_durability_is_refused(store: Checkpointer) -> None:
    with pytest.raises(InvalidInput, match="durability must be one of sync, async, exit, not 'eventually'"):
        Thread.open(store, "t", durability="eventually")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        ([0, 1, 2, 3, 4], "frame 5 is missing"),
        ([0, 2, 1, 3, 4, 5], "frame 1 does not follow"),
        ([0, 1, 2, 4, 5], "is missing"),
        ([0, 1, 2, 3, 4, 0], "frame 5 does not follow"),
        ([1, 2, 3, 4, 5, 5], "frame 0 does not follow"),
    ],
)
async def test_a_log_cut_short_or_mixed_up_is_corrupt(order: list[int], complaint: str) -> None:
    class Altered(MemoryCheckpointer):
        async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
            frames = await super().read(thread_id)
            return [frames[number] for number in order] if frames else []

    store = Altered()
    async with Thread.open(store, "t") as thread:
        for number in (1, 2, 3, 4):
            await thread.append(*turn(number))
    with pytest.raises(Corrupt, match=complaint):
        await Thread.load(store, "t")


async def test_a_missing_blob_is_named(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("x" * 100_000)))
    digests = await store.refs("t")
    await store.delete_blobs(digests, untouched_for=timedelta(0))
    with pytest.raises(MissingBlob, match=next(iter(digests))):
        await Thread.load(store, "t")


async def test_times_in_the_head_are_of_now(store: Checkpointer) -> None:
    await with_turns(store, "t", 1)
    first = await store.head("t")
    await with_turns(store, "t", 1)
    second = await store.head("t")
    assert first is not None
    assert second is not None
    assert first.created_at == second.created_at <= first.updated_at <= second.updated_at <= datetime.now(UTC)
