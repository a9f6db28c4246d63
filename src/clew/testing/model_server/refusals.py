"""The rules by which vendors refuse a conversation, for example because a tool call has no result. The model server
applies them, so that a test finds such a conversation before a real vendor refuses it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

from clew.messages import Assistant, Message, Text, Thinking, Tool, ToolResult, tool_calls
from clew.messages.dialects import Dialect

__all__ = ["refusal", "signature_of"]

_OURS = re.compile(r"sig[0-9a-f]{64}")
_UNANSWERED = {
    "anthropic": "messages: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` "
    "block must have a corresponding `tool_result` block in the next message.",
    "openai-chat": "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: {}",
    "openai-responses": "No tool output found for function call {}.",
}
_UNASKED = {
    "anthropic": "messages: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block must have "
    "a corresponding `tool_use` block in the previous message.",
    "openai-chat": "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
    "'tool_calls': {}",
    "openai-responses": "No tool call found for function call output with call_id {}.",
}


def signature_of(text: str) -> str:
    """Return the signature that the model server puts on a thinking text. It depends on the text alone. So when the
    text comes back in a later request, the server can check that nobody has changed it."""
    return "sig" + hashlib.sha256(text.encode()).hexdigest()


def refusal(messages: Sequence[Message], dialect: Dialect) -> str | None:
    """Return the error message with which the vendor of this dialect would refuse the conversation. Returns None if the
    conversation breaks no known rule."""
    return next(_refusals(messages, dialect), None)


def _refusals(messages: Sequence[Message], dialect: Dialect) -> Iterator[str]:
    if not messages:
        yield "messages: at least one message is required"
    asked: set[str] = set()
    for index, message in enumerate(messages):
        answered = _answered(message)
        if answered - asked:
            yield _UNASKED[dialect].format(", ".join(sorted(answered - asked)))
        if dialect != "openai-responses" and asked - answered:
            yield _UNANSWERED[dialect].format(", ".join(sorted(asked - answered)))
        asked -= answered
        asked |= {call.id for call in tool_calls(message)}
        if dialect == "anthropic":
            yield from _anthropic(index, message)
    if asked:
        yield _UNANSWERED[dialect].format(", ".join(sorted(asked)))


def _answered(message: Message) -> set[str]:
    if not isinstance(message, Tool):
        return set()
    return {block.call_id for block in message.content if isinstance(block, ToolResult)}


def _anthropic(index: int, message: Message) -> Iterator[str]:
    if index == 0 and isinstance(message, Assistant):
        yield 'messages: first message must use the "user" role'
    for block in message.content:
        if isinstance(block, Text) and not block.text.strip():
            yield "messages: text content blocks must contain non-whitespace text"
        if isinstance(block, Thinking) and _is_changed(block):
            yield f"messages.{index}: Invalid `signature` in `thinking` block"


def _is_changed(block: Thinking) -> bool:
    """Return whether this thinking text was changed after this server had signed it. False for a signature that this
    server did not make, because it cannot be checked."""
    return bool(_OURS.fullmatch(block.signature or "")) and block.signature != signature_of(block.text)
