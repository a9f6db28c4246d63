"""`clew ls`: list the threads of a store. Reads only their heads, which are summaries, and not their logs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import clew
from clew import advice
from clew._runtime.text import ago, dollars, one_line, short_number
from clew.cli import quantities
from clew.cli.deferred import asyncio, checkpointers, msgspec, thread_heads, worker_places
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store
from clew.cli.output.console import console, hint, print_json
from clew.cli.output.heads import head_object, holder, status_cell
from clew.cli.output.tables import Cell, Column, is_plain, laid_out, print_table, styled
from clew.cli.stores import on_store, shown_store
from clew.errors import Corrupt, InvalidInput

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head

__all__ = ["ls"]


class StatusName(StrEnum):
    """The values that the option --status takes: the statuses that a thread can have, as in the type
    `clew.checkpointers.Status`."""

    RUNNING = "running"
    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DONE = "done"
    QUEUED = "queued"


_PAUSE = 1.0
"""Seconds between two listings with --watch."""


@report_errors
def ls(
    status: Annotated[
        list[StatusName] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="Only running, waiting, interrupted, failed, done or queued. Repeatable.",
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only threads of this agent.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="Only threads with this tag. Repeatable: all must match."),
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only ids that begin with this.")] = "",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only threads changed since: 30m, 12h, 2d, 1w or a date."),
    ] = None,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="Only threads with this text in the title.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="The most threads to list.")] = 50,
    everything: Annotated[bool, typer.Option("--all", "-a", help="List all threads.")] = False,
    children: Annotated[bool, typer.Option("--children", help="Also the threads of sub-agents.")] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Keep listing until Ctrl+C; with --json, print each change."),
    ] = False,
    json: Json = False,
    store: Store = None,
) -> None:
    """List the threads of a store, the newest first.

    Shows their status, title, tokens and cost, and the process that works on each, or its place in the queue of the
    workers. A thread whose process died while it was running is shown as interrupted. Reads no logs, so it is fast with
    many threads.

    \b
    Examples:
      clew ls --status waiting --status interrupted
      clew ls --agent planner --since 2d
      clew ls --json --all
    """
    query = checkpointers.HeadQuery(
        prefix=prefix,
        status=tuple(one.value for one in status) if status else None,
        agent=agent,
        tags=quantities.tags(tag or [], "--tag"),
        updated_after=quantities.since(since),
        title=text,
    )
    most = None if everything else limit
    if watch and not json and not console().is_terminal:
        raise InvalidInput("--watch draws on a terminal, and this is not one. In a pipe use --watch --json.")
    shown = functools.partial(_print, url=store)
    work = _watch_json if watch and json else _watch if watch else _print_json if json else shown
    on_store(store, lambda opened: work(opened, query, most, children))


class _Listed(NamedTuple):
    """The result of listing threads once: their heads, whether more threads match, and the error about damaged heads,
    if there are any."""

    heads: list[Head]
    more: bool
    """Whether more threads match than are in `heads`."""
    damage: Corrupt | None
    """The error that names the threads whose heads are damaged; None if there are none."""

    def end(self) -> None:
        """Raise `damage`, the error about damaged heads, if there is one. Call this after the sound heads were
        printed."""
        if self.damage is not None:
            raise self.damage


async def _listed(store: Checkpointer, query: checkpointers.HeadQuery, most: int | None, children: bool) -> _Listed:
    """Read the heads (summaries of threads) that match the query, at most `most` of them; None is no limit. Threads of
    sub-agents are left out unless `children` is set.

    A query cannot leave out the threads of sub-agents. So one page of heads after the other is read, and those of
    sub-agents are dropped, until there are enough.
    """
    found: list[Head] = []
    damage: Corrupt | None = None
    query = msgspec.structs.replace(query, limit=None if most is None else most + 1)
    while True:
        page: list[Head] = []
        try:
            async for head in clew.Thread.list(store, query):
                page.append(head)
        except Corrupt as error:
            damage = error
        found += page if children else [head for head in page if not thread_heads.is_child(head)]
        if most is None or query.limit is None:
            return _Listed(found, False, damage)
        if len(found) > most or len(page) < query.limit:
            return _Listed(found[:most], len(found) > most, damage)
        query = query.after(page[-1])


async def _print_json(store: Checkpointer, query: checkpointers.HeadQuery, most: int | None, children: bool) -> None:
    listed = await _listed(store, query, most, children)
    for head in listed.heads:
        print_json(head_object(head))
    listed.end()


async def _print(
    store: Checkpointer, query: checkpointers.HeadQuery, most: int | None, children: bool, url: str | None = None
) -> None:
    listed = await _listed(store, query, most, children)
    heads = listed.heads
    if heads:
        print_table(_columns(), _rows(heads, signs=not is_plain()))
    elif listed.damage is None:
        start = f"There are no threads yet. Start one: {advice.start(store=shown_store(url))}"
        hint(start if query == checkpointers.HeadQuery() else "No thread in this store matches.")
    if listed.more:
        hint(f"These are the newest {len(heads)}. For more: --limit N, or --all.")
    listed.end()


async def _watch(store: Checkpointer, query: checkpointers.HeadQuery, most: int | None, children: bool) -> None:
    """Show a table of the threads that match the query on the terminal, and read and draw it again every second until
    Ctrl+C. It has at most `most` threads, and never more than fit on the terminal. Threads of sub-agents are left out
    unless `children` is set."""
    from rich.live import Live
    from rich.text import Text

    out = console()
    with Live(console=out, auto_refresh=False) as live:
        while True:
            room = max(1, out.height - 3)
            listed = await _listed(store, query, room if most is None else min(most, room), children)
            lines = [styled(line) for line in laid_out(_columns(), _rows(listed.heads), out.width)]
            lines.append(Text(f"{len(listed.heads)}{' of more' if listed.more else ''} · Ctrl+C ends", "dim"))
            live.update(Text("\n").join(lines), refresh=True)
            listed.end()
            await asyncio.sleep(_PAUSE)


async def _watch_json(store: Checkpointer, query: checkpointers.HeadQuery, most: int | None, children: bool) -> None:
    """List the threads that match the query every second, until Ctrl+C. Print the head of a thread as a line of JSON if
    the thread was not listed before, or if its head has changed since it was printed. A change of nothing but the time
    at which the lease expires is ignored.

    Each listing has at most `most` threads, the newest; None is no limit. Threads of sub-agents are left out unless
    `children` is set.
    """
    known: dict[str, object] = {}
    while True:
        listed = await _listed(store, query, most, children)
        for head in reversed(listed.heads):
            shown = head_object(head)
            if shown.get("holder"):
                shown["holder"].pop("expires_at")
            if known.get(head.thread_id) != shown:
                known[head.thread_id] = shown
                print_json(head_object(head))
        listed.end()
        await asyncio.sleep(_PAUSE)


def _columns() -> list[Column]:
    return [
        Column("id"),
        Column("status"),
        Column("title", gives_way=True),
        Column("agent", spare=3),
        Column("model", spare=5),
        Column("turns", right=True),
        Column("tokens", right=True, spare=2),
        Column("cost", right=True, spare=1),
        Column("age", right=True),
        Column("holder", spare=4),
    ]


def _rows(heads: Sequence[Head], *, signs: bool = True) -> list[list[Cell]]:
    return [
        [
            Cell(one_line(head.thread_id), "bold"),
            status_cell(head.status) if signs else Cell(head.status),
            Cell(one_line(f"(not sealed) {head.title}" if thread_heads.is_unsealed(head) else head.title)),
            Cell(one_line(head.agent)),
            Cell(one_line(head.model)),
            Cell(str(head.turns)),
            Cell(short_number(head.input_tokens + head.output_tokens)),
            Cell(dollars(head.cost_usd)),
            Cell(ago(head.updated_at)),
            Cell(one_line(holder(head)) or worker_places.place_words(head)),
        ]
        for head in heads
    ]
