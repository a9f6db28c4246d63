"""`clew prune`: delete threads by age, number, status, tags or id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import clew
from clew._runtime.text import plural
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, Yes
from clew.cli.output.console import confirm, print_json, say, working
from clew.cli.quantities import duration
from clew.cli.stores import on_store
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from clew.threads.ops.prune import Pruned

__all__ = ["prune"]


@report_errors
def prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="TIME", help="Threads not changed for this time: 30d, 12h.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", help="All but the newest N of the matching threads.")
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="Threads with this status. Repeatable."),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="Threads with this tag. Repeatable."),
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Threads whose id begins with this.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Remove old threads.

    Removes the threads that meet all the conditions; at least one condition is needed. Lists them and asks first. A
    thread that a live process holds is never removed. Large values stay until `clew gc`.

    \b
    Examples:
      clew prune --older-than 30d --status done --dry-run
      clew prune --keep 100 --yes
    """
    conditions = _conditions(older_than, keep, status, tag, prefix)
    if not (dry_run or yes):
        planned = _prune(store, conditions, dry_run=True)
        if not planned.deleted:
            dry_run = True
        else:
            _ask(planned)
    pruned = _prune(store, conditions, dry_run=dry_run)
    if json:
        print_json(pruned)
    else:
        _print_result(pruned)


def _conditions(
    older_than: str | None, keep: int | None, status: list[str] | None, tag: list[str] | None, prefix: str
) -> dict[str, Any]:
    """Return the conditions that the options set, as keyword arguments of `Thread.prune`. Raises `InvalidInput` if no
    condition is set, or if a time or a tag is not written as it should be."""
    if older_than is None and keep is None and not (status or tag or prefix):
        raise InvalidInput(
            "without a condition this would delete every thread. Give --older-than, --keep, --status, --tag or --prefix."
        )
    for text in tag or ():
        if "=" not in text:
            raise InvalidInput(f"--tag {text!r} has no value. Write --tag name=value.")
    return {
        "older_than": None if older_than is None else duration(older_than, "--older-than"),
        "keep": keep,
        "status": tuple(status) if status else None,
        "tags": dict(text.split("=", 1) for text in tag or ()),
        "prefix": prefix,
    }


def _prune(url: str | None, conditions: dict[str, Any], *, dry_run: bool) -> Pruned:
    with working("Looking" if dry_run else "Deleting") as tick:
        return on_store(url, lambda store: clew.Thread.prune(store, **conditions, dry_run=dry_run, progress=tick))


def _ask(planned: Pruned) -> None:
    say("\n".join(planned.deleted), err=True)
    confirm(f"Delete {plural(len(planned.deleted), 'thread')}? {planned.kept} stay.", False)


def _print_result(pruned: Pruned) -> None:
    for thread_id in pruned.deleted:
        say(thread_id)
    busy = f", {len(pruned.busy)} of them in use" if pruned.busy else ""
    done = "would be deleted" if pruned.dry_run else "deleted"
    say(f"{plural(len(pruned.deleted), 'thread')} {done}; {pruned.kept} stay{busy}.", dim=True, err=True)
