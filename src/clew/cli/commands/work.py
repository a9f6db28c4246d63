"""`clew work`: take queued threads from a store, and run their agents, until it is told to stop."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clew.cli.deferred import asyncio
from clew.cli.failures import INTERRUPTED, report_errors
from clew.cli.options import Json
from clew.cli.quantities import limits, tags
from clew.cli.setups import TimeoutOption, check_timeout

__all__ = ["work"]


@report_errors
def work(
    agents: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:NAME...", help="Agents, lists or dicts of agents, or functions that return them."
        ),
    ],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, metavar="N", help="Threads at a time.")] = 8,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="Only threads with this tag. Repeatable: all must match."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The store. Default: that of the first agent.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="WHAT=N",
            help="At most N at a time, in all workers together: agent:NAME=N, tag:NAME=N, tag:NAME=VALUE=N or "
            "tenant=N. Repeatable.",
        ),
    ] = None,
    tries: Annotated[
        int, typer.Option("--tries", min=1, metavar="N", help="Set a thread aside after N tries without a new turn.")
    ] = 5,
    timeout: TimeoutOption = None,
    label: Annotated[
        str, typer.Option("--label", metavar="TEXT", help="What others see as the name of this worker.")
    ] = "worker",
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is due and nothing runs any more.")
    ] = False,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Answer /healthz, /readyz and /metrics there.")
    ] = None,
    json: Json = False,
) -> None:
    """Take queued threads from a store, and run them.

    Start as many workers as you like, on every machine that reaches the store. Each thread is run by one of them, and
    if a worker dies, another takes its threads over within 30 seconds. SQLite and file stores are for the workers of
    one machine. Modules are imported from the current folder.

    Ctrl+C or SIGTERM drains: no more threads are taken, those that run end after their turn and go back to their place
    in the queue. A second one stops at once, a third without waiting for anything. Exits with 0 once it is drained or
    the queue is empty; with --until-empty, with 1 if a thread has failed.

    \b
    Examples:
      clew enqueue "Send the invoices." --agent clerk
      clew work shop.agents:clerk --until-empty
      clew work shop.agents:everybody --limit agent:clerk=2 --until-empty
    """
    from clew.cli.pool import Pool

    check_timeout(timeout)
    pool = Pool(
        agents=agents,
        store=store,
        concurrency=concurrency,
        tags=tags(tag or [], "--tag"),
        limits=limits(limit or []),
        tries=tries,
        timeout=timeout,
        label=label,
        listen=listen,
    )
    ended = asyncio.run(pool.work(json=json, until_empty=until_empty))
    sys.stdout.flush()
    if ended.is_stopped:
        raise typer.Exit(INTERRUPTED)
    if until_empty and ended.failed:
        raise typer.Exit(1)
