"""Translate a run checkpoint (the saved state of a run) into the entries of a thread's log, and the state of a thread
into a run checkpoint. Pure: no I/O.

The messages become messages of the thread, so that every part of Clew can show them and go on with them. If a message
would be different when it is read back from the thread, its original form is stored too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from clew.checkpointers import Head
from clew.compat.session.checkpoint import Checkpoint, Param, Summary
from clew.errors import InvalidInput
from clew.log import (
    Checkpoint as State,
)
from clew.log import (
    Described,
    Fold,
    Logged,
    MessageAdded,
    Rewound,
    Spend,
    StateSet,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    Usage,
)
from clew.messages import Assistant, Message, ToolCall, ToolResult, user
from clew.messages.dialects import from_dialect, to_dialect

__all__ = ["TAG", "Known", "changes", "check_messages", "checkpoint_of", "summary_of"]

TAG = "session"
"""The tag of a thread that holds a `_Saved` as JSON. It is in the thread's head, so that a list reads heads alone."""
_AS_GIVEN = f"{TAG}:message:"
"""Prefix of the names in the thread's state under which messages are kept as they were given. After it comes the index
that the message has in the conversation of the thread."""
_ALL_AS_GIVEN = f"{TAG}:messages"
"""The name in the thread's state under which all messages are kept as they were given, if they cannot be told from those
of the thread one by one."""
_PROMPT = f"{TAG}:system_prompt"
"""The name in the thread's state under which the system prompt that was saved last is kept. An agent that goes on with
the run records a prompt of its own on the thread, or none."""


class _Saved(msgspec.Struct, frozen=True):
    """The checkpoint (state of a run) that was saved last, without its messages, and how many turns, tokens and
    messages the thread had then. What the thread has beyond that was added by an agent."""

    summary: Summary
    turns: int = 0
    usage: tuple[int, int] = (0, 0)
    """The input and output tokens of the thread."""
    messages: int = -1
    """How many messages of the thread's conversation the checkpoint covers."""
    last: int = -1
    """The index in the thread's history of the last of these messages; -1 if there is none."""
    is_plain: bool = True
    """Whether the messages can be told from those of the thread one by one."""

    def grown(self, turns: int, input_tokens: int, output_tokens: int) -> Summary:
        """Return the summary of the run for a thread that has these numbers of turns and tokens now. What came in since
        the last save is added to the summary that was saved."""
        return msgspec.structs.replace(
            self.summary,
            iteration=max(0, self.summary.iteration + turns - self.turns),
            input_tokens=self.summary.input_tokens + input_tokens - self.usage[0],
            output_tokens=self.summary.output_tokens + output_tokens - self.usage[1],
        )

    def covers(self, state: State) -> bool:
        """Return whether the conversation in `state`, the state of the thread, is still the one that was saved last."""
        seen = len(state.messages)
        return self.messages == seen and self.last == _place(state, seen)


class _Kept(NamedTuple):
    """The messages of a checkpoint (state of a run), and where they are in its thread. `params` has the messages in the
    form of Anthropic's API. Each of them may be several messages of the thread's conversation. For each, `ends` says
    how many messages the conversation has up to and including the last of these. `ends` is None if the messages cannot
    be matched one by one."""

    params: list[Param]
    ends: list[int] | None


class Known(NamedTuple):
    """What is remembered of a run's thread after a save, so that the next save need not read the whole thread. `saved`
    describes the checkpoint (state of the run) that was saved. `kept` has its messages, and where each of them ends in
    the thread's conversation."""

    saved: _Saved
    kept: _Kept


def changes(old: State, new: Checkpoint, known: Known | None = None) -> tuple[list[Logged], Known]:
    """Return two things: the entries that make the checkpoint `new` the state of its thread, and a `Known`, to be given
    to the next call for this thread as `known`. `old` is the thread's state. `new` is a checkpoint that the function
    `checked` has returned.

    Messages that `old` has already are not recorded again. If the conversation in `new` differs from the one in `old`,
    the thread is first rewound to the last message that both have. Tool calls at the end that have no result are
    recorded as begun: the loop that runs the tools may have run them before it was stopped.
    """
    running = _Draft(old)
    if not old.history or (old.agent, old.system_prompt) != (new.task_name, new.system_prompt):
        running.add(
            ThreadStarted(new.task_name, old.model, new.system_prompt, old.tools, old.limits, old.parent),
        )
    before = _saved(old.tags)
    is_known = known is not None and known.saved == before and before.covers(old)
    kept = known.kept if known is not None and is_known else _kept(old, before)
    ends = kept.ends or []
    same = _common(kept.params, new.messages) if ends else 0
    start = at = ends[same - 1] if same else 0
    if start < len(old.messages):
        running.add(Rewound(messages=start))
    values = running.state().state
    stale = {name for name, value in values.items() if value is not None and _is_stale(name, start)}
    ends = ends[:same]
    added: list[Message] = []
    for number, param in enumerate(new.messages[same:], same):
        messages = _read(param, f"messages[{number}]")
        running.add(*map(MessageAdded, messages))
        if len(messages) != 1 or _written(messages) != param:
            name = f"{_AS_GIVEN}{at}"
            running.add(StateSet(name, [len(messages), param]))
            stale.discard(name)
        at += len(messages)
        ends.append(at)
        added += messages
    is_plain = running.state().messages[start:] == tuple(added)
    if not is_plain:
        running.add(StateSet(_ALL_AS_GIVEN, new.messages))
        stale.discard(_ALL_AS_GIVEN)
    running.add(*(StateSet(name, None) for name in sorted(stale)))
    state = running.state()
    if (state.state.get(_PROMPT) or "") != new.system_prompt:
        running.add(StateSet(_PROMPT, new.system_prompt or None))
    running.add(*(ToolIntent(call.message, call.index) for call in state.calls if call.status == "not_started"))
    spent = _spent(old, before, new)
    if spent != Usage():
        running.add(Spend(spent, None))
    usage = (old.usage.input_tokens + spent.input_tokens, old.usage.output_tokens + spent.output_tokens)
    covers = len(state.messages)
    saved = _Saved(_summary(new), state.turns, usage, covers, _place(state, covers), is_plain)
    running.add(Described(tags={**old.tags, TAG: msgspec.json.encode(saved).decode()}))
    running.add(StatusChanged("interrupted", f"saved at iteration {new.iteration}"))
    return running.entries, Known(saved, _Kept(new.messages, ends if is_plain else None))


def check_messages(new: Checkpoint, known: Known | None) -> None:
    """Raise `InvalidInput`, which names the message by its index, if a message of the checkpoint `new` does not have
    the form that Anthropic's API takes. Messages that the last save had too, as `known` says, are not checked again."""
    before = known.kept.params if known is not None else []
    for number, param in enumerate(new.messages):
        if number >= len(before) or before[number] != param:
            _read(param, f"messages[{number}]")


class _Draft:
    """Collects entries that are to be appended to a thread's log, and computes the state that the thread will have
    after them."""

    def __init__(self, start: State) -> None:
        self.entries: list[Logged] = []
        self._fold = Fold(start)

    def add(self, *entries: Logged) -> None:
        self.entries += entries
        self._fold.push(entries)

    def state(self) -> State:
        return self._fold.checkpoint()


def checkpoint_of(state: State, run_id: str, created_at: datetime) -> Checkpoint:
    """Return the checkpoint of a run, made from the state of the run's thread.

    If an agent of Clew has gone on with the thread since the checkpoint was last saved, the numbers of turns and tokens
    include what that agent did, and the messages are in the form in which Clew sends them to the model. The system
    prompt is the saved one, unless the agent had one of its own. If the run was never saved, everything comes from the
    thread, and `created_at` is the checkpoint's time.
    """
    saved = _saved(state.tags)
    summary = saved.grown(state.turns, state.usage.input_tokens, state.usage.output_tokens)
    prompt = state.system_prompt or state.state.get(_PROMPT) or ""
    found = summary.checkpoint(_kept(state, saved).params, prompt)
    found.run_id = run_id
    if TAG not in state.tags:
        found.task_name, found.created_at = state.agent, created_at
    return found


def summary_of(head: Head) -> Summary:
    """Return the summary of a run's checkpoint, which has no messages, from the head of the run's thread. If no
    checkpoint was ever saved for the run, the summary has the numbers of turns and tokens that an agent of Clew has
    used."""
    found = _saved(head.tags).grown(head.turns, head.input_tokens, head.output_tokens)
    if TAG in head.tags:
        return msgspec.structs.replace(found, run_id=head.thread_id)
    return msgspec.structs.replace(found, run_id=head.thread_id, task_name=head.agent, created_at=head.created_at)


def _saved(tags: dict[str, str]) -> _Saved:
    """Read from a thread's tags what was noted there when a checkpoint (state of a run) was last saved: its summary,
    and how many turns, tokens and messages the thread had then. Returns an empty `_Saved` if nothing was noted."""
    try:
        return msgspec.json.decode(tags.get(TAG, ""), type=_Saved)
    except msgspec.DecodeError:
        return _Saved(Summary(""))


def _kept(state: State, saved: _Saved) -> _Kept:
    """Return the messages of the last saved checkpoint (state of a run), which `saved` describes, as they were given.
    If an agent has gone on with the thread's conversation or changed it since, return the messages that the thread has
    now instead, in the form in which Clew sends them to Anthropic. Returns no messages if the model sees none."""
    seen = state.messages
    if not seen:
        return _Kept([], [])
    if not saved.covers(state):
        return _Kept(to_dialect(seen, "anthropic")["messages"], None)
    if not saved.is_plain:
        return _Kept(state.state.get(_ALL_AS_GIVEN) or [], None)
    params: list[Param] = []
    ends: list[int] = []
    values = state.state
    while (at := ends[-1] if ends else 0) < len(seen):
        count, param = values.get(f"{_AS_GIVEN}{at}") or (1, None)
        params.append(_written(seen[at : at + 1]) or {} if param is None else param)
        ends.append(at + count)
    return _Kept(params, ends)


def _place(state: State, count: int) -> int:
    """Return the index that message number `count` of the conversation, counted from 1, has in the thread's history.
    The history also keeps the messages that a rewind has taken out of the conversation. Returns -1 if the conversation
    has no such message."""
    for start, stop in state.view:
        if 0 < count <= stop - start:
            return start + count - 1
        count -= stop - start
    return -1


def _is_stale(name: str, start: int) -> bool:
    """Return whether the value `name` of a thread's state is out of date once only the first `start` messages of the
    conversation are kept. That is so if the value is a copy, as first given, of a message that is not kept, or of all
    messages. Returns False for any other value."""
    return name == _ALL_AS_GIVEN or (name.startswith(_AS_GIVEN) and int(name.removeprefix(_AS_GIVEN)) >= start)


def _common(one: Sequence[Param], other: Sequence[Param]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def _read(param: Param, where: str) -> tuple[Message, ...]:
    try:
        return from_dialect([param], "anthropic")
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {str(error).removeprefix('message 0: ')}") from None


def _written(messages: Sequence[Message]) -> Param | None:
    """Translate messages of Clew into the one message of Anthropic's API that Clew sends for them. Returns None if Clew
    sends nothing for them.

    Clew never sends tool results without their calls, or a response without a prompt. So placeholders for missing calls
    and prompts are added for the translation, and left out of the result.
    """
    results = [block for message in messages for block in message.content if isinstance(block, ToolResult)]
    before: list[Message] = []
    after: list[Message] = []
    if results:
        before = [user("-"), Assistant(tuple(ToolCall(result.call_id, "tool", {}) for result in results))]
    elif any(isinstance(message, Assistant) for message in messages):
        before, after = [user("-")], [user("-")]
    sent: list[Param] = to_dialect([*before, *messages, *after], "anthropic")["messages"]
    return sent[len(before)] if len(sent) > len(before) else None


def _spent(old: State, saved: _Saved, new: Checkpoint) -> Usage:
    """Return the tokens that the checkpoint `new` counts and that the thread's totals do not have yet. `old` is the
    thread's state, and `saved` the record of the last save."""
    before = saved.grown(old.turns, old.usage.input_tokens, old.usage.output_tokens)
    return Usage(max(0, new.input_tokens - before.input_tokens), max(0, new.output_tokens - before.output_tokens))


def _summary(new: Checkpoint) -> Summary:
    return Summary(new.run_id, new.task_name, new.iteration, new.input_tokens, new.output_tokens, new.created_at)
