"""Agents keep their promises under every seed, and the simulation finds bugs that they had or could have had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from clew._runtime.clock import now
from clew.agent import job as job_module
from clew.agent import journal as journal_module
from clew.agent import loop as loop_module
from clew.agent.journal import CallJournal, Journal
from clew.agent.loop import Loop
from clew.agent.settings import Settings
from clew.checkpointers import Checkpointer, Head
from clew.log import Logged, ModelCallStarted, StepIntent, ToolIntent
from clew.models import ModelRequest, retry
from clew.threads import leases
from clew.threads import thread as thread_module
from clew.threads.takeover import Predecessor, until_lost
from clew.threads.writer import LogWriter
from tests.sampling import only_in_full
from tests.simulation.agents.history import Broken
from tests.simulation.agents.work import simulate
from tests.simulation.seeds import FIRST, PARTS, simulate_all, simulate_for_a_while

PART = 100
MOST = 3000
"""How many seeds are tried, at most, to find a planted bug."""


def test_agents_keep_their_promises() -> None:
    simulate_all(simulate, range(FIRST, FIRST + 20))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_agents_keep_their_promises_under_a_thousand_seeds(part: int) -> None:
    simulate_all(simulate, range(FIRST + part * PART, FIRST + (part + 1) * PART))


@only_in_full
@pytest.mark.parametrize("part", range(PARTS))
def test_agents_keep_their_promises_under_as_many_seeds_as_there_is_time_for(part: int) -> None:
    simulate_for_a_while(simulate, part)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 3))
def test_one_seed_gives_one_trace(seed: int) -> None:
    assert simulate(seed) == simulate(seed)


@pytest.mark.slow
def test_one_seed_gives_one_trace_in_every_process() -> None:
    code = (
        "from tests.simulation.agents.work import simulate\n"
        f"print(*[line for seed in range({FIRST}, {FIRST} + 20) for line in simulate(seed)], sep='\\n')"
    )
    traces = set()
    for hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": hashes}, capture_output=True, check=True
        )
        traces.add(blake3(done.stdout).hexdigest())
        assert done.stdout.count(b"\n") > 1000
    assert len(traces) == 1


# What the simulation finds: mends taken out, and bugs planted


def found(first: int = 0) -> str:
    """Return what is broken under the first seed, from this one on, that finds something, or "" if none does."""
    for seed in range(first, first + MOST):
        try:
            simulate(seed)
        except Broken as broken:
            print(str(broken).partition("\n")[0])
            return str(broken).partition("\n")[0]
    return ""


def unguarded(monkeypatch: pytest.MonkeyPatch, kind: type[Logged]) -> None:
    """Let effects of one kind begin whether the lease has ended or not."""
    sound = journal_module._begins_effect
    monkeypatch.setattr(journal_module, "_begins_effect", lambda entry: sound(entry) and not isinstance(entry, kind))


@pytest.mark.slow
def test_it_finds_a_step_that_begins_after_the_lease_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    unguarded(monkeypatch, StepIntent)
    assert re.search(r"begins the step .* without its lease", found(first=100))


def test_it_finds_a_tool_that_begins_after_the_lease_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    unguarded(monkeypatch, ToolIntent)
    assert re.search(r"begins \w+ [\d.]+ on .* without its lease", found())


@pytest.mark.slow
def test_it_finds_a_request_to_the_model_after_the_lease_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(settings: Settings, journal: Any, *given: Any) -> Any:
        async def leave_out_once() -> None:
            del journal.keep_lease

        journal.keep_lease = leave_out_once
        return await sound(settings, journal, *given)

    sound: Any = vars(loop_module)["ask"]
    monkeypatch.setattr(loop_module, "ask", ask)
    unguarded(monkeypatch, ModelCallStarted)
    assert re.search(r"begins request \d+ on .* without its lease", found())


@pytest.mark.slow
def test_it_finds_a_request_that_is_repeated_after_the_lease_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(attempt: retry.Attempt, request: ModelRequest, **given: Any) -> Any:
        return sound(attempt, msgspec.structs.replace(request, before_retry=None), **given)

    sound = retry.call
    monkeypatch.setattr(retry, "call", call)
    assert re.search(r"begins request \d+ on .* without its lease", found())


def test_it_finds_a_lease_that_is_taken_by_the_clocks_of_two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = leases.wait_until_free

    async def wait_until_free(checkpointer: Checkpointer, head: Head, wait: float | None = None) -> None:
        if head.lease is not None and head.lease.expires_at > now():
            await sound(checkpointer, head, wait)

    monkeypatch.setattr(thread_module, "wait_until_free", wait_until_free)
    assert re.search("takes .* from .*, which has it for", found())


def test_it_finds_a_renewal_that_both_processes_can_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that has run out is renewed by an append that moves the log."""

    async def renew(writer: LogWriter) -> None:
        await writer.flush(renew=True)
        writer._held = type(writer._held).now()

    monkeypatch.setattr(LogWriter, "renew", renew)
    assert "without its lease" in found()


def test_it_finds_a_response_that_is_acted_on_before_it_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Journal.record

    async def record(journal: Journal, *entries: Logged) -> None:
        if isinstance(entries[0], ToolIntent):
            journal.hold(*entries)
        else:
            await sound(journal, *entries)

    monkeypatch.setattr(Journal, "record", record)
    assert "before the response that calls it is on record" in found()


@pytest.mark.slow
def test_it_finds_a_reconcile_that_does_not_wait_for_the_end_of_the_old_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async def outwait(predecessor: Predecessor) -> bool:
        return False

    monkeypatch.setattr(Predecessor, "outwait", outwait)
    assert "has acted 2 times" in found()


@pytest.mark.slow
def test_it_finds_a_run_that_goes_on_after_it_learnt_that_it_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_lost, "_tell", lambda self: None)
    assert "knew that it had lost the thread" in found()


def test_it_finds_a_prompt_whose_id_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_answer(*given: Any) -> None:
        return None

    monkeypatch.setattr(job_module, "find_answer", find_answer)
    monkeypatch.setattr(job_module, "answer_in", lambda *given: None)
    monkeypatch.setattr(Loop, "_is_known", lambda *given: False)
    assert "is asked again" in found()


def test_it_finds_steps_that_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = CallJournal.__init__

    def init(journal: CallJournal, *given: Any) -> None:
        sound(journal, *given)
        journal._outcomes.clear()

    monkeypatch.setattr(CallJournal, "__init__", init)
    assert "runs again, and its value is on record" in found(13)


def test_it_finds_a_request_that_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Journal.record

    async def record(journal: Journal, *entries: Logged) -> None:
        if isinstance(entries[0], ModelCallStarted):
            await journal.keep_lease()
        else:
            await sound(journal, *entries)

    monkeypatch.setattr(Journal, "record", record)
    assert re.search("of them charged|differs from what is on record", found())
