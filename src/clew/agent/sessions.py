"""Sessions: one thread over several prompts, whoever works on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from clew.agent.handles import write_handle
from clew.agent.runs import Run, RunResult
from clew.agent.trajectories import Trajectory
from clew.messages.dialects import Loss

__all__ = ["Session"]


class Session(ABC):
    """A thread of an agent, over several prompts. Made by `agent.session`, `start_session` and `resume_session`.

    All of it is on record as it happens, so a session needs no saving: its handle leads any process back to it.
    """

    @property
    @abstractmethod
    def thread_id(self) -> str:
        """The thread that it is kept in."""

    @property
    def session_id(self) -> str:
        """The same as `thread_id`."""
        return self.thread_id

    @property
    def provider(self) -> str:
        """Who works on it now: `clew`, the built-in agent, or an outside one."""
        return "clew"

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What of the conversation did not fit the provider that it was last moved to."""
        return ()

    @property
    def resume_handle(self) -> str:
        """A string from which any process can go on: `agent.resume_session(handle)`. It can be kept before the first prompt,
        and leads back to the session once that prompt is on record; until then it is `ThreadNotFound`. Whoever has it can go
        on with the conversation, so keep it as you would a password."""
        return self.handle()

    def handle(
        self, *, key: str | bytes | None = None, expires_in: timedelta | None = None, hints: bool = False
    ) -> str:
        """A handle with more to it: signed with a `key`, refused after some time, or with the folder and the store, without
        its credentials, as `hints` for whoever resumes it."""
        cwd, store = self._whereabouts() if hints else ("", "")
        expires = None if expires_in is None else datetime.now(UTC) + expires_in
        return write_handle(
            self.provider, self.thread_id, self._resume_key(), cwd=cwd, store=store, expires=expires, key=key
        )

    @abstractmethod
    def _resume_key(self) -> str:
        """What the provider knows the conversation by."""

    @abstractmethod
    def _whereabouts(self) -> tuple[str, str]:
        """The folder that is worked in, and the store's URL."""

    @abstractmethod
    def send(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> Run[RunResult]:
        """Ask, and go on until the agent has the last word; or for `timeout` seconds. With a `prompt_id` the prompt is asked
        once: the same id again goes on with it or returns its answer, another id with the same words is a new prompt."""

    def run(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> Run[RunResult]:
        """The same as `send`."""
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
        """Go on with what was stopped, or waits: `answer` is for what it waits for. A `prompt` is asked as by `send`: with a
        `prompt_id`, once."""

    @abstractmethod
    async def cancel(self) -> None:
        """Stop what is under way, as Ctrl+C does, and return once that is on record. The session can go on."""

    async def end(self) -> None:
        """Stop what is under way. The session stays on record, and can be resumed by its handle."""
        await self.cancel()

    @property
    @abstractmethod
    def trajectory(self) -> Coroutine[Any, Any, Trajectory]:
        """What was done so far, read from the record: `(await session.trajectory).turns`."""

    @abstractmethod
    async def move_to(self, provider: str, **settings: Any) -> Session:
        """Go on at another provider, with the whole conversation; `settings` are those of `Agent(provider=…)` that are to be
        others than here. For the built-in agent, `move_to("clew", model=…)`. The session that is returned is the one to go
        on with."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()
