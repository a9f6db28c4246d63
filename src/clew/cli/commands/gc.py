"""`clew gc`: delete the blobs (large values and files) that no thread refers to any more."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

import clew
from clew._runtime.text import size
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, Yes
from clew.cli.output.console import confirm, print_json, say, working
from clew.cli.quantities import duration
from clew.cli.stores import on_store

__all__ = ["gc"]


@report_errors
def gc(
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="Keep what was used within this time: 1d, 12h.")
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Free what no thread needs any more.

    Deletes large values and files that no thread refers to, and says how much space that freed. Safe while other
    processes write. A grace of less than a day asks first: it may also delete the snapshots that a restore took of
    folders before it changed them.

    \b
    Examples:
      clew gc
      clew gc --dry-run --grace 1h
    """
    untouched = duration(grace, "--grace")
    if untouched < timedelta(days=1) and not dry_run:
        confirm(
            f"A grace of {grace} is less than a day, and may also delete what a restore kept of a folder. Go on?", yes
        )
    with working("Looking at threads and values") as tick:
        found = on_store(store, lambda opened: clew.Thread.gc(opened, grace=untouched, dry_run=dry_run, progress=tick))
    if json:
        print_json(found)
        return
    done = "would be removed" if dry_run else "removed"
    untouched_ones = f"of {found.examined} that were not used for {grace}"
    say(f"{found.deleted} values {done} {untouched_ones}: {size(found.freed)}")
