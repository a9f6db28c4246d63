"""`clew show`: print the conversation of a thread, its log, or its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew._runtime.text import ago, dollars, one_line, plural, short_number, size
from clew.cli.deferred import agent_workspace, entry_lines, exchanges, leases, msgspec, render, timelines
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId
from clew.cli.output.console import console, print_json
from clew.cli.output.conversation import Pen, entry_text, in_order, print_entry
from clew.cli.output.heads import head_object, status_cell
from clew.cli.stores import find_thread, on_store
from clew.errors import InvalidInput, ThreadNotFound

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head
    from clew.log import Checkpoint
    from clew.threads.views.timeline import Timeline, TimelineReader

__all__ = ["show"]

_ENDINGS = frozenset({"crashed", "done", "failed", "interrupted", "waiting"})
"""The kinds of marks that tell how the work ended; a mark is an event in a thread's timeline, such as a crash. If the
last prompt has no answer yet, these marks are printed after that prompt."""


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

    Prints prompts, answers and tool calls with their results, and where the thread crashed, was resumed, rewound or
    moved. Long results are cut, with the option that shows them in full. Rewound turns are dim. Nothing is changed, and
    a running thread can be shown too.

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
        reader, head = await timelines.reader_of(opened, thread_id)
        start, stop = _positions(reader, wanted)
        if raw:
            _raw(reader.checkpoint, wanted)
        elif json:
            _json(reader, head, start, stop, everything=wanted is None)
        else:
            _print(reader, head, start, stop, everything=wanted is None, full=full)

    on_store(store, work)


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
    turns = reader.checkpoint.turns
    first, last = wanted[0], turns if wanted[1] is None else wanted[1]
    start, end = reader.position_of(first), reader.position_of(last)
    if start is None or end is None or first > last:
        has = f"turns 1 to {turns}" if turns else "no turn yet"
        asked = f"{first}..{last}" if first != last else str(first)
        raise InvalidInput(f"thread {reader.thread_id!r} has {has}; there is no turn {asked} to show.")
    return start, end + 1


def _print(reader: TimelineReader, head: Head, start: int, stop: int, *, everything: bool, full: bool) -> None:
    timeline = reader.timeline(start, stop, abandoned=leases.is_crashed(head))
    pen = Pen(console(), full=full)
    if everything:
        _print_head(pen, head, timeline, full)
    happened = in_order([turn for turn in timeline.turns if everything or not turn.rewound], timeline.marks)
    ending = 0
    while everything and ending < len(happened) and getattr(happened[-1 - ending], "kind", "") in _ENDINGS:
        ending += 1
    for what in happened[: len(happened) - ending]:
        pen.happened(what)
    if everything:
        for message in timeline.pending:
            pen.prompt(message)
        pen.words(timeline.partial, head.turns + 1)
    for what in happened[len(happened) - ending :]:
        pen.happened(what)


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
        f"{ago(head.updated_at)} ago",
    ]
    pen.line(f"{one_line(head.thread_id)}  {one_line(timeline.checkpoint.title)}", "bold")
    pen.line(f"{sign} · " + " · ".join(fact for fact in facts if fact), style)
    pen.line()
    if full and timeline.checkpoint.system_prompt:
        pen.text(timeline.checkpoint.system_prompt, "dim", indent=0)
        pen.line()


def _json(reader: TimelineReader, head: Head, start: int, stop: int, *, everything: bool) -> None:
    timeline = reader.timeline(start, stop, abandoned=leases.is_crashed(head))
    turns = [turn for turn in timeline.turns if everything or not turn.rewound]
    print_json(
        {
            **head_object(
                msgspec.structs.replace(head, status=leases.shown_status(head), title=timeline.checkpoint.title)
            ),
            "reason": timeline.checkpoint.reason,
            "system_prompt": timeline.checkpoint.system_prompt,
            "timeline": [
                {"type": "mark" if isinstance(what, timelines.Mark) else "turn", **render.plain_object(what)}
                for what in in_order(turns, timeline.marks)
            ],
            "exchanges": _exchanges(timeline.checkpoint, leases.shown_status(head)),
            "pending": render.plain_object(timeline.pending),
            "partial": render.plain_object(timeline.partial),
        }
    )


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


def _raw(state: Checkpoint, wanted: tuple[int, int | None] | None) -> None:
    for message in state.messages if wanted is None else _messages(state, wanted):
        print_json(render.plain_object(message))


def _messages(state: Checkpoint, wanted: tuple[int, int | None]) -> list[Any]:
    """Return the messages that a range of turns added to the conversation. `wanted` has the numbers of the first and
    the last turn of the range; None as the last means the newest turn."""

    def places(turn: int) -> list[int]:
        return [place for start, stop in state.marks[turn] for place in range(start, stop)]

    before = set(places(wanted[0] - 1))
    last = state.turns if wanted[1] is None else wanted[1]
    return [state.history[place] for place in places(last) if place not in before]


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
