"""`clew export` and `clew import`: a thread as a file, and back."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli.failures import told
from clew.cli.options import Json, Store, ThreadId

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head

__all__ = ["export", "import_"]

_LONGEST_NAME = 100


@told
def export(
    thread: ThreadId,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Where to; - is the output. Without it, named by the thread.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The conversation, to be read by people.")] = False,
    as_json: Annotated[bool, typer.Option("--as-json", help="The conversation, for other programs.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="With these two: also what was rewound or compacted away.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Decrypted: whoever has the file can read it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Write a thread to a file.

    All of it, with its files, for `clew import` on any machine; or its conversation alone. A file is written whole or
    not at all, and only its owner can read it. A sealed thread stays sealed, unless --plain.

    \b
    Examples:
      clew export trip trip.clew
      clew export trip --markdown -
      clew export trip trip.json --as-json --history
    """
    from clew.cli.output.console import print_json, size
    from clew.cli.stores import on_store
    from clew.errors import InvalidInput

    form = "markdown" if markdown else "json" if as_json else "clew"
    if markdown and as_json:
        raise InvalidInput("--markdown and --as-json are two forms. Give one of them.")
    if form == "clew" and history:
        raise InvalidInput("--history goes with --markdown or --as-json; a .clew file always holds all of it.")
    if form != "clew" and plain:
        raise InvalidInput("--plain is for .clew files; --markdown and --as-json are always readable.")
    if file == "-" and json:
        raise InvalidInput("--json and a FILE of - both want the output. Leave one out.")
    if file == "-" and form == "clew" and sys.stdout.isatty():
        raise InvalidInput("a .clew file is not for a terminal. Give a FILE, or send the output somewhere.")
    done = on_store(store, lambda opened: _export(opened, thread, file, form, history, plain, force))
    if json:
        print_json(done)
    elif file != "-":
        typer.echo(done["file"])
        typer.secho(f"{done['thread_id']}: {size(done['bytes'])} written", dim=True, err=True)


async def _export(
    store: Checkpointer, given: str, file: str | None, form: str, history: bool, plain: bool, force: bool
) -> dict[str, Any]:
    import msgspec

    from clew import Thread
    from clew.cli.output.console import working
    from clew.cli.stores import find_thread

    thread_id = await find_thread(store, given)
    name = _file_name(thread_id, form) if file is None else file
    if not force:
        _check_free(name)
    if form != "clew":
        return await _export_text(store, thread_id, name, form, history)
    with working("Exporting") as tick:
        target = sys.stdout.buffer if name == "-" else name
        written = await Thread.export(store, thread_id, target, plain=plain, overwrite=force, progress=tick)
    if name == "-":
        sys.stdout.buffer.flush()
    return {"file": name, "form": form, **msgspec.structs.asdict(written)}


async def _export_text(store: Checkpointer, thread_id: str, name: str, form: str, history: bool) -> dict[str, Any]:
    from clew import Thread
    from clew.threads import to_json, to_markdown

    state = await Thread.load(store, thread_id)
    render = to_markdown if form == "markdown" else to_json
    text = render(state, thread_id=thread_id, history=history).rstrip("\n") + "\n"
    data = text.encode()
    if name == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        _write(Path(name), data)
    return {"file": name, "form": form, "thread_id": thread_id, "bytes": len(data)}


def _check_free(name: str) -> None:
    from clew.errors import InvalidInput

    if name != "-" and os.path.lexists(name):
        raise InvalidInput(f"{name} exists and is left alone. Choose another name, or say --force.")


def _file_name(thread_id: str, form: str) -> str:
    """A file of this folder, whatever the id holds."""
    plain = re.sub(r"[^\w.-]+", "_", thread_id, flags=re.ASCII).strip("._")[:_LONGEST_NAME]
    return f"{plain or 'thread'}.{'md' if form == 'markdown' else form}"


def _write(path: Path, data: bytes) -> None:
    """The whole file or nothing, readable by its owner alone."""
    from clew._runtime import files
    from clew.errors import InvalidInput

    try:
        os.replace(files.write_beside(path, data, durable=False), path)
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such folder.") from None
    except OSError as error:
        raise files.explain(error, path) from error


@told
def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A .clew file, as `clew export` writes it; - is the input.")
    ],
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="The thread's id here; without it, the one it had.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let it take much memory: for a file whose origin you know.")
    ] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Bring a thread back from a file.

    From one that `clew export` wrote; prints the thread's id. Everything in the file is checked before anything of it
    can be seen. A thread of that id that is equal stays as it is; one that is not is never written over.

    \b
    Examples:
      clew import trip.clew --as trip-from-a-friend
    """
    from clew import advice
    from clew.cli.output.console import hint, print_json
    from clew.cli.stores import on_store, shown_store

    head = on_store(store, lambda opened: _import(opened, file, new_id, trust), "made")
    if json:
        print_json({"thread_id": head.thread_id, "status": head.status, "turns": head.turns, "frames": head.frames})
        return
    typer.echo(head.thread_id)
    hint(f"Look at it with: {advice.show(head.thread_id, store=shown_store(store))}")


async def _import(store: Checkpointer, file: str, new_id: str | None, trust: bool) -> Head:
    from clew import Thread
    from clew.cli.output.console import working
    from clew.errors import Conflict, InvalidInput

    source = sys.stdin.buffer if file == "-" else file
    try:
        with working("Importing") as tick:
            return await Thread.import_(store, source, thread_id=new_id, trust=trust, progress=tick)
    except Conflict as conflict:
        conflict.add_note("To have both: give it another id with --as NEW")
        raise
    except InvalidInput as refused:
        if "trust=True" in str(refused):
            refused.add_note("On the command line that is --trust")
        raise
