"""Scripts in processes of their own, for what several processes do to one store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from asyncio.subprocess import Process

from tests.limits import PATIENCE

__all__ = ["race", "run_script", "start_script"]

_PREAMBLE = """
import asyncio, os, sys, time
from clew.checkpointers import FileCheckpointer, SQLiteCheckpointer
from clew.errors import Conflict, Unavailable
from clew.testing.contract.builders import append, listed, minute, put

path = sys.argv[1]

async def all_are_ready():
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
"""


async def run_script(code: str, *arguments: str) -> str:
    """Run a script in a process of its own, and return its output."""
    return await _output(await start_script(code, *arguments))


async def race(count: int, code: str, *arguments: str) -> list[str]:
    """Run a script in several processes, and return the output of each. Where the script awaits `all_are_ready()`, each
    process waits until all of them have come so far."""
    racers = [await start_script(code, *arguments) for _ in range(count)]
    for racer in racers:
        assert racer.stdout is not None
        assert await asyncio.wait_for(racer.stdout.readline(), PATIENCE) == b"ready\n"
    return await asyncio.gather(*(_output(racer) for racer in racers))


async def start_script(code: str, *arguments: str) -> Process:
    """Start a script in a process of its own, with pipes to it and from it."""
    pipe = subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PREAMBLE + code, *arguments, stdin=pipe, stdout=pipe, stderr=pipe
    )


async def _output(process: Process) -> str:
    output, errors = await asyncio.wait_for(process.communicate(b"go\n"), PATIENCE)
    assert process.returncode == 0, errors.decode()
    return output.decode()
