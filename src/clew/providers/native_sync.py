"""Brings a thread and the conversation that a provider's program keeps on this machine, its session, into step.

A user can continue a session in the program itself, with `claude --resume`, between two prompts asked through Clew. The
program then knows exchanges that the thread lacks. They would be lost wherever the conversation is taken from the
thread: with the built-in agent, with another provider, on another machine. So, before the thread is used for anything
else, these exchanges are appended to it, with a mark that they took place in the program itself. This module also
adopts a whole session into a new thread, and moves a thread to another provider.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence

from clew.agent.exchanges import Spent, ended
from clew.agent.journal import Journal
from clew.agent.prompts import WaitingPrompt, is_note, made_id, prompts_waiting, waiting_prompts
from clew.agent.recovery import left_over
from clew.checkpointers import Checkpointer
from clew.errors import ClewError, InvalidInput, SessionNotFound
from clew.log import (
    Checkpoint,
    Described,
    Logged,
    MessageAdded,
    ProviderKey,
    Rewound,
    StateSet,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
)
from clew.messages import Assistant, Message, ToolResult, User, plain_text, tool_calls
from clew.providers.base import Permissions, Place, Provider
from clew.providers.placement import Placed, Placement, current_provider, staging_folder
from clew.providers.registry import BUILT_IN_AGENT, default_place, find_provider
from clew.threads import Thread

__all__ = ["adopt", "adopt_into", "beyond", "move", "take_back", "take_in", "take_in_thread"]


log = logging.getLogger("clew.providers")


async def take_in(journal: Journal, store: Checkpointer, place: Place, *, natively: bool = True) -> bool:
    """Append to the thread of `journal` the messages that it lacks but that the provider's session on this machine has,
    and put a copy of the session into `store`. The provider is the one that did the thread's last turns, and the
    session is what its program keeps of the conversation. Returns whether there were such messages; if not, nothing is
    changed. With `natively=False` no copy is stored. `place` says where the provider keeps its sessions.

    A session that cannot be read is left alone and False is returned: the program itself reports the problem when it is
    used.
    """
    state = journal.thread.checkpoint
    name = current_provider(state)
    if name == BUILT_IN_AGENT or name not in state.providers:
        return False
    try:
        source = find_provider(name)(place)
        placement = Placement(source, store, journal.thread)
        then, now = await placement.then_and_now(state)
    except (ClewError, OSError) as error:
        log.warning("thread %r: what %s keeps: %s", journal.thread.thread_id, name, error)
        return False
    known = state.providers[name]
    on_record = [message for message in state.history[known.messages :] if type(message) is User]
    kept = [[journal.as_recorded(MessageAdded(message)).message for message in some] for some in (then, now)]
    found = beyond(kept[0], kept[1], on_record, is_answered=not _waits(state))
    if not found:
        return False
    left = left_over(state)
    if left.entries:
        await journal.record(*left.entries)
    await journal.record(*_entries(found, journal.thread.messages, source, state.model))
    await placement.capture(journal, known.key, natively=natively)
    log.info("thread %r: %d messages were added in %s itself", journal.thread.thread_id, len(found), source.title)
    return True


async def take_in_thread(store: Checkpointer, thread_id: str, place: Place) -> bool:
    """Append to the thread with this id in `store` the messages that the provider's session on this machine has and the
    thread lacks, for example because the user went on in the provider's program. Returns whether there were any. The
    provider is the one that did the thread's last turns; if the built-in agent did them, nothing is appended. Call this
    before the built-in agent continues a thread. `place` says where the provider keeps its sessions."""
    async with Thread.open(store, thread_id) as thread, Journal(thread) as journal:
        return await take_in(journal, store, place)


def _waits(state: Checkpoint) -> bool:
    """Return whether the last prompt in this state of a thread has no response at all, not even a part of one, for
    example because the process that asked it was killed."""
    return bool(state.history) and type(state.history[-1]) is User and not state.partial


def beyond(
    then: Sequence[Message], now: Sequence[Message], asked: Sequence[Message], *, is_answered: bool = True
) -> tuple[Message, ...]:
    """Return the messages that a provider's own session has and the thread lacks.

    `then` are the messages that the session held when a copy of it was last stored, and `now` are those that it holds
    now. `asked` are the prompts that were recorded in the thread between these two moments.

    The messages with which both `then` and `now` begin are not returned. Of the rest of `now`, an exchange is not
    returned if the thread has it already: if the words of its prompt are those of a prompt in `asked`, or of a prompt
    in the rest of `then`. There is a rest of `then` only if the program has compacted or rewound the session, and did
    not just add to it.

    With `is_answered=False` the thread has no answer to the last prompt in `asked`. Then the messages that follow this
    prompt in its exchange are returned too.
    """
    same = 0
    while same < min(len(then), len(now)) and then[same] == now[same]:
        same += 1
    ours = [{_plain(plain_text(message))} for message in then[same:] if type(message) is User] + _texts(asked)
    found: list[Message] = []
    for exchange in _exchanges(now[same:]):
        place = _place(ours, exchange[0])
        if place is None:
            found += exchange
        else:
            del ours[: place + 1]
            if not (ours or is_answered):
                found += exchange[1:]
    return tuple(found)


def _exchanges(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Group messages by exchange: yield lists that each hold a prompt and everything that follows it up to the next
    prompt. Messages before the first prompt form a list of their own."""
    exchange: list[Message] = []
    for message in messages:
        if type(message) is User and exchange:
            yield exchange
            exchange = []
        exchange.append(message)
    if exchange:
        yield exchange


def _texts(asked: Sequence[Message]) -> list[set[str]]:
    """Return, for each prompt in `asked`, the set of texts as which the program's session may hold it.

    `asked` are user messages of a thread: prompts, and notes that Clew put before some of them. The program gets a note
    and the prompt after it as one message. So the set of such a prompt has two texts: that of the prompt alone, and
    that of the note followed by the prompt. Any other prompt has one text. In all texts each run of white space is
    replaced by one space.
    """
    texts: list[set[str]] = []
    told = ""
    for message in asked:
        words = plain_text(message)
        if is_note(message):
            told = words
        else:
            texts.append({_plain(words), _plain(f"{told} {words}")})
            told = ""
    return texts


def _place(texts: Sequence[set[str]], message: Message) -> int | None:
    """Return the index in `texts` of the prompt that a message repeats; None if the message repeats none of them.
    `texts` has one set for each prompt, with the texts under which the program's session may hold that prompt."""
    if type(message) is not User:
        return None
    words = _plain(plain_text(message))
    return next((number for number, known in enumerate(texts) if words in known), None)


def _plain(text: str) -> str:
    """Return the text with each run of white space replaced by one space, because programs trim prompts and add
    newlines."""
    return " ".join(text.split())


def _entries(messages: Sequence[Message], place: int, source: Provider, model: str) -> Iterator[Logged]:
    """Yield the log entries that add `messages` to a thread, and after each exchange an entry that records its end. The
    messages come from the session of the provider `source`: from exchanges that the user had in the program itself, not
    through Clew. `place` is the index that the first message gets in the thread. A tool call without a result is
    recorded as one that may have begun. `model` is recorded for an exchange whose last message names no model."""
    for exchange in _exchanges(messages):
        asked = place
        blocks = [block for message in exchange for block in message.content]
        answered = {block.call_id for block in blocks if isinstance(block, ToolResult)}
        for message in exchange:
            yield MessageAdded(message)
            calls = enumerate(tool_calls(message))
            yield from (ToolIntent(place, index) for index, call in calls if call.id not in answered)
            place += 1
        if type(exchange[0]) is User:
            yield _ended(asked, place, exchange, source, model)


def _ended(asked: int, end: int, exchange: Sequence[Message], source: Provider, model: str) -> StateSet:
    """Return the log entry that records the end of an exchange which the user had in the provider's program itself, not
    through Clew. `source` is that provider. The entry has no cost: the exchange was not paid for through Clew, so it
    counts for no budget. `asked` is the index in the thread of the first message of the exchange, and `end` is the
    index of its last message plus one. `model` is recorded if the last message names none."""
    last = exchange[-1]
    status = "done" if type(last) is Assistant and not tool_calls(last) else "interrupted"
    answered_by = last.model if isinstance(last, Assistant) and last.model else model
    reason = f"asked in {source.title} itself"
    return ended(asked, end, source.name, answered_by, made_id(), status, reason, Spent(None, None))


async def adopt(
    session: str,
    checkpointer: Checkpointer,
    *,
    provider: str,
    thread_id: str | None = None,
    place: Place | None = None,
) -> str:
    """Copy a session that a provider keeps on this machine into a new thread in the store `checkpointer`, and return
    the thread's id.

    `session` is the id of the session, a part of the id that no other has, or the path of its file. `thread_id` is the
    id for the new thread; by default it is the provider's name with random digits. `place` says where the provider
    keeps its sessions, by default in this user's home folder. The provider's own session is unchanged.
    `Agent(provider=…).resume_session(thread_id)` continues the thread on any machine. Raises `SessionNotFound` if there
    is no such session, and `InvalidInput` if the store already has a thread of that id.
    """
    source = find_provider(provider)(place or default_place())
    key = await asyncio.to_thread(source.find, session)
    if key is None:
        raise SessionNotFound(source.name, session)
    name = thread_id or f"{source.name}-{secrets.token_hex(6)}"
    if await checkpointer.head(name) is not None:
        raise InvalidInput(f"there is a thread {name!r} in this store already. Give another thread_id.")
    async with Thread.open(checkpointer, name) as thread, Journal(thread) as journal:
        await adopt_into(journal, checkpointer, source, key)
        await journal.record(StatusChanged("done"))
    return name


async def adopt_into(journal: Journal, store: Checkpointer, source: Provider, key: str) -> None:
    """Record a conversation of the provider `source` in the thread that `journal` writes to, which must be empty.

    The provider's program keeps the conversation on this machine, and knows it by `key`. The conversation is recorded
    twice: as Clew's messages, and as a copy of the program's own files in `store`. Raises `SessionNotFound` if the
    program does not have it.
    """
    folder = staging_folder(source, key)
    if not await asyncio.to_thread(source.export, key, folder):
        raise SessionNotFound(source.name, key)
    conversation = await asyncio.to_thread(source.read, folder)
    limits = {"provider": source.name, "cwd": conversation.cwd or str(source.place.cwd)}
    entries: list[Logged] = [ThreadStarted(source.name, conversation.model, limits=limits)]
    entries += map(MessageAdded, conversation.messages)
    if conversation.title:
        entries.append(Described(conversation.title))
    await journal.record(*entries, ProviderKey(source.name, key, thread=journal.thread.head.log_id))
    await Placement(source, store, journal.thread).capture(journal, key)


async def take_back(journal: Journal, place: int, posted: WaitingPrompt | None = None) -> None:
    """Rewind the thread to the point before a prompt that a provider could not even begin. Otherwise the thread would
    have the prompt twice once another provider is asked it. `place` is the index in the thread's history of the first
    message that was recorded for the prompt. Does nothing if a response or tool result was recorded since, or if
    `place` is negative. A prompt that was `posted` to the thread's inbox waits to be asked again from then on, because
    nobody would give it again if the process were killed now."""
    state = journal.thread.checkpoint
    asked = len(state.history) - place
    if place >= 0 and all(type(message) is User for message in state.history[place:]):
        again = [] if posted is None else waiting_prompts([posted, *prompts_waiting(state)])
        await journal.record(Rewound(messages=len(state.messages) - asked), *again)


async def move(
    journal: Journal,
    store: Checkpointer,
    target: Provider,
    name: str = "",
    *,
    permissions: Permissions,
    natively: bool = True,
) -> Placed:
    """Move the thread of `journal` to the provider `target`. The conversation is written where that provider's program
    finds it, and the thread records that it continues there. Returns the key under which the program has the
    conversation, and what of the conversation the program's format cannot hold. `name` is the agent's name to record,
    and `permissions` is what the program may do there: those of the provider that had the thread before do not stay.
    With `natively=False` no copy of the program's files is put into `store`."""
    thread = journal.thread
    before = thread.checkpoint
    placement = Placement(target, store, thread)
    placed = await placement.place(before)
    limits = {
        **before.limits,
        "provider": target.name,
        "cwd": str(target.place.cwd),
        "permissions": permissions,
    }
    await journal.record(
        ThreadStarted(name or target.name, "", before.system_prompt, limits=limits, parent=before.parent),
        ProviderKey(target.name, placed.key, thread=thread.head.log_id),
    )
    await placement.capture(journal, placed.key, natively=natively)
    await journal.record(StatusChanged("interrupted", f"moved to {target.name}"))
    return placed
