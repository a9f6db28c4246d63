"""The rules by which vendors refuse a conversation, for example because a tool call has no result. The model server
applies these rules, so that a test finds such a conversation before a real vendor refuses it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from clew.messages import Assistant, Block, Message, Text, Thinking, Tool, ToolCall, ToolResult, User, tool_calls
from clew.messages.dialects import Dialect
from clew.messages.dialects.shared import decode_base64, own

__all__ = ["refusal", "signature_of"]

_ASKS_FOR_SIGNATURES = re.compile(r"gemini-(?:[3-9]|\d\d)")
_OURS = re.compile(r"sig[0-9a-f]{64}")
_UNANSWERED = {
    "anthropic": "messages: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` "
    "block must have a corresponding `tool_result` block in the next message.",
    "openai-chat": "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: {}",
    "openai-responses": "No tool output found for function call {}.",
    "gemini": "Please ensure that the number of function response parts is equal to the number of function call parts of "
    "the function call turn. ({})",
}
_UNASKED = {
    "anthropic": "messages: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block must have "
    "a corresponding `tool_use` block in the previous message.",
    "openai-chat": "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
    "'tool_calls': {}",
    "openai-responses": "No tool call found for function call output with call_id {}.",
    "gemini": "Please ensure that function response turn comes immediately after a function call turn. ({})",
}


def signature_of(text: str) -> str:
    """Return the signature that the model server puts on a text of the model's thinking. The signature depends only on
    the text. So if the text comes back in a later request, the server can check that it has not been changed."""
    return "sig" + hashlib.sha256(text.encode()).hexdigest()


def refusal(messages: Sequence[Message], dialect: Dialect, model: str = "") -> str | None:
    """Return the error message with which a vendor would refuse the conversation, or None if the conversation breaks no
    known rule. `dialect` names the vendor's API, and `model` is the name of the model that is asked."""
    return next(_refusals(messages, dialect, model), None)


def _refusals(messages: Sequence[Message], dialect: Dialect, model: str) -> Iterator[str]:
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
    if dialect == "gemini" and messages:
        yield from _gemini(messages, model)
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


def _gemini(messages: Sequence[Message], model: str) -> Iterator[str]:
    if isinstance(messages[0], Assistant):
        yield "Please ensure that multiturn requests begin with a user role."
    asked = max((index for index, message in enumerate(messages) if isinstance(message, User)), default=-1)
    for index, message in enumerate(messages):
        thoughts = "".join(block.text for block in message.content if isinstance(block, Thinking))
        for block in message.content:
            signature = (decode_base64(_signature(block)) or b"").decode("latin-1")
            if thoughts and _OURS.fullmatch(signature) and signature != signature_of(thoughts):
                yield "Corrupted thought signature."
        calls = tool_calls(message)
        if index > asked and calls and _signature(calls[0]) is None and _ASKS_FOR_SIGNATURES.match(model):
            yield "Function call is missing a thought_signature in functionCall parts."


def _signature(block: Block) -> Any:
    if not isinstance(block, (Text, Thinking, ToolCall)):
        return None
    return own(block.extra, "gemini").get("thoughtSignature")


def _is_changed(block: Thinking) -> bool:
    """Return whether this thinking text was changed after this server had signed it. False if the signature is not one
    that this server made, because such a signature cannot be checked."""
    return bool(_OURS.fullmatch(block.signature or "")) and block.signature != signature_of(block.text)
