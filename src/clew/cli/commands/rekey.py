"""`clew rekey`: encrypt every thread of a store again with the first key of CLEW_KEY."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

import clew
from clew import advice
from clew._runtime.text import plural
from clew.cli.consent import keep_carried
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store
from clew.cli.output.console import print_json, say, working
from clew.cli.stores import on_store
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.threads.ops.rekey import Rekeyed

__all__ = ["rekey"]


@report_errors
def rekey(
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="Also seal threads that were written without a key.")
    ] = False,
    json: Json = False,
    store: Store = None,
) -> None:
    """Seal every thread with a new key.

    That is the first key of CLEW_KEY. Use it after a new key was put in front: CLEW_KEY=new,old. When it says that
    nothing was in use, the old key is not needed any more. With --allow-plain it also seals threads that were written
    without a key, or before heads were sealed: look at them first, because anybody who can write to the store may have
    written them.

    \b
    Examples:
      CLEW_KEY=new,old clew rekey
      CLEW_KEY=key clew rekey --allow-plain
    """
    if not os.environ.get("CLEW_KEY"):
        raise InvalidInput(f"rekey needs a key. Give it {advice.KEY_IN_SHELL}.")
    if allow_plain:
        os.environ["CLEW_ALLOW_PLAIN"] = "1"
    done = on_store(store, _rekey)
    if json:
        print_json(done)
    else:
        _print_result(done)


async def _rekey(store: Checkpointer) -> Rekeyed:
    """Encrypt the threads of the store again with its first key, unless they have that key already, and return which
    threads were changed. A thread may get a new log by that. If it is on record that this user made or agreed to the
    setup (the options for the thread's agent) in the old log, record the same for the new log, so that a resume does
    not ask again."""
    before = {head.thread_id: head async for head in store.heads()}
    with working("Sealing") as tick:
        done = await clew.Thread.rekey(store, tick)
    after = [await store.head(thread_id) for thread_id in done.sealed]
    keep_carried([(before[head.thread_id], head) for head in after if head is not None and head.thread_id in before])
    return done


def _print_result(done: Rekeyed) -> None:
    for thread_id in done.sealed:
        say(thread_id)
    said = f"{plural(len(done.sealed), 'thread')} sealed; {done.already} had this key already."
    if done.busy:
        said += f" In use, so not changed: {', '.join(done.busy)}. Run this again later."
    say(said, dim=True, err=True)
