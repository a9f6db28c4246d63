"""How long the command takes to say something, beside the import of the two libraries that it is made with."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from bench.reading import Read, alternate
from bench.results import Limit, Result, at_most
from bench.scale import Scale, progress, scratch
from clew.checkpointers import SQLiteCheckpointer
from clew.log import MessageAdded
from clew.messages import assistant, user
from clew.threads import Thread

__all__ = ["command"]

_FLOOR = [sys.executable, "-c", "import typer, rich"]
_CLEW = [sys.executable, "-m", "clew"]
_AT_ONCE = 64


async def command(scale: Scale) -> list[Result]:
    """Each is a process of its own, from its start to its end; all of its modules are compiled before."""
    threads = 10 * scale.threads
    progress(f"command: {threads} threads")
    with scratch() as folder:
        async with SQLiteCheckpointer(folder / "clew.db") as store:
            for start in range(0, threads, _AT_ONCE):
                some = range(start, min(start + _AT_ONCE, threads))
                await asyncio.gather(*(_work(store, number) for number in some))
        url = f"sqlite:///{folder / 'clew.db'}"
        if len(_output([*_CLEW, "ls", "--all", "--json"], url).splitlines()) != threads:
            raise AssertionError("the command does not list the threads that were made")
        measured = [
            ("clew --help", ["--help"], at_most(1.5)),
            (f"clew ls, {threads} threads", ["ls"], at_most(3.0)),
        ]
        return [await _beside(what, arguments, url, scale, limit) for what, arguments, limit in measured]


async def _work(store: SQLiteCheckpointer, number: int) -> None:
    async with Thread.open(store, f"customer-{number}") as thread:
        await thread.append(
            MessageAdded(user(f"Look at order {number}.")), MessageAdded(assistant("It is on its way."))
        )


async def _beside(what: str, arguments: list[str], url: str, scale: Scale, limit: Limit) -> Result:
    ours, floor = _run([*_CLEW, *arguments], url), _run(_FLOOR, url)
    await ours()
    await floor()
    return await alternate(f"{what} / python -c 'import typer, rich'", ours, floor, scale, limit)


def _run(arguments: list[str], url: str) -> Read:
    async def run() -> str:
        return _output(arguments, url)

    return run


def _output(arguments: list[str], url: str) -> str:
    env = {**os.environ, "CLEW_STORE": url}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, every start would compile all modules anew
    return subprocess.run(arguments, env=env, check=True, capture_output=True, text=True).stdout
