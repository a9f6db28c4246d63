"""One writer at a time, whatever becomes of the processes and their clocks."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clew.checkpointers import Head, open_checkpointer
from clew.messages import Text, User
from clew.threads import Thread
from tests.crash.processes import FULL, PATIENCE, STORES, Speaker, url_of
from tests.servers.postgres import running_postgres

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

HOUR = 3600
LEASE = 6.0
"""Seconds that a lease lasts. Long enough that a busy machine renews it in time."""
RACERS = 16
ROUNDS = 20 if FULL else 3


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


def holder(url: str, *, lease: float = 0, clock: float = 0, elsewhere: bool = False) -> Speaker:
    """A process that holds threads. It has opened the store when this returns."""
    options = [f"--lease={lease}", f"--clock={clock}", *(["--elsewhere"] if elsewhere else [])]
    started = Speaker("tests.crash.holder", url, *options, quiet=True)
    assert started.hear() == "ready"
    return started


async def on_record(url: str) -> tuple[list[bytes], Head | None]:
    async with open_checkpointer(url) as store:
        return await store.read("t"), await store.head("t")


async def texts(url: str) -> list[str]:
    """All that was said on the thread, in order."""
    async with open_checkpointer(url) as store:
        state = await Thread.load(store, "t")
    return [
        block.text
        for message in state.messages
        if isinstance(message, User)
        for block in message.content
        if isinstance(block, Text)
    ]


async def something_said(url: str, prefix: str) -> None:
    """Wait until the newest text on the thread begins with this."""
    deadline = time.monotonic() + PATIENCE
    while not "".join((await texts(url))[-1:]).startswith(prefix):
        assert time.monotonic() < deadline, f"nothing with {prefix} was said"
        time.sleep(0.01)


def one_winner(racers: list[Speaker]) -> Speaker:
    """All of these open one thread at the same moment: exactly one gets it, the others are told that it is busy."""
    moment = time.monotonic() + 0.3
    for racer in racers:
        racer.say(f"at {moment}")
        racer.say("open t")
    assert [racer.hear() for racer in racers] == ["now"] * len(racers)
    answers = [racer.hear() for racer in racers]
    assert sorted(answer.split(" ")[0] for answer in answers) == ["ThreadBusy"] * (len(racers) - 1) + ["done"]
    return racers[answers.index("done")]


def test_of_sixteen_processes_that_open_a_thread_at_once_one_wins(url: str) -> None:
    with ExitStack() as stack:
        racers = [
            stack.enter_context(Speaker("tests.crash.holder", url, quiet=True)) for _ in range(RACERS)
        ]  # all at once: a start takes longer than all else
        assert [racer.hear() for racer in racers] == ["ready"] * RACERS
        for _ in range(ROUNDS):
            winner = one_winner(racers)
            assert winner.ask("say won") == "done"
            assert winner.ask("close") == "done"
        winner = one_winner(racers)
        winner.signal(signal.SIGKILL)
        winner.wait()
        one_winner([racer for racer in racers if racer is not winner])


async def test_a_process_stopped_past_its_lease_changes_nothing_and_is_told(url: str) -> None:
    with holder(url, lease=2) as stopped, holder(url) as other:
        assert stopped.ask("open t") == "done"
        assert stopped.ask("say before") == "done"
        stopped.signal(signal.SIGSTOP)
        assert other.ask("open t").startswith("ThreadBusy")
        time.sleep(2.5)
        assert other.ask("open t") == "done"
        assert other.ask("say other") == "done"
        before = await on_record(url)
        stopped.say("say after")
        stopped.signal(signal.SIGCONT)
        assert stopped.hear().startswith("LeaseLost")
        time.sleep(1)  # its lease was to be renewed in this time
        assert stopped.ask("say more").startswith("LeaseLost")
        assert stopped.ask("close").startswith("LeaseLost")
        assert await on_record(url) == before
        assert other.ask("say end") == "done"
        assert other.ask("close") == "done"
    assert await texts(url) == ["before", "other", "end"]


@pytest.mark.parametrize("reaped", [True, False])
async def test_a_killed_holder_is_replaced_at_once(url: str, reaped: bool) -> None:
    with holder(url, lease=HOUR) as killed, holder(url) as other:
        assert killed.ask("open t") == "done"
        assert killed.ask("say before") == "done"
        assert other.ask("open t").startswith("ThreadBusy")
        killed.signal(signal.SIGKILL)
        if reaped:
            killed.wait()
        else:
            wait_for_zombie(killed.pid)
        assert other.ask("open t") == "done"
        assert other.ask("say after") == "done"
    assert await texts(url) == ["before", "after"]


def wait_for_zombie(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_holder_killed_while_it_writes_is_replaced_at_once_and_keeps_what_was_acknowledged(url: str) -> None:
    with holder(url, lease=HOUR) as killed, holder(url) as other:
        assert killed.ask("open t") == "done"
        assert killed.ask("say-many a 20") == "20 done"
        killed.say("say-many b 100000")
        time.sleep(0.1)
        killed.signal(signal.SIGKILL)
        killed.wait()
        assert other.ask("open t") == "done"
        assert other.ask("say after") == "done"
    said = await texts(url)
    assert said[:20] == [f"a{number}" for number in range(20)]
    assert said[20:] == [*(f"b{number}" for number in range(len(said) - 21)), "after"]


@pytest.mark.parametrize("clock", [HOUR, -HOUR])
async def test_a_clock_that_is_an_hour_off_neither_takes_a_thread_nor_loses_one(url: str, clock: float) -> None:
    with holder(url, lease=LEASE) as right, holder(url, lease=LEASE, clock=clock) as wrong:
        for first, other in ((right, wrong), (wrong, right)):
            assert first.ask("open t") == "done"
            assert first.ask("say first") == "done"
            assert other.ask("open t").startswith("ThreadBusy")
            assert first.ask("say more") == "done"
            assert first.ask("close") == "done"
            assert other.ask("open t") == "done"
            assert other.ask("say other") == "done"
            assert other.ask("close") == "done"
    assert await texts(url) == ["first", "more", "other"] * 2


@pytest.fixture(params=[*STORES, pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param != "postgresql":
        yield url_of(request.param, tmp_path)
        return
    with running_postgres() as server:
        yield f"{server.url()}?schema={server.new_schema()}"


@pytest.mark.parametrize("apart", [240, -240])
async def test_clocks_minutes_apart_take_no_live_thread_and_take_a_dead_one_once_its_lease_was_watched_to_its_end(
    shared_url: str, apart: float
) -> None:
    """None of the processes can see whether another is alive: each has leases as of another machine."""
    url = shared_url
    with ExitStack() as stack:
        clocks = (apart / 2, -apart / 2, -apart / 2)
        first, *others = [
            stack.enter_context(holder(url, lease=LEASE, clock=clock, elsewhere=True)) for clock in clocks
        ]
        assert first.ask("open t") == "done"
        end = time.monotonic() + 3 * LEASE
        said = 0
        while time.monotonic() < end:
            for other in others:
                assert other.ask("open t").startswith("ThreadBusy")
            assert first.ask(f"say {said}") == "done"
            said += 1
        killed = time.monotonic()
        first.signal(signal.SIGKILL)
        first.wait()
        for other in others:
            other.say("open t")
        answers = {other: other.hear() for other in others}
        while "done" not in answers.values():
            assert time.monotonic() < killed + PATIENCE
            answers = {other: other.ask("open t") for other in others}
        assert time.monotonic() - killed > LEASE / 2  # its last renewal was up to half a lease before
        assert sorted(answer.split(" ")[0] for answer in answers.values()) == ["ThreadBusy", "done"]
        taker = next(other for other, answer in answers.items() if answer == "done")
        assert taker.ask("say taken") == "done"
    assert await texts(url) == [*map(str, range(said)), "taken"]


@pytest.mark.parametrize("clock", [HOUR, -HOUR])
async def test_of_two_that_write_at_once_only_the_last_to_take_the_thread_is_heard(url: str, clock: float) -> None:
    """The thread goes back and forth between two that write all the time, one of them with a stepped clock."""
    with holder(url) as first, holder(url, clock=clock) as second:
        expected: list[str] = []
        assert first.ask("take t") == "done"
        for number in range(ROUNDS):
            old, new = (first, second) if number % 2 == 0 else (second, first)
            old.say(f"say-many old{number}- 100000")
            await something_said(url, f"old{number}-")
            take(new)
            assert new.ask(f"say-many new{number}- 10") == "10 done"
            count, reason = old.hear().split(" ")
            assert reason == "LeaseLost"
            assert int(count) > 0
            expected += [f"old{number}-{place}" for place in range(int(count))]
            expected += [f"new{number}-{place}" for place in range(10)]
    assert await texts(url) == expected


def take(new: Speaker) -> None:
    """Take over from one that writes all the time: its next append may come first, and often."""
    for _ in range(20):
        if (answer := new.ask("take t")) == "done":
            return
        assert answer.startswith("Unavailable"), answer
    pytest.fail("the holder was always faster")
