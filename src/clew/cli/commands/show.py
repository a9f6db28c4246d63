"""`clew show`: print the conversation of a thread, its log, or its messages."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew._runtime.text import ago, dollars, one_line, plural, short_number, size
from clew.cli.consent import setup_text
from clew.cli.deferred import (
    agent_settings,
    agent_workspace,
    entry_lines,
    exchanges,
    leases,
    msgspec,
    prompts,
    render,
    thread_inbox,
    thread_sketch,
    timeline_stream,
    timelines,
    worker_places,
)
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId
from clew.cli.output.console import console, json_line, print_json
from clew.cli.output.conversation import Pen, entry_text, in_order, print_entry
from clew.cli.output.heads import head_object, status_cell
from clew.cli.stores import find_thread, on_store
from clew.errors import Corrupt, InvalidInput, ThreadNotFound

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head
    from clew.log import Checkpoint
    from clew.threads.inbox import Post
    from clew.threads.views.timeline import Timeline, TimelineReader, TimelineTurn

__all__ = ["show"]

_ENDINGS = frozenset({"crashed", "done", "failed", "interrupted", "queued", "waiting"})
"""The kinds of marks (events in a thread's timeline, such as a crash) that tell how the work on the thread ended. If
the last prompt has no answer yet, these marks are printed after that prompt."""

_FEW = 500
"""The most turns that are kept in memory to be shown. If there are more, the log is read a second time, and its turns
are shown one by one."""


@report_errors
def show(
    thread: ThreadId,
    turn: Annotated[
        str | None, typer.Option("--turn", metavar="N", help="Only this turn or these turns: 3, 2..5, 2.. or ..5.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Results and thinking in full, with the system prompt.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The messages that the model sees, as JSON, one a line.")] = False,
    entries: Annotated[bool, typer.Option("--entries", help="The log, entry by entry, with times.")] = False,
    json: Json = False,
    store: Store = None,
) -> None:
    """Show a thread: what was said, done, and went wrong.

    Prints, whole, the setup with which a resume would make its agent. Then prompts, answers and tool calls with their
    results, and where the thread crashed, was resumed, rewound or moved. Long results are cut, with the option that
    shows them in full. Rewound turns are dim. Nothing is changed, and a running thread can be shown too.

    \b
    Examples:
      clew show trip
      clew show trip --turn 2..4 --full
      clew show report --entries
    """
    if entries and (raw or turn is not None):
        raise InvalidInput("--entries shows the whole log. Leave out --raw and --turn.")
    wanted = None if turn is None else _turns(turn)

    async def work(opened: Checkpointer) -> None:
        thread_id = await find_thread(opened, thread)
        if entries:
            await _entries(opened, thread_id, json)
            return
        keep = prompts.is_prompt if json and not raw else None
        reader = timelines.TimelineReader(thread_id, _window(wanted), keep_message=keep)
        _, head = await timelines.reader_of(opened, thread_id, reader=reader)
        shown = _Shown(opened, reader, head, wanted)
        if raw:
            await _raw(shown)
        elif json:
            await _json(shown)
        else:
            await _print(shown, full)

    on_store(store, work)


class _Shown:
    """The part of a thread that is to be shown. `reader` has read the whole log of the thread, as far as it went when
    the thread's summary, `head`, was read. `wanted` has the numbers of the first and the last turn to show; None shows
    everything."""

    def __init__(
        self, store: Checkpointer, reader: TimelineReader, head: Head, wanted: tuple[int, int | None] | None
    ) -> None:
        self.store, self.reader, self.head, self.wanted = store, reader, head, wanted
        self.start, self.stop = _positions(reader, wanted)
        self.everything = wanted is None

    async def happened(self) -> AsyncIterator[TimelineTurn | timelines.Mark]:
        """Yield the turns and the marks (events such as a crash) to show, in order. If there are many turns, they are
        read from the log one by one, so that the memory needed does not grow with their number."""
        if self.reader.turns.holds(self.start, self.stop, rewound=self.everything):
            timeline = self.reader.timeline(self.start, self.stop, abandoned=leases.is_crashed(self.head))
            for what in in_order(timeline.turns, timeline.marks):
                if self._is_shown(what):
                    yield what
            return
        async for what in timeline_stream.turns_in_order(
            self.store, self.head, self.reader, start=self.start, stop=self.stop
        ):
            if self._is_shown(what):
                yield what

    def _is_shown(self, what: TimelineTurn | timelines.Mark) -> bool:
        return self.everything or isinstance(what, timelines.Mark) or not what.rewound


def _window(wanted: tuple[int, int | None] | None) -> Any:
    """Return a `Window`, which says which turns to keep in memory while the log is read: the turns to show if they are
    few, else only some of the newest, and the others are read again later, one by one. `wanted` has the numbers of the
    first and the last turn to show, with None for the newest turn; if `wanted` is None, everything is shown."""
    if wanted is None:
        return timelines.Window(newest=_FEW)
    first, last = wanted
    few = last is not None and last - first < _FEW
    return timelines.Window(numbers=range(first, (last or 0) + 1) if few else ())


def _turns(given: str) -> tuple[int, int | None]:
    """Parse a value of --turn, such as `3`, `2..5` or `2..`. Returns the first and the last turn; None as the last
    means the thread's newest turn. Raises `InvalidInput` for anything else."""
    first, dots, last = given.partition("..")
    try:
        if not dots:
            return int(first), int(first)
        return int(first or 1), int(last) if last else None
    except ValueError:
        raise InvalidInput(f"--turn {given!r} is not a turn. Write a number, or 2..5, 2.. or ..5.") from None


def _positions(reader: TimelineReader, wanted: tuple[int, int | None] | None) -> tuple[int, int]:
    """Return where to start in the thread's timeline, and before which position to stop. A position counts all turns
    from 0, including rewound ones.

    `wanted` has the numbers of the first and the last turn to show; None shows everything. Raises `InvalidInput` if the
    thread has no such turns.
    """
    if wanted is None:
        return 0, reader.total
    turns = len(reader.turns)
    first, last = wanted[0], turns if wanted[1] is None else wanted[1]
    start, end = reader.turns.position_of(first), reader.turns.position_of(last)
    if start is None or end is None or first > last:
        has = f"turns 1 to {turns}" if turns else "no turn yet"
        asked = f"{first}..{last}" if first != last else str(first)
        raise InvalidInput(f"thread {reader.thread_id!r} has {has}; there is no turn {asked} to show.")
    return start, end + 1


async def _print(shown: _Shown, full: bool) -> None:
    pen = Pen(console(), full=full)
    timeline = shown.reader.timeline(shown.reader.total) if shown.everything else None
    if timeline is not None:
        _print_head(pen, shown.head, timeline, full)
    ending: list[TimelineTurn | timelines.Mark] = []
    async for what in shown.happened():
        if shown.everything and getattr(what, "kind", "") in _ENDINGS:
            ending.append(what)
            continue
        for earlier in ending:
            pen.happened(earlier)
        ending.clear()
        pen.happened(what)
    if timeline is not None:
        for message in timeline.pending:
            pen.prompt(message)
        pen.words(timeline.partial, shown.head.turns + 1)
    for what in ending:
        pen.happened(what)
    if timeline is not None:
        for waiting in prompts.prompts_waiting(timeline.checkpoint):
            pen.line(f"To be asked: {one_line(waiting.text)}", "yellow")
        for post in await _posts(shown):
            said = "an answer" if post.prompt is None else one_line(post.prompt)
            pen.line(f"Posted {ago(post.at)} ago, not taken in yet: {said}", "yellow")


async def _posts(shown: _Shown) -> tuple[Post, ...]:
    """Return what was posted to the thread's inbox and is not taken in yet."""
    return await thread_inbox.new_posts(shown.store, shown.head, shown.reader.checkpoint.inbox_read)


def _print_head(pen: Any, head: Head, timeline: Timeline, full: bool) -> None:

    sign, style = status_cell(leases.shown_status(head))
    files = timeline.checkpoint.workspace
    facts = [
        one_line(head.agent),
        one_line(head.model),
        plural(head.turns, "turn"),
        f"{short_number(head.input_tokens + head.output_tokens)} tokens",
        dollars(head.cost_usd),
        f"{plural(files.files, 'file')}, {size(files.size)}" if files else "",
        agent_workspace.unkept(timeline.checkpoint) if leases.shown_status(head) != "running" else "",
        worker_places.place_words(head),
        f"{ago(head.updated_at)} ago",
    ]
    pen.line(f"{one_line(head.thread_id)}  {one_line(timeline.checkpoint.title)}", "bold")
    pen.line(f"{sign} · " + " · ".join(fact for fact in facts if fact), style)
    if setup := _setup(timeline.checkpoint):
        pen.text(f"Setup of a resume:\n{setup}", "dim", indent=0)
    pen.line()
    if full and timeline.checkpoint.system_prompt:
        pen.text(timeline.checkpoint.system_prompt, "dim", indent=0)
        pen.line()


def _setup(state: Checkpoint) -> str:
    """Return the setup of a thread as text for people, with nothing cut: the options with which a resume would make the
    agent. If the stored setup cannot be read, return the text of the error."""
    try:
        return setup_text(agent_settings.setup_of(state))
    except Corrupt as error:
        return f"  {error}"


def _setup_object(state: Checkpoint) -> Any:
    """Return the setup of a thread, the options with which a resume would make the agent, as the object that --json
    prints. None if the stored setup cannot be read."""
    try:
        return msgspec.to_builtins(agent_settings.setup_of(state))
    except Corrupt:
        return None


async def _json(shown: _Shown) -> None:
    """Print a thread as one JSON object, with those of its turns that `shown` selects. The object is written piece by
    piece, so that a long thread is never in memory as a whole."""
    head, state = shown.head, shown.reader.state(all_facts=True)
    status = leases.shown_status(head)
    at_end = shown.reader.timeline(shown.stop)
    before = {
        **head_object(msgspec.structs.replace(head, status=status, title=state.title)),
        "reason": state.reason,
        "system_prompt": state.system_prompt,
        "setup": _setup_object(state),
    }
    after = {
        "exchanges": _exchanges(state, status),
        "pending": render.plain_object(at_end.pending) if shown.stop == shown.reader.total else [],
        "partial": render.plain_object(at_end.partial) if shown.stop == shown.reader.total else [],
        "posts": render.posts_object(await _posts(shown)) if shown.stop == shown.reader.total else [],
    }
    write = sys.stdout.write
    write(f'{json_line(before)[:-1]},"timeline":[')
    comma = ""
    async for what in shown.happened():
        kind = "mark" if isinstance(what, timelines.Mark) else "turn"
        write(comma + json_line({"type": kind, **render.plain_object(what)}))
        comma = ","
    write(f"],{json_line(after)[1:]}\n")
    sys.stdout.flush()


def _exchanges(state: Checkpoint, status: Any) -> list[dict[str, Any]]:
    """Return the exchanges of the conversation as objects for JSON. Each has the prompt, the provider and the model,
    the status with its reason, and the usage, cost and time. A usage or cost that is not known is null.

    `status` is the thread's present status, which replaces the one in `state`; the status of the last exchange depends
    on it.
    """

    return [
        {
            "prompt_id": found.prompt_id,
            "prompt": found.prompt,
            "provider": found.provider,
            "model": found.model,
            "status": found.status,
            "reason": found.reason,
            "usage": None if found.spent.usage is None else msgspec.structs.asdict(found.spent.usage),
            "cost_usd": found.spent.cost,
            "seconds": round(found.spent.seconds, 6),
        }
        for found in exchanges.exchanges_in(msgspec.structs.replace(state, status=status))
    ]


async def _raw(shown: _Shown) -> None:
    """Print messages of the thread in `shown` as JSON, one a line: all that the model sees or, if the user selected
    turns with --turn, those that these turns added to the conversation."""
    state = shown.reader.checkpoint
    ranges = state.view
    if shown.wanted is not None:
        first, last = shown.wanted
        ranges = thread_sketch.without(state.marks[state.turns if last is None else last], state.marks[first - 1])
    async for _, message in thread_sketch.messages_at(shown.store, shown.head, ranges):
        print_json(render.plain_object(message))


async def _entries(store: Checkpointer, thread_id: str, json: bool) -> None:
    """Print the log of a thread, a line for each entry: as JSON, or shortened for people."""
    head = await store.head(thread_id)
    if head is None:
        raise ThreadNotFound(thread_id)
    pen = Pen(console())
    async for line in entry_lines.read_lines(store, head):
        if json:
            print_entry(line)
        else:
            pen.line(entry_text(line))
