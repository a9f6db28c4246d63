"""`python -m clew.cli.commands.doctor_worker THREAD`: the agent of `clew doctor --live`, in a process of its own.

Both the process that is killed and the process that resumes its work run this module. The store is named by CLEW_STORE
and not by an argument, because its URL may hold credentials, and other users can read the arguments of a process.
"""

from __future__ import annotations

import asyncio
import json
import sys

from clew.agent import Agent
from clew.testing.scripted_model import ScriptedModel, call
from clew.tools import tool

__all__ = ["IN_TOOL", "main"]

IN_TOOL = "in the second tool"
_LONG = 600.0
_PROMPT = "Do the first, then the second."


async def work(thread_id: str) -> None:
    """Run an agent with two tools on this thread, or resume it. Prints a report as JSON: the status, how many turns
    there are, how often the model was asked, and which tools ran."""
    ran: list[str] = []

    @tool(effect="once")
    async def first() -> str:
        """A tool of the check: notes that it ran, and returns "done" at once."""
        ran.append("first")
        return "done"

    @tool(effect="once")
    async def second() -> str:
        """A tool of the check: notes that it ran, and then waits so long that the process is killed in it. Returns
        "done"."""
        ran.append("second")
        print(IN_TOOL, flush=True)
        await asyncio.sleep(_LONG)
        return "done"

    model = ScriptedModel([call("first"), call("second"), "Both are done."])
    async with Agent(model, name="clew doctor", tools=[first, second]) as agent:
        result = await agent.run(_PROMPT, thread_id=thread_id)
    print(json.dumps({"status": result.status, "turns": result.turns, "asked": model.calls, "ran": ran}), flush=True)


def main() -> None:
    asyncio.run(work(sys.argv[1]))


if __name__ == "__main__":
    main()
