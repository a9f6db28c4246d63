"""The scheduler of the simulation: one seed gives one run, whatever the machine that it runs on does meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from clew.checkpointers import MemoryCheckpointer
from clew.errors import ThreadBusy
from clew.log import MessageAdded
from clew.messages import Text, User
from clew.threads import Thread
from tests.simulation.environment import simulated
from tests.simulation.loop import SimulatedLoop, Stuck


def run(seed: int, main: Callable[[SimulatedLoop], Coroutine[Any, Any, object]]) -> list[str]:
    """Run this in a simulation and return its trace."""
    loop = SimulatedLoop(seed)
    with simulated(loop):
        loop.run(main(loop))
    assert loop.failures == []
    return loop.trace


async def race(loop: SimulatedLoop) -> None:
    """Three machines with clocks of their own take turns to hold one thread, and one of them is frozen for a while."""
    store = MemoryCheckpointer()

    async def work(name: str) -> None:
        for number in range(4):
            while True:
                try:
                    async with Thread.open(store, "shared") as thread:
                        await thread.append(MessageAdded(user(f"{name} {number}")))
                        loop.say("appended %d of %d", number, thread.messages)
                        await asyncio.sleep(random.uniform(0, 3))
                    break
                except ThreadBusy as busy:
                    loop.say("%s", busy)
                    await asyncio.sleep(random.uniform(0, 5))
            loop.say("it is %s, %s", time.time(), secrets.token_hex(4))

    machines = [loop.new_machine(f"m{number}", ahead=1000.0 * number, steady=5.0 * number) for number in range(3)]
    tasks = [loop.start(machine, work(machine.name)) for machine in machines]
    loop.freeze(machines[1], 12)
    await asyncio.gather(*tasks)
    messages = (await Thread.load(store, "shared")).messages
    loop.say("%d messages", len(messages))
    assert sorted(messages, key=str) == [user(f"m{machine} {number}") for machine in range(3) for number in range(4)]


def user(text: str) -> User:
    return User((Text(text),))


@pytest.mark.parametrize("seed", range(5))
def test_one_seed_gives_one_trace(seed: int) -> None:
    assert run(seed, race) == run(seed, race)


def test_seeds_differ() -> None:
    assert len({"\n".join(run(seed, race)) for seed in range(5)}) == 5


def test_a_run_takes_no_real_time_and_leaves_the_clocks_as_they_were() -> None:
    before = (time.time, time.monotonic, os.urandom, threading.Thread.start)
    passed: list[float] = []

    async def sleep(loop: SimulatedLoop) -> None:
        began = time.monotonic()
        await asyncio.sleep(86_400)
        passed.append(time.monotonic() - began)

    run(1, sleep)
    assert 86_400 <= passed[0] < 86_401
    assert (time.time, time.monotonic, os.urandom, threading.Thread.start) == before


def test_a_frozen_machine_does_nothing_until_it_wakes_and_a_killed_one_nothing_at_all() -> None:
    async def count(loop: SimulatedLoop) -> None:
        done: dict[str, list[float]] = {"m0": [], "m1": []}

        async def tick(name: str) -> None:
            while True:
                await asyncio.sleep(1)
                done[name].append(loop.time())

        machines = [loop.new_machine(name) for name in done]
        for machine in machines:
            loop.start(machine, tick(machine.name))
        await asyncio.sleep(2.5)
        loop.freeze(machines[0], 10)
        loop.kill(machines[1])
        await asyncio.sleep(5)
        assert len(done["m0"]) == 2
        await asyncio.sleep(8)
        assert len(done["m0"]) == 5
        assert len(done["m1"]) == 2

    run(1, count)


def test_what_waits_for_nothing_is_told() -> None:
    async def wait(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="now or later"):
        run(1, wait)


@pytest.mark.parametrize("real", [lambda: time.sleep(0.01), lambda: threading.Thread(target=print).start()])
def test_real_sleeps_and_threads_are_refused(real: Callable[[], None]) -> None:
    async def break_out(loop: SimulatedLoop) -> None:
        real()

    with pytest.raises(AssertionError, match="a simulated machine"):
        run(1, break_out)


def test_a_machine_has_its_own_clock_and_its_own_view_of_leases() -> None:
    async def look(loop: SimulatedLoop) -> None:
        seen: dict[str, float] = {}

        async def note() -> None:
            seen[str(loop.machines[-1])] = time.time()

        base = time.time()
        for name, ahead in (("m0", -3600.0), ("m1", 3600.0)):
            await loop.start(loop.new_machine(name, ahead=ahead), note())
        assert seen["m0"] - base == pytest.approx(-3600, abs=1)
        assert seen["m1"] - base == pytest.approx(3600, abs=1)

    run(1, look)
