"""Sessions: one thread over several prompts, named by the user, by its task, or by a handle from another process."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from blake3 import blake3

from clew.agent.runs import Emit, Run, RunResult
from clew.errors import InvalidInput, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from clew.agent.agent import Agent

__all__ = ["Session", "read_handle", "task_id"]

log = logging.getLogger("clew.agent")


class _Handle(msgspec.Struct, frozen=True):
    """What a handle says. The form is public: other programs store it, and may make one."""

    version: int
    provider: str
    session_id: str
    resume_key: str


class Session:
    """A thread of an agent, over several prompts. Made by `agent.session`, `start_session` and `resume_session`."""

    def __init__(
        self,
        agent: Agent,
        thread_id: str | None,
        *,
        folder: Path,
        resume: bool = False,
        clear: bool = False,
        keep: bool = True,
    ) -> None:
        self._agent = agent
        self._thread_id = thread_id
        self._named = thread_id is not None
        self._folder = folder
        self._resume = resume
        self._clear = clear
        self._keep = keep

    @property
    def thread_id(self) -> str:
        if self._thread_id is None:
            raise UsageError("this session's thread is named by its task: call run first, or give a thread_id")
        return self._thread_id

    @property
    def resume_handle(self) -> str:
        """A string from which any process that reaches the store can go on: `agent.resume_session(handle)`."""
        handle = _Handle(1, "clew", self.thread_id, self.thread_id)
        return msgspec.json.encode(handle).decode()

    def run(self, prompt: str) -> Run[RunResult]:
        """Ask, and go on until the agent has the last word. The first prompt is the task that names the thread, if nobody
        has named it: the same task of the same agent in the same folder goes on where it was."""
        named_by_task = self._thread_id is None
        if self._thread_id is None:
            self._thread_id = task_id(self._agent.name, prompt, self._folder) if self._resume else self._agent.new_id()
        thread_id, named = self._thread_id, self._named or self._resume

        async def work(emit: Emit) -> RunResult:
            try:
                result = await self._agent.run_on(thread_id, prompt, emit, named=named)
            except BaseException:
                await asyncio.shield(self._settle(thread_id, named_by_task, "stopped"))
                raise
            await self._settle(thread_id, named_by_task, result.status)
            return result

        return Run(work)

    async def _settle(self, thread_id: str, named_by_task: bool, status: str) -> None:
        """What becomes of a task's thread when a run on it has ended: one that the user named always stays."""
        done = status == "done"
        if named_by_task and (self._clear if done else not self._keep and status != "waiting"):
            await self._agent.forget(thread_id)
            log.info("thread %r: its task is %s, and what was kept for it is cleared", thread_id, status)
        elif not done:
            log.info("thread %r: all of it is kept; run the same task again to go on", thread_id)

    send = run

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """All is on record as it happens, so that there is nothing to save here."""


def task_id(agent: str, task: str, folder: Path) -> str:
    """The name of the thread of a task: the same for the same agent, words and folder."""
    words = "\0".join((agent, task, os.path.abspath(folder)))
    digest = blake3(words.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return f"task:{agent or 'agent'}:{digest}"


def read_handle(handle: str) -> str:
    """The thread that a handle leads to; a bare thread id is one too."""
    if not handle.lstrip().startswith("{"):
        return handle
    try:
        found = msgspec.json.decode(handle, type=_Handle)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInput(f"this is no handle of a session: {error}") from None
    if found.version != 1 or found.provider != "clew":
        what: Any = (found.version, found.provider)
        raise InvalidInput(f"a handle of version {what[0]} for the provider {what[1]!r} is none of this agent's")
    return found.session_id
