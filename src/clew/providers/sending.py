"""One prompt to one provider, on a thread that is open: recorded, run, captured, and told how it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from clew.agent.children import child_id
from clew.agent.events import CheckpointSaved, TurnFinished, TurnStarted
from clew.agent.filing import bring_files, keep_files
from clew.agent.journal import Journal, settled
from clew.agent.leftovers import Left, left_over
from clew.agent.notes import note
from clew.agent.runs import Emit
from clew.agent.trajectories import Turn, begun, ended, said_in
from clew.checkpointers import Checkpointer
from clew.errors import ClewError, ContextTooLong, NotLoggedIn, ProviderError, ProviderLimited, SessionNotFound
from clew.log import (
    Checkpoint,
    Logged,
    MessageAdded,
    ModelCallStarted,
    ProviderKey,
    Spend,
    StatusChanged,
    ThreadStarted,
    Usage,
)
from clew.messages import Message, user
from clew.providers._process import run
from clew.providers.base import Job, Program, Provider
from clew.providers.happenings import Failed, Finished, Happening
from clew.providers.placing import Placed, Placing, current_provider
from clew.providers.recording import Recorder
from clew.providers.settings import ProviderSettings
from clew.threads import Thread
from clew.workspace import Workspace

__all__ = ["Sending"]

log = logging.getLogger("clew.providers")
_LONGEST_REASON = 500


class _GaveUp(Exception):
    """The program has said that it failed, and may go on trying for ever: it is ended."""


class Sending:
    """A prompt on its way. Made for each, with the thread's lease in hand."""

    def __init__(
        self,
        settings: ProviderSettings,
        provider: Provider,
        program: Program,
        store: Checkpointer,
        journal: Journal,
        emit: Emit,
    ) -> None:
        self._settings = settings
        self._provider = provider
        self._program = program
        self._store = store
        self._journal = journal
        self._thread = journal.thread
        self._emit = emit
        self._placing = Placing(provider, store, journal.thread.thread_id)
        self._model = settings.model_of(provider.name)
        self._drift: dict[str, tuple[Any, Any]] = {}

    async def send(self, prompt: str, key: str, timeout: float | None) -> Turn:
        """Ask, and return what it came to. `key` is what the conversation is known by if the record does not know better."""
        began = time.monotonic()
        before = self._thread.checkpoint
        if spent := self._settings.budget.exceeded(before):
            return await self._refuse(prompt, before, spent)
        left = left_over(before)
        if left.entries:
            await self._journal.record(*left.entries)
        workspace = await self._bring_files()
        placed = await self._placing.place(self._thread.checkpoint, key)
        if left.was_stopped:
            left = left.with_calls(await self._placing.unsettled(placed.key))
        told = left.note(prompt)
        job = self._job(f"{told}\n\n{prompt}" if told else prompt, placed.key)
        await self._provider.prepare(self._program, job)
        place = await self._begin(before, placed, left, prompt)
        recorder = Recorder(self._journal, self._emit)
        failure: BaseException | None = None
        try:
            await self._run(job, recorder, timeout)
        except BaseException as error:  # noqa: BLE001 - raised again below, once all is on record
            failure = error
        await settled(self._keep(recorder, job.key, workspace, failure))
        turn = self._turn(recorder, prompt, place, time.monotonic() - began, timeout, failure)
        turn = msgspec.structs.replace(
            turn, resumed_from=before.turns if before.history else None, losses=placed.losses
        )
        await settled(self._end(recorder, place, turn))
        if failure is not None and not isinstance(failure, TimeoutError):
            raise failure
        if failure is None and not isinstance(recorder.ending, Finished):
            raise _error(self._provider, recorder.ending, self._model)
        return turn

    async def _refuse(self, prompt: str, before: Checkpoint, reason: str) -> Turn:
        """Nothing is asked any more: what the thread may spend is spent."""
        await self._journal.record(StatusChanged("interrupted", reason))
        return Turn(
            prompt=prompt,
            thread_id=self._thread.thread_id,
            session_id=self._thread.thread_id,
            status="interrupted",
            reason=reason,
            turns=before.turns,
            provider=self._provider.name,
            model=self._model,
        )

    async def _bring_files(self) -> Workspace | None:
        folder = self._settings.workspace
        if folder is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        workspace = Workspace(folder, self._store)
        changed = await bring_files(self._journal, workspace, always=self._settings.restore_files)
        if changed is not None:
            self._drift["files"] = changed
        return workspace

    def _job(self, prompt: str, key: str) -> Job:
        settings = self._settings
        return Job(
            prompt=prompt,
            key=key,
            model=self._model,
            system_prompt=settings.system_prompt,
            permissions=settings.permissions,
            options=settings.options,
        )

    async def _begin(self, before: Checkpoint, placed: Placed, left: Left, prompt: str) -> int:
        """All that must be on record before the program starts, in one write; the place of the prompt."""
        entries: list[Logged] = [*self._started(before)]
        known = self._thread.checkpoint.providers.get(self._provider.name)
        if known is None or known.key != placed.key:
            entries.append(ProviderKey(self._provider.name, placed.key, thread=self._thread.thread_id))
        if told := left.note(prompt):
            entries.append(MessageAdded(note(told.removeprefix("[clew] "))))
        place = self._thread.messages + (1 if told else 0)
        entries += [MessageAdded(user(prompt)), begun(place, self._provider.name, self._model)]
        await self._journal.record(*entries, ModelCallStarted(self._model or self._provider.name))
        self._emit(TurnStarted(before.turns + 1))
        return place

    def _started(self, before: Checkpoint) -> Iterable[ThreadStarted]:
        """Who works here now and with what, if that is new; what differs from the record is told."""
        settings, name = self._settings, self._provider.name
        limits = {"provider": name, "cwd": str(self._provider.place.cwd), "permissions": settings.permissions}
        agent = settings.name or name
        now = ThreadStarted(agent, self._model, settings.system_prompt, limits=limits, parent=before.parent)
        then = ThreadStarted(
            before.agent, before.model, before.system_prompt, limits=before.limits, parent=before.parent
        )
        if now == then:
            return
        if before.history:
            pairs = {"provider": (current_provider(before), name), "model": (before.model, self._model)}
            pairs["system_prompt"] = (before.system_prompt, settings.system_prompt)
            pairs["cwd"] = (str(before.limits.get("cwd", "")), limits["cwd"])
            self._drift |= {what: (old, new) for what, (old, new) in pairs.items() if old != new}
        yield now

    async def _run(self, job: Job, recorder: Recorder, timeout: float | None) -> None:
        reader = await asyncio.to_thread(self._provider.reader, job)
        command = self._provider.command(self._program, job)

        def take(happenings: Iterable[Happening]) -> None:
            for happening in happenings:
                recorder.take(happening)

        def on_line(line: bytes) -> None:
            take(reader.read(line))
            if isinstance(recorder.ending, Failed):
                raise _GaveUp

        try:
            done = await run(command, self._provider.place, on_line, timeout=timeout)
        except _GaveUp:
            return
        take(reader.end(done.status, done.stderr))

    async def _keep(
        self, recorder: Recorder, key: str, workspace: Workspace | None, failure: BaseException | None
    ) -> None:
        """What it said, what the program keeps of it, and its files: after a failure too, as far as that goes."""
        try:
            await recorder.settle()
            await self._placing.capture(self._journal, key)
            for call_id, messages in recorder.children.items():
                await self._keep_child(call_id, messages)
            if workspace is not None:
                await keep_files(self._journal, workspace, self._emit)
        except ClewError as error:
            if failure is None:
                raise
            failure.add_note(f"what was left of it could not be kept: {error}")

    async def _keep_child(self, call_id: str, messages: list[Message]) -> None:
        """What a sub-agent did, on a thread of its own."""
        parent = self._thread.thread_id, self._thread.checkpoint.turns
        name = child_id(parent[0], "agent", call_id.encode().hex()[-16:])
        async with Thread.open(self._store, name, takeover=True) as thread:
            known = thread.messages
            started = [ThreadStarted(self._provider.name, self._model, parent=parent)] if not known else []
            await thread.append(*started, *map(MessageAdded, messages), StatusChanged("done"))

    def _turn(
        self,
        recorder: Recorder,
        prompt: str,
        place: int,
        seconds: float,
        timeout: float | None,
        failure: BaseException | None,
    ) -> Turn:
        ending = recorder.ending
        status, reason = _standing(ending, timeout, failure)
        state = self._thread.checkpoint
        usage = None if ending is None else ending.usage
        return Turn(
            prompt=prompt,
            output=ending.text if isinstance(ending, Finished) and status == "done" else None,
            thread_id=self._thread.thread_id,
            session_id=self._thread.thread_id,
            status=status,
            reason=reason,
            usage=usage or Usage(),
            cost=None if ending is None or usage is None else ending.cost_usd,
            turns=state.turns,
            drift=self._drift,
            waited=self._journal.waited,
            duration=round(seconds, 6),
            blocks=said_in(state.history[place + 1 :]) + state.partial,
            provider=self._provider.name,
            model=recorder.model or (ending.model if isinstance(ending, Finished) else "") or self._model,
        )

    async def _end(self, recorder: Recorder, place: int, turn: Turn) -> None:
        """How it ended. What it cost is on record with it, and not known where the program does not say."""
        spent = [Spend(turn.usage, turn.cost)] if recorder.ending is not None and recorder.ending.usage else []
        await self._journal.record(
            *spent, ended(place, self._thread.messages, turn), StatusChanged(_status(turn), turn.reason)
        )
        self._emit(TurnFinished(turn.turns))
        self._emit(CheckpointSaved(turn.turns))


def _status(turn: Turn) -> Any:
    return turn.status


def _standing(
    ending: Finished | Failed | None, timeout: float | None, failure: BaseException | None
) -> tuple[Any, str]:
    if isinstance(failure, TimeoutError):
        return "interrupted", f"timeout: {timeout:g} s"
    if isinstance(failure, asyncio.CancelledError):
        return "interrupted", "cancelled"
    if failure is not None:
        return "failed", f"{type(failure).__name__}: {failure}"[:_LONGEST_REASON]
    if isinstance(ending, Failed):
        return "interrupted" if ending.kind == "stopped" else "failed", ending.reason[:_LONGEST_REASON]
    return ("done", "") if ending is not None else ("interrupted", "the program ended without a word")


def _error(provider: Provider, ending: Finished | Failed | None, model: str) -> ClewError:
    """What a failure is to whoever waits for an answer."""
    failed = ending if isinstance(ending, Failed) else Failed("failed", "its program ended without a word")
    if failed.kind == "login":
        return NotLoggedIn(provider.name, failed.reason)
    if failed.kind == "limit":
        return ProviderLimited(provider.name, failed.reason)
    if failed.kind == "context":
        return ContextTooLong(model or provider.name, failed.reason)
    if failed.kind == "session":
        return SessionNotFound(provider.name, failed.reason)
    return ProviderError(provider.name, failed.reason, "What it did so far is on record; send again to go on.")
