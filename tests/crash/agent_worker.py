"""An agent in a process of its own, which ends itself with SIGKILL at a named point.

Each request to the model and each effect of a tool is a line in a file, synced: what really happened, whatever is on record.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from clew.agent import Agent
from clew.agent.journal import Journal
from clew.checkpointers import open_checkpointer
from clew.models import ModelRequest
from clew.testing import ScriptedModel, call, reply, say, turns_in
from clew.testing.scripted_model import Response
from clew.tools import NOT_DONE, NotDone, ToolContext, tool

TURNS = 8


def script() -> list[Response]:
    """Two calls at once in every other turn; then the last word."""
    turns: list[Response] = []
    for turn in range(TURNS):
        calls = call("charge", order=f"{turn}a") + call("note", text=f"turn {turn}")
        turns.append(reply(say(f"Turn {turn}."), calls if turn % 2 else call("charge", order=f"{turn}b")))
    return [*turns, "All is charged."]


class Point:
    """Counts what passes, and ends the process when it is its turn."""

    def __init__(self, wanted: str) -> None:
        self._where, _, number = wanted.partition(":")
        self._left = int(number or 0)

    def passed(self, where: str) -> None:
        if where == self._where:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def make_agent(folder: Path, url: str, point: Point) -> Agent:
    def line(file: str, text: str) -> None:
        with (folder / file).open("a") as out:
            out.write(text + "\n")
            out.flush()
            os.fsync(out.fileno())

    def happened(file: str, text: str) -> bool:
        path = folder / file
        return path.exists() and text in path.read_text().splitlines()

    def was_charged(ctx: ToolContext, order: str) -> str | NotDone:
        return f"charged {order}" if happened("charges", order) else NOT_DONE

    @tool(effect="once", reconcile=was_charged)
    async def charge(order: str) -> str:
        point.passed("before-effect")
        line("charges", order)
        point.passed("after-effect")
        return f"charged {order}"

    @tool(effect="idempotent")
    async def note(text: str, ctx: ToolContext) -> str:
        line("notes", f"{text} {ctx.idempotency_key}")
        assert ctx.workspace is not None
        (ctx.workspace / "notes.txt").write_text(text)
        point.passed("after-note")
        return "noted"

    class Watched(ScriptedModel):
        def stream(self, request: ModelRequest) -> Any:
            line("requests", str(turns_in(request)))
            point.passed("request")
            return super().stream(request)

    record = Journal.record

    async def watched(self: Journal, *entries: Any) -> None:
        point.passed("before-append")
        await record(self, *entries)
        point.passed("after-append")

    Journal.record = watched  # type: ignore[method-assign]
    return Agent(
        Watched(script()),
        name="charger",
        tools=[charge, note],
        checkpointer=open_checkpointer(url),
        workspace=folder / "files",
    )


async def main(folder: str, url: str, wanted: str) -> None:
    made = make_agent(Path(folder), url, Point(wanted))
    result = await made.run("Charge all orders.", thread_id="t")
    store = await made._store()
    await store.close()
    print(result.status, result.turns, result.output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
