"""`clew export`: write a thread to a file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import clew
from clew._runtime import files
from clew._runtime.text import size, visible, visible_json
from clew.cli.deferred import msgspec, render
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId
from clew.cli.output.console import print_json, say, working
from clew.cli.stores import find_thread, on_store
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer

__all__ = ["export"]

_LONGEST_NAME = 100


@report_errors
def export(
    thread: ThreadId,
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="The file; - is the output. Default: a name made from the id."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Only the conversation, for people.")] = False,
    as_json: Annotated[bool, typer.Option("--as-json", help="Only the conversation, for programs.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="With these two: also what was rewound or compacted.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Decrypt it: anyone who has the file can read it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Write a thread to a file.

    A .clew file holds the whole thread with its files, and `clew import` reads it on any machine. --markdown and
    --as-json write the conversation alone. A file is written completely or not at all, and only its owner can read it.
    An encrypted thread stays encrypted, unless --plain is given.

    \b
    Examples:
      clew export trip trip.clew
      clew export trip --markdown -
      clew export trip trip.json --as-json --history
    """
    form = "markdown" if markdown else "json" if as_json else "clew"
    if markdown and as_json:
        raise InvalidInput("--markdown and --as-json cannot be used together. Give one of them.")
    if form == "clew" and history:
        raise InvalidInput("--history goes with --markdown or --as-json; a .clew file always holds all of it.")
    if form != "clew" and plain:
        raise InvalidInput("--plain is for .clew files; --markdown and --as-json are always readable.")
    if file == "-" and json:
        raise InvalidInput("--json and a FILE of - both write to the output. Leave one out.")
    if file == "-" and form == "clew" and sys.stdout.isatty():
        raise InvalidInput("a .clew file is not for a terminal. Give a FILE, or redirect the output.")
    done = on_store(store, lambda opened: _export(opened, thread, file, form, history, plain, force))
    if json:
        print_json(done)
    elif file != "-":
        say(done["file"])
        say(f"{done['thread_id']}: {size(done['bytes'])} written", dim=True, err=True)


async def _export(
    store: Checkpointer, given: str, file: str | None, form: str, history: bool, plain: bool, force: bool
) -> dict[str, Any]:
    thread_id = await find_thread(store, given)
    name = _file_name(thread_id, form) if file is None else file
    if not force:
        _check_free(name)
    if form != "clew":
        return await _export_text(store, thread_id, name, form, history)
    with working("Exporting") as tick:
        target = sys.stdout.buffer if name == "-" else name
        written = await clew.Thread.export(store, thread_id, target, plain=plain, overwrite=force, progress=tick)
    if name == "-":
        sys.stdout.buffer.flush()
    return {"file": name, "form": form, **msgspec.structs.asdict(written)}


async def _export_text(store: Checkpointer, thread_id: str, name: str, form: str, history: bool) -> dict[str, Any]:
    """Write the conversation to the file `name`; `-` is the standard output. `form` is `markdown`, or anything else for
    JSON. With `history`, rewound and compacted messages are written too. Returns the object that --json prints."""
    state = await clew.Thread.load(store, thread_id)
    write = render.to_markdown if form == "markdown" else render.to_json
    text = write(state, thread_id=thread_id, history=history).rstrip("\n") + "\n"
    if name == "-":  # it may be a terminal, now or behind a pipe
        text = visible(text) if form == "markdown" else visible_json(text)
    data = text.encode()
    if name == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        _write(Path(name), data)
    return {"file": name, "form": form, "thread_id": thread_id, "bytes": len(data)}


def _check_free(name: str) -> None:
    """Raise `InvalidInput` if a file of this name exists. Does nothing for `-`, which stands for the standard output."""
    if name != "-" and os.path.lexists(name):
        raise InvalidInput(f"{name} exists and is left alone. Choose another name, or add --force.")


def _file_name(thread_id: str, form: str) -> str:
    """Return a file name made from a thread's id, in which characters that could lead to another folder are replaced.
    The extension of the name depends on `form`, the form of the export: `markdown`, `json` or `clew`."""
    plain = re.sub(r"[^\w.-]+", "_", thread_id, flags=re.ASCII).strip("._")[:_LONGEST_NAME]
    return f"{plain or 'thread'}.{'md' if form == 'markdown' else form}"


def _write(path: Path, data: bytes) -> None:
    """Write the data to a file, completely or not at all. Only the file's owner can read it. Raises `InvalidInput` if
    the folder does not exist."""
    try:
        os.replace(files.write_beside(path, data, durable=False), path)
    except FileNotFoundError:
        raise InvalidInput(f"{path} cannot be written: its folder does not exist. Make the folder first.") from None
    except OSError as error:
        raise files.explain(error, path) from error
