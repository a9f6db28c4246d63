"""A search through all threads of a store."""

from __future__ import annotations

import pytest

from clew.checkpointers import Checkpointer, Head, MemoryCheckpointer, SealedCheckpointer
from clew.errors import ClewError, InvalidInput, WrongKey
from clew.log import MessageAdded, Rewound
from clew.log.keys import Keyring
from clew.messages import File, Json, Text, Thinking, ToolCall, ToolResult, assistant, tool, user
from clew.threads import Thread
from clew.threads.views.search import Found, pattern_of, search

pytestmark = pytest.mark.anyio


async def found(store: Checkpointer, text: str, failed: list[ClewError] | None = None) -> list[Found]:
    def unreadable(head: Head, error: ClewError) -> None:
        assert failed is not None, error
        failed.append(error)

    return [one async for one in search(store, text, unreadable=unreadable)]


async def test_every_kind_of_words_is_found_with_its_turn() -> None:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "all") as thread:
            await thread.append(
                MessageAdded(user("An apple,\n  please.", File("apple.pdf"))),
                MessageAdded(assistant(Thinking("apple?"), "Apple!", ToolCall("c", "buy", {"what": "apple"}))),
                MessageAdded(tool(ToolResult("c", (Text("one apple"), Json({"apple": 1}))))),
                MessageAdded(user("No apple.")),
                MessageAdded(assistant("As you like.")),
                Rewound(turn=1),
                MessageAdded(user("Still an apple.")),
            )
        (one,) = await found(store, "aPPle")
        assert [(hit.where, hit.turn) for hit in one.hits] == [
            ("title", None),
            ("user", 1),
            ("user", 1),
            ("thinking", 1),
            ("assistant", 1),
            ("call", 1),
            ("result", 1),
            ("user", None),
            ("user", None),
        ]
        assert len(await found(store, "apple, please")) == 1
        assert await found(store, "apple please") == []


async def test_titles_come_before_messages_and_the_newest_first() -> None:
    async with MemoryCheckpointer() as store:
        for name, words in (("a", "pear"), ("b", "plum"), ("c", "pear")):
            async with Thread.open(store, name) as thread:
                await thread.append(MessageAdded(user(words)), MessageAdded(assistant("pear")))
        assert [one.head.thread_id for one in await found(store, "pear")] == ["c", "a", "b"]


async def test_what_was_found_is_shown_with_a_little_around_it() -> None:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "long") as thread:
            await thread.append(MessageAdded(user("x" * 500 + "needle" + "y" * 500)))
        (one,) = await found(store, "needle")
    (hit,) = one.hits
    assert (hit.text[0], hit.text[-1], "needle" in hit.text, len(hit.text)) == ("…", "…", True, 168)


async def test_a_sealed_thread_is_searched_with_its_key_and_told_of_without() -> None:
    async with MemoryCheckpointer() as store:
        sealed = SealedCheckpointer(store, Keyring(bytes(32)))
        async with Thread.open(sealed, "sealed") as thread:
            await thread.append(MessageAdded(user("hidden")))
        (one,) = await found(sealed, "hidden")
        assert [hit.where for hit in one.hits] == ["title", "user"]
        failed: list[ClewError] = []
        assert await found(store, "hidden", failed) == []
        assert [type(error) for error in failed] == [WrongKey]


def test_nothing_to_search_for_is_a_mistake() -> None:
    with pytest.raises(InvalidInput, match="a word"):
        pattern_of(" \n ")
