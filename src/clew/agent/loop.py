"""The loop: turn after turn, each on record before the next depends on it.

A fresh run is a resume of an empty log. There is one path: look at the state, do what it lacks, and look again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

import msgspec

from clew.agent.asking import ask
from clew.agent.compacting import compact, is_prompt
from clew.agent.events import Compacted, Question, SnapshotSaved, TurnFinished, TurnStarted, Waiting
from clew.agent.journal import Journal
from clew.agent.runs import Emit
from clew.agent.settings import Settings, drift_of, started
from clew.agent.settling import settle_calls
from clew.errors import ContextTooLong
from clew.log import Checkpoint, MessageAdded, ModelCallStarted, StateSet, StatusChanged
from clew.messages import Assistant, plain_text, tool_calls, user
from clew.models import ModelRequest, ModelResponse
from clew.tools import State
from clew.workspace import SnapshotRef, Workspace

__all__ = ["QUESTIONS", "Ending", "Loop", "is_finished"]

log = logging.getLogger("clew.agent")


_PAUSED = "pause_turn"
"""Why a model stops that only wants to be asked to go on."""
QUESTIONS = "clew:questions"
"""The thread's value that holds what it waits for."""


class Ending(msgspec.Struct, frozen=True):
    """How a run came to its end."""

    status: Literal["done", "waiting", "interrupted"]
    reason: str = ""
    questions: tuple[Question, ...] = ()


class Loop:
    """One run on one thread."""

    def __init__(self, settings: Settings, journal: Journal, workspace: Workspace | None, emit: Emit) -> None:
        self._settings = settings
        self._journal = journal
        self._thread = journal.thread
        self._workspace = workspace
        self._emit = emit
        values = self._thread.checkpoint.state
        self._state = State({key: value for key, value in values.items() if not key.startswith("clew:")})
        self._snapshot: asyncio.Task[SnapshotRef] | None = None
        self._since_snapshot = 0
        self.drift: dict[str, tuple[Any, Any]] = {}
        self.output: Any = None

    async def run(self, prompt: str | None, *, again: bool = False) -> Ending:
        """From wherever the thread is to the end of its work, or to what stops it. `again`: the last run on it was brought
        to its end, so that the same prompt is another question."""
        try:
            await self._begin()
            await self._bring_files()
            while True:
                state = self._thread.checkpoint
                if state.calls:
                    questions = await settle_calls(self._settings, self._journal, self._state, self._emit)
                    if questions:
                        return await self._wait(questions)
                    self._emit(TurnFinished(state.turns))
                    self._snapshot_soon()
                elif prompt is not None and (again or not _was_asked(state, prompt)):
                    await self._journal.record(MessageAdded(user(prompt)))
                    prompt = None
                elif is_finished(state) and not (correction := self._read_output(state)):
                    return await self._end(Ending("done"))
                elif reason := self._limit(state):
                    return await self._end(Ending("interrupted", reason))
                elif is_finished(state):
                    await self._journal.record(MessageAdded(user(correction)))
                else:
                    prompt = None
                    await self._respond(state)
        finally:
            if self._snapshot is not None:
                self._snapshot.cancel()

    async def _begin(self) -> None:
        """Who works here now and with what: on record if it is new or has changed."""
        state = self._thread.checkpoint
        now = started(self._settings, state)
        self.drift = drift_of(state, now)
        if self.drift or not (state.model or state.history):
            await self._journal.record(now)
        if self.drift:
            log.info("thread %r: resumed with other %s", self._thread.thread_id, ", ".join(self.drift))

    async def _bring_files(self) -> None:
        """The files on record, where there are none: on another machine, say. Those that are there are the user's, and stay
        as they are; that they differ from the record is told, and what there is goes on record."""
        state = self._thread.checkpoint
        recorded = state.workspace
        if self._workspace is None or not state.turns:
            return
        if not any(self._workspace.path.iterdir()):
            if recorded is not None:
                await self._workspace.restore(recorded)
                log.info("thread %r: its files are restored to %s", self._thread.thread_id, self._workspace.path)
            return
        now = await self._workspace.snapshot()
        if recorded is None or now.digest != recorded.digest:
            await self._journal.record(now.entry())
            if recorded is not None:
                self.drift["files"] = (recorded.digest, now.digest)

    async def _respond(self, state: Checkpoint) -> None:
        """One response of the model: on record before anything acts on it. The snapshot of the turn before overlaps the
        call, and is durable before the response is recorded."""
        self._emit(TurnStarted(state.turns + 1))
        await self._journal.record(ModelCallStarted(self._settings.model.name))
        try:
            response, cost = await self._call_model(state)
        except ContextTooLong:
            await compact(self._settings, self._journal)
            self._emit(Compacted(state.turns))
            response, cost = await self._call_model(self._thread.checkpoint)
        await self._record_snapshot(state)
        await self._journal.record(MessageAdded(response.message, response.usage, cost))
        if not tool_calls(response.message):
            self._emit(TurnFinished(state.turns + 1))

    async def _call_model(self, state: Checkpoint) -> tuple[ModelResponse, float | None]:
        request = ModelRequest(
            messages=state.messages,
            system=self._settings.system_prompt,
            tools=tuple(tool.spec for tool in self._settings.tools.values()),
            max_tokens=self._settings.max_tokens,
            output_schema=None if self._settings.output is None else self._settings.output.schema,
            options=dict(self._settings.options),
        )
        return await ask(self._settings, request, self._emit)

    def _read_output(self, state: Checkpoint) -> str:
        """Take the answer; what to tell the model, if it is not what was asked for."""
        text = plain_text(state.messages[-1]) if state.messages else ""
        if self._settings.output is None:
            self.output = text
            return ""
        self.output, correction = self._settings.output.read(text)
        return correction

    def _limit(self, state: Checkpoint) -> str | None:
        """Why no further response may be asked for; counted from the record, so that a crash does not reset it."""
        if _turns_of_task(state) >= self._settings.max_turns:
            return f"max_turns: {self._settings.max_turns}"
        return self._settings.budget.exceeded(state)

    def _snapshot_soon(self) -> None:
        self._since_snapshot += 1
        if self._workspace is not None and self._since_snapshot >= self._settings.snapshot_every:
            self._since_snapshot = 0
            self._snapshot = asyncio.create_task(self._workspace.snapshot())

    async def _record_snapshot(self, state: Checkpoint) -> None:
        """Name the snapshot under way, if there is one, once it is durable and if it is another than the last."""
        if self._snapshot is None:
            return
        with self._journal.wait():
            taken, self._snapshot = await self._snapshot, None
        if state.workspace is None or state.workspace.digest != taken.digest:
            await self._journal.record(taken.entry())
            self._emit(SnapshotSaved(state.turns, taken.digest, taken.files))

    async def _wait(self, questions: list[Question]) -> Ending:
        self._emit(Waiting(tuple(questions)))
        await self._journal.record(StateSet(QUESTIONS, msgspec.to_builtins(questions)))
        return await self._end(Ending("waiting", "; ".join(asked.text for asked in questions), tuple(questions)))

    async def _end(self, ending: Ending) -> Ending:
        """The last snapshot, and how it ended."""
        state = self._thread.checkpoint
        if self._workspace is not None and self._snapshot is None and self._since_snapshot:
            self._snapshot = asyncio.create_task(self._workspace.snapshot())
        await self._record_snapshot(state)
        await self._journal.record(StatusChanged(ending.status, ending.reason))
        return ending


def is_finished(state: Checkpoint) -> bool:
    """Whether the model has had the last word: nothing is asked of it, and it asks for nothing."""
    last = state.messages[-1] if state.messages else None
    return last is None or (type(last) is Assistant and not tool_calls(last) and last.stop != _PAUSED)


def _was_asked(state: Checkpoint, prompt: str) -> bool:
    """Whether this very prompt is what the unfinished run was started with: the same script, run again after a crash."""
    last = next(filter(is_prompt, reversed((*state.history, *state.messages))), None)
    return last is not None and plain_text(last) == prompt


def _turns_of_task(state: Checkpoint) -> int:
    """Responses since the last prompt."""
    turns = 0
    for message in reversed(state.messages if any(map(is_prompt, state.messages)) else state.history):
        if is_prompt(message):
            break
        turns += type(message) is Assistant
    return turns
