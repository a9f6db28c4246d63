"""Runs of the simulated agents: processes that ask, resume, take over and cancel, while the seed breaks what it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from clew import Agent, Budget
from clew.agent.run import Run as AgentRun
from tests.simulation.agents.history import Broken, History
from tests.simulation.agents.store import LASTS, Server, SimulatedStore
from tests.simulation.agents.world import TOOLS, World
from tests.simulation.environment import simulated
from tests.simulation.loop import Machine, SimulatedLoop, current, current_machine
from tests.simulation.seeds import failure

__all__ = ["Run", "simulate"]

SKEWS = (0.0, 0.0, 0.4, -7.0, 20.0, -40.0, 3600.0, -86400.0)
"""How many seconds the clock of a machine is ahead."""
LIMIT = 1500.0
"""Seconds after which no process is started any more."""


class Run:
    """One run: machines with processes that work on the same threads."""

    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(seed)
        self.dice = self.loop.dice
        self.server = Server(self.loop)
        self.world = World(self.server)
        self.history = History(self.world)
        self.server.on_append = lambda machine: self._hit("after an append", machine)
        self.server.on_conflict = self._note_conflict
        self.world.hit = lambda point: self._hit(point, current_machine())
        self._threads = [f"t{number}" for number in range(self.dice.choice((1, 1, 2)))]
        self._prompts = self.dice.randint(1, 3)
        self._faults = self.dice.choice((0.0, 0.01, 0.04, 0.12))
        """How likely a fault is at each point that is worth one."""
        self._takeovers = self.dice.choice((0.0, 0.2, 0.7))
        """The share of processes that take threads from live ones."""
        self._processes: list[Machine] = []
        self._skews: dict[str, float] = {}
        self._outside = copy_context()
        self._outside.run(current.set, self.loop.outside)

    async def main(self) -> None:
        """Let processes work while faults happen, then finish all threads in a process without faults, and compare."""
        self.server.rate = self.dice.choice((0.0, 0.02, 0.1))
        self.server.latency = self.dice.choice((0.001, 0.05, 1.0))
        self.world.slowness = self.dice.choice((0.3, 1.0, 2.0))
        self.world.trouble = self.dice.choice((0.0, 0.1, 0.3))
        self.world.favourites = self.dice.sample(TOOLS, self.dice.choice((2, 4, len(TOOLS))))
        hosts = [f"m{number}" for number in range(self.dice.randint(1, 3))]
        watch = self.loop.start(self.loop.outside, self._watch())
        work = [self.loop.start(self.loop.outside, self._host(host)) for host in hosts]
        weather = self.loop.start(self.loop.outside, self._weather())
        while pending := [task for task in work if not task.done()]:
            await asyncio.wait([*pending, watch], return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
        weather.cancel()
        for task in work:
            task.result()
        self._faults = self.server.rate = self.world.trouble = 0.0
        self.server.is_away = False
        self.server.cut_off.clear()
        await asyncio.sleep(self.dice.uniform(0, 40))
        last = self._new_process("last", 0.0)
        await self.loop.start(last, self._finish())
        watch.cancel()
        self.history.check({name: await self.server.memory.read(name) for name in self.server.records})

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(5)
            self.history.look()

    # Processes

    def _new_process(self, host: str, ahead: float) -> Machine:
        number = sum(machine.name.startswith(f"{host}.") for machine in self.loop.machines)
        machine = self.loop.new_machine(f"{host}.{number}", steady=self.dice.uniform(0, 1000))
        self.server.set_clock(machine, ahead)
        self._processes.append(machine)
        return machine

    async def _host(self, host: str) -> None:
        """Run processes on one machine: a new one as soon as one has ended or was killed."""
        self._skews[host] = self.dice.choice(SKEWS)
        for _ in range(self.dice.randint(1, 3)):
            await asyncio.sleep(self.dice.choice((0.0, 1.0, 20.0)) * self.dice.random())
            machine = self._new_process(host, self._skews[host])
            task = self.loop.start(machine, self._process())
            while not task.done() and not machine.is_dead:
                await asyncio.wait([task], timeout=1)
            if task.done():
                task.result()
            if self.loop.time() > LIMIT:
                return

    async def _process(self) -> None:
        """One process: an agent, and callers that work with it at the same time."""
        dice = self.dice
        settings: dict[str, Any] = {"takeover": dice.random() < self._takeovers, "max_turns": dice.choice((2, 6, 50))}
        if dice.random() < 0.2:
            settings["budget"] = Budget(tokens=60)
        store = SimulatedStore(self.server, current_machine(), takeover=settings["takeover"])
        agent = self.world.agent(checkpointer=store, **settings)
        callers = [asyncio.create_task(self._caller(agent)) for _ in range(dice.choice((1, 1, 2)))]
        await asyncio.wait(callers)
        for caller in callers:
            caller.result()
        await agent.aclose()

    async def _caller(self, agent: Agent) -> None:
        for _ in range(self.dice.randint(1, 4)):
            thread_id = self.dice.choice(self._threads)
            timeout = self.dice.choice((None, None, None, 5.0, 30.0))
            if self.dice.random() < 0.3:
                await self._job("resume", agent.resume(thread_id=thread_id, timeout=timeout), thread_id, "", timeout)
            else:
                number = self.dice.randrange(self._prompts)
                run = agent.run(f"{thread_id} {number}", thread_id=thread_id, prompt_id=f"p{number}", timeout=timeout)
                await self._job("run", run, thread_id, f"p{number}", timeout)
            await asyncio.sleep(self.dice.choice((0.0, 1.0, 35.0)) * self.dice.random())

    async def _job(self, what: str, run: AgentRun[Any], thread_id: str, prompt_id: str, timeout: float | None) -> Any:
        """Await a run, or cancel it after a while. Returns its result, or None if it was cancelled or failed."""
        job = self.history.begin(what, thread_id, prompt_id, timeout)
        work = asyncio.ensure_future(run._finish())
        if self.dice.random() < 0.15 * (self._faults > 0):
            await asyncio.wait([work], timeout=self.dice.choice((0.1, 3.0, 30.0)) * self.dice.random())
            work.cancel()
        await asyncio.wait([work])
        outcome = asyncio.CancelledError() if work.cancelled() else work.exception() or work.result()
        self.history.end(job, outcome)
        return None if isinstance(outcome, BaseException) else outcome

    async def _finish(self) -> None:
        """Finish every thread in a new process, without faults: all prompts have an answer, and nothing is left to do."""
        store = SimulatedStore(self.server, current_machine())
        agent = self.world.agent(checkpointer=store, max_turns=99)
        for thread_id in self._threads:
            for number in range(self._prompts):
                await self._settle(agent, thread_id, number)
            await self._settle(agent, thread_id, None)

    async def _settle(self, agent: Agent, thread_id: str, number: int | None) -> None:
        """Ask a prompt in the end, or only resume, and answer what the thread waits for."""
        prompt_id = "" if number is None else f"p{number}"
        for _ in range(3):
            if number is None:
                run = agent.resume(thread_id=thread_id)
            else:
                run = agent.run(f"{thread_id} {number}", thread_id=thread_id, prompt_id=prompt_id)
            result = await self._job("last run", run, thread_id, prompt_id, None)
            while result is not None and result.status == "waiting":
                answers = {asked.id: self._answer(asked.arguments) for asked in result.questions}
                answering = agent.resume(thread_id=thread_id, answer=answers)
                result = await self._job("last answer", answering, thread_id, "", None)
            if result is not None and result.status == "done":
                return
            await asyncio.sleep(LASTS + 1)
        raise Broken(f"{prompt_id} of {thread_id} has no answer after three runs without faults")

    def _answer(self, arguments: Any) -> str:
        """Answer, as a person who has looked, whether a call in doubt is to be run."""
        n = arguments["n"]
        return f"did {n}" if n in self.world.acts else "run"

    # Faults

    def _note_conflict(self, machine: Machine, thread_id: str) -> None:
        lease = self.server.leases.get((machine, thread_id))
        if lease is not None and self.server.records[thread_id].holder is not lease:
            self.world.told.setdefault(lease, self.loop.time())

    def _hit(self, point: str, machine: Machine) -> None:
        """Freeze or kill a process at this point, if the seed says so."""
        if self.dice.random() < self._faults:
            self.loop.say("is hit %s", point, machine=machine)
            self.loop.call_soon(self._strike, machine, context=self._outside)

    def _strike(self, machine: Machine) -> None:
        if machine.is_dead:
            return
        kind = self.dice.random()
        if kind < 0.3:
            self.loop.kill(machine)
            self.history.forget(machine)
        elif kind < 0.9:
            self._freeze(machine, self.dice.choice((2.0, 29.9, 33.0, 45.0, 80.0)))
        else:
            self.server.set_clock(machine, self.dice.choice(SKEWS))
            self.loop.say("its clock is set to %s s ahead", machine.ahead, machine=machine)

    def _freeze(self, machine: Machine, seconds: float) -> None:
        now = self.loop.time()
        if machine.wakes <= now:
            self.world.freezes.setdefault(machine, []).append((now, now + seconds))
            self.loop.freeze(machine, seconds)

    async def _weather(self) -> None:
        """Let the store go away, cut machines off, and strike processes at any moment."""
        while True:
            await asyncio.sleep(self.dice.expovariate(1 / 30))
            if self.dice.random() >= 4 * self._faults:
                continue
            alive = [machine for machine in self._processes if not machine.is_dead]
            machine, seconds = self.dice.choice(alive) if alive else None, self.dice.choice((1.0, 9.0, 25.0, 50.0))
            kind = self.dice.choice(("away", "cut off", "strike", "strike"))
            self.loop.say("%s for %.0f s: %s", kind, seconds, machine)
            if kind == "away":
                self.server.is_away = True
                await asyncio.sleep(seconds)
                self.server.is_away = False
            elif machine is not None and kind == "cut off":
                self.server.cut_off[machine] = None
                await asyncio.sleep(seconds)
                self.server.cut_off.pop(machine, None)
            elif machine is not None:
                self._strike(machine)


def simulate(seed: int, check: Callable[[Run], object] = lambda run: None) -> list[str]:
    """Run one seed, and return its trace. Raises `Broken`, with the end of the trace, if a promise was broken."""
    run = Run(seed)
    try:
        with simulated(run.loop):
            run.loop.run(run.main())
        if run.loop.failures:
            raise Broken(f"errors that nobody was told: {run.loop.failures}")
    except AssertionError as error:
        broken = Broken(failure("agents", seed, error, run.loop.trace))
        broken.trace = tuple(run.loop.trace)
        raise broken from error
    check(run)
    return run.loop.trace
