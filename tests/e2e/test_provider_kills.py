"""The three real coding agents, killed: they or we, in the first turn or a later one, in the middle of words or a tool."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

import pytest

from clew import open_checkpointer
from clew.agent.recovery import Left, left_over
from clew.messages import Text
from clew.sync import Thread as BlockingThread
from clew.sync import open_checkpointer as open_blocking
from tests.e2e.desk import NAMES, Desk, desk, has_call, texts
from tests.providers.worker import Worker, descendants, is_running, wait_until, worker
from tests.sampling import FULL
from tests.servers.clis import Machine

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash, pytest.mark.xdist_group("real-clis")]

_WORDS = "half of an answer that is never whole"
_WHEN = ("while words come", "while a tool runs")
_WHO = ("us", "the program")
_ALL = [*itertools.product(NAMES, itertools.product(itertools.product(_WHO, _WHEN), repeat=2))]
_SAMPLE = [
    (name, kills)
    for name, kills in _ALL
    if kills in [(("us", _WHEN[0]), ("the program", _WHEN[1])), (("the program", _WHEN[0]), ("us", _WHEN[1]))]
    and (name, kills[0][0]) != ("opencode", "the program")
]
"""Who is killed and when, in the first turn and in a later one."""


@pytest.mark.parametrize(("provider", "kills"), _ALL if FULL else _SAMPLE, ids=str)
async def test_nothing_is_lost_and_nothing_is_left_running_whoever_is_killed(
    provider: str, kills: tuple[tuple[str, str], tuple[str, str]], tmp_path: Path
) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        handle = _killed(here, machine, provider, *kills[0], "")
        async with open_checkpointer(here.url) as store:
            session = here.agent(machine, provider, store).resume_session(handle)
            await session.send("RUN echo settled")
            _check_told(machine, kills[0][1])
            handle = session.resume_handle
        _killed(here, machine, provider, *kills[1], handle)
        async with open_checkpointer(here.url) as store:
            session = here.agent(machine, provider, store).resume_session(handle)
            turn = await session.send("Go on")
            assert "Go on" in (turn.output or "")
            _check_told(machine, kills[1][1])
            assert has_call(machine.asked[-1], "echo settled", "settled")
            found = await session.trajectory()
            assert [turn.status == "done" for turn in found.exchanges] == [False, True, False, True]
            if "claude" in provider and kills[0][1] == _WHEN[0]:
                (kept,) = found.exchanges[0].blocks
                assert isinstance(kept, Text)
                assert kept.text, "it streams its words, and they are kept"
                assert _WORDS.startswith(kept.text)


@pytest.mark.slow
@pytest.mark.parametrize("who", _WHO)
@pytest.mark.parametrize("provider", NAMES)
async def test_on_a_machine_that_has_only_the_store_the_model_is_told_of_a_call_that_had_begun(
    provider: str, who: str, tmp_path: Path
) -> None:
    with desk(tmp_path) as here:
        handle = _killed(here, here.machine(), provider, who, _WHEN[1], "")
        other = here.machine("another machine")
        async with open_checkpointer(here.url) as store:
            await here.agent(other, provider, store).resume_session(handle).send("Go on")
        _check_told(other, _WHEN[1])
        assert "Go on" in texts(other.asked[-1])


def _killed(here: Desk, machine: Machine, provider: str, who: str, when: str, handle: str) -> str:
    """Send a prompt and kill; nothing of it is left. The session's handle."""
    mark = machine.cwd / f"mark-{len(machine.asked)}"
    prompt = f"STREAM {_WORDS}" if when == _WHEN[0] else f"RUN echo on > {mark}; sleep 987"
    job = here.job(machine, provider, prompt, **({"handle": handle} if handle else {}))
    with worker(machine.place(), here.url, **job) as running:
        handle = running.wait_for("handle")["handle"]
        wait_until(
            lambda: mark.exists() if when == _WHEN[1] else machine.is_hanging,
            f"{provider} gets to where it is killed",
            60,
        )
        if when == _WHEN[0] and provider == "claude_code":
            wait_until(lambda: bool(_left(here.url, handle).words), "its words are on record")
        if when == _WHEN[1]:
            wait_until(lambda: bool(_left(here.url, handle).in_doubt), "the call is on record while it runs")
        below = _kill(running, who)
        if who == "the program":
            assert running.wait_for("error")["error"] == "ProviderError"
    wait_until(lambda: not any(map(is_running, below)), "nothing of it runs any more")
    return str(handle)


def _left(url: str, handle: str) -> Left:
    """What the record would say of the prompt if everything stopped now."""
    with open_blocking(url) as store:
        return left_over(BlockingThread.load(store, json.loads(handle)["session_id"]))


def _kill(running: Worker, who: str) -> list[int]:
    if who == "us":
        return running.kill()
    _, program, *others = descendants(running.pid)
    os.kill(program, signal.SIGKILL)
    return [program, *others]


def _check_told(machine: Machine, when: str) -> None:
    """What the model is told with the next prompt of what was cut off."""
    told = next(words for words in map(texts, reversed(machine.asked)) if "[clew]" in words)
    assert "stopped while it worked on this prompt" in told
    if when == _WHEN[1]:
        assert "not known whether they took effect" in told
        assert "sleep 987" in told
