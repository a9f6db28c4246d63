"""The loop: turn after turn, each on record before the next depends on it.

A fresh run is a resume of an empty log. There is one path: look at the state, do what it lacks, and look again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

import msgspec

from clew._aio import settle
from clew.agent.asking import ask
from clew.agent.compacting import compact, make_room
from clew.agent.events import CheckpointSaved, Question, TurnFinished, TurnStarted, Unwound, Waiting
from clew.agent.filing import Files
from clew.agent.finishing import finished_with, not_finished, value_of
from clew.agent.journal import Journal
from clew.agent.leftovers import left_over
from clew.agent.notes import NOTE, is_note, note, note_waiting
from clew.agent.prompts import PROMPTS, last_prompt, prompts_waiting, turns_of_task
from clew.agent.runs import Emit
from clew.agent.settings import Settings, drift_of, started
from clew.agent.settling import settle_calls
from clew.errors import ContextTooLong
from clew.log import Checkpoint, MessageAdded, ModelCallStarted, StateSet, StatusChanged
from clew.messages import Assistant, plain_text, tool_calls, user
from clew.models import ModelRequest, ModelResponse
from clew.tools import State
from clew.workspace import Workspace

__all__ = ["QUESTIONS", "Ending", "Loop"]

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
        self.files = Files(journal, workspace, emit, every=settings.snapshot_every)
        self._emit = emit
        self._state = State()
        self._turns = 0
        """Responses since the last prompt."""
        self._filled = 0
        """Tokens of the conversation, as of the last response."""
        self.drift: dict[str, tuple[Any, Any]] = {}
        self.output: Any = None

    async def run(self, prompt: str | None, *, again: bool = True) -> Ending:
        """From wherever the thread is to the end of its work, or to what stops it. `again`: the prompt of work that is done
        may be asked again. Whoever calls this settles the `files` if it raises."""
        await self._begin()
        if prompt is not None:
            await self._take(prompt, again)
        with self._journal.wait():
            self.drift |= await self.files.bring(always=self._settings.restore_files)
        self._turns = turns_of_task(self._thread.checkpoint)
        waiting, told = prompts_waiting(self._thread.checkpoint), note_waiting(self._thread.checkpoint)
        while True:
            state = self._thread.checkpoint
            if state.calls:
                self._prepare_files(state)
                questions = await settle_calls(self._settings, self._journal, self._state, self._emit)
                if questions:
                    return await self._wait(questions)
                self._turn_is_settled(state.turns)
            elif told:
                await self._journal.record(StateSet(NOTE, None), MessageAdded(note(told)))
                told = ""
            elif waiting:
                asked = [MessageAdded(user(text)) for text in waiting]
                await self._journal.record(StateSet(PROMPTS, None), *asked)
                waiting, self._turns = [], 0
            elif self._is_finished(state) and not (correction := self.read_output(state)):
                return await self._end(Ending("done"))
            elif reason := self._limit(state):
                return await self._end(Ending("interrupted", reason))
            elif self._is_finished(state):
                await self._journal.record(MessageAdded(note(correction)))
            elif warning := self._warning(state):
                await self._journal.record(MessageAdded(note(warning)))
            else:
                await self._respond(state)

    async def _begin(self) -> None:
        """Who works here now and with what: on record if it is new or has changed."""
        state = self._thread.checkpoint
        now = self._journal.as_recorded(started(self._settings, state))
        self.drift = drift_of(state, now)
        if self.drift or not (state.model or state.history):
            await self._journal.record(now)
        if state.partial:
            await self._journal.record(*left_over(state).entries)
        if self.drift:
            log.info("thread %r: resumed with other %s", self._thread.thread_id, ", ".join(self.drift))
        self._read_state()

    def _read_state(self) -> None:
        values = self._thread.checkpoint.state
        self._state = State({key: value for key, value in values.items() if not key.startswith("clew:")})

    async def _take(self, prompt: str, again: bool) -> None:
        """The prompt on record before anything else is done, so that no stop loses it. While calls of a turn are open it
        waits there: results come right after their calls."""
        state = self._thread.checkpoint
        is_new = again and state.done_at == len(state.history)
        if not is_new and self._was_asked(state, prompt):
            return
        if state.calls:
            await self._journal.record(StateSet(PROMPTS, [*prompts_waiting(state), prompt]))
        else:
            await self._journal.record(MessageAdded(user(prompt)))
        await self._journal.flush()

    def _prepare_files(self, state: Checkpoint) -> None:
        """Before calls run that may change files: that goes on record with their intents. While there is no snapshot, a call
        that only looks counts too, as what it saw is on record nowhere else."""
        if self._settings.workspace is None:
            return
        tools = [self._settings.tools.get(call.call.name) for call in state.calls if call.result is None]
        if any(tool is not None and (tool.effect != "none" or state.workspace is None) for tool in tools):
            self.files.may_change(state, state.turns)

    async def _respond(self, state: Checkpoint) -> None:
        """One response of the model: on record before anything acts on it, which for its calls is with their intents. The
        snapshot of the turn before overlaps the call, and is durable before the response is recorded."""
        await self._journal.record(ModelCallStarted(self._settings.model.name))
        await self._journal.catch_up()
        self._emit(TurnStarted(state.turns + 1))
        self.files.begin()
        if self._is_full() and (compacted := await compact(self._settings, self._journal)):
            self._emit(compacted)
        while True:
            try:
                response, cost = await self._call_model(self._thread.checkpoint)
                break
            except ContextTooLong:
                await self._make_room()
        await settle(self._keep(MessageAdded(response.message, response.usage, cost), state.turns + 1))

    async def _make_room(self) -> None:
        await self.files.ready()
        done = await make_room(self._settings, self._journal)
        self._emit(done)
        if isinstance(done, Unwound):  # its files stay, and are on record again; what it left in the state does not
            self._read_state()
            self.files.may_change(self._thread.checkpoint, done.turn)
            await self._journal.flush()
            self.files.count_turn()
            self.files.begin()

    async def _keep(self, response: MessageAdded, turn: int) -> None:
        """A response that was paid for, on record: with the intents of its calls, if it has any."""
        await self.files.ready()
        self._turns += 1
        if response.usage is not None:
            self._filled = response.usage.input_tokens + response.usage.output_tokens
        if tool_calls(response.message):
            self._journal.hold(response)
        else:
            await self._journal.record(response)
            self._emit(TurnFinished(turn))
            self._emit(CheckpointSaved(turn))

    async def _call_model(self, state: Checkpoint) -> tuple[ModelResponse, float | None]:
        output = self._settings.output
        request = ModelRequest(
            messages=state.messages,
            system=self._settings.system_prompt,
            tools=tuple(tool.spec for tool in self._settings.tools.values()),
            max_tokens=self._settings.max_tokens,
            output_schema=None if output is None or self._settings.finish is not None else output.schema,
            options=dict(self._settings.options),
        )
        return await ask(self._settings, request, self._emit)

    def _turn_is_settled(self, turn: int) -> None:
        self._journal.follow([asyncio.ensure_future(self._tell_when_saved(turn))])
        self.files.count_turn()

    async def _tell_when_saved(self, turn: int) -> None:
        saved = await self._journal.write()
        self._emit(TurnFinished(turn))
        if saved:
            self._emit(CheckpointSaved(turn))

    def _is_full(self) -> bool:
        """Whether the last response left no more of the window than is to be kept free."""
        return self._settings.window is not None and self._filled >= self._settings.window

    def _is_finished(self, state: Checkpoint) -> bool:
        """Whether the model has had the last word: nothing is asked of it, and it asks for nothing."""
        last = state.messages[-1] if state.messages else None
        fell_silent = type(last) is Assistant and not tool_calls(last) and last.stop != _PAUSED
        return fell_silent or finished_with(state, self._settings.finish) is not None

    def read_output(self, state: Checkpoint) -> str:
        """Take the answer; what to tell the model, if it is not what was asked for."""
        if self._settings.finish is not None:
            result = finished_with(state, self._settings.finish)
            if result is None:
                return not_finished(self._settings.finish)
            self.output, correction = value_of(result, self._settings.output)
            return correction
        text = plain_text(state.messages[-1])
        if self._settings.output is None:
            self.output = text
            return ""
        self.output, correction = self._settings.output.read(text)
        return correction

    def _limit(self, state: Checkpoint) -> str | None:
        """Why no further response may be asked for; counted from the record, so that a crash does not reset it."""
        if self._turns >= self._settings.max_turns:
            return f"max_turns: {self._settings.max_turns}"
        return self._settings.budget.exceeded(state)

    def _warning(self, state: Checkpoint) -> str:
        """What the model is told when its turns run out: some before the end, and at the last."""
        left, early = self._settings.max_turns - self._turns, self._settings.warn_turns
        if left not in (early, 1) or not 0 < early < self._settings.max_turns or is_note(state.messages[-1]):
            return ""
        if left == 1:
            return "This is the last turn: give your answer now, with what you have."
        return f"{left} turns are left. Bring the task to its end within them."

    def _was_asked(self, state: Checkpoint, prompt: str) -> bool:
        """Whether this very prompt is what the unfinished run was started with: the same script, run again after a crash."""
        words = plain_text(self._journal.as_recorded(MessageAdded(user(prompt))).message)
        return words == (prompts_waiting(state) or [last_prompt(state)])[-1]

    async def _wait(self, questions: list[Question]) -> Ending:
        self._emit(Waiting(tuple(questions)))
        await self._journal.record(StateSet(QUESTIONS, msgspec.to_builtins(questions)))
        return await self._end(Ending("waiting", "; ".join(asked.text for asked in questions), tuple(questions)))

    async def _end(self, ending: Ending) -> Ending:
        """The last snapshot, and how it ended."""
        await self.files.keep()
        await self._journal.record(StatusChanged(ending.status, ending.reason))
        return ending
