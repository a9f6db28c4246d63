"""Translates conversations to and from Gemini's API: `systemInstruction`, then the API's messages, which it calls
contents, of user and model in turn.

`gemini_parts` translates the parts of which a content consists, such as texts, function calls and images.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from clew.errors import InvalidInput
from clew.messages.dialects.arrange import (
    CallRules,
    Piece,
    Response,
    arrange,
    as_user,
    detach,
    split_user,
)
from clew.messages.dialects.gemini_parts import (
    CANDIDATE,
    NAME,
    Part,
    Place,
    camel,
    is_empty,
    moves,
    read_part,
    read_result,
    reread,
    write_part,
    write_result,
)
from clew.messages.dialects.losses import Notes
from clew.messages.dialects.shared import beside, expect, may, need, own
from clew.messages.model import Assistant, Block, Message, System, Text, ToolCall

__all__ = ["read", "write"]

_RULES = CallRules(
    id_pattern=r"[!-~]+",
    id_length=64,
    unique_in="conversation",
    name_length=64,
    has_errors=True,
    letter_first=True,
)
_FIRST = "(The conversation goes on.)"
_ABOUT = ("citationMetadata", "groundingMetadata", "urlContextMetadata")
"""What the vendor says about a whole response: its sources. Clew keeps it with the response's last text."""


class _Content(NamedTuple):
    """One content, as Gemini calls a message of the request: everything that one side (user or model) says before the
    other side speaks."""

    role: Literal["user", "model"]
    parts: list[Part]


def write(conversation: Sequence[Message], notes: Notes) -> dict[str, Any]:
    """Return the conversation as JSON for a request: `contents`, which are the messages, and `systemInstruction` if the
    conversation begins with instructions. Adds to `notes` what the API cannot express."""
    system: list[Part] = []
    contents: list[_Content] = []
    for turn in arrange(conversation, NAME, _RULES, reread, notes):
        if isinstance(turn, Response):
            _add(contents, "model", _parts(turn.pieces, "assistant", notes))
            _add(contents, "user", _answers(turn, notes))
        elif turn.role == "system" and not contents:
            system += _parts(turn.pieces, "system", notes)
        else:
            _add(contents, "user", _parts(as_user(turn, notes), "user", notes))
    if contents and contents[0].role == "model":
        notes.add(
            (0, None), "a conversation that the model begins", "the API wants the user first; a line is put there"
        )
        contents.insert(0, _Content("user", [{"text": _FIRST}]))
    written = [{"role": content.role, "parts": content.parts} for content in contents]
    return {"systemInstruction": {"parts": system}, "contents": written} if system else {"contents": written}


def _add(contents: list[_Content], role: Literal["user", "model"], parts: list[Part]) -> None:
    """Add parts (JSON objects, such as a text) to `contents`, the messages of a request: to the last message if it has
    this `role`, else as a new message. Does nothing if there are no parts."""
    if parts and contents and contents[-1].role == role:
        contents[-1].parts.extend(parts)
    elif parts:
        contents.append(_Content(role, parts))


def _parts(pieces: list[Piece], place: Place, notes: Notes) -> list[Part]:
    return [part for piece in pieces if (part := write_part(piece, place, notes))]


def _answers(turn: Response, notes: Notes) -> list[Part]:
    """Return the results of a response's calls as parts (JSON objects of a Gemini message), followed by the images and
    files that were in the results. Adds to `notes` what the API cannot express."""
    kept, moved = detach(turn.answers, moves, notes)
    names = [piece.call.name for piece in turn.pieces if isinstance(piece.block, ToolCall)]
    results = [write_result(answer, name, notes) for answer, name in zip(kept, names, strict=True)]
    return [*results, *_parts(moved, "user", notes)]


def read(payload: Any) -> tuple[Message, ...]:
    """Return the messages in `payload`: a request body, a list of contents (Gemini's messages), one content, or a
    response, of which the first candidate is read. Raises `InvalidInput` if it is malformed."""
    if isinstance(payload, dict) and "candidates" in payload:
        return _read_response(payload)
    messages: list[Message] = []
    contents = payload
    if isinstance(payload, dict) and "parts" in payload:
        contents = [payload]
    elif isinstance(payload, dict):
        payload = camel(payload)
        system = may(payload, "systemInstruction", dict, {}, "payload")
        blocks = _Reader().blocks(system, "systemInstruction", 0) if system else []
        messages += [System(tuple(blocks))] if blocks else []
        contents = need(payload, "contents", list, "payload")
    reader = _Reader()
    for index, content in enumerate(expect(contents, list, "payload")):
        messages += reader.messages(expect(content, dict, f"content {index}"), f"content {index}", index)
    return tuple(messages)


def _read_response(payload: dict[str, Any]) -> tuple[Message, ...]:
    candidates = may(payload, "candidates", list, [], "payload")
    if not candidates:
        return ()
    candidate = expect(candidates[0], dict, "candidate 0")
    content = may(candidate, "content", dict, {}, "candidate 0")
    blocks = _Reader().blocks(content, "candidate 0", 0)
    about = beside({key: candidate.get(key) for key in _ABOUT}, ())
    if about:
        last = next((n for n in reversed(range(len(blocks))) if isinstance(blocks[n], Text)), None)
        text = None if last is None else blocks[last]
        if last is not None and isinstance(text, Text):
            blocks[last] = Text(text.text, {NAME: {**own(text.extra, NAME), CANDIDATE: about}})
    model = may(payload, "modelVersion", str, "", "payload")
    return (Assistant(tuple(blocks), model, may(candidate, "finishReason", str, "", "candidate 0")),)


class _Reader:
    """Reads contents (Gemini's messages), and gives ids to the function calls that have none. A function response
    without an id answers the first call of the same function that had no id and has no response yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[str]] = {}
        self._made = 0
        self._index = 0

    def messages(self, content: dict[str, Any], where: str, index: int) -> list[Message]:
        """Return Clew's messages for one content (a message of Gemini). `index` is the position of the content in the
        conversation, from 0, and `where` names it in errors."""
        role = may(content, "role", str, "user", where)
        if role not in ("user", "model", "function"):
            raise InvalidInput(f"{where}: the value of 'role' is not user or model")
        blocks = self.blocks(content, where, index)
        if role == "model":
            return [Assistant(tuple(blocks))]
        return split_user(blocks, moves)

    def blocks(self, content: dict[str, Any], where: str, index: int) -> list[Block]:
        self._index, self._made = index, 0
        blocks: list[Block] = []
        for number, part in enumerate(may(content, "parts", list, [], where)):
            spot = f"{where}, part {number}"
            part = camel(expect(part, dict, spot))
            if is_empty(part):
                continue
            if part.get("functionResponse") is not None:
                blocks.append(read_result(part, spot, self._answered))
            else:
                block = read_part(part, spot, self._called)
                if isinstance(block, ToolCall) and not camel(part["functionCall"]).get("id"):
                    self._waiting.setdefault(block.name, deque()).append(block.id)
                blocks.append(block)
        return blocks

    def _called(self, given: str) -> str:
        return given or self._new()

    def _answered(self, given: str, name: str) -> str:
        waiting = self._waiting.get(name)
        return given or (waiting.popleft() if waiting else self._new())

    def _new(self) -> str:
        self._made += 1
        return f"call_{self._index}_{self._made}"
