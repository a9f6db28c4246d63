"""Threads of the built-in agent that ended in each way there is, and what every view has to say of them.

`python -m tests.agent.endings URL` is a process that is killed in the middle of its second turn.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest

from clew import Agent, Budget, tool
from clew.agent import Run, RunResult, ToolStarted
from clew.errors import ModelRefused
from clew.models import Price
from clew.testing import Response, ScriptedModel, call
from tests.clock import Clock

__all__ = ["ENDINGS", "REFUSAL", "VENDOR_WORDS", "Endings", "Expected", "make_agent"]

VENDOR_WORDS = "tools.3: names may not have blanks"
REFUSAL = ModelRefused("example", f"HTTP 400, invalid_request_error: {VENDOR_WORDS}", status=400)
PRICES = {"example": Price(input=1_000_000, output=1_000_000)}


class Expected(msgspec.Struct, frozen=True):
    """What is true of the last prompt of such a thread."""

    status: str
    reason: str
    is_known: bool = True
    """Whether what it cost is known."""


ENDINGS = {
    "done": Expected("done", ""),
    "failed": Expected("failed", "RuntimeError: down"),
    "failed-at-once": Expected("failed", "RuntimeError: down", is_known=False),
    "refused": Expected("failed", "example: the request was refused (HTTP 400, "),
    "cancelled": Expected("interrupted", "cancelled"),
    "timeout": Expected("interrupted", "timeout: 300 s"),
    "max-turns": Expected("interrupted", "max_turns: 1"),
    "budget": Expected("interrupted", "budget: "),
    "waiting": Expected("waiting", "May pay be run"),
    "killed": Expected("interrupted", "its process stopped before it could record an end"),
    "running": Expected("running", ""),
}


def make_agent(store: Any, script: list[Response], **settings: Any) -> Agent:
    """Its first prompt is answered with "Hello."; then comes the script."""

    @tool(effect="idempotent")
    async def look() -> str:
        return "a row"

    @tool(effect="idempotent")
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    @tool  # once: a resume tells the model, and does not run it again
    async def die() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    model = ScriptedModel(["Hello.", *script], name="example")
    tools = [look, wait, die, pay]
    return Agent(model, name="ada", tools=tools, checkpointer=store, prices=PRICES, **{"warn_turns": 0, **settings})


class Endings:
    """One thread for each ending, named like it, in the store of this URL. The one that runs does until this is left."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._run("done", [call("look"), "Done."])
        await self._run("failed", [call("look"), RuntimeError("down")])
        await self._run("failed-at-once", [RuntimeError("down")])
        for _ in range(2):  # asked again, as a request that is lost is only counted by the next one
            await self._run("refused", [REFUSAL])
        await self._run("max-turns", [call("look")], max_turns=1)
        await self._run("budget", [call("look")], usd=0.5)
        await self._run("waiting", [call("pay")])
        await self._run("timeout", [call("wait")], timeout=300)
        await self._start("cancelled", stop=True)
        await self._start("running", stop=False)
        root = Path(__file__).parents[2]
        killed = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.agent.endings", self._url, cwd=root)
        assert await killed.wait() == -signal.SIGKILL
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _run(
        self, name: str, script: list[Response], *, timeout: float | None = None, usd: float = 0.0, **settings: Any
    ) -> None:
        """`usd` is what may be spent on the second prompt."""
        async with make_agent(self._url, script, **settings) as agent:
            first = await agent.run("Hi.", thread_id=name, prompt_id="m1")
        if usd:
            settings["budget"] = Budget(usd=(first.cost or 0.0) + usd)
        async with make_agent(self._url, script, **settings) as agent:
            fails = name == "refused" or name.startswith("failed")
            with pytest.raises((RuntimeError, ModelRefused)) if fails else nullcontext():
                await _let_time_out(agent.run("Go.", thread_id=name, prompt_id="m2", timeout=timeout), timeout)

    async def _start(self, name: str, *, stop: bool) -> None:
        agent = await self._stack.enter_async_context(make_agent(self._url, [call("wait")]))
        await agent.run("Hi.", thread_id=name, prompt_id="m1")
        run = agent.run("Go.", thread_id=name, prompt_id="m2")
        async for event in run:
            if isinstance(event, ToolStarted):
                break
        if stop:
            await run.aclose()
        else:
            self._stack.push_async_callback(run.aclose)


async def _let_time_out(run: Run[RunResult], timeout: float | None) -> None:
    """Await a run. If it has a timeout, let that pass as soon as the tool has started that never ends."""
    with Clock() as clock:
        async for event in run:
            if timeout is not None and isinstance(event, ToolStarted):
                clock.advance(timeout)


async def main(url: str) -> None:
    async with make_agent(url, [call("die")]) as agent:
        await agent.run("Hi.", thread_id="killed", prompt_id="m1")
        await agent.run("Go.", thread_id="killed", prompt_id="m2")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
