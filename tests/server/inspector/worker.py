"""An agent at work in a process of its own, a turn at a time: `python -m tests.server.inspector.worker URL THREAD FOLDER`.

It takes its third turn, and each one after it, when a file of that number is in the folder; with the last it is done.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from clew import Agent, open_checkpointer, tool
from clew.models.base import ModelRequest
from clew.testing import Reply, ScriptedModel, call, reply, say

__all__ = ["LAST"]

LAST = 7
_WORDS = "\n".join(f"Line {number} of a long answer." for number in range(1, 25))


async def _work(url: str, thread_id: str, folder: Path) -> None:
    @tool(effect="none")
    async def wait_for(number: int) -> str:
        """Wait until somebody lets the work go on."""
        while number > 2 and not (folder / str(number)).exists():
            await asyncio.sleep(0.02)
        return f"went on with {number}"

    def script(request: ModelRequest) -> Reply:
        turn = sum(message.__struct_config__.tag == "assistant" for message in request.messages) + 1
        words = say(f"This is turn {turn}.\n{_WORDS}")
        return reply(words) if turn == LAST else reply(words, call("wait_for", number=turn + 1))

    async with open_checkpointer(url) as store:
        await Agent(ScriptedModel(script), name="worker", tools=[wait_for], checkpointer=store).run(
            "Work slowly.", thread_id=thread_id
        )


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
