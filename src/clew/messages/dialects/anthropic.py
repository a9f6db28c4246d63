"""Translate conversations to and from Anthropic's messages API: `system`, then alternating user and assistant messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from clew.errors import InvalidInput
from clew.messages.dialects import shared
from clew.messages.dialects.arrange import CallRules, Piece, Response, arrange, as_user, detach, split_user
from clew.messages.dialects.losses import At, Notes
from clew.messages.dialects.shared import (
    beside,
    check,
    decode_base64,
    dumps,
    encode_base64,
    exactly,
    expect,
    extra_of,
    may,
    need,
    own,
    parts_of,
    plain,
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
    ToolCall,
    ToolResult,
)

__all__ = ["origins", "read", "write"]


NAME = "anthropic"
Place = Literal["system", "user", "assistant", "result", "error"]
Part = dict[str, Any]

_PDF = "application/pdf"
_FIELDS = {
    "text": frozenset({"type", "text"}),
    "image": frozenset({"type", "source"}),
    "document": frozenset({"type", "source", "title"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error"}),
}
_USER_ONLY = frozenset({"image", "document", "search_result", "container_upload"})
_RESULT_ONLY = frozenset({"tool_reference", "browser_state"})
_ASSISTANT_ONLY = frozenset({"server_tool_use", "mcp_tool_use", "compaction", "fallback"})

_RULES = CallRules(
    id_pattern=r"[a-zA-Z0-9_-]+", id_length=256, unique_in="conversation", name_length=128, has_errors=True
)
_THINKING = ("thinking", "redacted_thinking")
_FIRST = "(The conversation goes on.)"


class _Placed(NamedTuple):
    """`part`, a JSON object of a request's content. `at` says from which block of the conversation it was made: the
    index of the message, and the index of the block in that message."""

    part: Part
    at: At


class _Run(NamedTuple):
    """One message of the request: everything that one side (user or model) says before the other side speaks."""

    role: Literal["user", "assistant"]
    placed: list[_Placed]


def write(conversation: Sequence[Message], notes: Notes) -> dict[str, Any]:
    """Return the conversation as JSON for a request: `messages`, and `system` if the conversation begins with
    instructions. Adds to `notes` what the API cannot express."""
    system, runs = _arranged(conversation, notes)
    messages = [{"role": run.role, "content": [placed.part for placed in run.placed]} for run in runs]
    return {"system": system, "messages": messages} if system else {"messages": messages}


def origins(conversation: Sequence[Message]) -> list[int]:
    """Return, for each message of the request that `write` makes of this conversation, the index of the first message
    of the conversation that it holds. One message of the request can hold several of the conversation."""
    _, runs = _arranged(conversation, Notes())
    return [run.placed[0].at[0] for run in runs]


def _arranged(conversation: Sequence[Message], notes: Notes) -> tuple[list[Part], list[_Run]]:
    """Return the JSON for `system` (the instructions at the start of the conversation), and the messages that follow,
    in which user and model alternate. Adds to `notes` what the API cannot express."""
    system: list[Part] = []
    runs: list[_Run] = []
    begun = False
    for turn in arrange(conversation, NAME, _RULES, reread, notes):
        if isinstance(turn, Response):
            runs.append(_Run("assistant", _write(turn.pieces, "assistant", notes)))
            runs.append(_Run("user", _write_answers(turn.answers, notes)))
        elif turn.role == "system" and not begun:
            system += [placed.part for placed in _write(turn.pieces, "system", notes)]
        else:
            runs.append(_Run("user", _write(as_user(turn, notes), "user", notes)))
        begun = begun or any(run.placed for run in runs[-2:])
    return system, _fit(runs, notes)


def _write(pieces: list[Piece], place: Place, notes: Notes) -> list[_Placed]:
    return [_Placed(part, piece.at) for piece in pieces if (part := write_part(piece, place, notes))]


def _write_answers(answers: list[Piece], notes: Notes) -> list[_Placed]:
    """Return the tool results in `answers` as JSON objects for a request, followed by the images and files that the API
    does not accept inside results. With each object comes the position of the block in the conversation from which it
    was made. Adds to `notes` what the API cannot express."""
    kept, moved = detach(answers, moves, notes)
    return [_Placed(write_result(answer, notes), answer.at) for answer in kept] + _write(moved, "user", notes)


def _fit(runs: list[_Run], notes: Notes) -> list[_Run]:
    """Return the messages in `runs` as the API wants them: user and model alternate, and the user begins. Messages of
    one side in a row are joined. If the model begins, a line of the user is put first. Thinking at the end of a
    response, and white space at the end of the last message if it is a response, are removed. `notes` gets what is
    added or removed."""
    runs = _join(runs)
    for run in runs:
        if run.role == "assistant":
            _tidy(run.placed, run is runs[-1], notes)
    runs = _join(runs)
    if runs and runs[0].role == "assistant":
        notes.add(
            (0, None), "a conversation that the model begins", "the API wants the user first; a line is put there"
        )
        runs.insert(0, _Run("user", [_Placed({"type": "text", "text": _FIRST}, (0, None))]))
    return runs


def _join(runs: list[_Run]) -> list[_Run]:
    joined: list[_Run] = []
    for run in runs:
        if joined and joined[-1].role == run.role:
            joined[-1].placed.extend(run.placed)
        elif run.placed:
            joined.append(run)
    return joined


def _tidy(placed: list[_Placed], last: bool, notes: Notes) -> None:
    """Remove thinking from the end of a response, whose JSON objects are `placed`. If the response is the `last`
    message of the request, also remove white space at its end. Changes the list itself, and adds to `notes` what is
    removed."""
    while placed:
        part, at = placed[-1]
        if part["type"] in _THINKING:
            notes.add(
                at, "thinking that nothing follows", "the API refuses it at the end of a response; it is left out"
            )
            placed.pop()
        elif last and part["type"] == "text" and part["text"] != part["text"].rstrip():
            notes.add(at, "white space at the very end", "the API refuses it; it is cut off")
            placed[-1] = _Placed({**part, "text": part["text"].rstrip()}, at)
        else:
            return


def read(payload: Any) -> tuple[Message, ...]:
    """Return the messages in `payload`: a request body, a list of messages, or one message, such as a model's response.
    Raises `InvalidInput` if it is malformed."""
    messages: list[Message] = []
    body = payload
    if isinstance(payload, dict) and "role" in payload:
        body = [payload]
    elif isinstance(payload, dict):
        system = parts_of(payload.get("system") or [], "system")
        blocks = [Text(system)] if isinstance(system, str) else [read_part(part, "system") for part in system]
        messages += [System(tuple(blocks))] if blocks else []
        body = need(payload, "messages", list, "payload")
    for index, message in enumerate(expect(body, list, "payload")):
        messages += _read_message(expect(message, dict, f"message {index}"), f"message {index}")
    return tuple(messages)


def _read_message(message: dict[str, Any], where: str) -> list[Message]:
    role = need(message, "role", str, where)
    if "content" not in message:
        raise InvalidInput(f"{where}: the key 'content' is missing")
    parts = parts_of(message["content"], where)
    if isinstance(parts, str):
        blocks: list[Block] = [Text(parts)] if parts else []
    else:
        blocks = [read_part(part, where) for part in parts]
    if role == "assistant":
        model, stop = may(message, "model", str, "", where), may(message, "stop_reason", str, "", where)
        return [Assistant(tuple(blocks), model, stop)]
    if role == "system":
        return [System(tuple(blocks))]
    if role != "user":
        raise InvalidInput(f"{where}: the value of 'role' is not user, assistant or system")
    return split_user(blocks, moves)


def write_part(piece: Piece, place: Place, notes: Notes) -> Part | None:
    """Return a block as JSON for this `place`: a message with this role, such as `user`, or a tool result (`result`, or
    `error` if it reports an error). Return None if the API accepts no such block there. What the API cannot express of
    the block is added to `notes`."""
    block, at = piece
    if isinstance(block, Text):
        return _write_text(block, at, notes)
    if isinstance(block, Json):
        notes.add(at, "a JSON value", "it is sent, and comes back, as text")
        return {"type": "text", "text": dumps(block.value)}
    if isinstance(block, Image):
        return _write_image(block, place, at, notes)
    if isinstance(block, File):
        return _write_file(block, place, at, notes)
    if isinstance(block, Thinking):
        return _write_thinking(block, at, notes)
    if isinstance(block, ToolCall):
        return _write_call(block, at, notes)
    if isinstance(block, Opaque) and block.dialect == NAME and _fits(block.value, place):
        return dict(block.value)
    notes.add(at, "a block the API does not take there", "it is left out")
    return None


def _with(
    kind: str, part: Part, block: Text | Image | File | Thinking | ToolCall | ToolResult, at: At, n: Notes
) -> Part:
    """Return `part`, the JSON of a block, with the type `kind` and with the block's fields that only this API has.
    These fields are in the block's `extra`. If not all of `extra` can be sent, adds that loss to `n`. `at` is the
    block's place in the conversation."""
    fields = own(block.extra, NAME, _FIELDS[kind])
    check(block.extra, NAME, fields, at, n)
    return {"type": kind, **part, **fields}


def _write_text(block: Text, at: At, notes: Notes) -> Part | None:
    if block.text.strip():
        return _with("text", {"text": block.text}, block, at, notes)
    if block.text or block.extra:
        notes.add(at, "a text of nothing but white space", "the API refuses it; it is left out")
    return None


def _words(block: Image | File, at: At, notes: Notes) -> Part:
    notes.add(at, "an image or file the API cannot take there", "words are sent in its place")
    return {"type": "text", "text": shared.words_for(block)}


def _write_image(block: Image, place: Place, at: At, notes: Notes) -> Part:
    form = shared.image_form(block)
    source: Part
    if form == "data":
        source = {"type": "base64", "media_type": shared.image_type(block), "data": encode_base64(block.data or b"")}
        back = Image(shared.image_type(block), block.data, extra=block.extra)
    elif form == "url":
        source = {"type": "url", "url": block.url}
        back = Image(url=block.url, extra=block.extra)
    elif shared.is_anthropic_file(block.file_id):
        source = {"type": "file", "file_id": block.file_id}
        back = Image(file_id=block.file_id, extra=block.extra)
    else:
        return _words(block, at, notes)
    if place not in ("user", "result"):
        return _words(block, at, notes)
    if back != block:
        notes.add(at, "a part of what is known of an image", "the API has one source for an image and no more")
    return _with("image", {"source": source}, block, at, notes)


def _write_file(block: File, place: Place, at: At, notes: Notes) -> Part:
    known = _document(block)
    if known is None or place not in ("user", "result"):
        return _words(block, at, notes)
    source, back = known
    if back != block:
        notes.add(at, "a part of what is known of a file", "the API has one source for a document, and few types")
    title = {"title": block.name} if block.name else {}
    return _with("document", {"source": source, **title}, block, at, notes)


def _document(block: File) -> tuple[Part, File] | None:
    """Return two forms of a file: the JSON `source` with which it is sent as a document, and the `File` that Clew would
    make of that JSON when it reads it back. Return None if the file cannot be sent."""
    form = shared.file_form(block)
    if form == "data" and block.data:
        if block.media_type == _PDF:
            source = {"type": "base64", "media_type": _PDF, "data": encode_base64(block.data)}
            return source, File(block.name, _PDF, block.data, extra=block.extra)
        text = _as_text(block)
        if text is None:
            return None
        source = {"type": "text", "media_type": "text/plain", "data": text}
        return source, File(block.name, "text/plain", block.data, extra=block.extra)
    if form == "url" and block.media_type in ("", _PDF):
        return {"type": "url", "url": block.url}, File(block.name, _PDF, url=block.url, extra=block.extra)
    if shared.is_anthropic_file(block.file_id):
        back = File(block.name, file_id=block.file_id, extra=block.extra)
        return {"type": "file", "file_id": block.file_id}, back
    return None


def _as_text(block: File) -> str | None:
    if not block.media_type.startswith("text/") and block.media_type != "application/json":
        return None
    try:
        text = (block.data or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if text.strip() else None


def _write_thinking(block: Thinking, at: At, notes: Notes) -> Part | None:
    """Return a block of thinking as JSON if it has a signature, or if it is encrypted and does not come from OpenAI's
    API (it has no fields of that API in `extra`). The API refuses other thinking: it is added to `notes` as lost, and
    None is returned. `at` is the block's place in the conversation."""
    if block.signature:
        if block.encrypted is not None:
            notes.add(at, "the encrypted form of thinking", "signed thinking is sent as it is")
        return _with("thinking", {"thinking": block.text, "signature": block.signature}, block, at, notes)
    if block.encrypted and not block.text and not own(block.extra, "openai-responses"):
        if block.signature is not None:
            notes.add(at, "an empty signature", "the API has no such thing")
        return _with("redacted_thinking", {"data": block.encrypted}, block, at, notes)
    notes.add(at, "thinking without a signature", "the API takes only what it has signed; it is left out")
    return None


def _write_call(block: ToolCall, at: At, notes: Notes) -> Part:
    arguments = plain(block.arguments)
    if not isinstance(arguments, dict):
        notes.add(at, "arguments that are not an object", 'they are sent as {"arguments": ...}')
        arguments = {"arguments": arguments}
    elif arguments != block.arguments:
        notes.add(at, "arguments that are not JSON", "the nearest JSON value is sent")
    return _with("tool_use", {"id": block.id, "name": block.name, "input": arguments}, block, at, notes)


def write_result(answer: Piece, notes: Notes) -> Part:
    """Return the tool result in `answer` as a JSON object for a request. An error result without content gets a
    sentence, because the API requires one. Adds to `notes` what the API cannot express."""
    result, at = answer.result, answer.at
    place: Place = "error" if result.is_error else "result"
    parts = [part for block in result.content if (part := write_part(Piece(block, at), place, notes))]
    if result.is_error and not parts:
        notes.add(at, "an error result without a word", "the API demands one")
        parts = [{"type": "text", "text": "The tool failed and said nothing."}]
    body: Part = {"tool_use_id": result.call_id}
    if parts:
        body["content"] = parts
    if result.is_error:
        body["is_error"] = True
    return _with("tool_result", body, result, at, notes)


def moves(result: ToolResult, block: Block) -> bool:
    """Return whether a block must be sent after its tool result, not inside: an image or file in an error result."""
    if not result.is_error or not isinstance(block, (Image, File)):
        return False
    part = write_part(Piece(block, (0, None)), "user", Notes())
    return part is not None and part["type"] != "text"


def reread(block: Opaque, inside: bool) -> Block | None:
    """Read the JSON of an opaque block again. The block was of an unknown kind when it was first read, but this version
    may know the kind. Return the block, or None if the JSON is invalid. `inside` (whether the block is in a tool
    result) is used only for other APIs."""
    value = plain(block.value)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return None
    try:
        return read_part(value, "block")
    except InvalidInput:
        return None


def _fits(value: Any, place: Place) -> bool:
    """Return whether the API accepts `value`, the JSON of a block of a kind that Clew does not know, in this `place`:
    in a message of the role `user` or `assistant`, or in a `result` of a tool. It accepts none in any other place."""
    kind = value["type"]
    by_assistant = kind in _ASSISTANT_ONLY or kind.endswith("_tool_result")
    if place == "assistant":
        return kind not in _USER_ONLY and kind not in _RESULT_ONLY
    if place == "user":
        return not by_assistant and kind not in _RESULT_ONLY
    return place == "result" and not by_assistant and kind != "container_upload"


def read_part(part: Part, where: str) -> Block:
    """Return the block for a JSON object of a message's content. An object of an unknown type or shape becomes an
    `Opaque` block, which holds it unchanged. Raises `InvalidInput` if a field is missing; `where` names the message in
    the error."""
    kind = part["type"]
    extra = extra_of(NAME, beside(part, _FIELDS.get(kind, ())))
    if kind == "text":
        return Text(need(part, "text", str, where), extra)
    if kind == "thinking":
        return Thinking(need(part, "thinking", str, where), may(part, "signature", str, "", where) or None, None, extra)
    if kind == "redacted_thinking":
        return Thinking(encrypted=need(part, "data", str, where), extra=extra)
    if kind == "tool_use":
        arguments = plain(need(part, "input", dict, where))
        return ToolCall(need(part, "id", str, where), need(part, "name", str, where), arguments, extra)
    if kind == "tool_result":
        return _read_result(part, extra, where)
    if kind == "image":
        return _read_image(need(part, "source", dict, where), extra) or Opaque(NAME, plain(part))
    if kind == "document":
        title = part.get("title") or ""
        source = need(part, "source", dict, where)
        file = _read_document(source, title, extra) if isinstance(title, str) else None
        return file or Opaque(NAME, plain(part))
    return Opaque(NAME, plain(part))


def _read_result(part: Part, extra: dict[str, Any] | None, where: str) -> ToolResult:
    parts = parts_of(part.get("content") or [], where)
    if isinstance(parts, str):
        content: tuple[Text | Image | File | Opaque, ...] = (Text(parts),)
    else:
        content = tuple(_read_inside(inner, where) for inner in parts)
    call_id = need(part, "tool_use_id", str, where)
    return ToolResult(call_id, content, may(part, "is_error", bool, False, where), extra)


def _read_inside(part: Part, where: str) -> Text | Image | File | Opaque:
    block = read_part(part, where)
    return block if isinstance(block, (Text, Image, File, Opaque)) else Opaque(NAME, plain(part))


def _read_image(source: Part, extra: dict[str, Any] | None) -> Image | None:
    if exactly(source, "type", "media_type", "data") and source["type"] == "base64":
        data, media_type = decode_base64(source["data"]), source["media_type"]
        return Image(media_type, data, extra=extra) if data and shared.is_image_type(media_type) else None
    if exactly(source, "type", "url") and source["type"] == "url":
        return Image(url=source["url"], extra=extra) if shared.is_link(source["url"]) else None
    if exactly(source, "type", "file_id") and source["type"] == "file":
        return Image(file_id=source["file_id"], extra=extra) if shared.is_anthropic_file(source["file_id"]) else None
    return None


def _read_document(source: Part, name: str, extra: dict[str, Any] | None) -> File | None:
    if exactly(source, "type", "media_type", "data") and isinstance(source["data"], str):
        if source["type"] == "base64" and source["media_type"] == _PDF:
            data = decode_base64(source["data"])
            return File(name, _PDF, data, extra=extra) if data else None
        if source["type"] == "text" and source["media_type"] == "text/plain" and source["data"].strip():
            return _read_text(source["data"], name, extra)
        return None
    if exactly(source, "type", "url") and source["type"] == "url":
        return File(name, _PDF, url=source["url"], extra=extra) if shared.is_link(source["url"]) else None
    if exactly(source, "type", "file_id") and source["type"] == "file":
        return (
            File(name, file_id=source["file_id"], extra=extra) if shared.is_anthropic_file(source["file_id"]) else None
        )
    return None


def _read_text(text: str, name: str, extra: dict[str, Any] | None) -> File | None:
    try:
        return File(name, "text/plain", text.encode(), extra=extra)
    except UnicodeEncodeError:
        return None
