"""`clew rekey`: encrypt every thread of a store again with the first key of CLEW_KEY."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

import clew
from clew import advice
from clew._runtime.text import plural
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store
from clew.cli.output.console import print_json, working
from clew.cli.stores import on_store
from clew.errors import InvalidInput

if TYPE_CHECKING:
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
    """Seal every thread with the first key of CLEW_KEY.

    Use it after a new key was put in front: CLEW_KEY=new,old. When it says that nothing was in use, the old key is not
    needed any more. With --allow-plain it also seals threads that were written without a key, or before heads were
    sealed: look at them first, because anybody who can write to the store may have written them.

    \b
    Examples:
      CLEW_KEY=new,old clew rekey
      CLEW_KEY=key clew rekey --allow-plain
    """
    if not os.environ.get("CLEW_KEY"):
        raise InvalidInput(f"rekey needs a key. Give it {advice.KEY_IN_SHELL}.")
    if allow_plain:
        os.environ["CLEW_ALLOW_PLAIN"] = "1"
    with working("Sealing") as tick:
        done = on_store(store, lambda opened: clew.Thread.rekey(opened, tick))
    if json:
        print_json(done)
    else:
        _print_result(done)


def _print_result(done: Rekeyed) -> None:
    for thread_id in done.sealed:
        typer.echo(thread_id)
    said = f"{plural(len(done.sealed), 'thread')} sealed; {done.already} had this key already."
    if done.busy:
        said += f" In use, so not changed: {', '.join(done.busy)}. Run this again later."
    typer.secho(said, dim=True, err=True)
