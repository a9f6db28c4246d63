"""`clew tail`: follow a thread while a process works on it, on this machine or any other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from clew import advice
from clew.cli.deferred import asyncio, entry_lines, leases, live, log, messages, sealed, thread_reader, timelines
from clew.cli.failures import report_errors
from clew.cli.live import Watch
from clew.cli.options import Json, Store, ThreadId
from clew.cli.output.console import console, hint
from clew.cli.output.conversation import Pen, in_order, print_entry
from clew.cli.stores import find_thread, on_store, shown_store
from clew.errors import ThreadNotFound, Unavailable

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Delta, Head
    from clew.log import Frame
    from clew.threads.views.timeline import TimelineTurn

__all__ = ["Follower", "JsonView", "PrintView", "View", "tail"]


_SHORTEST, _LONGEST = 0.1, 2.0
"""The shortest and the longest pause between two looks for a thread or a store that is not there, in seconds."""
_PATIENCE = 30.0
"""Seconds for which a store that cannot be reached is tried again."""


@report_errors
def tail(
    thread: ThreadId,
    turns: Annotated[
        int, typer.Option("--turns", "-n", min=0, metavar="N", help="Begin with this many of the existing turns.")
    ] = 3,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the thread if it does not exist yet.")] = False,
    forever: Annotated[
        bool, typer.Option("--forever", "-f", help="Keep following when no process works on it, until Ctrl+C.")
    ] = False,
    json: Json = False,
    store: Store = None,
) -> None:
    """Follow a thread while another process works on it.

    Prints text, tool calls and results as they are stored, on whichever machine the work is done. If the store is behind
    `clew serve`, text is printed while the model writes it. Ends when no process
    works on the thread any more: it is done, failed, waiting for an answer, interrupted or crashed. --json prints each
    entry of the log.

    \b
    Examples:
      clew tail trip
      clew tail trip --turns 0 --json
    """

    async def work(opened: Checkpointer) -> None:
        thread_id = await _found(opened, thread, wait)

        def begin() -> Follower:
            view = JsonView(opened, turns) if json else PrintView(Pen(console()), turns)
            return Follower(opened, thread_id, view, turns)

        head = await _follow(opened, thread_id, begin, forever)
        if not json:
            _say_end(head, shown_store(store))

    on_store(store, work, "made" if wait else "refused")


async def _found(store: Checkpointer, given: str, wait: bool) -> str:
    """Return the id of the thread that `given` names. If there is no such thread, wait for it if `wait` is set, or else
    raise `ThreadNotFound`."""
    try:
        return await find_thread(store, given)
    except ThreadNotFound as absent:
        if not wait:
            raise
        thread_id = absent.thread_id
    hint(f"Waiting for thread {thread_id!r} …")
    pause = _SHORTEST
    while await store.head(thread_id) is None:
        await asyncio.sleep(pause)
        pause = min(_LONGEST, pause * 1.5)
    return thread_id


async def _follow(store: Checkpointer, thread_id: str, begin: Callable[[], Follower], forever: bool) -> Head:
    """Show the frames of a thread, which are the records of its log, as they are appended. Ends when no process works
    on the thread any more; with `forever`, goes on even then. Returns the head, the thread's summary, that was read
    last.

    `begin` returns a new `Follower`, which reads and shows the frames. It is called again if the thread is deleted and
    made anew, so that the new thread is shown from its start.
    """
    follower, watch, log_id = begin(), None, ""
    try:
        while True:
            head = await _patiently(store, thread_id)
            if head is None:
                raise ThreadNotFound(thread_id)
            if watch is not None and head.log_id != log_id:
                follower = begin()
            log_id = head.log_id
            moved = await follower.catch_up(head)
            if not forever and (head.status != "running" or leases.is_crashed(head)):
                follower.end(head)
                return head
            watch = watch or Watch(live.live_channel(sealed.without_keys(store)), head)
            while (delta := await watch.next(head, moved=moved)) is not None:
                follower.hear(delta)
    finally:
        if watch is not None:
            await watch.close()


async def _patiently(store: Checkpointer, thread_id: str) -> Head | None:
    """Return the thread's head; None if there is no such thread. If the store cannot be reached, try again for
    `_PATIENCE` seconds, and then raise `Unavailable`."""
    until, hinted = time.monotonic() + _PATIENCE, False
    while True:
        try:
            return await store.head(thread_id)
        except Unavailable as error:
            if time.monotonic() > until:
                raise
            if not hinted:
                hint(f"Waiting for the store: {error}")
                hinted = True
            await asyncio.sleep(_LONGEST)


def _say_end(head: Head, store: str) -> None:
    """Print the status of a thread on which no process works any more, and the command that explains it. Prints nothing
    if the thread is done. `store` is the URL that the command names."""
    status = leases.shown_status(head)
    if status != "done":
        hint(
            f"No process works on it now: it is {status}. To see what to do: {advice.why(head.thread_id, store=store)}"
        )


class View(Protocol):
    """Shows a thread that is being followed, one frame (record of its log) after the other. The `reader` that its
    methods get turns the log into turns and events."""

    async def begin(self, reader: timelines.TimelineReader, head: Head) -> None:
        """Show the last turns that the thread already has; the option --turns says how many. `reader` has read the
        whole log, as it was when the thread's summary, `head`, was read."""

    def add(self, reader: timelines.TimelineReader, frame: Frame) -> None:
        """Show a frame (a record of the log) that was appended, and pass it to `reader.feed`, because the reader does
        not have it yet."""

    def hear(self, reader: timelines.TimelineReader, delta: Delta) -> None:
        """Show a piece of the response that the model is writing. The response comes with a frame once it is
        complete."""

    def end(self, reader: timelines.TimelineReader, head: Head) -> None:
        """Finish the output, because no process works on the thread any more. `reader` has read what was
        shown, and `head` is the thread's present summary."""


class Follower:
    """Reads the frames (records) that were appended to a thread's log since the last time it read the log, and passes
    them to a view, which shows them."""

    def __init__(self, store: Checkpointer, thread_id: str, view: View, turns: int) -> None:
        """Prepare to follow a thread of `store`. `view` shows what is read. `turns` is how many of the thread's last turns
        are kept in memory for it at the start, at least one."""
        self._store = store
        self._view = view
        self._reader = timelines.TimelineReader(thread_id, timelines.Window(newest=max(turns, 1)))

    async def catch_up(self, head: Head) -> bool:
        """Show the frames (records of the log) that were appended since the last call. `head` is the thread's present
        summary, and says how many frames there are. The first call shows the thread's last turns instead; the view
        decides how many. Returns True if there were new frames, else False."""
        reader = self._reader
        if head.frames == reader.frames:
            return False
        if not reader.frames:
            await timelines.reader_of(self._store, head.thread_id, head=head, reader=reader)
            await self._view.begin(reader, head)
            return True
        start, previous = reader.frames, reader.digest
        async for _, frame in thread_reader.decoded_frames(self._store, head, start=start, previous=previous):
            self._view.add(reader, frame)
        return True

    def hear(self, delta: Delta) -> None:
        """Show a piece of the response that the model is writing, unless that response was already shown."""
        if delta.turn == len(self._reader.turns) + 1:
            self._view.hear(self._reader, delta)

    def end(self, head: Head) -> None:
        self._view.end(self._reader, head)


class JsonView:
    """Prints each new entry of a thread's log as JSON. First prints the entries of the last `turns` turns that exist at
    the start."""

    def __init__(self, store: Checkpointer, turns: int) -> None:
        self._store = store
        self._turns = turns

    async def begin(self, reader: timelines.TimelineReader, head: Head) -> None:
        turns = _last(reader, self._turns)
        start = turns[0].frame if turns else reader.frames if reader.total or not self._turns else 0
        async for line in entry_lines.read_lines(self._store, head, start):
            print_entry(line)

    def add(self, reader: timelines.TimelineReader, frame: Frame) -> None:
        for line in entry_lines.lines_of(reader.frames, frame):
            print_entry(line)
        reader.feed(frame)

    def hear(self, reader: timelines.TimelineReader, delta: Delta) -> None:
        """Do nothing: a piece is no entry of the log."""

    def end(self, reader: timelines.TimelineReader, head: Head) -> None:
        """Do nothing: the entries that were printed say how the work ended."""


class PrintView:
    """Prints the conversation of a thread that is being followed. First prints the last `turns` turns that exist at the
    start. A tool call is printed when the model asks for it, and again with its result."""

    def __init__(self, pen: Pen, turns: int) -> None:
        self._pen = pen
        self._turns = turns
        self._shown: dict[int, set[int]] = {}
        """The calls whose results were printed: for the position of each turn in the timeline, the indices of such
        calls within the turn."""
        self._streaming = ""
        self._heard: list[str] | None = None
        """The pieces of the response that were shown while the model wrote it; None if none were."""
        self._heard_to = 0
        self._crash_shown = False

    async def begin(self, reader: timelines.TimelineReader, head: Head) -> None:
        self._crash_shown = leases.is_crashed(head)
        start = max(0, reader.total - self._turns)
        timeline = reader.timeline(start, abandoned=self._crash_shown)
        self._shown = {turn.position: _with_result(turn) for turn in reader.timeline(max(0, reader.total - 1)).turns}
        for what in in_order(timeline.turns, timeline.marks if self._turns else ()):
            self._pen.happened(what)
        if self._turns:
            for message in timeline.pending:
                self._pen.prompt(message)
            self._pen.words(timeline.partial, len(reader.turns) + 1)

    def add(self, reader: timelines.TimelineReader, frame: Frame) -> None:
        for entry in frame.entries:
            if isinstance(entry, log.MessageAdded) and isinstance(entry.message, messages.System | messages.User):
                self._end_stream()
                self._pen.prompt(entry.message)
            elif isinstance(entry, log.Streamed) and not entry.call:
                self._stream(entry, len(reader.turns) + 1)
        for what in reader.feed(frame):
            if isinstance(what, timelines.Mark):
                self._end_stream()
                self._pen.mark(what)
            else:
                self._turn(what)

    def hear(self, reader: timelines.TimelineReader, delta: Delta) -> None:
        turn = len(reader.turns) + 1
        if delta.at == 0 and self._heard:
            self._pen.piece("\n")
            self._pen.line("… the response begins anew", "dim")
            self._heard = None
            self._streaming = ""
        if self._heard is None:
            self._heard, self._heard_to = [], 0
        gap = "… " if delta.at > self._heard_to else ""
        self._heard += [gap, delta.text]
        self._heard_to = delta.at + len(delta.text)
        self._words(gap + delta.text, delta.kind, turn)

    def end(self, reader: timelines.TimelineReader, head: Head) -> None:
        self._end_stream()
        if leases.is_crashed(head) and not self._crash_shown:
            self._pen.mark(reader.timeline(-1, abandoned=True).marks[-1])

    def _turn(self, turn: TimelineTurn) -> None:
        shown = self._shown.get(turn.position)
        if shown is None:
            heard = None if self._heard is None else "".join(self._heard)
            streamed = self._end_stream()
            if not streamed or (heard is not None and heard != _said(turn)):
                self._pen.heading(turn)
                self._pen.words(turn.blocks, turn.number)
            for call in turn.calls:
                self._pen.asked(call)
        for call in turn.calls:
            if call.result is not None and call.index not in (shown or ()):
                self._pen.call(call)
                self._pen.result(call, turn.number)
        self._shown[turn.position] = _with_result(turn)

    def _stream(self, entry: log.Streamed, turn: int) -> None:
        """Print the text and the thinking in `entry`, a part of a response that is still being received. A heading with
        the turn's number, `turn`, is printed before the first part. When the response is complete, its parts are not
        printed again."""
        for block in entry.blocks:
            if isinstance(block, messages.Text | messages.Thinking):
                self._words(block.text, "text" if isinstance(block, messages.Text) else "thinking", turn)

    def _words(self, text: str, kind: Literal["text", "thinking"], turn: int) -> None:
        if not self._streaming:
            self._pen.gap()
            self._pen.line(f"Turn {turn}", "dim")
        elif self._streaming != kind:
            self._pen.piece("\n")
        self._streaming = kind
        self._pen.piece(text, "" if kind == "text" else "dim italic")

    def _end_stream(self) -> bool:
        """End the line of streamed text, if there is one. Returns whether there was one."""
        self._heard = None
        if not self._streaming:
            return False
        self._streaming = ""
        self._pen.piece("\n")
        return True


def _last(reader: timelines.TimelineReader, turns: int) -> tuple[TimelineTurn, ...]:
    return reader.timeline(max(0, reader.total - turns)).turns if turns else ()


def _said(turn: TimelineTurn) -> str:
    """Return the text and the thinking of a response, in order, as its pieces have them."""
    return "".join(block.text for block in turn.blocks if isinstance(block, messages.Text | messages.Thinking))


def _with_result(turn: TimelineTurn) -> set[int]:
    return {call.index for call in turn.calls if call.result is not None}
