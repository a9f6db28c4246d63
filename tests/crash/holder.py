"""A process that opens threads as it is told, one command a line, and answers each with a line.

`at MOMENT` waits for a moment of the monotonic clock, which all processes of a machine share. `open ID`, `take ID` (from
a live holder, too), `say TEXT`, `say-many TEXT COUNT`, `close`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from clew._runtime import clock
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.errors import ClewError
from clew.log import MessageAdded
from clew.messages import user
from clew.threads import Thread, leases, thread


def step_clock(seconds: float) -> None:
    """Let this process's leases see another time than the rest of the machine does."""
    vars(clock)["time"] = SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic)


def shorten_leases(seconds: float) -> None:
    leases.LEASE_TIME = timedelta(seconds=seconds)
    leases.RENEW_AFTER = vars(thread)["RENEW_AFTER"] = leases.LEASE_TIME / 3


def move_elsewhere() -> None:
    """Let this process's leases name another machine, so that nobody here can see whether it is alive."""
    leases.boot = lambda: f"of the machine of {os.getpid()}"  # type: ignore[assignment]


class Holder:
    def __init__(self, store: Checkpointer) -> None:
        self._store = store
        self._thread: Thread | None = None

    async def obey(self, command: str) -> str:
        """Do this; how it went, in a word and more."""
        verb, *arguments = command.split(" ")
        try:
            match verb, arguments:
                case "at", [moment]:
                    time.sleep(max(0.0, float(moment) - time.monotonic()))
                    return "now"
                case (("open" | "take"), [thread_id]):
                    opened = Thread.open(self._store, thread_id, takeover=verb == "take")
                    await opened.__aenter__()
                    self._thread = opened
                case "say", [text]:
                    assert self._thread is not None
                    await self._thread.append(MessageAdded(user(text)))
                case "say-many", [text, count]:
                    return await self._say_many(text, int(count))
                case "close", []:
                    assert self._thread is not None
                    await self._thread.__aexit__(None, None, None)
                case _:
                    raise ValueError(command)
        except ClewError as error:
            return f"{type(error).__name__} {error}"
        return "done"

    async def _say_many(self, text: str, count: int) -> str:
        """Say this again and again, with a number; how often it was acknowledged, and why it ended.

        With a breath in between: who wants to take over has to read the log while it stands still.
        """
        assert self._thread is not None
        for number in range(count):
            await asyncio.sleep(0.02 * (number % 4))
            try:
                await self._thread.append(MessageAdded(user(f"{text}{number}")))
            except ClewError as error:
                return f"{number} {type(error).__name__}"
        return f"{count} done"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lease", type=float)
    parser.add_argument("--clock", type=float, default=0.0)
    parser.add_argument("--elsewhere", action="store_true")
    given = parser.parse_args()
    if given.lease:
        shorten_leases(given.lease)
    if given.clock:
        step_clock(given.clock)
    if given.elsewhere:
        move_elsewhere()
    assert (
        abs((leases.new_lease().expires_at - datetime.now(UTC) - leases.LEASE_TIME).total_seconds() - given.clock) < 5
    )
    async with open_checkpointer(given.url) as store:
        holder = Holder(store)
        print("ready", flush=True)
        while command := (await asyncio.to_thread(sys.stdin.readline)).rstrip("\n"):
            print(await holder.obey(command), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
