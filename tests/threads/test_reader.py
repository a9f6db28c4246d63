"""From frames to a state: every frame is looked at and follows the one before it, however many there are."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, Head, MemoryCheckpointer, SealedCheckpointer
from clew.errors import Corrupt, MissingBlob
from clew.log import (
    FIRST,
    Logged,
    MessageAdded,
    ModelCallStarted,
    StateSet,
    ToolIntent,
    ToolOutcome,
    encode_entries,
    encode_frame,
)
from clew.log.keys import Keyring
from clew.messages import Text, ToolCall, ToolResult, assistant, user
from clew.threads import writer
from clew.threads.reader import load

pytestmark = pytest.mark.anyio

FRAMES = 100
"""More than are decoded in one go."""


def plain() -> MemoryCheckpointer:
    return MemoryCheckpointer()


def sealed() -> Checkpointer:
    return SealedCheckpointer(MemoryCheckpointer(), Keyring(bytes(32)))


@pytest.fixture(params=[plain, sealed])
async def store(request: pytest.FixtureRequest) -> Checkpointer:
    made: Checkpointer = request.param()
    return made


async def write(
    store: Checkpointer, groups: list[list[Logged]], *, broken_at: int | None = None, damaged_at: int | None = None
) -> Head:
    """A log with a frame for each of these groups; one of them perhaps behind another frame, or damaged."""
    previous, frames = FIRST, []
    blobs: dict[str, bytes] = {}
    for number, entries in enumerate(groups):
        encoded = encode_frame(
            [encode_entries(entries)],
            previous=bytes(16) if number == broken_at else previous,
            thread_id="t",
            number=number,
            keys=store.keys,
        )
        blobs |= encoded.blobs
        data = encoded.data
        frames.append(data[:-1] + bytes([data[-1] ^ 1]) if number == damaged_at else data)
        previous = encoded.digest
    now = datetime.now(UTC)
    head = Head(thread_id="t", frames=len(frames), status="done", digest=previous.hex(), created_at=now, updated_at=now)
    await store.put_blobs(blobs)
    await store.append("t", frames, at=0, head=head, refs=list(blobs))
    return head


def steps(count: int = FRAMES) -> list[list[Logged]]:
    return [[StateSet("step", number), MessageAdded(user(f"message {number} " * 9))] for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, FRAMES])
async def test_every_frame_of_a_log_is_part_of_the_state(store: Checkpointer, count: int) -> None:
    if count:
        await write(store, steps(count))
        state = await Thread.load(store, "t")
        assert [message.content[0] for message in state.history] == [
            Text(f"message {number} " * 9) for number in range(count)
        ]
        assert state.state == {"step": count - 1}


@pytest.mark.parametrize("place", [1, 31, 32, 33, 63, 64, 99])
async def test_a_frame_that_does_not_follow_the_one_before_it_is_named(store: Checkpointer, place: int) -> None:
    await write(store, steps(), broken_at=place)
    with pytest.raises(Corrupt, match=f"thread 't', frame {place} does not follow"):
        await Thread.load(store, "t")


@pytest.mark.parametrize("place", [0, 31, 32, 63, 64, 99])
async def test_a_damaged_frame_is_named(store: Checkpointer, place: int) -> None:
    await write(store, steps(), damaged_at=place)
    with pytest.raises(Corrupt, match=f"thread 't', frame {place} fails its check"):
        await Thread.load(store, "t")


class Counting(MemoryCheckpointer):
    """Counts how often blobs are fetched, and may have lost some."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = 0
        self.lost = False

    async def get_blobs(self, digests: Any) -> dict[str, bytes]:
        self.fetches += 1
        return {} if self.lost else await super().get_blobs(digests)


@pytest.mark.parametrize("keys", [None, Keyring(bytes(32))])
async def test_large_values_anywhere_in_a_log_are_in_their_place_and_are_fetched_together(keys: Keyring | None) -> None:
    counting = Counting()
    store = counting if keys is None else SealedCheckpointer(counting, keys)
    groups = steps()
    for place in (3, 40, 41, 90):
        groups[place].append(StateSet(f"large {place}", f"{place} " * 40_000))
    await write(store, groups)
    state = await Thread.load(store, "t")
    assert [state.state[f"large {place}"] for place in (3, 40, 41, 90)] == [
        f"{place} " * 40_000 for place in (3, 40, 41, 90)
    ]
    assert state.state["step"] == FRAMES - 1
    assert len(state.history) == FRAMES
    assert counting.fetches == 1
    counting.lost = True
    with pytest.raises(MissingBlob, match="'t'"):
        await Thread.load(store, "t")


async def test_a_body_that_is_a_blob_itself_and_refers_to_blobs_is_read() -> None:
    store = Counting()
    groups = steps(40)
    noise = [Random(number).randbytes(1000) for number in range(5000)]
    groups[35] = [StateSet("noise", noise), StateSet("large", "text " * 20_000)]
    await write(store, groups)
    state = await Thread.load(store, "t")
    assert state.state["noise"] == noise
    assert state.state["large"] == "text " * 20_000
    assert state.state["step"] == 39
    assert store.fetches == 2


async def test_a_head_that_names_a_folded_state_behind_its_log_is_corrupt() -> None:
    store = MemoryCheckpointer()
    head = await write(store, steps(3))
    await store.append("t", [], at=3, head=msgspec.structs.replace(head, snapshot=3))
    with pytest.raises(Corrupt, match="'t'"):
        await Thread.load(store, "t")


def agent_turn(number: int) -> list[list[Logged]]:
    """The frames of a turn as an agent writes them: small ones around large ones."""
    call = ToolCall(f"c{number}", "look", {"n": number})
    words = " ".join(str(hash((number, word))) for word in range(40))
    return [
        [ModelCallStarted("m", "r")],
        [MessageAdded(assistant(words, call)), ToolIntent(2 * number, 0, "k", 1)],
        [ToolOutcome(2 * number, 0, ToolResult(f"c{number}", (Text(words[::-1]),)))],
    ]


async def test_whoever_goes_on_with_a_long_conversation_spends_nothing_on_folded_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryCheckpointer()
    async with Thread.open(store, "t") as thread:
        for number in range(120):
            for entries in agent_turn(number):
                await thread.append(*entries)
        assert thread.head.snapshot == -1
        known = thread._open_writer()._size
    loaded = (await load(store, "t")).size
    assert loaded.since > known.since > 64 * 1024
    assert loaded.kept == pytest.approx(known.kept, rel=0.05)
    tried: list[object] = []
    monkeypatch.setattr(writer, "FoldedState", tried.append)
    async with Thread.open(store, "t") as thread:
        await thread.append(ModelCallStarted("m", "r"))
    assert tried == []
