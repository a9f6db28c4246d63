"""The work of a lab: prompts for many threads, given at the start and while they run, and the wait until all is done."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable

from clew import Thread
from clew.checkpointers import Checkpointer
from clew.errors import Unavailable
from clew.threads.inbox import new_posts
from clew.workers import enqueue
from tests.crash.lab.agent import NAME, prompt
from tests.limits import PATIENCE

__all__ = ["Work"]


class Work:
    """Prompts for the threads of one store, and how often each text has to be asked."""

    def __init__(self, store: Checkpointer, threads: int) -> None:
        self._store = store
        self._posted = 0
        self.texts: dict[str, Counter[str]] = {f"lab-{number}": Counter() for number in range(threads)}
        """For each thread, how often each text was given as a prompt of its own."""

    async def begin(self, turns: int) -> None:
        """Queue every thread with a prompt that wants so many turns."""

        async def ask(thread_id: str) -> None:
            await enqueue(self._store, thread_id, self._new(thread_id, turns), agent=NAME, prompt_id="first")

        threads = list(self.texts)
        for start in range(0, len(threads), 20):
            await asyncio.gather(*map(ask, threads[start : start + 20]))

    async def post(self, turns: int = 2) -> None:
        """Give a thread another prompt, in one of the ways in which prompts are given. Each time that nobody can know
        whether it arrived, give it again with the same id, as a program has to."""
        thread_id = random.choice(list(self.texts))
        self._posted += 1
        words, name = f"({self._posted})", f"post-{self._posted}"
        way = random.choice(("enqueue", "post", "twice", "equal"))
        if way == "equal":  # the same words as a prompt before, with an id of their own
            words = ""
        for _ in range(2 if way == "twice" else 1):
            text = prompt(thread_id, turns, words)
            if way == "post":
                await _sent(lambda: Thread.post(self._store, thread_id, text, prompt_id=name))
            else:
                await _sent(lambda: enqueue(self._store, thread_id, text, agent=NAME, prompt_id=name))
        self._new(thread_id, turns, words)

    def _new(self, thread_id: str, turns: int, words: str = "") -> str:
        text = prompt(thread_id, turns, words)
        self.texts[thread_id][text] += 1
        return text

    async def finish(self, said: Callable[[], str] = str) -> None:
        """Wait until every thread is done and all its prompts were taken in. `said` says what the workers said."""
        await self._until_done(said)
        for thread_id in self.texts:  # a post is taken in by the next run, and this is one
            await _sent(lambda thread_id=thread_id: enqueue(self._store, thread_id))
        await self._until_done(said)
        for thread_id in self.texts:
            state = await Thread.load(self._store, thread_id)
            head = await self._store.head(thread_id)
            assert head is not None
            assert await new_posts(self._store, head, state.inbox_read) == (), f"{thread_id}: posts were not taken in"

    async def _until_done(self, said: Callable[[], str]) -> None:
        last, left, deadline = -1, set(self.texts), time.monotonic() + PATIENCE
        while left:
            heads = [await self._store.head(thread_id) for thread_id in sorted(left)]
            left -= {
                head.thread_id for head in heads if head is not None and head.status == "done" and head.due is None
            }
            frames = sum(head.frames for head in heads if head is not None)
            if frames != last:
                last, deadline = frames, time.monotonic() + PATIENCE
            statuses = Counter(head.status for head in heads if head is not None)
            assert time.monotonic() < deadline, f"nothing goes on: {statuses}\n{said()}"
            assert not statuses["failed"], (
                f"{[head for head in heads if head and head.status == 'failed'][0]}\n{said()}"
            )
            await asyncio.sleep(0.3)


async def _sent(send: Callable[[], object]) -> None:
    """Await this call until the store has answered it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await send()  # type: ignore[misc] # every one of them is a coroutine
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.5)
        else:
            return
