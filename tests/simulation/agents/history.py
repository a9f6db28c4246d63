"""What the callers of agents were told, and what must hold for it and for the world.

While a run is under way, `store.py` and `world.py` watch that no process takes a live lease, writes or begins anything
without its lease, acts on what is not on record, or is asked to do again what is on record. Here are the other promises:

- A run ends: within its timeout and some seconds for a store that does not answer, or within `LONGEST` seconds.
- Acknowledged is there: every append that returned, and every answer that a caller got.
- A `once` call acts once, or it is the case that the guide names; its result says that it acted, or that nobody knows.
- A prompt with an id is asked once, and has one answer.
- Each request to the model is on record: with its response, as refused, or as unaccounted.
- The conversation is well formed: each call has one result, right after the response that makes it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from clew.agent.prompts import is_prompt
from clew.errors import ClewError
from clew.log import Logged, MessageAdded, ModelCallRefused, ModelCallStarted, StatusChanged, ToolIntent
from clew.messages import Assistant, Message, Text, Tool, ToolCall, ToolResult, plain_text, tool_calls
from tests.simulation.agents.store import Record
from tests.simulation.agents.world import HELPER, WITH_RECONCILE, World
from tests.simulation.loop import Machine, current_machine

__all__ = ["Broken", "History", "Job"]

LONGEST = 900.0
"""Seconds in which each run ends that has no timeout."""
SLACK = 45.0
"""Seconds that a run with a timeout may take longer, if the store does not answer."""
UNKNOWN = "It is not known whether"


class Broken(AssertionError):
    """A promise is broken in a simulated run. `trace` is what happened."""

    trace: tuple[str, ...] = ()


class Job(msgspec.Struct, eq=False):
    """A run that a caller has begun."""

    what: str
    thread_id: str
    prompt_id: str
    machine: Machine
    began: float
    timeout: float | None


class History:
    """Everything that the callers of agents did in one run of the simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = world.loop
        self._jobs: dict[Job, None] = {}
        self.answers: dict[tuple[str, str], set[str]] = {}
        """For each thread and prompt id, the answers that callers got."""
        self.outcomes: dict[str, int] = {}

    def begin(self, what: str, thread_id: str, prompt_id: str, timeout: float | None) -> Job:
        self._loop.say("%s %s %s begins", what, thread_id, prompt_id)
        job = Job(what, thread_id, prompt_id, current_machine(), self._loop.time(), timeout)
        self._jobs[job] = None
        return job

    def end(self, job: Job, outcome: Any) -> None:
        """Note how a run ended: with a result, or with this error."""
        del self._jobs[job]
        self._check_time(job)
        is_error = isinstance(outcome, BaseException)
        words = type(outcome).__name__ if is_error else f"{outcome.status} {outcome.reason}"
        self._loop.say(
            "%s %s %s: %s", job.what, job.thread_id, job.prompt_id, f"{words}: {outcome}" if is_error else words
        )
        kind = words.split(":")[0]
        self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
        if not is_error and outcome.status == "done" and job.prompt_id:
            self.answers.setdefault((job.thread_id, job.prompt_id), set()).add(outcome.output)
        if is_error and not isinstance(outcome, ClewError) and type(outcome).__name__ != "CancelledError":
            raise Broken(f"{job.what} {job.thread_id} raised {outcome!r}") from outcome

    def forget(self, machine: Machine) -> None:
        """A machine was killed: its runs never end."""
        self._jobs = {job: None for job in self._jobs if job.machine is not machine}

    def look(self) -> None:
        """Raise `Broken` if a promise was broken so far, or if a run goes on for too long."""
        if self._world.server.broken:
            raise Broken(self._world.server.broken)
        for job in self._jobs:
            self._check_time(job)

    def _check_time(self, job: Job) -> None:
        took = self._world.awake(job.machine, job.began)
        if took > (LONGEST if job.timeout is None else job.timeout + SLACK):
            raise Broken(f"{job.what} {job.thread_id} of {job.machine}, timeout {job.timeout}, takes {took:.1f} s")

    # What must hold in the end

    def check(self, logs: dict[str, list[bytes]]) -> None:
        """Compare what callers were told, and what happened in the world, with the logs. Call this when all threads are
        done. `logs` are the frames of each thread."""
        self.look()
        for thread_id, at, frames in self._world.server.acknowledged:
            if tuple(logs[thread_id][at : at + len(frames)]) != frames:
                raise Broken(f"an append to {thread_id} at {at} that returned is gone")
        for thread_id, record in self._world.server.records.items():
            messages = record.fold.checkpoint().history
            self._check_form(thread_id, messages)
            self._check_prompts(thread_id, record.entries)
            self._check_spend(thread_id, record)
            for message, following in pairwise(messages):
                for call, result in zip(tool_calls(message), following.content, strict=False):
                    self._check_call(call, result)
        for (thread_id, prompt_id), answers in self.answers.items():
            said = [plain_text(message) for message in self._world.server.records[thread_id].fold.checkpoint().history]
            if len(answers) > 1 or not answers <= set(said):
                raise Broken(f"the answers to {prompt_id} of {thread_id} were {sorted(answers)}")

    def _check_form(self, thread_id: str, messages: tuple[Message, ...]) -> None:
        for place, message in enumerate(messages):
            calls = [call.id for call in tool_calls(message)]
            following = messages[place + 1] if place + 1 < len(messages) else None
            given = following.content if isinstance(following, Tool) else ()
            results = [result.call_id for result in given if isinstance(result, ToolResult)]
            is_given_up = following is None and "/" in thread_id  # a sub-agent that failed is not resumed
            if calls != results and not is_given_up:
                raise Broken(f"message {place} of {thread_id} calls {calls}, and the results are for {results}")
        if len(set(_numbers(messages))) != len(_numbers(messages)):
            raise Broken(f"a response is twice in {thread_id}: {_numbers(messages)}")

    def _check_prompts(self, thread_id: str, entries: list[Logged]) -> None:
        """Check that a prompt is asked again only if it ended without an answer, and another prompt came after it."""
        stands: dict[str, str] = {}
        together: list[str] = []  # the last prompt, and those before it that are answered with it
        for entry in entries:
            message = entry.message if isinstance(entry, MessageAdded) else None
            begun = [text for text in together if stands[text] == "begun"]
            stopped = [text for text in together if stands[text] == "stopped"]
            if message is not None and is_prompt(message):
                text = plain_text(message)
                if stands.get(text, "asked") not in ("asked", "stopped"):
                    raise Broken(f"{text!r} of {thread_id} is asked again, and was {stands[text]}")
                together = [*together, text] if begun else [text]
                stands[text] = "asked"
            elif type(message) is Assistant:
                stands |= dict.fromkeys(together, "begun" if tool_calls(message) else "answered")
            elif isinstance(entry, StatusChanged):
                stands |= dict.fromkeys(begun, "stopped")
            elif isinstance(entry, ModelCallStarted | ToolIntent):
                stands |= dict.fromkeys(stopped, "begun")

    def _check_spend(self, thread_id: str, record: Record) -> None:
        entries = record.entries
        refused = sum(isinstance(entry, ModelCallRefused) for entry in entries)
        responses = sum(isinstance(entry, MessageAdded) and type(entry.message) is Assistant for entry in entries)
        # a request that was under way when a sub-agent was given up counts at its next request, which never comes
        unaccounted = record.fold.unaccounted + record.fold.in_flight
        begun = [bought for bought in self._world.purchases if bought.thread_id == thread_id]
        charged = sum(bought.is_charged for bought in begun)
        if charged > responses + unaccounted or len(begun) > responses + unaccounted + refused:
            raise Broken(
                f"{thread_id}: {len(begun)} requests, {charged} of them charged; on record are {responses} responses, "
                f"{refused} refusals, {unaccounted} unaccounted"
            )
        if record.fold.input_tokens != 10 * responses:
            raise Broken(f"{thread_id}: {responses} responses, and {record.fold.input_tokens} tokens")

    def _check_call(self, call: ToolCall, result: Any) -> None:
        if call.name in ("look", "put", HELPER) or not isinstance(result, ToolResult):
            return
        n = call.arguments["n"]
        text = " ".join(block.text for block in result.content if isinstance(block, Text))
        if call.name == "trip":
            acts = self._world.acts.get(f"{n} hotel", [])
        else:
            acts = self._world.acts.get(n, [])
            if acts and text != f"did {n}" and UNKNOWN not in text:
                raise Broken(f"{call.name} {n} has acted, and its result is {text!r}")
            if len(acts) > 1 and call.name not in (*WITH_RECONCILE, "sign"):
                raise Broken(f"{call.name} {n} has acted {len(acts)} times, and has no reconcile")
        if text == f"did {n}" and not acts:
            raise Broken(f"the result of {call.name} {n} is {text!r}, and it has not acted")
        if sum(not act.is_late for act in acts) > 1:
            raise Broken(f"{call.name} {n} has acted {len(acts)} times, on {[act.machine for act in acts]}")


def _numbers(messages: tuple[Message, ...]) -> list[str]:
    return [plain_text(message) for message in messages if type(message) is Assistant]
