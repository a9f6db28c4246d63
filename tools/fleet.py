"""A whole fleet on one machine, offline: a PostgreSQL store, two workers, two Temporal workers, and the inspector.

    make fleet

It queues a thread every few seconds, and sends every third one through Temporal. Kill what you like and watch: the pids are
printed, and what dies is started again after a moment. Ctrl+C ends everything.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path

from clew import Thread
from clew.checkpointers import open_checkpointer
from clew.workers import enqueue
from tests.servers.postgres import running_postgres
from tests.servers.running import free_port

ROOT = Path(__file__).parents[1]
RESTART_AFTER = 3.0
"""Seconds after which a process that was killed is started again. Until then, the others can be seen to take its work."""
EVERY = 3.0
"""Seconds between two new threads."""
CUSTOMERS = ("acme", "globex", "initech")


class Member:
    """A process of the fleet, which is started again whenever it dies."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._log = log
        self.process: asyncio.subprocess.Process | None = None

    async def live(self) -> None:
        """Start the process, and start it again a moment after it has died, until this is cancelled."""
        try:
            while True:
                with self._log.open("ab") as log:
                    self.process = await asyncio.create_subprocess_exec(
                        *self._command, env=self._env, stdout=log, stderr=log, start_new_session=True
                    )
                print(f"  {self.name:18} pid {self.process.pid}", flush=True)
                code = await self.process.wait()
                print(f"  {self.name:18} died ({code}); it is started again in {RESTART_AFTER:.0f} s", flush=True)
                await asyncio.sleep(RESTART_AFTER)
        finally:
            await self._end()

    async def _end(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


def _members(url: str, temporal: str, folder: Path) -> Iterator[Member]:
    """Yield the processes of the fleet. `temporal` is the address of a Temporal server, or empty if there is none."""
    env = {**os.environ, "CLEW_STORE": url, "CLEW_FLEET_TEMPORAL": temporal, "PYTHONPATH": str(ROOT)}
    python = sys.executable
    port = free_port()
    inspector = [python, "-m", "clew", "serve", "--port", str(port), "--no-token", "--no-access-log"]
    yield Member("inspector", inspector, env, folder / "inspector.log")
    print(f"Inspector: http://127.0.0.1:{port}")
    for number in (1, 2):
        command = [python, "-m", "clew", "work", "tools.fleet_agents:agents", "--label", f"worker-{number}"]
        yield Member(f"worker-{number}", command, env, folder / f"worker-{number}.log")
    for number in (1, 2) if temporal else ():
        command = [python, "-m", "tools.fleet_temporal", f"temporal-worker-{number}"]
        yield Member(f"temporal-worker-{number}", command, env, folder / f"temporal-{number}.log")


async def _feed(url: str, temporal: str) -> None:
    """Queue a new thread every few seconds, and say how the fleet stands."""
    async with open_checkpointer(url) as store, _through_temporal(temporal) as ask:
        for number in range(1, 10**9):
            thread_id, customer = f"order-{number:04}-{secrets.token_hex(2)}", CUSTOMERS[number % len(CUSTOMERS)]
            prompt = f"Work through order {number} of {customer}, one item at a time."
            if ask is not None and number % 3 == 0:
                await ask(thread_id, prompt)
            else:
                await enqueue(store, thread_id, prompt, agent="clerk", tags={"customer": customer})
            await asyncio.sleep(EVERY)
            if number % 10 == 0:
                found: dict[str, int] = {}
                async for head in Thread.list(store):
                    found[head.status] = found.get(head.status, 0) + 1
                print(
                    "  threads: " + ", ".join(f"{count} {status}" for status, count in sorted(found.items())),
                    flush=True,
                )


@asynccontextmanager
async def _through_temporal(address: str) -> AsyncIterator[Callable[[str, str], Awaitable[None]] | None]:
    """Yield the function that sends a prompt to a thread through Temporal; None without a server."""
    if not address:
        yield None
        return
    from tools.fleet_temporal import sender

    yield await sender(address)


@contextmanager
def _temporal_server(folder: Path) -> Iterator[str]:
    """Yield the address of a Temporal server, or "" if none is installed."""
    if find_spec("temporalio") is None or not (Path(sys.executable).parent / "temporal").exists():
        print("Temporal:  left out; to see it too, run: make .venv/.temporal")
        yield ""
        return
    from tests.servers.temporal import a_temporal

    with a_temporal(folder) as address:
        print(f"Temporal:  {address}")
        yield address


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with (
        tempfile.TemporaryDirectory(prefix="clew-fleet-") as folder,
        running_postgres() as server,
        _temporal_server(Path(folder)) as temporal,
    ):
        print(f"Store:     {server.url()}")
        members = list(_members(server.url(), temporal, Path(folder)))
        print(f"Logs:      {folder}\nKill what you like (kill -9 PID), and watch in the inspector. Ctrl+C ends it all.")
        tasks = [asyncio.create_task(member.live()) for member in members]
        feeder = asyncio.create_task(_feed(server.url(), temporal))
        try:
            await asyncio.wait([asyncio.create_task(stop.wait()), feeder], return_when=asyncio.FIRST_COMPLETED)
            if feeder.done():
                feeder.result()
        finally:
            for task in (feeder, *tasks):
                task.cancel()
            await asyncio.gather(feeder, *tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
