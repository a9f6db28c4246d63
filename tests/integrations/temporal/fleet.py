"""Agents for tests, and workers that run them: `python -m tests.integrations.temporal.fleet ADDRESS JSON`.

What an agent does is in the prompt: its model reads the last one and calls the tool that it names.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from temporalio.client import Client
from temporalio.worker import Worker

from clew import Agent, ToolContext, tool
from clew.agent.prompts import is_prompt
from clew.errors import ModelRefused, ModelUnavailable
from clew.integrations.temporal import ClewPlugin
from clew.messages import Assistant, Text, ToolResult, plain_text
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.threads import leases
from clew.tools import NOT_DONE
from tests.limits import PATIENCE
from tests.providers.toys import with_toys
from tests.servers.running import ServerProcess

__all__ = ["a_worker", "agents", "connect", "effects", "open_gate", "until"]


def agents(folder: Path, store: str) -> dict[str, Agent]:
    """The agents of a worker and of its clients, by name. Their effects go to a ledger in `folder`."""
    shared = folder / "ledger"

    def note_down(effect: str) -> None:
        with shared.open("a") as file:
            file.write(f"{effect}\n")

    async def was_paid(ctx: ToolContext, order: str) -> Any:
        return f"{order} was paid" if f"paid {order}" in effects(folder) else NOT_DONE

    @tool(reconcile=was_paid)
    async def pay(order: str) -> str:
        note_down(f"paid {order}")
        if order.startswith("slow"):
            await gate(folder)
        return f"paid {order}"

    @tool(effect="idempotent")
    async def look(order: str) -> str:
        note_down(f"looked {order}")
        if order.startswith("slow"):
            await gate(folder)
        return f"looked {order}"

    @tool
    async def approve(order: str, ctx: ToolContext) -> str:
        return f"{order}: {await ctx.interrupt(f'May {order} be sent?')}"

    @tool
    async def write(text: str, ctx: ToolContext) -> str:
        file = Path(str(ctx.workspace)) / "notes.txt"
        with file.open("a") as out:
            out.write(f"{text}\n")
        return file.read_text()

    made: dict[str, Any] = {"checkpointer": store, "max_turns": 2000, "warn_turns": 0}
    helper = Agent(model("helper"), name="helper", tools=[pay], **made)
    biller = Agent(model("biller"), name="biller", tools=[pay, look, approve, helper], **made)
    writer = Agent(model("writer"), name="writer", tools=[write], workspace=None, **made)
    secretive = Agent(model("secretive"), name="secretive", redact=[r"key-\w+"], **made)
    return {agent.name: agent for agent in (biller, writer, secretive)}


def model(name: str) -> ScriptedModel:
    return ScriptedModel(script, name=name)


async def script(request: ModelRequest) -> Response:
    """`say WORDS`, `pay ORDER`, `loop N` and so on: a tool's name and its argument."""
    place = max(number for number, message in enumerate(request.messages) if is_prompt(message))
    verb, _, rest = plain_text(request.messages[place]).partition(" ")
    since = request.messages[place + 1 :]
    turns = sum(isinstance(message, Assistant) for message in since)
    if verb == "say":
        return rest[:100]
    if verb == "refuse":
        raise ModelRefused("scripted", "a bad key")
    if verb == "outage" and not Path(rest).exists():
        Path(rest).touch()
        raise ModelUnavailable("scripted", "an outage", attempts=1)
    if verb == "outage":
        return "up again"
    if verb == "loop" and turns < int(rest):
        return call("look", order=f"{turns}")
    if verb == "loop" or turns:
        return Text("all is done") if verb == "loop" else last_result(request)
    arguments = {"helper": {"task": rest}, "write": {"text": rest}}.get(verb, {"order": rest})
    return call(verb, **arguments)


def last_result(request: ModelRequest) -> str:
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    return "".join(part.text for part in results[-1].content if isinstance(part, Text))


async def gate(folder: Path) -> None:
    """Wait until the test opens the gate."""
    while not (folder / "gate").exists():
        await asyncio.sleep(0.02)


def open_gate(folder: Path) -> None:
    (folder / "gate").touch()


def effects(folder: Path) -> list[str]:
    """What the tools have done, in order, over all workers."""
    ledger = folder / "ledger"
    return ledger.read_text().splitlines() if ledger.exists() else []


async def until(condition: Callable[[], Any] | Callable[[], Awaitable[Any]], what: str) -> None:
    """Return once the condition is true."""
    end = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if await found if isinstance(found, Awaitable) else found:
            return
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


async def connect(address: str, *plugins: ClewPlugin) -> Client:
    return await Client.connect(address, plugins=plugins)


def a_worker(
    address: str,
    folder: Path,
    store: str,
    *,
    named: str = "worker",
    queue: str = "clew",
    runs: Sequence[str] = ("biller", "writer", "secretive", "toy"),
    **options: Any,
) -> AbstractContextManager[ServerProcess]:
    """A process that runs these agents, ready once this is entered. `stop` shuts it down, `kill` is SIGKILL. It keeps
    files in a folder of its own, as a machine does."""
    log = folder / f"{named}.log"
    told = {"folder": str(folder), "store": store, "named": named, "queue": queue, "runs": list(runs), **options}
    command = [sys.executable, "-m", "tests.integrations.temporal.fleet", address, json.dumps(told)]
    return ServerProcess(command, log, lambda: "ready" in log.read_text().splitlines(), cwd=Path(__file__).parents[3])


async def main(address: str, told: dict[str, Any]) -> None:
    folder = Path(told["folder"])
    found = agents(folder, told["store"])
    if machine := told.get("machine"):
        # So that nobody can tell whether a process of another machine is alive.
        mock.patch.object(leases, "boot", return_value=machine).start()
    if "toy" in told["runs"]:
        with_toys()
        home = folder / f"home-{told['named']}"
        home.mkdir(exist_ok=True)
        env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        found["toy"] = Agent(provider="toy", name="toy", env=env, cwd=folder, checkpointer=told["store"])
    mine = [found[name] for name in told["runs"]]
    client = await connect(address, ClewPlugin(*mine, workspaces=folder / f"files-{told['named']}"))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    grace = timedelta(seconds=told.get("grace", 0))
    async with Worker(client, task_queue=told["queue"], identity=told["named"], graceful_shutdown_timeout=grace):
        print("ready", flush=True)
        await stopped.wait()
    print("shut down", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)
