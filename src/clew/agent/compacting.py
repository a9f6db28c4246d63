"""When a conversation no longer fits: the model sums up what came before, and for it the summary takes its place.

The history stays whole on record, and a rewind brings back what the model saw then.
"""

from __future__ import annotations

import logging

from clew.agent.asking import ask
from clew.agent.journal import Journal
from clew.agent.outputs import CORRECTION
from clew.agent.settings import Settings
from clew.errors import ContextTooLong
from clew.log import Compacted
from clew.messages import Assistant, Message, Text, Tool, ToolCall, ToolResult, User, plain_text, user
from clew.models import ModelRequest

__all__ = ["compact", "is_prompt"]

log = logging.getLogger("clew.agent")

_ASK = (
    "Below is a conversation between a user and an assistant that uses tools. Sum it up for the assistant, which will go on "
    "from your summary alone: the task and its constraints, what was done and with what result, what was decided and why, "
    "names, numbers and paths that are still needed, and what is left to do."
)
_SUMMARY = "Summary of the conversation so far:\n\n"
_LONGEST_PART = 2_000
_LONGEST = 200_000
"""Characters of one message, and of all of them, that the model is given to sum up."""


async def compact(settings: Settings, journal: Journal) -> None:
    """Replace all but the newest messages, for the model, by a summary; `ContextTooLong` if there is nothing to replace."""
    messages = journal.thread.checkpoint.messages
    keep = _to_keep(messages)
    older = messages[: len(messages) - keep]
    if len(older) < 2:
        raise ContextTooLong(settings.model.name, "and what is left cannot be made shorter")
    response, cost = await ask(settings, _summary_of(settings, older), lambda event: None)
    summary = user(_SUMMARY + plain_text(response.message))
    await journal.record(Compacted(summary, keep, response.usage, cost))
    log.info("thread %r: %d messages are summed up for the model", journal.thread.thread_id, len(older))


def is_prompt(message: Message) -> bool:
    """Whether a message is a user's own, and none that Clew has written in its place."""
    return type(message) is User and not plain_text(message).startswith((_SUMMARY, CORRECTION))


def _to_keep(messages: tuple[Message, ...]) -> int:
    """The last response with its results, or the last prompt: what the model is about to answer."""
    for count, message in enumerate(reversed(messages), 1):
        if type(message) in (Assistant, User):
            return count
    return 0


def _summary_of(settings: Settings, messages: tuple[Message, ...]) -> ModelRequest:
    told = [_told(message) for message in messages]
    while len(told) > 2 and sum(map(len, told)) > _LONGEST:
        del told[len(told) // 3]  # the task stands at the beginning, and what matters most now at the end
    return ModelRequest(messages=(user("\n\n".join([_ASK, *told])),), max_tokens=settings.max_tokens)


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
