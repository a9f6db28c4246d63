"""Words that an agent's model writes, passed on to those who follow its thread: best effort, and never in the way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from clew import Agent
from clew.agent import live
from clew.agent.events import Event, Retrying, TextDelta, ThinkingDelta, TurnStarted
from clew.agent.live import published
from clew.checkpointers import Delta, MemoryCheckpointer
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.checkpointers.live import Changed, LiveChannel, LiveEvent, NoLiveEvents
from clew.errors import Unavailable
from clew.models.base import ModelEvent, ModelRequest
from clew.testing import ScriptedModel, say
from tests.limits import PATIENCE
from tests.server.serving import a_token, serving

pytestmark = pytest.mark.anyio

SECRET = "a-long-and-secret-token"


class Channel(LiveChannel):
    """A channel that keeps what it is given, and answers with what `answer` returns."""

    def __init__(self, answer: Callable[[], Awaitable[int]] | None = None) -> None:
        self.calls: list[list[Delta]] = []
        self._answer = answer
        self.called = asyncio.Event()

    @property
    def text(self) -> str:
        return "".join(delta.text for call in self.calls for delta in call)

    async def publish(self, thread_id: str, deltas: Sequence[Delta]) -> int:
        self.calls.append(list(deltas))
        self.called.set()
        return 1 if self._answer is None else await self._answer()

    async def follow(self, thread_id: str, *, after: int = -1, log_id: str = "") -> AsyncIterator[LiveEvent]:
        yield Changed()


class Store(MemoryCheckpointer, LiveChannel):
    """A store in memory that passes words on to its channel."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    async def publish(self, thread_id: str, deltas: Sequence[Delta]) -> int:
        return await self._channel.publish(thread_id, deltas)

    def follow(self, thread_id: str, *, after: int = -1, log_id: str = "") -> AsyncIterator[LiveEvent]:
        return self._channel.follow(thread_id, after=after, log_id=log_id)


class Paused(ScriptedModel):
    """A model that goes on after each piece of text when `go` says so."""

    go: Callable[[], Awaitable[object]]

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        async for event in super().stream(request):
            yield event
            if isinstance(event, TextDelta):
                await self.go()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def sent(channel: Channel, *events: Event) -> None:
    """Let a run emit these events, and wait until a message was sent."""
    async with published(channel, "t", lambda event: None) as emit:
        for event in events:
            emit(event)
        await asyncio.wait_for(channel.called.wait(), PATIENCE)


async def test_words_are_joined_and_say_where_they_belong() -> None:
    channel = Channel()
    await sent(channel, TurnStarted(3), TextDelta("Hel"), TextDelta("lo"), ThinkingDelta("hm"), TextDelta("!"))
    assert channel.calls == [[Delta(3, 0, "Hello"), Delta(3, 5, "hm", "thinking"), Delta(3, 7, "!")]]


async def test_a_response_that_is_asked_for_again_begins_anew() -> None:
    channel = Channel()
    await sent(channel, TurnStarted(1), TextDelta("Hel"), Retrying(2, 0.0, "cut"), TextDelta("Hi"))
    assert channel.calls == [[Delta(1, 0, "Hel"), Delta(1, 0, "Hi")]]


async def test_half_a_character_and_a_huge_piece_are_sent_in_a_form_that_is_accepted() -> None:
    channel = Channel()
    await sent(channel, TurnStarted(1), TextDelta("\ud83d" + "x" * 40_000))
    assert [(delta.at, len(delta.text)) for delta in channel.calls[0]] == [(0, 16384), (16384, 16384), (32768, 7233)]
    assert channel.text[0] == "?"


async def test_what_comes_faster_than_it_is_sent_is_dropped_and_leaves_a_gap() -> None:
    gate = asyncio.Event()

    async def answer() -> int:
        await gate.wait()
        return 1

    channel = Channel(answer)
    async with published(channel, "t", lambda event: None) as emit:
        emit(TextDelta("first"))
        await asyncio.wait_for(channel.called.wait(), PATIENCE)
        for _ in range(1000):
            emit(TextDelta("x" * 1000))
        gate.set()
        await until(lambda: len(channel.calls) == 2)
    (first, *_) = channel.calls[1]
    assert sum(len(delta.text) for delta in channel.calls[1]) <= 2**16
    assert first.at > 900_000


@pytest.mark.parametrize("words", [["😀" * 65_536], ["x", ""] * 300], ids=["large", "many"])
async def test_what_an_agent_sends_at_once_is_never_too_much_for_the_service(words: list[str]) -> None:
    with serving(tokens=[a_token(SECRET)]) as running:
        async with HTTPCheckpointer(running.url, token=SECRET) as store:
            channel = Channel()
            await sent(
                channel, *[part for word in words for part in (TextDelta(word), ThinkingDelta("hm"[: len(word)]))]
            )
            assert await store.publish("t", channel.calls[0]) == 0


async def test_while_nobody_follows_nothing_is_sent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_BETWEEN", 0)

    async def nobody() -> int:
        return 0

    channel = Channel(nobody)
    async with published(channel, "t", lambda event: None) as emit:
        emit(TextDelta("a"))
        await asyncio.wait_for(channel.called.wait(), PATIENCE)
        await asyncio.sleep(0)
        for _ in range(100):
            emit(TextDelta("b"))
            await asyncio.sleep(0)
    assert channel.text == "a"


async def test_words_are_sent_again_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_NOBODY", 0.001)
    monkeypatch.setattr(live, "_BETWEEN", 0)
    counts = iter([0, *[1] * 10_000])

    async def answer() -> int:
        return next(counts)

    channel = Channel(answer)
    async with published(channel, "t", lambda event: None) as emit:
        async with asyncio.timeout(PATIENCE):
            while len(channel.calls) < 3:
                emit(TextDelta("a"))
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", [Unavailable("gone"), NoLiveEvents(), ValueError("a bug")])
async def test_a_failure_never_reaches_the_run(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> int:
        raise error

    channel = Channel(fail)
    model = Paused([say("many words of an answer")])
    model.go = channel.called.wait
    result = await Agent(model, checkpointer=Store(channel)).run("Go.", thread_id="t")
    assert result.output == "many words of an answer"
    assert len(channel.calls) == 1
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


async def test_a_channel_that_hangs_does_not_hold_up_the_end_of_a_run() -> None:
    async def hang() -> int:
        await asyncio.Event().wait()
        return 1

    channel = Channel(hang)
    model = Paused([say("words")])
    model.go = channel.called.wait
    async with asyncio.timeout(PATIENCE):
        await Agent(model, checkpointer=Store(channel)).run("Go.", thread_id="t")


@pytest.mark.parametrize("redact", [[re.compile("secret")], lambda text: text])
async def test_an_agent_that_redacts_passes_no_words_on(redact: object) -> None:
    channel = Channel()
    agent = Agent(ScriptedModel([say("my se"), say("cret")]), checkpointer=Store(channel), redact=redact)  # type: ignore[arg-type]
    await agent.run("Go.", thread_id="t")
    assert channel.calls == []


async def test_those_who_follow_a_run_behind_a_service_get_its_words_before_they_are_on_record() -> None:
    with serving(tokens=[a_token(SECRET)]) as running:
        async with HTTPCheckpointer(running.url, token=SECRET) as store:
            await Agent(ScriptedModel(["first"]), checkpointer=store).run("Hello.", thread_id="t")
            seen: list[Delta] = []
            is_ready, heard = asyncio.Event(), asyncio.Event()

            async def follow() -> None:
                async for event in store.follow("t"):
                    is_ready.set()
                    if isinstance(event, Delta):
                        seen.append(event)
                        heard.set()

            task = asyncio.create_task(follow())
            await asyncio.wait_for(is_ready.wait(), PATIENCE)
            model = Paused([say("first"), say("words that nobody has stored")])
            model.go = heard.wait
            async with asyncio.timeout(PATIENCE):
                await Agent(model, checkpointer=store).run("And now?", thread_id="t")
            task.cancel()
            await asyncio.wait((task,))
    assert seen[0].turn == 2
    assert "words that nobody has stored".startswith(seen[0].text)
