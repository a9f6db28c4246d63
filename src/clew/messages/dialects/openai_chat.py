"""Translate conversations to and from OpenAI's chat completions API, in which each tool result is a message of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from clew.errors import InvalidInput
from clew.messages.dialects import shared
from clew.messages.dialects.arrange import CallRules, Piece, Response, Said, arrange, detach, reattach
from clew.messages.dialects.losses import At, Notes
from clew.messages.dialects.shared import (
    RAW,
    beside,
    check,
    data_url,
    dumps,
    exactly,
    expect,
    extra_of,
    is_media_type,
    may,
    need,
    own,
    parts_of,
    plain,
    read_call_arguments,
    read_data_url,
    write_arguments,
)
from clew.messages.model import (
    Assistant,
    Block,
    File,
    Image,
    Json,
    Message,
    Opaque,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
)

__all__ = ["read", "write"]


NAME = "openai-chat"
Place = Literal["system", "user", "assistant", "result"]
Part = dict[str, Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_USER_ONLY = frozenset({"image_url", "input_audio", "file"})
_ASSISTANT_ONLY = frozenset({"refusal"})
_FIELDS = {
    "text": frozenset({"type", "text"}),
    "image_url": frozenset({"type", "image_url"}),
    "file": frozenset({"type", "file"}),
}

_RULES = CallRules(id_pattern=r"[!-~]+", id_length=40, unique_in="response", name_length=64, has_errors=False)
_ENOUGH = ("audio", "function_call")
"""Fields of an assistant message in the API. A message that has such a field is sent even if it has neither content nor
tool calls."""
_OWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "refusal"})
_CALL = frozenset({"id", "type", "function", "custom"})
_RESULT = frozenset({"role", "content", "tool_call_id"})


def write(conversation: Sequence[Message], notes: Notes) -> list[dict[str, Any]]:
    """Return the conversation as JSON for a request's `messages`. Adds to `notes` what the API cannot express."""
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
    """Separate a message's blocks from the fields that only this vendor has for the message as a whole, such as its
    name.

    `about_message` stored these fields in an opaque block, a block that holds JSON of the vendor. Returns the fields
    that a message of this role may have, and the other blocks. If fields are left out, that is added to `notes` as a
    loss.
    """
    holders = [piece for piece in pieces if said_of_message(piece.block) is not None]
    if not holders:
        return {}, pieces
    said = said_of_message(holders[0].block) or {}
    fields = _message_fields(said, role == "system")
    if not fields or fields != said or pieces[0] is not holders[0] or len(holders) > 1:
        notes.add(holders[0].at, "what a vendor said of the message", "a part of it has no place there")
    return fields, [piece for piece in pieces if said_of_message(piece.block) is None]


def _message_fields(message: dict[str, Any], system: bool) -> dict[str, Any]:
    """Return the fields of an API message that Clew's messages have no field for, such as its name.

    Nulls and empty lists are left out. `system` says whether the message holds instructions. Then its role is returned
    too if that is "developer", because Clew's role for instructions is always "system".
    """
    fields = {key: value for key, value in beside(message, _OWN).items() if value != []}
    return {**fields, "role": "developer"} if system and message.get("role") == "developer" else fields


def _note_silent(pieces: list[Piece], notes: Notes) -> None:
    """Record in `notes` what is lost with a message that has no content and is therefore left out of the request: the
    fields that only this vendor has, such as the message's name. `pieces` are the message's blocks, one of which holds
    these fields."""
    for piece in pieces:
        if said_of_message(piece.block) is not None:
            notes.add(piece.at, "what a vendor said of the message", "the message says nothing and is left out")


def _content(parts: list[Part]) -> str | list[Part]:
    """Return these JSON objects as the value of a message's `content`: a list, or a string if the only object is a
    plain text.

    Servers that imitate the API support strings best. If there are no objects, the string is empty.
    """
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts


def read(payload: Any) -> tuple[Message, ...]:
    """Return the messages in `payload`: a list of messages, a request body, one message, or a completion, of which the
    first choice is read.

    Raises `InvalidInput` if it is malformed.
    """
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
    """Yield the messages, with consecutive tool messages joined to one.

    The API accepts no images and files inside tool results, so `write` sends them in a user message after the results.
    If the user message after the tool messages holds nothing else, its blocks are put back into the results, and that
    user message is left out.
    """
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


def about_message(fields: dict[str, Any]) -> Opaque:
    """Return an opaque block, which holds JSON of a vendor, for those fields of an API message that are about the
    message as a whole, such as its name or audio.

    The block is put before the message's other blocks. An API message with an unknown role is stored as one such block,
    which then holds all its fields.
    """
    return Opaque(NAME, {"message": fields})


def said_of_message(block: Block) -> dict[str, Any] | None:
    """Return the fields of an API message that `about_message` stored in this block: those about the message as a
    whole, such as its name. Return None if `about_message` did not make this block."""
    if not isinstance(block, Opaque) or "type" in block.value:
        return None
    fields: dict[str, Any] = block.value["message"]
    return fields


def is_whole(block: Block) -> bool:
    """Return whether this block holds an entire API message, as `about_message` stores a message of unknown role."""
    fields = said_of_message(block)
    return fields is not None and isinstance(fields.get("role"), str) and fields["role"] not in ROLES


def write_part(piece: Piece, place: Place, notes: Notes) -> Part | None:
    """Return a block as JSON for a message of the role `place`, or for a tool result if `place` is "result". Return
    None if the API accepts no such block there. Adds to `notes` what of the block the API cannot express."""
    block, at = piece
    if isinstance(block, Text):
        return _write_text(block, at, notes)
    if isinstance(block, Json):
        notes.add(at, "a JSON value", "it is sent, and comes back, as text")
        return {"type": "text", "text": dumps(block.value)}
    if isinstance(block, (Image, File)):
        return _write_media(block, place, at, notes)
    if isinstance(block, Opaque) and _fits(block.value.get("type"), place):
        return dict(block.value)
    notes.add(at, "a block the API does not take there", "it is left out")
    return None


def _fits(kind: Any, place: Place) -> bool:
    if not isinstance(kind, str) or place in ("system", "result"):
        return False
    return kind not in (_ASSISTANT_ONLY if place == "user" else _USER_ONLY)


def _write_text(block: Text, at: At, notes: Notes) -> Part | None:
    if not block.text:
        if block.extra:
            notes.add(at, "an empty text with something beside it", "empty texts are left out")
        return None
    fields = own(block.extra, NAME, _FIELDS["text"])
    check(block.extra, NAME, fields, at, notes)
    return {"type": "text", "text": block.text, **fields}


def _write_media(block: Image | File, place: Place, at: At, notes: Notes) -> Part:
    part = None
    if place == "user":
        part = _write_image(block, at, notes) if isinstance(block, Image) else _write_file(block, at, notes)
    if part is None:
        notes.add(at, "an image or file the API cannot take there", "words are sent in its place")
        part = {"type": "text", "text": shared.words_for(block)}
    return part


def _write_image(block: Image, at: At, notes: Notes) -> Part | None:
    form = shared.image_form(block)
    if form == "data":
        url = data_url(shared.image_type(block), block.data or b"")
        back = Image(shared.image_type(block), block.data, extra=block.extra)
    elif form == "url":
        url = str(block.url)
        back = Image(url=block.url, extra=block.extra)
    else:
        return None
    if back != block:
        notes.add(at, "a part of what is known of an image", "the API has one address for an image and no more")
    fields = own(block.extra, NAME, ("type",))
    inner = _inner(fields, "image_url", ("url",))
    check(block.extra, NAME, fields, at, notes)
    return {"type": "image_url", **fields, "image_url": {"url": url, **inner}}


def _inner(fields: dict[str, Any], key: str, taken: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of the object `fields[key]` without nulls and without the keys in `taken`, which the caller
    writes itself. Empty if there is no such object.

    Also sets `fields[key]` to the returned fields, or removes it if there are none.
    """
    inner = fields.pop(key, None)
    kept = beside(inner, taken) if isinstance(inner, dict) else {}
    if kept:
        fields[key] = kept
    return kept


def _write_file(block: File, at: At, notes: Notes) -> Part | None:
    fields = own(block.extra, NAME, _FIELDS["file"])
    if block.data:
        media_type = block.media_type if is_media_type(block.media_type) else "application/octet-stream"
        name = block.name or "file"
        file = {"filename": name, "file_data": data_url(media_type, block.data)}
        back = File(name, media_type, block.data, extra=block.extra)
    elif shared.is_openai_file(block.file_id):
        file = {"file_id": str(block.file_id)}
        back = File(file_id=block.file_id, extra=block.extra)
    else:
        return None
    if back != block:
        notes.add(at, "a part of what is known of a file", "the API takes its name and bytes, or its id")
    check(block.extra, NAME, fields, at, notes)
    return {"type": "file", **fields, "file": file}


def moves(result: ToolResult, block: Block) -> bool:
    """Return whether a block must be sent after its tool result: an image or file, because tool messages may hold only
    text."""
    if not isinstance(block, (Image, File)):
        return False
    part = write_part(Piece(block, (0, None)), "user", Notes())
    return part is not None and part["type"] != "text"


def reread(block: Opaque, inside: bool) -> Block | None:
    """Read the JSON in an opaque block again. The block was of an unknown kind when it was first read, but this version
    may know the kind. Returns the block, or None if the JSON is invalid.

    The JSON may be an element of a message's content, the vendor's fields of a message, or a message with an unknown
    role. With `inside`, the block is in a tool result, where only an element of content is valid.
    """
    value = plain(block.value)
    if not isinstance(value, dict):
        return None
    if "type" not in value:
        fields = value.get("message")
        return about_message(fields) if isinstance(fields, dict) and len(value) == 1 and not inside else None
    try:
        return read_part(value, "block") if isinstance(value["type"], str) else None
    except InvalidInput:
        return None


def read_part(part: Part, where: str) -> Text | Image | File | Opaque:
    """Return the block for a JSON object of a message's content. An object of an unknown type or shape becomes an
    `Opaque` block, which holds it unchanged.

    Raises `InvalidInput` if a field is missing; `where` names the message in the error.
    """
    kind = part["type"]
    fields = beside(part, _FIELDS.get(kind, ()))
    if kind == "text":
        return Text(need(part, "text", str, where), extra_of(NAME, fields))
    block: Image | File | None = None
    if kind == "image_url":
        block = _read_image(need(part, "image_url", dict, where), fields)
    elif kind == "file":
        block = _read_file(need(part, "file", dict, where), fields)
    return block or Opaque(NAME, plain(part))


def _read_image(inner: dict[str, Any], fields: dict[str, Any]) -> Image | None:
    rest = beside(inner, ("url",))
    extra = extra_of(NAME, {**fields, "image_url": rest} if rest else fields)
    found = read_data_url(inner.get("url"))
    if found:
        media_type, data = found
        return Image(media_type, data, extra=extra) if data and shared.is_image_type(media_type) else None
    return Image(url=inner["url"], extra=extra) if shared.is_link(inner.get("url")) else None


def _read_file(inner: dict[str, Any], fields: dict[str, Any]) -> File | None:
    extra = extra_of(NAME, fields)
    if exactly(inner, "filename", "file_data"):
        found = read_data_url(inner["file_data"])
        name = inner["filename"]
        if not found or not found[1] or not isinstance(name, str) or not name:
            return None
        return File(name, found[0], found[1], extra=extra)
    if exactly(inner, "file_id") and shared.is_openai_file(inner["file_id"]):
        return File(file_id=inner["file_id"], extra=extra)
    return None
