"""Brings the thread of an earlier import up to date with its conversation, which has gone on in the other system.

Usually the conversation begins with all that the thread has, and the rest is appended. But a conversation that was read
while its last prompt was being answered may have another end now: a half-written answer became a whole one, or a second
tool returned. Then the thread is first rewound to the last message that it shares with the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec

from clew.agent.prompts import is_prompt
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput
from clew.log import (
    Checkpoint,
    Described,
    FoldedState,
    LeaseTaken,
    Logged,
    MessageAdded,
    ProviderKey,
    Rewound,
    Spend,
    StateSet,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceSnapshot,
    encode_entries,
    fold,
)
from clew.log.checkpoint import TURN_MARK, Fact, provider_key
from clew.messages import Message, Tool, ToolResult
from clew.threads import Thread
from clew.threads.views.entries import read_lines

__all__ = ["LOSSES", "VERSION", "extend"]

VERSION = "imported_version"
"""The tag of an imported thread that holds the version of its conversation, as `Source.version` returned it."""
LOSSES = "clew:import-losses"
"""The name of the value in a thread's state that lists what could not be carried over when it was imported."""

_EXTENDED = "clew:extended"
"""The id that the store's thread has in the scratch store while it is extended."""
_NOTHING = 1e-9
"""Dollars or seconds that are only a rounding error."""
_LEFT_ALONE = "so the thread is left alone. Import the conversation under another id to have both."


async def extend(scratch: Checkpointer, store: Checkpointer, thread_id: str, version: str) -> bool:
    """Bring the thread `thread_id` in `store` up to date, in one step. The temporary store `scratch` has a thread of
    the same id, made from the conversation as it is now. Returns whether the thread in `store` has gained anything: a
    message, a title, a value in its state, an amount spent or another snapshot of its files.

    If the new thread begins with all that happened in the old one, the rest is appended. If they differ only after the
    old one's last prompt, and nobody worked on the old one since the import of the conversation's version `version`,
    the old one is first rewound to what both share. Otherwise raises `InvalidInput`, and changes nothing in `store`.
    """
    await Thread.copy(store, scratch, thread_id, new_id=_EXTENDED)
    there, now = await _entries(scratch, _EXTENDED), await _entries(scratch, thread_id)
    before, after = await Thread.load(scratch, _EXTENDED), await Thread.load(scratch, thread_id)
    title = None if _is_named_here(there) or after.title in ("", before.title) else after.title
    about = Described(title, {**before.tags, **after.tags})
    old, new = ([_key_of(entry) for entry in entries if _is_event(entry)] for entries in (there, now))
    async with Thread.open(scratch, _EXTENDED, label="import") as thread:
        if old == new[: len(old)]:
            entries = _rest(there, now, before, after)
            has_grown = title is not None or any(map(_is_new, entries, repeat(before)))
            await thread.append(*entries, about, StatusChanged(after.status, after.reason))
        elif any(map(_is_event, there[_imported(there, version) :])):
            raise InvalidInput(f"thread {thread_id!r} was worked on since it was imported, {_LEFT_ALONE}")
        else:
            has_grown = True
            await thread.save(_with_new_end(thread_id, before, after))
            await thread.append(about)
    await Thread.copy(scratch, store, _EXTENDED, new_id=thread_id)
    return has_grown


def _rest(there: Sequence[Logged], now: Sequence[Logged], before: Checkpoint, after: Checkpoint) -> list[Logged]:
    """Return the entries to append to an imported thread whose conversation has grown at its source. `there` are the
    thread's entries, and `before` is its state. `now` are the entries of a new import of the whole conversation, and
    `after` is the state they lead to: the new entries lead there too, except for title, tags and status. The events
    (such as messages) in `there` must be the first ones in `now`."""
    rest = _after(now, sum(map(_is_event, there)))
    started = _last(now, ThreadStarted)
    if started is not None and started != _last(there, ThreadStarted) and started not in rest:
        rest.insert(0, started)
    return [*_totals(fold(rest, before), after), *rest]


def _is_new(entry: Logged, before: Checkpoint) -> bool:
    """Return whether `entry`, which is to be appended to a thread, gives the thread something new: a message or another
    event, a named value, an amount spent, or a snapshot of the files that differs from the one in `before`, the
    thread's state. Other entries, such as the note that a tool call may have begun, do not."""
    if isinstance(entry, WorkspaceSnapshot):
        return entry != before.workspace
    return _is_event(entry) or isinstance(entry, StateSet | Spend)


def _after(entries: Sequence[Logged], events: int) -> list[Logged]:
    """Return the entries that come after the first `events` events. An event is an entry that records something that
    happened, such as a message. Of the other entries, those of these kinds are left out: title and tags, status,
    spending, the thread's whole state, and which process holds the lease."""
    rest: list[Logged] = []
    left_out = Described | FoldedState | LeaseTaken | Spend | StatusChanged
    for entry in entries:
        if events <= 0 and not isinstance(entry, left_out):
            rest.append(entry)
        events -= _is_event(entry)
    return rest


def _totals(before: Checkpoint, after: Checkpoint) -> list[Logged]:
    """Return the entries that change a thread's named values, its tokens, cost and time from those in the state
    `before` to those in the state `after`. Tokens, cost and time never become less."""
    values = _values_beside(before, after) | after.state
    changed = {key: value for key, value in values.items() if before.state.get(key) != value}
    found: list[Logged] = [StateSet(key, value) for key, value in changed.items()]
    usage = Usage(*(max(0, now - then) for then, now in zip(_counts(before), _counts(after), strict=True)))
    cost = None if before.cost_usd is None or after.cost_usd is None else max(0.0, after.cost_usd - before.cost_usd)
    seconds = max(0.0, after.seconds - before.seconds)
    is_lost = before.cost_usd is not None and after.cost_usd is None
    if usage != Usage() or is_lost or (cost or 0) > _NOTHING or seconds > _NOTHING:
        found.append(Spend(usage, cost, seconds))
    return found


def _values_beside(before: Checkpoint, after: Checkpoint) -> dict[str, Any]:
    """Return those named values of a thread (keys of its `state`) that it has before the import, and that the imported
    state `after` lacks: they stay as they are. Only the list of what an earlier import could not carry over becomes
    None, which removes it."""
    kept = {key: value for key, value in before.state.items() if key not in after.state}
    return {key: None if key == LOSSES else value for key, value in kept.items()}


def _counts(state: Checkpoint) -> tuple[int, ...]:
    return msgspec.structs.astuple(state.usage)


def _with_new_end(thread_id: str, before: Checkpoint, after: Checkpoint) -> Checkpoint:
    """Return the state with which `Thread.save` brings an imported thread up to date. `before` is the state of the
    thread, and `after` the state made from its conversation as it is now. The result is `after` with the title and tags
    of `before`.

    Only what follows the last prompt in `before` may differ. Raises `InvalidInput` if the messages differ earlier, if
    `before` has no prompt, or if messages of `after` were rewound. If a message differs only in which tool results are
    marked as errors, that of `before` is kept. Some facts (values that hold from a turn on) name a message by its index
    in the history: they get its index in the thread. `thread_id` is for the error.
    """
    mine, theirs = before.messages, after.messages
    pairs = enumerate(zip(mine, theirs, strict=False))
    same = next((i for i, (one, other) in pairs if _bare(one) != _bare(other)), min(len(mine), len(theirs)))
    last = max((i for i, message in enumerate(mine) if is_prompt(message)), default=-1)
    if same <= last or last < 0 or after.view != ((0, len(after.history)),):
        raise InvalidInput(
            f"the conversation of thread {thread_id!r} was changed otherwise than by going on: it is another one from "
            f"message {same + 1} on, {_LEFT_ALONE}"
        )
    base = fold([Rewound(messages=same)], before) if same < len(mine) else before
    places = [place for start, stop in base.view for place in range(start, stop)]

    def place_of(place: int) -> int:
        return places[place] if place < same else len(before.history) + place - same

    return msgspec.structs.replace(
        after,
        history=(*mine[:same], *theirs[same:]),
        facts=tuple(_facts(base, after, place_of, _values_beside(before, after))),
        title=before.title,
        tags=before.tags,
    )


def _facts(
    base: Checkpoint, after: Checkpoint, place_of: Callable[[int], int], values: Mapping[str, Any]
) -> Iterator[Fact]:
    """Yield the facts (values that hold from a turn on) that a thread with the state `base` will have after an import
    has added to it. `after` is the state made from the imported conversation. `place_of` takes the index of a message
    in the history of `after`, and returns the index that the message will have in the thread's history. `values`, by
    name, hold from the last turn of `after` on."""
    come = {(fact.turn, fact.kind, fact.key): fact for fact in _moved(after, place_of)}
    yield from (fact for fact in base.facts if (fact.turn, fact.kind, fact.key) not in come)
    held = {(fact.kind, fact.key): fact.value for fact in base.facts}
    known = {(fact.turn, fact.kind, fact.key): fact.value for fact in base.facts}
    for at, fact in come.items():
        if fact.turn >= base.turns or (at in known and known[at] == fact.value):
            yield fact
        elif (fact.kind, fact.key) not in held or held[fact.kind, fact.key] != fact.value:
            yield msgspec.structs.replace(fact, turn=after.turns)
    yield from (Fact(after.turns, "state", key, value) for key, value in values.items())


def _moved(after: Checkpoint, place_of: Callable[[int], int]) -> Iterator[Fact]:
    """Yield the facts of the state `after`, which are values that hold from a turn on. Where a fact names a message by
    its index in the history of `after`, the index is replaced by what `place_of` returns for it."""
    for fact in after.facts:
        if fact.kind == "turn" and fact.key.startswith(TURN_MARK):
            place = place_of(int(fact.key.removeprefix(TURN_MARK)))
            yield msgspec.structs.replace(fact, key=f"{TURN_MARK}{place}")
        elif fact.kind == "provider" and (key := provider_key(fact)).messages > 0:
            moved = msgspec.structs.replace(key, messages=place_of(key.messages - 1) + 1)
            yield msgspec.structs.replace(fold([moved]).facts[0], turn=fact.turn)
        else:
            yield fact


def _is_named_here(entries: Sequence[Logged]) -> bool:
    """Return whether the title of the thread with these entries was last set by a user or an agent of Clew, and not by
    an import."""
    version, found = "", False
    for entry in entries:
        if isinstance(entry, Described):
            tag = version if entry.tags is None else entry.tags.get(VERSION, "")
            found = found if entry.title is None else version == tag != ""
            version = tag
    return found


def _imported(entries: Sequence[Logged], version: str) -> int:
    """Return how many of `entries`, all entries of a thread, belong to imports up to that of `version`, a version of
    its conversation: those up to the entry in which that import set its tag. What follows was added by agents or users
    of Clew, except that an import may add an entry with the thread's status after its tag. Returns the number of all
    entries if none set the tag."""
    tag, found = "", len(entries)
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, Described) and entry.tags is not None:
            found = number if tag != entry.tags.get(VERSION, "") == version else found
            tag = entry.tags.get(VERSION, "")
    return found


def _last(entries: Sequence[Logged], kind: type[Logged]) -> Logged | None:
    return next((entry for entry in reversed(entries) if isinstance(entry, kind)), None)


async def _entries(store: Checkpointer, thread_id: str) -> list[Logged]:
    head = await store.head(thread_id)
    return [] if head is None else [line.entry async for line in read_lines(store, head)]


def _is_event(entry: Logged) -> bool:
    """Return whether this entry records something that happened, such as a message. Other entries describe the thread
    as a whole, like its tags, of which only the last count; or they are sums, like what was spent; or they may become
    wrong, like the note that a tool call has no result yet."""
    if isinstance(entry, StateSet):
        return entry.scope == "turn"
    facts = (Described, FoldedState, LeaseTaken, ProviderKey, StatusChanged, ThreadStarted, WorkspaceSnapshot)
    return not isinstance(entry, (*facts, Spend, ToolIntent))


def _key_of(entry: Logged) -> bytes:
    """Return an entry encoded as bytes. Equal entries give equal bytes, so that entries can be compared. Whether a
    tool's result is marked as an error is left out: some systems, such as Locus, keep this mark only for the newest
    results."""
    if isinstance(entry, MessageAdded):
        entry = msgspec.structs.replace(entry, message=_bare(entry.message))
    elif isinstance(entry, ToolOutcome):
        entry = msgspec.structs.replace(entry, result=msgspec.structs.replace(entry.result, is_error=False))
    return encode_entries([entry]).entries


def _bare(message: Message) -> Message:
    """Return a message without the marks that say which results of tools are errors."""
    if not isinstance(message, Tool):
        return message
    blocks = (
        msgspec.structs.replace(block, is_error=False) if isinstance(block, ToolResult) else block
        for block in message.content
    )
    return msgspec.structs.replace(message, content=tuple(blocks))
