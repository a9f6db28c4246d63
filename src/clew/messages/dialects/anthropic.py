"""The conversation as the Anthropic messages API takes it: `system` apart, then user and assistant in turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from clew.errors import InvalidInput
from clew.messages.blocks import Block, Text, ToolResult
from clew.messages.conversation import Assistant, Message, System, Tool, User
from clew.messages.dialects._anthropic_parts import (
    NAME,
    Part,
    Place,
    moves,
    read_part,
    reread,
    write_part,
    write_result,
)
from clew.messages.dialects._arrange import Piece, Response, Said, arrange
from clew.messages.dialects._attachments import detach, reattach
from clew.messages.dialects._calls import CallRules
from clew.messages.dialects._reading import expect, may, need, parts_of
from clew.messages.dialects.loss import At, Notes

__all__ = ["origins", "read", "write"]

_RULES = CallRules(
    id_pattern=r"[a-zA-Z0-9_-]+", id_length=256, unique_in="conversation", name_length=128, has_errors=True
)
_THINKING = ("thinking", "redacted_thinking")
_FIRST = "(The conversation goes on.)"


class _Placed(NamedTuple):
    part: Part
    at: At


class _Run(NamedTuple):
    """What one side says before the other does."""

    role: Literal["user", "assistant"]
    placed: list[_Placed]


def write(conversation: Sequence[Message], notes: Notes) -> dict[str, Any]:
    system, runs = _arranged(conversation, notes)
    messages = [{"role": run.role, "content": [placed.part for placed in run.placed]} for run in runs]
    return {"system": system, "messages": messages} if system else {"messages": messages}


def origins(conversation: Sequence[Message]) -> list[int]:
    """For each message that `write` makes, return the place in the conversation of the first message that is in it."""
    _, runs = _arranged(conversation, Notes())
    return [run.placed[0].at[0] for run in runs]


def _arranged(conversation: Sequence[Message], notes: Notes) -> tuple[list[Part], list[_Run]]:
    """The instructions at the start, and what the two sides say in turns."""
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
            runs.append(_Run("user", _write(_as_user(turn, notes), "user", notes)))
        begun = begun or any(run.placed for run in runs[-2:])
    return system, _fit(runs, notes)


def _write(pieces: list[Piece], place: Place, notes: Notes) -> list[_Placed]:
    return [_Placed(part, piece.at) for piece in pieces if (part := write_part(piece, place, notes))]


def _write_answers(answers: list[Piece], notes: Notes) -> list[_Placed]:
    """The results, and then what may not stand in them."""
    kept, moved = detach(answers, moves, notes)
    return [_Placed(write_result(answer, notes), answer.at) for answer in kept] + _write(moved, "user", notes)


def _as_user(turn: Said, notes: Notes) -> list[Piece]:
    """Instructions in the middle are a user's text between tags: older models take no others there."""
    if turn.role == "user":
        return turn.pieces
    pieces = []
    for block, at in turn.pieces:
        if turn.role == "system":
            notes.add(at, "instructions in the middle", "they are sent, and come back, as a user's text between tags")
        else:
            notes.add(at, "a tool message with more than results", "it comes back in a user message")
        if turn.role == "system" and isinstance(block, Text) and block.text.strip():
            block = msgspec.structs.replace(block, text=f"<system>\n{block.text}\n</system>")
        pieces.append(Piece(block, at))
    return pieces


def _fit(runs: list[_Run], notes: Notes) -> list[_Run]:
    """The sides in turns, the user first, and no message that the API refuses for how it ends."""
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
    """A response may not end in thinking, and the very last one not in white space."""
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
    """Messages of a request's body, of a list of messages, or of one message: a response, for example."""
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
    return _read_user(blocks)


def _read_user(blocks: list[Block]) -> list[Message]:
    """A user's message holds tool results too: they become a tool message, with what was moved out of them."""
    messages: list[Message] = []
    at = 0
    while at < len(blocks):
        is_result = isinstance(blocks[at], ToolResult)
        end = next(
            (n for n in range(at, len(blocks)) if isinstance(blocks[n], ToolResult) is not is_result), len(blocks)
        )
        run = tuple(blocks[at:end])
        if is_result:
            whole, taken = reattach([block for block in run if isinstance(block, ToolResult)], blocks, end, moves)
            messages.append(Tool(whole))
            end += taken
        else:
            messages.append(User(run))
        at = end
    return messages or [User(())]
