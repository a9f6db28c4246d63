"""Prepare a thread's turns, and the marks between them, for the template `turns.html`. A mark is an event such as a
crash. The thread's page and its live updates use this."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple, TypeVar

from clew._runtime.text import cut, elapsed, one_line, size
from clew.log import WorkspaceSnapshot
from clew.messages import (
    NOTE_MARK,
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
from clew.server.inspector.templates import Markup, part, thread_url
from clew.server.inspector.text import LONGEST_CODE, Room, compact, pretty
from clew.threads.views.timeline import Mark, Timeline, TimelineCall, TimelineTurn

__all__ = [
    "Cell",
    "Stretch",
    "Tick",
    "cell_html",
    "mark_html",
    "mark_id",
    "pending_html",
    "pending_view",
    "stretches",
    "strip_cells",
    "tick_html",
    "turn_html",
    "writing_html",
]

_LONG = 1_200
"""How many characters of a long text are shown at first; the user can unfold the rest. A text counts as long if it has
more than three times this number of characters."""
_LONGEST_TEXT = 200_000
"""The most characters of a text that are shown; the texts of tools' results have a limit of their own."""
_LINE = 160
"""The most characters of the line that shows the arguments of a call."""
_NAME = 200
"""The most characters of a name: of a tool, a model or a file."""
_MARK = 2_000
"""The most characters of the text of a mark."""
_MOST_BLOCKS = 200
"""The most blocks of a message that are shown: texts, calls, images and so on. Also the most prompts before a turn, and
the most marks after it."""
_PAGE_ROOM, _TURN_ROOM = 1_000_000, 100_000
"""How many characters of the turns on a page are shown, and how many of a single turn. A turn that does not fit is shown
in part. The turn that the page's address names may take all the room."""
_MARKDOWN, _BLOCK = 3, 100
"""The room that is counted for a character of Markdown, which takes longer than other text, and for each block, besides
its text."""
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_LARGEST_IMAGE = 4 * 2**20
_IMAGE = 32
"""How many bytes of an image take the room of one character."""


class _Part(NamedTuple):
    """A block of a message, such as a text or an image, prepared for the macro `message_block` of the template
    `turns.html`."""

    kind: Literal["text", "long", "markdown", "thinking", "code", "image", "attachment"]
    text: str
    """The text of the block, or the `data:` URL of an image."""
    rest: str = ""
    """The part of a long text that follows `text`, which the user can unfold. Empty for other blocks."""
    more: int = 0
    """How many characters of a long text are not shown at first."""


class _Result(NamedTuple):
    is_error: bool
    parts: list[_Part | _Result]
    kind: Literal["result"] = "result"


class _Call(NamedTuple):
    """A tool call of a turn and its result, prepared for the template `turns.html`."""

    id: str
    name: str
    line: str
    """The arguments on one line, shortened."""
    arguments: str
    status: str
    css: str
    glyph: str
    label: str
    attempts: int
    was_in_doubt: bool
    seconds: float | None
    result: _Result | None
    is_open: bool
    kind: Literal["call"] = "call"


class _Prompt(NamedTuple):
    who: str
    blocks: list[_Part | _Result]


class _Turn(NamedTuple):
    turn: TimelineTurn
    css: str
    has_files: bool
    prompts: list[_Prompt]
    blocks: list[_Part | _Result | _Call]
    rest: Literal["", "open", "export"] = ""
    """How to see the rest of a turn that is shown in part: on the page of the turn, or by an export of the thread. Empty
    for a turn that is shown whole."""


class _Mark(NamedTuple):
    id: str
    kind: str
    css: str
    title: str
    text: str
    pause: str
    at: datetime | None


class _Pending(NamedTuple):
    prompts: list[_Prompt]
    partial: list[_Part | _Result]
    is_asking: bool
    is_lost: bool


class Cell(NamedTuple):
    """A turn in the strip, the row at the top of a thread's page with a small cell for each turn: the turn's position,
    its look (`css`), its tooltip (`title`) and its link."""

    position: int
    css: str
    title: str
    url: str


class Tick(NamedTuple):
    """A mark (an event such as a crash) as it is shown in the strip, the row at the top of a thread's page with a small
    cell for each turn: its id, kind, look (`css`) and tooltip (`title`)."""

    id: str
    kind: str
    css: str
    title: str


Stretch = tuple[_Turn | None, list[_Mark]]
"""A turn and the marks that follow it; a mark is an event such as a crash. The turn is None for the marks before the
first turn."""


def stretches(timeline: Timeline, opened: int | None = None) -> list[Stretch]:
    """Return the turns of a timeline in order, each paired with a list of the marks that follow it. A mark is an event
    such as a crash. If the timeline begins with the thread's start, the first pair has no turn but None, and the marks
    before the first turn.

    The number of characters on a page is limited. The turn at the position `opened`, which the page's address names,
    may use them first, then the other turns, the newest first.
    """
    marks: dict[int, list[_Mark]] = {}
    for mark in timeline.marks:
        if len(beside := marks.setdefault(mark.position, [])) < _MOST_BLOCKS:
            beside.append(_mark(mark))
    page = Room(_PAGE_ROOM)
    shown: dict[int, _Turn] = {}
    for turn in sorted(timeline.turns, key=lambda turn: (turn.position != opened, -turn.position)):
        is_opened = turn.position == opened
        room = Room(page.most(_PAGE_ROOM if is_opened else _TURN_ROOM))
        before = room.left
        shown[turn.position] = _turn(turn, room, "export" if is_opened else "open")
        page.spend(before - room.left)
    found: list[Stretch] = [(None, marks.get(0, []))] if timeline.start == 0 else []
    return found + [(shown[turn.position], marks.get(turn.position + 1, [])) for turn in timeline.turns]


def strip_cells(timeline: Timeline, thread_id: str) -> list[tuple[Cell | None, list[Tick]]]:
    """Return the content of the strip, the row at the top of a thread's page with a small cell for each turn, as pairs.
    There is a pair for each turn: its cell, and ticks (small signs) for the important events that followed it, such as
    a crash.

    A pair in front of these has no cell; its ticks are for events before the first turn.
    """
    ticks: dict[int, list[Tick]] = {}
    for mark in timeline.marks:
        if len(beside := ticks.setdefault(mark.position, [])) < _MOST_BLOCKS and (made := _tick(mark)) is not None:
            beside.append(made)
    found: list[tuple[Cell | None, list[Tick]]] = [(None, ticks.get(0, []))]
    return found + [(_cell(turn, thread_id), ticks.get(turn.position + 1, [])) for turn in timeline.turns]


def pending_view(timeline: Timeline, *, abandoned: bool) -> _Pending:
    """Return what is shown below the last turn: prompts without a response, the words of the next response that have
    come so far, and whether the model is being asked. `abandoned` says that the process that worked on the thread has
    died."""
    is_asking, room = timeline.asked_at is not None, Room(_PAGE_ROOM)
    return _Pending(
        _prompts(timeline.pending, room),
        [_block(block, room) for block in _merged(timeline.partial, room)],
        is_asking,
        is_lost=not is_asking and abandoned and bool(timeline.pending),
    )


def turn_html(turn: TimelineTurn, thread_id: str, *, can_write: bool) -> Markup:
    return part("turns.html", "turn_row", _turn(turn, Room(_TURN_ROOM), "open"), thread_id, can_write)


def mark_html(mark: Mark) -> Markup:
    return part("turns.html", "mark_row", _mark(mark))


def cell_html(turn: TimelineTurn, thread_id: str) -> Markup:
    return part("turns.html", "cell", _cell(turn, thread_id))


def tick_html(mark: Mark) -> Markup | None:
    """Return the HTML of a mark, an event such as a crash, for the strip: the row at the top of a thread's page with a
    small cell for each turn. None if marks of this kind are not shown there."""
    tick = _tick(mark)
    return None if tick is None else part("turns.html", "tick", tick)


def pending_html(timeline: Timeline, *, abandoned: bool) -> Markup:
    return part("turns.html", "pending", pending_view(timeline, abandoned=abandoned))


def writing_html(recorded: int) -> Markup:
    """Return the HTML of the empty box in which the page's script shows the words of the response that comes next, while
    the model writes it. `recorded` is the number of turns on record."""
    return part("turns.html", "writing", recorded)


def _turn(turn: TimelineTurn, room: Room, rest: Literal["open", "export"]) -> _Turn:
    """Prepare a turn for the template `turns.html`. `room` limits how many characters of the turn are shown. `rest`
    says where the user finds the rest if that is not enough: on the page of the turn (`open`), or in an export of the
    thread (`export`)."""
    classes = ["turn", "rewound" if turn.rewound else "", "inherited" if turn.inherited else ""]
    if any(call.status == "in doubt" for call in turn.calls):
        classes.append("has-doubt")
    return _Turn(
        turn,
        " ".join(filter(None, classes)),
        isinstance(turn.snapshot, WorkspaceSnapshot),
        _prompts(turn.prompts, room),
        _response(turn, room),
        rest if room.is_short else "",
    )


def _response(turn: TimelineTurn, room: Room) -> list[_Part | _Result | _Call]:
    found: list[_Part | _Result | _Call] = []
    calls = iter(turn.calls)
    for block in _fitting(turn.blocks, room):
        call = next(calls, None) if isinstance(block, ToolCall) else None
        found.append(_said(block, room) if call is None else _call(call, turn.position, room))
    return [*found, *_left_out(turn.blocks, len(found), "blocks")]


_T = TypeVar("_T")


def _fitting(items: Sequence[_T], room: Room) -> Iterator[_T]:
    """Yield the items of a message, such as its blocks, until `room`, which counts the characters that may still be
    shown, is used up; at most `_MOST_BLOCKS` items. Subtracts a fixed number of characters from `room` for each item;
    the caller subtracts its text."""
    for item in items[:_MOST_BLOCKS]:
        if room.left <= 0:
            room.spend(0, is_short=True)
            return
        room.spend(_BLOCK)
        yield item


def _left_out(items: Sequence[object], shown: int, what: str) -> list[_Part]:
    """Return a list with one note, which says how many items of a message are not shown because there are too many. The
    list is empty if all are shown. `shown` is the number of items that are shown, and `what` the word for them, such as
    "blocks"."""
    more = len(items) - shown
    return [_Part("attachment", f"… and {more:,} more {what}; export the thread to see all")] if more else []


def _said(block: Block, room: Room) -> _Part | _Result:
    """Prepare a block of the model's response for the template `turns.html`. A text is shown as Markdown. A long text
    is cut between two paragraphs, and the user can unfold the rest; if it cannot be cut there, it is shown as plain
    text. `room` limits how many characters are shown."""
    if not isinstance(block, Text):
        return _block(block, room)
    text = block.text
    if len(text) <= _LONG * 3:
        return _Part("markdown", room.cut(text, len(text), each=_MARKDOWN))
    end = text.rfind("\n\n", 0, _LONG)
    if end <= 0 or text.count("```", 0, end) % 2 or room.most(end, _MARKDOWN) < end:
        return _block(block, room)
    first = room.cut(text[:end], end, each=_MARKDOWN)
    return _Part("markdown", first, room.cut(text, _LONGEST_TEXT, start=end, each=_MARKDOWN), len(text) - end)


def _prompts(messages: Sequence[Message], room: Room) -> list[_Prompt]:
    found = [_prompt(message, room) for message in _fitting(messages, room)]
    more: list[_Part | _Result] = [*_left_out(messages, len(found), "prompts")]
    return [*found, _Prompt("Clew", more)] if more else found


def _prompt(message: Message, room: Room) -> _Prompt:
    first = next((block.text for block in message.content if isinstance(block, Text)), "")
    is_note = not isinstance(message, System) and first.startswith(NOTE_MARK)
    who = "System" if isinstance(message, System) else "Clew" if is_note else "User"
    parts = [
        _block(Text(block.text.removeprefix(NOTE_MARK)) if is_note and isinstance(block, Text) else block, room)
        for block in _fitting(message.content, room)
    ]
    return _Prompt(who, [*parts, *_left_out(message.content, len(parts), "blocks")])


def _merged(blocks: Sequence[Block], room: Room) -> Iterator[Block]:
    """Yield these blocks with neighbours joined: texts that follow each other become one text, and thoughts one
    thought. A response arrives in many small pieces, and is shown as a whole. Blocks of other kinds are yielded
    unchanged, until `room`, which counts the characters that may still be shown, is used up."""
    for kind, neighbours in groupby(blocks, key=type):
        if kind is Text or kind is Thinking:
            text = "".join(block.text for block in neighbours if isinstance(block, Text | Thinking))
            yield Text(text) if kind is Text else Thinking(text)
        else:
            yield from _fitting(list(neighbours), room)


_GLYPHS = {"done": "✓", "replayed": "↺", "running": "…", "waiting": "?", "in doubt": "!", "not started": "○"}


def _call(call: TimelineCall, position: int, room: Room) -> _Call:
    failed = call.result is not None and call.result.is_error
    status = "error" if failed else call.status
    shows_image = call.result is not None and any(isinstance(part, Image) for part in call.result.content)
    return _Call(
        id=f"p{position}c{call.index}",
        name=cut(call.call.name, _NAME),
        line=_arguments_line(call.call.arguments),
        arguments=_code(call.call.arguments, room),
        status=call.status,
        css=status.replace(" ", "-"),
        glyph="×" if failed else _GLYPHS.get(call.status, "•"),
        label="done, replayed" if status == "replayed" else status,
        attempts=call.attempts,
        was_in_doubt=call.was_in_doubt and call.status != "in doubt",
        seconds=call.seconds,
        result=None if call.result is None else _result(call.result, room),
        is_open=call.status in ("in doubt", "waiting") or shows_image,
    )


def _arguments_line(arguments: Any) -> str:
    if isinstance(arguments, dict):
        first = islice(arguments.items(), _LINE)
        return one_line(", ".join(f"{str(name)[:_LINE]}: {_inline(value)}" for name, value in first), _LINE)
    return one_line(arguments[: 8 * _LINE] if isinstance(arguments, str) else compact(arguments, _LINE), _LINE)


def _inline(value: Any) -> str:
    return value[: 8 * _LINE] if isinstance(value, str) else compact(value, 80)


def _code(value: Any, room: Room) -> str:
    return room.cut(value, _LONGEST_TEXT) if isinstance(value, str) else pretty(value, room)


def _result(result: ToolResult, room: Room) -> _Result:
    parts = [
        _Part("code", room.cut(part.text, LONGEST_CODE)) if isinstance(part, Text) else _block(part, room)
        for part in _fitting(result.content, room)
    ]
    return _Result(result.is_error, [*parts, *_left_out(result.content, len(parts), "blocks")])


def _block(block: Block, room: Room) -> _Part | _Result:
    match block:
        case Text(text=text) if len(text) <= _LONG * 3:
            return _Part("text", room.cut(text, len(text)))
        case Text(text=text):
            first = room.cut(text[:_LONG], _LONG)
            return _Part("long", first, room.cut(text, _LONGEST_TEXT, start=_LONG), len(text) - _LONG)
        case Thinking(text=text):
            return _Part("thinking", room.cut(text, _LONGEST_TEXT) or "(kept by the vendor, and not shown)")
        case Json(value=value):
            return _Part("code", _code(value, room))
        case Image():
            return _image(block, room)
        case File():
            name, kind = cut(block.name or "file", _NAME), cut(block.media_type, _NAME)
            return _Part("attachment", f"{name} · {kind} · {_place(block, room)}")
        case ToolCall():
            return _Part("attachment", f"{cut(block.name, _NAME)} {_arguments_line(block.arguments)}")
        case ToolResult():
            return _result(block, room)
        case Opaque():
            return _Part("attachment", f"Something of {cut(block.dialect, _NAME)} that this version does not know")


def _image(block: Image, room: Room) -> _Part:
    """Return the block that shows an image. It shows a description instead if the image is too large, or of a type that
    browsers may not show safely, or larger than `room`, which counts what the page may still show."""
    if block.data is not None and block.media_type in _IMAGES and len(block.data) <= _LARGEST_IMAGE:
        needed = len(block.data) // _IMAGE
        if room.most(needed) == needed:
            room.spend(needed)
            return _Part("image", Markup(f"data:{block.media_type};base64,{b64encode(block.data).decode()}"))
        room.spend(0, is_short=True)
    return _Part("attachment", f"image · {cut(block.media_type, _NAME)} · {_place(block, room)}")


def _place(block: Image | File, room: Room) -> str:
    return size(len(block.data)) if block.data is not None else room.cut(block.url or block.file_id or "", _MARK)


_MARK_TITLES = {
    "started": "Started",
    "forked": "Forked",
    "called": "Called",
    "resumed": "Resumed",
    "crashed": "Crashed",
    "taken over": "Taken over",
    "rewound": "Rewound",
    "compacted": "Compacted",
    "refused": "Refused",
    "waiting": "Waiting",
    "queued": "Queued",
    "answered": "Answered",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "moved": "Moved",
    "changed": "Changed",
    "done": "Done",
}


def mark_id(mark: Mark) -> str:
    return f"m{mark.frame}-{mark.kind.replace(' ', '-')}-{mark.position}"


def _mark(mark: Mark) -> _Mark:
    title = _MARK_TITLES[mark.kind]
    text = cut(mark.text, _MARK)
    text = text[len(title) :] if text.lower().startswith(title.lower()) else text
    pause = ""
    if mark.kind == "resumed" and mark.seconds is not None and mark.seconds >= 1:
        pause = f"after {elapsed(mark.seconds)}"
    css = mark.kind.replace(" ", "-")
    return _Mark(mark_id(mark), mark.kind, css, title, text.lstrip(": "), pause, mark.at)


def _cell(turn: TimelineTurn, thread_id: str) -> Cell:
    kinds = ["cell"]
    if turn.rewound:
        kinds.append("cell-rewound")
    elif turn.inherited:
        kinds.append("cell-inherited")
    statuses = {call.status for call in turn.calls}
    for status in ("in doubt", "waiting", "running"):
        if status in statuses:
            kinds.append(f"cell-{status.replace(' ', '-')}")
            break
    else:
        if any(call.result is not None and call.result.is_error for call in turn.calls):
            kinds.append("cell-error")
    at = f", {turn.responded_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if turn.responded_at else ""
    title = f"Turn {turn.number}{', rewound' if turn.rewound else ''}{at}"
    url = thread_url(thread_id, f"?at={turn.position}#p{turn.position}")
    return Cell(turn.position, " ".join(kinds), title, url)


_TICKS = frozenset({"crashed", "taken over", "resumed", "rewound", "compacted", "moved", "failed", "waiting", "forked"})


def _tick(mark: Mark) -> Tick | None:
    if mark.kind not in _TICKS or (mark.kind == "resumed" and mark.same_process):
        return None
    title = f"{_MARK_TITLES[mark.kind]}: {cut(mark.text, _NAME)}"
    return Tick(f"k{mark_id(mark)}", mark.kind, mark.kind.replace(" ", "-"), title)
