"""`ThreadHandle`: talk to a thread that workers of Temporal run an agent on, from any process."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Literal

import msgspec
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from clew.agent import Agent, Question, RunResult
from clew.agent.prompts import check_prompt
from clew.agent.questions import answers_to, open_questions
from clew.checkpointers.checks import check_thread_id
from clew.errors import InvalidInput, ThreadNotFound
from clew.integrations.temporal.agents import recorded_result, redact_of, store_of
from clew.integrations.temporal.letters import deposit
from clew.integrations.temporal.payloads import TASK_QUEUE, Letter, Limits, ThreadStart, ThreadState
from clew.integrations.temporal.plugin import ClewPlugin
from clew.integrations.temporal.retries import error_of
from clew.integrations.temporal.workflow import AgentThread
from clew.threads import Thread
from clew.threads.leases import is_live, shown_status
from clew.threads.views.entries import Line, read_lines

__all__ = ["ThreadHandle", "ThreadStatus", "thread"]

_SHORTEST, _LONGEST = 0.01, 1.0
"""The shortest and the longest pause between two looks at the store, in seconds."""
_SHARE = 0.1
"""A pause is this share of the time that was waited so far: so it adds little to a short run, and costs little in a
long one."""
_ASK_EVERY = 5
"""How many times rarer than the store the workflow is asked, in which a worker takes part."""
_RPC_TIMEOUT = timedelta(seconds=5)
_NO_ANSWER = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE, RPCStatusCode.CANCELLED)
_LONGEST_ID = 900
"""Temporal takes ids of workflows of up to 1,000 bytes."""


class ThreadStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a thread stands."""

    status: Literal["absent", "queued", "running", "waiting", "interrupted", "failed", "done"]
    """The status on record; `absent` if the store has no such thread yet."""
    position: int = 0
    """How many frames the thread's log has: where `events(after=…)` goes on."""
    turns: int = 0
    questions: tuple[Question, ...] = ()
    """The questions to people that the thread waits for."""
    pending: tuple[str, ...] | None = ()
    """The ids of prompts and answers that are not done, the one that is worked on first. None if no worker told."""
    problem: str = ""
    """Why the last attempt at the present work failed, if Temporal is going to try it again."""


def thread(
    client: Client,
    agent: Agent,
    thread_id: str,
    *,
    task_queue: str | None = None,
    activity_queue: str | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> ThreadHandle:
    """Return a handle of a thread of this agent. Nothing happens yet, and the thread need not exist.

    `agent` has the name and the store of the workers' agent. `task_queue` is the queue of the workflow, and
    `activity_queue` that of the workers with the agent; by default both are as the client's `ClewPlugin` says.
    `limits` count for a thread whose workflow is not running yet.
    """
    check_thread_id(thread_id)
    if not agent.name:
        raise InvalidInput("Temporal finds an agent by its name. Give it one: Agent(…, name=…)")
    if len(thread_id.encode()) > _LONGEST_ID:
        raise InvalidInput(f"Temporal takes thread ids of up to {_LONGEST_ID} bytes. Choose a shorter one.")
    plugins = client.config(active_config=True).get("plugins", [])
    plugin = next((found for found in plugins if isinstance(found, ClewPlugin)), None)
    queue = task_queue or (plugin.task_queue if plugin else TASK_QUEUE)
    routed = plugin.task_queues.get(agent.name, "") if plugin else ""
    return ThreadHandle(client, agent, thread_id, queue, routed if activity_queue is None else activity_queue, limits)


class ThreadHandle:
    """A thread that workers run an agent on. It can be made in any process that reaches Temporal and the agent's
    store."""

    def __init__(
        self, client: Client, agent: Agent, thread_id: str, task_queue: str, activity_queue: str, limits: Limits
    ) -> None:
        self.thread_id = thread_id
        self._client = client
        self._agent = agent
        self._task_queue = task_queue
        self._start = ThreadStart(thread_id, agent.name, activity_queue, limits)

    @property
    def workflow(self) -> WorkflowHandle[Any, Any]:
        """Temporal's handle of the thread's workflow, for example to cancel it: that stops the run in an orderly way
        and drops what was not begun."""
        return self._client.get_workflow_handle(f"clew:{self.thread_id}")

    async def ask(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> RunResult:
        """Ask the agent, and return the result once the work has stopped. Raises the error with which the work failed,
        unless Temporal tries it again.

        With the `prompt_id` of an earlier prompt, waits for that one or returns its answer. If this call is cut off, the
        work goes on: call `result` with the id, or ask again with it. After `timeout` seconds raises `TimeoutError`.
        """
        async with asyncio.timeout(timeout):
            return await self.result(await self.post(prompt, prompt_id=prompt_id))

    async def answer(self, answer: Any, *, timeout: float | None = None) -> RunResult:
        """Answer the question that the thread waits for, or several with a dict by question id. Returns the result once
        the work has stopped again. Raises `InvalidInput` if the answer does not fit the questions, and `UsageError` if
        there are none."""
        async with asyncio.timeout(timeout):
            return await self.result(await self.post(answer=answer))

    async def post(self, prompt: str | None = None, *, answer: Any = None, prompt_id: str | None = None) -> str:
        """Send a prompt or an answer, or neither to go on with what is on record, and return its id for `result`.

        When this returns, it is durable: it will be worked on even if no worker is up now. The words are in the agent's
        store, and Temporal has the id. A `prompt_id` that was sent before is not asked again.
        """
        letter = await self._letter(prompt, answer, prompt_id)
        await self._client.start_workflow(
            AgentThread.run,
            self._start,
            id=f"clew:{self.thread_id}",
            task_queue=self._task_queue,
            start_signal="post",
            start_signal_args=[letter],
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        return letter.id

    async def _letter(self, prompt: str | None, answer: Any, prompt_id: str | None) -> Letter:
        """Put what is to be sent into the store, and return the letter that points at it."""
        store = store_of(self._agent)
        if prompt is None and answer is None:
            if prompt_id is not None:
                raise InvalidInput("prompt_id= was given without the prompt that it is for. Give both.")
            return Letter(f"resume-{secrets.token_hex(8)}", "resume")
        if prompt is None:
            answers_to(self.thread_id, await Thread.load(store, self.thread_id), answer)
            letter = Letter(f"answer-{secrets.token_hex(8)}", "answer")
            await deposit(store, self.thread_id, letter.id, answer)
            return letter
        if answer is not None:
            raise InvalidInput("give a prompt or an answer, and not both")
        check_prompt(prompt, prompt_id)
        letter = Letter(prompt_id or f"prompt-{secrets.token_hex(8)}")
        await deposit(store, self.thread_id, letter.id, prompt, redact_of(self._agent))
        return letter

    async def result(self, letter_id: str, *, timeout: float | None = None) -> RunResult:
        """Wait until the work on a prompt or an answer has stopped, and return the result, in any process. The id is
        what `post` returned, or the `prompt_id`. For an answer it is the result of the thread's last prompt.

        Raises the error with which the work failed for good. If nothing is known of the id, the result is `interrupted`.
        """
        began = time.monotonic()
        looks, seen = 0, -1
        async with asyncio.timeout(timeout):
            while True:
                head = await store_of(self._agent).head(self.thread_id)
                is_new = head is not None and head.frames != seen and not is_live(head.lease)
                if head is not None and is_new:
                    seen = head.frames
                    found = await self._recorded(letter_id)
                    if found is not None and found.status == "done":
                        return found
                if (is_new and looks) or looks % _ASK_EVERY == _ASK_EVERY - 1:
                    state = await self._state()
                    if state is not None and letter_id not in state.pending:
                        return await self._ended(letter_id, state)
                looks += 1
                await asyncio.sleep(min(_LONGEST, max(_SHORTEST, _SHARE * (time.monotonic() - began))))

    async def _ended(self, letter_id: str, state: ThreadState) -> RunResult:
        """Return the result of a letter that the workflow has no more to do for, or raise the error that it ended
        with."""
        for failure in state.failures:
            if failure.letter == letter_id:
                raise error_of(failure)
        found = await self._recorded(letter_id)
        if found is None and letter_id.startswith(("answer-", "resume-")):
            found = await self._last_result()
        if found is not None:
            return found
        return RunResult(
            thread_id=self.thread_id,
            prompt_id=letter_id,
            session_id=self.thread_id,
            status="interrupted",
            reason="nothing of it is on record: it was interrupted before it was begun, or never sent. Ask again.",
        )

    async def _recorded(self, prompt_id: str) -> RunResult | None:
        """Return what came of this prompt as far as it is on record, or None."""
        try:
            state = await Thread.load(store_of(self._agent), self.thread_id)
        except ThreadNotFound:
            return None
        return recorded_result(self._agent, self.thread_id, state, prompt_id)

    async def _last_result(self) -> RunResult | None:
        exchanges = (await self._agent.trajectory(self.thread_id)).exchanges
        return await self._recorded(exchanges[-1].prompt_id) if exchanges else None

    async def _state(self) -> ThreadState | None:
        """Return what the workflow says of its letters, or None if no worker answers. A workflow that does not exist,
        or has ended in any way, has nothing left to do."""
        try:
            told = await self.workflow.describe(rpc_timeout=_RPC_TIMEOUT)
            state = await self.workflow.query(AgentThread.state, rpc_timeout=_RPC_TIMEOUT)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return ThreadState([], [])
            if error.status in _NO_ANSWER:
                return None
            raise
        has_ended = told.status not in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)
        return ThreadState([], state.failures) if has_ended else state

    async def status(self) -> ThreadStatus:
        """Return how the thread stands, from the store and from Temporal."""
        store = store_of(self._agent)
        head, state, problem = await store.head(self.thread_id), await self._state(), await self._problem()
        pending = None if state is None else tuple(state.pending)
        if head is None:
            return ThreadStatus(status="absent", pending=pending, problem=problem)
        asks = head.status == "waiting" and head.lease is None
        return ThreadStatus(
            status=shown_status(head),
            position=head.frames,
            turns=head.turns,
            questions=tuple(open_questions(await Thread.load(store, self.thread_id))) if asks else (),
            pending=pending,
            problem=problem,
        )

    async def _problem(self) -> str:
        try:
            told = await self.workflow.describe(rpc_timeout=_RPC_TIMEOUT)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return ""
            raise
        return next((work.last_failure.message for work in told.raw_description.pending_activities), "")

    async def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[Line]:
        """Yield the entries of the thread's log, as they are recorded, each with its time, its kind and the number of
        its frame. Begins with frame `after`; to go on later, give the number of the last frame that was seen, plus one.
        With `follow=False` ends at the end of the log; otherwise goes on until the caller stops, and waits for a thread
        that does not exist yet. A thread that is deleted and made anew is read from its start."""
        store, log_id = store_of(self._agent), ""
        since = time.monotonic()
        while True:
            head = await store.head(self.thread_id)
            if head is not None and log_id not in ("", head.log_id):
                after = 0
            if head is not None and head.frames > after:
                async for line in read_lines(store, head, after):
                    yield line
                after, log_id, since = head.frames, head.log_id, time.monotonic()
            if not follow:
                return
            await asyncio.sleep(min(_LONGEST, max(_SHORTEST, _SHARE * (time.monotonic() - since))))

    async def interrupt(self) -> None:
        """Stop the run that is under way. What it did is on record, and it goes on with the next prompt, or with
        `post()`. Prompts that were sent after its own are asked next."""
        await self._signal("interrupt")

    async def close(self) -> None:
        """End the thread's workflow once nothing is left to do. The thread stays in the store, and another prompt starts
        a workflow again."""
        await self._signal("close")

    async def _signal(self, name: str) -> None:
        try:
            await self.workflow.signal(name)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
