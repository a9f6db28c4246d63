"""A process that copies a thread in small parts, and says when it begins, after each step, and when it is done."""

from __future__ import annotations

import asyncio
import os
import sys

from clew.checkpointers import open_checkpointer
from clew.threads.ops import copy as copying


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def main(source_url: str, target_url: str, key: str, thread_id: str) -> None:
    copying.PART_SIZE = 400_000
    source, target = open_checkpointer(source_url), open_checkpointer(target_url, key=key or None)
    async with source, target:
        say("start")
        await copying.copy(source, target, thread_id, progress=lambda done, total: say(f"{done} of {total}"))
        say("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
