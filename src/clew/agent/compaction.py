"""Shorten a conversation that no longer fits the model's context window. Either a summary replaces the older messages,
or the last turn (a response and the results of its tool calls) is removed.

Both methods are recorded as entries, and change only what the model sees. The thread's history keeps every message. If
the thread is taken back to an earlier turn, the model sees what it saw then.
"""

from __future__ import annotations

import logging

from clew.agent.events import Compacted as CompactedEvent
from clew.agent.events import Unwound
from clew.agent.journal import Journal
from clew.agent.model_call import ask
from clew.agent.prompts import is_note, is_prompt, note
from clew.agent.settings import Settings
from clew.errors import ContextTooLong
from clew.log import Compacted, MessageAdded, ModelCallStarted, Rewound
from clew.messages import Assistant, Message, Text, Tool, ToolCall, ToolResult, plain_text, tool_calls, user
from clew.models import ModelRequest, ModelResponse

__all__ = ["compact", "make_room"]

log = logging.getLogger("clew.agent")

_ASK = (
    "Below is a conversation between a user and an assistant that uses tools. Sum it up for the assistant, which will go on "
    "from your summary alone: the task and its constraints, what was done and with what result, what was decided and why, "
    "names, numbers and paths that are still needed, and what is left to do."
)
_UNWOUND = "Your last response and the results of its calls did not fit, and were removed. "
_LONGEST_PART = 2_000
_LONGEST, _SHORTEST = 200_000, 4_000
"""Limits, in characters, for the text of a conversation that is sent to the model with the request to summarize it.

The first request has at most `_LONGEST` characters of it. If the model refuses the request as too long, the limit is
divided by four and the request is made again, as long as the limit is at least `_SHORTEST`. Before that, each single
message is cut to `_LONGEST_PART` characters.
"""


async def make_room(settings: Settings, journal: Journal) -> CompactedEvent | Unwound:
    """Shorten the conversation that the model sees, and return an event that says which of two methods was used.

    `compact` replaces the older messages by a summary, and `_unwind` removes the last turn. `settings.on_overflow`
    names the one to try first. If it is not possible, the other one is tried. What is done is recorded in `journal`,
    which writes the thread's log. Raises `ContextTooLong` if neither is possible.
    """
    for way in (compact, _unwind) if settings.on_overflow == "compact" else (_unwind, compact):
        done = await way(settings, journal)
        if done is not None:
            return done
    raise ContextTooLong(settings.model.name, "and what is left cannot be made shorter")


async def compact(settings: Settings, journal: Journal) -> CompactedEvent | None:
    """Ask the model for a summary of the older messages, and record the summary. From then on the model sees the
    summary in place of these messages.

    The last response or prompt and all messages after it are not replaced. Returns None, and does nothing, if there are
    fewer than two older messages or if all of them are notes (messages from Clew to the model). Otherwise the caller
    must ask the model again. The start of that model call is recorded here already, in one write with the summary.
    """
    state = journal.thread.present
    keep = _to_keep(state.messages)
    older = state.messages[: len(state.messages) - keep]
    if len(older) < 2 or all(map(is_note, older)):
        return None
    response, cost = await _summary_of(settings, journal, older)
    summary = note("Summary of the conversation so far:\n\n" + plain_text(response.message))
    again = ModelCallStarted(settings.model.name)
    await journal.record(Compacted(summary, keep, response.usage, cost), again)
    log.info("thread %r: %d messages are summed up for the model", journal.thread.thread_id, len(older))
    return CompactedEvent(state.turns)


async def _unwind(settings: Settings, journal: Journal) -> Unwound | None:
    """Remove the last turn, that is its response and its tool results, from what the model sees. What tools of this
    turn stored in `ctx.state` and `ctx.metadata` is removed too.

    Adds a note, a message from Clew to the model, that tells the model which calls were made, so that it does not
    repeat their effects. Returns None, and does nothing, in two cases: the conversation does not end with a turn that
    called tools, or such a note stands right before that turn. In the second case one turn was already removed, and
    that was not enough.
    """
    state = journal.thread.present
    before, response = len(state.messages) - 2, state.messages[-2] if len(state.messages) > 2 else None
    if type(response) is not Assistant or type(state.messages[-1]) is not Tool:
        return None
    last = state.messages[before - 1]
    if is_note(last) and _UNWOUND in plain_text(last):
        return None
    made = ", ".join(dict.fromkeys(call.name for call in tool_calls(response)))
    said = f"{_UNWOUND}The calls were made ({made}): do not repeat what has an effect, and ask for less at a time."
    again = ModelCallStarted(settings.model.name)
    await journal.record(Rewound(messages=before), MessageAdded(note(said)), again)
    log.info("thread %r: turn %d did not fit and is unwound", journal.thread.thread_id, state.turns)
    return Unwound(state.turns)


def _to_keep(messages: tuple[Message, ...]) -> int:
    """Return how many of the newest messages a summary must not replace: the last response or prompt, and all messages
    after it."""
    for count, message in enumerate(reversed(messages), 1):
        if type(message) is Assistant or is_prompt(message):
            return count
    return 0


async def _summary_of(
    settings: Settings, journal: Journal, messages: tuple[Message, ...]
) -> tuple[ModelResponse, float | None]:
    """Ask the model for a summary of these messages, and record each start of a model call in `journal`, which writes
    the thread's log. Return the response, and the cost in dollars or None if the cost is not known.

    The messages are sent as one text of limited length; if they are longer, some from the middle are left out. If the
    model refuses the request as too long, it is asked again with a quarter of that limit, and so on. Raises
    `ContextTooLong` if even the shortest request is refused.
    """
    told = [_told(message) for message in messages]
    longest = _LONGEST
    while True:
        while len(told) > 2 and sum(map(len, told)) > longest:
            del told[len(told) // 3]  # the start holds the task and the end what matters most now
        request = ModelRequest(messages=(user("\n\n".join([_ASK, *told])),), max_tokens=settings.max_tokens)
        await journal.ask_again(settings.model.name)
        try:
            return await ask(settings, journal, request, lambda event: None)
        except ContextTooLong:
            longest //= 4
            if longest < _SHORTEST:
                raise


def _told(message: Message) -> str:
    parts = []
    for block in message.content:
        if isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, ToolCall):
            parts.append(f"calls {block.name} with {block.arguments}")
        elif isinstance(block, ToolResult):
            parts.append(" ".join(str(getattr(part, "text", part)) for part in block.content))
    text = "\n".join(parts)
    if len(text) > _LONGEST_PART:
        text = f"{text[: _LONGEST_PART // 2]} … {text[-_LONGEST_PART // 2 :]}"
    who = "results" if type(message) is Tool else type(message).__name__.lower()
    return f"[{who}] {text}"
