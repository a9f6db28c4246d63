"""Sessions: one thread over several prompts. `Session` is the interface, `OwnSession` is the one of the built-in agent."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from blake3 import blake3

from clew._runtime.aio import settle
from clew.agent.arguments import check_timeout
from clew.agent.handles import expiry, write_handle
from clew.agent.prompts import check_prompt, check_resumed
from clew.agent.run import Drain, Emit, Run, RunResult, stop_all
from clew.agent.trajectory import Trajectory
from clew.errors import ClewError, InvalidInput, LeaseLost, ThreadBusy, Unavailable, UsageError
from clew.messages.dialects import Loss

if TYPE_CHECKING:
    from clew.agent.agent import Agent

__all__ = ["OwnSession", "Session", "task_id"]

log = logging.getLogger("clew.agent")

_NOT_OURS = (InvalidInput, LeaseLost, ThreadBusy, Unavailable, UsageError)
"""Errors that say nothing about the agent's work: the call was wrong, the store is unreachable, or another process has
the thread."""


class Session(ABC):
    """Asks an agent several prompts on one thread. Made by `agent.session`, `start_session` and `resume_session`.

    Everything is recorded as it happens, so a session needs no saving. Any process can go on with it from its handle,
    the string in `resume_handle`.
    """

    @property
    @abstractmethod
    def thread_id(self) -> str:
        """The id of the thread that holds this session."""

    @property
    def session_id(self) -> str:
        """The id of the thread that holds this session. The same as `thread_id`."""
        return self.thread_id

    @property
    def provider(self) -> str:
        """Who works on the session now: `clew` (the built-in agent) or the name of an outside agent."""
        return "clew"

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What was lost when the session was moved to its present provider: the parts of the conversation that this
        provider could not be given in full."""
        return ()

    @property
    def resume_handle(self) -> str:
        """A string from which any process can go on: `agent.resume_session(handle)`.

        It can be taken before the first prompt. Until that prompt is on record, going on from the handle raises
        `ThreadNotFound`. Everybody who has the handle can go on with the conversation, so keep it as you would a
        password.
        """
        return self.handle()

    def handle(
        self, *, key: str | bytes | None = None, expires_in: timedelta | None = None, hints: bool = False
    ) -> str:
        """Return a handle, a string from which any process can go on with this session, with options: signed with
        `key`, refused once `expires_in` has passed, or with `hints`.

        Hints help the process that resumes the session. They are the folder, and the URL of the store without its
        credentials.
        """
        cwd, store = self._whereabouts() if hints else ("", "")
        expires = expiry(expires_in)
        return write_handle(
            self.provider, self.thread_id, self._resume_key(), cwd=cwd, store=store, expires=expires, key=key
        )

    @abstractmethod
    def _resume_key(self) -> str:
        """Return the id by which the provider knows the conversation. It becomes part of the handle, the string with
        which any process can continue this session."""

    @abstractmethod
    def _whereabouts(self) -> tuple[str, str]:
        """Return the folder in which the agent works, and the URL of the store. A handle, the string with which any
        process can continue this session, can hold both, to help that process to find them."""

    @abstractmethod
    def send(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> Run[RunResult]:
        """Ask a prompt, and work until the agent has answered, or for at most `timeout` seconds.

        With a `prompt_id` the prompt is asked once: if the same id is given again, the session goes on with that prompt
        or returns its answer. A prompt with another id is a new one, even if its words are the same.
        """

    def run(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> Run[RunResult]:
        """Ask a prompt, and work until the agent has answered, or for at most `timeout` seconds. With a `prompt_id` the
        prompt is asked only once: if the id is given again, the session goes on with that prompt or returns its answer.
        `run` and `send` are two names for the same method."""
        return self.send(prompt, prompt_id=prompt_id, timeout=timeout)

    @abstractmethod
    def resume(
        self,
        prompt: str | None = None,
        *,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Go on with work that was stopped, and then ask the `prompt`, if given. `answer` answers the question that the
        work waits for; for several questions, give a dict by question id. A prompt whose `prompt_id` is on record
        already is not asked again: the session goes on with it or returns its answer.

        `max_turns` replaces the agent's own limit for this run. After `timeout` seconds the run is interrupted. A
        provider's session refuses `answer` and `max_turns`.
        """

    def stream(
        self,
        prompt: str | None = None,
        *,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask a prompt, and return a run whose events can be iterated: `async for event in session.stream("…")`. The
        `result` of the run is available after the last event.

        Without a prompt the run goes on with work that was stopped, as `resume` does, and takes the same arguments as
        that method. Raises `UsageError` if `answer` or `max_turns` is given together with a prompt.
        """
        if prompt is None:
            return self.resume(prompt_id=prompt_id, answer=answer, max_turns=max_turns, timeout=timeout)
        if answer is not None or max_turns is not None:
            raise UsageError(
                "answer= and max_turns= are for a stream that goes on without a prompt: leave the prompt out."
            )
        return self.send(prompt, prompt_id=prompt_id, timeout=timeout)

    @abstractmethod
    async def cancel(self) -> None:
        """Stop the work that is under way, as Ctrl+C does, and return once it is on record that the work was
        interrupted. The session can go on afterwards."""

    async def end(self) -> None:
        """The same as `cancel`: stop the work that is under way. The session stays on record, and can be resumed from
        its handle."""
        await self.cancel()

    @abstractmethod
    async def trajectory(self) -> Trajectory:
        """Read from the store what was done so far, prompt by prompt: `(await session.trajectory()).exchanges`."""

    @abstractmethod
    async def move_to(self, provider: str, **settings: Any) -> Session:
        """Go on with the whole conversation at another provider. Stops the work that is under way, and returns the
        session to use from now on.

        `settings` are the arguments of `Agent(provider=…)` that are to change. `move_to("clew", model=…)` goes on with
        the built-in agent.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()


class OwnSession(Session):
    """A session of the built-in agent: several prompts on one thread."""

    def __init__(
        self,
        agent: Agent,
        thread_id: str | None,
        *,
        folder: Path,
        resume: bool = False,
        clear_done: bool = True,
        keep_stopped: bool = True,
        must_exist: bool = False,
    ) -> None:
        """Make a session on the thread with this id. Without an id, `resume` decides: if False, the thread is new and
        gets a random id; if True, its id is made from the agent's name, the first prompt and `folder`, the folder that
        the session works in.

        With `resume`, a prompt is also recognized by its position in the session when the program is run again.

        Only a thread whose id was made from the first prompt can be deleted when the session is left. It is deleted if
        its last run is done, unless `clear_done` is False. If its last run was interrupted or failed, it is deleted
        only if `keep_stopped` is False.

        With `must_exist`, a prompt to a thread that the store does not have raises `ThreadNotFound` instead of creating
        the thread.
        """
        self._agent = agent
        self._thread_id = thread_id
        self._is_script = resume
        self._is_task = thread_id is None and resume
        self._named = thread_id is not None or resume
        self._folder = folder
        self._clear_done = clear_done
        self._keep_stopped = keep_stopped
        self._must_exist = must_exist
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked = 0
        self._raised: tuple[str, int] | None = None
        """The words of the last prompt, and its position in the session from 0, if that prompt raised an error; None
        once another prompt is asked."""
        self._ended_with = ""
        """The status with which the last run ended: that of its result, `failed` or `stopped`. Empty before the first
        run, and after an error that says nothing about the agent's work, such as an unreachable store."""
        self._reason = ""
        """Why the last run was interrupted."""

    @property
    def thread_id(self) -> str:
        if self._thread_id is None:
            raise UsageError(
                "the id of this session's thread is made from its first prompt, which is not asked yet. Call run first, use "
                "agent.task_id(prompt), or give a thread_id."
            )
        return self._thread_id

    def _resume_key(self) -> str:
        return self.thread_id

    def _whereabouts(self) -> tuple[str, str]:
        return str(self._folder), self._agent.store_url

    def send(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> Run[RunResult]:
        """Ask a prompt, and work until the agent has answered, or for at most `timeout` seconds. With a `prompt_id` the
        prompt is asked only once: if the same id is given again, the session goes on with that prompt or returns its
        answer.

        In a session with `resume=True` and without a `thread_id`, the thread's id is made from the agent's name, the
        first prompt and the folder. So a program that is run again, with all three the same, goes on with the same
        thread.

        In a session with `resume=True`, a prompt without an id is recognized by its position. When the user's program
        runs again, its n-th prompt is answered from the record if it was answered before, and is continued if it was
        not. If a prompt raised an error and the next one has the same words, that one is the same prompt tried again
        and keeps its position.
        """
        check_prompt(prompt, prompt_id)
        check_timeout(timeout)
        if self._thread_id is None:
            self._thread_id = task_id(self._agent.name, prompt, self._folder) if self._is_task else self._agent.new_id()
        nth = self._number(prompt) if self._is_script else None
        return self._run(self._thread_id, prompt, nth=nth, prompt_id=prompt_id, timeout=timeout, named=self._named)

    def _number(self, prompt: str) -> int:
        raised, self._raised = self._raised, None
        if raised is not None and raised[0] == prompt:
            return raised[1]
        self._asked += 1
        return self._asked - 1

    def resume(
        self,
        prompt: str | None = None,
        *,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Go on with this session's thread: deliver the `answer` to the question that the thread waits for, finish
        stopped work, and then ask the `prompt`, if given. For several questions, `answer` is a dict by question id.
        Raises `ThreadNotFound` if there is no such thread yet."""
        check_resumed(prompt, prompt_id)
        check_timeout(timeout)
        how = {
            "answer": answer,
            "max_turns": max_turns,
            "timeout": timeout,
            "named": self._named,
            "prompt_id": prompt_id,
        }
        return self._run(self.thread_id, prompt, must_exist=True, **how)

    def _run(
        self, thread_id: str, prompt: str | None, *, nth: int | None = None, must_exist: bool = False, **how: Any
    ) -> Run[RunResult]:
        drain = Drain()

        async def work(emit: Emit) -> RunResult:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - for the type checker
            self._tasks.add(task)
            try:
                if must_exist or self._must_exist:
                    await self._agent.check_thread(thread_id)
                result = await self._agent._run_on(thread_id, prompt, emit, nth=nth, drain=drain, **how)
            except BaseException as error:
                self._note_error(error)
                if prompt is not None and nth is not None:
                    self._raised = prompt, nth
                raise
            finally:
                self._tasks.discard(task)
            self._ended_with, self._reason = result.status, result.reason
            return result

        return Run(work, drain)

    def _note_error(self, error: BaseException) -> None:
        if not isinstance(error, (ClewError, TimeoutError)):
            self._ended_with = "stopped"
        else:
            self._ended_with = "" if isinstance(error, _NOT_OURS) else "failed"

    async def cancel(self) -> None:
        await stop_all(self._tasks)

    async def trajectory(self) -> Trajectory:
        return await self._agent.trajectory(self.thread_id)

    async def move_to(self, provider: str, **settings: Any) -> Session:
        await self.cancel()
        return await self._agent._moved(self.thread_id, provider, settings)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the session. Everything is on record already. Only a thread whose id was made from its first prompt may
        be deleted now; other threads stay. It is deleted if the last run ended as `done` and the block raised no error,
        unless the session was opened with `delete_when_done=False`. With `keep_when_stopped=False` it is also deleted
        if the last run failed or was stopped."""
        if not self._is_task or self._thread_id is None:
            return
        if self._ended_with == "done":
            clear = self._clear_done and error is None
        else:
            clear = not self._keep_stopped and self._ended_with in ("failed", "interrupted", "stopped")
        if clear:
            await self._clear(self._thread_id)
        elif self._ended_with not in ("", "done"):
            log.info("thread %r: all of it is kept; %s", self._thread_id, _how_to_go_on(self._reason))

    async def _clear(self, thread_id: str) -> None:
        """Delete the thread. If the store is unreachable, only log a warning, so that the caller still gets the result
        of its work."""
        try:
            await settle(self._agent._store.forget(thread_id))
        except Unavailable as error:
            log.warning(
                "thread %r: its last run ended as %s, but the thread could not be deleted: %s",
                thread_id,
                self._ended_with,
                error,
            )
        else:
            log.info("thread %r: its task is %s, and what was kept for it is cleared", thread_id, self._ended_with)


def _how_to_go_on(reason: str) -> str:
    """Return a sentence that says how to go on with a thread that was stopped. If `reason` says that a limit stopped
    it, the sentence asks for a larger limit: with the same limit the thread would stop again at once."""
    limit = next((name for name in ("max_turns", "budget") if reason.startswith(f"{name}: ")), "")
    larger = f", with a larger {limit} ({reason})," if limit else ""
    return f"run the same task again{larger} to go on"


def task_id(agent: str, task: str, folder: Path) -> str:
    """Return the id of the thread that a session with `resume=True` uses if it is given no thread id. `task` is the
    first prompt of that session.

    The id is `task:`, the agent's name, and a hash of the agent's name, the task and the absolute path of the folder.
    So the same three always give the same id.
    """
    words = "\0".join((agent, task, os.path.abspath(folder)))
    digest = blake3(words.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return f"task:{agent or 'agent'}:{digest}"
