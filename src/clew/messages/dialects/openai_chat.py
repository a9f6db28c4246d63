"""The conversation as OpenAI's chat completions take it: a list of messages, tool results one message each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from clew.errors import InvalidInput
from clew.messages.blocks import Block, Opaque, Text, Thinking, ToolCall, ToolResult
from clew.messages.conversation import Assistant, Message, System, Tool, User
from clew.messages.dialects._arrange import Piece, Response, Said, arrange
from clew.messages.dialects._attachments import detach, reattach
from clew.messages.dialects._calls import CallRules
from clew.messages.dialects._extras import beside, check, extra_of, own
from clew.messages.dialects._openai_calls import RAW, read_call_arguments, write_arguments
from clew.messages.dialects._openai_chat_parts import (
    NAME,
    ROLES,
    Part,
    about_message,
    is_whole,
    moves,
    read_part,
    reread,
    said_of_message,
    write_part,
)
from clew.messages.dialects._reading import expect, may, need, parts_of
from clew.messages.dialects._values import plain
from clew.messages.dialects.loss import Notes

__all__ = ["read", "write"]

_RULES = CallRules(id_pattern=r"[!-~]+", id_length=40, unique_in="response", name_length=64, has_errors=False)
_ENOUGH = ("audio", "function_call")
"""Fields that make a message of the model's one even if it says nothing else."""
_OWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "refusal"})
_CALL = frozenset({"id", "type", "function", "custom"})
_RESULT = frozenset({"role", "content", "tool_call_id"})


def write(conversation: Sequence[Message], notes: Notes) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in arrange(conversation, NAME, _RULES, reread, notes):
        messages += _write_response(turn, notes) if isinstance(turn, Response) else _write_said(turn, notes)
    return messages


def _write_said(turn: Said, notes: Notes) -> list[dict[str, Any]]:
    if turn.role == "user" and len(turn.pieces) == 1 and is_whole(turn.pieces[0].block):
        return [dict(said_of_message(turn.pieces[0].block) or {})]
    if turn.role == "tool":
        for piece in turn.pieces:
            notes.add(piece.at, "a tool message with more than results", "it comes back in a user message")
    role: Literal["system", "user"] = "system" if turn.role == "system" else "user"
    fields, pieces = _take_fields(turn.pieces, role, notes)
    parts = [part for piece in pieces if (part := write_part(piece, role, notes))]
    if parts:
        return [{"role": role, "content": _content(parts), **fields}]
    _note_silent(turn.pieces, notes)
    return []


def _write_response(turn: Response, notes: Notes) -> list[dict[str, Any]]:
    fields, pieces = _take_fields(turn.pieces, "assistant", notes)
    parts: list[Part] = []
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece.block, ToolCall):
            calls.append(_write_call(piece, notes))
        elif isinstance(piece.block, Thinking):
            notes.add(piece.at, "thinking", "chat completions have no place for it; it is left out")
        elif part := write_part(piece, "assistant", notes):
            if calls:
                notes.add(piece.at, "the place of what follows a call", "a message has its calls after its words")
            parts.append(part)
    message: dict[str, Any] = {"role": "assistant"}
    if parts:
        message["content"] = _content(parts)
    if calls:
        message["tool_calls"] = calls
    if len(message) == 1 and not any(key in fields for key in _ENOUGH):
        _note_silent(turn.pieces, notes)
        return []
    return [{**message, **fields}, *_write_answers(turn.answers, notes)]


def _write_answers(answers: list[Piece], notes: Notes) -> list[dict[str, Any]]:
    kept, moved = detach(answers, moves, notes)
    messages = [_write_answer(answer, notes) for answer in kept]
    parts = [part for piece in moved if (part := write_part(piece, "user", notes))]
    return [*messages, {"role": "user", "content": parts}] if parts else messages


def _write_answer(answer: Piece, notes: Notes) -> dict[str, Any]:
    result, at = answer.result, answer.at
    if result.is_error:
        notes.add(at, "that a result is an error", "a tool message cannot say so but in its text")
    parts = [part for block in result.content if (part := write_part(Piece(block, at), "result", notes))]
    if result.is_error and not parts:
        parts = [{"type": "text", "text": "The tool failed and said nothing."}]
    fields = own(result.extra, NAME, _RESULT)
    check(result.extra, NAME, fields, at, notes)
    return {"role": "tool", "tool_call_id": result.call_id, "content": _content(parts), **fields}


def _write_call(piece: Piece, notes: Notes) -> dict[str, Any]:
    call, at = piece.call, piece.at
    fields = own(call.extra, NAME, ("id", "function", "custom"))
    kind = fields.pop("type", None)
    custom = kind == "custom" and isinstance(call.arguments, str)
    if custom:
        body = {"name": call.name, "input": call.arguments}
        fields.pop(RAW, None)
    else:
        body = {"name": call.name, "arguments": write_arguments(call, fields, at, notes)}
    check(call.extra, NAME, {**fields, "type": "custom"} if custom else fields, at, notes)
    beside_it = {key: value for key, value in fields.items() if key != RAW}
    kind = "custom" if custom else "function"
    return {**beside_it, "id": call.id, "type": kind, kind: body}


def _take_fields(pieces: list[Piece], role: str, notes: Notes) -> tuple[dict[str, Any], list[Piece]]:
    """The fields of the message itself, and the pieces of its content."""
    holders = [piece for piece in pieces if said_of_message(piece.block) is not None]
    if not holders:
        return {}, pieces
    said = said_of_message(holders[0].block) or {}
    fields = _message_fields(said, role == "system")
    if not fields or fields != said or pieces[0] is not holders[0] or len(holders) > 1:
        notes.add(holders[0].at, "what a vendor said of the message", "a part of it has no place there")
    return fields, [piece for piece in pieces if said_of_message(piece.block) is None]


def _message_fields(message: dict[str, Any], system: bool) -> dict[str, Any]:
    """What is said of a message beside what Clew has words for. An empty list says nothing."""
    fields = {key: value for key, value in beside(message, _OWN).items() if value != []}
    return {**fields, "role": "developer"} if system and message.get("role") == "developer" else fields


def _note_silent(pieces: list[Piece], notes: Notes) -> None:
    """A message without content is left out. That is mere form, unless something was said of the message itself."""
    for piece in pieces:
        if said_of_message(piece.block) is not None:
            notes.add(piece.at, "what a vendor said of the message", "the message says nothing and is left out")


def _content(parts: list[Part]) -> str | list[Part]:
    """One plain text is said as a text: endpoints that copy the API know that form best."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts


def read(payload: Any) -> tuple[Message, ...]:
    """Messages of a list, of a request's body, of one message, or of a completion's first choice."""
    if isinstance(payload, dict) and "choices" in payload:
        return _read_completion(payload)
    if isinstance(payload, dict):
        payload = [payload] if "role" in payload else need(payload, "messages", list, "payload")
    messages = [
        _read_message(expect(message, dict, f"message {index}"), f"message {index}")
        for index, message in enumerate(expect(payload, list, "payload"))
    ]
    return tuple(_join_tools(messages))


def _read_completion(payload: dict[str, Any]) -> tuple[Message, ...]:
    choices = need(payload, "choices", list, "payload")
    if not choices:
        return ()
    choice = expect(choices[0], dict, "choice 0")
    message = _read_message(need(choice, "message", dict, "choice 0"), "message 0")
    if not isinstance(message, Assistant):
        raise InvalidInput("choice 0: the message is not the assistant's")
    model, stop = may(payload, "model", str, "", "payload"), may(choice, "finish_reason", str, "", "choice 0")
    return (Assistant(message.content, model, stop),)


def _join_tools(messages: list[Message]) -> Iterator[Message]:
    """Tool messages in a row are one, and what was moved out of them goes back in."""
    results: list[ToolResult] = []
    for message in messages:
        if isinstance(message, Tool):
            results += [block for block in message.content if isinstance(block, ToolResult)]
            continue
        if results:
            whole, taken = reattach(results, message.content, 0, moves) if isinstance(message, User) else ((), 0)
            is_theirs = taken > 0 and taken == len(message.content)
            yield Tool(whole if is_theirs else tuple(results))
            results = []
            if is_theirs:
                continue
        yield message
    if results:
        yield Tool(tuple(results))


def _read_message(message: dict[str, Any], where: str) -> Message:
    role = need(message, "role", str, where)
    if role not in ROLES:
        return User((about_message(plain(message)),))
    if role == "tool":
        content = tuple(_read_content(message, where))
        fields = beside(message, _RESULT)
        return Tool((ToolResult(need(message, "tool_call_id", str, where), content, extra=extra_of(NAME, fields)),))
    blocks: list[Block] = [*_read_content(message, where)]
    fields = _message_fields(message, role == "developer")
    if role == "assistant":
        if message.get("refusal"):
            blocks.append(Opaque(NAME, {"type": "refusal", "refusal": need(message, "refusal", str, where)}))
        blocks += [_read_call(call, where) for call in may(message, "tool_calls", list, [], where)]
    if fields:
        blocks.insert(0, about_message(fields))
    if role == "assistant":
        return Assistant(tuple(blocks))
    return User(tuple(blocks)) if role == "user" else System(tuple(blocks))


def _read_content(message: dict[str, Any], where: str) -> Sequence[Any]:
    content = message.get("content")
    if content is None and message["role"] != "assistant":
        raise InvalidInput(f"{where}: the key 'content' is missing")
    parts = parts_of([] if content is None else content, where)
    if isinstance(parts, str):
        return [Text(parts)] if parts else []
    return [read_part(part, where) for part in parts]


def _read_call(call: Any, where: str) -> ToolCall:
    where = f"{where}, tool call"
    expect(call, dict, where)
    fields = beside(call, _CALL)
    kind = may(call, "type", str, "function", where)
    if kind == "custom":
        body = need(call, "custom", dict, where)
        arguments: Any = need(body, "input", str, where)
        fields["type"] = kind
    elif kind == "function":
        body = need(call, "function", dict, where)
        arguments = read_call_arguments(body.get("arguments", ""), fields)
    else:
        raise InvalidInput(f"{where}: the value of 'type' is not function or custom")
    return ToolCall(need(call, "id", str, where), need(body, "name", str, where), arguments, extra_of(NAME, fields))
