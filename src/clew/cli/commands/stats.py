"""`clew stats`: add up the threads, tokens, dollars and storage of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import clew
from clew._runtime.text import ago, dollars, one_line, plural, short_number, size
from clew.cli import quantities
from clew.cli.deferred import checkpointers, msgspec, thread_totals
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store
from clew.cli.output.console import hint, print_json, say
from clew.cli.output.heads import status_style
from clew.cli.output.tables import Cell, Column, is_plain, print_table
from clew.cli.stores import on_store

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.threads.views.totals import Total, Totals

__all__ = ["stats"]

_DAYS = 30
_BAR = 24


@report_errors
def stats(
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only threads changed since: 12h, 2d, 1w or a date.")
    ] = None,
    json: Json = False,
    store: Store = None,
) -> None:
    """Count threads, tokens, dollars and storage.

    Totals by status, by agent and by day, and the disk space of the store. The cost of a thread counts for the day of
    its last change. Reads no logs. The space that a remote store takes is not known.

    \b
    Examples:
      clew stats
      clew stats --since 7d --json
    """
    query = checkpointers.HeadQuery(updated_after=quantities.since(since))

    async def work(opened: Checkpointer) -> None:
        totals = await thread_totals.add_up(clew.Thread.list(opened, query))
        (_print_json if json else _print)(totals, thread_totals.stored_bytes(opened))

    on_store(store, work)


def _print_json(totals: Totals, stored: int | None) -> None:
    def listed(name: str, found: Mapping[Any, Total]) -> list[dict[str, Any]]:
        return [{name: key, **msgspec.structs.asdict(found[key])} for key in sorted(found)]

    print_json(
        {
            **msgspec.structs.asdict(totals.all),
            "by_status": listed("status", totals.by_status),
            "by_agent": listed("agent", totals.by_agent),
            "by_day": listed("day", totals.by_day),
            "queue": {"length": totals.queued, "oldest_due": totals.oldest_due},
            "stored_bytes": stored,
        }
    )


def _print(totals: Totals, stored: int | None) -> None:
    room = "" if stored is None else f" · {size(stored)} stored"
    whole = totals.all
    facts = [plural(whole.threads, "thread"), plural(whole.turns, "turn"), f"{_tokens(whole)} tokens", _money(whole)]
    say(" · ".join(facts) + room)
    if totals.queued:
        oldest = "none is due" if totals.oldest_due is None else f"the oldest has been due for {ago(totals.oldest_due)}"
        say(f"{totals.queued} in the queue of the workers; {oldest}")
    if not whole.threads:
        hint("There are no threads to count.")
        return
    statuses = [(Cell(status, status_style(status)), total) for status, total in totals.by_status.items()]
    _section("status", sorted(statuses, key=lambda item: -item[1].threads))
    agents = [(Cell(_name(agent)), total) for agent, total in totals.by_agent.items()]
    _section("agent", sorted(agents, key=lambda item: (-item[1].cost_usd, -item[1].threads)))
    days = [(Cell(str(day)), totals.by_day[day]) for day in sorted(totals.by_day)[-_DAYS:]]
    _section("day", days, bars=not is_plain())
    if len(totals.by_day) > _DAYS:
        hint(f"The last {_DAYS} days with any change; --json has all {len(totals.by_day)}.")


def _section(name: str, found: Sequence[tuple[Cell, Total]], bars: bool = False) -> None:
    columns = [
        Column(name, gives_way=True),
        Column("threads", right=True),
        Column("turns", right=True),
        Column("tokens", right=True),
        Column("cost", right=True),
    ]
    rows = [
        [key, Cell(str(total.threads)), Cell(str(total.turns)), Cell(_tokens(total)), Cell(_money(total))]
        for key, total in found
    ]
    if bars:
        columns.append(Column("", spare=1))
        for row, height in zip(rows, _heights([total for _, total in found]), strict=True):
            row.append(Cell(_bar(height), "cyan"))
    say()
    print_table(columns, rows)


def _heights(totals: Sequence[Total]) -> list[float]:
    """Return the lengths of the bars that are drawn for these totals, as fractions of the longest bar. The bars show
    costs, or numbers of tokens if no cost is known."""
    values = [total.cost_usd for total in totals]
    if not any(values):
        values = [float(total.input_tokens + total.output_tokens) for total in totals]
    highest = max(values, default=0.0)
    return [value / highest if highest else 0.0 for value in values]


def _bar(height: float) -> str:
    eighths = round(_BAR * 8 * height)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _tokens(total: Total) -> str:
    return short_number(total.input_tokens + total.output_tokens)


def _money(total: Total) -> str:
    """Return the sum of the costs in `total` as text, in dollars. It ends with ` + ?` if the cost of some threads is
    not known."""
    if total.unpriced == total.threads:
        return dollars(None) if total.threads else dollars(0.0)
    return dollars(total.cost_usd) + (" + ?" if total.unpriced else "")


def _name(agent: str) -> str:
    return one_line(agent) or "(no name)"
