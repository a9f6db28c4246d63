"""The loop of the built-in agent. It runs turn after turn, and records each before the next depends on it.

New and resumed runs take one path: look at the thread's state, do the next thing that is missing, and look again. A new
run is a resume of an empty log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

import msgspec

from clew._runtime.aio import cancel_and_wait, settle
from clew.agent.compaction import compact, make_room
from clew.agent.events import QUESTIONS, CheckpointSaved, Question, TurnFinished, TurnStarted, Unwound, Waiting
from clew.agent.exchanges import exchange_of, joined, last_exchange, open_together
from clew.agent.inbox import Inbox, take_in
from clew.agent.journal import Journal
from clew.agent.model_call import ask
from clew.agent.output import finished_with, not_finished, value_of
from clew.agent.prompts import (
    NOTE,
    Asked,
    WaitingPrompt,
    is_note,
    note,
    note_waiting,
    prompts_waiting,
    turns_of_task,
    waiting_prompts,
)
from clew.agent.recovery import left_over
from clew.agent.run import DRAINED, Drain, Emit
from clew.agent.settings import Settings, drift_of, started
from clew.agent.subagents import Drained
from clew.agent.tool_calls import settle_calls
from clew.agent.workspace import Files
from clew.errors import ContextTooLong
from clew.log import (
    Checkpoint,
    Logged,
    MessageAdded,
    ModelCallRefused,
    ModelCallStarted,
    Present,
    StateSet,
    StatusChanged,
)
from clew.messages import Assistant, plain_text, tool_calls, user
from clew.models import ModelRequest, ModelResponse
from clew.tools import State
from clew.workspace import Workspace

__all__ = ["Ending", "Loop", "read_answer"]

log = logging.getLogger("clew.agent")


_PAUSED = "pause_turn"
"""The stop reason of a response after which the model has paused. It goes on when it is asked again."""


class Ending(msgspec.Struct, frozen=True):
    """How a run ended: its status, the reason for that status, and the questions to a person that the run waits for."""

    status: Literal["done", "waiting", "interrupted"]
    reason: str = ""
    questions: tuple[Question, ...] = ()


def read_answer(settings: Settings, state: Present) -> tuple[Any, str]:
    """Read the final answer from the end of the conversation in `state`, the thread's present state.

    Returns the answer and "". If the answer does not have the form that the agent's settings ask for, returns None and
    a text that asks the model to correct it.
    """
    if settings.finish is not None:
        result = finished_with(state, settings.finish)
        return (None, not_finished(settings.finish)) if result is None else value_of(result, settings.output)
    text = plain_text(state.messages[-1])
    return (text, "") if settings.output is None else settings.output.read(text)


class Loop:
    """Works on one thread, turn after turn, until the run ends."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        workspace: Workspace | None,
        emit: Emit,
        *,
        turns: int | None,
        drain: Drain,
    ) -> None:
        """`turns` is the number of turns after which the run ends, even if the work is not done; None for no such limit.
        `drain` says whether the run was asked to end after its open turn."""
        self._settings = settings
        self._journal = journal
        self._thread = journal.thread
        self.files = Files(journal, workspace, emit, every=settings.snapshot_every)
        self._emit = emit
        self._inbox = Inbox(journal.thread)
        self._state = State()
        self._turns = 0
        """The number of model responses since the last prompt."""
        self._turns_allowed = turns
        """After how many more turns this run ends, whether or not its work is done; None for no such limit."""
        self._asked_for = turns
        self._drain = drain
        self._filled = 0
        """The length of the conversation in tokens, according to the last response."""
        self.drift: dict[str, tuple[Any, Any]] = {}
        self.output: Any = None
        self.asked: Asked | None = None
        """The prompt that was given to the run. If it was recognized by its words, it has the id that is on record."""

    async def run(self, prompt: Asked | None) -> Ending:
        """Work from the present state of the thread until it is done, waits for answers, or reaches a limit. Return how
        it ended.

        A new `prompt` is recorded before any other work, after what was posted to the thread's inbox. With None, the run
        only goes on with what is on record and in the inbox.

        If this raises an error, the files of the workspace are not recorded yet: the caller must call `settle` of the
        attribute `files`.
        """
        await self._begin()
        self._journal.go_on_with(last_exchange(self._thread.checkpoint))
        await self._take(prompt)
        with self._journal.wait():
            self.drift |= await self.files.bring(always=self._settings.restore_files)
        self._turns = turns_of_task(self._thread.checkpoint)
        waiting, told = prompts_waiting(self._thread.checkpoint), note_waiting(self._thread.checkpoint)
        while True:
            state = self._thread.present
            if state.calls:
                self._journal.note_work(self._settings.model.name)
                self._prepare_files(state)
                try:
                    questions = await settle_calls(self._settings, self._journal, self._state, self._emit)
                except Drained:
                    return await self._end(Ending("interrupted", DRAINED))
                if questions:
                    return await self._wait(questions)
                self._turn_is_settled(state.turns)
            elif told:
                await self._journal.record(StateSet(NOTE, None), MessageAdded(note(told)))
                told = ""
            elif waiting:
                self._note_work_left(state)
                await self._journal.record(*waiting_prompts([]), *self._asking(waiting, together=True))
                waiting, self._turns = [], 0
            elif self._is_finished(state) and not (correction := self.read_output(state)):
                if not (waiting := await self._new_prompts()):
                    return await self._end(Ending("done"))
            elif reason := self._limit(state):
                if not (waiting := await self._new_prompts()):
                    return await self._end(Ending("interrupted", reason))
            elif reason := self._break():
                return await self._end(Ending("interrupted", reason))
            elif self._is_finished(state):
                self._journal.note_work(self._settings.model.name)
                await self._journal.record(MessageAdded(note(correction)))
            elif warning := self._warning(state):
                await self._journal.record(MessageAdded(note(warning)))
            else:
                waiting = await self._respond(state)

    async def _begin(self) -> None:
        """Record the agent's settings if they are new or have changed. If an earlier run left a response incomplete,
        record what there is of it."""
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

    async def _take(self, prompt: Asked | None) -> None:
        """Record what was posted to the inbox and, if given, a new prompt, before any other work is done, so that it
        cannot be lost.

        If calls of the last turn have no result yet, the prompt is recorded as waiting, because vendors want results
        right after their calls. A prompt that is on record already and not answered is not recorded again.
        """
        state = self._thread.checkpoint
        self.asked = prompt
        is_known = prompt is None or self._is_known(state, prompts_waiting(state), prompt)
        if posts := await self._inbox.look():
            await take_in(self._journal, posts)
            state = self._thread.checkpoint
        waiting = prompts_waiting(state)
        if prompt is None or is_known or (prompt.is_exact and self._is_known(state, waiting, prompt)):
            return
        prompts = [*waiting, WaitingPrompt(prompt.text, prompt.id)]
        if state.calls:
            await self._journal.record(*waiting_prompts(prompts))
        else:
            if waiting:
                self._note_work_left(self._thread.present)
            none_waits = waiting_prompts([]) if waiting else []
            await self._journal.record(*none_waits, *self._asking(prompts))
        await self._journal.flush()

    def _is_known(self, state: Checkpoint, waiting: list[WaitingPrompt], prompt: Asked) -> bool:
        """Return whether this prompt is on record already, so that it must not be recorded again.

        A prompt whose id was given, or made from its position in the session, is on record if `waiting` (the prompts
        that are recorded but not asked yet) or the last exchange has that id. Raises `InvalidInput` if the id is on
        record with another text. A prompt with any other id is on record if the last prompt has the same words and no
        answer, as when the same program is run again after a crash.
        """
        thread_id = self._thread.thread_id
        if prompt.is_exact:
            if (known := prompt.among(waiting)) is not None:
                prompt.check_words(thread_id, known.text)
                return True
            found = exchange_of(state, prompt.id)
            if found is None:
                return False
            prompt.check_words(thread_id, found.prompt)
            return found.is_last
        if waiting:
            return waiting[-1].text == prompt.words
        known_as = next((last.prompt_id for last in open_together(state) if last.prompt == prompt.words), None)
        if known_as:
            self.asked = msgspec.structs.replace(prompt, id=known_as)
        return known_as is not None

    async def _new_prompts(self) -> list[WaitingPrompt]:
        """Take in what was posted to the thread's inbox since the last look. Return the prompts to ask."""
        posts = await self._inbox.look()
        if not posts:
            return []
        await take_in(self._journal, posts)
        return prompts_waiting(self._thread.checkpoint)

    def _note_work_left(self, state: Present) -> None:
        """Record that this run works on the exchange before the prompts that are asked next, unless the model has answered
        it: then there is no work left on it."""
        if not self._is_answered(state):
            self._journal.note_work(self._settings.model.name)

    def _is_answered(self, state: Present) -> bool:
        return self._is_finished(state) and not self.read_output(state)

    def _asking(self, prompts: list[WaitingPrompt], *, together: bool = False) -> list[Logged]:
        """Return the entries that put these prompts into the conversation, where the model answers them together.

        If the exchange of the prompt before them has no recorded end, the entry that ends it comes first. With
        `together`, the prompt before them gets the same answer even if the model has not responded to it yet.
        """
        answered = self._is_answered(self._thread.present)
        entries = self._journal.leave_exchange(done=answered, together=together)
        place = self._thread.messages
        for number, prompt in enumerate(prompts, 1):
            entries.append(MessageAdded(user(prompt.text)))
            if number < len(prompts):
                entries.append(joined(place + number - 1, self._settings.model.name, prompt.id))
        last = place + len(prompts) - 1
        return [*entries, self._journal.begin_exchange(last, prompts[-1].id, self._settings.model.name)]

    def _prepare_files(self, state: Present) -> None:
        """Prepare a log entry that says that the calls which are about to run may change files. It is stored in one
        write with the entries that say that these calls are about to run. `state`, the thread's present state, has the
        calls.

        Does nothing without a workspace. After the first snapshot of the files, does nothing either if no tool of these
        calls has effects. Before it, any call may matter, because the files that it reads are recorded nowhere else.
        """
        if self._settings.workspace is None:
            return
        tools = [self._settings.tools.get(call.call.name) for call in state.calls if call.result is None]
        if any(tool is not None and (tool.effect != "none" or state.workspace is None) for tool in tools):
            self.files.may_change(state, state.turns)

    async def _respond(self, state: Present) -> list[WaitingPrompt]:
        """Ask the model for one response, and record it before its calls are run. If something was posted to the thread's
        inbox, take that in instead, and return the prompts to ask before the model is asked.

        A response with calls is stored in one write with the intents of the calls, the entries that say that they are
        about to run. If it is time for a snapshot of the files, the snapshot is taken during the model call and
        recorded before the response. Shortens the conversation if it is too long.
        """
        self._journal.note_work(self._settings.model.name)
        looking = [asyncio.ensure_future(self._inbox.look())] if self._inbox.is_due else []  # while entries are stored
        try:
            await self._journal.record(ModelCallStarted(self._settings.model.name))
            await self._journal.catch_up()
            is_late = not all(look.done() for look in looking)
            posts = [post for look in looking for post in await look]
        finally:
            await cancel_and_wait(looking)
        if posts:
            self._journal.hold(ModelCallRefused())  # the call was announced, and is not made yet
            await take_in(self._journal, posts)
            return prompts_waiting(self._thread.checkpoint)
        if is_late and self._thread.durability != "exit":
            await self._journal.fence()  # another process may have taken the thread over while the look took its time
        self._emit(TurnStarted(state.turns + 1))
        self.files.begin()
        if self._is_full() and (compacted := await compact(self._settings, self._journal)):
            self._emit(compacted)
        while True:
            try:
                response, cost = await self._call_model(self._thread.present)
                break
            except ContextTooLong:
                await self._make_room()
        await settle(self._keep(MessageAdded(response.message, response.usage, cost), state.turns + 1))
        return []

    async def _make_room(self) -> None:
        await self.files.ready()
        done = await make_room(self._settings, self._journal)
        self._emit(done)
        if isinstance(done, Unwound):  # files that the turn wrote stay; values that it recorded are gone
            self._read_state()
            self.files.may_change(self._thread.present, done.turn)
            await self._journal.flush()
            self.files.count_turn()
            self.files.begin()

    async def _keep(self, response: MessageAdded, turn: int) -> None:
        """Record a response of the model. First wait until the snapshot of the files that is being taken, if any, is
        recorded. A response with calls is only held in memory here: it is stored in one write with the entries that say
        that its calls are about to run. A response without calls ends the turn with the number `turn`, and the events
        for that are emitted."""
        await self.files.ready()
        self._turns += 1
        if self._turns_allowed is not None:
            self._turns_allowed -= 1
        if response.usage is not None:
            self._filled = response.usage.input_tokens + response.usage.output_tokens
        if tool_calls(response.message):
            self._journal.hold(response)
        else:
            await self._journal.record(response)
            self._emit(TurnFinished(turn))
            self._emit(CheckpointSaved(turn))

    async def _call_model(self, state: Present) -> tuple[ModelResponse, float | None]:
        output = self._settings.output
        request = ModelRequest(
            messages=state.messages,
            system=self._settings.system_prompt,
            tools=tuple(tool.spec for tool in self._settings.tools.values()),
            max_tokens=self._settings.max_tokens,
            output_schema=None if output is None or self._settings.finish is not None else output.schema,
            options=dict(self._settings.options),
        )
        return await ask(self._settings, self._journal, request, self._emit)

    def _turn_is_settled(self, turn: int) -> None:
        self._journal.follow([asyncio.ensure_future(self._tell_when_saved(turn))])
        self.files.count_turn()

    async def _tell_when_saved(self, turn: int) -> None:
        saved = await self._journal.write()
        self._emit(TurnFinished(turn))
        if saved:
            self._emit(CheckpointSaved(turn))

    def _is_full(self) -> bool:
        """Return whether the conversation has reached the length at which a summary has to replace its older messages."""
        return self._settings.window is not None and self._filled >= self._settings.window

    def _is_finished(self, state: Present) -> bool:
        """Return whether the model has ended its work: by a response without tool calls, unless it says that it only
        paused, or by a call of the finish tool, with which the model gives its answer."""
        last = state.messages[-1] if state.messages else None
        fell_silent = type(last) is Assistant and not tool_calls(last) and last.stop != _PAUSED
        return fell_silent or finished_with(state, self._settings.finish) is not None

    def read_output(self, state: Present) -> str:
        """Read the model's answer from `state`, the thread's present state, into the attribute `output`. Returns an
        empty text. But if the answer has the wrong form, sets `output` to None, and returns a text that asks the model
        to correct it."""
        self.output, correction = read_answer(self._settings, state)
        return correction

    def _limit(self, state: Present) -> str | None:
        """Return a text that says which limit is reached, so that the model must not be asked again: the number of
        turns since the last prompt, or the thread's budget. Return None if no limit is reached. The turns and the
        spending of earlier runs count too."""
        if self._turns >= self._settings.max_turns:
            return f"max_turns: {self._settings.max_turns}"
        return self._settings.budget.exceeded(state)

    def _break(self) -> str:
        """Return why the run ends after this turn although the work is not done: the caller wanted only so many turns,
        or has asked the run to end. Return "" if the run goes on."""
        if self._turns_allowed == 0:
            return f"turns: {self._asked_for}"
        return DRAINED if self._drain.is_asked else ""

    def _warning(self, state: Present) -> str:
        """Return a note that tells the model how many turns are left, or "" if no note is due. A note is due when
        exactly `warn_turns` turns are left, and again before the last turn."""
        left, early = self._settings.max_turns - self._turns, self._settings.warn_turns
        if left not in (early, 1) or not 0 < early < self._settings.max_turns or is_note(state.messages[-1]):
            return ""
        if left == 1:
            return "This is the last turn: give your answer now, with what you have."
        return f"{left} turns are left. Bring the task to its end within them."

    async def _wait(self, questions: list[Question]) -> Ending:
        self._emit(Waiting(tuple(questions)))
        await self._journal.record(StateSet(QUESTIONS, msgspec.to_builtins(questions)))
        return await self._end(Ending("waiting", "; ".join(asked.text for asked in questions), tuple(questions)))

    async def _end(self, ending: Ending) -> Ending:
        """Record a last snapshot of the files, then the status with which the run ended. Returns `ending`."""
        await self.files.keep()
        await self._journal.record(StatusChanged(ending.status, ending.reason))
        return ending
