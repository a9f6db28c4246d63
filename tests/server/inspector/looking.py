"""Threads worth looking at, and a browser that is none: it keeps cookies and finds the proof of a form."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec

from clew import Agent, Thread, ToolContext, tool
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.checkpointers.http.protocol import encode_text
from clew.log import (
    Described,
    MessageAdded,
    ModelCallStarted,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
)
from clew.messages import Image, Text, Thinking, ToolCall, ToolResult, assistant, user
from clew.testing import ScriptedModel, call
from clew.workspace import Workspace

__all__ = ["HOSTILE", "PIXEL", "agent", "fill", "in_store", "post", "proof", "thread"]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(40)


def thread(thread_id: str, rest: str = "") -> str:
    return f"/t/{encode_text(thread_id)}{rest}"


def in_store(url: str, work: Callable[[Checkpointer], Awaitable[Any]], namespace: str = "") -> Any:
    """Do this with the store, in a loop of its own."""

    async def run() -> Any:
        async with open_checkpointer(url, namespace) as store:
            return await work(store)

    return asyncio.run(run())


@tool(effect="steps")
async def ask(ctx: ToolContext) -> str:
    return f"they said {await ctx.interrupt('Which seat?')}"


@tool(effect="none", approve=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


def agent(store: Checkpointer) -> Agent:
    def script(request: Any) -> Any:
        asked = str(request.messages[0])
        first = call("pay", amount=5) if "Pay" in asked else call("ask")
        return first if len(request.messages) == 1 else "Thanks."

    return Agent(ScriptedModel(script), tools=[ask, pay], checkpointer=store)


async def fill(store: Checkpointer, folder: Path) -> None:
    """`trip` (two turns, files), `hostile`, `crashed`, `waiting`, `approval`, `long` (120 turns), and a fork of `trip`."""
    folder.mkdir(exist_ok=True)
    workspace = Workspace(folder, store)
    async with Thread.open(store, "trip") as opened:
        await opened.append(
            ThreadStarted("ada", "m-1"), Described("A trip", {"team": "x"}), MessageAdded(user("Plan it."))
        )
        for number, words in enumerate(("# Paris\n\nFriday\n", "# Paris\n\nSaturday <b>\n"), 1):
            asked = ToolCall(f"c{number}", "write", {"path": "plan.md"})
            said = (Thinking("hm"), Text(f"Line one\nline {number}"), asked)
            await opened.append(
                MessageAdded(assistant(*said, model="m-1"), Usage(100, 10), 0.5), ToolIntent(opened.messages, 0, "k")
            )
            (folder / "plan.md").write_text(words)
            await opened.append(ToolOutcome(opened.messages - 1, 0, ToolResult(f"c{number}", (Text("written"),))))
            await opened.append((await workspace.snapshot()).entry())
        await opened.append(StatusChanged("done"))
        await opened.fork("trip-fork", at_turn=1)
    async with Thread.open(store, "hostile") as opened:
        results = ToolResult("c", (Text(HOSTILE),), is_error=True)
        await opened.append(ThreadStarted(HOSTILE, HOSTILE), Described(HOSTILE, {"t": HOSTILE}))
        await opened.append(MessageAdded(user(HOSTILE, Image("image/png", PIXEL), Image("text/html", b"<b>"))))
        await opened.append(MessageAdded(assistant(HOSTILE, ToolCall("c", HOSTILE, {HOSTILE: HOSTILE}), model=HOSTILE)))
        await opened.append(ToolIntent(1, 0, "k"), ToolOutcome(1, 0, results), StatusChanged("failed", HOSTILE))
    async with Thread.open(store, "long") as opened:
        for number in range(1, 121):
            await opened.append(
                MessageAdded(user(f"q{number}")), MessageAdded(assistant(f"answer {number}"), Usage(1, 1), 0.0)
            )
    gone = Thread.open(store, "crashed")
    await gone.__aenter__()
    await gone.append(
        MessageAdded(user("Send it.")), ModelCallStarted("m"), MessageAdded(assistant(ToolCall("c", "send", {})))
    )
    await gone.append(ToolIntent(1, 0, "k"))
    gone.abandon()
    await _let_die(store)
    for name, prompt in (("waiting", "Ask them."), ("approval", "Pay them.")):
        await agent(store).run(prompt, thread_id=name)


async def _let_die(store: Checkpointer) -> None:
    """The lease of `crashed`, as a process leaves it that ended a while ago."""
    head = await store.head("crashed")
    assert head is not None
    assert head.lease is not None
    expired = msgspec.structs.replace(head.lease, expires_at=datetime.now(UTC) - timedelta(seconds=5))
    await store.append("crashed", [], at=head.frames, head=msgspec.structs.replace(head, lease=expired))


def proof(page: str) -> str:
    """What a form on this page proves where it came from with."""
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
    assert found is not None, "there is no form on the page"
    return found[1]


def post(client: httpx.Client, page: str, action: str, **fields: str) -> httpx.Response:
    """Send the form of a page, as a browser would."""
    shown = client.get(page)
    names = dict(re.findall(r'type="hidden" name="(id-\d+|kind-\d+)" value="([^"]*)"', shown.text))
    return client.post(action, data={**names, "csrf": proof(shown.text), **fields})
