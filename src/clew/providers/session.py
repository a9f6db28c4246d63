"""The class `ProviderSession`: one conversation with a coding agent's program (a provider, such as Claude Code) over
several prompts, recorded in one thread."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from clew.agent.arguments import check_timeout
from clew.agent.events import RunStarted
from clew.agent.exchanges import exchange_of, standing_of
from clew.agent.handles import Handle
from clew.agent.inbox import look, take_in
from clew.agent.journal import Journal
from clew.agent.prompts import Asked, WaitingPrompt, asked, check_prompt, check_resumed, prompts_waiting
from clew.agent.run import Emit, Run, RunResult, stop_all
from clew.agent.session import Session
from clew.agent.trajectory import Trajectory, answer_on_record
from clew.errors import (
    NotLoggedIn,
    ProviderError,
    ProviderLimited,
    ProviderMissing,
    ThreadNotFound,
    UsageError,
)
from clew.log import Checkpoint
from clew.messages.dialects import Loss
from clew.providers.native_sync import move, take_back
from clew.providers.placement import current_provider, sweep_staging
from clew.providers.process import reap
from clew.providers.prompt import PromptSender
from clew.providers.registry import BUILT_IN_AGENT
from clew.threads.reader import load

if TYPE_CHECKING:
    from clew.providers.agent import ProviderAgent, Ready

__all__ = ["GO_ON", "ProviderSession", "refuse_turns", "with_notes"]

log = logging.getLogger("clew.providers")

GO_ON = "Go on where you were stopped."
_FALLS_TO_NEXT = (ProviderMissing, NotLoggedIn, ProviderLimited)
"""Errors of a provider after which the prompt is sent to the next provider instead."""


class ProviderSession(Session):
    """A conversation with Claude Code, Codex, opencode or another outside agent. Made by an `Agent(provider=…)`.

    Each prompt starts the provider's program, which ends with the prompt: between prompts nothing runs. Everything that
    the program says is recorded as it comes. After each prompt, a copy of what the program itself keeps of the
    conversation is stored too.
    """

    def __init__(self, agent: ProviderAgent, thread_id: str, *, provider: str, key: str, origin: Handle | None) -> None:
        """`provider` is the name of the provider to ask first. `key` is the id under which that provider keeps the
        conversation; empty if it has to be read from the thread. `origin` is the handle (a string that names a session,
        here parsed) that the session was resumed from; None for a new session."""
        self._agent = agent
        self._thread_id = thread_id
        self._provider = provider
        self._key = key
        self._origin = origin
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._losses: tuple[Loss, ...] = ()
        self._swept = False

    @property
    def thread_id(self) -> str:
        return self._thread_id

    @property
    def provider(self) -> str:
        """The name of the provider that has the conversation now. It changes when another provider takes over."""
        return self._provider

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What did not fit the provider's format when the conversation was moved to it by `move_to`; empty for a
        session that was not moved."""
        return self._losses

    def _resume_key(self) -> str:
        if not self._key:
            raise UsageError(
                f"this session was resumed by its id alone, {self._thread_id!r}, so its id at {self._provider} is not read "
                "yet: send a prompt, or read the trajectory, before you take its handle."
            )
        return self._key

    def _whereabouts(self) -> tuple[str, str]:
        return str(self._agent.settings.place.cwd), self._agent.store_url

    def send(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> Run[RunResult]:
        """Ask a prompt. Await the returned run for its result, or iterate over it for its events. After `timeout`
        seconds, by default the agent's own `timeout`, the program is interrupted, and the result has the status
        `interrupted`. If the provider fails, its error is raised; it is never returned as an answer.

        With a `prompt_id` the prompt is answered once. If the thread has an answer for that id, that answer is returned
        and no program is started. If the prompt of that id was stopped, it is asked again, and the program is told that
        it was stopped.
        """
        check_prompt(prompt, prompt_id)
        check_timeout(timeout)
        return Run(lambda emit: self.ask(prompt, timeout, emit, prompt_id))

    async def ask(
        self, prompt: str | None, timeout: float | None, emit: Emit, prompt_id: str | None = None
    ) -> RunResult:
        """Ask a prompt and return its result; `send` runs this. What was posted to the thread's inbox is asked first. With
        None, only that is asked or, if nothing was posted, the provider is told to go on. After `timeout` seconds, by
        default the agent's own `timeout`, the program is interrupted and the result has the status `interrupted`. If the
        thread has an answer for `prompt_id`, that answer is returned and no program is started. Events are passed to
        `emit` as they happen."""
        self._agent.enter()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._tasks.add(task)
        try:
            async with self._lock:
                given = None if prompt is None else asked(prompt, self._agent.redact, prompt_id=prompt_id)
                if given and given.is_exact and (before := await self._answer_to(given)) is not None:
                    self._agent.began(self._thread_id)
                    emit(RunStarted(self._thread_id))
                    return before
                return await self._send(given, timeout or self._agent.settings.timeout, emit)
        finally:
            self._tasks.discard(task)

    def run(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> Run[RunResult]:
        """Ask a prompt, exactly as `send` does. Await the returned run for its result, or iterate over it for its
        events. If the thread has an answer for the `prompt_id`, that answer is returned and no program is started.
        After `timeout` seconds, by default the agent's own `timeout`, the program is interrupted."""
        return self.send(prompt, prompt_id=prompt_id, timeout=timeout)

    def resume(
        self,
        prompt: str | None = None,
        *,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Continue where the session was stopped. What was posted to the thread's inbox is asked first. Without that and
        without a `prompt`, the provider is told to go on. If the thread has
        an answer for the `prompt_id`, which needs a `prompt`, that answer is returned and no program is started. After
        `timeout` seconds, by default the agent's own `timeout`, the program is interrupted. Awaiting the returned run
        raises `ThreadNotFound` if nothing was asked in this session yet.

        `answer` and `max_turns` raise `UsageError`: providers ask no questions that could be answered later, and count
        no turns.
        """
        refuse_turns(answer=answer, max_turns=max_turns)
        check_resumed(prompt, prompt_id)
        check_timeout(timeout)

        async def work(emit: Emit) -> RunResult:
            if self._origin is None:
                await self._agent.check_thread(self._thread_id)
            return await self.ask(prompt, timeout, emit, prompt_id)

        return Run(work)

    async def cancel(self) -> None:
        await stop_all(self._tasks)

    async def trajectory(self) -> Trajectory:
        """Read from the store what was done in this session so far. The result is empty if the store does not have the
        thread."""
        found, self._key = await self._agent.trajectory_and_key(self._thread_id, self._provider, self._key)
        return found

    async def move_to(self, provider: str, **settings: Any) -> Session:
        """Continue the conversation at another provider, or at the built-in agent if `provider` is `clew`, and return
        the session to use from now on. A prompt that runs is cancelled. The conversation is translated at once, and
        `losses` of the new session says what was lost by that. `settings` are arguments of `Agent`; those not given are
        taken from this session's agent, except the model, which each provider has its own name for."""
        self._agent.enter()
        await self.cancel()
        await self._agent.check_origin(self._thread_id, self._origin)
        if provider == BUILT_IN_AGENT:
            async with self._lock, self._agent.thread(self._thread_id) as thread, Journal(thread) as journal:
                await self._agent.adopt_origin(journal, provider, self._origin)
                await self._agent.take_in(journal)
            return await self._agent.moved_home(self._thread_id, settings)
        agent = self._agent.moved_to(provider, settings)
        name = agent.settings.providers[0]
        target = (await asyncio.to_thread(agent.ready, name)).provider
        async with self._lock, agent.thread(self._thread_id) as thread, Journal(thread) as journal:
            await self._agent.adopt_origin(journal, name, self._origin)
            await self._agent.take_in(journal)
            placed = await move(
                journal,
                agent.checkpointer,
                target,
                agent.name,
                permissions=agent.settings.permissions,
                natively=agent.redact is None,
            )
        moved = ProviderSession(agent, self._thread_id, provider=name, key=placed.key, origin=None)
        moved._losses = placed.losses
        return moved

    async def _send(self, prompt: Asked | None, timeout: float | None, emit: Emit) -> RunResult:
        await self._agent.check_origin(self._thread_id, self._origin)
        ready = await asyncio.to_thread(self._clear_the_way)
        with self._agent.stops(self._thread_id):
            async with self._agent.thread(self._thread_id, timeout) as thread, self._agent.journal(thread) as journal:
                self._agent.began(self._thread_id)
                emit(RunStarted(self._thread_id))
                state = thread.checkpoint
                result = None if prompt is None else _answer_in(self._thread_id, state, prompt)
                if result is not None:  # another process has answered it since the first look
                    await journal.record(standing_of(state))
                else:
                    result = await self._ask_all(journal, ready, prompt, timeout, emit)
            return msgspec.structs.replace(result, position=thread.position)

    async def _ask_all(
        self, journal: Journal, ready: Ready, prompt: Asked | None, timeout: float | None, emit: Emit
    ) -> RunResult:
        """Ask what was posted to the thread's inbox and then the prompt, if one is given. Return the last result."""
        posted, own = await self._prompts(journal, prompt)
        for each in posted:
            result = await self._try_each(journal, ready, each, timeout, emit, is_posted=True)
        return result if own is None else await self._try_each(journal, ready, own, timeout, emit)

    async def _answer_to(self, prompt: Asked) -> RunResult | None:
        """Return the recorded answer to a prompt; None if it was not answered yet, so that it has to be asked. An
        `Asked` is a prompt with its id, by which the answer is found. Takes no lease. Raises `InvalidInput` if the id
        is on record with another prompt text."""
        try:
            await self._agent.check_thread(self._thread_id)
            found = await load(self._agent.checkpointer, self._thread_id)
        except ThreadNotFound:
            return None
        answered = _answer_in(self._thread_id, found.state, prompt)
        return None if answered is None else msgspec.structs.replace(answered, position=found.head.frames)

    async def _prompts(self, journal: Journal, prompt: Asked | None) -> tuple[list[Asked], Asked | None]:
        """Take in what was posted to the thread's inbox. Return the prompts that wait to be asked, oldest first, and the
        prompt to ask after them: the given one or, if there is nothing else to ask, one that tells the provider to go
        on."""
        await take_in(journal, await look(journal.thread))
        waiting = prompts_waiting(journal.thread.checkpoint)
        if prompt is not None and (same := prompt.among(waiting)) is not None:
            prompt = msgspec.structs.replace(prompt, id=same.id)
        posted = [
            Asked(text=each.text, words=each.text, id=each.id, is_exact=True)
            for each in waiting
            if prompt is None or each.id != prompt.id
        ]
        return posted, prompt if prompt or posted else asked(GO_ON, self._agent.redact)

    def _clear_the_way(self) -> Ready:
        """Prepare for a prompt before anything is written: kill programs that dead processes left running, delete
        Clew's copies of sessions that were not used for 14 days, and return the first provider that can be used."""
        reap()
        ready = self._agent.first_ready(self._agent.order(self._provider))
        if not self._swept:
            sweep_staging(ready.provider)
            self._swept = True
        return ready

    async def _try_each(
        self,
        journal: Journal,
        ready: Ready,
        prompt: Asked,
        timeout: float | None,
        emit: Emit,
        *,
        is_posted: bool = False,
    ) -> RunResult:
        """Send the prompt to the provider that has the conversation. If that provider is missing, not logged in or at
        its limit, send it to the next one, and so on. If all fail, the last error is raised, with notes of the earlier
        ones. `ready` is a provider that was checked already and need not be checked again. `is_posted` says that the
        prompt comes from the inbox, so that nobody would give it again."""
        failures: list[ProviderError] = []
        names = self._agent.order(self._who_has_it(journal))
        for number, name in enumerate(names):
            sender: PromptSender | None = None
            try:
                if name != ready.provider.name:
                    ready = await asyncio.to_thread(self._agent.ready, name)
                sender = self._agent.sender(ready, journal, emit)
                await self._agent.adopt_origin(journal, name, self._origin)
                key = self._key if name == self._provider else ""
                result = await sender.send(prompt.text, prompt.id, key, timeout)
            except _FALLS_TO_NEXT as error:
                failures.append(error)
                if number + 1 < len(names) and sender is not None:
                    await take_back(
                        journal, sender.asked_at, WaitingPrompt(prompt.words, prompt.id) if is_posted else None
                    )
            else:
                self._origin = None
                for failure in failures:  # if all fail, the raised error reports them
                    log.warning("thread %r goes on with %s: %s", self._thread_id, name, failure)
                return result
            finally:
                self._settle_on(journal, name)
        raise with_notes(failures)

    def _who_has_it(self, journal: Journal) -> str:
        """Return the name of the provider to ask first. If the session was resumed by its thread's id alone, that is
        the provider which did the last turns, if it is one of this agent's providers. In all other cases it is the
        session's current provider."""
        recorded = current_provider(journal.thread.checkpoint)
        return recorded if not self._key and recorded in self._agent.settings.providers else self._provider

    def _settle_on(self, journal: Journal, name: str) -> None:
        known = journal.thread.checkpoint.provider_keys.get(name)
        if known is not None:
            self._provider, self._key = name, known


def _answer_in(thread_id: str, state: Checkpoint, prompt: Asked) -> RunResult | None:
    """Return the answer that a thread already has for a prompt, or None if it has none. `prompt` is an `Asked`: a
    prompt's text with its id, by which the answer is found in `state`, the thread's state. The usage, cost and duration
    of the result are 0. Raises `InvalidInput` if the id is on record with another text."""
    found = exchange_of(state, prompt.id)
    if found is None:
        return None
    prompt.check_words(thread_id, found.prompt)
    return answer_on_record(thread_id, state, found) if found.status == "done" else None


def refuse_turns(*, answer: Any = None, max_turns: int | None = None, turns: int | None = None) -> None:
    """Raise `UsageError` if `answer`, `max_turns` or `turns` is given: a provider's program asks no questions that could be
    answered later, and counts no turns."""
    if answer is not None or max_turns is not None or turns is not None:
        raise UsageError(
            "answer=, max_turns= and turns= are for the built-in agent: a provider's program runs a loop of its own, asks "
            "nothing that could be answered later, and counts no turns. Limit it by timeout= or budget=."
        )


def with_notes(failures: list[ProviderError]) -> ProviderError:
    """Return the last of these errors, after adding a note to it for each earlier one."""
    *others, last = failures
    for earlier in others:
        last.add_note(f"before that, {earlier}")
    return last
