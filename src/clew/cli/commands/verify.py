"""`clew verify`: check every byte of the stored threads, and with `--repair` copy the intact part of a damaged one to
a new thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated

import typer

import clew
from clew import advice
from clew._runtime.text import plural
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, Yes, complete_thread
from clew.cli.output.console import agreed, hint, print_json, say, working
from clew.cli.stores import find_any, free_id, on_store, shown_store
from clew.errors import Corrupt, NewerFormat, WrongKey

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.threads.ops.verify import Verdict

__all__ = ["verify"]

_CORRUPT = 6


@report_errors
def verify(
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Threads. Default: all of the store.", autocompletion=complete_thread),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Save the intact part of a damaged thread as a new one; asks first.")
    ] = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Check that everything stored is intact.

    Reads every byte of the threads and prints a line for each problem. Nothing is changed. Exits with 6 if anything is
    wrong.

    With --repair, a damaged thread is copied to a new id up to its last good frame, and itself stays as it is. A thread
    that is encrypted with a key that is not given is left alone.

    \b
    Examples:
      clew verify
      clew verify trip --json
    """
    damaged = on_store(store, lambda opened: _verify(opened, threads or [], repair, yes, json, store))
    if damaged:
        raise typer.Exit(_CORRUPT)


async def _verify(store: Checkpointer, given: list[str], repair: bool, yes: bool, json: bool, url: str | None) -> int:
    """Check the threads that `given` names, or all if it is empty, and print their problems, as JSON if `json` is set.
    With `repair`, copy the intact part of each damaged thread to a new id; the user is asked first, unless `yes` is
    set. Returns how many threads are damaged, or cannot be read without their key."""
    with working("Verifying") as tick:
        seen = [verdict async for verdict in _verdicts(store, given, tick)]
    for verdict in seen:
        if json:
            print_json(verdict)
        else:
            for problem in verdict.problems:
                say(f"{verdict.thread_id}: {problem}" if verdict.thread_id else problem.what)
    if not json:
        say(_summary(seen, given, repair, url), dim=True, err=True)
    damaged = [verdict for verdict in seen if not verdict.sound]
    for verdict in damaged if repair else ():
        if not verdict.key_missing:  # it may be intact: only its key is missing
            await _repair(store, verdict, yes, json, url)
    return len(damaged)


def _summary(seen: list[Verdict], given: list[str], repair: bool, url: str | None) -> str:
    """Return the last line of the report: how many threads are damaged or cannot be read without their key. Unless
    `repair` is set, a command that repairs the damaged ones follows. `given` has the threads that the user named: if
    there is exactly one, the command is for that thread, else for all damaged threads. The command names the store at
    `url`.

    `seen` has a verdict, the result of a check, for each thread. A verdict without a thread id is about threads that no
    listing can show, and is not counted.
    """
    named = [verdict for verdict in seen if verdict.thread_id]
    locked = [verdict for verdict in named if verdict.key_missing]
    damaged = [verdict for verdict in named if not verdict.sound and not verdict.key_missing]
    threads = plural(len(named), "thread")
    found = [f"{len(damaged)} of {threads} damaged"] if damaged else []
    if locked:
        found.append(f"{len(locked)} of {threads} cannot be read without a key: give it {advice.KEY_IN_SHELL}")
    said = "; ".join(found) or f"{threads}, all sound"
    unlisted = "; not all of the store can be listed" if len(named) < len(seen) else ""
    which = damaged[0].thread_id if len(given) == 1 and damaged else ""
    if not damaged or repair:
        return f"{said}{unlisted}."
    return f"{said}{unlisted}. To save what is whole: {advice.repair(which, store=shown_store(url))}"


async def _verdicts(
    store: Checkpointer, given: list[str], tick: Callable[[int, int | None], None]
) -> AsyncIterator[Verdict]:
    """Check the threads that `given` names, or all if it is empty, and yield a `Verdict`, the result of the check, for
    each. After each thread, `tick` is called with how many threads are checked and how many there are, to show
    progress."""
    if not given:
        async for verdict in clew.Thread.verify_all(store, progress=tick):
            yield verdict
        return
    found = await find_any(store, given)
    for done, thread_id in enumerate(found, start=1):
        yield await clew.Thread.verify(store, thread_id)
        tick(done, len(found))


async def _repair(store: Checkpointer, verdict: Verdict, yes: bool, json: bool, url: str | None) -> None:
    """Copy the intact part of a damaged thread to a new id, if the user agrees, and print the new id, as JSON if `json`
    is set. With `yes` the user is not asked. `url` is the URL of the store, for a command that is shown. An error is
    printed, not raised. Does nothing for a verdict without a thread id."""
    thread_id = verdict.thread_id
    if not thread_id:
        return
    new_id = await free_id(store, f"{thread_id}-repaired")
    if not agreed(f"Save {thread_id} up to its last good frame as {new_id}?", yes):
        return
    try:
        head = await clew.Thread.repair(store, thread_id, new_id)
    except (Corrupt, NewerFormat, WrongKey) as error:
        say(f"{error}", err=True)
        return
    if json:
        print_json({"thread_id": thread_id, "repaired_as": new_id, "turns": head.turns, "frames": head.frames})
        return
    say(f"{thread_id}: saved as {new_id}, {head.turns} turns")
    hint(f"Once you are content with it: {advice.remove(thread_id, store=shown_store(url))}")
