"""Several processes on one store, killed, frozen, cut off and with wrong clocks, while its server is killed too: all answers
that any of them got fit together in one order."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from clew.checkpointers import open_checkpointer
from clew.testing import Journal, Recorder, check_history, read_history
from clew.testing.contract.histories import look_at_all
from clew.testing.history import Call
from tests.crash.history_sites import OPEN_SITES, Site, sqlite
from tests.crash.history_worker import SABOTAGES, Job
from tests.crash.processes import FULL, PATIENCE, Speaker
from tests.sampling import dice
from tests.servers.proxy import Proxy
from tests.tally import count

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

WORKERS = 3
ROUNDS = 12 if FULL else 1
"""How often each fault of the lists below happens, in random order; three times as often where there is no server."""
OF_PROCESSES = ("kill", "kill", "kill", "freeze", "freeze", "clock", "clock", "clock")
OF_SERVERS = ("cut", "cut", "silence", "refusal", "crash")
ANSWERS = 200 if FULL else 100
"""How many more calls have to succeed after some faults before the next ones come."""
LONGEST = 3.0
"""Seconds that a process is frozen or the network silent for at most: longer than a lease and a store's patience."""
METHODS = {
    "append",
    "read",
    "head",
    "heads",
    "refs",
    "delete",
    "put_blobs",
    "get_blobs",
    "missing_blobs",
    "delete_blobs",
}


class Crew:
    """Worker processes, each replaced by another one when it is killed."""

    def __init__(self, parent: Speaker, job: Job, chance: random.Random) -> None:
        self._parent = parent
        self._job = job
        self._chance = chance
        self._started = 0
        self._pids: list[int] = []
        self._frozen: set[int] = set()

    @classmethod
    @contextmanager
    def at_work(cls, job: Job, chance: random.Random) -> Iterator[Crew]:
        with Speaker("tests.crash.history_worker") as parent:
            crew = cls(parent, job, chance)
            try:
                for _ in range(WORKERS):
                    crew._start()
                yield crew
            finally:
                for pid in crew._pids:
                    os.kill(pid, signal.SIGKILL)
                    parent.ask(f"reap {pid}")

    def _start(self) -> None:
        self._started += 1
        job = msgspec.structs.replace(self._job, name=f"process-{self._started}", seed=self._chance.getrandbits(32))
        self._pids.append(int(self._parent.ask(msgspec.json.encode(job).decode()).removeprefix("pid ")))

    def kill(self) -> None:
        pid = self._chance.choice(self._pids)
        os.kill(pid, signal.SIGKILL)
        assert self._reap(pid) == -signal.SIGKILL, "the worker ended by itself before"
        self._start()

    def freeze(self) -> None:
        """Stop a process for a while. Other faults go on meanwhile; it may be killed as it is."""
        pid = self._chance.choice(self._pids)
        os.kill(pid, signal.SIGSTOP)
        self._frozen.add(pid)
        asyncio.get_running_loop().call_later(self._chance.uniform(0, LONGEST), self._thaw, pid)

    def _thaw(self, pid: int) -> None:
        if pid in self._frozen:
            self._frozen.discard(pid)
            os.kill(pid, signal.SIGCONT)

    def step_clock(self) -> None:
        os.kill(self._chance.choice(self._pids), signal.SIGUSR1)

    def finish(self) -> None:
        """Have all processes end in order."""
        Path(self._job.folder, "stop").touch()
        for pid in list(self._pids):
            self._thaw(pid)
            assert self._reap(pid) == 0

    def _reap(self, pid: int) -> int:
        ended = int(self._parent.ask(f"reap {pid}").removeprefix("exit "))
        self._pids.remove(pid)
        self._frozen.discard(pid)
        return ended


def planned_for(site: Site) -> Counter[str]:
    """Return how often each fault is to happen."""
    return Counter((OF_PROCESSES + OF_SERVERS) * ROUNDS if site.server else OF_PROCESSES * 3 * ROUNDS)


class Faults:
    """Everything that goes wrong, and how often it did."""

    def __init__(self, crew: Crew, site: Site, proxy: Proxy | None, chance: random.Random) -> None:
        self._crew = crew
        self._site = site
        self._proxy = proxy
        self._chance = chance
        self.counts: Counter[str] = Counter()

    async def strike_all(self, answers: Answers) -> None:
        """Let all faults happen, in random order, up to three at once. Each time the processes have to go on."""
        planned = list(planned_for(self._site).elements())
        self._chance.shuffle(planned)
        await answers.wait_for_more()
        while planned:
            for _ in range(min(len(planned), self._chance.randint(1, 3))):
                await self._strike(planned.pop())
            await answers.wait_for_more()
        self.counts["connections cut"] = self._proxy.cuts if self._proxy else 0
        count("connections cut", self.counts["connections cut"])

    async def _strike(self, kind: str) -> None:
        self.counts[kind] += 1
        count({"kill": "times SIGKILL", "crash": "times a server killed"}.get(kind, f"times {kind} in histories"))
        match kind:
            case "kill":
                self._crew.kill()
            case "freeze":
                self._crew.freeze()
            case "clock":
                self._crew.step_clock()
            case "crash":
                assert self._site.server is not None
                self._site.server.kill()
                await asyncio.sleep(self._chance.uniform(0, LONGEST / 6))
                self._site.server.start()
            case _:
                self._disturb_network(kind)

    def _disturb_network(self, kind: str) -> None:
        proxy, later = self._proxy, asyncio.get_running_loop().call_later
        assert proxy is not None
        match kind:
            case "cut":
                proxy.cut()
            case "silence":
                proxy.freeze()
                later(self._chance.uniform(0, LONGEST), proxy.thaw)
            case "refusal":
                proxy.refuse = True
                proxy.cut()
                later(self._chance.uniform(0, LONGEST / 4), setattr, proxy, "refuse", False)
            case _:
                raise ValueError(kind)


class Answers:
    """How many calls have succeeded so far, by what the journals say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self._count = 0

    async def wait_for_more(self) -> None:
        wanted, end = self._count + ANSWERS, time.monotonic() + PATIENCE
        while self._count < wanted:
            assert time.monotonic() < end, "the processes do not go on"
            await asyncio.sleep(0.05)
            for path in self._folder.glob("*.journal"):
                with path.open("rb") as journal:
                    journal.seek(self._read[path])
                    more = journal.read()
                whole = more.rpartition(b"\n")[0]
                self._read[path] += len(whole)
                self._count += whole.count(b'"outcome":"ok"')


async def disturbed_history(site: Site, folder: Path, sabotage: str = "") -> tuple[list[Call], Counter[str]]:
    """Let processes work on a store while everything goes wrong. Return what they asked and were answered, with a last look
    at all that is there then, and how often what went wrong."""
    folder.mkdir()
    chance = dice(f"history of {site.url.partition(':')[0]} {sabotage}")
    async with AsyncExitStack() as stack:
        proxy = None
        if site.port is not None:
            target = ("127.0.0.1", site.port)
            proxy = await stack.enter_async_context(Proxy(target, cut_after=lambda: cut_after(chance)))
        url = site.url_through(proxy.port) if proxy else site.url
        job = Job(url=url, folder=str(folder), sabotage=sabotage, holders=0 if sabotage else 1)
        with Crew.at_work(job, chance) as crew:
            faults = Faults(crew, site, proxy, chance)
            await faults.strike_all(Answers(folder))
            await asyncio.to_thread(crew.finish)
    history = read_history(folder.glob("*.journal"))
    async with Recorder(open_checkpointer(site.url), Journal(folder / "end.journal"), process="end") as store:
        for thread_id in {call.thread_id for call in history if call.thread_id}:
            await store.head(thread_id)
        await look_at_all(store, "")
    return read_history(folder.glob("*.journal")), faults.counts


def cut_after(chance: random.Random) -> int | None:
    """Return after how many bytes a connection is cut: one of five somewhere in its first calls, the others never."""
    return chance.randrange(20_000) if chance.random() < 0.2 else None


@pytest.fixture(params=OPEN_SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with request.param(tmp_path) as site:
        yield site


async def test_all_answers_fit_in_one_order_while_processes_and_servers_are_killed_and_cut_off_and_clocks_are_wrong(
    site: Site, tmp_path: Path
) -> None:
    history, faults = await disturbed_history(site, tmp_path / "journals")
    answered = Counter(call.method for call in history if call.outcome == "ok")
    ended = Counter(call.outcome for call in history)
    print(f"{site.url[:12]}: {len(history)} calls {dict(ended)}, faults {dict(faults)}, answered {dict(answered)}")
    assert check_history(history, resends=site.server is not None) == []
    assert faults - Counter({"connections cut": faults["connections cut"]}) == planned_for(site)
    assert set(answered) == METHODS
    assert ended["unknown"] > 0, "no call was interrupted"
    assert not site.server or faults["connections cut"] > 0
    writers = {call.writer for call in history if call.outcome == "ok" and call.writer}
    assert len(writers) > WORKERS, "no lease changed hands"


@pytest.mark.parametrize("sabotage", SABOTAGES)
async def test_a_store_that_breaks_a_promise_now_and_then_is_found(sabotage: str, tmp_path: Path) -> None:
    with sqlite(tmp_path) as site:
        history, _ = await disturbed_history(site, tmp_path / "journals", sabotage)
    assert check_history(history)
    assert check_history(history, resends=True), "what connections that break excuse hides it"
