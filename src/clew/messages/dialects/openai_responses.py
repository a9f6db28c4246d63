"""Translate conversations to and from OpenAI's responses API, in which a conversation is a flat list of items: JSON
objects such as messages, reasoning and calls.

`openai_responses_items` translates the single items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from clew.errors import InvalidInput
from clew.messages.dialects.arrange import CallRules, Piece, Response, Said, arrange
from clew.messages.dialects.losses import At, Notes
from clew.messages.dialects.openai_responses_items import (
    MESSAGE,
    NAME,
    NAMED,
    Item,
    ItemIds,
    Side,
    Written,
    is_custom,
    read_call,
    read_output,
    read_part,
    read_reasoning,
    reread_inside,
    side_of,
    words,
    write_call,
    write_output,
    write_part,
    write_reasoning,
)
from clew.messages.dialects.shared import beside, expect, extra_of, may, need, own, parts_of, plain
from clew.messages.model import (
    Assistant,
    Block,
    File,
    Image,
    Message,
    Opaque,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    User,
)

__all__ = ["read", "write"]

_RULES = CallRules(id_pattern=r"[!-~]+", id_length=64, unique_in="conversation", name_length=64, has_errors=False)
_MESSAGE = frozenset({"type", "role", "content"})


class _Placed(NamedTuple):
    """An item (a JSON object in the request's list). `at` says from which block of the conversation it was made: the
    index of the message, and the index of the block in that message."""

    item: Item
    at: At


class _Writer:
    """Makes the items of a request, the JSON objects of its list, in order. Remembers which item ids were used, because
    none may be sent twice."""

    def __init__(self, notes: Notes) -> None:
        self.placed: list[_Placed] = []
        self._notes = notes
        self._ids = ItemIds()
        self._open: Item | None = None

    def _place(self, item: Item, at: At, *, stays_open: bool = False) -> None:
        """Add an item (a JSON object) to the request's list. With `stays_open`, texts that follow in the same response
        are added to this item's content.

        `at` is the place in the conversation of the block from which the item was made.
        """
        self.placed.append(_Placed(item, at))
        self._open = item if stays_open else None

    def say(self, turn: Said) -> None:
        """Write a message to the model as one item (a JSON object in the request's list).

        A block of a kind that Clew does not know becomes an item of its own: what comes before it and what comes after
        it become two items.
        """
        pieces: list[Piece] = []
        for piece in turn.pieces:
            if isinstance(piece.block, Opaque):
                self._message(turn, pieces)
                self._opaque(piece, turn.role, bool(pieces) or len(turn.pieces) > 1)
                pieces = []
            else:
                pieces.append(piece)
        self._message(turn, pieces)

    def _message(self, turn: Said, pieces: list[Piece]) -> None:
        role = "system" if turn.role == "system" else "user"
        fields: dict[str, Any] = {}
        parts: list[Item] = []
        for piece in pieces:
            if turn.role == "tool":
                self._notes.add(piece.at, "a tool message with more than results", "it comes back in a user message")
            written = self._input(piece, role)
            if written is None:
                continue
            kept = written.fields
            if not parts:
                fields = self._message_fields(written, role)
                kept = {**kept, MESSAGE: fields} if fields else kept
            written.check(kept, piece.at, self._notes)
            parts.append(written.part)
        if parts:
            self._place({"type": "message", "role": role, "content": parts, **fields}, pieces[0].at)

    def _input(self, piece: Piece, role: str) -> Written | None:
        if role != "user" and isinstance(piece.block, (Image, File)):
            return words(piece.block, piece.at, self._notes)
        return write_part(piece, self._notes)

    def _message_fields(self, written: Written, role: str) -> dict[str, Any]:
        """Return those fields that only this API has, such as the id, for the message item (a JSON object in the
        request's list) whose content begins with the block in `written`.

        These fields were stored in the block's `extra` when the conversation was read. An id that was used before is
        left out. `role` is the message's role; it is among the fields only if the message had the role "developer",
        which Clew knows as "system".
        """
        said = own(written.extra, NAME).get(MESSAGE)
        if not isinstance(said, dict):
            return {}
        fields = beside(said, _MESSAGE)
        self._ids.take(fields)
        if role == "system" and said.get("role") == "developer":
            fields["role"] = "developer"
        if role == "assistant" and fields.get("status") == "completed":
            del fields["status"]
        return fields

    def respond(self, turn: Response) -> None:
        """Write a response as items, the JSON objects of the request's list: first the model's own items, then the
        results of its tool calls. Items that Clew does not know and that are not the model's, such as the output of an
        unknown kind of tool, come last."""
        self._open = None
        strays = [piece for piece in turn.pieces if _is_stray(piece)]
        for piece in turn.pieces:
            if not _is_stray(piece):
                self._say_piece(piece)
        custom = [is_custom(piece.call) for piece in turn.pieces if isinstance(piece.block, ToolCall)]
        for answer, kind in zip(turn.answers, custom, strict=True):
            self._place(write_output(answer, kind, self._ids, self._notes), answer.at)
        for piece in strays:
            self._opaque(piece, "assistant", False)

    def _say_piece(self, piece: Piece) -> None:
        block, at = piece
        if isinstance(block, Thinking):
            item = write_reasoning(block, at, self._ids, self._notes)
            if item:
                self._place(item, at)
        elif isinstance(block, ToolCall):
            self._place(write_call(piece, self._ids, self._notes), at)
        elif isinstance(block, Opaque):
            self._opaque(piece, "assistant", False)
        elif isinstance(block, Text):
            self._output(piece)
        else:
            written = self._input(piece, "assistant")
            if written:
                self._place(_easy(written.part["text"]), at)

    def _output(self, piece: Piece) -> None:
        """Write a text of the model into the request's list, whose elements are JSON objects called items, in one of
        three ways.

        If its block holds the id of a message item, and that id was not used yet, the text begins a message with this
        id. If the block holds no fields of a message, and the item before is a message with an id, the text becomes a
        further part of that message. Otherwise it becomes a message without an id, which holds only this text.
        """
        at = piece.at
        written = write_part(piece, self._notes)
        if written is None:
            return
        begins = isinstance(own(written.extra, NAME).get(MESSAGE), dict)
        fields = self._message_fields(written, "assistant")
        text = {"annotations": [], **written.part, "type": "output_text"}
        if fields.get("id"):
            written.check({**written.fields, MESSAGE: fields}, at, self._notes)
            item = {"status": "completed", **fields, "type": "message", "role": "assistant", "content": [text]}
            self._place(item, at, stays_open=True)
        elif self._open is not None and not begins:
            written.check(written.fields, at, self._notes)
            self._open["content"].append(text)
        else:
            phase = {"phase": fields["phase"]} if "phase" in fields else {}
            written.check({MESSAGE: phase} if phase or self._follows_identified() else {}, at, self._notes)
            self._place({**_easy(text["text"]), **phase}, at)

    def _follows_identified(self) -> bool:
        return bool(self.placed) and _is_identified(self.placed[-1].item)

    def _opaque(self, piece: Piece, role: Side, among_others: bool) -> None:
        """Write the item (a JSON object of the request's list) in an opaque block unchanged, or leave it out if its id
        was used before. An opaque block holds JSON of a kind that Clew does not know.

        Records a loss if reading the item back would put it into another message. That happens if a message of this
        `role` cannot hold such items, or if the item's message has other blocks too (`among_others`).
        """
        item = dict(piece.block.value) if isinstance(piece.block, Opaque) else {}
        if "id" in item and self._ids.take(item) is None:
            self._notes.add(piece.at, "an item with an id that is taken", "the API refuses it; it is left out")
            return
        if side_of(item) != role or (among_others and role != "tool"):
            self._notes.add(piece.at, "the message that an item is in", "it comes back in one of its own")
        self._place(item, piece.at)


def _is_stray(piece: Piece) -> bool:
    return isinstance(piece.block, Opaque) and side_of(piece.block.value) != "assistant"


def _is_identified(item: Item) -> bool:
    """Return whether this item (a JSON object of the request's list) is a message of the model with an id.

    If the conversation is read and written again, a text right after such an item could become a part of that message.
    """
    return item["type"] == "message" and item.get("role") == "assistant" and item.get("id") is not None


def _easy(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": text}


def write(conversation: Sequence[Message], notes: Notes) -> list[Item]:
    """Return the conversation as the list of items (JSON objects) for a request's `input`. Adds to `notes` what the API
    cannot express."""
    writer = _Writer(notes)
    for turn in arrange(conversation, NAME, _RULES, _reread, notes):
        if isinstance(turn, Response):
            writer.respond(turn)
        else:
            writer.say(turn)
    return _without_loose_reasoning(writer.placed, notes)


def _without_loose_reasoning(placed: list[_Placed], notes: Notes) -> list[Item]:
    """Return the items (JSON objects of the request's list) in `placed`, without each reasoning item that is not
    directly followed by another item of the model.

    The API refuses such reasoning. Each reasoning item that is left out is added to `notes` as lost.
    """
    items: list[Item] = []
    followed = False
    for item, at in reversed(placed):
        if item["type"] == "reasoning" and not followed:
            notes.add(at, "thinking that nothing follows", "the API refuses it; it is left out")
            continue
        followed = side_of(item) == "assistant"
        items.append(item)
    return items[::-1]


def _reread(block: Opaque, inside: bool) -> Block | None:
    """Read the JSON in an opaque block again, which was kept as it is because Clew did not know its kind. Return the
    block read from it, or None if the JSON is invalid.

    `inside` is True for a block in a tool result. Outside of results, None is also returned if the JSON is not an item
    (a JSON object of the API's list), or if it is of a kind for which Clew has a block of its own.
    """
    if inside:
        return reread_inside(block)
    value = plain(block.value)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str) or value["type"] in NAMED:
        return None
    try:
        read = _read_item(value, "block", False)
    except InvalidInput:
        return None
    return read[1][0] if len(read[1]) == 1 and type(read[1][0]) is Opaque else None


def read(payload: Any) -> tuple[Message, ...]:
    """Return the messages in `payload`: a list of items (the API's JSON objects), one item, a request body, a response,
    or a user's text.

    Raises `InvalidInput` if it is malformed.
    """
    if isinstance(payload, str):
        return (User((Text(payload),)),)
    if isinstance(payload, dict) and "output" in payload and "type" not in payload:
        model, stop = may(payload, "model", str, "", "payload"), may(payload, "status", str, "", "payload")
        return _read_items(need(payload, "output", list, "payload"), model, stop)
    if isinstance(payload, dict) and "input" in payload and "type" not in payload:
        return read(payload["input"]) if isinstance(payload["input"], str) else _read_items(payload["input"])
    return _read_items([payload] if isinstance(payload, dict) else payload)


def _read_items(items: Any, model: str = "", stop: str = "") -> tuple[Message, ...]:
    """Return the messages for a list of items, the JSON objects of which the API's requests and responses consist.

    Consecutive items of the model form one response, and consecutive outputs of tools form one tool message. Each
    response gets `model` and `stop`, the reason why the model stopped.
    """
    turns: list[tuple[Side, list[Block]]] = []
    identified = False
    for index, item in enumerate(expect(items, list, "payload")):
        where = f"item {index}"
        item = {**expect(item, dict, where), "type": may(item, "type", str, "message", where)}
        side, blocks = _read_item(item, where, identified)
        if turns and turns[-1][0] == side and side in ("assistant", "tool"):
            turns[-1][1].extend(blocks)
        else:
            turns.append((side, blocks))
        identified = _is_identified(item)
    return tuple(_message(side, tuple(blocks), model, stop) for side, blocks in turns)


def _message(side: Side, blocks: tuple[Block, ...], model: str, stop: str) -> Message:
    if side == "assistant":
        return Assistant(blocks, model, stop)
    return System(blocks) if side == "system" else User(blocks) if side == "user" else Tool(blocks)


def _read_item(item: Item, where: str, identified: bool) -> tuple[Side, list[Block]]:
    """Return the role of the side that says an item (a JSON object of the API's list), and the item's blocks.
    `identified` is True if the item before this one is a model's message with an id; a message of the model without an
    id is then marked as separate, so that the two are not joined when they are sent again. `where` names the item in
    errors."""
    kind = item["type"]
    if kind == "message":
        return _read_message(item, where, identified)
    if kind == "reasoning":
        return "assistant", [read_reasoning(item)]
    if kind in ("function_call", "custom_tool_call"):
        return "assistant", [read_call(item, where)]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return "tool", [read_output(item, where)]
    return side_of(item), [Opaque(NAME, plain(item))]


def _read_message(item: Item, where: str, identified: bool) -> tuple[Side, list[Block]]:
    """Return the role of the side that says a message item (a JSON object of the API's list), and its blocks. `where`
    names the item in errors. `identified` is True if the item before this one is a model's message with an id.

    A message is kept whole as one `Opaque` block, which holds its JSON unchanged, if a part of it is of an unknown
    kind, or if it is a model's message with anything but texts. So its id and the order of its parts are kept.
    """
    if need(item, "role", str, where) not in ("user", "assistant", "system", "developer"):
        raise InvalidInput(f"{where}: the value of 'role' is not user, assistant, system or developer")
    if "content" not in item:
        raise InvalidInput(f"{where}: the key 'content' is missing")
    side = side_of(item)
    parts = parts_of(item["content"], where)
    if isinstance(parts, str):
        read: list[Text | Image | File | None] = [Text(parts)] if parts else []
    else:
        read = [read_part(part, where) for part in parts]
    blocks: list[Block] = [block for block in read if block is not None]
    if len(blocks) < len(read) or (side == "assistant" and not all(isinstance(block, Text) for block in blocks)):
        return side, [Opaque(NAME, plain(item))]
    return side, _begin(blocks, item, side, identified)


def _begin(blocks: list[Block], item: Item, side: Side, identified: bool) -> list[Block]:
    """Store the fields of a message item (a JSON object of the API's list) that only this API has, such as its id, in
    the `extra` of its first block. Returns the blocks. They are unchanged if there are no such fields. `side` is the
    role of the message, "assistant" for the model.

    `identified` is True if the item before this one is a model's message with an id. If this item is then a message of
    the model without an id, an empty dictionary is stored even if there are no such fields. It marks where this message
    begins: without it, writing the conversation again would add this message's texts to the message before.
    """
    fields = beside(item, _MESSAGE)
    if item["role"] == "developer":
        fields["role"] = "developer"
    if side == "assistant" and fields.get("status") == "completed":
        del fields["status"]
    begins = side == "assistant" and identified and item.get("id") is None
    if not blocks or not (fields or begins):
        return blocks
    first = blocks[0]
    if isinstance(first, (Text, Image, File)):
        extra = extra_of(NAME, {**own(first.extra, NAME), MESSAGE: fields})
        blocks[0] = msgspec.structs.replace(first, extra=extra)
    return blocks
