"""Moves a conversation from one agent to another: Claude Code, Codex, opencode, or the built-in agent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import EllipsisType

import msgspec

from clew.agent.handles import read_handle
from clew.agent.stores import Store
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, SessionNotFound
from clew.log import Call, Checkpoint, Described, MessageAdded, StatusChanged
from clew.messages import Message, Text, Tool, ToolResult
from clew.messages.dialects import Loss
from clew.messages.dialects.arrange import NO_RESULT
from clew.providers.base import Conversation, Place, Provider
from clew.providers.files import scratch
from clew.providers.registry import BUILT_IN_AGENT, default_place, find_provider, provider_name
from clew.providers.translate.fit import fit
from clew.threads import Thread

__all__ = ["Translated", "for_provider", "translate", "write_for"]

_NOT_RUN = "The call was not made: the work stopped before it."


class Translated(msgspec.Struct, frozen=True, kw_only=True):
    """Where `translate` has put the copy of a session: the provider, the key and the working folder, and what was
    lost."""

    provider: str
    key: str
    """The id under which the provider has the new session; for the built-in agent it is the thread's id."""
    cwd: str
    """The working folder that the new session belongs to."""
    losses: tuple[Loss, ...] = ()
    """What did not fit. The message indexes are those in the original conversation."""


def for_provider(conversation: Conversation, source: str, target: str) -> tuple[Conversation, tuple[Loss, ...]]:
    """Return the conversation of the agent `source` rewritten for the agent `target`, and what was lost by that.
    Nothing is written.

    `source` and `target` are names of providers, or `clew` for the built-in agent. A tool call becomes a call of the
    target's tool of the same kind, and stays as it is if there is no such tool. Ids of tool calls are replaced if not
    every vendor accepts them, thinking stays if the target can send it back to a model, and empty messages are left
    out. Further losses can arise when the result is written in the target's own format: `Provider.write` reports those.
    """
    fitted = fit(conversation, provider_name(source), provider_name(target))
    return fitted.conversation, fitted.losses


def write_for(target: Provider, conversation: Conversation, source: str, key: str, folder: Path) -> tuple[Loss, ...]:
    """Rewrite the conversation of the agent `source` for the provider `target`, and write it into the folder `folder`
    in that provider's own format, under this key. Returns everything that was lost by that; the indexes in the losses
    are those of messages in the given conversation."""
    fitted = fit(conversation, provider_name(source), target.name)
    written = target.write(fitted.conversation, key, folder)
    found = [*conversation.losses, *fitted.losses, *(_placed(loss, fitted.origins) for loss in written)]
    return tuple(sorted(set(found), key=lambda loss: (loss.message, -1 if loss.block is None else loss.block)))


def _placed(loss: Loss, origins: tuple[int, ...]) -> Loss:
    known = 0 <= loss.message < len(origins)
    return msgspec.structs.replace(loss, message=origins[loss.message]) if known else loss


async def translate(
    session: str | os.PathLike[str],
    *,
    source: str,
    to: str,
    place: Place | None = None,
    checkpointer: Checkpointer | str | EllipsisType | None = ...,
    thread_id: str | None = None,
) -> Translated:
    """Copy a session of one agent to another agent: translate it, and put it where that agent looks for it. Returns
    where the copy is and what was lost.

    `session` is a session that the provider `source` keeps on this machine, even one that Clew has never seen. It is
    given by its key, a part of the key that no other has, or its path. With `source="clew"` it is a thread, given by
    its id or by a handle, the string in `session.resume_handle`. With `to="clew"` the result is a thread, which an
    agent continues with `agent.resume(prompt, thread_id=…)`; `thread_id` names that thread, by default after the source
    and the session's key. `checkpointer` is the store for threads or its URL, by default the default store.

    `place` says where the sessions are and which working folder the new one belongs to. By default these are this
    user's sessions, and the folder of the original session if it exists here, otherwise the current one. Raises
    `SessionNotFound` if the provider has no such session, and `ThreadNotFound` if the store has no such thread.
    """
    source, to = provider_name(source), provider_name(to)
    if BUILT_IN_AGENT not in (source, to):
        return await asyncio.to_thread(_between_providers, str(session), source, to, place)
    store = Store(checkpointer)
    try:
        if source == to:
            raise InvalidInput("from 'clew' to 'clew' there is nothing to translate. Fork the thread: Thread.fork")
        if to == BUILT_IN_AGENT:
            key, conversation = await asyncio.to_thread(_read, str(session), source, place)
            return await _to_thread_of(store.open(), thread_id or f"{source}:{key}", conversation, source)
        name = read_handle(str(session)).session_id
        conversation = _of_thread(await Thread.load(store.open(), name))
        return await asyncio.to_thread(_write, conversation, source, to, place)
    finally:
        await store.close()


def _between_providers(session: str, source: str, to: str, place: Place | None) -> Translated:
    """Copy a session from the provider `source` to the provider `to`. Returns where the copy is and what was lost. If
    both names are the same, the session is copied without being translated, for example to get a copy for another
    working folder. `place` says where the sessions are and which folder the copy belongs to; by default these are this
    user's sessions, and the folder of the original if it exists here, otherwise the current one."""
    if source != to:
        find_provider(to)
        _, conversation = _read(session, source, place)
        return _write(conversation, source, to, place)
    with scratch() as folder:
        _, conversation = _read(session, source, place, folder)
        target = _provider(to, place, conversation)
        key = target.new_key()
        target.install_session(key, folder)
    return Translated(provider=to, key=key, cwd=str(target.place.cwd))


def _read(session: str, source: str, place: Place | None, folder: Path | None = None) -> tuple[str, Conversation]:
    """Find a session that the provider `source` keeps on this machine, and return its key and its conversation. If
    `folder` is given, the session is exported there. Raises `SessionNotFound` if there is none, and `InvalidInput` if
    it has no messages."""
    provider = find_provider(source)(place or default_place())
    key = provider.find(session)
    if key is None:
        raise SessionNotFound(source, session)
    with scratch() as temporary:
        folder = folder or temporary
        if not provider.export(key, folder):
            raise SessionNotFound(source, session)
        conversation = provider.read(folder)
    if not conversation.messages:
        raise InvalidInput(f"the {source} session {key!r} has no messages yet, so there is nothing to translate.")
    return key, conversation


def _write(conversation: Conversation, source: str, to: str, place: Place | None) -> Translated:
    target = _provider(to, place, conversation)
    key = target.new_key()
    with scratch() as folder:
        losses = write_for(target, conversation, source, key, folder)
        target.install_session(key, folder)
    return Translated(provider=to, key=key, cwd=str(target.place.cwd), losses=losses)


def _provider(name: str, place: Place | None, conversation: Conversation) -> Provider:
    """Return the provider of this name for `place`. If no place is given, use this user's environment, and as the
    working folder the conversation's own if it exists here, otherwise the current one."""
    cwd = conversation.cwd
    return find_provider(name)(place or default_place(cwd if cwd and os.path.isdir(cwd) else None))


def _of_thread(state: Checkpoint) -> Conversation:
    """Return a thread's conversation as its model sees it now, from the thread's state. A tool call without a result
    gets one that says whether the call may have run. Raises `InvalidInput` if the thread has no messages."""
    messages: tuple[Message, ...] = state.messages
    if state.calls:
        messages = (*messages, Tool(tuple(_standing(call) for call in state.calls)))
    if not messages:
        raise InvalidInput("this thread has no messages yet, so there is nothing to translate.")
    losses: tuple[Loss, ...] = ()
    if state.system_prompt:
        why = "a provider's session cannot hold it; pass it with each prompt: Agent(provider=…, system_prompt=…)"
        losses = (Loss(0, None, "the system prompt", why),)
    return Conversation(messages=messages, title=state.title, model=state.model, losses=losses)


def _standing(call: Call) -> ToolResult:
    if call.result is not None:
        return call.result
    words = NO_RESULT if call.status == "in_doubt" else _NOT_RUN
    return ToolResult(call.call.id, (Text(words),), is_error=True)


async def _to_thread_of(store: Checkpointer, thread_id: str, conversation: Conversation, source: str) -> Translated:
    if await store.head(thread_id) is not None:
        raise InvalidInput(f"there is a thread {thread_id!r} in this store already. Give another: thread_id=…")
    fitted = fit(conversation, source, BUILT_IN_AGENT)
    entries = [MessageAdded(message) for message in fitted.conversation.messages]
    async with Thread.open(store, thread_id) as thread:
        await thread.append(Described(title=conversation.title or None), *entries, StatusChanged("done"))
    losses = (*conversation.losses, *fitted.losses)
    return Translated(provider=BUILT_IN_AGENT, key=thread_id, cwd=conversation.cwd, losses=losses)
