"""The agent that works through a provider: the class that `Agent(provider=…)` returns."""

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
from clew.agent.arguments import check_flags, check_folder, check_redact, check_signals, check_timeout
from clew.agent.exchanges import exchange_of
from clew.agent.handles import Handle, read_handle
from clew.agent.journal import Journal
from clew.agent.prompts import Asked, check_resumed
from clew.agent.run import Emit, Run, RunResult, stop_all
from clew.agent.session import Session
from clew.agent.settings import Budget
from clew.agent.signals import stops_for
from clew.agent.stores import LastRun, Ran, Store
from clew.agent.trajectory import Trajectory, answer_on_record, read_trajectory
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
from clew.log import Checkpoint
from clew.providers.base import Permissions, Place, Program, Provider
from clew.providers.native_sync import adopt_into, take_in
from clew.providers.placement import staging_folder
from clew.providers.prompt import Sending
from clew.providers.registry import BUILT_IN_AGENT, find_provider, provider_name
from clew.providers.session import GO_ON, ProviderSession, refuse_turns, with_notes
from clew.providers.settings import ProviderSettings, make_settings
from clew.providers.status import outdated
from clew.threads import Thread
from clew.threads.redact import Redact

__all__ = ["ProviderAgent", "Ready"]


class Ready(NamedTuple):
    """A provider that can be asked, and its program on this machine."""

    provider: Provider
    program: Program


class ProviderAgent(Agent):
    """An outside coding agent whose work is durable: `Agent(provider="claude_code")`.

    With a list of providers, or `"auto"` for all of them, the next one takes over when one cannot work.

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
        workspace: str | os.PathLike[str] | None = None,
        restore_files: bool = False,
        checkpointer: Checkpointer | str | EllipsisType | None = ...,
        data_dir: str | os.PathLike[str] | None = None,
        budget: Budget | None = None,
        timeout: float | None = None,
        options: Sequence[str] = (),
        redact: Redact | None = None,
        takeover: bool = False,
        handle_signals: bool | Callable[[str], str] = False,
        **others: Any,
    ) -> None:
        """`model` is the provider's own name of a model, or a dict of such names by provider. `env` is the whole
        environment of the provider's program; by default it is that of this process. `workspace` is a folder to work in
        that is snapshotted after each prompt, and brought along to other machines. `cwd` is a folder to work in without
        snapshots. `options` are further arguments for the program. `data_dir` is a folder to keep everything in, in place
        of a `checkpointer`.

        With several providers the first that is installed and logged in is used. If a provider is missing, not logged in,
        or at its limit, in the first prompt or later, the next one takes over with the whole conversation.
        """
        if others:
            raise InvalidInput(
                f"{', '.join(sorted(others))}: these are for the built-in agent, and a provider has no use for them."
            )
        check_folder("data_dir", data_dir)
        check_redact(redact)
        check_signals(handle_signals)
        check_flags(takeover=takeover)
        self._provided = make_settings(
            provider,
            model,
            name=name,
            system_prompt=system_prompt,
            cwd=cwd,
            env=env,
            permissions=permissions,
            workspace=workspace,
            restore_files=restore_files,
            options=options,
            budget=budget,
            timeout=timeout,
        )
        self._store = Store.given(checkpointer, data_dir)
        self._redact = redact
        self._takeover = takeover
        self._handle_signals = handle_signals
        self._tasks: set[asyncio.Task[Any]] = set()
        self._worked_on = LastRun[ProviderSettings]()
        self._trusted: dict[str, Store] = {}
        """Stores that were opened here because a trusted handle named them, by their URLs."""

    @property
    def name(self) -> str:
        return self._provided.name

    @property
    def settings(self) -> ProviderSettings:
        return self._provided

    @property
    def store(self) -> Checkpointer:
        return self._store.open()

    def start_session(self, *, thread_id: str | None = None) -> ProviderSession:
        """Return a session on a new thread, or on the thread with this id, no matter which agent worked on it before.

        Its handle can be taken before the first prompt, and leads back to the session once that prompt is on record.
        """
        name = self._first()
        key = self.provider(name).new_key()
        return ProviderSession(self, thread_id or self.new_id(), provider=name, key=key, origin=None)

    def resume_session(self, handle: str, *, key: str | bytes | None = None, trust: bool = False) -> ProviderSession:
        """Return the session of a handle, in any process. The thread's id is enough if this agent has the right store.

        If the store has the thread, the whole history is there, and what the provider keeps of the conversation is
        brought to this machine. Without the store the conversation of the provider's program goes on, if it is on this
        machine. A session of another provider, or of the built-in agent, goes on at this agent's provider.

        With a `key`, only a handle that was signed with it is accepted. Hints in a handle are used only with
        `trust=True`: the store if this agent was given none, and the folder if this agent has no workspace.
        """
        found = read_handle(handle, key=key)
        agent = self._trusting(found) if trust else self
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
        """Always raises `UsageError`: a script whose prompts are known by their numbers needs the built-in agent."""
        raise UsageError(
            "agent.session(…) numbers the prompts of a script, which only the built-in agent does. With a provider use "
            "agent.start_session(thread_id=…), agent.resume_session(handle), and prompt_id= to ask a prompt once."
        )

    def task_id(self, task: str, *, workspace: str | os.PathLike[str] | None = None) -> str:
        """Always raises `UsageError`: only sessions of the built-in agent name their thread by the task."""
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
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask a prompt on a thread, or on a new one without a `thread_id`: `start_session(thread_id=…).send(prompt,
        prompt_id=…)`.
        """
        refuse_turns(max_turns=max_turns)
        return self.start_session(thread_id=thread_id).send(prompt, prompt_id=prompt_id, timeout=timeout)

    def resume(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Go on with a thread. A `prompt` is asked as by `run`: with a `prompt_id`, once.

        Without a `thread_id` it is the thread on which this agent object began to work last, in the same folder and
        store. An agent object that has run nothing takes the newest thread of its name, and the first event,
        `RunStarted`, says which one that is. If several threads of that name are unfinished, a `UsageError` lists them
        and nothing is run.
        """
        refuse_turns(answer=answer, max_turns=max_turns)
        check_resumed(prompt, prompt_id)
        check_timeout(timeout)

        async def work(emit: Emit) -> RunResult:
            agent, found = (self, thread_id) if thread_id is not None else await self._last_thread()
            session = agent.resume_session(found)
            return await session.ask(GO_ON if prompt is None else prompt, timeout, emit, prompt_id)

        return Run(work)

    async def _last_thread(self) -> tuple[ProviderAgent, str]:
        """Return the thread that `resume` uses if no id is given, and a copy of this agent for the folder and store of
        that thread.
        """
        found, agent = await self._worked_on.or_newest(self.name, self._store, self._provided), copy.copy(self)
        agent._store, agent._provided = found.store, found.settings
        return agent, found.thread_id

    def new_id(self) -> str:
        """Return a new id for a thread."""
        return f"{self.name or self._provided.providers[0]}-{secrets.token_hex(6)}"

    async def aclose(self) -> None:
        """Stop all runs, and close the stores that this agent opened. In a forked child nothing is done."""
        if self._store.is_inherited:
            return
        await stop_all(self._tasks)
        for store in (self._store, *self._trusted.values()):
            await store.close()

    # The methods below are for sessions.

    @asynccontextmanager
    async def thread(self, thread_id: str) -> AsyncIterator[Thread]:
        """Open a thread under its lease. Raises `ThreadBusy` if another process has it."""
        holding = self._store.thread(thread_id, takeover=self._takeover, durability="async", redact=self._redact)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._tasks.add(task)
        try:
            async with holding as thread:
                yield thread
        finally:
            self._tasks.discard(task)

    def began(self, thread_id: str) -> None:
        """Remember that this agent has begun to work on a thread, so that `resume` finds it."""
        self._worked_on.ran = Ran(thread_id, self._store, self._provided)

    def stops(self, thread_id: str) -> AbstractContextManager[None]:
        """Return the context in which signals end a prompt, as `handle_signals` asks for."""
        return stops_for(thread_id, self._handle_signals, is_named=False)

    def order(self, first: str) -> list[str]:
        """Return the providers in the order in which they are tried: first the one that has the conversation."""
        return list(dict.fromkeys([first, *self._provided.providers]))

    def ready(self, name: str) -> Ready:
        """Return a provider that can be asked, with its program.

        Raises `ProviderMissing` if it is not installed or too old. With several providers it also raises `NotLoggedIn` if
        that is known in advance, so that the next one can take over. With only one, its program reports that itself.
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
        """Return the first of these that can be asked. If none can, raise the last error, with notes on the earlier ones."""
        failures: list[ProviderError] = []
        for name in names:
            try:
                return self.ready(name)
            except ProviderError as error:
                failures.append(error)
        raise with_notes(failures)

    def sending(self, ready: Ready, journal: Journal, emit: Emit) -> Sending:
        """Return the object that sends one prompt to this provider."""
        return Sending(self._provided, ready.provider, ready.program, self.store, journal, emit, self._redact)

    @property
    def redact(self) -> Redact | None:
        return self._redact

    def enter(self) -> None:
        """Allow work to begin, or raise `UsageError`: after close, in a forked child, or on a second event loop."""
        self._store.enter()

    async def check_origin(self, thread_id: str, origin: Handle | None) -> None:
        """Check, before anything is written, that there is something to go on from, in the store or on this machine."""
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
        """Record a session of another provider in the thread first, if the store knows nothing of it yet."""
        state = journal.thread.checkpoint
        if origin is None or state.history or state.providers or provider_name(origin.provider) in ("", name):
            return
        source = self.provider(origin.provider)
        await adopt_into(journal, self.store, source, origin.resume_key)

    async def take_in(self, journal: Journal) -> None:
        """Record what was done in the provider's own program since the last prompt."""
        await take_in(journal, self.store, self._provided.place, natively=self._redact is None)

    async def trajectory_and_key(self, thread_id: str, provider: str, key: str) -> tuple[Trajectory, str]:
        """Read the trajectory of a thread with its sub-agents, and the id by which the provider knows the thread. That id
        is `key` if the record has none. The trajectory is empty if the store does not have the thread.
        """
        try:
            found, state = await read_trajectory(self.store, thread_id)
        except ThreadNotFound:
            return Trajectory(thread_id=thread_id), key
        return found, state.provider_keys.get(provider, key)

    async def answer_to(self, thread_id: str, prompt: Asked) -> RunResult | None:
        """Return the recorded answer to a prompt, or None if the prompt has to be asked. Takes no lease."""
        try:
            await self.check_thread(thread_id)
            state = await Thread.load(self.store, thread_id)
        except ThreadNotFound:
            return None
        return self.answer_in(thread_id, state, prompt)

    def answer_in(self, thread_id: str, state: Checkpoint, prompt: Asked) -> RunResult | None:
        """Return the answer that this state holds for a prompt, at no cost, or None if there is none. Raises
        `InvalidInput` if the same id is on record with other words.
        """
        found = exchange_of(state, prompt.id)
        if found is None:
            return None
        prompt.check_words(thread_id, found.prompt)
        if found.status != "done":
            return None
        return answer_on_record(thread_id, state, found)

    def moved_to(self, provider: str, settings: dict[str, Any]) -> ProviderAgent:
        """Return a copy of this agent for another provider. Settings that are not given stay as they are."""
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
            "handle_signals": self._handle_signals,
            "model": mine.model_of(provider_name(provider)),
            **({"cwd": mine.place.cwd} if mine.workspace is None else {"workspace": mine.workspace}),
        }
        agent = ProviderAgent(provider=provider, **{**kept, **settings})
        if "checkpointer" not in settings and "data_dir" not in settings:
            agent._store = self._store
        return agent

    async def moved_home(self, thread_id: str, settings: dict[str, Any]) -> Session:
        """Return a session of the built-in agent on the same thread."""
        if not settings.get("model"):
            raise InvalidInput("the built-in agent needs a model: move_to('clew', model='anthropic:…')")
        await self.check_thread(thread_id)
        made = {"checkpointer": self.store, "system_prompt": self._provided.system_prompt, "name": self.name}
        if self._provided.workspace is not None:
            made["workspace"] = self._provided.workspace
        return Agent(**{**made, **settings}).start_session(thread_id=thread_id)

    def _first(self) -> str:
        """Return the first provider that is installed and, as far as is known, logged in; the first of all if there is
        none.
        """
        names = self._provided.providers
        if len(names) == 1:
            return names[0]
        try:
            return self.first_ready(names).provider.name
        except ProviderError:
            return names[0]

    def _trusting(self, handle: Handle) -> ProviderAgent:
        """Return a copy of this agent with the hints of the handle: its store if this agent was given none, and its
        folder if this agent has no workspace.
        """
        agent = copy.copy(self)
        if handle.store and self._store.is_default:
            agent._store = self._trusted.setdefault(handle.store, Store(handle.store))
        if handle.cwd and os.path.isdir(handle.cwd) and self._provided.workspace is None:
            place = Place(Path(handle.cwd), self._provided.place.env)
            agent._provided = msgspec.structs.replace(self._provided, place=place)
        return agent
