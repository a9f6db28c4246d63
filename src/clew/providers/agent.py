"""The class `ProviderAgent`, which `Agent(provider=…)` returns: an agent whose work is done by an outside coding agent
program."""

from __future__ import annotations

import asyncio
import copy
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple

import msgspec

from clew.agent import Agent
from clew.agent.arguments import check_arguments, check_folder, check_timeout
from clew.agent.handles import Handle, read_handle
from clew.agent.journal import Journal
from clew.agent.prompts import check_resumed
from clew.agent.run import Emit, Run, RunResult, stop_all
from clew.agent.session import Session
from clew.agent.settings import Budget, Folder
from clew.agent.signals import stops_for
from clew.agent.stores import LastRun, Ran, Store
from clew.agent.trajectory import Trajectory, read_trajectory
from clew.checkpointers import Checkpointer
from clew.errors import (
    InvalidInput,
    NotLoggedIn,
    ProviderError,
    ProviderMissing,
    SessionNotFound,
    ThreadNotFound,
    UsageError,
)
from clew.providers.base import Permissions, Place, Program, Provider
from clew.providers.native_sync import adopt_into, take_in
from clew.providers.placement import staging_folder
from clew.providers.prompt import PromptSender
from clew.providers.registry import BUILT_IN_AGENT, find_provider, provider_name
from clew.providers.session import ProviderSession, refuse_turns, with_notes
from clew.providers.settings import ProviderSettings, in_folder, make_settings
from clew.providers.status import outdated
from clew.threads import Thread
from clew.threads.leases import Takeover
from clew.threads.redact import Redact

__all__ = ["ProviderAgent", "Ready"]


class Ready(NamedTuple):
    """A provider that can be used, and its installed program."""

    provider: Provider
    program: Program


class ProviderAgent(Agent):
    """An agent whose work is done by an outside coding agent program and recorded by Clew:
    `Agent(provider="claude_code")`.

    If `provider` is a list of names, or `"auto"` for all known providers, the next one takes over when one cannot work.

        session = Agent(provider="claude_code", checkpointer="sqlite:///clew.db").start_session()
        result = await session.send("My deploy target is staging-eu. Remember that.")
        handle = session.resume_handle

    In any other process, on any machine that reaches the store:

        session = Agent(provider="claude_code", checkpointer=…).resume_session(handle)
    """

    def __init__(
        self,
        model: str | Mapping[str, str] = "",
        *,
        provider: str | Sequence[str],
        name: str = "",
        system_prompt: str = "",
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        permissions: Permissions = "edit",
        workspace: Folder | Callable[[str], Folder] | None = None,
        restore_files: bool = False,
        checkpointer: Checkpointer | str | EllipsisType | None = ...,
        data_dir: str | os.PathLike[str] | None = None,
        budget: Budget | None = None,
        timeout: float | None = None,
        options: Sequence[str] = (),
        redact: Redact | None = None,
        takeover: Takeover = False,
        label: str = "",
        handle_signals: bool | Callable[[str], str] = False,
        **others: Any,
    ) -> None:
        """`model` is the provider's own name of a model, or a dict of such names by provider. `name` is the agent's
        name, by which `resume` finds its threads. `system_prompt` is added to the program's own. With
        `permissions="read"` the program changes nothing, with `"edit"` it may change files in its working folder, with
        `"full"` it may use all its tools. `workspace` is a folder to work in that is snapshotted after each prompt, and
        brought along to other machines; or a function that returns the folder for a thread's id. With `restore_files`
        the workspace's recorded files are put back before each prompt even if the folder is not empty. `cwd` is a folder
        to work in without snapshots.

        `checkpointer` is a store or its URL, by default the default store; None keeps nothing beyond this process.
        `data_dir` is a folder to keep everything in, in place of a `checkpointer`. `budget` limits what a thread spends
        in all, and `timeout` the seconds of each prompt. `env` is the whole environment of the program, by default that
        of this process, and `options` are further command line arguments for it. `redact` removes secrets from what is
        recorded. With `takeover` a thread is taken even from a live process that holds its lease; a function that gets
        the lease can decide instead. `label` names this process for others, in errors and listings. With
        `handle_signals`, SIGTERM and Ctrl+C end the prompt, and then this process, which prints how to resume the
        thread; a function given as `handle_signals` takes the thread's id and returns the text to print. Any argument
        in `others` raises `InvalidInput`.

        With several providers the first that is installed and logged in is used. If a provider is missing, not logged
        in, or at its limit, in the first prompt or later, the next one takes over with the whole conversation.
        """
        if others:
            raise InvalidInput(f"{', '.join(sorted(others))}: only the built-in agent takes these. Leave them out.")
        check_folder("data_dir", data_dir)
        check_arguments(redact=redact, handle_signals=handle_signals, takeover=takeover, label=label)
        self._provided = make_settings(
            provider,
            model,
            name=name,
            system_prompt=system_prompt,
            cwd=cwd,
            env=env,
            permissions=permissions,
            workspace=None if callable(workspace) else workspace,
            restore_files=restore_files,
            options=options,
            budget=budget,
            timeout=timeout,
        )
        self._store = Store.given(checkpointer, data_dir)
        self._redact = redact
        self._takeover = takeover
        self._label = label
        self._folders = workspace if callable(workspace) else None
        self._handle_signals = handle_signals
        self._tasks: set[asyncio.Task[Any]] = set()
        self._worked_on = LastRun[ProviderSettings]()
        self._trusted: dict[str, Store] = {}
        """Stores that this agent opened because a handle names them and `resume_session` was told to trust that handle,
        by their URLs."""

    @property
    def name(self) -> str:
        return self._provided.name

    @property
    def settings(self) -> ProviderSettings:
        return self._provided

    def start_session(self, *, thread_id: str | None = None) -> ProviderSession:
        """Return a session on a new thread, or on the thread with this id, even if another agent worked on that thread
        before.

        Nothing is written or started yet. The session's handle, a string with which any process can continue the
        session, can be taken before the first prompt, but works only once that prompt is on record.
        """
        name, found = self._first(), thread_id or self.new_id()
        agent = self._in_own_folder(found)
        return ProviderSession(agent, found, provider=name, key=agent.provider(name).new_key(), origin=None)

    def resume_session(self, handle: str, *, key: str | bytes | None = None, trust: bool = False) -> ProviderSession:
        """Return the session that a handle names, in any process. A handle is the string in `session.resume_handle`. If
        this agent has the store in which the thread is, the thread's id can be given instead.

        If the store has the thread, the session has the whole history, and the provider's own copy of the conversation
        is brought to this machine with the next prompt. If the store does not have it, the provider's own copy is
        continued, if it is on this machine. If another provider or the built-in agent did the last work, the
        conversation goes on at this agent's provider.

        With a `key`, only a handle that was signed with that key is accepted. A handle may also name a store and a
        working folder. They are used only with `trust=True`: the store if this agent was given none, and the folder if
        this agent has no workspace.
        """
        found = read_handle(handle, key=key)
        agent = (self._trusting(found) if trust else self)._in_own_folder(found.session_id)
        name = provider_name(found.provider)
        mine = name if name in agent._provided.providers else agent._first()
        resume_key = found.resume_key if name == mine else ""
        return ProviderSession(agent, found.session_id, provider=mine, key=resume_key, origin=found)

    def session(
        self,
        *,
        thread_id: str | None = None,
        resume: bool = False,
        workspace: str | os.PathLike[str] | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        delete_when_done: bool = True,
        keep_when_stopped: bool = True,
    ) -> Session:
        """Always raises `UsageError`. Only the built-in agent offers `session`, whose n-th prompt gets the recorded answer
        of the n-th prompt when a script is run again. Use `start_session` instead."""
        raise UsageError(
            "agent.session(…) numbers the prompts of a script, which only the built-in agent does. With a provider use "
            "agent.start_session(thread_id=…), agent.resume_session(handle), and prompt_id= to ask a prompt once."
        )

    def task_id(self, task: str, *, workspace: str | os.PathLike[str] | None = None) -> str:
        """Always raises `UsageError`. Only the built-in agent can make a thread's id from a task, which is the thread's
        first prompt. Give `start_session` a `thread_id` of your own instead."""
        raise UsageError(
            "agent.task_id(…) names the thread of agent.session(resume=True), which only the built-in agent has. With a "
            "provider name the thread yourself: agent.start_session(thread_id=…)."
        )

    def _check_as_tool(self) -> None:
        raise InvalidInput(
            f"an agent of a provider ({', '.join(self._provided.providers)}) cannot be a tool of another agent. Call it "
            "from a tool of your own: await agent.run(…)."
        )

    def run(
        self,
        prompt: str,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        max_turns: int | None = None,
        turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask a prompt on the thread with this id, or on a new thread if none is given. Await the returned run for its
        result, or iterate over it for its events. If the thread has an answer for the `prompt_id`, that answer is
        returned and nothing is asked. After `timeout` seconds (default: the agent's) the work is interrupted. A
        `max_turns` or `turns` raises `UsageError`, because a provider's program does not count turns."""
        refuse_turns(max_turns=max_turns, turns=turns)
        return self.start_session(thread_id=thread_id).send(prompt, prompt_id=prompt_id, timeout=timeout)

    def resume(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Continue a thread: ask the `prompt`, or, without one, tell the provider to go on. If the thread has an answer
        for the `prompt_id`, which needs a `prompt`, that answer is returned and nothing is asked. After `timeout`
        seconds (default: the agent's) the work is interrupted. `answer`, `max_turns` and `turns` raise `UsageError`.

        Without a `thread_id` the thread on which this agent object worked last is continued, in the folder and store
        that it had then. An agent object that has run nothing continues the newest thread on which an agent of the same
        name worked; the first event, `RunStarted`, says which thread that is. If several threads of that name are
        unfinished, a `UsageError` lists them and nothing is run.
        """
        refuse_turns(answer=answer, max_turns=max_turns, turns=turns)
        check_resumed(prompt, prompt_id)
        check_timeout(timeout)

        async def work(emit: Emit) -> RunResult:
            agent, found = (self, thread_id) if thread_id is not None else await self._last_thread()
            session = agent.resume_session(found)
            return await session.ask(prompt, timeout, emit, prompt_id)

        return Run(work)

    async def _last_thread(self) -> tuple[ProviderAgent, str]:
        """Find the thread that `resume` continues if no id is given. Returns a copy of this agent that uses the folder
        and store of that thread, and the thread's id."""
        found, agent = await self._worked_on.or_newest(self.name, self._store, self._provided), copy.copy(self)
        agent._store, agent._provided = found.store, found.settings
        return agent, found.thread_id

    def new_id(self) -> str:
        """Make a random id for a new thread. It begins with the agent's name, or else with that of its first provider."""
        return f"{self.name or self._provided.providers[0]}-{secrets.token_hex(6)}"

    async def aclose(self) -> None:
        """Stop all runs of this agent, and close the stores that it opened. Does nothing in a child process that was
        forked after the agent was used."""
        if self._store.is_inherited:
            return
        await stop_all(self._tasks)
        for store in (self._store, *self._trusted.values()):
            await store.close()

    # The methods below are for sessions.

    @asynccontextmanager
    async def thread(self, thread_id: str, timeout: float | None = None) -> AsyncIterator[Thread]:
        """Open a thread, and hold its lease until the context ends. If another process holds the lease, raise
        `ThreadBusy`, or take the lease from it if the agent was made with `takeover`. If opening takes longer than
        `timeout` seconds, raise `ThreadBusy` or `Unavailable`."""
        holding = self._store.thread(
            thread_id,
            takeover=self._takeover,
            durability="async",
            redact=self._redact,
            label=self._label,
            timeout=timeout,
        )
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._tasks.add(task)
        try:
            async with holding as thread:
                yield thread
        finally:
            self._tasks.discard(task)

    def began(self, thread_id: str) -> None:
        """Remember this thread as the one that `resume` continues if no id is given."""
        self._worked_on.ran = Ran(thread_id, self._store, self._provided)

    def stops(self, thread_id: str) -> AbstractContextManager[None]:
        """Return a context manager inside of which one prompt is asked on the thread with this id. If the agent was
        made with `handle_signals`, the first SIGTERM or Ctrl+C stops the prompt. Once the stop is on record, the
        process prints how to resume the thread and exits. Without `handle_signals`, the context manager does nothing.
        """
        return stops_for(thread_id, self._handle_signals, is_named=False)

    def order(self, first: str) -> list[str]:
        """Return the agent's providers in the order in which they are tried: first the one that has the conversation."""
        return list(dict.fromkeys([first, *self._provided.providers]))

    def ready(self, name: str) -> Ready:
        """Return the provider of this name together with its program, after checking that it can be used.

        Raises `ProviderMissing` if the program is not installed, cannot be run or is too old. If the agent has several
        providers, also raises `NotLoggedIn` if this machine's files show that the login is missing, so that the caller
        can try the next provider. If the agent has only one provider, its program reports a missing login itself.
        """
        provider = self.provider(name)
        program = provider.program()
        if program is None:
            raise ProviderMissing(name, provider.install)
        if program.problem:
            raise ProviderMissing(name, provider.install, program.problem)
        if (too_old := outdated(provider, program)) is not None:
            raise too_old
        if len(self._provided.providers) > 1:
            health = provider.check(program)
            if health.logged_in is False:
                raise NotLoggedIn(name, health.problem, advice="")
        return Ready(provider, program)

    def provider(self, name: str) -> Provider:
        return find_provider(name)(self._provided.place)

    def first_ready(self, names: Sequence[str]) -> Ready:
        """Return the first of the named providers that can be used, with its program. If none can, raise the last one's
        error, with a note for each earlier error."""
        failures: list[ProviderError] = []
        for name in names:
            try:
                return self.ready(name)
            except ProviderError as error:
                failures.append(error)
        raise with_notes(failures)

    def sender(self, ready: Ready, journal: Journal, emit: Emit) -> PromptSender:
        """Return the object that sends one prompt to the provider in `ready`, and records the prompt and its answer in
        the thread that `journal` writes to. Events are passed to `emit`."""
        return PromptSender(
            self._provided, ready.provider, ready.program, self.checkpointer, journal, emit, self._redact
        )

    @property
    def redact(self) -> Redact | None:
        return self._redact

    def enter(self) -> None:
        """Raise `UsageError` if this agent may not begin work: it was closed by `aclose`, or was used before on another
        event loop, or in the parent process before a fork. Otherwise do nothing."""
        self._store.enter()

    async def check_origin(self, thread_id: str, origin: Handle | None) -> None:
        """Check that a session has something to continue. `origin` is the handle (a string that names a session, here
        parsed) from which the session was made; if it is None, does nothing. Nothing is written to the thread.

        The store must have a thread of this id, or the provider that the handle names must have the conversation on
        this machine. If neither is so, raises `SessionNotFound`, or `ThreadNotFound` if the handle names no outside
        provider.
        """
        if origin is None:
            return
        try:
            await self.check_thread(thread_id)
        except ThreadNotFound:
            if origin.provider in ("", BUILT_IN_AGENT):
                raise
        else:
            return
        source = self.provider(origin.provider)
        here = await asyncio.to_thread(source.export, origin.resume_key, staging_folder(source, origin.resume_key))
        if not here:
            error = SessionNotFound(source.name, origin.resume_key)
            error.add_note(
                f"nor is there a thread {thread_id!r} in the store. Give the store that has it: checkpointer=…"
            )
            raise error

    async def adopt_origin(self, journal: Journal, name: str, origin: Handle | None) -> None:
        """If the session was resumed from a handle of another provider than `name`, the one to go on with, and the
        thread of `journal` is still empty, copy that provider's conversation from this machine into the thread.
        Otherwise do nothing. `origin` is the parsed handle (it names a session), or None."""
        state = journal.thread.checkpoint
        if origin is None or state.history or state.providers or provider_name(origin.provider) in ("", name):
            return
        source = self.provider(origin.provider)
        await adopt_into(journal, self.checkpointer, source, origin.resume_key)

    async def take_in(self, journal: Journal) -> None:
        """Add to the thread of `journal` what the user did in the provider's program since the last prompt of Clew."""
        await take_in(journal, self.checkpointer, self._provided.place, natively=self._redact is None)

    async def trajectory_and_key(self, thread_id: str, provider: str, key: str) -> tuple[Trajectory, str]:
        """Read from the store what was done on a thread, prompt by prompt and with its sub-agents. Returns this as a
        `Trajectory`, together with the provider's key: the id by which this provider knows the conversation. If no key
        is on record, the given `key` is returned. The trajectory is empty if the store does not have the thread."""
        try:
            found, state = await read_trajectory(self.checkpointer, thread_id)
        except ThreadNotFound:
            return Trajectory(thread_id=thread_id), key
        return found, state.provider_keys.get(provider, key)

    def moved_to(self, provider: str, settings: dict[str, Any]) -> ProviderAgent:
        """Make an agent for another provider. `settings` are arguments of `Agent`. Those that are not given, and the
        store, are taken from this agent."""
        mine = self._provided
        kept = {
            "name": mine.name,
            "system_prompt": mine.system_prompt,
            "env": mine.place.env,
            "permissions": mine.permissions,
            "budget": mine.budget,
            "timeout": mine.timeout,
            "restore_files": mine.restore_files,
            "redact": self._redact,
            "takeover": self._takeover,
            "label": self._label,
            "handle_signals": self._handle_signals,
            "model": mine.model_of(provider_name(provider)),
            **({"cwd": mine.place.cwd} if mine.workspace is None else {"workspace": mine.workspace}),
        }
        agent = ProviderAgent(provider=provider, **{**kept, **settings})
        if "checkpointer" not in settings and "data_dir" not in settings:
            agent._store = self._store
        return agent

    async def moved_home(self, thread_id: str, settings: dict[str, Any]) -> Session:
        """Return a session of the built-in agent that goes on with this thread, in this agent's store. `settings` are
        arguments of `Agent`; without a `model` among them, raises `InvalidInput`."""
        if not settings.get("model"):
            raise InvalidInput("the built-in agent needs a model: move_to('clew', model='anthropic:…')")
        await self.check_thread(thread_id)
        made = {"checkpointer": self.checkpointer, "system_prompt": self._provided.system_prompt, "name": self.name}
        if self._provided.workspace is not None:
            made["workspace"] = self._provided.workspace
        return Agent(**{**made, **settings}).start_session(thread_id=thread_id)

    def _first(self) -> str:
        """Return the name of the first of this agent's providers whose program and login are on this machine, or the
        first name if there is none."""
        names = self._provided.providers
        if len(names) == 1:
            return names[0]
        try:
            return self.first_ready(names).provider.name
        except ProviderError:
            return names[0]

    def _restore_always(self) -> None:
        self._provided = msgspec.structs.replace(self._provided, restore_files=True)

    def journal(self, thread: Thread) -> Journal:
        """Return the journal that writes what this agent does to an open thread."""
        return Journal(thread, self._ends)

    def _in_own_folder(self, thread_id: str) -> ProviderAgent:
        """Return the agent that works on this thread: this one or, if `workspace` is a function, a copy that works in
        the folder which it returns."""
        if self._folders is None or self._provided.workspace is not None:
            return self
        agent = copy.copy(self)
        agent._provided = in_folder(self._provided, self._folders(thread_id))
        return agent

    def _trusting(self, handle: Handle) -> ProviderAgent:
        """Return a copy of this agent that uses the store and the working folder that a session's handle names.
        `handle` is the parsed handle; call this only for one that the user trusts. The store of the handle is used if
        this agent was given none, and its folder if it exists and this agent has no workspace."""
        agent = copy.copy(self)
        if handle.store and self._store.is_default:
            agent._store = self._trusted.setdefault(handle.store, Store(handle.store))
        if handle.cwd and os.path.isdir(handle.cwd) and self._provided.workspace is None:
            place = Place(Path(handle.cwd), self._provided.place.env)
            agent._provided = msgspec.structs.replace(self._provided, place=place)
        return agent
