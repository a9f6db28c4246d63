"""`clew copy`: copy threads from one store to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import clew
from clew._runtime.text import size
from clew.cli.consent import keep_carried
from clew.cli.deferred import asyncio, thread_copy
from clew.cli.failures import report_errors
from clew.cli.options import Json
from clew.cli.output.console import print_json, say, working
from clew.cli.stores import find_thread, opened

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.threads.ops.verify import Verdict

__all__ = ["copy"]

_FAILED, _CORRUPT = 1, 6


@report_errors
def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The URL of the store that has the threads.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The URL of the store that gets them.")],
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Threads. Default: all of them.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Then read and check every byte of the copies.")] = False,
    json: Json = False,
) -> None:
    """Copy threads to another store.

    Files are copied too. You can run it again, after a crash or later: it skips what is there already and updates what
    has grown. A copy becomes visible only when it is complete. CLEW_KEY is used for both stores.

    \b
    Examples:
      clew copy sqlite:///clew.db file:backup --verify
    """
    copied, verdicts = asyncio.run(_copy(source, target, threads or [], verify))
    damaged = [verdict for verdict in verdicts if not verdict.sound]
    if json:
        print_json(
            {
                "copied": copied.ids,
                "skipped": copied.skipped,
                "failed": copied.failed,
                "bytes": copied.bytes,
                "verified": [verdict.thread_id for verdict in verdicts if verdict.sound] if verify else None,
                "damaged": {verdict.thread_id: [str(one) for one in verdict.problems] for verdict in damaged},
            }
        )
    else:
        for thread_id in copied.ids:
            say(f"{thread_id}: copied")
        for thread_id, reason in copied.failed.items():
            say(f"{thread_id}: not copied: {reason}", err=True)
        for verdict in damaged:
            for problem in verdict.problems:
                say(f"{verdict.thread_id}: {problem}", err=True)
        checked = f"; {len(verdicts) - len(damaged)} verified" if verify else ""
        said = f"{len(copied.ids)} copied ({size(copied.bytes)}), {len(copied.skipped)} there already{checked}."
        say(said, dim=True, err=True)
    if damaged or copied.failed:
        raise typer.Exit(_CORRUPT if damaged else _FAILED)


async def _copy(
    source: str, target: str, given: Sequence[str], verify: bool
) -> tuple[thread_copy.Copied, list[Verdict]]:
    """Copy threads from the store at the URL `source` to the store at the URL `target`. `given` names the threads; all
    are copied if it is empty.

    Returns a `Copied` with the ids of the threads that were copied or skipped, and a list with the result of checking
    each copy. The list is empty unless `verify` is set.
    """
    async with opened(source) as here, opened(target, "made") as there:
        if given:
            ids = dict.fromkeys([await find_thread(here, text) for text in given])
            copied = await _copy_some(here, there, list(ids))
        else:
            with working("Copying") as tick:
                copied = await clew.Thread.copy_all(here, there, progress=tick)
        heads = [(await here.head(each), await there.head(each)) for each in copied.ids]
        keep_carried([(source, copy) for source, copy in heads if source is not None and copy is not None])
        verdicts = []
        if verify:
            checked = [*copied.ids, *copied.skipped]
            with working("Verifying", len(checked)) as tick:
                for done, thread_id in enumerate(checked, start=1):
                    verdicts.append(await clew.Thread.verify(there, thread_id))
                    tick(done, len(checked))
    return copied, verdicts


async def _copy_some(here: Checkpointer, there: Checkpointer, ids: Sequence[str]) -> thread_copy.Copied:
    """Copy the threads with these ids from the store `here` to the store `there`, each with a progress bar of its own.
    The first thread that cannot be copied ends this with an error; the copies made before it stay."""
    done: list[str] = []
    skipped: list[str] = []
    size = 0
    for number, thread_id in enumerate(ids, start=1):
        with working(f"Copying, {number} of {len(ids)}") as tick:
            outcome = await thread_copy.transfer(here, there, thread_id, thread_id, tick)
        (done if outcome.written else skipped).append(thread_id)
        size += outcome.bytes
    return thread_copy.Copied(tuple(done), tuple(skipped), {}, size)
