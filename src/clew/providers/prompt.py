"""Sends one prompt to one provider on an open thread: records the prompt, runs the program, stores a copy of the
program's own session, and records how the exchange ended."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from clew._runtime.aio import settle
from clew.agent.events import CheckpointSaved, TurnFinished, TurnStarted
from clew.agent.exchanges import Spent, begun, ended, reason_of
from clew.agent.journal import Journal
from clew.agent.prompts import NOTE, note, note_waiting, prompts_waiting, waiting_prompts
from clew.agent.recovery import left_over
from clew.agent.run import Emit, RunResult
from clew.agent.subagents import child_id
from clew.agent.trajectory import said_in
from clew.agent.workspace import Files
from clew.checkpointers import Checkpointer
from clew.errors import (
    ClewError,
    ContextTooLong,
    Corrupt,
    LeaseLost,
    NotLoggedIn,
    ProviderError,
    ProviderLimited,
    ProviderMissing,
    SessionNotFound,
)
from clew.log import (
    Checkpoint,
    Logged,
    MessageAdded,
    ModelCallRefused,
    ModelCallStarted,
    ProviderKey,
    Spend,
    StateSet,
    StatusChanged,
    ThreadStarted,
    Usage,
)
from clew.messages import Message, User, plain_text, user
from clew.providers.base import Job, Program, Provider
from clew.providers.events import Failed, Finished, ProviderEvent, Reader, Watch
from clew.providers.native_sync import take_in
from clew.providers.placement import Placed, Placement, alone, current_provider
from clew.providers.process import CannotRun, run
from clew.providers.recorder import Recorder
from clew.providers.settings import ProviderSettings
from clew.threads import Thread
from clew.threads.redact import Redact
from clew.workspace import Workspace

__all__ = ["PromptSender", "error_of", "standing_of", "watched"]


log = logging.getLogger("clew.providers")


class _GaveUp(Exception):
    """Raised to end a program that has reported that the prompt failed, because the program may try again for ever."""


class PromptSender:
    """Sends one prompt to a provider. Create one object for each prompt, while holding the thread's lease."""

    def __init__(
        self,
        settings: ProviderSettings,
        provider: Provider,
        program: Program,
        store: Checkpointer,
        journal: Journal,
        emit: Emit,
        redact: Redact | None = None,
    ) -> None:
        self._redact = redact
        self.asked_at = -1
        """The index in the thread's history of this exchange's first message; -1 until that is recorded."""
        self._prompt_at = -1
        """The index of the prompt in the thread's history. A note to the model may stand right before it."""
        self._prompt_id = ""
        self._resumed_from: int | None = None
        self._settings = settings
        self._provider = provider
        self._program = program
        self._store = store
        self._journal = journal
        self._thread = journal.thread
        self._emit = emit
        self._placement = Placement(provider, store, journal.thread)
        self._model = settings.model_of(provider.name)
        self._drift: dict[str, tuple[Any, Any]] = {}
        workspace = None if settings.workspace is None else Workspace(settings.workspace, store)
        self._files = Files(journal, workspace, emit)

    async def send(self, prompt: str, prompt_id: str, key: str, timeout: float | None) -> RunResult:
        """Send the prompt, record it under `prompt_id`, and return the result. After `timeout` seconds the program is
        interrupted, as the result's status says. `key` is the provider's id of the conversation, used if the thread has
        none on record. An error of the provider is raised once all is recorded."""
        self._prompt_id = prompt_id
        began = time.monotonic()
        await take_in(self._journal, self._store, self._provider.place, natively=self._redact is None)
        before = self._thread.checkpoint
        if spent := self._settings.budget.exceeded(before):
            return await self._refuse(prompt, before, spent)
        self._resumed_from = before.turns if before.history else None
        left = left_over(before)
        if left.entries:
            await self._journal.record(*left.entries)
        await self._bring_files()
        placed = await self._placement.place(self._thread.checkpoint, key)
        with alone(self._provider, placed.key):
            if left.was_stopped:
                left = left.with_calls(await self._placement.unsettled(placed.key))
            told = _joined(left.note(prompt), note_waiting(self._thread.checkpoint))
            job = self._job(prompt if told is None else f"{plain_text(told)}\n\n{prompt}", placed.key)
            await self._provider.prepare(self._program, job)
            await self._begin(before, placed, told, prompt)
            recorder = Recorder(self._journal, self._emit, pieces=self._redact is None)
            failure = await self._attempt(job, recorder, _left_of(timeout, began))
            is_over = failure is not None or isinstance(recorder.ending, Finished)
            problem = failure if is_over else error_of(self._provider.name, recorder.ending, self._model, placed.key)
            standing = standing_of(recorder.ending, timeout, failure)
            try:
                result = await settle(self._end(recorder, prompt, placed, time.monotonic() - began, standing, problem))
            except asyncio.CancelledError:
                if problem is None or isinstance(problem, TimeoutError):
                    raise
        if problem is not None and not isinstance(problem, TimeoutError):
            raise problem
        return result

    async def _refuse(self, prompt: str, before: Checkpoint, reason: str) -> RunResult:
        """Record that the prompt is not asked because a budget is spent. Returns a result with the status `interrupted`
        and this `reason`. `before` is the thread's state."""
        await self._journal.record(StatusChanged("interrupted", reason))
        return RunResult(
            prompt=prompt,
            prompt_id=self._prompt_id,
            thread_id=self._thread.thread_id,
            session_id=self._thread.thread_id,
            status="interrupted",
            reason=reason,
            turns=before.turns,
            provider=self._provider.name,
            model=self._model,
        )

    async def _bring_files(self) -> None:
        folder = self._settings.workspace
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._drift |= await self._files.bring(always=self._settings.restore_files)

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

    async def _begin(self, before: Checkpoint, placed: Placed, told: User | None, prompt: str) -> None:
        """Record, in one write before the program starts: changed settings, the key of a new session, the prompt,
        before it the note `told` to the model if there is one, and the start of the model call. `before` is the
        thread's state before this prompt, and `placed` is the provider's session that will be used."""
        entries: list[Logged] = [*self._started(before)]
        known = self._thread.checkpoint.providers.get(self._provider.name)
        if known is None or known.key != placed.key:
            entries.append(ProviderKey(self._provider.name, placed.key, thread=self._thread.head.log_id))
        asked = [user(prompt)] if told is None else [told, user(prompt)]
        first = self._thread.messages
        self._prompt_at = first + len(asked) - 1
        entries += map(MessageAdded, asked)
        entries.append(begun(self._prompt_at, self._provider.name, self._model, self._prompt_id))
        state = self._thread.checkpoint
        if note_waiting(state):
            entries.append(StateSet(NOTE, None))
        waiting = prompts_waiting(state)
        others = [other for other in waiting if other.id != self._prompt_id]
        if len(others) < len(waiting):  # otherwise the built-in agent would ask it again
            entries += waiting_prompts(others)
        self._files.may_change(state, state.turns + 1)
        await self._journal.record(*entries, ModelCallStarted(self._model or self._provider.name))
        self.asked_at = first
        self._emit(TurnStarted(before.turns + 1))

    def _started(self, before: Checkpoint) -> Iterable[ThreadStarted]:
        """Yield a `ThreadStarted` log entry if agent, model, system prompt or limits are not those in `before`, the
        thread's state. Unless the thread is new, the differences are noted as drift, which the result reports."""
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
            pairs |= {what: (str(before.limits.get(what, "")), limits[what]) for what in ("cwd", "permissions")}
            self._drift |= {what: (old, new) for what, (old, new) in pairs.items() if old != new}
        yield now

    async def _attempt(self, job: Job, recorder: Recorder, timeout: float | None) -> BaseException | None:
        """Run the program for the prompt in `job`, and record its events with `recorder`. Returns the error that
        stopped the program from outside, such as a timeout; None if there was none. After such an error, what the run
        used is recorded too, as far as it is known, unless the thread's lease is lost."""
        reader: Reader | None = None
        try:
            reader = await asyncio.to_thread(self._provider.reader, job)
            await self._run(job, reader, recorder, timeout)
        except _GaveUp:
            return None
        except BaseException as error:  # noqa: BLE001 - raised again by `send`, once everything is on record
            if reader is not None and not isinstance(error, LeaseLost):
                _take(recorder, reader.end(-signal.SIGINT, ""))
            return error
        return None

    async def _run(self, job: Job, reader: Reader, recorder: Recorder, timeout: float | None) -> None:
        def on_line(line: bytes) -> None:
            _take(recorder, reader.read(line))
            if isinstance(recorder.ending, Failed):
                raise _GaveUp

        command = self._provider.command(self._program, job)
        watch = await asyncio.to_thread(self._provider.watch, job)
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end_if_lost() -> None:
            if self._thread.lost is not None and not stop.done():
                stop.set_exception(self._thread.lost)

        end_if_lost()
        self._thread.on_lost.add(end_if_lost)
        try:
            async with watched(watch, lambda line: _take(recorder, reader.read(line)), stop):
                done = await run(command, self._provider.place, on_line, timeout=timeout, stop=stop)
        except CannotRun as error:
            raise ProviderMissing(self._provider.name, self._provider.install, str(error)) from None
        finally:
            self._thread.on_lost.discard(end_if_lost)
        _take(recorder, reader.end(done.status, done.stderr))

    async def _end(
        self,
        recorder: Recorder,
        prompt: str,
        placed: Placed,
        seconds: float,
        standing: tuple[Any, str],
        problem: BaseException | None,
    ) -> RunResult:
        """Record how the exchange ended, and return its result. `standing` is its status and the reason, `seconds` its
        time, and `recorder` has recorded its events. Recorded one after the other: the exchange's cost and end, a copy
        of the program's session (its key is in `placed`), the files, and the thread's status. An error of recording is
        raised, but if the prompt itself failed, with `problem`, it is only added to that as a note."""
        status, reason = standing
        self._journal.failure = problem
        try:
            await recorder.settle()
            result = self._result(recorder, prompt, placed, seconds, status, reason)
            await self._journal.record(*self._spent(recorder, result), self._ended(result))
            forgotten = ""
            try:
                forgotten = await self._keep(recorder, prompt, placed.key)
            finally:
                unkept = await self._keep_files(problem)
            said = "; ".join(part for part in (reason, forgotten, unkept) if part)
            result = msgspec.structs.replace(result, reason=said)
            again = [self._ended(result)] if said != reason else []
            await self._journal.record(*again, StatusChanged(result.status, result.reason))
        except Exception as error:
            if problem is None:
                raise
            if str(error) != str(problem):
                problem.add_note(f"how it ended could not be recorded: {error}")
            return self._result(recorder, prompt, placed, seconds, status, reason)
        self._emit(TurnFinished(result.turns))
        self._emit(CheckpointSaved(result.turns))
        return result

    def _ended(self, result: RunResult) -> StateSet:
        reason = self._journal.as_recorded(StatusChanged("interrupted", result.reason)).reason
        spent = Spent(result.usage, result.cost, result.duration)
        return ended(
            self._prompt_at,
            self._thread.messages,
            result.provider,
            result.model,
            self._prompt_id,
            result.status,
            reason,
            spent,
        )

    def _spent(self, recorder: Recorder, result: RunResult) -> list[Logged]:
        """Return the log entries for the cost of the prompt: what `result` says, and a refusal if `recorder` shows one.
        If the cost is unknown, the log must end with an unanswered model call, so that the next prompt counts a call of
        unknown cost: return the entry that begins such a call, or nothing if the log has one."""
        if result.usage is not None:
            refused = [ModelCallRefused(result.reason)] if self._cost_nothing(recorder) else []
            return [Spend(result.usage, result.cost), *refused]
        return [] if self._thread.checkpoint.in_flight else [ModelCallStarted(self._model or self._provider.name)]

    def _cost_nothing(self, recorder: Recorder) -> bool:
        """Return whether `recorder` shows that the vendor refused every request of this prompt, so that it was free."""
        ending = recorder.ending
        refused = isinstance(ending, Failed) and ending.is_refused and ending.usage in (None, Usage())
        state = self._thread.checkpoint
        return refused and state.in_flight and not (state.partial or recorder.children or recorder.may_be_charged)

    async def _keep_files(self, problem: BaseException | None) -> str:
        """Record the files of the workspace. Returns "" if that succeeds. If it fails and the prompt succeeded
        (`problem` is None), raises the error. If it fails after the prompt failed with `problem`, returns a text that
        says what is not recorded and why, and also adds this text to `problem` as a note."""
        if problem is None:
            await self._files.keep()
            return ""
        if unkept := await self._files.settle(problem):
            problem.add_note(unkept)
        return unkept

    async def _keep(self, recorder: Recorder, prompt: str, key: str) -> str:
        """Store what sub-agents did, and a copy of the program's own session `key`. Returns a warning if the program
        did not keep this exchange in its session; otherwise "". The answer is not lost if the session lacks it or
        cannot be read: the conversation can be written into a new session from the record."""
        for call_id, messages in recorder.children.items():
            await self._keep_child(call_id, messages)
        if isinstance(recorder.ending, Finished) and not await self._has_kept(recorder.ending, prompt, key):
            await self._placement.disown(self._journal, key)
            told = (
                f"{self._provider.title} did not keep this exchange in its own session {key}. It is on record, and the "
                "next prompt goes to a new session that is written from there"
            )
            log.warning("thread %r: %s", self._thread.thread_id, told)
            return told
        try:
            await self._placement.capture(self._journal, key, natively=self._redact is None)
        except (Corrupt, OSError, ProviderError) as error:
            log.warning("thread %r: what %s keeps: %s", self._thread.thread_id, self._provider.name, error)
        return ""

    async def _has_kept(self, ending: Finished, prompt: str, key: str) -> bool:
        """Return whether the provider's session with the key `key` holds this prompt and the answer `ending.text`.
        Always True for a command such as `/compact`, because the program keeps commands in another form."""
        return prompt.lstrip().startswith("/") or await self._placement.has_kept(
            self._thread.checkpoint, key, prompt, ending.text
        )

    async def _keep_child(self, call_id: str, messages: list[Message]) -> None:
        """Record the `messages` of a sub-agent on a thread of its own. `call_id` is the tool call that started it."""
        parent = self._thread.thread_id, self._thread.checkpoint.turns
        name = child_id(parent[0], "agent", call_id.encode().hex()[-16:])
        async with Thread.open(self._store, name, takeover=True, redact=self._redact) as thread:
            known = thread.messages
            started = [ThreadStarted(self._provider.name, self._model, parent=parent)] if not known else []
            await thread.append(*started, *map(MessageAdded, messages), StatusChanged("done"))

    def _result(
        self, recorder: Recorder, prompt: str, placed: Placed, seconds: float, status: Any, reason: str
    ) -> RunResult:
        ending = recorder.ending
        state = self._thread.checkpoint
        free = self._cost_nothing(recorder)
        usage = Usage() if free else None if ending is None else ending.usage
        return RunResult(
            prompt=prompt,
            prompt_id=self._prompt_id,
            output=ending.text if isinstance(ending, Finished) and status == "done" else None,
            thread_id=self._thread.thread_id,
            session_id=self._thread.thread_id,
            status=status,
            reason=reason,
            usage=usage,
            cost=0.0 if free else None if ending is None or usage is None else ending.cost_usd,
            turns=state.turns,
            resumed_from=self._resumed_from,
            drift=self._drift,
            waited=self._journal.waited,
            duration=round(seconds, 6),
            blocks=said_in(state.history[self._prompt_at + 1 :]) + state.partial,
            losses=placed.losses,
            provider=self._provider.name,
            model=recorder.model or (ending.model if isinstance(ending, Finished) else "") or self._model,
        )


def _joined(told: User | None, waiting: str) -> User | None:
    """Return the note to put before a prompt: `told`, which says what a stopped prompt left unfinished, and then
    `waiting`, a recorded note that the model has not been given yet. Returns None if there is neither."""
    if not waiting:
        return told
    return note(waiting) if told is None else user(f"{plain_text(told)} {waiting}")


def _take(recorder: Recorder, events: Iterable[ProviderEvent]) -> None:
    for event in events:
        recorder.take(event)


def _left_of(timeout: float | None, began: float) -> float | None:
    return None if timeout is None else max(0.001, timeout - (time.monotonic() - began))


_LONGEST_REASON = 500


def standing_of(
    ending: Finished | Failed | None, timeout: float | None, failure: BaseException | None
) -> tuple[Any, str]:
    """Return the status of the exchange (`done`, `interrupted` or `failed`) and the reason for it in words. `ending` is
    how the program says that it ended, `failure` is the error that stopped it from outside, such as a `TimeoutError`;
    None if there is none. `timeout` is named in the reason."""
    if isinstance(failure, TimeoutError):
        return "interrupted", f"timeout: {timeout:g} s"
    if isinstance(failure, asyncio.CancelledError):
        return "interrupted", "cancelled"
    if failure is not None:
        return "failed", reason_of(failure)
    if isinstance(ending, Failed):
        refused = "the request was refused: " if ending.is_refused and ending.kind == "failed" else ""
        reason = f"{refused}{ending.reason}"[:_LONGEST_REASON]
        return "interrupted" if ending.kind == "stopped" else "failed", reason
    return ("done", "") if ending is not None else ("interrupted", "the program ended without a word")


def error_of(provider: str, ending: Finished | Failed | None, model: str, key: str) -> ClewError:
    """Return the error to raise for a prompt that failed, such as `NotLoggedIn`, `ProviderLimited` or `ProviderError`.
    Its type depends on `ending`, which is how the program says that it ended; None if it said nothing. `provider`,
    `model` and `key`, the provider's id of the conversation, are named in the error where they matter."""
    failed = ending if isinstance(ending, Failed) else Failed("failed", "its program ended without a word")
    if failed.kind == "login":
        return NotLoggedIn(provider, failed.reason)
    if failed.kind == "limit":
        return ProviderLimited(provider, failed.reason, until=failed.until)
    if failed.kind == "context":
        return ContextTooLong(model or provider, failed.reason)
    if failed.kind == "session":
        return SessionNotFound(provider, key)
    return ProviderError(provider, failed.reason, "What it did so far is on record; send again to go on.")


_EVERY = 0.05
"""Seconds between two looks for tool calls that a program has begun. A call may run this long before it is on record.
20 looks a second take 0.8 % of a core on a busy machine, nearly all of it for switching OS threads: a look itself takes
4 µs if nothing has changed, otherwise 11 µs."""


@asynccontextmanager
async def watched(
    watch: Watch | None, take: Callable[[bytes], None], stop: asyncio.Future[None]
) -> AsyncIterator[None]:
    """During the `with` block, keep asking `watch` for tool calls that the program has begun but not printed yet, and
    pass each line that it returns to `take`. Asks once more when the block ends, even after an error. An error that
    `take` raises before then is set on the future `stop`. Does nothing if `watch` is None."""
    if watch is None:
        yield
        return
    over = asyncio.Event()
    looking = asyncio.ensure_future(_look(watch, take, over, stop))
    try:
        yield
    finally:
        over.set()
        await settle(looking)


async def _look(watch: Watch, take: Callable[[bytes], None], over: asyncio.Event, stop: asyncio.Future[None]) -> None:
    try:
        while True:
            is_last = over.is_set()
            for line in await asyncio.to_thread(watch.look):
                take(line)
            if is_last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY):
                    await over.wait()
    except Exception as error:  # noqa: BLE001 - raised where the program is awaited
        if not (stop.done() or over.is_set()):
            stop.set_exception(error)
    finally:
        await asyncio.to_thread(watch.close)
