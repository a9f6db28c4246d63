"""`clew sessions`, `clew adopt`, `clew move`: what coding agents keep on this machine, for threads and for each other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from clew.cli.failures import told
from clew.cli.options import Json, Store

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.cli.output.tables import Cell
    from clew.messages.dialects import Loss
    from clew.providers import NativeSession, Place, Translated

__all__ = ["Native", "adopt", "find_native", "losses_in_words", "move", "sessions"]


_LONGEST_TITLE = 80
_From = Annotated[
    str | None,
    typer.Option(
        "--provider", "-p", metavar="NAME", help="Whose session: claude_code, codex or opencode. Else all are asked."
    ),
]
_Session = Annotated[
    str, typer.Argument(metavar="SESSION", help="Its id as `clew sessions` shows it, a beginning of that, or its file.")
]


@told
def sessions(
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            "-p",
            metavar="NAME",
            help="Only of claude_code, codex or opencode. May be given several times.",
        ),
    ] = None,
    cwd: Annotated[
        str | None, typer.Option("--cwd", metavar="DIR", help="Only those that were held in this folder.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many at most.")] = 30,
    json: Json = False,
) -> None:
    """List the sessions of Claude Code, Codex and opencode.

    All on this machine, the newest first, whether Clew has seen them or not.
    `clew adopt` takes one into a thread, `clew move` to another agent. Where
    those of one agent cannot all be read, that is said, and it ends with 1.

    \b
    Examples:
      clew sessions
      clew sessions --provider codex --cwd . --json
    """
    import logging

    from clew.cli.output.console import errors, print_json
    from clew.cli.output.tables import Column, print_table
    from clew.cli.setups import folder_of
    from clew.providers import discover

    logging.getLogger("clew.providers").addHandler(logging.NullHandler())  # what it has to say is said below
    folder = None if cwd is None else folder_of(cwd, "--cwd")
    found = discover(provider or None, cwd=folder)
    shown = found.sessions[:limit]
    if json:
        for session in shown:
            print_json(_object(session))
    elif shown:
        columns = [
            Column("provider"),
            Column("id"),
            Column("title", gives_way=True),
            Column("turns", right=True),
            Column("cwd", gives_way=True, spare=1),
            Column("age", right=True),
            Column("size", right=True, spare=2),
        ]
        print_table(columns, [_row(session) for session in shown])
    elif not found.problems:
        errors().print("No sessions of coding agents on this machine.", style="dim")
    if len(found) > limit and not json:
        errors().print(f"{len(found) - limit} more: --limit {len(found)}", style="dim")
    for problem in found.problems:
        typer.echo(f"Error: {problem.provider}: its sessions could not all be listed: {problem.reason}", err=True)
    if found.problems:
        raise typer.Exit(1)


def _object(session: NativeSession) -> dict[str, Any]:
    return {
        "provider": session.provider,
        "id": session.key,
        "title": session.title,
        "turns": session.turns,
        "cwd": session.cwd,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "size": session.size,
        "path": str(session.path),
    }


def _row(session: NativeSession) -> list[Cell]:
    from clew.cli.output.console import ago, one_line, size
    from clew.cli.output.tables import Cell

    changed = session.updated_at or session.created_at
    return [
        Cell(session.provider, "cyan"),
        Cell(session.key),
        Cell(one_line(session.title, _LONGEST_TITLE)),
        Cell("" if session.turns is None else str(session.turns)),
        Cell(one_line(session.cwd), "dim"),
        Cell("" if changed is None else ago(changed)),
        Cell(size(session.size) if session.size else "", "dim"),
    ]


@told
def adopt(
    session: _Session,
    provider: _From = None,
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="The thread's id; without it, one is made.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Take a session of a coding agent into a thread.

    All of it: what was said and done, and the program's own form of it, so
    that `clew resume` goes on with it on any machine that reaches the store,
    or with another agent. The program's own copy stays as it is.

    \b
    Examples:
      clew adopt 0199c0de --provider codex --as paris
    """
    from clew import advice
    from clew.cli.output.console import hint, print_json
    from clew.cli.stores import on_store, shown_store

    native = _native(session, provider)
    thread_id, turns = on_store(store, lambda opened: _adopt(opened, native, new_id), "made")
    command = advice.resume(thread_id, advice.PROMPT, store=shown_store(store))
    if json:
        print_json(
            {"thread_id": thread_id, "provider": native.provider, "id": native.key, "turns": turns, "resume": command}
        )
        return
    typer.echo(thread_id)
    hint(f"{turns} turns of {native.provider} session {native.key}. To go on: {command}")


def _native(session: str, provider: str | None) -> Native:
    from clew.errors import SessionNotFound
    from clew.providers.registry import default_place, wanted

    found = find_native(session, provider, default_place())
    if found is None:
        raise SessionNotFound(", ".join(wanted(provider)), session)
    return found


async def _adopt(store: Checkpointer, native: Native, new_id: str | None) -> tuple[str, int]:
    from clew.errors import ThreadNotFound
    from clew.providers import adopt as adopt_session

    thread_id = await adopt_session(native.key, store, provider=native.provider, thread_id=new_id)
    head = await store.head(thread_id)
    if head is None:
        raise ThreadNotFound(thread_id)
    return thread_id, head.turns


@told
def move(
    session: Annotated[
        str,
        typer.Argument(
            metavar="SESSION|THREAD", help="A session of a coding agent, or a thread: its id or a beginning."
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="claude_code, codex or opencode.")],
    provider: _From = None,
    cwd: Annotated[
        str | None,
        typer.Option("--cwd", metavar="DIR", help="The folder it goes on in; without it, the one it was in."),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Carry a session from one coding agent to another.

    The whole conversation is written as a session that the other's program
    opens, and the command for that is printed. What did not fit is said. A
    session stays as it is where it was; a thread is gone on with over there.

    \b
    Examples:
      clew move trip --to codex
      clew move 0199c0de --to claude_code
    """
    from clew import advice
    from clew.cli.output.console import print_json
    from clew.cli.setups import folder_of
    from clew.cli.stores import on_store

    target = _target(to, session)
    folder = None if cwd is None else folder_of(cwd, "--cwd")
    if provider is not None:
        moved = asyncio.run(_translated(_native(session, provider), target, folder))
    else:
        moved = on_store(store, lambda opened: _moved(opened, session, target, folder, store), "empty")
    is_here = os.path.realpath(moved.cwd) == os.path.realpath(os.getcwd())
    command = advice.open_session(moved.provider, moved.key, "" if is_here else moved.cwd)
    if json:
        losses = [
            {"message": loss.message, "block": loss.block, "what": loss.what, "why": loss.why} for loss in moved.losses
        ]
        print_json({"provider": target, "id": moved.key, "cwd": moved.cwd, "losses": losses, "command": command})
        return
    for words in losses_in_words(moved.losses):
        typer.echo(f"Lost: {words}", err=True)
    typer.secho(f"It is {target} session {moved.key} now. Open it there:", dim=True, err=True)
    typer.echo(command or moved.key)


def _target(name: str, given: str) -> str:
    from clew import advice
    from clew.errors import InvalidInput
    from clew.providers.registry import BUILT_IN_AGENT, find_provider

    if name == BUILT_IN_AGENT:
        raise InvalidInput(
            "--to is a coding agent: claude_code, codex or opencode. For Clew's own, take the session into a thread with "
            f"{advice.adopt(given)}, and then: "
            f"{advice.resume(advice.THREAD, advice.PROMPT, provider=BUILT_IN_AGENT, model=advice.MODEL)}"
        )
    return find_provider(name).name


async def _moved(store: Checkpointer, given: str, target: str, folder: str | None, url: str | None) -> Translated:
    meant = await _meant(store, given, url)
    if isinstance(meant, str):
        return await _moved_thread(store, meant, target, folder)
    return await _translated(meant, target, folder)


async def _meant(store: Checkpointer, given: str, url: str | None) -> str | Native:
    """A thread's id, or a session. A whole id of a thread is never taken for anything else."""
    from clew import advice
    from clew.cli.stores import find_thread, shown_store
    from clew.errors import InvalidInput, SessionNotFound, ThreadNotFound
    from clew.providers.registry import default_place, provider_names

    try:
        thread_id = await find_thread(store, given)
    except ThreadNotFound:
        thread_id = None
    if thread_id == given:
        return thread_id
    native = await asyncio.to_thread(find_native, given, None, default_place())
    if thread_id is not None and native is not None:
        raise InvalidInput(
            f"{given!r} may mean the thread {thread_id!r} or the {native.provider} session {native.key}. Give more of it, "
            "or say whose session it is with --provider."
        )
    found = thread_id or native
    if found is None:
        error = SessionNotFound(", ".join(provider_names()), given)
        listed = advice.list_threads(store=shown_store(url))
        error.add_note(f"Nor is there such a thread. Those that are there are listed by: {listed}")
        raise error
    return found


async def _translated(native: Native, target: str, folder: str | None) -> Translated:
    from clew.providers import translate
    from clew.providers.registry import default_place

    place = None if folder is None else default_place(_made(folder))
    return await translate(native.key, source=native.provider, to=target, place=place)


async def _moved_thread(store: Checkpointer, thread_id: str, target: str, folder: str | None) -> Translated:
    from clew import Thread
    from clew.agent.handles import read_handle
    from clew.agent.settings import setup_of
    from clew.errors import InvalidInput
    from clew.providers import ProviderAgent, ProviderSession, Translated

    state = await Thread.load(store, thread_id)
    if not state.messages:
        raise InvalidInput(f"thread {thread_id!r} has no messages yet, so there is nothing to move.")
    setup = setup_of(state)
    where = folder or next(filter(os.path.isdir, (setup.workspace, setup.folder)), os.getcwd())
    agent = ProviderAgent(
        provider=target, name=setup.name, system_prompt=setup.system, checkpointer=store, cwd=_made(where)
    )
    async with agent:
        session = await agent.start_session(thread_id=thread_id).move_to(target)
        losses = session.losses if isinstance(session, ProviderSession) else ()
        key = read_handle(session.resume_handle).resume_key
    return Translated(provider=target, key=key, cwd=where, losses=losses)


def _made(folder: str) -> str:
    from clew.errors import InvalidInput

    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"the folder {folder} cannot be made: {error.strerror}.") from None
    return folder


class Native(NamedTuple):
    provider: str
    key: str


def find_native(session: str, provider: str | None, place: Place) -> Native | None:
    """At the provider that is named, or at whichever has it; None if none has. `InvalidInput` if several sessions may be
    meant. A provider whose sessions cannot be read does not hide another's; if nobody else has it, its error is told."""
    from clew.errors import ClewError, InvalidInput
    from clew.providers.registry import find_provider, wanted

    found: list[Native] = []
    trouble: list[ClewError] = []
    for name in wanted(provider):
        try:
            key = find_provider(name)(place).find(session)
        except ClewError as error:
            trouble.append(error)
            continue
        if key is not None:
            found.append(Native(name, key))
    if len(found) > 1:
        listed = ", ".join(f"{each.key} of {each.provider}" for each in found)
        raise InvalidInput(f"{session!r} may mean several sessions: {listed}. Say which with --provider.")
    if not found and trouble:
        raise trouble[0]
    return found[0] if found else None


def losses_in_words(losses: Iterable[Loss]) -> list[str]:
    """Each kind once, with how often it came."""
    counted: dict[tuple[str, str], int] = {}
    for loss in losses:
        counted[loss.what, loss.why] = counted.get((loss.what, loss.why), 0) + 1
    return [f"{what}{f' ({times} times)' if times > 1 else ''}: {why}" for (what, why), times in counted.items()]
