"""Makes the files in `data` with the real Locus: run this in an environment that has `locus-sdk`, and nothing of Clew.

    python data_writer.py files tests/compat/locus/data/3.0.1
    python data_writer.py sqlite tests/compat/locus/data/0.2.0b16.sql

The second needs a version with a SQLite store, such as 0.2.0b16, which is on GitHub and was never on PyPI, and `aiosqlite`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["write"]


class Scripted:
    """A model that answers by the number of responses that the conversation has."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = answers

    async def complete(self, messages: Any, tools: Any = None, **options: Any) -> Any:
        number = sum(message.role.value == "assistant" for message in messages)
        response: Any = import_module("locus.models.base").ModelResponse
        usage = {"prompt_tokens": 10 * (number + 1), "completion_tokens": 5}
        return response(message=self._answers[number], usage=usage, stop_reason="end_turn")

    async def stream(self, messages: Any, tools: Any = None, **options: Any) -> Any:
        raise NotImplementedError


async def write(checkpointer: Any) -> None:
    """Have conversations of all kinds: with tool calls that succeed and fail, over two agents, with ids that look alike
    as names of folders, and one of which only the first event is asked for, so that Locus cancels the run."""
    locus: Any = import_module("locus")
    messages: Any = import_module("locus.core.messages")

    def weather(city: str) -> str:
        """Tell the weather in a city."""
        if city == "Atlantis":
            raise ValueError("no such city: Atlantis")
        return f"{city}: 18 degrees"

    def say(text: str, **cities: str) -> Any:
        calls = [messages.ToolCall(id=key, name="weather", arguments={"city": city}) for key, city in cities.items()]
        return messages.Message.assistant(text, tool_calls=calls)

    trip = [say("Let me look.", call_1="Paris", call_2="Atlantis"), say("Paris is mild."), say("Booked for Alex.")]
    about = {"tools": [locus.tool(weather)], "system_prompt": "You plan trips.", "checkpointer": checkpointer}
    for prompt in ("I am Alex. Plan a trip to Paris.", "Now book the flights."):
        agent = locus.Agent(model=Scripted(trip), agent_id="planner", checkpoint_every_n_iterations=1, **about)
        async for _ in agent.run(prompt, thread_id="user-42"):
            pass
    for name in ("user/1", "user_1"):
        agent = locus.Agent(model=Scripted([say("Hello."), say("Hello again.")]), checkpointer=checkpointer)
        async for _ in agent.run(f"I am {name}.", thread_id=name):
            pass
    for prompt in ("Plan a trip to Paris.", "Now book the flights."):
        await locus.Agent(model=Scripted(trip), **about).run(prompt, thread_id="cut off").__anext__()
        await asyncio.sleep(0.2)


def main(kind: str, target: str) -> None:
    backends: Any = import_module("locus.memory.backends")
    if kind == "files":
        asyncio.run(write(backends.FileCheckpointer(target, pretty=False)))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(write(backends.sqlite_checkpointer(f"{folder}/locus.db")))
        with sqlite3.connect(f"{folder}/locus.db") as database:
            Path(target).write_text("\n".join(database.iterdump()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
