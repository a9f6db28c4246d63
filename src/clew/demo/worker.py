"""`python -m clew.demo.worker FOLDER`: the agent of the demo, in a process of its own.

Both the process that starts the work and the process that resumes it run this module.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from clew.agent import ToolFinished, ToolInDoubt, ToolReplayed, TurnFinished
from clew.demo.job import PROMPT, THREAD, Ended, Places, make_agent, say
from clew.tools import Effect

__all__ = ["main"]


async def work(places: Places, slow_at: int, effect: Effect) -> None:
    """Run or resume the thread of the demo, and print its events as lines of JSON. In the turn number `slow_at` the
    bank takes the money at once but answers late; with 0, it is never late. `effect` is what the payment tool declares
    about running twice."""
    async with make_agent(places, slow_at=slow_at, effect=effect) as agent:
        began = time.perf_counter()
        run = agent.run(PROMPT, thread_id=THREAD)
        async for event in run:
            if isinstance(event, TurnFinished | ToolFinished | ToolReplayed | ToolInDoubt):
                say(event)
        result = await run
        say(Ended(result.status, result.turns, result.waited, time.perf_counter() - began))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m clew.demo.worker", description="A process of `clew demo`.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slow-at", type=int, default=0, help="the turn in which the bank answers late")
    parser.add_argument("--effect", default="once", help="the effect that the payment tool declares")
    given = parser.parse_args()
    asyncio.run(work(Places(given.folder), given.slow_at, given.effect))


if __name__ == "__main__":
    main()
