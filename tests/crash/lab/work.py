"""The work of a lab: prompts for many threads, given at the start and while they run, and the wait until all is done."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from clew import Thread
from clew.checkpointers import Checkpointer
from clew.errors import ThreadNotFound, Unavailable
from clew.threads.inbox import new_posts
from clew.threads.leases import is_live
from clew.workers import enqueue
from tests.crash.lab.agent import NAME, prompt
from tests.limits import PATIENCE

__all__ = ["Work"]

_AT_ONCE = 20


class Work:
    """Prompts for the threads of one store, and how often each text has to be asked."""

    def __init__(self, store: Checkpointer, threads: int) -> None:
        self.store = store
        self._posted = 0
        self.texts: dict[str, Counter[str]] = {f"lab-{number}": Counter() for number in range(threads)}
        """For each thread, how often each text was given as a prompt of its own."""

    async def begin(self, turns: int) -> None:
        """Give every thread a prompt that wants so many turns."""
        threads = list(self.texts)
        for start in range(0, len(threads), _AT_ONCE):
            await asyncio.gather(*(self._begin(thread_id, turns) for thread_id in threads[start : start + _AT_ONCE]))

    async def _begin(self, thread_id: str, turns: int) -> None:
        text = prompt(thread_id, turns)
        self.texts[thread_id][text] += 1
        await self.give(thread_id, text, "first")

    async def give(self, thread_id: str, text: str, prompt_id: str) -> None:
        """Give a thread a prompt that it has to work on now or soon, in the way of this lab."""
        await sent(partial(enqueue, self.store, thread_id, text, agent=NAME, prompt_id=prompt_id))

    async def nudge(self, thread_id: str) -> None:
        """Have a thread go on, so that it takes in what was posted to it."""
        await sent(partial(enqueue, self.store, thread_id))

    async def post(self, turns: int = 2) -> None:
        """Give a thread another prompt, in one of the ways in which prompts are given. Each time that nobody can know
        whether it arrived, give it again with the same id, as a program has to."""
        thread_id = random.choice(list(self.texts))
        self._posted += 1
        way = random.choice(("give", "post", "twice", "equal"))
        # the same words as a prompt before, with an id of their own, or new words
        text = prompt(thread_id, turns, "" if way == "equal" else f"({self._posted})")
        name = f"post-{self._posted}"
        for _ in range(2 if way == "twice" else 1):
            if way == "post":
                try:
                    await sent(partial(Thread.post, self.store, thread_id, text, prompt_id=name))
                except ThreadNotFound:  # nobody has begun to work on it yet
                    await self.give(thread_id, text, name)
            else:
                await self.give(thread_id, text, name)
        self.texts[thread_id][text] += 1

    async def wait_for_turns(self, more: int, said: Callable[[], str]) -> None:
        """Wait until every thread that is not done has so many more turns than now."""
        before: dict[str, int] = {}
        deadline = time.monotonic() + PATIENCE
        while True:
            heads = [head for thread_id in self.texts if (head := await self.store.head(thread_id)) is not None]
            for head in heads:
                before.setdefault(head.thread_id, head.turns)
            if len(heads) == len(self.texts) and all(
                head.status == "done" or head.turns >= before[head.thread_id] + more for head in heads
            ):
                return
            assert time.monotonic() < deadline, said()
            await asyncio.sleep(0.1)

    async def finish(self, said: Callable[[], str] = str) -> None:
        """Wait until every thread is done and all its prompts were taken in. `said` says what the workers said."""
        await self._until_done(said)
        for thread_id in self.texts:
            await self.nudge(thread_id)
        await self._until_done(said)

    async def _until_done(self, said: Callable[[], str]) -> None:
        last, left, deadline = -1, set(self.texts), time.monotonic() + PATIENCE
        while left:
            heads = [head for thread_id in sorted(left) if (head := await self.store.head(thread_id)) is not None]
            left -= {
                head.thread_id for head in heads if head.status == "done" and not is_live(head.lease) and not head.due
            }
            frames = sum(head.frames for head in heads)
            if frames != last:
                last, deadline = frames, time.monotonic() + PATIENCE
            statuses = Counter(head.status for head in heads)
            assert time.monotonic() < deadline, f"nothing goes on: {statuses}\n{said()}"
            assert not statuses["failed"], f"{[head for head in heads if head.status == 'failed']}\n{said()}"
            await asyncio.sleep(0.3)

    async def unread(self) -> list[str]:
        """Return the threads that have posts which they did not take in."""
        found = []
        for thread_id in self.texts:
            head = await self.store.head(thread_id)
            assert head is not None
            state = await Thread.load(self.store, thread_id)
            if await new_posts(self.store, head, state.inbox_read):
                found.append(thread_id)
        return found


async def sent(send: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Make this call until the store has answered it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await send()
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.5)
        else:
            return
