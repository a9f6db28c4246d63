"""Turns and the marks between them, as they stand in the timeline of a thread."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC
from typing import Any

from clew.log import WorkspaceSnapshot
from clew.messages import (
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
    plain_text,
)
from clew.server.inspector.html import Html, el, join
from clew.server.inspector.layout import thread_url
from clew.server.inspector.text import compact, cost, duration, moment, one_line, pretty, size, tokens
from clew.threads.views.timeline import Mark, Timeline, TimelineCall, TimelineTurn

__all__ = ["cell", "mark_id", "mark_row", "pending", "strip", "tick", "timeline_items", "turn_row"]

_LONG = 1_200
"""Characters of a text from which on it is folded."""
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_LARGEST_IMAGE = 4 * 2**20
_NOTE = "[clew] "


def timeline_items(timeline: Timeline, thread_id: str, *, can_write: bool) -> list[Html]:
    """Turns and marks in the order in which they happened."""
    by_position: dict[int, list[Mark]] = {}
    for mark in timeline.marks:
        by_position.setdefault(mark.position, []).append(mark)
    found = [mark_row(mark) for mark in by_position.get(0, []) if timeline.start == 0]
    for turn in timeline.turns:
        found.append(turn_row(turn, thread_id, can_write=can_write))
        found += [mark_row(mark) for mark in by_position.get(turn.position + 1, [])]
    return found


def turn_row(turn: TimelineTurn, thread_id: str, *, can_write: bool) -> Html:
    classes = ["turn", "rewound" if turn.rewound else "", "inherited" if turn.inherited else ""]
    if any(call.status == "in doubt" for call in turn.calls):
        classes.append("has-doubt")
    return el(
        "article",
        _turn_header(turn, thread_id, can_write),
        [_prompt(message) for message in turn.prompts],
        el("div", _response(turn), class_="response"),
        id=f"p{turn.position}",
        class_=" ".join(filter(None, classes)),
        tabindex="-1",
        data_test="turn",
        data_turn=turn.number,
        data_position=turn.position,
        aria_label=f"Turn {turn.number}",
    )


def _turn_header(turn: TimelineTurn, thread_id: str, can_write: bool) -> Html:
    usage = turn.usage
    spent = None
    if usage is not None:
        spent = el(
            "span",
            f"{tokens(usage.input_tokens)} in · {tokens(usage.output_tokens)} out",
            title=f"{usage.input_tokens:,} in, {usage.cache_read_tokens:,} of them cached; {usage.output_tokens:,} out",
            data_test="turn-tokens",
        )
    facts = [
        moment(turn.responded_at),
        el("span", duration(turn.seconds), data_test="turn-duration") if turn.seconds is not None else None,
        spent,
        el("span", cost(turn.cost_usd), data_test="turn-cost") if turn.cost_usd is not None else None,
        el("span", turn.model, class_="model") if turn.model else None,
    ]
    state = el("span", "rewound", class_="chip") if turn.rewound else None
    before = el("span", "from the parent", class_="chip") if turn.inherited else None
    here = thread_url(thread_id, f"?turn={turn.number}#p{turn.position}")
    name = el("a", f"Turn {turn.number}", href=here, class_="turn-name") if not turn.rewound else _plain_name(turn)
    return el(
        "header",
        el("h2", name),
        state,
        before,
        el("div", facts, class_="facts"),
        _turn_actions(turn, thread_id, can_write),
    )


def _plain_name(turn: TimelineTurn) -> Html:
    return el("span", f"Turn {turn.number}", class_="turn-name")


def _turn_actions(turn: TimelineTurn, thread_id: str, can_write: bool) -> Html | None:
    if turn.rewound:
        return None
    links = []
    if isinstance(turn.snapshot, WorkspaceSnapshot):
        files = thread_url(thread_id, f"/files?turn={turn.number}")
        links.append(el("a", "Files", href=files, data_test="turn-files"))
    if can_write:
        for name, text in (("fork", "Fork here"), ("rewind", "Rewind here")):
            url = thread_url(thread_id, f"/{name}?turn={turn.number}")
            links.append(el("a", text, href=url, data_test=f"{name}-here"))
    return el("div", links, class_="actions") if links else None


def pending(timeline: Timeline, *, abandoned: bool) -> Html:
    """What awaits a response: prompts, the words that came so far, and that the model is asked."""
    parts: list[Html] = [_prompt(message) for message in timeline.pending]
    if timeline.partial:
        said = el("div", [_block(block) for block in _merged(timeline.partial)], class_="response partial")
        parts.append(said)
    if timeline.asked_at is not None:
        parts.append(el("p", el("span", class_="pulse"), "The model is answering", class_="asking", data_test="asking"))
    elif abandoned and timeline.pending:
        parts.append(el("p", "This was never answered: the process is gone.", class_="hint"))
    return el("section", parts, id="pending", data_test="pending", aria_label="Not answered yet")


def _merged(blocks: Sequence[Block]) -> list[Block]:
    found: list[Block] = []
    for block in blocks:
        last = found[-1] if found else None
        if isinstance(block, Text) and isinstance(last, Text):
            found[-1] = Text(last.text + block.text)
        elif isinstance(block, Thinking) and isinstance(last, Thinking):
            found[-1] = Thinking(last.text + block.text)
        else:
            found.append(block)
    return found


def _prompt(message: Message) -> Html:
    note = not isinstance(message, System) and plain_text(message).startswith(_NOTE)
    who = "System" if isinstance(message, System) else "Clew" if note else "User"
    blocks = [
        Text(block.text.removeprefix(_NOTE)) if note and isinstance(block, Text) else block for block in message.content
    ]
    return el(
        "div",
        el("div", who, class_="who"),
        el("div", [_block(block) for block in blocks], class_="said"),
        class_=f"prompt prompt-{who.lower()}",
        data_test="prompt",
    )


def _response(turn: TimelineTurn) -> list[Html]:
    found: list[Html] = []
    index = 0
    for block in turn.blocks:
        if isinstance(block, ToolCall):
            found.append(_call(turn.calls[index], turn.position) if index < len(turn.calls) else _block(block))
            index += 1
        else:
            found.append(_block(block))
    return found or [el("p", "(nothing was said)", class_="hint")]


_MARKS = {"done": "✓", "replayed": "↺", "running": "…", "waiting": "?", "in doubt": "!", "not started": "○"}


def _call(call: TimelineCall, position: int) -> Html:
    failed = call.result is not None and call.result.is_error
    status = "error" if failed else call.status
    label = {"error": "error", "replayed": "done, replayed"}.get(status, status)
    kind = status.replace(" ", "-")
    again = el("span", f"attempt {call.attempts}", class_="chip") if call.attempts > 1 else None
    doubt = None
    if call.was_in_doubt and call.status != "in doubt":
        doubt = el("span", "was in doubt", class_="chip warn", data_test="was-in-doubt")
    summary = el(
        "summary",
        el("span", _MARKS.get(call.status, "•") if not failed else "×", class_="glyph", aria_hidden="true"),
        el("span", call.call.name, class_="tool"),
        el("code", _arguments_line(call.call.arguments), class_="arguments"),
        again,
        doubt,
        el("span", label, class_="call-status", data_test="call-status"),
        el("span", duration(call.seconds), class_="seconds") if call.seconds is not None else None,
    )
    attention = call.status in ("in doubt", "waiting")
    return el(
        "details",
        summary,
        _doubt_note(call),
        el("div", el("h3", "Arguments"), _code(call.call.arguments), class_="part"),
        _result(call.result) if call.result is not None else None,
        class_=f"call call-{kind}",
        id=f"p{position}c{call.index}",
        open=attention or _shows_image(call.result),
        data_test="call",
        data_status=call.status,
    )


def _doubt_note(call: TimelineCall) -> Html | None:
    if call.status != "in doubt":
        return None
    text = "It was begun, and no outcome is on record: nobody knows whether it took effect."
    return el("p", text, class_="doubt-note")


def _shows_image(result: ToolResult | None) -> bool:
    return result is not None and any(isinstance(part, Image) for part in result.content)


def _arguments_line(arguments: Any) -> str:
    if isinstance(arguments, dict):
        return one_line(", ".join(f"{name}: {_inline(value)}" for name, value in arguments.items()), 160)
    return one_line(str(arguments), 160)


def _inline(value: Any) -> str:
    return value if isinstance(value, str) else compact(value, 80)


def _code(value: Any) -> Html:
    return el("pre", value if isinstance(value, str) else pretty(value), class_="code")


def _result(result: ToolResult) -> Html:
    parts = [
        el("pre", _cut(part.text), class_="code") if isinstance(part, Text) else _block(part) for part in result.content
    ]
    title = "Error" if result.is_error else "Result"
    body = parts or [el("p", "(empty)", class_="hint")]
    return el("div", el("h3", title), body, class_="part error" if result.is_error else "part", data_test="result")


def _cut(text: str, longest: int = 20_000) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n… {len(text) - longest:,} more characters; export the thread to see all"


def _block(block: Block) -> Html:
    if isinstance(block, Text):
        return _text(block.text)
    if isinstance(block, Thinking):
        text = block.text or "(kept by the vendor, and not shown)"
        return el(
            "details",
            el("summary", "Thinking"),
            el("div", text, class_="text"),
            class_="thinking",
            data_test="thinking",
        )
    if isinstance(block, Json):
        return _code(block.value)
    if isinstance(block, Image):
        return _image(block)
    if isinstance(block, File):
        where = size(len(block.data)) if block.data is not None else block.url or block.file_id or ""
        name = block.name or "file"
        return el("p", f"{name} · {block.media_type} · {where}", class_="attachment")
    if isinstance(block, ToolCall):
        return el("p", f"{block.name} {_arguments_line(block.arguments)}", class_="attachment")
    if isinstance(block, ToolResult):
        return _result(block)
    assert isinstance(block, Opaque)  # noqa: S101 - no other kind is left
    return el("p", f"Something of {block.dialect} that this version does not know", class_="attachment")


def _text(text: str) -> Html:
    if len(text) <= _LONG * 3:
        return el("div", text, class_="text", data_test="text")
    rest = el(
        "details",
        el("summary", f"{len(text) - _LONG:,} more characters"),
        el("div", _cut(text[_LONG:], 200_000), class_="text"),
    )
    return el("div", el("div", text[:_LONG], class_="text"), rest, class_="long", data_test="text")


def _image(block: Image) -> Html:
    if block.data is not None and block.media_type in _IMAGES and len(block.data) <= _LARGEST_IMAGE:
        source = f"data:{block.media_type};base64,{b64encode(block.data).decode()}"
        return el(
            "img", src=source, alt="An image of the conversation", loading="lazy", class_="image", data_test="image"
        )
    where = size(len(block.data)) if block.data is not None else block.url or block.file_id or ""
    return el("p", f"image · {block.media_type} · {where}", class_="attachment")


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
    "answered": "Answered",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "moved": "Moved",
    "changed": "Changed",
    "done": "Done",
}


def mark_id(mark: Mark) -> str:
    return f"m{mark.frame}-{mark.kind.replace(' ', '-')}-{mark.position}"


def mark_row(mark: Mark) -> Html:
    title = _MARK_TITLES[mark.kind]
    text = mark.text[len(title) :] if mark.text.lower().startswith(title.lower()) else mark.text
    pause = f"after {duration(mark.seconds)}" if mark.kind == "resumed" and (mark.seconds or 0) >= 1 else None
    return el(
        "div",
        el("span", title, class_="mark-title"),
        el("span", text.lstrip(": "), class_="mark-text"),
        el("span", pause, class_="mark-pause") if pause else None,
        moment(mark.at),
        id=mark_id(mark),
        class_=f"mark mark-{mark.kind.replace(' ', '-')}",
        data_test="mark",
        data_kind=mark.kind,
    )


def cell(turn: TimelineTurn, thread_id: str) -> Html:
    """The turn in the strip at the top."""
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
    return el(
        "a",
        class_=" ".join(kinds),
        href=thread_url(thread_id, f"?at={turn.position}#p{turn.position}"),
        title=f"Turn {turn.number}{', rewound' if turn.rewound else ''}{at}",
        tabindex="-1",
        id=f"c{turn.position}",
        data_test="cell",
        data_position=turn.position,
    )


_TICKS = frozenset({"crashed", "taken over", "resumed", "rewound", "compacted", "moved", "failed", "waiting", "forked"})


def tick(mark: Mark) -> Html | None:
    """The mark in the strip, if it is one to be seen at a glance."""
    if mark.kind not in _TICKS or (mark.kind == "resumed" and mark.same_process):
        return None
    kind = mark.kind.replace(" ", "-")
    return el(
        "span",
        class_=f"tick tick-{kind}",
        title=f"{_MARK_TITLES[mark.kind]}: {mark.text}",
        id=f"k{mark_id(mark)}",
        data_test="tick",
        data_kind=mark.kind,
    )


def strip(timeline: Timeline, thread_id: str) -> Html:
    """One cell a turn, in order, with ticks where something happened between them."""
    ticks: dict[int, list[Html]] = {}
    for mark in timeline.marks:
        if (made := tick(mark)) is not None:
            ticks.setdefault(mark.position, []).append(made)
    cells = [ticks.get(0, [])]
    for turn in timeline.turns:
        cells.append([cell(turn, thread_id), *ticks.get(turn.position + 1, [])])
    return join(cells)
