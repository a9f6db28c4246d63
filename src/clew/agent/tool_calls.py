"""Settles the tool calls of one turn: calls with a recorded result keep it, and the others are run. For a call in
doubt, which was begun earlier and has no recorded outcome, it is first decided whether to run it again."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from clew._runtime.aio import cancel_and_wait
from clew._runtime.telemetry import span
from clew.agent.events import Kind, Question, ToolFinished, ToolInDoubt, ToolReplayed, ToolStarted
from clew.agent.journal import CallJournal, Journal
from clew.agent.run import Emit
from clew.agent.settings import Settings
from clew.agent.subagents import Drained
from clew.errors import InvalidInput, UsageError
from clew.log import Call, StateSet, ToolIntent, ToolOutcome
from clew.messages import Text, ToolResult
from clew.threads.takeover import until_cut_off
from clew.tools import NOT_DONE, AnyTool, Interrupted, NotDone, OutcomeUnknown, State, Stopped, ToolContext, call_tool
from clew.tools.call import ask_reconcile, needs_approval, unknown_tool

__all__ = ["settle_calls"]

log = logging.getLogger("clew.agent")

_APPROVAL = "clew:approval"
"""The key of the recorded step that holds a person's decision whether a call may be run."""


class _Ask(Exception):
    """Raised inside this module when a person has to answer `question` before a call can be run."""

    def __init__(self, question: Question) -> None:
        self.question = question


async def settle_calls(settings: Settings, journal: Journal, state: State, emit: Emit) -> list[Question]:
    """Run the tool calls of the last turn that have no outcome yet, all at the same time. Return the questions that a
    person has to answer before the rest can run; empty if all calls have an outcome.

    That a call is about to run is stored before its tool runs. Its outcome is recorded as soon as the call ends, even
    if other calls fail, and is stored before the next tool with effects runs. `journal` writes the thread's log,
    `state` holds the values that tools share, and `emit` is called with each event. If a call raises an error that
    stops the run, that error is raised here.
    """
    open_turn = journal.thread.present
    calls = open_turn.calls
    for call in calls:
        if call.result is not None:
            emit(ToolReplayed(call.call.name, call.call.id, call.result))
    settlement = _Settlement(settings, journal, state, emit, open_turn.turns)
    tasks = [asyncio.ensure_future(settlement.settle(call)) for call in calls if call.result is None]
    try:
        await settlement.all_ended(len(tasks))
    except asyncio.CancelledError:
        await cancel_and_wait(tasks)
        raise
    journal.follow(task for task in tasks if not task.done())
    ended = await asyncio.gather(*(task for task in tasks if task.done()), return_exceptions=True)
    errors = [error for error in ended if isinstance(error, BaseException)]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, Drained))
    return [question for question in ended if isinstance(question, Question)]


class _Settlement:
    def __init__(self, settings: Settings, journal: Journal, state: State, emit: Emit, turn: int) -> None:
        self._settings = settings
        self._journal = journal
        self._state = state
        self._emit = emit
        self._turn = turn
        self._metadata: dict[int, State] = {}
        """What each call has put into `ctx.metadata` about the turn, by the index of the call in the response."""
        self._thread_id = journal.thread.thread_id
        self._ended = asyncio.Semaphore(0)
        self._last_ended = time.perf_counter()

    async def all_ended(self, calls: int) -> None:
        """Wait until `calls` of the tool calls that this object runs have ended. Each call counts for one wait only.
        The outcome of the call that ends last may not be stored yet when this returns. The model can be asked
        nevertheless, but the next tool with effects waits until that outcome is stored."""
        for _ in range(calls):
            await self._ended.acquire()
        self._journal.count_since(self._last_ended)

    async def settle(self, call: Call) -> Question | None:
        """Run one call and record its outcome. Once the outcome is stored, emit the event `ToolFinished`, and return
        None. If a person has to answer a question before the call can be run, return the question instead."""
        try:
            settled = await self._settle(call)
        finally:
            self._last_ended = time.perf_counter()
            self._ended.release()
        if isinstance(settled, Question):
            return settled
        await asyncio.sleep(0)  # if it was the last call, its outcome is written with what the loop records next
        if await self._journal.write():
            self._emit(ToolFinished(call.call.name, call.call.id, settled))
        return None

    async def _settle(self, call: Call) -> ToolResult | Question:
        tool = self._settings.tools.get(call.call.name)
        if tool is None and call.status == "in_doubt":
            self._emit(ToolInDoubt(call.call.name, call.call.id, "told to the model"))
            return self._finish(call, _told(call, "it was begun, and there is no such tool any more"))
        if tool is None:
            known = self._settings.tools.keys()
            return self._finish(call, unknown_tool(call.call.name, known, call.call.id))
        try:
            result = await self._result(tool, call)
        except _Ask as ask:
            return ask.question
        except Stopped as stopped:
            raise stopped.error from None
        except Interrupted as asked:
            if tool.effect == "once":
                raise UsageError(
                    f"the tool {tool.name!r} asks a person, so it runs again once there is an answer, and its effect is "
                    "'once'. Say @tool(effect='steps'), and make what must not happen twice a ctx.step."
                ) from None
            return _question(call, cast(Kind, asked.kind), asked.question, asked.key, asked.arguments)
        except OutcomeUnknown as unknown:
            if tool.in_doubt == "ask":
                self._emit(ToolInDoubt(tool.name, call.call.id, "asked"))
                return _doubt(call, call.attempt + 1)
            result = _told(call, unknown.reason)
            self._emit(ToolInDoubt(tool.name, call.call.id, "told to the model"))
        return self._finish(call, result)

    async def _result(self, tool: AnyTool, call: Call) -> ToolResult:
        if call.status == "in_doubt":
            decided = await self._decide(tool, call)
            if decided is not None:
                return decided
        if tool.approve is not False:  # in a fork, a call in doubt may be one that nobody has approved
            await self._journal.flush()
            if await needs_approval(tool, call.call.arguments) and (refused := _check_approval(call)):
                return refused
        return await self._run(tool, call)

    async def _run(self, tool: AnyTool, call: Call) -> ToolResult:
        key, attempt = call.key or secrets.token_hex(16), call.attempt + 1
        if tool.effect == "none":
            await self._journal.flush()  # the response must be stored before a call of it runs
        else:
            await self._journal.record(ToolIntent(call.message, call.index, key, attempt))
        self._emit(ToolStarted(tool.name, call.call.id, call.call.arguments, attempt))
        with span("clew.tool_call", thread_id=self._thread_id, tool=tool.name, attempt=attempt) as current:
            async with nullcontext() if tool.effect == "none" else until_cut_off(self._journal.thread):
                result = await call_tool(tool, call.call.arguments, self._context(call, key, attempt))
            current.set(is_error=result.is_error)
        return result

    async def _decide(self, tool: AnyTool, call: Call) -> ToolResult | None:
        """Decide what to do with a call in doubt: one that was begun, and whose outcome is not on record.

        Return None if it is to be run again: if a person has said so, if the tool may run twice, or if the tool's
        function `reconcile` says that the call took no effect. Otherwise return the result for the model: what the
        person or `reconcile` said instead, or, if the tool's `in_doubt` is "tell", that the outcome is unknown. Raises
        `_Ask` if a person has to decide.
        """
        question = _doubt(call, call.attempt)
        if question.key in call.steps:
            answer = call.steps[question.key]
            if answer != "run":
                return ToolResult(call.call.id, (Text(str(answer)),))
            await self._journal.thread.outwait_predecessor()
            return None
        if tool.effect != "once":
            self._emit(ToolInDoubt(tool.name, call.call.id, "run again"))
            return None
        if tool.reconcile is not None:
            try:
                found = await self._reconcile(tool, call)
            except OutcomeUnknown as unknown:
                log.warning("thread %r: %s", self._thread_id, unknown)
            else:
                self._emit(ToolInDoubt(tool.name, call.call.id, "reconciled"))
                return None if found is NOT_DONE else found
        if tool.in_doubt == "tell":
            self._emit(ToolInDoubt(tool.name, call.call.id, "told to the model"))
            return _told(call, "the run was stopped while the call was under way")
        self._emit(ToolInDoubt(tool.name, call.call.id, "asked"))
        raise _Ask(question)

    async def _reconcile(self, tool: AnyTool, call: Call) -> ToolResult | NotDone:
        """Call the tool's `reconcile`, the user's function that finds out whether an earlier call took effect. Return
        the call's result if it did, or `NOT_DONE` if not: then the call may be run. Raises `OutcomeUnknown` if
        `reconcile` fails.

        If this process has just taken the thread from another one, that process may still be inside the call. So after
        a first `NOT_DONE`, wait until the other process must have noticed that it lost the thread, and ask again.
        """
        found = await ask_reconcile(tool, call.call.arguments, self._context(call, call.key, call.attempt))
        if found is NOT_DONE and await self._journal.thread.outwait_predecessor():
            found = await ask_reconcile(tool, call.call.arguments, self._context(call, call.key, call.attempt))
        return found

    def _context(self, call: Call, key: str, attempt: int) -> ToolContext:
        workspace: Path | None = self._settings.workspace
        return ToolContext(
            thread_id=self._thread_id,
            call_id=call.call.id,
            idempotency_key=key,
            workspace=workspace,
            state=self._state,
            metadata=self._metadata.setdefault(call.index, State()),
            attempt=attempt,
            turn=self._turn,
            journal=CallJournal(self._journal, call),
        )

    def _finish(self, call: Call, result: ToolResult) -> ToolResult:
        """Record the outcome of a call, together with what its tool changed in the thread's values (`ctx.state`) and
        noted about the turn (`ctx.metadata`). Returns `result`."""
        changes = self._changes(call, self._state, "thread")
        changes += self._changes(call, self._metadata.pop(call.index, State()), "turn")
        self._journal.hold(*changes, ToolOutcome(call.message, call.index, _for(call, result)))
        return result

    def _changes(self, call: Call, values: State, scope: Literal["thread", "turn"]) -> list[StateSet]:
        try:
            return [StateSet(name, value, scope) for name, value in values.take_changes().items()]
        except InvalidInput as error:  # the outcome is recorded even if the values are refused
            where = "ctx.state" if scope == "thread" else "ctx.metadata"
            log.warning("thread %r: what %s put into %s is not kept: %s", self._thread_id, call.call.name, where, error)
            return []


def _check_approval(call: Call) -> ToolResult | None:
    """Look up a person's answer to whether this call may be run. Return None if the person allowed it, or the refusal
    as the result of the call. Raises `_Ask`, which makes the run ask the person, if there is no answer yet."""
    if _APPROVAL not in call.steps:
        text = f"May {call.call.name} be run with these arguments? Answer True, False, or the reason why not."
        raise _Ask(_question(call, "approval", text, _APPROVAL))
    answer = call.steps[_APPROVAL]
    if answer is True or answer == "yes":
        return None
    why = "" if answer is False or answer == "no" else f" {answer}"
    return ToolResult(call.call.id, (Text(f"The user did not allow this call.{why}"),), is_error=True)


def _question(call: Call, kind: Kind, text: str, key: str, arguments: Any = None) -> Question:
    asked = call.call
    about = asked.arguments if arguments is None else arguments
    return Question(kind, asked.name, asked.id, text, about, call.message, call.index, key)


def _doubt(call: Call, attempt: int) -> Question:
    """Return a question to a person: whether to run a call again that was begun, and whose outcome is not on record.

    The answer counts only for the attempt with this number. If the call is run again and its outcome is unknown once
    more, the question is asked again.
    """
    text = (
        f"{call.call.name} was begun, and it is not known whether it took effect. Answer 'run' to run it again, or say what "
        "it came to."
    )
    return _question(call, "in doubt", text, f"clew:in-doubt:{attempt}")


def _told(call: Call, reason: str) -> ToolResult:
    text = (
        f"It is not known whether {call.call.name} took effect: {reason}. It was not run again. Find out what happened "
        "before you repeat it."
    )
    return ToolResult(call.call.id, (Text(text),), is_error=True)


def _for(call: Call, result: ToolResult) -> ToolResult:
    return result if result.call_id == call.call.id else msgspec.structs.replace(result, call_id=call.call.id)
