"""A process that posts to a thread, or runs its agent, and that is killed at a named append: `before:3`, `after:3`.

`python -m tests.crash.inbox_worker URL post|run POINT` prints how many appends it made.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from clew import Agent, Thread, open_checkpointer, tool
from clew.checkpointers import Checkpointer
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call

__all__ = ["POSTS", "THREAD"]

THREAD = "t"
POSTS = {"p1": "First post.", "p2": "Second post.", "mid": "Posted by a tool."}


def killed_at(store: Checkpointer, point: str) -> list[int]:
    """End the process before or after the append with this number. Returns a list that the number of appends is in."""
    where, _, number = point.partition(":")
    count, real = [0], store.append

    def pass_by(place: str) -> None:
        if place == where and count[0] == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    async def append(*given: Any, **named: Any) -> None:
        count[0] += 1
        pass_by("before")
        await real(*given, **named)
        pass_by("after")

    store.append = append  # type: ignore[method-assign]
    return count


def answers(request: ModelRequest) -> Response:
    """Work once, then answer."""
    has_worked = any(message.__struct_config__.tag == "tool" for message in request.messages)
    return "Answered." if has_worked else call("work")


async def main(url: str, role: str, point: str) -> None:
    async with open_checkpointer(url) as store:
        count = killed_at(store, point)

        @tool(effect="idempotent")
        async def work() -> str:
            await Thread.post(store, THREAD, POSTS["mid"], prompt_id="mid")
            return "worked"

        if role == "post":
            for name in ("p1", "p2"):
                await Thread.post(store, THREAD, POSTS[name], prompt_id=name)
        else:
            agent = Agent(ScriptedModel(answers), tools=[work], checkpointer=store)
            await (agent.resume(thread_id=THREAD) if role == "resume" else agent.run("Begin.", thread_id=THREAD))
        print(count[0])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
