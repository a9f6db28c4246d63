"""The page of one thread: its status, its turns, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from clew._runtime.text import cut, plural
from clew.agent.events import Question
from clew.agent.prompts import prompts_waiting
from clew.agent.questions import open_questions
from clew.agent.settings import setup_of
from clew.agent.trust import setup_facts
from clew.agent.way_forward import Way
from clew.agent.workspace import unkept
from clew.checkpointers import Head
from clew.errors import Corrupt
from clew.server.inspector.templates import Markup, part, render, thread_url
from clew.server.inspector.text import pretty
from clew.server.inspector.turns import Cell, Stretch, Tick, pending_view, stretches, strip_cells
from clew.server.inspector.visits import Viewer
from clew.threads.inbox import Post
from clew.threads.leases import is_crashed, is_live
from clew.threads.views.timeline import Timeline, TimelineReader
from clew.workers.places import place_words

__all__ = [
    "WINDOW",
    "facts_html",
    "questions_html",
    "resume_html",
    "seen_at",
    "setup_html",
    "thread_page",
    "window_html",
]

WINDOW = 50
"""The most turns that are sent to the browser at a time."""
_LONGEST_FACT = 4_000
"""The most characters of a fact at the top of a thread's page, such as why it failed."""
_MOST_POSTS = 20
"""The most posts of a thread's inbox that are shown."""
_STRIP = 1_000
"""The most turns that have a cell in the strip, the row at the top of a thread's page with a small cell for each turn.
If the thread has more turns, only those around the turns on the page have a cell."""


class _Facts(NamedTuple):
    head: Head
    crashed: bool
    reason: str
    place: str
    """Where the thread is in the queue of the workers; empty if it is not there."""
    holder: str
    lost_calls: str
    files: str
    seconds: float
    tags: list[tuple[str, str]]


class _Resume(NamedTuple):
    command: str
    program: str
    """Words that tell the user in which Python program to make the call in `command`. Empty if `command` is a shell
    command."""


class _Strip(NamedTuple):
    css: str
    cells: list[tuple[Cell | None, list[Tick]]]
    legend: list[tuple[str, str]]


class _More(NamedTuple):
    turns: int
    url: str
    load: str
    """The query string with which the page's script loads the next turns that are not on the page yet, at most `WINDOW`
    of them."""


class _Window(NamedTuple):
    thread_id: str
    can_write: bool
    stretches: list[Stretch]
    older: _More | None
    newer: _More | None


def thread_page(
    viewer: Viewer,
    reader: TimelineReader,
    head: Head,
    forks: list[Head],
    posts: Sequence[Post],
    way: Way,
    position: int | None,
) -> Markup:
    """Return the page of a thread with its newest turns, or with the turns around `position`; at most `WINDOW` turns. A
    position counts all turns of the thread from 0, including those that a rewind took back. `reader` has read the
    thread's log. `forks` are the heads of the thread's forks. `posts` is what was posted to its inbox and is not taken
    in yet. `way` says what is needed to go on with the thread, such as an answer or a higher limit."""
    thread_id, abandoned = head.thread_id, is_crashed(head)
    start, stop = _window_at(reader.total, position)
    seen = seen_at(reader.total, position)
    around = reader.timeline(seen.start, seen.stop, abandoned=abandoned)
    timeline = reader.timeline(start, stop, abandoned=abandoned)
    return render(
        "thread.html",
        viewer=viewer,
        title=head.title or cut(around.checkpoint.title, _LONGEST_FACT) or thread_id,
        thread_id=thread_id,
        head=head,
        forks=forks,
        facts=_facts(head, timeline),
        resume=_resume(viewer, way),
        setup=_setup(around),
        asked=_asked(timeline),
        strip=_strip(around, thread_id) if around.total or {mark.kind for mark in around.marks} - {"queued"} else None,
        frames=timeline.frames,
        at_end=stop == reader.total,
        recorded=len(reader.turns),
        position=position,
        window=_window(timeline, thread_id, can_write=viewer.can_write, opened=position),
        pending=pending_view(timeline, abandoned=abandoned),
        to_ask=[cut(each.text, _LONGEST_FACT) for each in prompts_waiting(timeline.checkpoint)[:_MOST_POSTS]],
        posts=[(each.at, cut(each.prompt or "an answer", _LONGEST_FACT)) for each in posts[:_MOST_POSTS]],
        more_posts=max(0, len(posts) - _MOST_POSTS),
    )


def window_html(timeline: Timeline, thread_id: str, *, can_write: bool) -> Markup:
    """Return the HTML of the turns in `timeline`, which is a part of the thread's turns, with links to earlier and
    later turns. `can_write` adds links to continue from a turn, in a new thread (fork) or in this one (rewind)."""
    return part("turns.html", "window", _window(timeline, thread_id, can_write=can_write))


def facts_html(head: Head, timeline: Timeline) -> Markup:
    """Return the HTML of the facts at the top of a thread's page: its status, the process that holds it, its cost and
    so on."""
    return part("thread_parts.html", "facts", _facts(head, timeline))


def resume_html(viewer: Viewer, way: Way) -> Markup:
    """Return the HTML of the box that shows how to go on with a thread. `way` says what is needed for that, such as an
    answer or a higher limit. The box has a shell command, or a Python call if only the program that made the thread can
    go on with it."""
    return part("thread_parts.html", "resume_box", _resume(viewer, way))


def setup_html(timeline: Timeline) -> Markup:
    """Return the HTML of the box that shows a thread's setup: all options, such as the model, with which the command
    line would make the agent that goes on with the thread. `timeline` has the thread's state, from which they are read.
    If there are none, the box is hidden."""
    return part("thread_parts.html", "setup_box", _setup(timeline))


def questions_html(viewer: Viewer, head: Head, timeline: Timeline) -> Markup:
    """Return the HTML of the questions whose answers the thread waits for. If the viewer may write, this is a form. If
    there are no questions, the element is hidden."""
    return part("thread_parts.html", "questions", _asked(timeline), viewer, head.thread_id)


def _window_at(total: int, position: int | None, most: int = WINDOW) -> tuple[int, int]:
    """Return which turns to show, as the position of the first one and the position after the last one. Positions count
    all turns from 0. The turns are the newest `most` turns or, if `position` is given, `most` turns around it. All
    turns are shown if the thread has not more than `most`. `total` is the number of turns of the thread."""
    if position is None:
        return max(0, total - most), total
    start = max(0, min(position - most // 2, total - most))
    return start, min(total, start + most)


def seen_at(total: int, position: int | None) -> range:
    """Return the positions of the turns that have a cell in the strip, the row at the top of a thread's page with a
    small cell for each turn. Positions count all turns from 0; `total` is the number of turns of the thread. `position`
    is the position of the turn that the page is about; None for the newest turns."""
    return range(*_window_at(total, position, _STRIP))


def _window(timeline: Timeline, thread_id: str, *, can_write: bool, opened: int | None = None) -> _Window:
    older = newer = None
    if timeline.start > 0:
        first = max(0, timeline.start - WINDOW)
        url = thread_url(thread_id, f"?at={first + WINDOW // 2}")
        older = _More(timeline.start, url, f"?start={first}&stop={timeline.start}")
    if timeline.stop < timeline.total:
        last = min(timeline.total, timeline.stop + WINDOW)
        url = thread_url(thread_id, f"?at={last - 1}")
        newer = _More(timeline.total - timeline.stop, url, f"?start={timeline.stop}&stop={last}")
    return _Window(thread_id, can_write, stretches(timeline, opened), older, newer)


def _facts(head: Head, timeline: Timeline) -> _Facts:
    state = timeline.checkpoint
    crashed = is_crashed(head)
    return _Facts(
        head,
        crashed,
        reason=cut(state.reason, _LONGEST_FACT) if state.status in ("failed", "interrupted", "queued") else "",
        place=place_words(head),
        holder=str(head.lease.owner) if head.lease is not None and is_live(head.lease) else "",
        lost_calls=f", {plural(state.unaccounted, 'lost call')}" if state.unaccounted else "",
        files=unkept(state) if crashed or state.status != "running" else "",
        seconds=state.seconds,
        tags=sorted(head.tags.items()),
    )


def _resume(viewer: Viewer, way: Way) -> _Resume:
    # No command can name a namespace within that of a token, but a program can.
    in_program = way.is_program or viewer.is_nested
    command = msgspec.structs.replace(way, is_program=in_program).command(viewer.store)
    return _Resume(command, way.program if in_program else "")


def _setup(timeline: Timeline) -> list[tuple[str, str]]:
    try:
        return setup_facts(setup_of(timeline.checkpoint))
    except Corrupt as error:
        return [("damaged", str(error))]


def _asked(timeline: Timeline) -> list[tuple[Question, str]]:
    """Return the questions whose answers the thread waits for, each with the arguments of its tool call as text. Empty
    if the thread does not wait."""
    if timeline.checkpoint.status != "waiting":
        return []
    return [(question, pretty(question.arguments)) for question in open_questions(timeline.checkpoint)]


_TICK_ORDER = ("crashed", "failed", "resumed", "taken over", "rewound", "compacted", "moved", "forked", "waiting")


def _strip(around: Timeline, thread_id: str) -> _Strip:
    """Return the data for the strip: a row at the top of the page with a small cell for each turn in `around`, small
    signs for events such as a crash, and a legend."""
    room = "strip roomy" if around.total <= 24 else "strip dense" if around.total > 150 else "strip"
    cells = strip_cells(around, thread_id)
    kinds = {tick.kind for _, ticks in cells for tick in ticks}
    legend = [(f"tick tick-{kind.replace(' ', '-')}", kind) for kind in _TICK_ORDER if kind in kinds]
    if any(call.status == "in doubt" for turn in around.turns for call in turn.calls):
        legend.append(("cell cell-in-doubt", "in doubt"))
    return _Strip(room, cells, legend)
