"""A folder to run the command in: a store, a module with tools, and models that answer from scripts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clew import Thread, open_checkpointer
from clew.log import Checkpoint
from tests.cli import command_line
from tests.cli.command_line import Terminal, clew
from tests.cli.script_model import FOLDER, install
from tests.limits import PATIENCE

__all__ = ["Workshop"]

_TOOLS = '''
import asyncio, os, signal
from pathlib import Path
from clew import ToolContext, tool

HERE = Path(__file__).parent

@tool(effect="none")
async def price(item: str) -> str:
    """What it costs."""
    print("a tool prints this")
    return f"{item}: 3 francs"

@tool
async def order(item: str) -> str:
    """Order it, once."""
    with (HERE / "orders").open("a") as file:
        file.write(item + "\\n")
    if (HERE / "die").exists():
        (HERE / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return "ordered"

@tool(effect="idempotent")
async def nap(seconds: float) -> str:
    """Wait."""
    (HERE / "napping").touch()
    await asyncio.sleep(seconds if not (HERE / "awake").exists() else 0)
    return "slept"

@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay it."""
    return f"paid {amount}"

@tool
async def ask_size(ctx: ToolContext) -> str:
    """Ask the guest."""
    return repr(await ctx.interrupt("Which size?"))

ALL = [price, order]
'''


class Workshop:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shop"
        self.folder.mkdir()
        (self.folder / "shop.py").write_text(_TOOLS)
        self.url = f"sqlite:///{self.folder / 'clew.db'}"
        self.env = {"PYTHONPATH": install(folder / "installed"), FOLDER: str(self.folder), "HOME": str(folder / "home")}

    def script(self, name: str, *responses: Any) -> str:
        """A script, and the name of the model that answers from it."""
        (self.folder / f"{name}.json").write_text(json.dumps(responses))
        return f"script:{name}"

    def calls(self, name: str) -> list[list[str]]:
        """The calls of the model so far: how many messages each had, and which tools."""
        path = self.folder / f"{name}.calls"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def clew(self, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **how.pop("env", {})}
        return clew(*arguments, store=self.url, env=env, **{"cwd": self.folder, **how})

    @contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The command while it runs."""
        run = subprocess.Popen(
            [sys.executable, "-m", "clew", *arguments],
            cwd=self.folder,
            env=command_line.environment(self.url, self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=command_line.hear_signals,
        )
        try:
            yield run
        finally:
            if run.poll() is None:
                run.kill()
            run.communicate()

    @contextmanager
    def terminal(self, *arguments: str) -> Iterator[Terminal]:
        with command_line.terminal(*arguments, store=self.url, cwd=self.folder, env=self.env) as shown:
            yield shown

    def until(self, name: str) -> None:
        """Return once a tool has left this file."""
        end = time.monotonic() + PATIENCE
        while not (self.folder / name).exists():
            assert time.monotonic() < end, f"{name} never came"
            time.sleep(0.02)

    def read(self, name: str) -> Sequence[str]:
        return (self.folder / name).read_text().split()

    async def load(self, thread_id: str) -> Checkpoint:
        async with open_checkpointer(self.url) as store:
            return await Thread.load(store, thread_id)
