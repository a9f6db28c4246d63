"""The inbox of a thread: prompts and answers that others post to it without its lease.

Only the process that holds a thread's lease may append to the thread's log. So the inbox is a log of its own: a hidden
thread in the same store, to which anybody may append. Each of its frames is one post. How many of them were taken in is
recorded in the log of the thread itself, together with what they say.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.heads import moment
from clew.checkpointers.sealed import without_keys
from clew.errors import Conflict, Corrupt, InvalidInput, ThreadNotFound, Unavailable
from clew.log import (
    FIRST,
    Described,
    InboxRead,
    Logged,
    Posted,
    StatusChanged,
    ThreadStarted,
    encode_entries,
    encode_frame,
    fold,
)
from clew.threads.appends import append_frames
from clew.threads.frames import Source
from clew.threads.heads import INBOX, inbox_id, is_hidden, new_head
from clew.threads.prompts import check_prompt, made_id, quoted
from clew.threads.reader import decoded_frames, outline_at
from clew.threads.redact import Redact, redactor

__all__ = [
    "Post",
    "carry_posts",
    "inbox_of",
    "new_posts",
    "post",
    "posts_in",
    "posts_made",
    "remove",
]

_TRIES = 200
"""How often to try to append a post, at most, while others append to the same inbox."""
_REPEATS = 3
"""How often to send the same post, at most, while the store does not answer."""
_PAUSE = 0.2


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """A post in a thread's inbox: a prompt for the thread's agent, an answer to the thread's questions, or both."""

    prompt: str | None
    prompt_id: str
    answer: Any = None
    at: datetime
    """When it was posted, by the clock of the poster's machine."""
    read: InboxRead
    """The entry to append to the thread, together with what the post says, once the post is taken in."""


async def post(
    checkpointer: Checkpointer,
    thread_id: str,
    prompt: str | None = None,
    *,
    prompt_id: str | None = None,
    answer: Any = None,
    redact: Redact | None = None,
) -> str:
    """Post a prompt, an answer, or both to a thread, also while another process runs it. Takes no lease.

    The agent that runs the thread takes the post in at the end of its turn: the model sees the prompt together with the
    results of its tool calls. If no process runs the thread, the next run or resume takes it in. `answer` answers the
    questions to a person for which the thread waits, as `resume(answer=…)` does. An answer to a thread that asks nothing
    once the post is taken in is dropped, with a warning in the log of the program.

    Returns the prompt's id: `prompt_id`, or one that is made. Every post is taken in exactly once. If the same
    `prompt_id` is posted again with the same words, nothing is posted; with other words, `InvalidInput` is raised. So
    after `Unavailable`, post again with the same id. `redact` removes text that must not be on record: a function from
    text to text, or patterns whose matches are replaced.

    Raises `ThreadNotFound` if there is no such thread.
    """
    if prompt is None and answer is None:
        raise InvalidInput("a post needs a prompt or an answer: Thread.post(store, thread_id, prompt)")
    if prompt is not None:
        check_prompt(prompt, prompt_id)
    elif prompt_id is not None:
        check_prompt("an answer", prompt_id)
    given = Posted(prompt, made_id() if prompt_id is None else prompt_id, answer)
    encode_entries([given])
    change = redactor(redact)
    (entry,) = [given] if change is None else change([given])
    assert isinstance(entry, Posted)  # noqa: S101 - redaction keeps the kind
    global _made
    may_be_known = prompt_id is not None
    thread = await checkpointer.head(thread_id)
    while thread is not None and not is_hidden(thread):
        await _put(checkpointer, thread, entry, may_be_known=may_be_known)
        log_id, thread = thread.log_id, await checkpointer.head(thread_id)
        if thread is not None and thread.log_id == log_id:
            _made += 1
            return entry.prompt_id
        may_be_known = True  # the thread has a new log now, and this post was carried over to its inbox or not
    raise ThreadNotFound(thread_id)


_made = 0


def posts_made() -> int:
    """Return a number that changes with each post that this process makes, to whatever thread. It tells an agent in the
    same process to look."""
    return _made


async def new_posts(source: Source, thread: Head, read: InboxRead | None) -> tuple[Post, ...]:
    """Return the posts in the inbox of a thread that are not on record in the thread, oldest first. `thread` is the
    thread's head, and `read` says how far its inbox was read. Reads only a head if there are none."""
    return await posts_in(source, inbox_id(thread.thread_id, thread.log_id), read)


async def posts_in(source: Source, name: str, read: InboxRead | None) -> tuple[Post, ...]:
    """Return the posts in the inbox with this id that come after those that `read` counts, oldest first. Returns none if
    there is no such inbox."""
    head = await source.head(name)
    if head is None:
        return ()
    start = 0 if read is None or read.inbox != head.log_id else read.posts
    found = []
    with suppress(Conflict):  # the inbox was deleted meanwhile, with its thread
        if start < head.frames:
            async for number, frame in decoded_frames(source, head, start=start, previous=None if start else FIRST):
                read = InboxRead(head.log_id, number + 1)
                found += [_post(entry, frame.time, read) for entry in frame.entries if isinstance(entry, Posted)]
    return tuple(found)


def _post(entry: Posted, time: int, read: InboxRead) -> Post:
    return Post(prompt=entry.prompt, prompt_id=entry.prompt_id, answer=entry.answer, at=moment(time), read=read)


async def _put(checkpointer: Checkpointer, thread: Head, entry: Posted, *, may_be_known: bool) -> None:
    """Append a post to the inbox of the thread with this head. Makes the inbox if there is none.

    With `may_be_known`, nothing is appended if the inbox has a post with the same id, and `InvalidInput` is raised if
    that one says something else.
    """
    name = inbox_id(thread.thread_id, thread.log_id)
    for _ in range(_TRIES):
        head = await checkpointer.head(name)
        if may_be_known and await _is_known(checkpointer, thread, entry):
            return
        tags = {INBOX: thread.log_id}
        entries: list[Logged] = [entry]
        if head is None:
            parent = thread.thread_id, 0
            entries = [ThreadStarted(parent=parent), Described(tags=tags), StatusChanged("done"), entry]
        base = new_head(name, "done") if head is None else head
        frame = encode_frame(
            [encode_entries(entries)],
            previous=bytes.fromhex(base.digest) or FIRST,
            thread_id=name,
            number=base.frames,
            keys=checkpointer.keys,
        )
        state = fold(entries) if head is None else None
        for left in reversed(range(_REPEATS)):
            try:
                await append_frames(checkpointer, base, [frame], state=state, tags={**base.tags, **tags})
            except Conflict:
                break
            except Unavailable:
                if not left:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return
    raise Unavailable(f"thread {thread.thread_id!r}: others posted to its inbox {_TRIES} times meanwhile. Post again.")


async def _is_known(checkpointer: Checkpointer, thread: Head, entry: Posted) -> bool:
    """Return whether the inbox of this thread has this post already. Raises `InvalidInput` if it has another post with
    the same id."""
    for known in await new_posts(checkpointer, thread, None):
        if known.prompt_id != entry.prompt_id:
            continue
        same = Posted(known.prompt, known.prompt_id, known.answer)
        if encode_entries([same]).entries != encode_entries([entry]).entries:
            raise InvalidInput(
                f"thread {thread.thread_id!r}: the prompt_id {entry.prompt_id!r} was posted with other words: "
                f"{quoted(known.prompt or 'an answer')}. Give each prompt an id of its own."
            )
        return True
    return False


async def inbox_of(checkpointer: Checkpointer, thread_id: str) -> str | None:
    """Return the id of the inbox of a thread, or None if the thread has none. A thread whose head is damaged counts as
    one without: `gc` deletes its inbox once the thread is gone."""
    plain = without_keys(checkpointer)
    try:
        thread = await plain.head(thread_id)
        if thread is None or is_hidden(thread):
            return None
        name = inbox_id(thread_id, thread.log_id)
        return None if await plain.head(name) is None else name
    except Corrupt:
        return None


async def remove(checkpointer: Checkpointer, thread_id: str) -> None:
    """Delete a thread from the store: first its inbox, then the thread itself."""
    name = await inbox_of(checkpointer, thread_id)
    if name is not None:
        await checkpointer.delete(name)
    await checkpointer.delete(thread_id)


async def carry_posts(source: Source, name: str, target: Checkpointer, thread_id: str) -> int:
    """Bring the posts that are not taken in yet to the inbox of a new log, and return how many there are.

    `name` is the inbox of the old log, in `source`. `thread_id` is the thread in `target` that has the new log: a copy, or
    the same thread after its log was written anew. The new log must be complete before this is called. What was posted
    to the old inbox after that is posted to the new one by the poster itself, who looks at the thread again. A post that
    the new inbox has already is not brought again.
    """
    if await source.head(name) is None:
        return 0
    thread = await target.head(thread_id)
    if thread is None or is_hidden(thread):
        return 0
    state, _ = await outline_at(target, thread)
    posts = await posts_in(source, name, state.inbox_read)
    for each in posts:
        await _put(target, thread, Posted(each.prompt, each.prompt_id, each.answer), may_be_known=True)
    return len(posts)
