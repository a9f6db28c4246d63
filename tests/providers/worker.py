"""A process that sends one prompt through a provider, to be killed: `python -m tests.providers.worker JSON`.

It prints a JSON line for its handle, for each event, and for what the prompt came to.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from clew import open_checkpointer
from clew.errors import ClewError
from clew.providers import Place, ProviderAgent
from tests.limits import PATIENCE
from tests.providers.toys import with_toys
from tests.tally import count

__all__ = ["Worker", "descendants", "is_running", "wait_until", "worker"]


class Worker:
    """One such process, as its starter sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.lines: list[dict[str, Any]] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The first line of this kind; what came before it is in `lines`."""
        out: IO[str] | None = self._process.stdout
        assert out is not None
        for line in out:
            self.lines.append(json.loads(line))
            if self.lines[-1]["kind"] == kind:
                return self.lines[-1]
        raise AssertionError(f"the worker ended without a word of {kind}: {self.lines}")

    def kill(self) -> list[int]:
        """SIGKILL, and all processes that were below it then."""
        below = descendants(self.pid)
        count("times SIGKILL")
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
        return below


@contextmanager
def worker(place: Place, store: str, **job: Any) -> Iterator[Worker]:
    """Start one. Its own environment is next to empty; that of the provider's program is the place's."""
    told = json.dumps({"cwd": str(place.cwd), "env": dict(place.env), "store": store, **job})
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.providers.worker", told],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "HOME": place.env["HOME"]},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Worker(process)
        finally:
            if process.poll() is None:
                process.kill()


def descendants(pid: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Any, what: str, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


async def main(told: dict[str, Any]) -> None:
    with_toys()
    async with open_checkpointer(told["store"]) as store:
        agent = ProviderAgent(
            told.get("model", ""),
            provider=told["provider"],
            cwd=told["cwd"],
            env=told["env"],
            checkpointer=store,
            permissions=told.get("permissions", "full"),
            system_prompt=told.get("system_prompt", ""),
        )
        session = agent.resume_session(told["handle"]) if "handle" in told else agent.start_session()
        say("handle", handle=session.resume_handle)
        run = session.send(told["prompt"])
        try:
            async for event in run:
                say(msgspec.to_builtins(event)["type"], event=msgspec.to_builtins(event))
        except ClewError as error:
            say("error", error=type(error).__name__, message=str(error))
            return
        say("turn", output=(await run).output)


def say(kind: str, **values: Any) -> None:
    print(json.dumps({"kind": kind, **values}, default=str), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
