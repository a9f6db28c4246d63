"""Takes in what others have posted to the inbox of a thread while an agent holds it: prompts, and answers to questions."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from clew.agent.exchanges import exchange_of
from clew.agent.journal import Journal
from clew.agent.prompts import WaitingPrompt, prompts_waiting, waiting_prompts
from clew.agent.questions import answers_to
from clew.errors import InvalidInput, Unavailable, UsageError
from clew.log import Checkpoint, Logged
from clew.threads import Thread
from clew.threads.inbox import Post, posts_made

__all__ = ["Inbox", "look", "take_in"]

log = logging.getLogger("clew.agent")

_EVERY = 0.02
"""Seconds between two looks into the inbox, unless this process has posted something meanwhile. A look takes 0.1 ms of
processor time: a tenth of the shortest turn, with a model and tools that answer at once."""


class Inbox:
    """Looks into the inbox of a thread while an agent works on it."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._looked = 0.0
        self._made = -1

    @property
    def is_due(self) -> bool:
        """Whether something may have been posted since the last look, or that look was long enough ago."""
        return posts_made() != self._made or time.monotonic() - self._looked >= _EVERY

    async def look(self) -> tuple[Post, ...]:
        """Return the posts that were not taken in yet. Returns none if the store does not answer: a later look finds
        them."""
        self._looked, self._made = time.monotonic(), posts_made()
        return await look(self._thread)


async def look(thread: Thread) -> tuple[Post, ...]:
    """Return the posts to this thread that were not taken in yet. Returns none if the store does not answer."""
    try:
        return await thread.posts()
    except Unavailable as error:
        log.warning("thread %r: its inbox could not be read now: %s", thread.thread_id, error)
        return ()


async def take_in(journal: Journal, posts: Sequence[Post]) -> None:
    """Record what these posts say: their prompts as prompts that wait to be asked, and their answers as those of a
    person.

    Each post is recorded in one write with the entry that says how far the inbox was read. So wherever the process is
    killed, the post is neither lost nor taken in again.
    """
    for post in posts:
        state = journal.thread.checkpoint
        await journal.record(post.read, *_answered(journal, state, post), *_asked(journal, state, post))


def _answered(journal: Journal, state: Checkpoint, post: Post) -> list[Logged]:
    """Return the entries that record the answer in this post, if it has one. An answer that does not fit the questions
    of the thread is dropped, with a warning: nobody is there who could correct it."""
    if post.answer is None:
        return []
    thread_id = journal.thread.thread_id
    try:
        return answers_to(thread_id, state, post.answer)
    except (InvalidInput, UsageError) as error:
        log.warning("thread %r: an answer that was posted to it is dropped: %s", thread_id, error)
        return []


def _asked(journal: Journal, state: Checkpoint, post: Post) -> list[Logged]:
    """Return the entries that record the prompt in this post, if it has one, as a prompt that waits to be asked. Returns
    none if a prompt with the same id is on record."""
    if post.prompt is None:
        return []
    waiting = prompts_waiting(state)
    if any(known.id == post.prompt_id for known in waiting) or exchange_of(state, post.prompt_id) is not None:
        log.info("thread %r: the posted prompt %r is on record already", journal.thread.thread_id, post.prompt_id)
        return []
    return waiting_prompts([*waiting, WaitingPrompt(post.prompt, post.prompt_id)])
