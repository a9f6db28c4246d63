"""An agent in a process of its own whose model writes as long as a file is absent, to a service:
`python -m tests.server.inspector.writer URL THREAD FILE`. The token is in `CLEW_TOKEN`.

Its first turn is done at once. Its second begins with the thinking and the words below and goes on with numbers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from clew import Agent, open_checkpointer
from clew.log import Usage
from clew.messages import Assistant, Text, Thinking
from clew.models.base import ModelEvent, ModelRequest, ModelResponse, TextDelta, ThinkingDelta

__all__ = ["HOSTILE", "WORDS"]

WORDS = "Here is a plan for three days in Paris."
HOSTILE = "<b id=owned>not bold</b>\u202e\x1b[31m"


class _Writer:
    name = "writer"
    context_window = None

    def __init__(self, file: Path) -> None:
        self._file = file

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if sum(message.__struct_config__.tag == "assistant" for message in request.messages) == 0:
            yield ModelResponse(Assistant((Text("What do you like?"),), self.name), Usage(5, 5), self.name)
            return
        thought, said = "Museums first.", f"{WORDS}\n{HOSTILE}\n"
        yield ThinkingDelta(thought)
        yield TextDelta(said)
        number = 0
        while not self._file.exists():
            number += 1
            piece = f"Stop {number}: a walk along the river, a museum, a café. "
            said += piece
            yield TextDelta(piece)
            await asyncio.sleep(0.05)
        content = (Thinking(thought), Text(said))
        yield ModelResponse(Assistant(content, self.name), Usage(50, 50), self.name)


async def _work(url: str, thread_id: str, file: Path) -> None:
    async with open_checkpointer(url) as store:
        agent = Agent(_Writer(file), name="writer", checkpointer=store)
        await agent.run("Plan a trip to Paris.", thread_id=thread_id)
        await agent.run("Museums and walks.", thread_id=thread_id)


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
