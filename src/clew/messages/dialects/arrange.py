"""Put a conversation into the one order that every API accepts: each response, followed by one result for each tool
call.

This is done on Clew's own blocks, before they are written as the JSON of a vendor. A conversation that is already in
this order is not changed. So writing a conversation, reading it back and writing it again gives the same JSON.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from clew.messages.dialects.losses import At, Notes
from clew.messages.dialects.shared import dumps
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

__all__ = [
    "NO_RESULT",
    "CallRules",
    "Ids",
    "Moves",
    "Piece",
    "Reread",
    "Response",
    "Said",
    "Turn",
    "arrange",
    "as_user",
    "detach",
    "fitted",
    "reattach",
    "split_user",
]


NO_RESULT = "No result is on record: the call was interrupted and its outcome is unknown."

Reread = Callable[[Opaque, bool], Block | None]
"""Type of a dialect's function that reads the JSON in an opaque block again, because this version may know its kind.

The second argument is True if the block is inside a tool result. The function returns the given block, a block of a
known kind, or None if the JSON is invalid.
"""


class Piece(NamedTuple):
    """A block and its place in the conversation, `at`: the index of its message, and its own index in that message."""

    block: Block
    at: At

    @property
    def call(self) -> ToolCall:
        assert isinstance(self.block, ToolCall)  # noqa: S101 - by construction
        return self.block

    @property
    def result(self) -> ToolResult:
        assert isinstance(self.block, ToolResult)  # noqa: S101 - by construction
        return self.block


@dataclass
class Said:
    """A message to the model: its role, and its blocks, each with its place in the conversation.

    With the role "tool", it holds what is left of a tool message after its results were moved to the responses
    (`Response`) that made the calls.
    """

    role: Literal["system", "user", "tool"]
    pieces: list[Piece]


@dataclass
class Response:
    """A message of the model, with the results of its tool calls. `pieces` are the message's blocks, each with its
    place in the conversation. `answers` has one result for each call in `pieces`, in the order of the calls."""

    pieces: list[Piece]
    answers: list[Piece] = field(default_factory=list)


Turn = Said | Response


class CallRules(msgspec.Struct, frozen=True):
    """What a vendor's API accepts: which ids and names a tool call may have, and whether a tool result can say that it
    is an error (`has_errors`).

    `id_length` and `name_length` are the most characters that an id or a name may have. `unique_in` says where two
    calls must have different ids: in a whole conversation, or only in one response.
    """

    id_pattern: str
    id_length: int
    unique_in: Literal["conversation", "response"]
    name_length: int
    has_errors: bool
    letter_first: bool = False
    """Whether a name must begin with a letter or an underscore."""


def arrange(
    conversation: Sequence[Message], dialect: str, rules: CallRules, reread: Reread, notes: Notes
) -> list[Turn]:
    """Return the conversation as a list of messages to the model (`Said`) and responses (`Response`), in the order that
    every API accepts.

    Each tool result moves to its call. A result without a call becomes text, and a call without a result gets one that
    says that its outcome is unknown. Ids and names that `rules` forbid are replaced. `dialect` is the format of a
    vendor's API in which the conversation will be written. `reread` reads opaque blocks (of a kind that was unknown) of
    this dialect again; opaque blocks of other dialects are left out. What the API cannot express is added to `notes`.
    """
    board = _Board(notes)
    for index, message in enumerate(conversation):
        pieces = _pieces(message, index, dialect, reread, notes)
        if isinstance(message, Assistant):
            board.respond(_outside_results(pieces, notes))
        elif isinstance(message, System):
            board.say("system", _outside_results(_outside_responses(pieces, notes), notes))
        else:
            role: Literal["user", "tool"] = "tool" if isinstance(message, Tool) else "user"
            board.say(role, board.settle(_outside_responses(pieces, notes), role))
    ids = Ids(rules)
    return [_fit(turn, board.answers(number), ids, rules, notes) for number, turn in enumerate(board.turns)]


class _Board:
    """The conversation as far as `arrange` has read it: the messages, and the tool calls that have no result yet.

    It also remembers for which call a result is expected next, to notice results that are not in the order of their
    calls.
    """

    def __init__(self, notes: Notes) -> None:
        self.turns: list[Turn] = []
        self._notes = notes
        self._waiting: dict[str, list[tuple[int, int]]] = {}
        self._results: dict[tuple[int, int], Piece] = {}
        self._next = (-1, 0)

    def respond(self, pieces: list[Piece]) -> None:
        if pieces:
            turn = len(self.turns)
            self.turns.append(Response(pieces))
            self._next = (turn, 0)
            for number, piece in enumerate(_calls(pieces)):
                self._waiting.setdefault(piece.call.id, []).append((turn, number))

    def say(self, role: Literal["system", "user", "tool"], pieces: list[Piece]) -> None:
        if pieces:
            self.turns.append(Said(role, pieces))
            self._next = (-1, 0)

    def settle(self, pieces: list[Piece], role: str) -> list[Piece]:
        """Record each tool result for the call that it answers, and return the other blocks of the message.

        A result for which there is no call is returned as text. `role` is the role of the message.
        """
        left: list[Piece] = []
        for piece in pieces:
            if not isinstance(piece.block, ToolResult):
                left.append(piece)
                continue
            call = self._call_for(piece.result.call_id)
            if call is None:
                left += _in_words(piece, self._notes)
                continue
            self._results[call] = piece
            if role == "user":
                self._notes.add(piece.at, "a tool result in a user message", "it comes back in a tool message")
            if left or call[0] != self._next[0] or call[1] < self._next[1]:
                self._notes.add(piece.at, "the place of a tool result", "results follow their calls, in their order")
            self._next = (call[0], call[1] + 1) if call[0] == self._next[0] else self._next
        return left

    def _call_for(self, call_id: str) -> tuple[int, int] | None:
        """Find the call that a result with the id `call_id` answers, and no longer count the call as waiting for a
        result.

        Of the responses with waiting calls of this id, the latest is taken, and in it the first such call. Returns the
        index of that response in `turns` (the messages read so far) and the index of the call among the response's
        calls, or None if no such call waits.
        """
        waiting = self._waiting.get(call_id)
        if not waiting:
            return None
        return waiting.pop(bisect_left(waiting, (waiting[-1][0], -1)))

    def answers(self, turn: int) -> Callable[[int], Piece | None]:
        """Return a function that finds the results of one response's tool calls. `turn` is the index of the response
        among the messages read so far. The function takes the index of a call among the response's calls, and returns
        the call's result, or None if it has none."""
        return lambda number: self._results.get((turn, number))


def _pieces(message: Message, index: int, dialect: str, reread: Reread, notes: Notes) -> list[Piece]:
    pieces = []
    for number, block in enumerate(message.content):
        at = (index, number)
        known = _named(block, False, dialect, reread, at, notes)
        if isinstance(known, ToolResult) and any(isinstance(inner, Opaque) for inner in known.content):
            inside = [_named(inner, True, dialect, reread, at, notes) for inner in known.content]
            content = tuple(inner for inner in inside if isinstance(inner, (Text, Json, Image, File, Opaque)))
            known = msgspec.structs.replace(known, content=content)
        if known is not None:
            pieces.append(Piece(known, at))
    return pieces


def _named(block: Block, inside: bool, dialect: str, reread: Reread, at: At, notes: Notes) -> Block | None:
    """Return the block as it is, unless it is opaque (of a kind that was unknown when it was read). An opaque block is
    read again with `reread`, because this version may know its kind, and the resulting block is returned.

    `dialect` is the format of a vendor's API in which the conversation is being written. Returns None if an opaque
    block is of another dialect or invalid. `inside` is True for a block in a tool result, and `at` is the block's
    place. If the block is lost or changed, that is added to `notes`.
    """
    if not isinstance(block, Opaque):
        return block
    known = reread(block, inside) if block.dialect == dialect else None
    if known is None:
        notes.add(at, "a block that only another vendor knows", f"{dialect} has no word for it")
    elif known != block:
        notes.add(at, "an opaque block that has a name", "it comes back as the block it is")
    return known


def _outside_responses(pieces: list[Piece], notes: Notes) -> list[Piece]:
    """Return the blocks of a message that is not a response, without those that only a response may hold: tool calls
    become text, thinking is left out.

    Each change is added to `notes`.
    """
    kept = []
    for piece in pieces:
        if isinstance(piece.block, Thinking):
            notes.add(piece.at, "thinking outside a response", "only a response can hold it; it is left out")
        elif isinstance(piece.block, ToolCall):
            notes.add(piece.at, "a tool call outside a response", "only a response can hold it; it is sent as text")
            words = f"[tool call {piece.block.name}: {dumps(piece.block.arguments)}]"
            kept.append(Piece(Text(words), piece.at))
        else:
            kept.append(piece)
    return kept


def _outside_results(pieces: list[Piece], notes: Notes) -> list[Piece]:
    """Return the blocks of a message that may hold no tool results (a response or instructions), with each tool result
    converted to text. Each change is added to `notes`."""
    kept: list[Piece] = []
    for piece in pieces:
        kept += _in_words(piece, notes) if isinstance(piece.block, ToolResult) else [piece]
    return kept


def _in_words(piece: Piece, notes: Notes) -> list[Piece]:
    """Convert a tool result whose call is missing to other blocks, because an API refuses such a result. Returns a line
    of text with the call's id, and then the blocks of the result's content.

    Opaque blocks (of an unknown kind) are left out. The change is added to `notes`.
    """
    notes.add(piece.at, "a tool result without its call", "the API refuses it; it is sent as text")
    kind = "error result" if piece.result.is_error else "result"
    line = Text(f"[{kind} of tool call {piece.result.call_id}]")
    own = [block for block in piece.result.content if not isinstance(block, Opaque)]
    return [Piece(line, piece.at), *(Piece(block, piece.at) for block in own)]


def _calls(pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if isinstance(piece.block, ToolCall)]


def _fit(turn: Turn, answer: Callable[[int], Piece | None], ids: Ids, rules: CallRules, notes: Notes) -> Turn:
    """Return the response `turn` with ids and names of calls that the vendor accepts, and with a result for every call.
    `rules` say what the vendor accepts, and `ids` gives each call an id.

    `answer` takes the index of a call among the response's calls, and returns the call's result. If it returns None, a
    result is made that says that the outcome is unknown. A `Said` (a message to the model) is returned unchanged. What
    the API cannot express is added to `notes`.
    """
    if isinstance(turn, Said):
        return turn
    ids.next_response()
    response = Response([])
    for piece in turn.pieces:
        block = piece.block
        if isinstance(block, ToolCall):
            found = answer(len(response.answers))
            if found is None:
                notes.add(piece.at, "a tool call without a result", "the API demands one; an error result is sent")
                found = Piece(ToolResult(block.id, (Text(NO_RESULT),), rules.has_errors), piece.at)
            block = fitted(block, ids, rules, piece.at, notes)
            response.answers.append(Piece(msgspec.structs.replace(found.result, call_id=block.id), found.at))
        response.pieces.append(Piece(block, piece.at))
    return response


def as_user(turn: Said, notes: Notes) -> list[Piece]:
    """Convert a message to the model to blocks of a user's message, for an API that allows no other role at its place,
    and return these blocks. Text of instructions is put between `<system>` tags. If the message was not a user's, each
    of its blocks is added to `notes`: when the request is read back, the block is a user's."""
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


_HERE = re.compile(r"\[attachment (\d+): see the user message after the tool results\]")

Moves = Callable[[ToolResult, Block], bool]
"""Type of a dialect's function that returns whether a block must be moved out of its tool result because the API does
not accept it there."""


def _here(number: int) -> Text:
    return Text(f"[attachment {number}: see the user message after the tool results]")


def _there(number: int) -> Text:
    return Text(f"[attachment {number}]")


def detach(answers: Sequence[Piece], moves: Moves, notes: Notes) -> tuple[list[Piece], list[Piece]]:
    """Move blocks that the API does not accept inside a tool result out of the results. `moves` says which blocks these
    are.

    Returns two lists: the results, with a numbered line of text in place of each moved block, and the moved blocks,
    each after a line of text with the same number. The caller sends the second list after all results. If a result
    already has a text that looks like such a line, that is added to `notes` as a loss: when the request is read back,
    this text may be replaced by a moved block.
    """
    kept: list[Piece] = []
    moved: list[Piece] = []
    for answer in answers:
        result = answer.result
        content = list(result.content)
        for index, block in enumerate(content):
            if isinstance(block, Text) and _HERE.fullmatch(block.text):
                notes.add(answer.at, "a text that reads like a mark of Clew's own", "it may come back as what it marks")
            if moves(result, block):
                number = len(moved) // 2 + 1
                content[index] = _here(number)
                moved += [Piece(_there(number), answer.at), Piece(block, answer.at)]
        kept.append(Piece(msgspec.structs.replace(result, content=tuple(content)), answer.at))
    return kept, moved


def reattach(
    results: Sequence[ToolResult], blocks: Sequence[Block], start: int, moves: Moves
) -> tuple[tuple[ToolResult, ...], int]:
    """Put images and files that `detach` moved out of tool results back into these results. They are expected in
    `blocks` from index `start` on, each after a text with a number, and each result has a text with the same number
    where the block was.

    Returns the results, and how many of `blocks` were used. If the numbers in the texts do not match, the results are
    returned unchanged, with 0. `moves` returns whether a block may have been moved.
    """
    marks = [
        (at, index, match[1])
        for at, result in enumerate(results)
        for index, block in enumerate(result.content)
        if isinstance(block, Text) and block.extra is None and (match := _HERE.fullmatch(block.text))
    ]
    following = blocks[start : start + 2 * len(marks)]
    numbers = range(1, len(marks) + 1)
    if [number for _, _, number in marks] != [str(number) for number in numbers]:
        return tuple(results), 0
    if len(following) < 2 * len(marks) or list(following[::2]) != [_there(number) for number in numbers]:
        return tuple(results), 0
    contents = [list(result.content) for result in results]
    for (at, index, _), block in zip(marks, following[1::2], strict=True):
        if not isinstance(block, (Image, File)) or not moves(results[at], block):
            return tuple(results), 0
        contents[at][index] = block
    whole = [msgspec.structs.replace(r, content=tuple(c)) for r, c in zip(results, contents, strict=True)]
    return tuple(whole), 2 * len(marks)


def split_user(blocks: list[Block], moves: Moves) -> list[Message]:
    """Split the blocks of one user message of an API into tool messages, for the tool results among the blocks, and
    user messages, for the rest. An image or file that was sent after a result, because the API does not accept it
    inside, is put back into the result. `moves` returns whether a block is such an image or file."""
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


_ODD = re.compile(r"[^A-Za-z0-9_-]")


class Ids:
    """Gives each tool call an id that the vendor accepts: its own id if that is valid and not used yet, else a new one."""

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self._fits = re.compile(rules.id_pattern, re.ASCII)
        self._used: set[str] = set()
        self._seen: dict[str, int] = {}

    def next_response(self) -> None:
        if self._rules.unique_in == "response":
            self._used.clear()
            self._seen.clear()

    def give(self, wanted: str) -> str:
        """Return `wanted` if it is valid and not used yet, else a new id derived from it.

        The returned id then counts as used.
        """
        chosen = wanted
        while chosen in self._used or len(chosen) > self._rules.id_length or not self._fits.fullmatch(chosen):
            number = self._seen[wanted] = self._seen.get(wanted, 0) + 1
            tail = blake2b(f"{number} {wanted}".encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
            chosen = f"{_ODD.sub('_', wanted)[: self._rules.id_length - 11] or 'call'}_{tail}"
        self._used.add(chosen)
        return chosen


def fitted(call: ToolCall, ids: Ids, rules: CallRules, at: At, notes: Notes) -> ToolCall:
    """Return the call with an id from `ids` and a name that the vendor accepts, as `rules` say. If either had to be
    changed, that is added to `notes` with the call's place `at`."""
    given = ids.give(call.id)
    name = _ODD.sub("_", call.name)
    if rules.letter_first and name and not (name[0].isalpha() or name[0] == "_"):
        name = f"_{name}"
    name = name[: rules.name_length] or "unnamed"
    if given != call.id:
        notes.add(at, "the id of a tool call", "the API refuses it, or it is taken; another is sent in its place")
    if name != call.name:
        notes.add(at, "the name of a tool call", "the API takes only letters, digits, _ and -, and not too many")
    return msgspec.structs.replace(call, id=given, name=name)
