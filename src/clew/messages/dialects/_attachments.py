"""Pictures in tool results, for APIs that take only text there.

The result keeps a mark, the picture follows in the user's turn behind the same mark, and reading puts it back. It is
put back only where writing would have moved it, so that marks which somebody typed stay the text they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from clew.messages.blocks import Block, File, Image, Text, ToolResult
from clew.messages.dialects._arrange import Piece
from clew.messages.dialects.loss import Notes

_HERE = re.compile(r"\[attachment (\d+): see the user message after the tool results\]")

Moves = Callable[[ToolResult, Block], bool]
"""Whether a block of a result has to be moved out of it."""


def _here(number: int) -> Text:
    return Text(f"[attachment {number}: see the user message after the tool results]")


def _there(number: int) -> Text:
    return Text(f"[attachment {number}]")


def detach(answers: Sequence[Piece], moves: Moves, notes: Notes) -> tuple[list[Piece], list[Piece]]:
    """The results with marks in place of what moves, and what follows them in the user's turn."""
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
    """The results made whole again, and how many of the blocks from `start` on were theirs."""
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
