"""`clew move`: carry a session from one coding agent to another."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import clew
from clew import advice
from clew.cli.consent import TrustOption, agree, keep_trust, review_of
from clew.cli.deferred import agent_settings, asyncio, handles, provider_registry, providers
from clew.cli.failures import report_errors
from clew.cli.native_sessions import SessionProvider, find_native, native_session
from clew.cli.options import Json, Store
from clew.cli.output.console import print_json, say
from clew.cli.setups import folder_of
from clew.cli.stores import find_thread, on_store, shown_store
from clew.errors import InvalidInput, SessionNotFound, ThreadNotFound

if TYPE_CHECKING:
    from clew.agent.settings import Setup
    from clew.checkpointers import Checkpointer
    from clew.cli.native_sessions import Native
    from clew.messages.dialects import Loss
    from clew.providers import Permissions

__all__ = ["losses_in_words", "move"]

_PERMISSIONS: Permissions = "edit"
"""What a provider may do with a thread that was moved to it."""


@report_errors
def move(
    session: Annotated[
        str,
        typer.Argument(
            metavar="SESSION|THREAD", help="A session of a coding agent or a thread: its id, or a beginning of it."
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="claude_code, codex or opencode.")],
    provider: SessionProvider = None,
    cwd: Annotated[
        str | None,
        typer.Option("--cwd", metavar="DIR", help="The folder it goes on in. Default: the one it was in."),
    ] = None,
    trust: TrustOption = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Carry a session from one coding agent to another.

    Writes the conversation as a session that the other agent's program can
    open, prints the command that opens it, and names what could not be
    carried over. If you move a session, the original stays as it was. If
    you move a thread, the other agent works on it from now on.

    \b
    Examples:
      clew move trip --to codex
      clew move 0199c0de --to claude_code
    """
    target = _target(to, session)
    folder = None if cwd is None else folder_of(cwd, "--cwd")
    consent = _Consent(trust, json)
    if provider is not None:
        moved = asyncio.run(_translated(native_session(session, provider), target, folder))
    else:
        moved = on_store(store, lambda opened: _moved(opened, session, target, folder, store, consent), "empty")
    is_here = os.path.realpath(moved.cwd) == os.path.realpath(os.getcwd())
    command = advice.open_session(moved.provider, moved.key, "" if is_here else moved.cwd)
    if json:
        losses = [
            {"message": loss.message, "block": loss.block, "what": loss.what, "why": loss.why} for loss in moved.losses
        ]
        print_json({"provider": target, "id": moved.key, "cwd": moved.cwd, "losses": losses, "command": command})
        return
    for words in losses_in_words(moved.losses):
        say(f"Lost: {words}", err=True)
    say(f"It is {target} session {moved.key} now. Open it there:", dim=True, err=True)
    say(command or moved.key)


def _target(name: str, given: str) -> str:
    """Return the canonical name of the provider `name`. Raises `InvalidInput` for the built-in agent, because it has no
    sessions. The error advises a command for `given`, the thread or session that the user wants to move."""

    if name == provider_registry.BUILT_IN_AGENT:
        raise InvalidInput(
            "--to takes a coding agent: claude_code, codex or opencode. For Clew's own, take the session into a thread with "
            f"{advice.adopt(given)}, and then: "
            f"{advice.resume(advice.THREAD, advice.PROMPT, provider=provider_registry.BUILT_IN_AGENT, model=advice.MODEL)}"
        )
    return provider_registry.find_provider(name).name


class _Consent(NamedTuple):
    """How the user can agree to a thread's setup, the stored options for its agent: with the option --trust (`trust`),
    or by answering a question at the terminal. With --json (`json`) nothing is asked."""

    trust: bool
    json: bool


async def _moved(
    store: Checkpointer, given: str, target: str, folder: str | None, url: str | None, consent: _Consent
) -> providers.Translated:
    """Move the thread or session that `given` names to the provider `target`. Returns the session that the provider's
    program can open. If `folder` is given, that session works in `folder`. `url` is the URL of the store, for messages.
    `consent` says how the user can agree to a thread's setup, the stored options for its agent."""
    meant = await _meant(store, given, url)
    if isinstance(meant, str):
        return await _moved_thread(store, meant, target, folder, consent)
    return await _translated(meant, target, folder)


async def _meant(store: Checkpointer, given: str, url: str | None) -> str | Native:
    """Find what `given` names. Returns the id of a thread as text, or a coding agent's own session. A complete thread
    id always means that thread.

    Raises `InvalidInput` if `given` may mean either, and `SessionNotFound` if it means neither.
    """

    try:
        thread_id = await find_thread(store, given)
    except ThreadNotFound:
        thread_id = None
    if thread_id == given:
        return thread_id
    native = await asyncio.to_thread(find_native, given, None, provider_registry.default_place())
    if thread_id is not None and native is not None:
        raise InvalidInput(
            f"{given!r} may mean the thread {thread_id!r} or the {native.provider} session {native.key}. Give more of it, "
            "or name the session's agent with --provider."
        )
    found = thread_id or native
    if found is None:
        error = SessionNotFound(", ".join(provider_registry.provider_names()), given)
        listed = advice.list_threads(store=shown_store(url))
        error.add_note(f"There is no such thread either. To list the threads: {listed}")
        raise error
    return found


async def _translated(native: Native, target: str, folder: str | None) -> providers.Translated:
    """Write a copy of a coding agent's session in the form of the provider `target`, and return a `Translated`, which
    has the new session's id and what was lost. If `folder` is given, the new session works in that folder, which is
    made if it does not exist."""

    place = None if folder is None else provider_registry.default_place(_made(folder))
    return await providers.translate(native.key, source=native.provider, to=target, place=place)


async def _moved_thread(
    store: Checkpointer, thread_id: str, target: str, folder: str | None, consent: _Consent
) -> providers.Translated:
    """Move a thread to the provider `target`, and return the session that the provider's program can open. The session
    works in `folder`. If `folder` is None, the session works in the thread's own folder if that exists on this machine,
    else in the current folder. Raises `InvalidInput` if the thread has no messages.

    The thread's setup (the stored options for its agent) names a folder and a system prompt for the provider's program.
    If this user has neither made nor agreed to that setup on this machine, the user is asked, in the way that `consent`
    says. Without agreement the command ends, and nothing is moved.
    """

    state = await clew.Thread.load(store, thread_id)
    if not state.messages:
        raise InvalidInput(f"thread {thread_id!r} has no messages yet, so there is nothing to move.")
    setup = agent_settings.setup_of(state)
    where = folder or _folder_of(setup)
    moved = agent_settings.setup_at(setup, target, folder=where, permissions=_PERMISSIONS)
    if (head := await store.head(thread_id)) is not None:
        agree(await review_of(store, head, state, moved), trust=consent.trust, json=consent.json)
    agent = providers.ProviderAgent(
        provider=target,
        name=setup.name,
        system_prompt=setup.system,
        checkpointer=store,
        cwd=_made(where),
        permissions=_PERMISSIONS,
    )
    async with agent:
        session = await agent.start_session(thread_id=thread_id).move_to(target)
        losses = session.losses if isinstance(session, providers.ProviderSession) else ()
        key = handles.read_handle(session.resume_handle).resume_key
    await keep_trust(store, thread_id, moved)
    return providers.Translated(provider=target, key=key, cwd=where, losses=losses)


def _folder_of(setup: Setup) -> str:
    """Return the absolute path of the folder that `setup`, a thread's stored options, names for the agent's work. If
    there is no such folder on this machine, return the current one."""
    return os.path.abspath(next(filter(os.path.isdir, (setup.workspace, setup.folder)), os.getcwd()))


def _made(folder: str) -> str:
    """Make the folder if it does not exist, and return its path. Raises `InvalidInput` if it cannot be made."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"the folder {folder} cannot be made: {error.strerror}.") from None
    return folder


def losses_in_words(losses: Iterable[Loss]) -> list[str]:
    """Describe what a translation of a session lost. Returns a line for each kind of loss, with the reason and how
    often it occurred."""
    counted: dict[tuple[str, str], int] = {}
    for loss in losses:
        counted[loss.what, loss.why] = counted.get((loss.what, loss.why), 0) + 1
    return [f"{what}{f' ({times} times)' if times > 1 else ''}: {why}" for (what, why), times in counted.items()]
